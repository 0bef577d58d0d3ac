# SPDX-License-Identifier: Apache-2.0
"""A peer's segment as a queue of this side reaches it (URMA specification 7, 10)."""

from __future__ import annotations

import errno
from typing import TYPE_CHECKING, Any

from numpy.typing import ArrayLike

from obmm._native import ffi as native
from obmm.arguments import whole
from obmm.closing import ending, undo
from obmm.errors import ClosedError
from obmm.urma.abi import MODE_RM, ORDER_SHIFT_IMPORT, POLICY_PLAIN, ffi
from obmm.urma.calls import Calls
from obmm.urma.errors import UrmaArgumentError, UrmaTicketError
from obmm.urma.life import Owned
from obmm.urma.segment import Segment
from obmm.urma.ticket import Ticket, show_eid

if TYPE_CHECKING:
    from obmm.urma.queue import Queue


class TargetSegment(Owned):
    """A peer's segment, reached over `queue`.  Made by `Queue.attach`."""

    def __init__(self, queue: Queue, calls: Calls, context: Any, ticket: Ticket) -> None:
        super().__init__(calls)
        self.queue = queue
        self.nbytes, self.generation = ticket.length, ticket.generation
        self.eid = show_eid(ticket.eid)
        self.writable = bool(ticket.attr >> 5 & 4)
        self._va = ticket.va
        self._segment = self._jetty = None
        if ticket.standin != (calls.library.standin is not None):
            kinds = ("real hardware", "a stand-in")
            raise UrmaTicketError(
                errno.EXDEV,
                f"urma.attach: a ticket of {kinds[ticket.standin]}, and this process has {calls.library}; fix: both sides the same",
                errno=errno.EXDEV,
                operation="attach",
                name="EXDEV",
                hint="use the same kind of library on both sides",
            )
        try:
            self._import(context, ticket)
        except BaseException as error:
            undo(error, self.close, "giving back what was made of it")
            raise

    def _import(self, context: Any, ticket: Ticket) -> None:
        seg, token = ffi.new("urma_seg_t *"), ffi.new("urma_token_t *")
        place = ticket.eid + ticket.uasid.to_bytes(4, "little") + ticket.va.to_bytes(8, "little")
        ffi.memmove(seg.ubva, place, len(place))
        seg.len, seg.attr, seg.token_id = ticket.length, ticket.attr, ticket.token_id
        token.token = ticket.token
        self._segment = self._calls.pointer("import_seg", context, seg, token, 0, 0, eid=show_eid(ticket.eid))
        remote = ffi.new("urma_rjetty_t *")
        remote.jetty_id.eid.raw = ticket.target_eid
        remote.jetty_id.uasid, remote.jetty_id.id = ticket.target_uasid, ticket.target_id
        remote.trans_mode, remote.type, remote.tp_type = MODE_RM, ticket.target_type, ticket.tp_type
        remote.flag = POLICY_PLAIN | ticket.order_type << ORDER_SHIFT_IMPORT
        token.token = ticket.target_token
        self._jetty = self._calls.pointer("import_jetty", context, remote, token, eid=show_eid(ticket.target_eid))

    def read_many(self, offsets: ArrayLike, lengths: ArrayLike, out: Any, timeout: float = 1.0) -> int:
        """`Queue.read_many` of this segment."""
        return self.queue.read_many(self, offsets, lengths, out, timeout)

    def write_many(self, offsets: ArrayLike, lengths: ArrayLike, data: Any, timeout: float = 1.0) -> int:
        """`Queue.write_many` of this segment; `offsets` and `lengths` ``[n]`` in bytes, `timeout` in seconds."""
        return self.queue.write_many(self, offsets, lengths, data, timeout)

    def read(self, offset: int, length: int, timeout: float = 1.0) -> bytes:
        """A copy of `length` bytes at `offset` within `timeout` seconds, over a landing of its own; UrmaArgumentError
        outside of it.
        """
        self.check()
        offset, length = whole("URMA", "offset", offset), whole("URMA", "length", length)
        if not 0 <= offset <= self.nbytes or not 0 <= length <= self.nbytes - offset:
            raise UrmaArgumentError.because(
                "read", f"[{offset}, {offset + length}) of a segment of {self.nbytes} bytes", "stay inside it", 0
            )
        if not length:
            return b""
        context = self.queue.context
        landing = context.buffer(length)
        segment = context.segment_of(landing)[0]
        with ending(lambda: self.queue.give_back(segment), "giving the landing back"):
            self.read_many([offset], length, landing, timeout)
            return landing.tobytes()

    def batch(self, segment: Segment, address: int, nbytes: int) -> Any:
        """Between rooms: ``struct obmm_urma_batch *`` between this segment and local bytes; pieces and deadline are the
        caller's.  ClosedError where either segment is closed.
        """
        peer, remote, local = self._jetty, self._segment, segment.pointer
        if peer is None or remote is None:
            raise self._is_closed()
        if local is None:
            raise ClosedError.of(segment)
        batch = native.new("struct obmm_urma_batch *")
        batch.target, batch.remote_segment = plain(peer), plain(remote)
        batch.remote, batch.remote_bytes = self._va, self.nbytes
        batch.local_segment, batch.local, batch.local_bytes = plain(local), address, nbytes
        return batch

    def _end(self) -> None:
        if not self.queue.quiet:
            self._wait_for_transfers()
        if self._jetty is not None:
            self._calls.status("unimport_jetty", self._jetty)
            self._jetty = None
        if self._segment is not None:
            self._calls.status("unimport_seg", self._segment)
            self._segment = None
        self.queue.drop(self)

    def __repr__(self) -> str:
        return f"<urma.TargetSegment {self.nbytes} bytes at {self.eid} generation {self.generation:016x}{' closed' if self.closed else ''}>"


def plain(pointer: Any) -> Any:
    """A pointer of the library as native code takes it."""
    return native.cast("void *", int(ffi.cast("uintptr_t", pointer)))
