# SPDX-License-Identifier: Apache-2.0
"""Memory of this host, lent to others."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from obmm.driver.abi import Cache
from obmm.driver.calls import Exported
from obmm.driver.process import boot_id
from obmm.driver.topology import Controller
from obmm.handle import ANY_EID, Handle, HandleFlag
from obmm.region.header import RegionHeader
from obmm.region.kept import Kept
from obmm.region.region import Region

if TYPE_CHECKING:
    from obmm.region.device import Device


class ExportedRegion(Region):
    """An export: memory of this host that other hosts can import with its handle.

    Made by `Device.export_region`.  It outlives this process until UNEXPORT (driver specification 8); never remove it
    while somebody imports it: on hardware that is a machine-level error at the importer.

    >>> with a.export_region("4MiB", label="words") as region:
    ...     handle = region.handle(peer_eid=obmm.eid(0x13), read_only=True)
    ...     len(handle.pack()), region.generation == handle.generation == region.export_generation
    ...     region.nbytes, region.data_offset, region.caches, region.peer
    ...     region.write_header(state=2)
    ...     region
    (80, True)
    (6287360, 4096, ('cc', 'nc'), ...)
    <ExportedRegion 'words' mem_id=... length=6291456 ...>
    """

    _remove_operation = "UNEXPORT"

    def __init__(
        self,
        device: Device,
        kept: Kept,
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
        super().__init__(device, exported.mem_id, length, pmd=pmd, label=label, kept=kept)
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

        `read_only`: the importer may load only.
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
        self._write_first_page(header.pack(), "cc" if self._was_cached else "nc")

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
