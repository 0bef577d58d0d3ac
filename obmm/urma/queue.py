# SPDX-License-Identifier: Apache-2.0
"""A send queue, and the remote segments that it reads and writes (URMA specification 7, 10)."""

from __future__ import annotations

import errno
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import ArrayLike, NDArray

from obmm._native import ffi as native
from obmm._native import lib
from obmm.arguments import seconds, whole, wrong_type
from obmm.causes.urma import code_name
from obmm.closing import undo
from obmm.mapping.buffers import array_here
from obmm.undisturbed import undisturbed
from obmm.urma.abi import (
    ERR_TIMEOUT,
    JETTY_SHARE_JFR,
    JETTY_STATE_MASK,
    MIN_RNR_TIMER,
    MODE_RM,
    ORDER_SHIFT_JFR,
    POLICY_PLAIN,
    RNR_RETRY,
    STATE_ERROR,
    TARGET_JETTY,
    Transport,
    ffi,
)
from obmm.urma.calls import Calls
from obmm.urma.codes import Status, call_hint
from obmm.urma.errors import UrmaArgumentError, UrmaError, UrmaQueueDead, UrmaTimeout, of_status
from obmm.urma.life import Owned, Transfer
from obmm.urma.segment import Segment, _new_token
from obmm.urma.target import TargetSegment, plain
from obmm.urma.ticket import Ticket

if TYPE_CHECKING:
    from obmm.urma.context import Context

READ: Final = 0x10
WRITE: Final = 0x00
_DRAIN_SECONDS: Final = 1.0
_RECEIVES: Final = 64
_LONGEST: Final = 3600.0


class Queue(Owned):
    """Made by `Context.queue`.  Threads may share it; their batches go one after the other.

    `alive` turns False after an error or a deadline, and then every call is UrmaQueueDead: close it, make a new one and
    attach the ticket again.  Context and segments stay usable.
    """

    def __init__(
        self,
        context: Context,
        calls: Calls,
        pointer: Any,
        depth: int,
        list_max: int,
        transport: str,
        priority: int | None,
    ) -> None:
        super().__init__(calls)
        self.transport = _transport(transport)
        limits = context.attributes
        self.depth = whole("QUEUE", "depth", depth)
        self.list_max = whole("QUEUE", "list_max", list_max)
        if not 1 <= self.depth <= limits["max_jfs_depth"] or not 1 <= self.list_max <= self.depth:
            raise UrmaArgumentError.because(
                "queue",
                f"depth {depth}, list_max {list_max}",
                f"1 <= list_max <= depth <= {limits['max_jfs_depth']}, the device's limit",
            )
        self.priority, self.priority_guessed = (
            context.choose_priority(self.transport)
            if priority is None
            else (whole("QUEUE", "priority", priority, low=0, high=15), False)
        )
        self.context = context
        self._targets: list[TargetSegment] = []
        self._kept: list[Any] = []
        self._owed: list[Segment] = []
        self.quiet = False
        """Between rooms: it is being closed, and no batch runs or will run."""
        self._jfc = self._jfr = self._jetty = self._path = None
        self._token = _new_token()
        try:
            self._make(pointer, limits["max_jfc_depth"])
        except BaseException as error:
            undo(error, self.close, "giving back what was made of it")
            raise

    def _make(self, context: Any, most: int) -> None:
        calls = self._calls
        jfc = ffi.new("urma_jfc_cfg_t *")
        # one signalled request at a time; room for what an error adds
        jfc.depth = min(most, max(64, self.depth))
        self._jfc = calls.pointer("create_jfc", context, jfc, depth=jfc.depth)
        jfr = ffi.new("urma_jfr_cfg_t *")
        jfr.depth, jfr.flag, jfr.trans_mode, jfr.max_sge = _RECEIVES, POLICY_PLAIN, MODE_RM, 1
        jfr.min_rnr_timer, jfr.jfc = MIN_RNR_TIMER, self._jfc
        jfr.token.token = self._token
        self._jfr = calls.pointer("create_jfr", context, jfr)
        self._order = int(jfr.flag) >> ORDER_SHIFT_JFR & 0xFF
        jetty = ffi.new("urma_jetty_cfg_t *")
        jetty.flag = JETTY_SHARE_JFR
        send = jetty.jfs_cfg
        send.depth, send.trans_mode, send.priority, send.max_sge, send.max_rsge = (
            self.depth,
            MODE_RM,
            self.priority,
            1,
            1,
        )
        send.rnr_retry, send.err_timeout, send.jfc = RNR_RETRY, ERR_TIMEOUT, self._jfc
        jetty.jfr, jetty.jfc = self._jfr, self._jfc
        self._jetty = calls.pointer("create_jetty", context, jetty, depth=self.depth, priority=self.priority)
        made = native.new("struct obmm_urma_path **")
        result = lib.obmm_urma_path_create(
            calls.address("urma_post_jetty_send_wr"),
            calls.address("urma_poll_jfc"),
            plain(self._jetty),
            plain(self._jfc),
            self.depth,
            self.list_max,
            made,
        )
        if result:
            raise MemoryError
        self._path = native.gc(made[0], lib.obmm_urma_path_free)

    @property
    def alive(self) -> bool:
        """Whether requests can be posted."""
        return self._open and not lib.obmm_urma_path_is_dead(self._path)

    def attach(self, ticket: bytes | Ticket) -> TargetSegment:
        """The remote segment of a ticket (128 bytes).  No peer is asked: whether it still exists shows at the first read."""
        self.check()
        wanted = Ticket.unpack(ticket) if not isinstance(ticket, Ticket) else ticket

        def make() -> TargetSegment:
            with self.context.lock:
                self._check_usable()
                target = TargetSegment(self, self._calls, self.context._context, wanted)
                self._targets.append(target)
            return target

        return undisturbed(make)

    def read_many(
        self, target: TargetSegment, offsets: ArrayLike, lengths: ArrayLike, out: Any, timeout: float = 1.0
    ) -> int:
        """Bytes [offset, offset + length) of `target` for every piece, packed into `out` -> bytes read.

        `offsets`: whole numbers, shape [n].  `lengths`: one for all, or [n].  `out`: writable and contiguous, inside a
        registered segment of this context (`Context.buffer`).  One native call, the interpreter lock released; lists of up to
        `list_max` requests, of which one each is signalled.  `timeout`: seconds for all of it.

        UrmaArgumentError names the first bad piece, and nothing was posted.  UrmaRefused, UrmaError: piece `index` failed.
        UrmaTimeout: no answer.  ObmmArgumentError: a wrong type.  After these `out` holds unspecified bytes, and the queue is dead (7.5).
        """
        return self._transfer("read_many", READ, target, offsets, lengths, out, timeout)

    def write_many(
        self, target: TargetSegment, offsets: ArrayLike, lengths: ArrayLike, data: Any, timeout: float = 1.0
    ) -> int:
        """The pieces that lie packed in `data` to their places in `target` -> bytes written; see `read_many`.

        ObmmArgumentError: a wrong type.
        """
        return self._transfer("write_many", WRITE, target, offsets, lengths, data, timeout)

    def as_target(self) -> dict[str, Any]:
        """Between rooms: for `Segment.ticket`, what a peer's requests name."""
        self.check()
        name = ffi.cast("urma_named_t *", self._jetty).id
        return {
            "target_type": TARGET_JETTY,
            "target_id": int(name.id),
            "target_uasid": int(name.uasid),
            "target_eid": bytes(name.eid.raw),
            "target_token": self._token,
            "tp_type": int(self.transport),
            "order_type": self._order,
        }

    @property
    def path(self) -> Any:
        """Between rooms: ``struct obmm_urma_path *``, for gathers; it lives as long as this object."""
        return self._path

    # --- inside ------------------------------------------------------------------------------------------------------

    def _transfer(
        self,
        operation: str,
        opcode: int,
        target: TargetSegment,
        offsets: Any,
        lengths: Any,
        buffer: Any,
        timeout: float,
    ) -> int:
        self.check()
        if not isinstance(target, TargetSegment):
            raise wrong_type("URMA", "target", target, "what Queue.attach returned")
        target.check()
        if target.queue is not self:
            raise UrmaArgumentError.because(operation, "a target of another queue", "attach the ticket to this one")
        places, sizes = pieces(operation, offsets, lengths)
        segment, address, nbytes = self.context.segment_of(buffer, operation, writable=opcode == READ)
        transfer = Transfer()
        try:
            with self.context.lock:  # from now on none of them goes away under it
                for used in (self, target, segment):
                    used._check_usable()
                    used._transfers.add(transfer)
            batch = target.batch(segment, address, nbytes)
            return self._run(operation, opcode, target, batch, places, sizes, timeout, segment, buffer)
        finally:
            del transfer

    def _run(
        self,
        operation: str,
        opcode: int,
        target: TargetSegment,
        batch: Any,
        places: NDArray[np.uint64],
        sizes: int | NDArray[np.uint32],
        timeout: float,
        segment: Segment,
        buffer: Any,
    ) -> int:
        batch.opcode, batch.n = opcode, len(places)
        batch.offsets = native.cast("uint64_t *", places.ctypes.data)
        if isinstance(sizes, int):
            batch.length = sizes
        else:
            batch.lengths = native.cast("uint32_t *", sizes.ctypes.data)
        wait = seconds("URMA", "timeout", timeout)
        if not 0 < wait <= _LONGEST:
            raise UrmaArgumentError.because(operation, f"timeout {timeout} s", f"above 0, at most {_LONGEST:.0f} s")
        batch.timeout_ns = int(wait * 1e9)
        outcome = native.new("struct obmm_urma_outcome *")
        result = lib.obmm_urma_transfer(self._path, batch, outcome)
        if result:
            if result not in (-errno.ERANGE, -errno.ENOSPC):
                self._kept.append(buffer)  # the dead queue may still write to it
                segment.keep_for(self)
            raise failure(operation, result, outcome, self, target, places, sizes)
        return sizes * len(places) if isinstance(sizes, int) else int(sizes.sum(dtype=np.uint64))

    def give_back(self, landing: Segment) -> None:
        """Between rooms: close `landing`, now, or with this queue if that is dead and may still write there."""
        if not self.alive and self._jetty is not None:
            self._owed.append(landing)
        else:
            landing.close()

    @property
    def gone(self) -> bool:
        """Between rooms: it writes nowhere any more."""
        return self._jetty is None

    def drop(self, target: TargetSegment) -> None:
        """Between rooms: for that, `target` is gone."""
        with self.context.lock:
            self._targets = [each for each in self._targets if each is not target]

    def _parts(self) -> Sequence[Owned]:
        return tuple(self._targets)

    def _end(self) -> None:
        if self._path is not None and lib.obmm_urma_path_kill(self._path, int(5e9)):
            raise UrmaError(
                errno.EBUSY, f"{self!r}: a batch is still under way; fix: close it again later", errno=errno.EBUSY
            )
        self.quiet = True
        with self.context.lock:
            targets = tuple(self._targets)
        for target in targets:
            target.close()
        if self._jetty is not None:
            self._drain()
            self._calls.status("delete_jetty", self._jetty)
            self._jetty = None
        if self._jfr is not None:
            self._calls.status("delete_jfr", self._jfr)
            self._jfr = None
        if self._jfc is not None:
            self._calls.status("delete_jfc", self._jfc)
            self._jfc = None
        self._kept.clear()
        while self._owed:
            self._owed[-1].close()
            self._owed.pop()
        self.context.drop(self)

    def _drain(self) -> None:
        """State ERROR, then everything up to the marker; a queue that never sends it is deleted anyway (7.5)."""
        attr = ffi.new("urma_jetty_attr_t *", {"mask": JETTY_STATE_MASK, "state": STATE_ERROR})
        if self._calls.library.raw.urma_modify_jetty(self._jetty, attr):
            return
        records, deadline = ffi.new("urma_cr_t[16]"), time.monotonic() + _DRAIN_SECONDS
        pause = 1e-5
        while time.monotonic() < deadline:
            got = self._calls.library.raw.urma_poll_jfc(self._jfc, 16, records)
            if got < 0 or any(records[i].status == Status.WR_FLUSH_ERR_DONE for i in range(got)):
                return
            if not got:
                time.sleep(pause)  # the library has no way to wait without an event channel
                pause = min(pause * 2, 1e-2)

    def __repr__(self) -> str:
        state = " closed" if self.closed else "" if self.alive else " dead"
        guess = " (guessed)" if self.priority_guessed else ""
        return f"<urma.Queue {self.transport.name} priority {self.priority}{guess} depth {self.depth} lists of {self.list_max}{state}>"


def pieces(operation: str, offsets: Any, lengths: Any) -> tuple[NDArray[np.uint64], int | NDArray[np.uint32]]:
    """Offsets, and one length or as many, in the form that native code takes."""
    places = _numbers(operation, "offsets", offsets, 1 << 64)
    if np.ndim(lengths) == 0:
        size = whole("URMA", "length", lengths)
        if not 0 <= size < 1 << 32:
            raise UrmaArgumentError.because(operation, f"length {size}", "0 to 2^32 - 1")
        return places.astype(np.uint64, copy=False), size
    sizes = _numbers(operation, "lengths", lengths, 1 << 32)
    if len(sizes) != len(places):
        raise UrmaArgumentError.because(
            operation, f"{len(sizes)} lengths for {len(places)} offsets", "one for all, or as many"
        )
    return places.astype(np.uint64, copy=False), np.ascontiguousarray(sizes.astype(np.uint32))


def _numbers(operation: str, what: str, given: Any, limit: int) -> NDArray[Any]:
    try:
        array = array_here(given)
    except (TypeError, ValueError, OverflowError) as error:
        raise UrmaArgumentError.because(operation, f"{what}: {error}", "whole numbers, shape [n]") from None
    if array.size == 0:
        return np.empty(0, np.uint64)
    if array.dtype.kind not in "iu" or array.ndim != 1:
        raise UrmaArgumentError.because(
            operation, f"{what} of type {array.dtype}, shape {array.shape}", "whole numbers, shape [n]"
        )
    bad = array < 0 if array.dtype.kind == "i" else np.zeros(0, bool)
    if limit <= 1 << 32 and array.dtype.itemsize > 4:
        bad = bad | (array >= limit) if bad.size else array >= limit
    if bad.any():
        index = int(np.argmax(bad))
        raise UrmaArgumentError.because(operation, f"{what}[{index}] is {array[index]}", f"0 to {limit - 1}", index)
    return np.ascontiguousarray(array)


def failure(
    operation: str, result: int, outcome: Any, queue: Queue, target: TargetSegment, places: Any, sizes: Any
) -> UrmaError:
    """The error for a `result` of the native call."""
    n, index, elapsed = len(places), int(outcome.index), outcome.nanoseconds / 1e9
    at = index if index < n else None
    if result in (-errno.ERANGE, -errno.ENOSPC):
        assert at is not None
        length = sizes if isinstance(sizes, int) else int(sizes[at])
        if result == -errno.ERANGE:
            problem = (
                f"piece {at} is [{int(places[at])}, {int(places[at]) + length}) of a segment of {target.nbytes} bytes"
            )
            return UrmaArgumentError.because(operation, problem, "stay inside it; nothing was posted", at)
        return UrmaArgumentError.because(
            operation,
            f"the buffer is full before piece {at} of {length} bytes",
            "a buffer for all pieces; nothing was posted",
            at,
        )
    if result == -errno.EIO:
        return of_status(operation, int(outcome.status), at, n, elapsed, queue._calls.library.trouble)
    hint = f"close {queue!r}, make a new queue, attach the ticket again"
    if result == -errno.ETIMEDOUT:
        text = f"urma.{operation}: no completion within {elapsed:.3f} s; the peer is gone, the ticket is stale, or the link is down, and `out` may still be written to; fix: {hint}"
        return UrmaTimeout(
            110, text, errno=errno.ETIMEDOUT, operation=operation, name="ETIMEOUT", elapsed=elapsed, hint=hint
        )
    if result == -errno.EPROTO:
        code = int(outcome.code)
        hint = call_hint("post", code)
        text = f"urma.{operation}: the post was refused with {code} {code_name(code)} at piece {at} of {n}\n  - {hint}; the queue is dead"
        return UrmaError(code, text, operation=operation, name=code_name(code), elapsed=elapsed, hint=hint, index=at)
    why = "its completion queue is dead" if result == -errno.EPIPE else "an earlier batch failed"
    return UrmaQueueDead(
        errno.EPIPE,
        f"urma.{operation}: {queue!r} is dead: {why}; fix: {hint}",
        errno=errno.EPIPE,
        operation=operation,
        name="QUEUE_DEAD",
        elapsed=elapsed,
        hint=hint,
    )


def _transport(name: str) -> Transport:
    try:
        return Transport[name.upper()]
    except (KeyError, AttributeError):
        raise UrmaArgumentError.because("queue", f"transport {name!r}", '"ctp" or "rtp"') from None
