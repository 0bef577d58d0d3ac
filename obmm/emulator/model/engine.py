# SPDX-License-Identifier: Apache-2.0
"""The cache engine (HHA): flushes by physical address, and the UB write queue (driver specification 9.8)."""

from __future__ import annotations

import errno
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING

from .calls import KernelError
from .ownership import WB_ONLY
from .region import ImportRegion, Region

if TYPE_CHECKING:
    from .host import Host

CHUNK = 1 << 30
BUSY_RETRY = 0.01
DRAIN_TIMEOUT = 1.0
NAMES = {1: "WB_ONLY", 2: "INVAL", 3: "WB_INVAL"}


@dataclass(frozen=True, slots=True)
class Flush:
    """One request to the engine. `op` is WB_ONLY, INVAL, WB_INVAL, or DRAIN of the queue of `scna`."""

    op: str
    pa: int = 0
    length: int = 0
    error: int = 0
    mem_id: int = 0
    offset: int = 0
    scna: int = 0


class CacheEngine:
    """One per host; all flushes of the host are serialized by one semaphore."""

    def __init__(self, host: Host) -> None:
        self._host = host
        self._semaphore = host.fabric.mutex()
        self.log: deque[Flush] = deque(maxlen=4096)
        """The latest requests, oldest first."""

    def flush(self, region: Region, offset: int, length: int, operation: int) -> None:
        """Run `operation` over a part of `region`; rule O11 when the engine fails.

        An export flushes its remaining physically contiguous pieces after an error and reports the first
        one; an import stops at the failing chunk. Write-back of an import also drains the write queue of
        its controller.
        """
        first_error = 0
        if not self._host.module.skip_cache_maintain:
            for at, pa, size in contiguous(region, offset, length):
                first_error = self._chunks(region, at, pa, size, operation) or first_error
        if first_error:
            raise KernelError(first_error, "O11", "the cache engine failed")
        if isinstance(region, ImportRegion) and operation & WB_ONLY:
            self._drain(region.scna)

    def clear(self, pa: int, length: int) -> int:
        """Flush freshly cleared memory of no region yet; returns an errno."""
        if self._host.module.skip_cache_maintain:
            return 0
        with self._semaphore:
            return self._request(3, pa, length, 0, 0)

    def _chunks(self, region: Region, offset: int, pa: int, length: int, operation: int) -> int:
        with self._semaphore:
            for start in range(0, length, CHUNK):
                size = min(CHUNK, length - start)
                error = self._request(operation, pa + start, size, region.mem_id, offset + start)
                if error:
                    return error
        return 0

    def _request(self, operation: int, pa: int, length: int, mem_id: int, offset: int) -> int:
        faults = self._host.faults
        if faults.flush_sleep:
            self._host.fabric.pause(faults.flush_sleep)
        while faults.flush_busy > 0:
            faults.flush_busy -= 1
            self._host.fabric.pause(BUSY_RETRY)
        error = 0
        if faults.flush_error:
            if faults.flush_skip > 0:
                faults.flush_skip -= 1
            else:
                error = faults.flush_error
        self.log.append(Flush(NAMES[operation], pa, length, error, mem_id, offset))
        return error

    def _drain(self, scna: int) -> None:
        self.log.append(Flush("DRAIN", scna=scna))
        if self._host.faults.drain_state == 0:
            self._host.fabric.pause(DRAIN_TIMEOUT)
            raise KernelError(errno.ETIMEDOUT, "O11", "the UB write queue did not drain in 1000 ms")


def contiguous(region: Region, offset: int, length: int) -> list[tuple[int, int, int]]:
    """Physically contiguous pieces (offset, pa, length), neighbours joined."""
    pieces: list[tuple[int, int, int]] = []
    for at, pa, size in region.physical(offset, length):
        if pieces and pieces[-1][1] + pieces[-1][2] == pa:
            start, base, before = pieces[-1]
            pieces[-1] = start, base, before + size
        else:
            pieces.append((at, pa, size))
    return pieces
