# SPDX-License-Identifier: Apache-2.0
"""A published table that stays attached: leases are renewed, lost ones fetched anew, new publications taken up."""

from __future__ import annotations

import errno
import logging
import os
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, Self

import obmm
from obmm.closing import Closing, tell_of_forks
from obmm.errors import ClosedError, MappingBusyError, ObmmArgumentError, ObmmError, StaleHandleError
from obmm.exchange import LeaseError, LeaseEvent, LeaseStatus, TlsFiles
from obmm.rows import Manifest, RowStore
from obmm.undisturbed import joined

log = logging.getLogger("obmm.integrations.link")

Check = Callable[[Manifest], None]
"""Raises ObmmError for a table that the reader cannot use."""

_BACKOFF = 0.02, 2.0  # seconds between tries to attach again: the first, the longest
_LOOK = 1.0  # seconds between looks at the content version in memory itself
_GONE = (LeaseStatus.REVOKED, LeaseStatus.STALE, LeaseStatus.LOST)


@dataclass(frozen=True, slots=True)
class TableAddress:
    """Where a table is published, ``server`` as for `obmm.connect`, and how the exchange is protected.

    `device`: the local device (default: as for `obmm.open`).
    """

    server: str
    name: str
    key: str | os.PathLike[str] | None = None
    tls: TlsFiles | None = None
    plain: bool = False
    device: str | None = None

    @classmethod
    def parse(cls, text: str, **options: Any) -> Self:
        """``host:port/name`` and the fields behind `name`; ObmmArgumentError for another text."""
        server, slash, name = text.rpartition("/")
        if not slash or not server or not name:
            raise ObmmArgumentError.because(
                "CONNECT",
                errno.EINVAL,
                f"{text!r} is not a published table",
                "host:port/name, as `obmm engram publish` says it",
            )
        return cls(server, name, **options)

    def __str__(self) -> str:
        return f"{self.server}/{self.name}"


class TableLink(Closing):
    """A `RowStore` over an imported table, and a thread that makes a new one when that is taken away.

    `check`: looks at each manifest before a table is used.  The first attachment is made here and may raise; later on
    nothing does: `store` says why there is none.  A link belongs to the process that made it.

        with TableLink(TableAddress.parse("10.0.0.7:13857/flash", key="cluster.key")) as link:
            link.store.gather("layer1", [0, 1])
    """

    def __init__(self, address: TableAddress, check: Check | None = None, *, plan: bool = False) -> None:
        self.address = address
        self._check = check or (lambda manifest: None)
        self._plan = plan
        self._changed = threading.Condition()
        self._store: RowStore | None = None
        self._region: obmm.ImportedRegion | None = None
        self._leaving: list[tuple[RowStore, obmm.ImportedRegion]] = []
        self._version = 0
        self._since = 0.0
        self._why: ObmmError | None = None
        self._renewing = self._closing = False
        with ExitStack() as undo:
            self._device = undo.enter_context(obmm.open(address.device))
            self._peer = undo.enter_context(
                obmm.connect(address.server, key=address.key, tls=address.tls, plain=address.plain)
            )
            with ExitStack() as attached:
                attached.callback(self._detach)
                self._attach()
                tell_of_forks(self)
                self._keeper = threading.Thread(target=self._keep, name=f"obmm-table-{address.name}", daemon=True)
                self._keeper.start()
                attached.pop_all()
            self._cleanup = undo.pop_all()
        self._open = True

    @property
    def version(self) -> int:
        """Counts attachments: another number, another store."""
        return self._version

    @property
    def store(self) -> RowStore:
        """The store of now; ObmmError that says why there is none."""
        found, why = self._store, self._why
        if found is None:
            raise why or ClosedError.of(f"the table {self.address}")
        if self._forked:
            raise ClosedError.of(
                f"the table {self.address}", "was attached by the parent process; attach it in the process that reads"
            )
        return found

    @property
    def away(self) -> float:
        """Seconds since the table was taken away; 0 while it is here."""
        return 0.0 if self._store is not None else time.monotonic() - self._since

    def report(self, store: RowStore, error: ObmmError) -> None:
        """A reader of `store` saw this error; if that means another publication, the keeper gets it."""
        if isinstance(error, StaleHandleError) or (isinstance(error, LeaseError) and self._lease_is_gone()):
            self._renew(store, error)

    def wait_for(self, version: int, timeout: float) -> bool:
        """Whether an attachment after `version` is there within `timeout` seconds."""
        with self._changed:
            return self._changed.wait_for(
                lambda: self._closing or (self._version > version and self._store is not None), timeout
            )

    def close(self, timeout: float = 5.0) -> None:
        """Let go of the table and disconnect.  Idempotent; MappingBusyError while gathers still run after `timeout`."""
        if not self._open:
            return
        self._end()
        if self._keeper.ident is not None:
            joined(self._keeper, timeout)
        self._take_away(ClosedError.of(f"the table {self.address}"))
        deadline = time.monotonic() + timeout
        while not self._let_go() and time.monotonic() < deadline:
            time.sleep(0.005)
        if self._leaving:
            raise MappingBusyError(
                errno.EBUSY, f"gathers of {self.address} still run; fix: close() again", operation="GATHER"
            )
        self._cleanup.close()
        self._open = False

    def __repr__(self) -> str:
        state = f"attachment {self._version}" if self._store is not None else f"away: {self._why}"
        return f"<TableLink {self.address}, {state}>"

    # --- inside ---------------------------------------------------------------------------------------------------

    def _end(self) -> None:
        """The keeper ends with its next look."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()

    def _detach(self) -> None:
        """The constructor has failed: nothing reads yet."""
        self._end()
        self._take_away(ClosedError.of(f"the table {self.address}"))
        self._let_go()

    def _attach(self) -> None:
        with ExitStack() as undo:
            region = undo.enter_context(self._peer.import_region(self.address.name, self._device))
            lease = region.lease
            assert isinstance(lease, obmm.Lease)
            manifest = Manifest.from_dict(lease.manifest)
            self._check(manifest)
            store = undo.enter_context(RowStore.attach([region], manifest, plan=self._plan))
            lease.on_change(lambda event: self._lease_changed(store, event))
            with self._changed:
                self._store, self._region, self._why = store, region, None
                undo.pop_all()
                self._version += 1
                self._renewing = False
                self._changed.notify_all()
        if lease.status in _GONE:  # before a listener was there
            self._lease_changed(store, LeaseEvent(lease, lease.status))

    def _lease_is_gone(self) -> bool:
        region = self._region
        lease = None if region is None else region.lease
        return isinstance(lease, obmm.Lease) and lease.status in _GONE

    def _lease_changed(self, store: RowStore, event: LeaseEvent) -> None:
        if event.status in _GONE:
            self._renew(store, LeaseError(f"the lease on {self.address} is {event.status.value}; it is fetched anew"))

    def _renew(self, store: RowStore, error: ObmmError) -> None:
        with self._changed:
            if store is self._store and not self._closing:
                self._take_away(error)
                self._renewing = True
                self._changed.notify_all()
                log.warning("%s: taken away: %s", self.address, error.strerror)

    def _take_away(self, why: ObmmError) -> None:
        with self._changed:
            if self._store is not None and self._region is not None:
                self._leaving.append((self._store, self._region))
                self._since = time.monotonic()
            self._store = self._region = None
            self._why = why

    def _let_go(self) -> bool:
        """Close what was taken away; False while gathers run in it."""
        for each in tuple(self._leaving):
            store, region = each
            try:
                store.close()
                region.close()
            except MappingBusyError:
                continue
            except ObmmError as error:
                log.warning("%s: %s", self.address, error.strerror)
            self._leaving.remove(each)
        return not self._leaving

    def _look(self) -> None:
        """An owner that publishes without having withdrawn is noticed, also behind this host's caches."""
        store = self._store
        if store is None:
            return
        try:
            store.check_generation()
        except StaleHandleError as error:
            self._renew(store, error)
        except ObmmError as error:  # the gathers' own health checks say what to do about it
            log.debug("%s: %s", self.address, error.strerror)

    def _keep(self) -> None:
        pause, longest = _BACKOFF
        while True:
            with self._changed:
                due = self._changed.wait_for(lambda: self._closing or self._renewing or bool(self._leaving), _LOOK)
                if self._closing:
                    return
            if not due:
                self._look()
                continue
            # Before anything else: an owner waits for this, and cannot publish anew until it was done.
            if not self._let_go():
                time.sleep(0.005)
            if not self._renewing:
                continue
            try:
                self._attach()
            except Exception as error:
                known = (
                    error if isinstance(error, ObmmError) else ObmmError(errno.EIO, f"{type(error).__name__}: {error}")
                )
                with self._changed:
                    if self._closing:
                        return
                    self._why = known
                    self._changed.wait_for(lambda: self._closing, pause)
                pause = min(2 * pause, longest)
            else:
                log.warning("%s: attached again, publication %d", self.address, self.store.manifest.generation)
                pause = _BACKOFF[0]
