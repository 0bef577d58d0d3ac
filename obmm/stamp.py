# SPDX-License-Identifier: Apache-2.0
"""The owner stamp in a region's private data: who made it, so that what the dead left can be told and removed.

The driver keeps `priv` and shows it in sysfs (driver specification 11.1).  Layout, little-endian, 128 bytes:

| offset | size | field |
|---|---|---|
| 0 | 2 | hardware word of driver specification 18, read by the management plane |
| 2 | 6 | zero |
| 8 | 8 | magic ``OBMMOWN1`` |
| 16 | 16 | boot id of the host |
| 32 | 8 | inode of the PID namespace |
| 40 | 4 | pid in that namespace |
| 44 | 2 | label bytes |
| 46 | 2 | zero |
| 48 | 8 | start time of the process, clock ticks since boot |
| 56 | 8 | export generation, 0 for an import or a raw region |
| 64 | 8 | creation, seconds since 1970 |
| 72 | 48 | label, UTF-8 |
| 120 | 4 | CRC-32 of bytes 8 to 119 |
| 124 | 4 | zero |
"""

from __future__ import annotations

import os
import struct
import time
import uuid
import zlib
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import ClassVar, Literal

from obmm.window import Cache

ON_CHIP_TRANSLATION = 1 << 5
CACHEABLE = 1 << 6

Liveness = Literal["alive", "dead", "unknown"]

_INITIAL_PID_NAMESPACE = 0xEFFFFFFC


def hardware_word(cache: Cache) -> int:
    """The default word for the management plane: cacheable as the region is mapped, address translation on chip."""
    return ON_CHIP_TRANSLATION | (CACHEABLE if cache == "cc" else 0)


@dataclass(frozen=True, slots=True)
class OwnerStamp:
    """The process that made a region.  `start_time` tells it from a later process with the same pid."""

    boot_id: bytes
    pid_namespace: int
    pid: int
    start_time: int
    label: str
    generation: int
    created: int

    SIZE: ClassVar[int] = 128
    MAGIC: ClassVar[bytes] = b"OBMMOWN1"
    LABEL_BYTES: ClassVar[int] = 48
    _LAYOUT: ClassVar[struct.Struct] = struct.Struct("<8s16sQIHxxQQQ48s")

    @classmethod
    def of_this_process(cls, label: str, generation: int = 0) -> OwnerStamp:
        """A stamp that names the calling process."""
        return cls(
            boot_id=boot_id(),
            pid_namespace=_namespace("self"),
            pid=os.getpid(),
            start_time=start_time("self") or 0,
            label=label,
            generation=generation,
            created=int(time.time()),
        )

    def pack(self, word: int) -> bytes:
        """The 128 bytes of private data; the label is cut to 48 bytes."""
        label = self.label.encode()[: self.LABEL_BYTES].decode(errors="ignore").encode()
        body = self._LAYOUT.pack(
            self.MAGIC,
            self.boot_id,
            self.pid_namespace,
            self.pid,
            len(label),
            self.start_time,
            self.generation,
            self.created,
            label,
        )
        return struct.pack("<H6x", word) + body + struct.pack("<I4x", zlib.crc32(body))

    @classmethod
    def find(cls, priv: bytes) -> OwnerStamp | None:
        """The stamp in private data as sysfs shows it, or None: a region that somebody else made."""
        body = priv[8:120]
        if len(priv) < cls.SIZE or body[:8] != cls.MAGIC or priv[120:124] != struct.pack("<I", zlib.crc32(body)):
            return None
        _, boot, namespace, pid, size, start, generation, created, label = cls._LAYOUT.unpack(body)
        text = label[: min(size, cls.LABEL_BYTES)].decode(errors="replace")
        return cls(boot, namespace, pid, start, text, generation, created)

    def liveness(self) -> Liveness:
        """Whether that process still runs, as far as this one can see; only "dead" is proof."""
        if self.boot_id != boot_id():
            return "dead"
        if not _proc_shows_our_pids():
            return "unknown"
        if self.pid_namespace == _namespace("self"):
            return self._liveness_here()
        return self._liveness_elsewhere()

    def _liveness_here(self) -> Liveness:
        """In our own PID namespace: kill(2) sees every process, also those that /proc hides from us (hidepid)."""
        if start_time(self.pid) == self.start_time:
            return "alive"
        try:
            os.kill(self.pid, 0)
        except ProcessLookupError:
            return "dead"
        except PermissionError:
            pass
        return "dead" if Path(f"/proc/{self.pid}").exists() else "unknown"

    def _liveness_elsewhere(self) -> Liveness:
        """In another one: only who looks from the initial namespace, and may look at every process, can say "dead"."""
        try:
            _namespace("1")  # fails where /proc hides what is not ours
        except OSError:
            return "unknown"
        sees_all = True
        for process in (path.name for path in Path("/proc").glob("[0-9]*")):
            try:
                namespace = _namespace(process)
            except (FileNotFoundError, ProcessLookupError):
                continue
            except OSError:
                sees_all = False  # this one may be the owner
                continue
            if namespace == self.pid_namespace and start_time(process) == self.start_time:
                return "alive"
        return "dead" if sees_all and _namespace("self") == _INITIAL_PID_NAMESPACE else "unknown"


@cache
def boot_id() -> bytes:
    """This boot of this host: 16 bytes."""
    return uuid.UUID(Path("/proc/sys/kernel/random/boot_id").read_text().strip()).bytes


def start_time(pid: int | str) -> int | None:
    """When a process started, in clock ticks since boot; None when there is none, or none that we may see.

    The same number in every time namespace.
    """
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    fields = text[text.rindex(")") + 2 :].split()
    return None if fields[0] in "ZX" else int(fields[19]) - _boot_offset()  # a zombie holds nothing any more


@cache
def _boot_offset() -> int:
    """Clock ticks that this time namespace adds to the time since boot."""
    try:
        lines = Path("/proc/self/timens_offsets").read_text().splitlines()
    except OSError:
        return 0
    seconds = next((int(line.split()[1]) for line in lines if line.startswith("boottime")), 0)
    return seconds * os.sysconf("SC_CLK_TCK")


def _proc_shows_our_pids() -> bool:
    """False where /proc is another PID namespace's: its numbers would name strangers."""
    try:
        return os.readlink("/proc/self") == str(os.getpid())
    except OSError:
        return False


def _namespace(process: str) -> int:
    return os.stat(f"/proc/{process}/ns/pid").st_ino


assert OwnerStamp._LAYOUT.size == 112
