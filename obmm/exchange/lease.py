# SPDX-License-Identifier: Apache-2.0
"""A lease, as its importer sees it."""

from __future__ import annotations

import contextlib
import enum
import errno
import json
import logging
import os
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from obmm.closing import Living, Scoped
from obmm.driver.descriptor import Descriptor
from obmm.errors import MappingBusyError, ObmmError
from obmm.exchange.errors import LeaseError
from obmm.handle import Handle

log = logging.getLogger("obmm.exchange.client")

CLOSING_S = 1.0  # how long closing a region may wait for a server that does not answer


class LeaseStatus(enum.Enum):
    """Only ``ACTIVE`` leases may be read from.

    >>> [status.name for status in obmm.exchange.LeaseStatus][0]
    'ACTIVE'
    """

    ACTIVE = "active"
    SUSPECT = "suspect"  # not renewed for two thirds of the term: the server may be gone, or only TCP
    REVOKED = "revoked"  # the owner wants the memory back: unmap, unimport, release
    STALE = "stale"  # the region was exported again: this handle names memory that is gone
    LOST = "lost"  # the server does not know this lease (its journal is gone)
    RELEASED = "released"


@dataclass(frozen=True, slots=True)
class LeaseEvent:
    """``lease`` became ``status``.  ``deadline``: after a revocation, when the owner's patience ends, seconds of the monotonic clock.

    >>> import threading
    >>> seen, told = [], threading.Event()
    >>> with a.export_region("2MiB") as region, obmm.serve({"words": region}, port=0, plain=True) as server:
    ...     with obmm.connect(server.addresses[0], plain=True) as peer:
    ...         lease = peer.fetch("words")
    ...         lease.on_change(lambda event: (seen.append(event), lease.release(), told.set()))
    ...         server.revoke("words", timeout=10)
    ...         told.wait(10), seen[0].status is obmm.exchange.LeaseStatus.REVOKED
    ()
    (True, True)
    """

    lease: Lease
    status: LeaseStatus
    deadline: float | None = None


class Releaser(Protocol):
    """What a lease needs of its peer."""

    def release(self, lease: Lease, timeout: float) -> bool: ...
    def watch(self, lease: Lease, callback: Callable[[LeaseEvent], None]) -> None: ...
    def imported(self, lease: Lease, device: str) -> None: ...


class Lease(Scoped):
    """The right to import a region until its owner wants it back; made by `Peer.fetch`, renewed in the background.

    `handle` is what to import, `manifest` what the bytes mean (a dict), `name` the region's name on the server.
    When `usable` turns false, `fileno` becomes readable and the callbacks of `on_change` run.
    """

    def __init__(self, peer: Releaser, lease: bytes, name: str, handle: Handle, manifest: dict[str, Any]) -> None:
        self.name = name
        self.handle = handle
        self.manifest = manifest
        self._peer = peer
        self._id = lease
        self._status = LeaseStatus.ACTIVE
        self._term = 0.0
        self._renewed = 0.0
        self._deadline: float | None = None
        self._mutex = threading.Lock()
        self._event: Descriptor | None = None
        self._users: Living[object] = Living()

    @property
    def status(self) -> LeaseStatus:
        """What it is now: compared with the clock at each use, whatever the peer's thread has had the time to notice."""
        status = self._status
        if status is LeaseStatus.ACTIVE and self._term and time.monotonic() >= self._renewed + self._term * 2 / 3:
            return LeaseStatus.SUSPECT
        return status

    @property
    def usable(self) -> bool:
        """True while views may be made and guarded calls may run."""
        return self.status is LeaseStatus.ACTIVE

    @property
    def expires(self) -> float:
        """Unix time at which the lease runs out unless it is renewed before, as it is in the background."""
        return time.time() + self.remaining

    @property
    def remaining(self) -> float:
        """Seconds until `expires`; negative afterwards."""
        return self._renewed + self._term - time.monotonic()

    @property
    def age(self) -> float:
        """Seconds since the owner last granted or renewed it."""
        return time.monotonic() - self._renewed

    @property
    def revoke_deadline(self) -> float | None:
        """After a revocation: until when the owner waits for the release, on the monotonic clock."""
        return self._deadline

    def check(self) -> None:
        """Raise LeaseError, with the reason and what to do, unless the lease is usable."""
        status = self.status
        if status is not LeaseStatus.ACTIVE:
            raise LeaseError(f"the lease on {self.name!r} is {status.value}: {_ADVICE[status]}")

    def on_change(self, callback: Callable[[LeaseEvent], None]) -> None:
        """Have ``callback`` called, in a thread of the peer's, at every change of `status` but a release.

        It may take its time, and may close regions and release: renewals go on meanwhile.
        """
        self._peer.watch(self, callback)

    def fileno(self) -> int:
        """A descriptor that is readable while the lease is not usable; only wait on it."""
        with self._mutex:
            if self._event is None:
                event = Descriptor.eventfd()
                if not self.usable:
                    os.eventfd_write(event.fileno(), 1)
                self._event = event
            return self._event.fileno()

    def attach(self, user: object) -> None:
        """Between rooms: ``user`` (an imported region) reads under this lease: `release` is refused until it was closed."""
        with self._mutex:
            self._users.add(user)

    def importing(self, where: str) -> None:
        """Between rooms: checked and noted before IMPORT, so that `obmm gc` knows where a killed process may have one."""
        self.check()
        self._peer.imported(self, where)

    @property
    def users(self) -> tuple[str, ...]:
        """The imported regions that read under this lease, in words."""
        return tuple(repr(user) for user in self._users.snapshot())

    def detach(self, user: object) -> None:
        """Between rooms: ``user`` has been unimported.  When it was the last one the lease is released."""
        with self._mutex:
            self._users.discard(user)
            last = not self._users.snapshot()
        if not last:
            return
        try:
            self.release(CLOSING_S)
        except ObmmError as error:  # the region is gone already; that must not look like a failure to close it
            log.warning("%r: the lease could not be released: %s", self.name, error.strerror)

    def release(self, timeout: float = 5.0) -> bool:
        """Tell the owner that nothing here uses the region any more.  Idempotent.

        Call it after UNIMPORT (closing an imported region does).  True once the server has confirmed; False, with a
        warning in the log, when it could not be reached in ``timeout`` seconds: the release is then delivered when
        the peer has its connection back.  MappingBusyError while a region imported with this lease is open.
        """
        if self.users:
            who = ", ".join(self.users)
            raise MappingBusyError(errno.EBUSY, f"the lease on {self.name!r} is in use by {who}: close that first")
        return self._peer.release(self, timeout)

    def _leave(self, failed: bool) -> None:
        self.release()

    def __repr__(self) -> str:
        return f"<lease {self._id[:4].hex()} on {self.name!r}, {self.status.value}, {self.remaining:.1f} s left>"

    # --- for the client's loop -------------------------------------------------------------------------------------

    def _extend(self, since: float, term: float) -> None:
        """Renewed: a whole term, counted from when we *asked*."""
        self._renewed, self._term = since, term

    def _become(self, status: LeaseStatus, deadline: float | None = None) -> bool:
        """Change the status; False when nothing changed. A released lease stays released."""
        with self._mutex:
            if self._status is status or self._status is LeaseStatus.RELEASED:
                return False
            self._status = status
            self._deadline = deadline
            if self._event is not None:
                with contextlib.suppress(OSError):
                    if status is LeaseStatus.ACTIVE:
                        os.eventfd_read(self._event.fileno())
                    else:
                        os.eventfd_write(self._event.fileno(), 1)
            return True


_ADVICE = {
    LeaseStatus.SUSPECT: "it could not be renewed for two thirds of its term. The memory may be going away; reads are "
    "refused until the server answers again (see the log of obmm.exchange.client)",
    LeaseStatus.REVOKED: "the owner takes the memory back. Close the imported region, which releases the lease",
    LeaseStatus.STALE: "the owner exported the region again. Close the imported region and fetch a fresh handle",
    LeaseStatus.LOST: "the server does not know it any more. Close the imported region and fetch a fresh handle",
    LeaseStatus.RELEASED: "fetch a new one",
}


def parse_manifest(raw: bytes) -> dict[str, Any]:
    """The manifest's JSON object; ValueError for anything else."""
    try:
        value = json.loads(raw.decode("utf-8"))
    except RecursionError:
        raise ValueError("the manifest is nested too deeply") from None
    if not isinstance(value, dict):
        raise ValueError("the manifest is not a JSON object")
    return value
