# SPDX-License-Identifier: Apache-2.0
"""The units of an SDK object as one contiguous range of our own mappings (SDK specification 11)."""

from __future__ import annotations

import errno
import threading
from collections.abc import Callable, Sequence
from typing import Any, Self

from obmm.driver.abi import Cache
from obmm.errors import ObmmError
from obmm.mapping.strip import Strip, map_side_by_side
from obmm.region.attached import AttachedRegion
from obmm.region.device import Device
from obmm.region.opening import open as open_device
from obmm.region.region import Access
from obmm.rows.mapped import MappedMemory
from obmm.sdk.abi import Flag
from obmm.sdk.records import ObjectUnits


class ObjectMemory(Strip):
    """`nbytes` of an object at `address`, through attached regions.  Made by `SharedObject.regions`.

    A `Strip`: offsets count from the object's first byte, guarded access, gathers, views and ownership go across the
    seams of units.  `obmm.rows.RowStore.attach` takes it as it is.
    """

    def __init__(
        self,
        regions: Sequence[AttachedRegion],
        access: Access,
        cache: Cache,
        closed: Callable[[Any], None],
        device: Device | None,
    ) -> None:
        """Maps `regions`; closes `device`, if given, with itself."""
        super().__init__(map_side_by_side(regions, access, cache), owned=True)
        self.regions = tuple(regions)
        self._closed = closed
        self._device = device
        self._detached = False
        self._closing = threading.RLock()

    @classmethod
    def of(
        cls,
        units: ObjectUnits,
        flags: int | None,
        access: Access,
        device: Device | None,
        cache: Cache | None,
        closed: Callable[[Any], None],
    ) -> Self:
        """Attach and map all units; the last one only as far as the object reaches.

        `flags`: of the object's creation; `device`, `cache` as for `SharedObject.regions`; `closed` is called at the end.
        """
        own = open_device() if device is None else None
        on = own or device
        assert on is not None
        regions: list[AttachedRegion] = []
        try:
            pmd = bool(flags is not None and flags & Flag.MMAP_HUGETLB_PMD)
            for i, mem_id in enumerate(units.mem_ids):
                length = min(units.unit, units.size - i * units.unit)
                regions.append(on.attach(mem_id, length, pmd=pmd))
            return cls._in_some_cache(regions, access, _modes(flags, cache), closed, own)
        except BaseException:
            for region in regions:
                region.close()
            if own is not None:
                own.close()
            raise

    @classmethod
    def _in_some_cache(
        cls,
        regions: Sequence[AttachedRegion],
        access: Access,
        modes: Sequence[Cache],
        closed: Callable[[Any], None],
        device: Device | None,
    ) -> Self:
        """Plain first, and with O_SYNC when the driver answers EPERM: the mode is not told (11 step 4)."""
        for mode in modes[:-1]:
            try:
                return cls(regions, access, mode, closed, device)
            except ObmmError as error:
                if error.errno != errno.EPERM:
                    raise
        return cls(regions, access, modes[-1], closed, device)

    @property
    def rows_memory(self) -> MappedMemory:
        """The same for native gathers; it lives as long as this object."""
        self._check_open()
        return MappedMemory(self, owned=False)

    def close(self, force: bool = False) -> None:
        """Unmap and detach.  Idempotent.  MappingBusyError, and nothing changed, while views live (`Mapping.close`)."""
        with self._closing:
            if self._detached:
                return
            super().close(force)
            for region in self.regions:
                region.close(force)
            if self._device is not None:
                self._device.close()
            self._closed(self)
            self._detached = True


def _modes(flags: int | None, cache: Cache | None) -> tuple[Cache, ...]:
    """The cache modes to try, in order."""
    if cache is not None:
        return (cache,)
    if flags is None or flags & Flag.ONLY_IMPORT_NONCACHE:
        return ("cc", "nc")
    return ("nc",) if flags & Flag.NONCACHE else ("cc",)
