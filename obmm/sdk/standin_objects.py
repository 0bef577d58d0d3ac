# SPDX-License-Identifier: Apache-2.0
"""Units of the stand-in's objects and leases: regions of the emulated nodes (SDK specification 7, 12)."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import Final

from obmm._native import lib
from obmm.device import Device
from obmm.errors import ObmmError
from obmm.exported import ExportedRegion
from obmm.imported import ImportedRegion
from obmm.sdk.abi import Flag
from obmm.sdk.codes import Code
from obmm.sdk.standin_wire import Refused

NONCACHEABLE: Final = Flag.NONCACHE | Flag.ONLY_IMPORT_NONCACHE


@dataclass(eq=False)
class Caller:
    """A connected process."""

    pid: int
    uid: int
    gid: int
    node: str


@dataclass(eq=False)
class Attachment:
    """An object on one node: its regions there, and the processes that map it."""

    mem_ids: tuple[int, ...]
    open_mode: int
    imports: list[ImportedRegion]
    callers: list[Caller] = field(default_factory=list)


class Units:
    """Whole units of one provider, which other nodes import."""

    def __init__(self, devices: dict[str, Device], provider: str, size: int, unit: int, flags: int) -> None:
        self.devices, self.provider = devices, provider
        self.size, self.unit, self.flags = size, unit, flags
        self.exports: list[ExportedRegion] = []
        try:
            for _ in range(-(-size // unit)):
                self.exports.append(devices[provider].export_region(unit, header=False))
        except ObmmError as error:
            self.free()
            raise Refused(Code.UBSE) from error

    def reach(self, node: str) -> tuple[tuple[int, ...], list[ImportedRegion]]:
        """The units' ids on `node`, and what was imported there for it."""
        if node == self.provider:
            return tuple(region.mem_id for region in self.exports), []
        imports: list[ImportedRegion] = []
        cache = self.flags & NONCACHEABLE
        try:
            for region in self.exports:
                imports.append(self.devices[node].import_region(region.handle(), cache="nc" if cache else "cc"))
        except ObmmError as error:
            for imported in imports:
                imported.close()
            raise Refused(Code.UBSE) from error
        return tuple(region.mem_id for region in imports), imports

    def flags_on(self, node: str) -> int:
        """The flags as the node's library sees them: the exporter of a 0x8 object maps cacheable (7.3)."""
        return self.flags & ~Flag.ONLY_IMPORT_NONCACHE if node == self.provider else self.flags

    def free(self) -> None:
        """UNEXPORT; ObmmError EBUSY while somebody has one open, and then it can be repeated."""
        for region in self.exports:
            region.close()
        self.exports.clear()


class SharedUnits(Units):
    """A named object."""

    def __init__(
        self,
        devices: dict[str, Device],
        provider: str,
        size: int,
        unit: int,
        flags: int,
        *,
        creator: Caller,
        mode: int,
        nodes: frozenset[str],
    ) -> None:
        super().__init__(devices, provider, size, unit, flags)
        self.uid, self.gid, self.mode, self.nodes = creator.uid, creator.gid, mode, nodes
        self.attached: dict[str, Attachment] = {}
        self.lock: tuple[str, list[Caller]] | None = None

    def attach(self, caller: Caller, prot: int) -> Attachment:
        """The first process of a node brings the units there, after a look at the mode bits; later ones are not checked."""
        found = self.attached.get(caller.node)
        if found is None:
            if caller.node not in self.nodes:
                raise Refused(Code.UBSE)
            open_mode = self._open_mode(caller, prot)
            ids, imports = self.reach(caller.node)
            self._give_nodes_to_creator(caller.node, ids)
            found = self.attached[caller.node] = Attachment(ids, open_mode, imports)
        elif any(other.pid == caller.pid for other in found.callers):
            raise Refused(Code.ALREADY_EXIST)
        found.callers.append(caller)
        return found

    def detach(self, caller: Caller) -> None:
        """The last process of a node takes the units away; ObmmError EBUSY keeps it registered."""
        found = self.attached.get(caller.node)
        if found is None or caller not in found.callers:
            raise Refused(Code.NOT_FOUND)
        if len(found.callers) == 1:
            for region in found.imports:
                region.close()
            del self.attached[caller.node]
        found.callers.remove(caller)

    def _open_mode(self, caller: Caller, prot: int) -> int:
        """7.2: owner, else group, else other bits; root is nobody special."""
        shift = 6 if caller.uid == self.uid else 3 if caller.gid == self.gid else 0
        bits = self.mode >> shift & 7
        if not bits & 4 or (prot & 2 and not bits & 2):
            raise Refused(Code.NOPERM)
        return os.O_RDWR if bits & 2 else os.O_RDONLY

    def _give_nodes_to_creator(self, node: str, ids: tuple[int, ...]) -> None:
        """The engine does chmod and chown at each attach."""
        system = self.devices[node].driver.sys
        for mem_id in ids:
            path = f"/dev/obmm_shmdev{mem_id}".encode()
            lib.obmm_emulator_chmod(system, path, self.mode)
            lib.obmm_emulator_chown(system, path, self.uid, self.gid)


class Lease(Units):
    """Units that one process borrows."""

    def __init__(
        self, devices: dict[str, Device], provider: str, size: int, unit: int, flags: int, caller: Caller
    ) -> None:
        super().__init__(devices, provider, size, unit, flags)
        self.caller = caller
        try:
            self.mem_ids, self._imports = self.reach(caller.node)
        except Refused:
            self.free()
            raise

    def free(self) -> None:
        for region in getattr(self, "_imports", ()):
            region.close()
        super().free()
