# SPDX-License-Identifier: Apache-2.0
"""The cache engine (HHA): flushes by physical address, and the UB write queue (driver specification 9.8)."""

from __future__ import annotations

import errno
from typing import TYPE_CHECKING

from .calls import KernelError
from .ownership import INVAL, WB_INVAL, WB_ONLY
from .region import ImportRegion, Region

if TYPE_CHECKING:
    from .host import Host

CHUNK = 1 << 30
BUSY_RETRY = 0.01
DRAIN_TIMEOUT = 1.0
NAMES = {WB_ONLY: "WB_ONLY", INVAL: "INVAL", WB_INVAL: "WB_INVAL"}


class CacheEngine:
    """One per host; all flushes of the host are serialized by one semaphore."""

    def __init__(self, host: Host) -> None:
        self._host = host
        self._semaphore = host.fabric.mutex()

    def flush(self, region: Region, offset: int, length: int, operation: int) -> None:
        """Run `operation` over a part of `region`; rule O11 when the engine fails.

        Ranges are cut in chunks of 1 GiB. After an error an export still flushes its remaining physically
        contiguous pieces and reports the first one; an import stops at the failing chunk. Write-back of an
        import also drains the write queue of its controller. `skip_cache_maintain` skips all but the drain.
        """
        first_error = 0
        if not self._host.module.skip_cache_maintain:
            with self._semaphore:
                for at, pa, size in contiguous(region, offset, length):
                    error = self._chunks(operation, pa, size, region.mem_id, at)
                    first_error = first_error or error
        if first_error:
            raise KernelError(first_error, "O11", "the cache engine failed")
        if not self._host.module.skip_cache_maintain:
            self._host.caches.flush(region, offset, length, operation)
        if operation & WB_ONLY and isinstance(region, ImportRegion):
            self._drain(region.scna)

    def clear(self, pa: int, length: int) -> int:
        """Flush freshly zeroed memory of no region yet; returns an errno."""
        if self._host.module.skip_cache_maintain:
            return 0
        with self._semaphore:
            return self._request(WB_INVAL, pa, length, clearing=True)

    def _chunks(self, operation: int, pa: int, length: int, mem_id: int, offset: int) -> int:
        for start in range(0, length, CHUNK):
            size = min(CHUNK, length - start)
            error = self._request(operation, pa + start, size, mem_id=mem_id, offset=offset + start)
            if error:
                return error
        return 0

    def _request(self, operation: int, pa: int, length: int, **what: int) -> int:
        faults, journal = self._host.faults, self._host.journal
        name = NAMES[operation]
        if faults.flush_sleep:
            self._host.fabric.pause(faults.flush_sleep)
        while faults.flush_busy > 0:
            faults.flush_busy -= 1
            journal.add("flush", op=name, pa=pa, length=length, ret=errno.EBUSY, **what)
            self._host.fabric.pause(BUSY_RETRY)
        error = 0
        if faults.flush_error:
            if faults.flush_skip > 0:
                faults.flush_skip -= 1
            else:
                error = faults.flush_error
        journal.add("flush", op=name, pa=pa, length=length, ret=error or None, **what)
        return error

    def _drain(self, scna: int) -> None:
        """Wait until the write queue of controller `scna` is empty; a negative state counts as empty."""
        self._host.journal.add("flush", op="DRAIN", scna=scna)
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
