# SPDX-License-Identifier: Apache-2.0
"""A named shared object: its life through the SDK (SDK specification 7), its memory through this package (11)."""

from __future__ import annotations

import errno
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Final, Self

from obmm.arguments import wrong_type
from obmm.closing import Closing, ending, refuse_if_busy
from obmm.driver.abi import Cache
from obmm.errors import ClosedError, MappingBusyError, ObmmError
from obmm.mapping.ownership import Right, RightsMap
from obmm.mapping.views import ViewLedger
from obmm.region.device import Device
from obmm.region.region import Access
from obmm.sdk import arguments
from obmm.sdk.abi import GRANULE, Flag
from obmm.sdk.codes import Code
from obmm.sdk.errors import SdkArgumentError, SdkError
from obmm.sdk.object_memory import ObjectMemory
from obmm.sdk.records import ObjectUnits, Provider
from obmm.undisturbed import undisturbed

if TYPE_CHECKING:
    from obmm.sdk.session import Session

_PROT: Final[dict[Right, int]] = {Right.NONE: 0, Right.READ: 1, Right.WRITE: 3}
_RIGHTS: Final[dict[str, Right]] = {"none": Right.NONE, "r": Right.READ, "rw": Right.WRITE}


class _Block:
    """A with block that holds a lock: alive as long as it."""

    __slots__ = ("__weakref__",)


class SharedObject(Closing):
    """A cluster-wide object of `size` bytes.  Made by `create` or `open`; one per process and name.

    `flags` are those of its creation, or None if `open` was not told: they cannot be asked for later.  Through the SDK: `map`,
    `set_ownership`, locks, `view`.  Through this package, guarded: `regions`.

    `session`: where.  `access` is "none", "r" or "rw", `wait` in seconds.  SdkArgumentError for what the SDK would refuse,
    ClosedError after `close`, MappingBusyError while views live.  `obmm.sdk` has an example of each call.
    """

    def __init__(self, session: Session, name: str, size: int, flags: int | None) -> None:
        self.session, self.name, self.size, self.flags = session, name, size, flags
        self._address: int | None = None
        self._rights = RightsMap(0, max(size, 1), Right.NONE)
        self._lock = threading.RLock()
        self._going = False  # a removal was tried
        self._exists = False  # made by this object, not yet handed out
        self._memories: list[ObjectMemory] = []
        self._views = ViewLedger()
        self._locked_by: weakref.ref[_Block] | None = None
        self._open = True
        if not hasattr(session, "add_object"):
            raise wrong_type("SDK", "session", session, "what sdk.connect() returned")
        session.add_object(self)

    @classmethod
    def create(
        cls,
        session: Session,
        name: str,
        size: int,
        *,
        provider: Provider | str | None = None,
        region: str = "default",
        mode: int = 0o600,
        flags: int = Flag.CACHE,
        wait: float = 0.0,
    ) -> Self:
        """Allocate `size` bytes (a multiple of 4 MiB; whole units of 128 MiB by default are taken) under a new name.

        With `provider`, a host's name, the memory is exactly that host's and every node may attach; else any host's
        of `region`, and only its nodes may.  `mode` are permission bits, without exception for root.  `wait`:
        seconds to go on trying while the name is busy.  ObmmArgumentError for what cannot be asked for.
        """
        if not isinstance(provider, Provider | str | None):
            raise wrong_type("SDK", "provider", provider, "a Provider, or a host's name")
        operation = "allocate" if provider is None else "allocate_with_provider"
        arguments.check_object(operation, name, size, flags)
        arguments.check_mode(operation, mode)
        made = cls(
            session, name, -(-size // GRANULE) * GRANULE, int(flags)
        )  # first: a name that is open here is refused
        given = Provider(provider) if isinstance(provider, str) else provider

        def allocate() -> None:
            if given is None:
                session.calls.allocate(name, size, region=region, mode=mode, flags=flags, wait=wait)
            else:
                session.calls.allocate_with_provider(name, size, given, mode=mode, flags=flags, wait=wait)
            made._exists = True

        try:
            undisturbed(allocate)
            return made
        except BaseException as error:
            made._undo_creation(error)
            raise

    def _undo_creation(self, error: BaseException) -> None:
        """It is not handed out: it goes from the cluster, or stays with the session, which names it."""
        try:
            if self._exists:
                undisturbed(lambda: self.session.calls.deallocate(self.name))
        except SdkError as refusal:
            error.add_note(f"and {self!r} was made and stayed: {refusal}")
            return
        self._forget()

    @classmethod
    def open(cls, session: Session, name: str, *, flags: int | None = None) -> Self:
        """An existing object of the cluster; `flags` are those of its creation, if known.  SdkError 6020 without it."""
        session.check_open()
        for entry in session.calls.list_objects(name):
            if entry.name == name:
                return cls(session, name, entry.size, flags)
        raise SdkError.answered("map", Code.NOT_FOUND, 0.0, str(session.library), name=name)

    # --- description -------------------------------------------------------------------------------------------------

    @property
    def nbytes(self) -> int:
        """Bytes of it, as asked for."""
        return self.size

    @property
    def mapped(self) -> bool:
        """Whether this process maps it through the SDK."""
        return self._address is not None

    @property
    def address(self) -> int:
        """Where the SDK mapped it.  Access through it is unguarded."""
        self._check_open()
        if self._address is None:
            raise ClosedError(errno.EBADF, f"{self!r} is not mapped: map() first")
        return self._address

    @property
    def closed(self) -> bool:
        return not self._open or self.session.closed

    def units(self) -> ObjectUnits:
        """Unit size and this node's mem_ids.  SdkError 6020 while no process of this node maps it."""
        self._check_open()
        return self.session.calls.lookup(self.name)

    # --- through the SDK ---------------------------------------------------------------------------------------------

    def map(self, access: Access = "none", *, wait: float = 0.0) -> int:
        """Map the whole object -> address.  `access` "none" only pins it on this node, for `regions`."""
        self._check_open()
        right = _right("map", access)
        with self._lock:
            if self._address is not None:
                raise SdkArgumentError.because("map", f"{self.name!r} is mapped in this process", "unmap() first")

            def make() -> int:
                self._address = address = self.session.calls.map(self.name, self.size, _PROT[right], wait=wait)
                self._rights.set(0, self.size, right)
                return address

            return undisturbed(make)

    def unmap(self) -> None:
        """Close the direct attachments, then the mapping.  MappingBusyError, and nothing changed, while views live."""
        with self._lock:
            if self._address is None or self.closed:
                return
            self._refuse_if_busy()
            self._unlock_left()
            for memory in tuple(self._memories):
                memory.close()
            undisturbed(self._unmap)

    def _unmap(self) -> None:
        assert self._address is not None
        try:
            self.session.calls.unmap(self.name, self._address, self.size)
        except SdkError as error:
            if error.code != Code.NOT_FOUND:  # an earlier attempt had got through
                raise
        self._address = None
        self._rights.set(0, self.size, Right.NONE)

    def set_ownership(self, access: Access, start: int = 0, stop: int | None = None) -> None:
        """Take the right "r" or "rw" to bytes [start, stop) of the SDK's mapping, or give it back with "none"."""
        right = _right("set_ownership", access)
        start = arguments.check_number("set_ownership", "start", start)
        end = self.size if stop is None else arguments.check_number("set_ownership", "stop", stop)
        if not 0 <= start < end <= self.size:
            raise SdkArgumentError.because("set_ownership", f"[{start}, {end})", f"bytes of 0..{self.size}")
        with self._lock:
            if right is not Right.WRITE and self._views.over(start, end, writable_only=right is Right.READ):
                raise MappingBusyError(errno.EBUSY, f"{self!r}: views of [{start}, {end}) live; fix: drop them first")
            address = self.address + start

            def change() -> None:
                self.session.calls.set_ownership(self.name, address, end - start, _PROT[right])
                self._rights.set(start, end, right)

            undisturbed(change)

    @contextmanager
    def reading(self) -> Iterator[Self]:
        """Hold the read lock, and with it the right to load (flags exactly 0x1).  Never waits."""
        self._check_open()
        with self._locked(self.session.calls.read_lock, Right.READ):
            yield self

    @contextmanager
    def writing(self) -> Iterator[Self]:
        """Hold the write lock, and with it the right to load and store (flags exactly 0x1).  Never waits."""
        self._check_open()
        with self._locked(self.session.calls.write_lock, Right.WRITE):
            yield self

    @contextmanager
    def _locked(self, lock: Callable[[str], None], right: Right) -> Iterator[None]:
        self._unlock_left()
        block = _Block()

        def take() -> None:
            lock(self.name)
            self._locked_by = weakref.ref(block)
            self._rights.set(0, self.size, right)

        def unlock() -> None:
            if self._locked_by is None or self._locked_by() is not block:
                return
            if self._views:
                raise MappingBusyError(
                    errno.EBUSY, f"{self!r} stays locked: views live; fix: drop them, then calls.unlock({self.name!r})"
                )
            undisturbed(self._give_lock_back)

        with ending(unlock, "unlocking"):
            undisturbed(take)
            yield

    def _give_lock_back(self) -> None:
        self.session.calls.unlock(self.name)
        self._locked_by = None
        self._rights.set(0, self.size, Right.NONE)

    def _unlock_left(self) -> None:
        """A lock whose block is over was left by an interrupt, or by views that lived then."""
        if self._locked_by is not None and self._locked_by() is None and not self._views:
            with suppress(SdkError):  # unlocked meanwhile, by its name
                undisturbed(self._give_lock_back)
            self._locked_by = None

    def view(self) -> memoryview:
        """The SDK's mapping without a copy, writable with access "rw".  Unguarded: prefer `regions`.

        ObmmError while it is not mapped.
        """
        with self._lock:
            address, right = self.address, self._rights.weakest(0, self.size)
            if right is Right.NONE:
                raise ObmmError(
                    errno.EPERM, f"{self!r} has no right to its mapping: map('r'), or set_ownership() first"
                )
            writable = right is Right.WRITE
            return self._views.make(self, address, 0, self.size, writable, f"memoryview of {self.name!r}")

    # --- through this package ----------------------------------------------------------------------------------------

    def regions(self, access: Access, *, device: Device | None = None, cache: Cache | None = None) -> ObjectMemory:
        """The units as one contiguous range of our own mappings: guards, gathers, views, ownership (11).

        Maps the object through the SDK with no right first, if it is not: that pins it on this node.  `device` is this
        node's (default: `obmm.open()`); it must be the kernel that the SDK works on.  `cache` as `Mapping.cache`, found
        out by default.  Close it before `unmap`, which otherwise does.
        ObmmArgumentError for what is no device.
        """
        self._check_open()
        if not isinstance(device, Device | None):
            raise wrong_type("SDK", "device", device, "a device of obmm.open()")
        with self._lock:
            if self._address is None:
                self.map("none")
            memory = ObjectMemory.of(self.units(), self.flags, access, device, cache, self._drop_memory)
            self._memories.append(memory)
            return memory

    def _drop_memory(self, memory: ObjectMemory) -> None:
        with suppress(ValueError):  # an interrupt came before it was noted, or after it was dropped
            self._memories.remove(memory)

    # --- ending ------------------------------------------------------------------------------------------------------

    def _refuse_if_busy(self) -> None:
        if self._views:
            raise MappingBusyError(errno.EBUSY, f"{self!r}: views live; fix: drop them (del) first")
        refuse_if_busy(*self._memories)

    def close(self) -> None:
        """Unmap; the object stays in the cluster.  Idempotent."""
        with self._lock:
            if not self._open or self.session.closed:
                return
            self.unmap()
            self._forget()

    def delete(self, *, wait: float = 0.0) -> None:
        """Unmap, and remove it from the cluster.  Its creator only; SdkError 6024 while others map it."""
        with self._lock:
            self._check_open()
            self.unmap()

            def remove() -> None:
                try:
                    self.session.calls.deallocate(self.name, wait=wait)
                except SdkError as error:
                    if error.code != Code.NOT_FOUND or not self._going:  # an earlier attempt had got through
                        raise
                self._forget()

            try:
                undisturbed(remove)
            finally:
                self._going = True

    def __repr__(self) -> str:
        flags = "unknown" if self.flags is None else hex(self.flags)
        state = (
            " closed" if self.closed else f" mapped {self._rights.weakest(0, self.size).letter}" if self.mapped else ""
        )
        return f"<SharedObject {self.name!r} {self.size} bytes flags={flags}{state} of {self.session.library}>"

    def _forget(self) -> None:
        self.session.drop_object(self)  # first: a second close, after an interrupt, would not do it
        self._open = False

    def _check_open(self) -> None:
        self.session.check_open()
        super()._check_open()


def _right(operation: str, access: str) -> Right:
    right = _RIGHTS.get(access) if isinstance(access, str) else None
    if right is None:
        raise SdkArgumentError.because(operation, f"access={access!r}", "'none', 'r' or 'rw'")
    return right
