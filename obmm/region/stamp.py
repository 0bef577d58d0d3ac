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
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Literal

from obmm.driver.abi import Cache
from obmm.driver.process import boot_id, start_time

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

    @classmethod
    def newer(cls, priv: bytes) -> int | None:
        """The version of a stamp that a newer obmm made, or None."""
        digit = priv[15:16]
        return int(digit) if priv[8:15] == cls.MAGIC[:-1] and digit.isdigit() and digit > cls.MAGIC[-1:] else None

    def liveness(self) -> Liveness:
        """Whether that process still runs, as far as this one can see; only "dead" is proof."""
        if not 0 < self.pid < 1 << 31:  # no process has such a number: nothing that is in the stamp can be believed
            return "unknown"
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


def _proc_shows_our_pids() -> bool:
    """False where /proc is another PID namespace's: its numbers would name strangers."""
    try:
        return os.readlink("/proc/self") == str(os.getpid())
    except OSError:
        return False


def _namespace(process: str) -> int:
    return os.stat(f"/proc/{process}/ns/pid").st_ino


assert OwnerStamp._LAYOUT.size == 112
