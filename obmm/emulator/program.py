# SPDX-License-Identifier: Apache-2.0
"""Foreign programs on an emulated node: which ones the preload library can serve, and how to start them."""

from __future__ import annotations

import os
import platform
import re
import shutil
import stat
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import BinaryIO

_ELF64 = b"\x7fELF\x02\x01"
_HEADER = struct.Struct("<16sHHIQQQIHHHHHH")
_PROGRAM_HEADER = struct.Struct("<IIQQQQQQ")
_DYNAMIC = struct.Struct("<qQ")
_PT_LOAD, _PT_DYNAMIC, _PT_INTERP, _PT_NOTE = 1, 2, 3, 4
_DT_STRTAB, _DT_STRSZ = 5, 10
_NAMES_MAX = 16 << 20
_NOTES_MAX = 4096
_GO_BUILD_ID = b"\x04\0\0\0Go\0\0"
"""Type and name of the note that Go's linker writes into every program."""
_ASKS_LIBC = re.compile(rb"(open|open64|openat|openat64|ioctl)\0")
"""Names (or ends of names: a string table shares them) of what reaches a device, among the symbols that a program takes."""
_OF_LIBC = re.compile(r"(libc|libpthread|libresolv|libdl|libm|librt|ld-linux.*)\.so\.\d+")
"""Libraries that Go's own packages bring along."""
_ENV_TAKES = frozenset({"-u", "--unset", "-C", "--chdir"})
"""Options of ``env`` with a word of their own behind them."""


class ProgramError(ValueError):
    """A program that cannot run on an emulated node; the text says why and what would."""


def preload_library() -> Path:
    """``libobmm_preload.so``, which is installed beside the package."""
    path = Path(__file__).resolve().parents[1] / "libobmm_preload.so"
    if not path.exists():
        if platform.libc_ver()[0] != "glibc":
            raise ProgramError(
                "programs run on an emulated node through a library that replaces glibc's functions, and this machine "
                "has another libc; obmm.open('emulator') and obmm_sys_emulator() work here as everywhere"
            )
        raise ProgramError(f"{path} is missing: build it with `make setup`, or install the package again")
    return path


def find_program(name: str) -> Path:
    """The file that the shell would run, or ProgramError."""
    found = shutil.which(name)
    if found is None:
        raise ProgramError(f"{name}: no such program, or not executable")
    return Path(found)


def check_program(path: Path) -> str:
    """ProgramError unless `path` asks libc for the devices; what its user has to know besides, or an empty text."""
    with path.open("rb") as file:
        head = file.read(_HEADER.size)
        if head.startswith(b"#!"):
            file.seek(2)
            return check_program(_interpreter(path, file.readline(4096).decode(errors="replace")))
        if not head.startswith(b"\x7fELF"):
            raise ProgramError(f"{path}: neither an ELF program nor a script")
        if not head.startswith(_ELF64) or len(head) < _HEADER.size:
            raise ProgramError(
                f"{path} is not a 64-bit little-endian program. The driver has no compat ioctls either: "
                "32-bit programs get ENOTTY from it (driver specification 2)"
            )
        fields = _HEADER.unpack(head)
        offset, size, count = fields[5], fields[9], fields[10]
        file.seek(offset)
        table = file.read(size * count)
        parts = [_PROGRAM_HEADER.unpack_from(table, at * size) for at in range(min(count, len(table) // size))]
        notes = b"".join(_part(file, part) for part in parts if part[0] == _PT_NOTE)
        names = _names(file, parts)
    if _PT_INTERP not in {part[0] for part in parts}:
        raise ProgramError(
            f"{path} is statically linked: it makes its system calls itself and never asks the dynamic linker for "
            "libc's open, ioctl and mmap, which is where the emulator answers. Link it dynamically, or use "
            "obmm_sys_emulator() from C"
        )
    go = _GO_BUILD_ID in notes
    if go and not _reaches_devices_through_libc(names):
        raise ProgramError(
            f"{path} is a Go program: Go's runtime makes its system calls itself, past libc, so that it would see "
            "this machine's /dev. Call C's open, ioctl and mmap through cgo, or obmm's C library (docs/c-api.md)"
        )
    if path.stat().st_mode & (stat.S_ISUID | stat.S_ISGID) and os.geteuid() != path.stat().st_uid:
        raise ProgramError(
            f"{path} is set-user-ID or set-group-ID: the dynamic linker ignores LD_PRELOAD for it. Run a copy "
            "without these bits"
        )
    if go:
        return f"{path} is a Go program: what it asks of libc through cgo is answered, os and syscall see this machine"
    return ""


def _interpreter(script: Path, line: str) -> Path:
    """What runs `script`: the program in its first line, or the one that ``env`` would start."""
    words = line.split()
    if not words:
        raise ProgramError(f"{script}: a script without an interpreter")
    if os.path.basename(words[0]) != "env":
        return Path(words[0])
    rest = words[1:]
    while rest and (rest[0].startswith("-") or "=" in rest[0]):
        option = rest.pop(0)
        if option in _ENV_TAKES and rest:
            rest.pop(0)
        elif option.startswith(("-S", "--split-string=")):
            text = option.removeprefix("-S").removeprefix("--split-string=")
            rest = [*text.split(), *rest]
    return find_program(rest[0]) if rest else Path(words[0])


def _names(file: BinaryIO, parts: list[tuple[int, ...]]) -> bytes:
    """The table of the names that the dynamic linker looks up: symbols taken and given, libraries needed."""
    entries: dict[int, int] = {}
    for part in parts:
        if part[0] == _PT_DYNAMIC:
            table = _part(file, part)
            entries |= dict(_DYNAMIC.iter_unpack(table[: len(table) // _DYNAMIC.size * _DYNAMIC.size]))
    place = entries.get(_DT_STRTAB, 0)
    for part in parts:
        if part[0] == _PT_LOAD and part[3] <= place < part[3] + part[5]:
            file.seek(part[2] + place - part[3])
            return file.read(min(entries.get(_DT_STRSZ, 0), _NAMES_MAX))
    return b""


def _reaches_devices_through_libc(names: bytes) -> bool:
    """Whether C code of a Go program, or a library that it needs, opens files or sends commands."""
    libraries = (name for name in names.decode(errors="replace").split("\0") if ".so" in name)
    return bool(_ASKS_LIBC.search(names)) or any(not _OF_LIBC.fullmatch(name) for name in libraries)


def _part(file: BinaryIO, part: tuple[int, ...]) -> bytes:
    """The first bytes of a segment of the file."""
    file.seek(part[2])
    return file.read(min(part[5], _NOTES_MAX))


def environment(device: str, base: Mapping[str, str] | None = None) -> dict[str, str]:
    """`base` (or this process's environment) for a program that runs on `device` (`Fabric.device`)."""
    env = dict(os.environ if base is None else base)
    preloads = [str(preload_library()), *env.get("LD_PRELOAD", "").replace(":", " ").split()]
    env["LD_PRELOAD"] = ":".join(dict.fromkeys(preloads))
    env["OBMM_DEVICE"] = device
    return env
