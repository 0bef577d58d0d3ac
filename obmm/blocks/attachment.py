# SPDX-License-Identifier: Apache-2.0
"""One incarnation of an owner's memory, imported and mapped here."""

from __future__ import annotations

import errno
import logging

from obmm.blocks.errors import BlockStoreError
from obmm.blocks.layout import SlotLayout
from obmm.blocks.memory import SlotMemory
from obmm.exchange import Lease, Peer
from obmm.mapping import Mapping
from obmm.region.device import Device
from obmm.region.imported import ImportedRegion

log = logging.getLogger("obmm.blocks.user")


class Attachment:
    """Lease, import, mapping and slots, undone together and in order."""

    def __init__(self, lease: Lease, region: ImportedRegion, mapping: Mapping, memory: SlotMemory) -> None:
        self.lease, self.memory = lease, memory
        self._region, self._mapping = region, mapping

    @property
    def layout(self) -> SlotLayout:
        return self.memory.layout

    @property
    def incarnation(self) -> int:
        return self.memory.incarnation

    @property
    def usable(self) -> bool:
        return self.lease.usable and not self._mapping.closed

    def close(self, force: bool = False) -> None:
        """Unmap, unimport, release the lease.  MappingBusyError while a copy runs: close again later."""
        self._mapping.close(force=force)
        self._region.close(force=force)


def attach(device: Device, peer: Peer, name: str, fingerprint: int, incarnation: int, timeout: float) -> Attachment:
    """Import the store's region and see that it is the one that its directory speaks of.

    BlockStoreError when it is none of blocks, of another version or of another incarnation; ObmmError when it cannot be
    imported.  Whatever fails, everything before it is undone.
    """
    controllers = device.controllers
    lease = peer.fetch(name, timeout=timeout, **({"importer_eid": controllers[0].eid} if controllers else {}))
    region: ImportedRegion | None = None
    try:
        # the header's page is not the slots': the payload's size is known from the handle before anything is mapped
        layout, found = SlotLayout.from_json(lease.manifest, lease.handle.length)
        if found != incarnation:
            raise BlockStoreError.because(
                errno.ESTALE,
                f"the region's incarnation is {found:016x}, the directory's {incarnation:016x}: the owner is being replaced",
                "try again in a moment",
            )
        region = device.import_region(lease, cache=layout.cache, label=name)
        mapping = region.map("rw" if layout.cache == "nc" else "none")
        return Attachment(lease, region, mapping, SlotMemory(mapping, layout, incarnation, fingerprint))
    except BaseException:
        if region is not None:
            region.close(force=True)
        else:
            lease.release()
        raise
