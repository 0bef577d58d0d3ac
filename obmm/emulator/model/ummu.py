# SPDX-License-Identifier: Apache-2.0
"""UMMU: gives an export its token and its bus address (driver specification 7 and 18)."""

from __future__ import annotations

import errno
from typing import TYPE_CHECKING

from .calls import KernelError
from .ids import LowestFree

if TYPE_CHECKING:
    from .host import Host
    from .region import ExportRegion

UBA_SPACE = 1 << 48
UBM_BLOCK = 2 << 20
DMA_ERRORS = (errno.EINVAL, errno.ENOMEM, errno.EIO, errno.EREMOTEIO)
"""What the kernel's DMA layer lets through; everything else becomes EIO (rule X14)."""


def uba_of(size: int) -> int:
    """Base of a region of `size` bytes in its private 48-bit space: top-down, naturally aligned."""
    alignment = 1 << (size - 1).bit_length()
    return (UBA_SPACE - size) // alignment * alignment


class Ummu:
    """One translation unit. `index` None is the logical UMMU, which takes requests without vendor data."""

    def __init__(self, index: int | None, token_min: int, token_max: int) -> None:
        self.index = index
        self.tokens = LowestFree(token_min, token_max)
        self.exports: dict[int, ExportRegion] = {}

    def accepts(self, vendor: bytes) -> bool:
        """Whether this unit takes a request with `vendor` (driver specification 18)."""
        if len(vendor) < 24:
            return self.index is None and not vendor
        mask = int.from_bytes(vendor[8:16], "little")
        on_chip = vendor[16] != 0
        if self.index is None:
            return not on_chip
        return on_chip and mask != 0 and (mask & -mask).bit_length() - 1 == self.index

    def attach(self, region: ExportRegion, host: Host) -> None:
        """Token (X13) and translation (X14) for `region`."""
        faults, journal = host.faults, host.journal
        tokenid = self.tokens.take(faults.token_min, faults.token_max)
        if tokenid is None:
            journal.add("ummu", call="alloc_tdev", vendor_len=len(region.vendor), refused=True)
            raise KernelError(errno.EPERM, "X13", "token ids exhausted")
        journal.add("ummu", call="alloc_tdev", vendor_len=len(region.vendor), tid=tokenid)
        region.ummu, region.tokenid, region.uba = self, tokenid, uba_of(region.size)
        try:
            self._map(region, host)
        except KernelError:
            journal.add("ummu", call="free_tdev", tid=tokenid, ret=0)
            self.tokens.give(tokenid)
            raise

    def detach(self, region: ExportRegion, host: Host) -> None:
        """Undo `attach` (rule U6): when the token cannot be freed the translation comes back; when that
        fails too, ENOTRECOVERABLE. The region stays in both cases."""
        journal, error = host.journal, host.faults.ummu_free_error
        journal.add("ummu", call="dma_unmap")
        self.exports.pop(region.tokenid, None)
        journal.add("ummu", call="free_tdev", tid=region.tokenid, ret=-error)
        if not error:
            self.tokens.give(region.tokenid)
            return
        try:
            self._map(region, host)
        except KernelError:
            raise KernelError(errno.ENOTRECOVERABLE, "U6", "UMMU teardown and its roll-back failed") from None
        raise KernelError(error, "U6", "UMMU teardown failed")

    def _map(self, region: ExportRegion, host: Host) -> None:
        error = host.faults.ummu_map_error
        block = UBM_BLOCK << host.spec.ummu_granule
        if not error and any(pa % block or size % block for pa, size in region.segments) and not region.from_user:
            error = errno.EINVAL
        if error:
            host.journal.add("ummu", call="dma_map", ret=-error)
            raise KernelError(error if error in DMA_ERRORS else errno.EIO, "X14", "mapping into the UMMU failed")
        host.journal.add("ummu", call="dma_map", size=region.size, uba=region.uba)
        self.exports[region.tokenid] = region

    def find(self, tokenid: int, uba: int) -> tuple[ExportRegion, int] | None:
        """The export that lives at (token, uba), and the offset in it."""
        region = self.exports.get(tokenid)
        if region is None or not region.uba <= uba < region.uba + region.size:
            return None
        return region, uba - region.uba
