# SPDX-License-Identifier: Apache-2.0
"""Foreign programs on an emulated node: which ones the preload library can serve, and how to start them."""

from __future__ import annotations

import os
import shutil
import stat
import struct
from collections.abc import Mapping
from pathlib import Path

_ELF64 = b"\x7fELF\x02\x01"
_HEADER = struct.Struct("<16sHHIQQQIHHHHHH")
_PROGRAM_HEADER = struct.Struct("<IIQQQQQQ")
_PT_INTERP = 3


class ProgramError(ValueError):
    """A program that cannot run on an emulated node; the text says why and what would."""


def preload_library() -> Path:
    """``libobmm_preload.so``, which is installed beside the package."""
    path = Path(__file__).resolve().parents[1] / "libobmm_preload.so"
    if not path.exists():
        raise ProgramError(f"{path} is missing: build it with `make setup`, or install the package again")
    return path


def find_program(name: str) -> Path:
    """The file that the shell would run, or ProgramError."""
    found = shutil.which(name)
    if found is None:
        raise ProgramError(f"{name}: no such program, or not executable")
    return Path(found)


def check_program(path: Path) -> None:
    """ProgramError unless the dynamic linker will load the preload library into `path`."""
    with path.open("rb") as file:
        head = file.read(_HEADER.size)
        if head.startswith(b"#!"):
            file.seek(2)
            words = file.readline(4096).decode(errors="replace").split()
            if not words:
                raise ProgramError(f"{path}: a script without an interpreter")
            if os.path.basename(words[0]) == "env" and len(words) > 1 and "=" not in words[1] and words[1][0] != "-":
                check_program(find_program(words[1]))
            else:
                check_program(Path(words[0]))
            return
        if not head.startswith(b"\x7fELF"):
            raise ProgramError(f"{path}: neither an ELF program nor a script")
        if not head.startswith(_ELF64) or len(head) < _HEADER.size:
            raise ProgramError(
                f"{path} is no 64-bit little-endian program. The driver has no compat ioctls either: "
                "32-bit programs get ENOTTY from it (driver specification 2)"
            )
        fields = _HEADER.unpack(head)
        offset, size, count = fields[5], fields[9], fields[10]
        file.seek(offset)
        table = file.read(size * count)
    kinds = {_PROGRAM_HEADER.unpack_from(table, at * size)[0] for at in range(count)}
    if _PT_INTERP not in kinds:
        raise ProgramError(
            f"{path} is statically linked: it makes its system calls itself and never asks the dynamic linker for "
            "libc's open, ioctl and mmap, which is where the emulator answers. Link it dynamically, or use "
            "obmm_sys_emulator() from C"
        )
    if path.stat().st_mode & (stat.S_ISUID | stat.S_ISGID) and os.geteuid() != path.stat().st_uid:
        raise ProgramError(
            f"{path} is set-user-ID or set-group-ID: the dynamic linker ignores LD_PRELOAD for it. Run a copy "
            "without these bits"
        )


def environment(device: str, base: Mapping[str, str] | None = None) -> dict[str, str]:
    """`base` (or this process's environment) for a program that runs on `device` (`Fabric.device`)."""
    env = dict(os.environ if base is None else base)
    preloads = [str(preload_library()), *env.get("LD_PRELOAD", "").replace(":", " ").split()]
    env["LD_PRELOAD"] = ":".join(dict.fromkeys(preloads))
    env["OBMM_DEVICE"] = device
    return env
