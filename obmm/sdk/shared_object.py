# SPDX-License-Identifier: Apache-2.0
"""A named shared object: its life through the SDK (SDK specification 7), its memory through this package (11)."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Final, Self

from obmm.closing import close_on_exit
from obmm.device import Device
from obmm.errors import ClosedError, MappingBusyError, ObmmError
from obmm.region import Access
from obmm.sdk import arguments
from obmm.sdk.abi import GRANULE, Flag
from obmm.sdk.codes import Code
from obmm.sdk.errors import SdkArgumentError, SdkError
from obmm.sdk.object_memory import ObjectMemory
from obmm.sdk.records import ObjectUnits, Provider
from obmm.sdk.session import Session
from obmm.views import ViewLedger
from obmm.window import Cache

_PROT: Final[dict[str, int]] = {"none": 0, "r": 1, "rw": 3}


class SharedObject:
    """A cluster-wide object of `size` bytes.  Made by `create` or `open`; one per process and name.

    `flags` are those of its creation, or None if `open` was not told: nobody tells later.  Through the SDK: `map`,
    `set_ownership`, locks, `view`.  Through this package, guarded: `regions`.
    """

    def __init__(self, session: Session, name: str, size: int, flags: int | None) -> None:
        self.session, self.name, self.size, self.flags = session, name, size, flags
        self._address: int | None = None
        self._access: Access = "none"
        self._memories: list[ObjectMemory] = []
        self._views = ViewLedger()
        self._open = True
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
        seconds to go on trying while the name is busy.
        """
        arguments.check_object("allocate" if provider is None else "allocate_with_provider", name, size, flags)
        made = cls(
            session, name, -(-size // GRANULE) * GRANULE, int(flags)
        )  # first: a name that is open here is refused
        try:
            if provider is None:
                session.calls.allocate(name, size, region=region, mode=mode, flags=flags, wait=wait)
            else:
                given = Provider(provider) if isinstance(provider, str) else provider
                session.calls.allocate_with_provider(name, size, given, mode=mode, flags=flags, wait=wait)
        except BaseException:
            made._forget()
            raise
        return made

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
        if access not in _PROT:
            raise SdkArgumentError.because("map", f"access={access!r}", "'none', 'r' or 'rw'")
        if self._address is not None:
            raise SdkArgumentError.because("map", f"{self.name!r} is mapped in this process", "unmap() first")
        self._address = self.session.calls.map(self.name, self.size, _PROT[access], wait=wait)
        self._access = access
        return self._address

    def unmap(self) -> None:
        """Close the direct attachments, then the mapping.  MappingBusyError, and nothing changed, while views live."""
        if self._address is None or self.closed:
            return
        self.refuse_if_busy()
        for memory in tuple(self._memories):
            memory.close()
        self.session.calls.unmap(self.name, self._address, self.size)
        self._address = None

    def set_ownership(self, access: Access, start: int = 0, stop: int | None = None) -> None:
        """Take the right "r" or "rw" to bytes [start, stop) of the SDK's mapping, or give it back with "none"."""
        if access not in _PROT:
            raise SdkArgumentError.because("set_ownership", f"access={access!r}", "'none', 'r' or 'rw'")
        end = self.size if stop is None else stop
        if not 0 <= start < end <= self.size:
            raise SdkArgumentError.because("set_ownership", f"[{start}, {end})", f"bytes of 0..{self.size}")
        if access != "rw" and self._views.over(start, end, writable_only=access == "r"):
            raise MappingBusyError(errno.EBUSY, f"{self!r}: views of [{start}, {end}) live; fix: drop them first")
        self.session.calls.set_ownership(self.name, self.address + start, end - start, _PROT[access])
        whole = start == 0 and end == self.size
        if whole or _PROT[access] < _PROT[self._access]:
            self._access = access

    @contextmanager
    def reading(self) -> Iterator[Self]:
        """Hold the read lock, and with it the right to load (flags exactly 0x1).  Never waits."""
        self._check_open()
        self.session.calls.read_lock(self.name)
        with self._locked("r"):
            yield self

    @contextmanager
    def writing(self) -> Iterator[Self]:
        """Hold the write lock, and with it the right to load and store (flags exactly 0x1).  Never waits."""
        self._check_open()
        self.session.calls.write_lock(self.name)
        with self._locked("rw"):
            yield self

    @contextmanager
    def _locked(self, access: Access) -> Iterator[None]:
        self._access = access
        try:
            yield
        finally:
            if self._views:
                raise MappingBusyError(
                    errno.EBUSY, f"{self!r} stays locked: views live; fix: drop them, then calls.unlock({self.name!r})"
                )
            self._access = "none"
            self.session.calls.unlock(self.name)

    def view(self) -> memoryview:
        """The SDK's mapping without a copy, writable with access "rw".  Unguarded: prefer `regions`."""
        address = self.address
        if self._access == "none":
            raise ObmmError(errno.EPERM, f"{self!r} has no right to its mapping: map('r'), or set_ownership() first")
        return self._views.make(self, address, 0, self.size, self._access == "rw", f"memoryview of {self.name!r}")

    # --- through this package ----------------------------------------------------------------------------------------

    def regions(self, access: Access, *, device: Device | None = None, cache: Cache | None = None) -> ObjectMemory:
        """The units as one contiguous range of our own mappings: guards, gathers, views, ownership (11).

        Maps the object through the SDK with no right first, if it is not: that pins it on this node.  `device` is this
        node's (default: `obmm.open()`); it must be the kernel that the SDK works on.  `cache` as `Mapping.cache`, found
        out by default.  Close it before `unmap`, which otherwise does.
        """
        self._check_open()
        if self._address is None:
            self.map("none")
        memory = ObjectMemory.of(self.units(), self.flags, access, device, cache, self._memories.remove)
        self._memories.append(memory)
        return memory

    # --- ending ------------------------------------------------------------------------------------------------------

    def refuse_if_busy(self) -> None:
        """MappingBusyError while views of it live."""
        if self._views:
            raise MappingBusyError(errno.EBUSY, f"{self!r}: views live; fix: drop them (del) first")
        for memory in self._memories:
            memory.refuse_if_busy()

    def close(self) -> None:
        """Unmap; the object stays in the cluster.  Idempotent."""
        if not self._open or self.session.closed:
            return
        self.unmap()
        self._forget()

    def delete(self, *, wait: float = 0.0) -> None:
        """Unmap, and remove it from the cluster.  Its creator only; SdkError 6024 while others map it."""
        self._check_open()
        self.unmap()
        self.session.calls.deallocate(self.name, wait=wait)
        self.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        close_on_exit(self, error)

    def __repr__(self) -> str:
        flags = "unknown" if self.flags is None else hex(self.flags)
        state = " closed" if self.closed else f" mapped {self._access!r}" if self.mapped else ""
        return f"<SharedObject {self.name!r} {self.size} bytes flags={flags}{state} of {self.session.library}>"

    def _forget(self) -> None:
        self._open = False
        self.session.drop_object(self)

    def _check_open(self) -> None:
        self.session.check_open()
        if not self._open:
            raise ClosedError.of(self)
