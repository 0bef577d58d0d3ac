# SPDX-License-Identifier: Apache-2.0
"""This process's connection to the SDK's daemon, and everything that must end before it (SDK specification 5, 15)."""

from __future__ import annotations

import atexit
import contextlib
import errno
import os
import threading

from obmm.closing import Closing, refuse_if_busy, tell_of_forks
from obmm.errors import MappingBusyError, ObmmError
from obmm.sdk.abi import Flag
from obmm.sdk.calls import Calls
from obmm.sdk.codes import Code
from obmm.sdk.errors import SdkError
from obmm.sdk.facts import entrance, facts
from obmm.sdk.faults import FaultEvents
from obmm.sdk.lease import Lease
from obmm.sdk.library import Library, load
from obmm.sdk.records import Host, HostGroup, Location, ObjectEntry
from obmm.sdk.shared_object import SharedObject
from obmm.undisturbed import undisturbed


class Session(Closing):
    """An initialised SDK library.  Made by `connect`; any number of threads.

    The library holds one connection per process, so there is one session per process at a time.  Closing it closes
    objects and leases first.  A forked child cannot use it: start workers by spawn.

    `obmm.sdk` has an example of each call.
    """

    def __init__(self, library: Library) -> None:
        self.library = library
        self.calls = Calls(library)
        """Every function of the SDK, for what this class does not have."""
        self._lock = threading.RLock()
        self._objects: dict[str, SharedObject] = {}
        self._leases: set[Lease] = set()
        self._faults: FaultEvents | None = None
        self._open = True
        _refuse_missing_daemon(library, self.calls)
        try:
            undisturbed(self.calls.initialize)
        except BaseException:
            self.calls.finalize()  # or a later finalize would not close the connection (5)
            raise

    @property
    def kind(self) -> str:
        """``"real"`` or ``"stand-in"``: what every result must be labelled with."""
        return self.library.kind

    @property
    def objects(self) -> tuple[SharedObject, ...]:
        """The objects that this process has open."""
        return tuple(self._objects.values())

    @property
    def leases(self) -> tuple[Lease, ...]:
        """The leases that this process holds."""
        return tuple(self._leases)

    # --- queries -----------------------------------------------------------------------------------------------------

    def hosts(self) -> tuple[Host, ...]:
        """All hosts of the cluster with their memory."""
        self.check_open()
        return self.calls.cluster()

    def local_host(self) -> Host:
        """This host: the one with this node's slot id (8). SdkError when the cluster does not list it."""
        self.check_open()
        slot = self.calls.local_slot()
        for host in self.calls.cluster():
            if any(numa.slot_id == slot for numa in host.numa):
                return host
        raise SdkError(Code.NOT_FOUND, f"no host of the cluster has this node's slot id {slot}", operation="local_host")

    def groups(self) -> tuple[HostGroup, ...]:
        """The groups of hosts that this node may share with; the first is region ``default``."""
        self.check_open()
        return self.calls.lookup_regions()

    def list(self, prefix: str) -> tuple[ObjectEntry, ...]:
        """Objects of the cluster whose names start with `prefix`."""
        self.check_open()
        return self.calls.list_objects(prefix)

    # --- memory ------------------------------------------------------------------------------------------------------

    def lease(
        self,
        size: int,
        *,
        region: str = "default",
        location: Location | None = None,
        flags: int = Flag.CACHE,
        wait: float = 0.0,
    ) -> Lease:
        """Borrow `size` bytes (a multiple of 4 MiB) from `region`, or from the lender at `location`.

        `flags` and `wait` (seconds) as for `SharedObject.create`.
        """

        self.check_open()

        def borrow() -> int:
            if location is None:
                return self.calls.lease_malloc(size, region=region, flags=flags, wait=wait)
            return self.calls.lease_malloc_with_location(size, location, flags=flags, wait=wait)

        lease = Lease(self, size)
        self._leases.add(lease)
        try:
            lease.take(borrow)
            return lease
        except BaseException as error:
            try:
                lease.close()  # the caller does not get it
            except ObmmError as refusal:
                error.add_note(f"and {lease!r} stayed: {refusal}")
            raise

    def faults(self) -> FaultEvents:
        """Events of memory faults from now on.  Advice: the access itself is a SIGBUS (10)."""
        with self._lock:
            self.check_open()
            if self._faults is None:
                self._faults = FaultEvents(self.calls)
            return self._faults

    # --- closing -----------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Close objects and leases, then the connection.  Idempotent.  MappingBusyError, and nothing changed, while
        views live."""
        with self._lock:
            if not self._open:
                return
            things: list[SharedObject | Lease] = [*self.objects, *self.leases]
            refuse_if_busy(*things)
            for thing in things:
                thing.close()
            self.calls.finalize()
            self._open = False
            if self in _sessions:
                _sessions.remove(self)

    def __repr__(self) -> str:
        return (
            f"<sdk.Session {self.library}{'' if self._open else ' closed'} "
            f"objects={len(self._objects)} leases={len(self._leases)}>"
        )

    # --- for objects and leases --------------------------------------------------------------------------------------

    def check_open(self) -> None:
        """ClosedError once closed, or in a forked child."""
        self._check_open()

    def add_object(self, shared: SharedObject) -> None:
        """Between rooms: one object per process and name (15 rule 5), else MappingBusyError."""
        with self._lock:
            self.check_open()
            if shared.name in self._objects:
                raise MappingBusyError(
                    errno.EBUSY, f"{shared.name!r} is open in this process already; fix: share that object"
                )
            self._objects[shared.name] = shared

    def drop_object(self, shared: SharedObject) -> None:
        """Between rooms: it is closed."""
        with self._lock:
            if self._objects.get(shared.name) is shared:
                del self._objects[shared.name]

    def drop_lease(self, lease: Lease) -> None:
        """Between rooms: it is given back."""
        self._leases.discard(lease)

    def _die(self) -> None:
        """No call may be made (5)."""
        super()._die()
        if self in _sessions:
            _sessions.remove(self)


def connect(path: str | os.PathLike[str] | None = None) -> Session:
    """Load the SDK (`load`) and connect to this host's daemon.

    SdkLibraryError without a library, SdkError (6015) without a daemon; ObmmError EBUSY while another session of this
    process is open.

    `path` as for `load`.
    """
    with _session_lock:
        _sessions[:] = [
            each for each in _sessions if not each.closed
        ]  # an interrupt may have come before it was left out
        if _sessions:
            raise ObmmError(
                errno.EBUSY,
                f"this process has {_sessions[0]!r} already: the SDK has one connection per process; share it",
            )
        session = Session(load(path))
        tell_of_forks(session)
        _sessions.append(session)
        return session


_session_lock = threading.Lock()
_sessions: list[Session] = []
"""The open one: held, because the library keeps its mappings whether or not the session is still referenced."""


def _at_exit() -> None:
    for session in tuple(_sessions):
        with contextlib.suppress(ObmmError):
            session.close()


atexit.register(_at_exit)


def _refuse_missing_daemon(library: Library, calls: Calls) -> None:
    """Say at once what a failing connection would say after up to 31 seconds (15 rule 4)."""
    path = entrance(library.standin is not None)
    if not path:
        problem = "OBMM_SDK_STANDIN names no folder of a stand-in"
    else:
        try:
            os.stat(path)
            if os.access(path, os.W_OK):
                return
            problem = f"{path} may not be written by this process"
        except OSError as error:
            problem = f"{path}: {error.strerror}"
    seen = facts(calls, "initialize", Code.MEMLIB, 0.0, {})
    raise SdkError.answered("initialize", Code.MEMLIB, 0.0, str(library), seen, socket=path, problem=problem)
