# SPDX-License-Identifier: Apache-2.0
"""What a user installs: built from the source distribution, looked into, installed into a fresh environment."""

import email
import importlib.metadata
import platform
import runpy
import shutil
import subprocess
import sys
import sysconfig
import venv
import zipfile
from pathlib import Path, PurePosixPath

import pytest

ROOT = Path(__file__).resolve().parents[1]
# it compiles everything once more: in one process
pytestmark = pytest.mark.timeout(600)


def run(*command: str | Path, cwd: Path) -> str:
    done = subprocess.run([str(part) for part in command], cwd=cwd, text=True, capture_output=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    tmp = tmp_path_factory.mktemp("packaging")
    # a copy: what an earlier build left in the tree must not slip in, nor this build disturb it
    tree = shutil.copytree(
        ROOT, tmp / "tree", ignore=shutil.ignore_patterns(".*", "build", "dist", "*.egg-info", "*.so", "__pycache__")
    )
    run(sys.executable, "setup.py", "-q", "sdist", "-d", tmp, cwd=tree)
    (sdist,) = tmp.glob("obmm-*.tar.gz")
    run(*(sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "--no-build-isolation", "-w", tmp, sdist), cwd=tmp)
    (built,) = tmp.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def files(wheel):
    with zipfile.ZipFile(wheel) as archive:
        return {PurePosixPath(name) for name in archive.namelist()}


@pytest.fixture(scope="module")
def metadata(wheel):
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        return email.message_from_bytes(archive.read(name))


def test_the_wheel_is_abi3_for_cpython_3_11_and_later(wheel):
    tag = wheel.stem.split("-", 2)[2]
    assert tag == f"cp311-abi3-linux_{platform.machine()}"


def test_the_native_module_is_abi3(files):
    assert [str(name) for name in files if name.suffix == ".so" and name.stem.startswith("_native")] == [
        "obmm/_native.abi3.so"
    ]


def test_obmm_is_the_only_top_level_package(files, metadata):
    version = metadata["Version"]
    assert {name.parts[0] for name in files} == {"obmm", f"obmm-{version}.dist-info", f"obmm-{version}.data"}


def test_the_manual_page_the_completion_and_the_examples_are_installed(files):
    shared = {"/".join(name.parts[2:]) for name in files if name.parts[0].endswith(".data")}
    examples = {
        path.relative_to(ROOT).as_posix() for path in (ROOT / "examples").rglob("*") if path.suffix in (".py", ".c")
    }
    assert len(examples) >= 7
    assert shared == {
        "share/man/man1/obmm.1",
        "share/bash-completion/completions/obmm",
        *(f"share/doc/obmm/{example}" for example in examples),
    }


def test_every_package_of_the_tree_is_installed(files):
    in_tree = {str(init.parent.relative_to(ROOT)) for init in ROOT.glob("obmm/**/__init__.py")}
    assert {str(name.parent) for name in files if name.name == "__init__.py"} == in_tree


def test_no_c_source_is_installed_but_the_benchmarks_baselines(files):
    # naive loops to compare with, compiled where they run; examples are not part of the package
    assert {str(name.parent) for name in files if name.suffix == ".c" and name.parts[0] == "obmm"} == {"obmm/bench"}


def test_headers_and_library_for_c_programs_are_installed(wheel, tmp_path):
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path)
    installed = tmp_path / "obmm" / "c"
    assert (installed / "lib" / "pkgconfig" / "obmm.pc").is_file()
    compile_it = ("gcc", "-std=c11", f"-I{installed / 'include'}", ROOT / "examples" / "c" / "two_nodes.c")
    run(*compile_it, f"-L{installed / 'lib'}", "-lobmm", "-pthread", "-o", tmp_path / "two_nodes", cwd=tmp_path)


def test_type_checkers_find_our_types(files):
    assert PurePosixPath("obmm/py.typed") in files


def test_the_licence_is_apache(files, metadata):
    assert metadata["License-Expression"] == "Apache-2.0"
    assert any(name.name == "LICENSE" for name in files)


def test_the_core_needs_cffi_and_numpy_only(metadata):
    core = [line for line in metadata.get_all("Requires-Dist") if "extra ==" not in line]
    assert sorted(line.split(">=")[0] for line in core) == ["cffi", "numpy"]


@pytest.fixture(scope="module")
def fresh(wheel, tmp_path_factory):
    """An environment with the wheel and what its core needs, and nothing else; its folder, which is not a clone."""
    folder = tmp_path_factory.mktemp("elsewhere")
    venv.create(folder / "env", with_pip=False, symlinks=True)
    python = folder / "env" / "bin" / "python"
    run(
        *(sys.executable, "-m", "pip", "--python", python, "install", "-q", "--no-deps", "--no-index", wheel),
        cwd=folder,
    )
    (site,) = (folder / "env").glob("lib/python*/site-packages")
    for package in ("numpy", "cffi"):  # from here, as they were installed
        for file in importlib.metadata.files(package) or ():
            top = Path(str(file)).parts[0]
            if top not in ("..", "__pycache__") and not (site / top).exists():
                (site / top).symlink_to(Path(str(file.locate())).parents[len(file.parts) - 1] / top)
    assert any(site.glob("_cffi_backend*"))
    return folder


def test_a_fresh_environment_imports_what_was_installed(fresh):
    names = "obmm, obmm._native, obmm.driver.abi, obmm.bench, obmm.emulator, obmm.rows, obmm.prefetch, obmm.blocks"
    program = f"import {names}; print(obmm.__file__, obmm._native.__file__)"
    report = run(fresh / "env" / "bin" / "python", "-I", "-c", program, cwd=fresh)
    assert [Path(name).is_relative_to(fresh / "env") for name in report.split()] == [True, True]


def test_a_program_of_the_wheel_alone_reads_another_nodes_memory(fresh):
    """From any folder, with the core's two dependencies."""
    program = """
import numpy as np, obmm
with obmm.emulator.start(nodes=2) as fabric, obmm.open(fabric.device("a")) as a, obmm.open(fabric.device("b")) as b:
    with a.export_region("2MiB") as region, region.map("rw") as m:
        with m.writing():
            m.as_numpy("<f4", (10, 4))[:] = np.arange(40).reshape(10, 4)
        m.publish()
        with b.import_region(region.handle()) as there, there.map("r") as seen:
            print(seen.rows(16).gather(np.array([2])).view("<f4"))
"""
    assert run(fresh / "env" / "bin" / "python", "-I", "-c", program, cwd=fresh).split() == [
        "[[",
        "8.",
        "9.",
        "10.",
        "11.]]",
    ]


def test_the_command_without_its_extra_is_one_line(fresh):
    done = subprocess.run(
        [fresh / "env" / "bin" / "obmm", "--version"], cwd=fresh, capture_output=True, text=True, timeout=60
    )
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.count("\n") == 1
    assert "pip install 'obmm[cli]'" in done.stderr


def test_the_extra_of_the_command_is_there(metadata):
    assert "cli" in metadata.get_all("Provides-Extra")
    needed = [line for line in metadata.get_all("Requires-Dist") if 'extra == "cli"' in line]
    assert {line.split(">")[0].split(";")[0].strip() for line in needed} == {"click", "rich"}


def test_the_manual_page_and_the_completion_work_where_they_are_installed(fresh):
    shared = fresh / "env" / "share"
    assert ".TH OBMM 1" in (shared / "man" / "man1" / "obmm.1").read_text().upper()
    completion = shared / "bash-completion" / "completions" / "obmm"
    ask = "COMP_WORDS=(obmm ser); COMP_CWORD=1; _obmm_completion obmm; echo ${COMPREPLY[@]}"
    here = f"PATH={Path(sys.executable).parent}:$PATH; source {completion}; complete -p obmm; {ask}"
    assert run("bash", "-c", here, cwd=fresh).splitlines()[-1] == "serve"
    alone = f"PATH={fresh / 'env' / 'bin'}:$PATH; source {completion} 2>&1"  # without the extra: none, and silence
    assert run("bash", "-c", alone, cwd=fresh) == ""


@pytest.mark.skipif(shutil.which("aarch64-linux-gnu-gcc") is None, reason="needs gcc-aarch64-linux-gnu")
def test_the_binding_agrees_with_the_c_headers_on_aarch64(tmp_path):
    # cffi's generated C checks every declaration; CPython's headers for LP64 serve both
    source = tmp_path / "native.c"
    build = runpy.run_path(str(ROOT / "native" / "ffi" / "build.py"))
    build["ffibuilder"].emit_c_code(str(source))
    version = "python{}.{}".format(*sys.version_info)
    for header in Path("/usr/include").glob(f"*-linux-gnu/{version}/pyconfig.h"):
        # a distribution's own Python has one per architecture, and names aarch64's
        other = tmp_path / "aarch64-linux-gnu" / version
        other.mkdir(parents=True, exist_ok=True)
        (other / "pyconfig.h").write_text(f'#include "{header}"\n')
    run(
        *("aarch64-linux-gnu-gcc", "-std=gnu11", "-fsyntax-only", "-Wall", "-Wextra", "-Werror"),
        *("-Wno-address-of-packed-member", "-Wno-unused-parameter", "-Wno-missing-field-initializers"),
        *("-D_GNU_SOURCE", "-DPy_LIMITED_API=0x030b0000", f"-I{ROOT / 'native'}"),
        *(f"-I{sysconfig.get_path('include')}", f"-I{tmp_path}", source),
        cwd=tmp_path,
    )


CHECK = runpy.run_path(str(ROOT / "native" / "tools" / "check_wheel.py"))
EXAMPLE = "obmm-1.data/data/share/doc/obmm/examples/words.py"


def elf(machine: int) -> bytes:
    """The header of an ELF file for `machine`."""
    return b"\x7fELF" + bytes(14) + machine.to_bytes(2, "little") + bytes(44)


def archive_of(*members: bytes) -> bytes:
    """As ``ar`` writes them, one of an odd length too."""
    return b"!<arch>\n" + b"".join(
        f"{f'{n}.o/':16}{'0':12}{'0':6}{'0':6}{'644':8}{len(one):<10}`\n".encode() + one + b"\n" * (len(one) % 2)
        for n, one in enumerate(members)
    )


@pytest.fixture
def release(tmp_path):
    """Makes a wheel of an aarch64 release that has all that is asked for but what is replaced by `changes` (None: left out)."""

    def make(tag: str = "cp311-abi3-linux_aarch64", **changes: bytes | None) -> Path:
        content = dict.fromkeys((*CHECK["NEEDED"], EXAMPLE), b"")
        content |= {name: elf(183) for name in content if name.endswith(".so")}
        content |= {
            "obmm/c/lib/libobmm.a": archive_of(elf(183), elf(183) + b"x", elf(183)),
            "obmm/_native.pyi": b"stub",
        }
        for word, one in changes.items():
            (name,) = (name for name in content if word in name)
            content[name] = one
        path = tmp_path / f"obmm-1-{tag}.whl"
        with zipfile.ZipFile(path, "w") as archive:
            for name, one in content.items():
                if one is not None:
                    archive.writestr(name, one)
        return path

    return make


@pytest.mark.parametrize(
    ("tag", "changes", "reason"),
    [
        ("cp311-cp311-linux_aarch64", {}, "the tag is not cp311-abi3"),
        ("cp311-abi3-linux_x86_64", {}, "not for x86_64"),
        ("cp311-abi3-linux_aarch64", {"preload": elf(62)}, "not for aarch64.*libobmm_preload.so.*x86_64"),
        ("cp311-abi3-linux_aarch64", {"libobmm_a": archive_of(elf(183), elf(62))}, r"libobmm.a\(1.o/\).*x86_64"),
        ("cp311-abi3-linux_aarch64", {"pyi": b"another"}, "is not the one of the module that was built here"),
        ("cp311-abi3-linux_aarch64", {"pyi": None}, "lacks obmm/_native.pyi"),
        ("cp311-abi3-linux_aarch64", {"obmm_h": None}, "lacks obmm/c/include/obmm/obmm.h"),
        ("cp311-abi3-linux_aarch64", {"words": None}, "lacks words.py"),
    ],
    ids=str,
)
def test_a_wheel_that_no_release_can_use_is_refused(release, tag, changes, reason):
    words = {"libobmm_a": "libobmm.a", "obmm_h": "obmm.h", "preload": "preload"}
    path = release(tag, **{words.get(word, word): one for word, one in changes.items()})
    with pytest.raises(SystemExit, match=reason):
        CHECK["check"](path, {"words.py"}, "stub")


def test_a_wheel_that_has_everything_is_refused_by_auditwheel_alone(release):
    """It is not a real one: what is asked before auditwheel passes."""
    with pytest.raises(subprocess.CalledProcessError) as caught:
        CHECK["check"](release(), {"words.py"}, "stub")
    assert "auditwheel" in caught.value.cmd
