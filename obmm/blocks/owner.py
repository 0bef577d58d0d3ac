# SPDX-License-Identifier: Apache-2.0
"""The owner of a store: the region, its directory, and the name under which both are served."""

from __future__ import annotations

import secrets
import threading
from collections.abc import Mapping
from typing import Any

from obmm.arguments import patience, seconds, text, whole, wrong_type
from obmm.blocks.directory import Directory
from obmm.blocks.errors import refused
from obmm.blocks.layout import SlotLayout
from obmm.blocks.memory import SlotMemory
from obmm.blocks.service import BlockService
from obmm.closing import Closing
from obmm.exchange import Server
from obmm.exchange.call_messages import REGION_NAME
from obmm.mapping import Mapping as RegionMapping
from obmm.region.device import Device

DEFAULT_TERM_S = 10.0
_COMPONENT_LIMIT = 1 << 26


class BlockOwner(Closing):
    """Exports a region of slots and answers for it.

    ``BlockOwner(device, layout, name="kv")`` exports; `serve` publishes it on an `obmm.serve` server, where users find it
    as ``host:port/kv``.  `term` is how long, in seconds, a user may be silent before its reservations and pins end.
    `limits` caps the slots of each tenant.

    There is one owner and no copy: when it dies, every block is a miss.  A new owner begins with an empty directory and
    another incarnation, and what stood in the old one's memory is never read again.

    ObmmArgumentError for a name or limits that cannot be; ObmmError when the memory cannot be exported.

    `numa`: the NUMA node whose memory it is.  `obmm.blocks` has an example of each call.
    """

    def __init__(
        self,
        device: Device,
        layout: SlotLayout,
        *,
        name: str = "kv",
        term: float = DEFAULT_TERM_S,
        limits: Mapping[str, int] | None = None,
        numa: int = 0,
    ) -> None:
        for what, thing, kind in (("device", device, Device), ("layout", layout, SlotLayout)):
            if not isinstance(thing, kind):
                raise wrong_type("BLOCKS", what, thing, f"a {kind.__name__}")
        if not isinstance(name, str) or not REGION_NAME.fullmatch(name):
            raise refused(f"name={name!r}", "letters, digits and . _ : / @ + -")
        term = seconds("BLOCKS", "term", term)
        if not 0.05 <= term <= 3600:
            raise refused(f"term={term}", "0.05..3600 seconds")
        if limits is not None and not isinstance(limits, Mapping):
            raise wrong_type("BLOCKS", "limits", limits, "slots by tenant")
        for tenant, limit in (limits or {}).items():
            text("BLOCKS", "tenant", tenant)
            whole("BLOCKS", f"limit of tenant {tenant!r}", limit, low=0, high=_COMPONENT_LIMIT)
        self.name, self.layout = name, layout
        self.incarnation = secrets.randbits(63) + 1
        self._closing = threading.Lock()
        self._server: Server | None = None
        self._mapping: RegionMapping | None = None
        self.region = device.export_region(layout.nbytes, numa=numa, label=name)
        try:
            # a cacheable slot is touched by the holder of its right: at first there is none
            self._mapping = self.region.map("rw" if layout.cache == "nc" else "none", cache=layout.cache)
            self.memory = SlotMemory(self._mapping, layout, self.incarnation)
            self.directory = Directory(layout.slots, layout.capacity, term, self.memory.clear, limits)
            self.service = BlockService(self.directory, self.incarnation)
        except BaseException:
            self._undo()
            raise
        self._open = True

    @property
    def manifest(self) -> dict[str, Any]:
        """What users learn with the handle."""
        return self.layout.to_json(self.incarnation)

    def serve(self, server: Server) -> None:
        """Answer on this server from now on; RequestRefusedError when the name is taken there."""
        if not isinstance(server, Server):
            raise wrong_type("BLOCKS", "server", server, "a server of obmm.serve")
        server.answer_calls(self.name, self.service)
        try:
            server.publish(self.name, self.region, self.manifest)
        except BaseException:
            server.refuse_calls(self.name)
            raise
        self._server = server

    def status(self) -> dict[str, Any]:
        """For people and metrics: sizes, users, tenants, counts; no keys."""
        return self.service.status() | {"name": self.name, "cache": self.layout.cache}

    def evict(self, count: int, tenant: str = "") -> int:
        """Drop up to `count` unpinned blocks, longest unused first -> how many went."""
        count = min(whole("BLOCKS", "count", count, low=0), self.layout.slots)
        return self.service.evict(count, text("BLOCKS", "tenant", tenant))

    def close(self, *, timeout: float = 5.0, force: bool = False) -> None:
        """Stop answering, have users let go, remove the region.  Can be called again until it succeeds.

        LeasesOutstandingError when users hold the region longer than `timeout` seconds; with `force` they are given up.
        """
        timeout = patience("BLOCKS", "timeout", timeout)
        with self._closing:
            server = self._server
            if server is not None and not server.closed:
                server.refuse_calls(self.name)
                server.revoke(self.name, timeout=timeout, force=force)
            self._server = None
            self._undo(force)
            self._open = False

    def _undo(self, force: bool = False) -> None:
        if self._mapping is not None:
            self._mapping.close(force=force)
        self.region.close(force=force)

    def __repr__(self) -> str:
        return f"<BlockOwner {self.name!r}: {self.layout.slots} slots of {self.layout.capacity} bytes, {self.layout.cache}>"
