# SPDX-License-Identifier: Apache-2.0
"""Keeps a user attached: leases, beats, news of evictions, a new owner after the old one."""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable
from functools import partial

import numpy as np

from obmm.blocks.attachment import Attachment, attach
from obmm.blocks.errors import BlockStoreError
from obmm.blocks.index import PlaceIndex
from obmm.blocks.keys import HASH_BYTES, Key, Namespace
from obmm.blocks.reasons import Reason
from obmm.blocks.session import DirectorySession, UnknownUserError
from obmm.blocks.stash import Stash
from obmm.blocks.stats import BlockStats
from obmm.blocks.steps import Ask, Means, Work
from obmm.blocks.wire import GRANT, HEAD, MOST_ITEMS, NEWS, PLACE, Op, batches, split
from obmm.errors import MappingBusyError, ObmmError
from obmm.exchange import ExchangeError, LeaseEvent, LeaseStatus, Peer
from obmm.region.device import Device

log = logging.getLogger("obmm.blocks.user")

MOST_STASHED = 256
RETRY_S = (0.1, 2.0)
BEATS_IN_A_TERM = 4
ATTACH_S = 5.0
_OVER = (LeaseStatus.REVOKED, LeaseStatus.STALE, LeaseStatus.LOST, LeaseStatus.RELEASED)


class Keeper:
    """What a store knows of its owner.  `beat` is called by one thread, the rest by any."""

    def __init__(
        self, peer: Peer, device: Device, name: str, tenant: str, namespace: Namespace, stats: BlockStats
    ) -> None:
        self.index = PlaceIndex()
        self.attachment: Attachment | None = None
        self.on_change: Callable[[], object] = lambda: None
        self._peer, self.device, self._name, self._namespace, self._stats = peer, device, name, namespace, stats
        self._session = DirectorySession(peer, name, tenant, namespace.fingerprint)
        self._stash = Stash(MOST_STASHED)
        self._old: list[Attachment] = []
        self.pinning = threading.Lock()
        """Held by who pins or unpins: what is counted here and what the directory knows change together."""
        self._pins: Counter[bytes] = Counter()  # by hash: a key has two names
        self._used: dict[bytes, None] = {}
        self._mutex = threading.Lock()  # for pins and what was used
        self._answered = 0.0
        self._pause = RETRY_S[0]
        self._closed = False

    @property
    def ready(self) -> bool:
        """The memory is here, its lease holds, and the directory answered within its term."""
        attachment = self.attachment
        return (
            attachment is not None
            and attachment.usable
            and not self._closed
            and time.monotonic() - self._answered < self._session.term
        )

    def means(self, bell: int) -> Means | None:
        """What steps work with, or None while there is nothing."""
        attachment, stash = self.attachment, self._stash
        if attachment is None or not self.ready:
            return None
        return Means(attachment, self._namespace, self.index, stash, bell)

    # --- questions -------------------------------------------------------------------------------------------------------

    def ask(self, ask: Ask, means: Means, timeout: float) -> bytes:
        """The answer of the directory that the memory of `means` belongs to."""
        self._refuse_other(means.attachment)
        self._stats.asked(ask.op.name.lower())
        try:
            answer = self._session.ask(ask.op, ask.items, ask.argument, timeout=timeout)
        except UnknownUserError:
            self._lapsed()
            raise
        self._refuse_other(means.attachment)
        return answer

    def submit(
        self, ask: Ask, attachment: Attachment, timeout: float, then: Callable[[bytes | BaseException], None]
    ) -> None:
        """The same without waiting."""
        self._stats.asked(ask.op.name.lower())

        def checked(answer: bytes | BaseException) -> None:
            if isinstance(answer, UnknownUserError):
                self._lapsed()
            elif self._session.incarnation != attachment.incarnation:
                answer = UnknownUserError()
            then(answer)

        try:
            self._refuse_other(attachment)
            self._session.submit(ask.op, ask.items, ask.argument, timeout, checked)
        except (UnknownUserError, ObmmError) as error:
            then(error if isinstance(error, ExchangeError | UnknownUserError) else UnknownUserError())

    def report(self, places: list[bytes]) -> None:
        """Blocks whose bytes are not what their headers promise: the owner drops them."""
        attachment = self.attachment
        if attachment is not None:
            self.submit(Ask(Op.BAD, places[:MOST_ITEMS]), attachment, 2.0, lambda answer: None)

    def _refuse_other(self, attachment: Attachment) -> None:
        if self._session.incarnation != attachment.incarnation:
            raise UnknownUserError

    def _lapsed(self) -> None:
        """The directory has forgotten us."""
        self._answered = 0.0
        self._stash.clear()
        self.on_change()

    # --- use and pins ------------------------------------------------------------------------------------------------------

    def used(self, keys: list[Key], work: Work) -> None:
        """Blocks that were loaded without a question: the owner's order of eviction should know."""
        if work.asked < len(keys) and len(self._used) < MOST_ITEMS:
            self.touch(keys[i] for i in np.flatnonzero(work.reasons == Reason.OK)[:MOST_ITEMS])

    def touch(self, keys: Iterable[Key]) -> None:
        places = self.index.places(keys)
        with self._mutex:
            for place in places:
                if place is not None and len(self._used) < MOST_ITEMS:
                    self._used[place[:HASH_BYTES]] = None

    def pinned(self, keys: Iterable[Key]) -> None:
        with self._mutex:
            self._pins.update(map(self._namespace.hash, keys))

    def unpinned(self, keys: Iterable[Key]) -> list[Key]:
        """Those without a pin of this process."""
        free = []
        with self._mutex:
            for key in keys:
                hashed = self._namespace.hash(key)
                self._pins[hashed] -= 1
                if self._pins[hashed] <= 0:
                    del self._pins[hashed]
                    free.append(key)
        return free

    # --- attached or not -----------------------------------------------------------------------------------------------

    def attach(self) -> None:
        """Become known to the directory and import its memory, or raise."""
        self._session.open(ATTACH_S)
        self._attach()

    def beat(self) -> float:
        """Renew, or attach again; seconds until the next beat."""
        if self._closed:
            return 1.0
        self._close_old()
        attachment = self.attachment
        if attachment is not None and attachment.lease.status in _OVER:
            log.warning("the memory of %r is %s: all blocks are misses", self._name, attachment.lease.status.value)
            self._detach()
        if self.attachment is None or time.monotonic() - self._answered >= self._session.term:
            return self._again()
        with self._mutex:
            used, self._used = list(self._used), {}
        self._session.submit(Op.RENEW, used, 0, self._session.term, self._renewed)
        self._settle()
        for some in batches(self._stash.beat()):
            self._session.submit(Op.GIVE_BACK, some, 0, self._session.term, lambda answer: None)
        return max(0.01, self._session.term / BEATS_IN_A_TERM)

    def close(self, timeout: float) -> None:
        """Tell the owner, then let go of the memory; MappingBusyError while a copy runs."""
        self._closed = True
        if self.attachment is not None:
            try:
                self._session.ask(Op.CLOSE, timeout=min(timeout, 1.0))
            except (ExchangeError, UnknownUserError, ObmmError) as error:
                log.info("the owner of %r could not be told: %s", self._name, error)
            self._detach()
        deadline = time.monotonic() + timeout
        while self._old:
            self._close_old()
            if self._old and time.monotonic() > deadline:
                self._old[0].close()
            elif self._old:
                time.sleep(0.005)  # a copy is inside: it ends with its block

    def let_go(self) -> None:
        """The last reference to the store is gone."""
        self._closed = True
        self._detach()
        for attachment in self._old:
            attachment.close(force=True)

    def _renewed(self, answer: bytes | BaseException) -> None:
        """In the peer's thread."""
        if isinstance(answer, UnknownUserError):
            self._lapsed()
        if isinstance(answer, BaseException) or len(answer) < NEWS.size:
            return
        self._answered = time.monotonic()
        sequence, lost, count = NEWS.unpack_from(answer)
        if lost:
            self._stats.noticed(len(self.index))
            self.index.clear()
        else:
            news = split(answer[NEWS.size :], HASH_BYTES)[:count]
            self._stats.noticed(self.index.drop_hashes(news))
        self._session.sequence = sequence

    def _settle(self) -> None:
        """Ask once more what was not answered in time, and undo it: what the owner keeps for it is not waited for."""
        unsettled = self._session.unsettled
        for _ in range(len(unsettled)):
            op, body = unsettled.popleft()
            self._session.submit_again(op, body, self._session.term, partial(self._settled, op, body))

    def _settled(self, op: Op, body: bytes, answer: bytes | BaseException) -> None:
        """In the peer's thread."""
        if isinstance(answer, BaseException):
            return  # unsettled still, or unknown: then nothing is kept for us
        items = body[HEAD.size :]
        term, nothing = self._session.term, lambda answer: None
        if op in (Op.RESERVE, Op.COMMIT):
            at = len(items) // PLACE.size * (1 + PLACE.size) if op is Op.COMMIT else 0
            for some in batches(split(answer[at:], GRANT.size)):
                self._session.submit(Op.GIVE_BACK, some, 0, term, nothing)
        elif op is Op.PIN:
            with self._mutex:
                ours = set(self._pins)
            for some in batches([each for each in split(items, HASH_BYTES) if each not in ours]):
                self._session.submit(Op.UNPIN, some, 0, term, nothing)

    def _again(self) -> float:
        """Try to become known again; the memory of the same incarnation is kept."""
        try:
            self._session.open(ATTACH_S / 2)
            self._stash.clear()
            if self.attachment is not None and self.attachment.incarnation != self._session.incarnation:
                log.warning("%r has a new owner: what was stored is gone", self._name)
                self._detach()
            if self.attachment is None:
                self._attach()
            else:
                self.index.clear()  # news were missed
                self._answered = time.monotonic()
                self._pin_again()
        except (ExchangeError, BlockStoreError, ObmmError) as error:
            log.info("%r: no owner: %s", self._name, error.strerror)
            self._pause = min(2 * self._pause, RETRY_S[1])
            return self._pause
        self._pause = RETRY_S[0]
        return self._session.term / BEATS_IN_A_TERM

    def _attach(self) -> None:
        session = self._session
        attachment = attach(
            self.device, self._peer, self._name, self._namespace.fingerprint, session.incarnation, ATTACH_S
        )
        self.attachment = attachment
        if self._closed:  # meanwhile, by a thread that found nothing to close yet
            self._detach()
            return
        self._stash = Stash(min(MOST_STASHED, attachment.layout.slots // 16))
        self._answered = time.monotonic()
        self._stats.attached()
        attachment.lease.on_change(self._lease_changed)
        self._pin_again()
        log.info("%r: %d slots of %d bytes attached", self._name, attachment.layout.slots, attachment.layout.capacity)

    def _pin_again(self) -> None:
        with self._mutex:
            hashes = list(self._pins)
        for some in batches(hashes):
            self._session.submit(Op.PIN, some, 0, self._session.term, lambda answer: None)

    def _lease_changed(self, event: LeaseEvent) -> None:
        self.on_change()

    def _detach(self) -> None:
        attachment = self.attachment
        if attachment is not None and attachment not in self._old:
            self._old.append(attachment)  # first: an interrupt must find it somewhere
        self.attachment = None
        self.index.clear()
        self._stash.clear()
        self._close_old()

    def _close_old(self) -> None:
        """Those with a copy inside stay until the next time."""
        for attachment in tuple(self._old):
            try:
                attachment.close()
            except MappingBusyError:
                continue
            except ObmmError as error:
                log.warning("%r: %s", self._name, error.strerror)
            with contextlib.suppress(ValueError):  # the store's thread and one that closes it may both be here
                self._old.remove(attachment)
