# SPDX-License-Identifier: Apache-2.0
"""Tables in a peer's segment: the memory that a `RowStore` gathers from by one-sided reads."""

from __future__ import annotations

import errno
import threading
from typing import Any, Final, Literal

from obmm._native import ffi, lib
from obmm.arguments import seconds
from obmm.closing import Closing, tell_of_forks, undo
from obmm.errors import MappingBusyError, RemoteMemoryError
from obmm.region.header import RegionHeader
from obmm.urma.context import Context
from obmm.urma.errors import UrmaArgumentError, UrmaError
from obmm.urma.queue import Queue, failure
from obmm.urma.target import TargetSegment
from obmm.urma.ticket import Ticket

LANDING: Final = 8 << 20
"""Bytes of a list's rows before they are copied to their places."""
_NOWHERE: Final = (1 << 64) - 1
_LONGEST: Final = 3600.0


class UrmaMemory(Closing):
    """The segment of `ticket` as the home of tables (a `RowMemory`), for `obmm.rows.RowStore.attach`.

    `header`: it begins with a 4 KiB region header, as `obmm.rows.LocalMemory` writes it on the owner's side; then rows are
    of one publication.  A gather is one list of reads for up to 4,096 rows and a copy from the landing, `timeout` seconds
    each.  Threads share one queue, one list after the other.  After an error the queue is made anew at the next gather.
    Closing it leaves `context` open.

        with obmm.urma.UrmaMemory(context, ticket) as memory:
            store = obmm.rows.RowStore.attach(memory, manifest)

    `landing` bytes are registered for reads; `transport`: "ctp" or "rtp".  UrmaArgumentError for a range outside of the
    segment, RemoteMemoryError when it does not answer.
    """

    path = "urma"
    nc = False
    gated = False
    fabric = None
    version_address = 0
    heartbeat_address = 0

    def __init__(
        self,
        context: Context,
        ticket: bytes | Ticket,
        *,
        header: bool = True,
        timeout: float = 1.0,
        landing: int = LANDING,
        transport: Literal["ctp", "rtp"] = "ctp",
    ) -> None:
        self._context = context
        self._ticket = ticket if isinstance(ticket, Ticket) else Ticket.unpack(ticket)
        self._transport, self._timeout = transport, seconds("URMA", "timeout", timeout)
        if not 0 < self._timeout <= _LONGEST:
            raise UrmaArgumentError.because("UrmaMemory", f"timeout {timeout} s", f"above 0, at most {_LONGEST:.0f} s")
        self._lock = threading.RLock()
        self._queue: Queue | None = None
        self._target: TargetSegment | None = None
        self.versioned = header
        self.address = RegionHeader.SIZE if header else 0
        self.nbytes = self._ticket.length - self.address
        if self.nbytes <= 0:
            raise UrmaArgumentError.because(
                "UrmaMemory", f"a segment of {self._ticket.length} bytes", "one with room for header and tables"
            )
        self.cached_version: Any = ffi.NULL
        self.recheck: Any = ffi.NULL
        self.gate: Any = ffi.new("struct obmm_gate *")
        reader = ffi.new("struct obmm_urma_reader *")
        reader.version = RegionHeader.CONTENT_VERSION_OFFSET if header else _NOWHERE
        if lib.obmm_urma_reader_init(reader):
            raise MemoryError
        self._reader: Any = ffi.gc(reader, lib.obmm_urma_reader_end)
        self._landing = context.buffer(landing)
        self._landed = context.segment_of(self._landing)[0]
        try:
            self._connect()
        except BaseException as error:
            undo(error, self._landed.close, "giving the landing back")
            raise
        self._open = True
        tell_of_forks(self)
        self.region = f"urma {self._ticket.generation:016x}"
        self.backend = f"URMA {context.library.kind} {context.library.path}"

    @property
    def fetch(self) -> Any:
        """``struct obmm_fetch *``: how rows are read here, where no load reaches them."""
        return ffi.addressof(self._reader, "fetch")

    @property
    def gates(self) -> list[Any]:
        return [self.gate]

    @property
    def segments(self) -> list[int]:
        return [self.nbytes]

    @property
    def alive(self) -> bool:
        return self._open

    @property
    def heartbeat_age(self) -> float | None:
        return None

    @property
    def queue(self) -> Queue:
        """The queue of the present."""
        self.check()
        assert self._queue is not None
        return self._queue

    def check(self) -> None:
        """Raise unless rows can be read; a queue that died is replaced (7.5)."""
        self._check_open()
        queue = self._queue
        if queue is None or not queue.alive:
            with self._lock:
                self._check_open()
                if self._queue is None or not self._queue.alive:
                    self._connect()

    def read(self, offset: int, size: int) -> bytes:
        self._refuse_outside(offset, size)
        return self._read(self.address + offset, size)

    def write(self, offset: int, data: Any) -> None:
        raise self._owners("write")

    def version(self) -> int:
        if not self.versioned:
            return 0
        return int.from_bytes(self._read(RegionHeader.CONTENT_VERSION_OFFSET, 8), "little")

    def header_digest(self) -> bytes:
        return self._read(RegionHeader.DIGEST_OFFSET, RegionHeader.DIGEST_SIZE) if self.versioned else bytes(32)

    def beat(self) -> None:
        raise self._owners("beat")

    def begin(self) -> None:
        raise self._owners("begin")

    def commit(self, tables: int, manifest_sha256: bytes, manifest_bytes: int) -> None:
        raise self._owners("commit")

    def reread_header(self) -> None:
        """Nothing to do: every read goes to the owner's memory."""

    def refresh(self) -> None:
        """Nothing to do: nothing is cached."""

    def fault(self, what: str, address: int, kind: str, code: int) -> RemoteMemoryError:
        """The error for a gather whose list failed; `address` is an offset in the segment; see `RowMemory.fault`."""
        why = "the list of reads failed"
        if self._queue is not None and self._target is not None and self._reader.result:
            why = str(
                failure(what, self._reader.result, self._reader.last, self._queue, self._target, range(0), 0).strerror
            )
        return RemoteMemoryError(
            errno.EFAULT,
            f"{what} in {self!r}: {why}",
            operation="GATHER",
            offset=address - self.address,
            kind="URMA",
            peer=self._target.eid if self._target is not None else "",
        )

    def view(self, offset: int, size: int, shape: tuple[int, ...], strides: tuple[int, ...]) -> Any:
        raise UrmaArgumentError.because(
            "view", "no address of this process reaches the peer's memory", "gather the rows"
        )

    def close(self) -> None:
        """Refuse further gathers, and give queue and landing back.  Idempotent.  MappingBusyError while gathers run."""
        with self._lock:
            if not self._open:
                return
            if lib.obmm_gate_shut(self.gate, 0):
                raise MappingBusyError(errno.EBUSY, f"{self!r}: gathers are still running", operation="GATHER")
            lib.obmm_urma_reader_switch(self._reader, ffi.NULL, ffi.NULL)
            if self._queue is not None:
                self._queue.close()
            self._landed.close()
            self._open = False

    def __repr__(self) -> str:
        return f"<UrmaMemory {self.nbytes} bytes generation {self._ticket.generation:016x}{'' if self._open else ' closed'}>"

    # --- inside ------------------------------------------------------------------------------------------------------

    def _connect(self) -> None:
        """A queue, and the segment over it; the old ones are given back first."""
        lib.obmm_urma_reader_switch(self._reader, ffi.NULL, ffi.NULL)
        if self._queue is not None:
            self._queue.close()
        queue = self._context.queue(transport=self._transport)
        try:
            target = queue.attach(self._ticket)
            segment, address, nbytes = self._context.segment_of(self._landing, writable=True)
            way = target.batch(segment, address, nbytes)
            way.timeout_ns = int(self._timeout * 1e9)
        except BaseException as error:
            undo(error, queue.close, "closing its queue")
            raise
        self._queue, self._target = queue, target
        lib.obmm_urma_reader_switch(self._reader, queue.path, way)

    def _read(self, offset: int, size: int) -> bytes:
        self.check()
        target = self._target
        assert target is not None
        try:
            return target.read(offset, size, self._timeout)
        except UrmaArgumentError:
            raise
        except UrmaError as error:
            raise RemoteMemoryError(
                errno.EFAULT,
                f"read at segment offset {offset} of {self!r}: {error.strerror}",
                operation="GATHER",
                offset=offset - self.address,
                kind="URMA",
                peer=target.eid,
            ) from error

    def _refuse_outside(self, offset: int, size: int) -> None:
        if offset < 0 or size < 0 or offset + size > self.nbytes:
            raise UrmaArgumentError.because(
                "read", f"[{offset}, {offset + size}) of {self.nbytes} bytes", "stay inside the payload"
            )

    def _owners(self, what: str) -> UrmaArgumentError:
        return UrmaArgumentError.because(
            what, "this side reads", "publish on the owner's side, through obmm.rows.LocalMemory over its buffer"
        )
