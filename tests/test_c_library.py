# SPDX-License-Identifier: Apache-2.0
"""The C library as a C or C++ program sees it: headers, library, pkg-config, and the example of two nodes."""

import os
import re
import runpy
import shutil
import subprocess
from pathlib import Path

import pytest
from click.testing import CliRunner

import obmm
import obmm.emulator
from obmm.cli.main import main
from obmm.host import c_library

ROOT = Path(__file__).resolve().parents[1]
EXAMPLE = ROOT / "examples" / "c" / "two_nodes.c"
INCLUDE = c_library.include_dir()
HEADERS = sorted(str(path.relative_to(INCLUDE)) for path in INCLUDE.rglob("*.h"))
STRICT = ("-Wall", "-Wextra", "-Werror", "-pedantic")
LANGUAGES = {"c11": ("gcc", "-std=c11", "-xc"), "c++17": ("g++", "-std=c++17", "-xc++")}


def compiles(*command: str | Path, text: str = "") -> subprocess.CompletedProcess[str]:
    if shutil.which(str(command[0])) is None:
        pytest.skip(f"needs {command[0]}")
    return subprocess.run([str(part) for part in command], input=text, text=True, capture_output=True, timeout=60)


@pytest.mark.parametrize("language", LANGUAGES)
@pytest.mark.parametrize("header", HEADERS)
def test_each_header_stands_alone(header, language):
    text = f"#include <obmm/{Path(header).relative_to('obmm')}>\n#include <obmm/obmm.h>\n"
    done = compiles(*LANGUAGES[language], *STRICT, "-fsyntax-only", f"-I{INCLUDE}", "-", text=text)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("language", LANGUAGES)
def test_the_kernels_numbers_hold_in_both_languages(language):
    done = compiles(*LANGUAGES[language], *STRICT, "-fsyntax-only", ROOT / "native" / "abi" / "obmm_abi_check.c")
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("header", HEADERS)
@pytest.mark.parametrize("machine", ["-m32", "-mx32"])
@pytest.mark.skipif(os.uname().machine != "x86_64", reason="-m32 is of x86")
def test_32_bit_is_refused_in_one_sentence(header, machine):
    # the preprocessor alone: needs no 32-bit libc; what that lacks is said after our sentence
    done = compiles("gcc", machine, "-E", f"-I{INCLUDE}", "-", text=f"#include <{header}>\n")
    assert done.returncode != 0
    assert "the driver's interface is 64-bit" in done.stderr


@pytest.mark.parametrize(
    "room", ["abi", "core", "emulator", "access", "hash", "gather", "engine", "blocks", "urma", "broker"]
)
def test_the_sources_need_nothing_beyond_musl(room):
    sources = sorted((ROOT / "native" / room).glob("*.c"))
    done = compiles("musl-gcc", "-std=gnu11", "-D_GNU_SOURCE", "-Wall", "-Wextra", "-Werror", "-fsyntax-only", *sources)
    assert done.returncode == 0, done.stderr


def test_headers_and_package_are_of_one_release():
    text = (INCLUDE / "obmm" / "core" / "version.h").read_text()
    numbers = [re.search(rf"OBMM_VERSION_{part} (\d+)", text)[1] for part in ("MAJOR", "MINOR", "PATCH")]
    assert ".".join(numbers) == obmm.__version__.split("+")[0]


@pytest.mark.parametrize("place", ["after size", "before root"])
def test_a_member_in_the_middle_of_the_table_does_not_compile(tmp_path, place):
    native = shutil.copytree(ROOT / "native", tmp_path / "native")
    header = native / "core" / "sys.h"
    before = {"after size": "\tint (*open)(struct", "before root": "\tconst char *root;"}[place]
    text = header.read_text()
    assert text.count(before) == 1
    header.write_text(text.replace(before, "\tvoid (*later)(void);\n" + before))
    done = compiles("gcc", "-std=gnu11", "-fsyntax-only", native / "core" / "sys.c")
    assert done.returncode != 0
    assert "has moved" in done.stderr


def test_a_member_at_the_end_of_the_table_compiles(tmp_path):
    native = shutil.copytree(ROOT / "native", tmp_path / "native")
    header = native / "core" / "sys.h"
    text = header.read_text()
    header.write_text(text.replace("\tconst char *name;\n", "\tconst char *name;\n\tvoid (*later)(void);\n"))
    done = compiles("gcc", "-std=gnu11", "-fsyntax-only", native / "core" / "sys.c")
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(("option", "folder"), [("--include-dir", "include"), ("--library-dir", "lib")])
def test_the_command_says_where(option, folder):
    said = CliRunner().invoke(main, [option])
    assert (said.exit_code, Path(said.output.strip())) == (0, Path(obmm.__file__).parent / "c" / folder)


def test_the_page_shows_the_example_as_it_is():
    assert f"```c\n{EXAMPLE.read_text()}```" in (ROOT / "docs" / "c-api.md").read_text()


def test_the_archive_is_for_every_linker_whatever_the_environment_asks_for(tmp_path):
    """`CFLAGS=-flto`: its objects hold machine code, not one compiler's own notes that only its plug-in reads."""
    arguments = runpy.run_path(str(ROOT / "native" / "ffi" / "build.py"))["COMPILE"]
    source, built = ROOT / "native" / "core" / "sys.c", tmp_path / "sys.o"
    command = ["gcc", "-O2", "-flto", "-D_FORTIFY_SOURCE=3", "-D_GNU_SOURCE", f"-I{ROOT / 'native'}", "-fPIC"]
    done = compiles(*command, *arguments, "-c", source, "-o", built)
    assert done.returncode == 0, done.stderr
    assert b".gnu.lto" not in built.read_bytes()


def flags() -> list[str]:
    """What pkg-config says, as the page has it."""
    if shutil.which("pkg-config") is None:
        return [f"-I{INCLUDE}", f"-L{c_library.library_dir()}", "-lobmm", "-pthread"]
    environment = {**os.environ, "PKG_CONFIG_PATH": str(c_library.library_dir() / "pkgconfig")}
    command = ["pkg-config", "--cflags", "--libs", "obmm"]
    return subprocess.run(command, env=environment, text=True, capture_output=True, check=True).stdout.split()


@pytest.fixture(scope="module", params=LANGUAGES)
def two_nodes(request, tmp_path_factory) -> Path:
    program = tmp_path_factory.mktemp("two_nodes") / "two_nodes"
    done = compiles(*LANGUAGES[request.param], *STRICT, EXAMPLE, "-xnone", "-o", program, *flags())
    assert done.returncode == 0, done.stderr
    return program


@pytest.fixture(scope="module")
def fabric():
    with obmm.emulator.start(nodes=2) as fabric:
        yield fabric


@pytest.fixture
def lender(two_nodes, fabric):
    command = [two_nodes, "lend", fabric.device("a")]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen(command, text=True, **pipes) as process:
        yield process


def borrow(program: Path, device: str, *handle: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([program, "borrow", device, *handle], text=True, capture_output=True, timeout=60)


def test_the_example_carries_bytes_between_two_nodes(two_nodes, fabric, lender):
    handle = lender.stdout.readline().split()
    done = borrow(two_nodes, fabric.device("b"), *handle)
    assert (done.returncode, done.stderr) == (0, "")
    assert "4194304 bytes of CNA" in done.stdout
    lender.stdin.close()
    assert lender.wait(30) == 0
    nodes = fabric.status()["nodes"].values()
    assert [(node["regions"], node["windows"]) for node in nodes] == [([], 0), ([], 0)]


def test_the_example_says_which_call_was_refused(two_nodes, fabric, lender):
    eid, cna, _, *rest = lender.stdout.readline().split()
    done = borrow(two_nodes, fabric.device("b"), eid, cna, "12345", *rest)  # another token than the export's
    lender.stdin.close()
    assert done.returncode == 1
    assert re.match("(window|import, map and read): ", done.stderr)


def test_a_node_that_cannot_be_opened_is_not_used(two_nodes, tmp_path):
    done = borrow(two_nodes, f"emulator:{tmp_path}/none.sock#a", "00" * 16, "1", "1", "0", "4194304")
    assert (done.returncode, "none.sock#a: No such file or directory" in done.stderr) == (1, True)
