# SPDX-License-Identifier: Apache-2.0
"""Memory of this host, lent to others."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from obmm.driver import Exported
from obmm.handle import ANY_EID, Handle, HandleFlag
from obmm.header import RegionHeader
from obmm.region import Region
from obmm.stamp import boot_id
from obmm.topology import Controller
from obmm.window import Cache

if TYPE_CHECKING:
    from obmm.device import Device


class ExportedRegion(Region):
    """An export: memory of this host that other hosts can import with its handle.

    Made by `Device.export_region`.  It outlives this process until UNEXPORT (driver specification 8); never remove it
    while somebody imports it: on hardware that is a machine-level error at the importer.
    """

    _remove_operation = "UNEXPORT"

    def __init__(
        self,
        device: Device,
        exported: Exported,
        controller: Controller,
        length: int,
        *,
        data_offset: int,
        nbytes: int,
        generation: int,
        pmd: bool,
        label: str,
    ) -> None:
        super().__init__(device, exported.mem_id, length, pmd=pmd, label=label)
        self.controller = controller
        self._exported = exported
        self._data_offset = data_offset
        self._nbytes = nbytes
        self._generation = generation

    @property
    def data_offset(self) -> int:
        return self._data_offset

    @property
    def nbytes(self) -> int:
        return self._nbytes

    @property
    def generation(self) -> int | None:
        return self._generation if self._data_offset else None

    @property
    def export_generation(self) -> int:
        return self._generation

    @property
    def caches(self) -> tuple[Cache, ...]:
        return ("cc", "nc")

    def handle(self, *, peer_eid: bytes = ANY_EID, cache: Cache | None = None, read_only: bool = False) -> Handle:
        """The 80-byte handle of this region: a bearer key to its memory (docs/exchange-protocol.md, section 7).

        `peer_eid` names the importer it is meant for (advice), `cache` the mode it must import in (None: its choice).
        """
        self._check_open()
        flags = HandleFlag.HEADER if self._data_offset else HandleFlag(0)
        if cache:
            flags |= HandleFlag.CC if cache == "cc" else HandleFlag.NC
        if read_only:
            flags |= HandleFlag.READ_ONLY
        return Handle(
            mem_id=self.mem_id,
            length=self.length,
            uba=self._exported.uba,
            tokenid=self._exported.tokenid,
            owner_cna=self.controller.cna,
            owner_eid=self.controller.eid,
            peer_eid=peer_eid,
            pxm_numa=self.controller.numa,
            flags=flags,
            generation=self._generation,
        )

    def write_header(self, **fields: Any) -> None:
        """Write the region header; `fields` are those of `RegionHeader` that differ from an empty region's."""
        header = self._header(fields)
        # non-cacheable while it may still become either: cacheable first would rule the other out (Q11)
        with self.map_bytes("rw", 0, RegionHeader.SIZE, "cc" if self._was_cached else "nc") as mapping:
            mapping.write_header_page(header.pack())

    def _header(self, fields: dict[str, Any]) -> RegionHeader:
        return RegionHeader(
            **{
                "generation": self._generation,
                "data_bytes": self._nbytes,
                "data_offset": self._data_offset,
                "writer_boot_id": int.from_bytes(boot_id()[:8], "little"),
                **fields,
            }
        )

    def _remove(self) -> None:
        self.device.driver.unexport(self.mem_id)
