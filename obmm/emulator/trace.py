# SPDX-License-Identifier: Apache-2.0
"""The last calls of a fabric's processes, as strace would print them, each refusal with the rule that gave it.

The ring keeps what a call was made of; text is made only for who asks.
"""

from __future__ import annotations

import errno
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from .model import structs
from .model.calls import KernelError
from .model.structs import Layout
from .protocol import WINDOW, Call, FileOperation, WindowRequest

KEPT = 4096
"""Calls that a fabric remembers."""
_PAYLOAD = 256
"""Bytes of an argument that are kept: every command's struct fits."""

_IOCTLS: dict[int, tuple[str, Layout]] = {
    structs.CMD_EXPORT: ("OBMM_CMD_EXPORT", structs.EXPORT),
    structs.CMD_IMPORT: ("OBMM_CMD_IMPORT", structs.IMPORT),
    structs.CMD_UNEXPORT: ("OBMM_CMD_UNEXPORT", structs.REMOVE),
    structs.CMD_UNIMPORT: ("OBMM_CMD_UNIMPORT", structs.REMOVE),
    structs.CMD_ADDR_QUERY: ("OBMM_CMD_ADDR_QUERY", structs.ADDR_QUERY),
    structs.CMD_EXPORT_PID: ("OBMM_CMD_EXPORT_PID", structs.EXPORT_PID),
    structs.CMD_DECLARE_PREIMPORT: ("OBMM_CMD_DECLARE_PREIMPORT", structs.PREIMPORT),
    structs.CMD_UNDECLARE_PREIMPORT: ("OBMM_CMD_UNDECLARE_PREIMPORT", structs.PREIMPORT),
    structs.SHMDEV_UPDATE_RANGE: ("OBMM_SHMDEV_UPDATE_RANGE", structs.UPDATE_RANGE),
}
_OPEN = {0o100: "O_CREAT", 0o200: "O_EXCL", 0o1000: "O_TRUNC", 0o2000: "O_APPEND", 0o4000: "O_NONBLOCK"}
_OPEN |= {0o40000: "O_DIRECT", 0o200000: "O_DIRECTORY", 0o400000: "O_NOFOLLOW", 0o2000000: "O_CLOEXEC"}
_OPEN |= {0o10000000: "O_PATH"}
_O_SYNC, _O_DSYNC, _O_LARGEFILE = 0o4010000, 0o10000, 0o100000
_PROT = {1: "PROT_READ", 2: "PROT_WRITE", 4: "PROT_EXEC"}
_MAP = {1: "MAP_SHARED", 2: "MAP_PRIVATE", 0x10: "MAP_FIXED", 0x8000: "MAP_POPULATE", 0x100000: "MAP_FIXED_NOREPLACE"}
_SILENT = frozenset({Call.MEMORY, Call.UNDO, Call.LEAVE})
_QUESTIONS = frozenset({FileOperation.DEVICE, FileOperation.FLAGS})
"""What a client asks for itself; no program made such a call."""


@dataclass(frozen=True, slots=True)
class Refusal:
    """What is kept of a `KernelError`: the exception itself would keep its frames, and what they hold, alive."""

    errno: int
    rule: str
    text: str


@dataclass(frozen=True, slots=True)
class Record:
    """One call: what was asked, and what the model said."""

    number: int
    when: float
    node: str
    pid: int
    call: int
    file: str
    arguments: tuple[int, ...]
    payload: bytes | None
    value: int
    refusal: Refusal | None

    def text(self) -> str:
        """As strace prints it, with the rule behind a refusal."""
        asked = _RENDER.get(self.call, _anything)(self)
        if self.refusal is None:
            shown = hex(self.value) if self.call in (Call.MMAP, Call.MREMAP, Call.PROGRAM) else str(self.value)
            return f"{asked} = {shown}"
        return f"{asked} = -1 {self.refusal.text}"

    def document(self) -> dict[str, Any]:
        """For programs: JSON values only."""
        error = self.refusal
        return {
            "number": self.number,
            "time": self.when,
            "node": self.node,
            "pid": self.pid,
            "call": Call(self.call).name.lower(),
            "text": self.text(),
            "errno": None if error is None else errno.errorcode.get(error.errno, str(error.errno)),
            "rule": None if error is None else error.rule,
        }


class Trace:
    """The last calls of all processes, in the order of their answers."""

    def __init__(self) -> None:
        self._records: deque[Record] = deque(maxlen=KEPT)
        self._number = 0
        self._changed = threading.Condition()
        self._closed = False

    def add(
        self,
        node: str,
        pid: int,
        call: int,
        file: str,
        arguments: tuple[int, ...],
        payload: bytes | None,
        value: int,
        refusal: KernelError | None,
    ) -> None:
        """A call is answered."""
        if call in _SILENT or (call == Call.FILE and arguments[0] in _QUESTIONS):
            return
        kept = payload[:_PAYLOAD] if payload else payload
        why = None if refusal is None else Refusal(refusal.errno, refusal.rule, str(refusal))
        with self._changed:
            self._number += 1
            self._records.append(Record(self._number, time.time(), node, pid, call, file, arguments, kept, value, why))
            self._changed.notify_all()

    def since(self, number: int, wait: float) -> list[Record]:
        """Calls after `number`; when there are none, those that come within `wait` seconds."""
        with self._changed:
            self._changed.wait_for(lambda: self._number > number or self._closed, wait)
            return [record for record in self._records if record.number > number]

    def close(self) -> None:
        """The reader has left."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()


def _flags(value: int, names: dict[int, str]) -> str:
    found = [name for bit, name in names.items() if value & bit]
    rest = value & ~sum(names)
    return "|".join([*found, *([hex(rest)] if rest or not found else [])])


def _open(record: Record) -> str:
    flags = record.arguments[0] & ~_O_LARGEFILE
    access = ("O_RDONLY", "O_WRONLY", "O_RDWR", "3")[flags & 3]
    rest, words = flags & ~3, [access]
    for bits, name in ((_O_SYNC, "O_SYNC"), (_O_DSYNC, "O_DSYNC")):
        if rest & bits == bits:
            rest, words = rest & ~bits, [*words, name]
    if rest:
        words.append(_flags(rest, _OPEN))
    return f"open({_path(record.payload)}, {'|'.join(words)})"


def _ioctl(record: Record) -> str:
    request, pointer = record.arguments[:2]
    name, layout = _IOCTLS.get(request, (hex(request), None))
    argument = hex(pointer) if record.payload is None or layout is None else _struct(layout, record.payload)
    return f"ioctl({record.file}, {name}, {argument})"


def _struct(layout: Layout, raw: bytes) -> str:
    """Members that are not zero, with the sizes of EXPORT as a list."""
    if len(raw) != layout.size:
        return f"{len(raw)} bytes"
    members = []
    for name, value in vars(layout.unpack(raw)).items():
        if isinstance(value, bytes) and len(value) == structs.SIZES.size:
            sizes = list(structs.SIZES.unpack(value))
            while sizes and not sizes[-1]:
                sizes.pop()
            members.append(f"{name}=[{', '.join(map(hex, sizes))}]")
        elif isinstance(value, bytes):
            members += [f"{name}={value.hex()}"] if any(value) else []
        elif value:
            members.append(f"{name}={value if -1024 < value < 1024 else hex(value)}")
    return "{" + ", ".join(members) + "}"


def _mmap(record: Record) -> str:
    address, length, prot, flags, offset = record.arguments[:5]
    rights = _flags(prot, _PROT) if prot else "PROT_NONE"
    return f"mmap({address:#x}, {length:#x}, {rights}, {_flags(flags, _MAP)}, {record.file}, {offset:#x})"


def _numbers(name: str, count: int) -> Callable[[Record], str]:
    return lambda record: f"{name}({', '.join(map(hex, record.arguments[:count]))})"


def _file(record: Record) -> str:
    operation = record.arguments[0]
    name = FileOperation(operation).name.lower() if operation in list(FileOperation) else f"operation {operation}"
    return f"{name}({record.file})"


def _of_path(name: str, show: Callable[[Sequence[int]], str]) -> Callable[[Record], str]:
    return lambda record: f"{name}({_path(record.payload)}, {show(record.arguments)})"


def _path(payload: bytes | None) -> str:
    return "NULL" if payload is None else '"' + payload.decode("utf-8", "backslashreplace") + '"'


def _program(record: Record) -> str:
    if record.payload is None or len(record.payload) != WINDOW.size:
        return "program_window(?)"
    window = WindowRequest.unpack(record.payload)
    where = {"pa": window.pa, "local_cna": window.local_cna}
    members = [f"owner_cna={window.owner_cna:#x}", f"tokenid={window.tokenid:#x}", f"uba={window.uba:#x}"]
    members += [f"length={window.length:#x}", *(f"{name}={value:#x}" for name, value in where.items() if value)]
    return f"program_window({', '.join(members)}, {'cc' if window.cache == 1 else 'nc'})"


def _anything(record: Record) -> str:
    return f"call {record.call}"


_RENDER: dict[int, Callable[[Record], str]] = {
    Call.OPEN: _open,
    Call.IOCTL: _ioctl,
    Call.MMAP: _mmap,
    Call.MUNMAP: _numbers("munmap", 2),
    Call.MPROTECT: _numbers("mprotect", 3),
    Call.MREMAP: _numbers("mremap", 5),
    Call.MADVISE: _numbers("madvise", 3),
    Call.MSYNC: _numbers("msync", 3),
    Call.FILE: _file,
    Call.PROGRAM: _program,
    Call.UNPROGRAM: _numbers("unprogram_window", 1),
    Call.OPENS: _numbers("opens", 1),
    Call.CHMOD: _of_path("chmod", lambda arguments: f"{arguments[0]:#o}"),
    Call.CHOWN: _of_path("chown", lambda arguments: f"{arguments[0]}, {arguments[1]}"),
}
