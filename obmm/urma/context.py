# SPDX-License-Identifier: Apache-2.0
"""A device opened by this process, and everything made from it (URMA specification 3, 10)."""

from __future__ import annotations

import atexit
import contextlib
import mmap
import os
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from obmm.arguments import whole, wrong_type
from obmm.closing import undo
from obmm.errors import ObmmError
from obmm.mapping.buffers import holds_objects
from obmm.undisturbed import undisturbed
from obmm.urma import calls
from obmm.urma.abi import ATTRIBUTES_BYTES, CAPABILITIES, DEV_CAP, PRIORITIES, PRIORITY_INFO, Transport, ffi
from obmm.urma.errors import UrmaArgumentError, UrmaError
from obmm.urma.library import Library, load
from obmm.urma.life import Owned
from obmm.urma.queue import Queue
from obmm.urma.segment import AccessName, Segment
from obmm.urma.ticket import show_eid

DEVICE: Final = "OBMM_URMA_DEVICE"


@dataclass(frozen=True, slots=True)
class Attributes:
    """Limits of a device (section 4.5).  `priorities`: transport bits by priority; empty where the build has no such table.

    `limits` are numbers by name.  `Context.attributes` has them.
    """

    limits: dict[str, int]
    priorities: tuple[int, ...]

    def __getitem__(self, name: str) -> int:
        return self.limits[name]


class Context(Owned):
    """`device` opened at EID number `eid_index`.  Any number of threads.

    `device`: a name; else OBMM_URMA_DEVICE, else the only one there is.  `library`: as `load` returned it; default:
    the one that `load` finds.  Closing it closes everything made from it, in order.  `access`: "r" or "rw" for peers, "local"
    for this side's own requests only.  UrmaArgumentError for what cannot be, ObmmArgumentError for a wrong type.
    `obmm.urma` has an example of each call.
    """

    def __init__(
        self, device: str | None = None, eid_index: int | None = None, *, library: Library | None = None
    ) -> None:
        if not isinstance(library, Library | None):
            raise wrong_type("URMA", "library", library, "what urma.load() returned")
        if not isinstance(device, str | None):
            raise wrong_type("URMA", "device", device, "a name (str)")
        if eid_index is not None:
            eid_index = whole("URMA", "eid_index", eid_index, low=0, high=(1 << 32) - 1)
        self.library = library or load()
        self._queues: list[Queue] = []
        self._segments: list[Segment] = []
        self._landings: list[tuple[int, int, Segment]] = []
        self._token_id: Any = None
        self.lock = threading.RLock()
        """Between rooms: for what is made and listed; taken after the locks of those that end."""
        self._context: Any = None
        try:
            undisturbed(lambda: self._make(device or os.environ.get(DEVICE), eid_index))
        except BaseException as error:
            undo(error, self.close, "giving back what was made of it")
            raise

    def _make(self, device: str | None, eid_index: int | None) -> None:
        super().__init__(calls.acquire(self.library))
        _contexts[id(self)] = self
        self._device = _choose(self._calls, device)
        self.device: str = ffi.string(self._device.name).decode(errors="backslashreplace")
        self.eid_index, self.eid = _choose_eid(self._calls, self._device, eid_index)
        self.attributes = _attributes(self._calls, self._device, self.library.profile)
        self._context = self._calls.pointer(
            "create_context", self._device, self.eid_index, device=self.device, eid_index=self.eid_index
        )

    # --- memory ------------------------------------------------------------------------------------------------------

    def register(self, buffer: Any, access: AccessName = "r") -> Segment:
        """Let peers into `buffer`, a page-aligned writable or readable buffer: "r", "rw", or "local" for only this
        side's own requests.

        The memory must be ordinary: private pages or a memfd, never an obmm mapping (a device's pages cannot be pinned).
        The segment keeps `buffer` alive; closing it revokes.
        """
        self.check()
        try:
            held = ffi.from_buffer(buffer)
        except (TypeError, BufferError, ValueError) as error:
            raise UrmaArgumentError.because("register", f"the buffer: {error}", "a contiguous buffer") from None
        address, nbytes = int(ffi.cast("uintptr_t", held)), len(held)
        if holds_objects(buffer):
            raise UrmaArgumentError.because("register", "a buffer of Python objects", "pass bytes, or numbers")
        if not nbytes or address % mmap.PAGESIZE:
            raise UrmaArgumentError.because(
                "register",
                f"a buffer of {nbytes} bytes that does not begin a page",
                "take the memory from Context.buffer(nbytes), or from mmap",
            )

        def make() -> Segment:
            with self.lock:
                self._check_usable()
                segment = Segment(self, self._calls, held, address, nbytes, access)
                self._segments.append(segment)
                self._landings.append((address, nbytes, segment))
            return segment

        return undisturbed(make)

    def buffer(self, nbytes: int, access: AccessName = "local") -> NDArray[np.uint8]:
        """`nbytes` of new zeroed pages, registered, as an array: for `read_many` and `write_many`, and with "r" or "rw"
        for peers too (`segment_of`).  It lives until the context is closed, or `free` gives it back.
        """
        self.check()
        nbytes = whole("URMA", "nbytes", nbytes)
        if nbytes <= 0:
            raise UrmaArgumentError.because("buffer", f"{nbytes} bytes", "at least one")
        try:
            pages = mmap.mmap(-1, -(-nbytes // mmap.PAGESIZE) * mmap.PAGESIZE)
        except (OSError, OverflowError) as error:
            raise UrmaArgumentError.because("buffer", f"{nbytes} bytes: {error}", "what this machine has") from None
        array: NDArray[np.uint8] = np.frombuffer(pages, np.uint8, nbytes)
        self.register(pages, access)
        return array

    def segment_of(
        self, buffer: Any, operation: str = "segment_of", *, writable: bool = False
    ) -> tuple[Segment, int, int]:
        """(segment, address, bytes) of a contiguous buffer inside a registered one; UrmaArgumentError for any other.

        `operation` is named in the error; `writable`: it must be.
        """
        try:
            held = ffi.from_buffer(buffer, require_writable=writable)
        except (TypeError, BufferError, ValueError) as error:
            raise UrmaArgumentError.because(
                operation, f"the buffer: {error}", "a contiguous buffer of Context.buffer()"
            ) from None
        if holds_objects(buffer):
            raise UrmaArgumentError.because(operation, "a buffer of Python objects", "pass bytes, or numbers")
        address, nbytes = int(ffi.cast("uintptr_t", held)), len(held)
        for start, length, segment in self._landings:
            if start <= address and address + nbytes <= start + length:
                return segment, address, nbytes
        raise UrmaArgumentError.because(
            operation,
            f"a buffer of {nbytes} bytes outside every registered segment of this context",
            "take it from Context.buffer(nbytes)",
        )

    def free(self, buffer: Any) -> None:
        """Revoke and give back what `buffer` returned.  Refused while a dead queue may still write to it."""
        self.segment_of(buffer)[0].close()

    def token_id(self) -> Any:
        """Between rooms: for `Segment`, one per context, because allocating is slow and serial in the kernel (6.3)."""
        with self.lock:
            if self._token_id is None:
                self._token_id = self._calls.pointer("alloc_token_id", self._context)
            return self._token_id

    # --- queues ------------------------------------------------------------------------------------------------------

    def queue(
        self, depth: int = 8192, list_max: int = 4096, transport: str = "ctp", priority: int | None = None
    ) -> Queue:
        """A send queue for lists of up to `list_max` requests, `depth` of them in flight.

        `transport`: "ctp", or "rtp".  `priority`: default the first one that the device has for exactly this transport.
        """
        self.check()

        def make() -> Queue:
            with self.lock:
                self._check_usable()
                made = Queue(self, self._calls, self._context, depth, list_max, transport, priority)
                self._queues.append(made)
            return made

        return undisturbed(make)

    def choose_priority(self, transport: Transport) -> tuple[int, bool]:
        """Between rooms: the first priority for exactly this transport -> (priority, whether it was guessed) (8.2)."""
        for number, bits in enumerate(self.attributes.priorities):
            if bits == 1 << transport:
                return number, False
        return (15 if transport is Transport.RTP else 6), True

    # --- ending ------------------------------------------------------------------------------------------------------

    def drop(self, thing: Queue | Segment) -> None:
        """Between rooms: for those, `thing` is gone."""
        with self.lock:
            self._queues = [each for each in self._queues if each is not thing]
            self._segments = [each for each in self._segments if each is not thing]
            self._landings = [each for each in self._landings if each[2] is not thing]

    def _parts(self) -> Sequence[Owned]:
        return [*self._queues, *self._segments]

    def _end(self) -> None:
        # without the lock: who closes one of them takes it after that one's own
        with self.lock:
            queues, segments = tuple(self._queues), tuple(self._segments)
        for queue in queues:
            queue.close()
        for segment in segments:
            segment.close()
        with self.lock:
            if self._token_id is not None:
                self._calls.status("free_token_id", self._token_id)
                self._token_id = None
            if self._context is not None:
                try:
                    self._calls.status("delete_context", self._context)
                except UrmaError as error:
                    error.add_note(f"alive of this context: {[*self._queues, *self._segments]!r}")
                    raise
                self._context = None
            calls.release(self._calls)
        _contexts.pop(id(self), None)

    def __repr__(self) -> str:
        state = " closed" if self.closed else ""
        name = getattr(self, "device", "?")
        return (
            f"<urma.Context {name} of {self.library}{state} queues={len(self._queues)} segments={len(self._segments)}>"
        )


_contexts: dict[int, Context] = {}
"""Held until they are closed: the library keeps what is theirs whether or not a variable still has them."""


def contexts() -> tuple[Context, ...]:
    """The contexts of this process that are open.  One that an interrupt kept from its variable is closed from here."""
    return tuple(context for context in tuple(_contexts.values()) if not context.closed)


def _at_exit() -> None:
    """The library's own clean-up must find nothing in use."""
    for context in contexts():
        with contextlib.suppress(ObmmError):
            context.close()


atexit.register(_at_exit)


def _choose(using: calls.Calls, name: str | None) -> Any:
    if name:
        return using.pointer("get_device_by_name", name.encode(), name=name)
    count = ffi.new("int *")
    found = using.pointer("get_device_list", count)
    try:
        devices = [found[i] for i in range(count[0])]
        if len(devices) == 1:
            return devices[0]
        names = [ffi.string(each.name).decode(errors="backslashreplace") for each in devices]
    finally:
        using.library.raw.urma_free_device_list(found)
    raise UrmaArgumentError.because(
        "Context", f"there are several devices: {', '.join(names)}", f"name one, as an argument or by {DEVICE}"
    )


def _choose_eid(using: calls.Calls, device: Any, wanted: int | None) -> tuple[int, str]:
    count = ffi.new("uint32_t *")
    found = using.pointer("get_eid_list", device, count)
    try:
        eids = {int(found[i].eid_index): bytes(found[i].eid.raw) for i in range(count[0])}
    finally:
        using.library.raw.urma_free_eid_list(found)
    index = next(iter(eids), None) if wanted is None else wanted
    if index not in eids:
        raise UrmaArgumentError.because(
            "Context", f"eid_index {wanted} of a device with {sorted(eids)}", "one of these"
        )
    assert index is not None
    return index, show_eid(eids[index])


def _attributes(using: calls.Calls, device: Any, profile: str) -> Attributes:
    buffer = ffi.new("uint8_t[]", ATTRIBUTES_BYTES)
    using.status("query_device", device, buffer)
    words = memoryview(ffi.buffer(buffer)).cast("B")[DEV_CAP:]

    def word(at: int) -> int:
        return int.from_bytes(words[at : at + 4], "little")

    limits = {name: word(at) for name, at in CAPABILITIES.items()}
    has_table = profile == "C"
    priorities = tuple(word(PRIORITY_INFO + 8 * number + 4) for number in range(PRIORITIES)) if has_table else ()
    return Attributes(limits, priorities)
