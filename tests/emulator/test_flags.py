# SPDX-License-Identifier: Apache-2.0
"""The preload library builds, whole, with the flags that distributions give to every package."""

from __future__ import annotations

import shutil
import subprocess
from glob import glob
from pathlib import Path

import pytest

from obmm.emulator.program import preload_library

from .foreign import ROOT
from .test_functions import functions

FLAGS = {
    "Debian": "-g -O2 -fstack-protector-strong -Wformat -Werror=format-security -Wdate-time -D_FORTIFY_SOURCE=2 "
    "-D_FILE_OFFSET_BITS=64 -D_TIME_BITS=64 -D_LARGEFILE_SOURCE",
    "Fedora": "-O2 -flto=auto -ffat-lto-objects -fexceptions -g -pipe -Wall -Werror=format-security "
    "-Wp,-U_FORTIFY_SOURCE,-D_FORTIFY_SOURCE=3 -Wp,-D_GLIBCXX_ASSERTIONS -fstack-protector-strong "
    "-fasynchronous-unwind-tables -fstack-clash-protection",
    "openEuler": "-O2 -g -pipe -Wall -Werror=format-security -Wp,-D_FORTIFY_SOURCE=2 -Wp,-D_GLIBCXX_ASSERTIONS "
    "-fstack-protector-strong -fPIE -fasynchronous-unwind-tables",
}
OWN = ["-std=gnu11", "-D_GNU_SOURCE", "-Wall", "-Wextra", "-Werror", "-fPIC", "-fvisibility=hidden"]
SOURCES = sorted((ROOT / "native" / "preload").glob("*.c"))


@pytest.mark.parametrize("whose", FLAGS)
def test_the_library_compiles_with_the_flags_of(whose: str) -> None:
    command = ["gcc", *FLAGS[whose].split(), *OWN, "-fsyntax-only", *SOURCES]
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr


def test_no_name_is_lost_where_everything_is_optimised_at_once(tmp_path: Path) -> None:
    library = tmp_path / "libobmm_preload.so"
    flags = FLAGS["Fedora"].replace("-O2", "-O1").split()
    command = ["gcc", *flags, *OWN, "-shared", "-o", library, *SOURCES, "-pthread", "-ldl"]
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr
    assert functions(library) == functions(preload_library())


def test_the_client_builds_on_musl() -> None:
    """The preload library is glibc's alone; the table and the emulator's client are not."""
    compiler = shutil.which("musl-gcc")
    if compiler is None:
        pytest.skip("this machine has no musl-gcc (Debian: musl-tools)")
    sources = [path for room in ("abi", "core", "emulator") for path in sorted((ROOT / "native" / room).glob("*.c"))]
    # the wrapper of Debian knows musl's own headers only, not the kernel's
    kernel = [part for path in glob("/usr/include/*-linux-gnu") for part in ("-idirafter", path)]
    command = [compiler, "-std=gnu11", "-D_GNU_SOURCE", "-O2", "-Wall", "-Wextra", "-Werror", "-fsyntax-only"]
    command += ["-I", str(ROOT / "native"), *kernel, "-idirafter", "/usr/include", *map(str, sources)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
