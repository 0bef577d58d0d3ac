# SPDX-License-Identifier: Apache-2.0
"""A region that somebody else made on this host: the SDK, the UB engine, another program."""

from __future__ import annotations

from typing import TYPE_CHECKING

from obmm.driver.abi import Cache
from obmm.region.region import Region

if TYPE_CHECKING:
    from obmm.region.device import Device


class AttachedRegion(Region):
    """Mappings of an existing ``/dev/obmm_shmdev<id>``, without making or removing anything.

    Made by `Device.attach`.  Closing it unmaps; the region stays with its maker.  There is no header to check,
    so its ``repr`` says unverified, and offsets count from the region's first byte.

    >>> with a.export_region("4MiB") as region, a.attach(region.mem_id) as attached:
    ...     attached.nbytes == region.length, attached.data_offset, attached.generation, attached.caches
    ...     attached.starts_without_right, attached.peer
    (True, 0, None, ('cc', 'nc'))
    (True, ...)
    """

    _remove_operation = "DETACH"

    def __init__(self, device: Device, mem_id: int, length: int, caches: tuple[Cache, ...], *, pmd: bool) -> None:
        super().__init__(device, mem_id, length, pmd=pmd, label="")
        self._caches = caches
        self._need_not_warn()  # nothing is left on the host when it is forgotten

    @property
    def data_offset(self) -> int:
        return 0

    @property
    def nbytes(self) -> int:
        return self.length

    @property
    def generation(self) -> int | None:
        return None

    @property
    def caches(self) -> tuple[Cache, ...]:
        return self._caches

    @property
    def starts_without_right(self) -> bool:
        return True

    @property
    def peer(self) -> str:
        return f"region {self.mem_id} of another program"
