# SPDX-License-Identifier: Apache-2.0
"""`BlockStore`: blocks in another node's memory, for engines that keep KV pages in tiers."""

from __future__ import annotations

import contextlib
import itertools
import logging
import os
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from typing import Any

import numpy as np
import numpy.typing as npt

from obmm.arguments import patience, seconds, text, wrong_type
from obmm.blocks.buffers import Pieces
from obmm.blocks.errors import refused
from obmm.blocks.keeper import Keeper
from obmm.blocks.keys import Key, Namespace, check_keys
from obmm.blocks.pump import ASK_S, Pump
from obmm.blocks.reasons import Reason
from obmm.blocks.session import UnknownUserError
from obmm.blocks.stats import BlockStats
from obmm.blocks.steps import (
    Ask,
    Means,
    Steps,
    Work,
    delete_steps,
    get_steps,
    lookup_steps,
    pin_steps,
    put_steps,
    succeeded,
    unpin_steps,
)
from obmm.blocks.ticket import BlockTicket, Job
from obmm.closing import Closing, tell_of_forks
from obmm.driver.descriptor import Descriptor
from obmm.exchange import ExchangeError, Peer, TlsFiles, connect
from obmm.exchange.call_messages import REGION_NAME
from obmm.exchange.keys import KeySource
from obmm.region.device import Device
from obmm.region.opening import open as open_device
from obmm.rows.engine import GatherEngine, default_engine

log = logging.getLogger("obmm.blocks.user")

Flags = npt.NDArray[np.uint8]


class BlockStore(Closing):
    """A user of the store that `peer`'s owner serves under `name`.

    Keys are bytes or text of any length; together with `namespace` they say which block is meant.  Every call takes lists
    and gives one result for each key: 1 where the block is there (or was stored), 0 for a miss.  **A miss is never an
    exception**, whatever its reason: `ticket.reasons` and `stats` have them.  Exceptions are for arguments that cannot
    be right (`ObmmArgumentError`) and for a closed store.

    Memory is given as a list of buffers, or as flat arrays of addresses and sizes (`Pieces.of_addresses`), several pieces
    for a block if need be.  One native call moves a batch, by the calling thread and the threads of `engine`.

    `timeout` of a call is in seconds: blocks that are not begun by then are misses.  A copy that has begun is finished, so
    that the memory is not in use any more when the call returns.

    The constructor attaches, or raises: ExchangeError, BlockStoreError, ObmmError.  An owner that goes away later makes
    everything a miss until it, or a new one, answers.

    Any number of threads.  Not across a fork: a child opens its own.

    Source: docs/blocks.md.

    `device`: where the memory is imported.  `tenant`: whose slots are used up, where the owner has limits.  `keys`: as above,
    in every call.  `obmm.blocks` has an example of each.
    """

    def __init__(
        self,
        peer: Peer,
        device: Device,
        namespace: Namespace,
        *,
        name: str = "kv",
        tenant: str = "default",
        engine: GatherEngine | None = None,
    ) -> None:
        if not isinstance(namespace, Namespace):
            raise refused(f"namespace={namespace!r}", "a Namespace(model=..., ...)")
        for what, thing, kind in (("peer", peer, Peer), ("device", device, Device)):
            if not isinstance(thing, kind):
                raise wrong_type("BLOCKS", what, thing, f"a {kind.__name__}")
        if engine is not None and not isinstance(engine, GatherEngine):
            raise wrong_type("BLOCKS", "engine", engine, "a GatherEngine")
        if not isinstance(name, str) or not REGION_NAME.fullmatch(name):
            raise refused(f"name={name!r}", "the name that `obmm blocks serve` says")
        if len(text("BLOCKS", "tenant", tenant).encode()) > 64:
            raise refused(f"tenant={tenant!r}", "at most 64 bytes of text")
        self.namespace, self.name = namespace, name
        self._engine = engine or default_engine()
        self._stats = BlockStats()
        self._ids = itertools.count(1)
        self._done: deque[BlockTicket] = deque()
        self._event = Descriptor.eventfd()
        self._owned: ExitStack | None = None
        self._pump: Pump | None = None
        self._keeper: Keeper | None = None
        try:
            self._keeper = Keeper(peer, device, name, tenant, namespace, self._stats)
            self._keeper.attach()
            self._pump = Pump(weakref.ref(self), self._engine, name, self._keeper.let_go)
            self._keeper.on_change = self._pump.hurry
            self._open = True
            self._warn_if_forgotten(f"{self!r}", self._pump.wake.ring)
            tell_of_forks(self)
            self._pump.start()
        except BaseException:
            self._open = False
            self._undo()
            raise

    @classmethod
    def open(
        cls,
        source: str,
        namespace: Namespace,
        *,
        key: KeySource | None = None,
        tls: TlsFiles | None = None,
        plain: bool = False,
        device: str | None = None,
        tenant: str = "default",
        engine: GatherEngine | None = None,
        timeout: float = 10.0,
    ) -> BlockStore:
        """The store at ``host:port/name``, with a peer and a device of its own, closed with it.

        `key`, `tls` and `plain` as for `obmm.connect`, `device` as for `obmm.open`.

        `source`: that text.  Errors as for the constructor.
        """
        server, slash, name = source.partition("/") if isinstance(source, str) else ("", "", "")
        if not slash or not server or not name:
            raise refused(f"source={source!r}", "host:port/name, as `obmm blocks serve` says it")
        if plain is not True and plain is not False:
            raise wrong_type("BLOCKS", "plain", plain, "True or False")
        timeout = patience("BLOCKS", "timeout", timeout)
        with ExitStack() as undo:
            opened = undo.enter_context(open_device(device))
            peer = connect(server, key=key, tls=tls, plain=plain, timeout=timeout)
            undo.callback(peer.close, timeout=2.0, force=True)
            store = cls(peer, opened, namespace, name=name, tenant=tenant, engine=engine)
            store._owned = undo.pop_all()
        return store

    # --- whole batches, now --------------------------------------------------------------------------------------------

    def exists(self, keys: Iterable[Key], *, timeout: float | None = None) -> Flags:
        """1 for each key whose block is in the store.  What is known here costs no message."""
        listed = keys if type(keys) is list else check_keys(keys)
        keeper = self._living()
        if keeper.ready and keeper.index.has_all(listed):
            self._stats.looked_up(len(listed), 0, 0.0)
            return np.ones(len(listed), np.uint8)
        return self._now("lookup", check_keys(listed), None, lookup_steps, timeout)

    def known(self, keys: Iterable[Key]) -> Flags:
        """`exists` from what is known here, without a request: 1 for what this user has stored or looked up and not seen evicted."""
        keeper, listed = self._living(), check_keys(keys)
        return np.array(keeper.index.known(listed) if keeper.ready else [False] * len(listed), np.uint8)

    def leading(self, keys: Iterable[Key], *, timeout: float | None = None) -> int:
        """How many keys from the first on are in the store without a gap."""
        missing = np.flatnonzero(self.exists(listed := check_keys(keys), timeout=timeout) == 0)
        return int(missing[0]) if len(missing) else len(listed)

    def get(self, keys: Iterable[Key], memory: Pieces | Sequence[Any], *, timeout: float | None = None) -> Flags:
        """Load blocks into memory: 1 for each that is there now, right to the last byte.  Memory of a miss is unspecified."""
        listed = check_keys(keys)
        return self._now("get", listed, _pieces(listed, memory, writable=True), get_steps, timeout)

    def put(self, keys: Iterable[Key], memory: Pieces | Sequence[Any], *, timeout: float | None = None) -> Flags:
        """Store blocks: 1 for each that is in the store now.  A key that is stored already is not copied again."""
        listed = check_keys(keys)
        return self._now("put", listed, _pieces(listed, memory, writable=False), put_steps, timeout)

    def pin(self, keys: Iterable[Key], *, timeout: float | None = None) -> Flags:
        """Keep blocks from eviction: 1 for each that is pinned now.  Pins end with `unpin`, `close`, or this process."""
        listed = check_keys(keys)
        keeper = self._living()
        with keeper.pinning:
            pinned = self._now("pin", listed, None, pin_steps, timeout)
            keeper.pinned(key for key, is_pinned in zip(listed, pinned, strict=True) if is_pinned)
        return pinned

    def unpin(self, keys: Iterable[Key], *, timeout: float | None = None) -> Flags:
        """Let blocks go again: 1 for each, 0 where the owner could not be told.  A block stays until every pin of it is off."""
        listed = check_keys(keys)
        keeper = self._living()
        with keeper.pinning:
            free = keeper.unpinned(listed)
            told = dict(zip(free, self._now("unpin", free, None, unpin_steps, timeout).tolist(), strict=True))
        return np.array([told.get(key, 1) for key in listed], np.uint8)

    def delete(self, keys: Iterable[Key], *, timeout: float | None = None) -> Flags:
        """Forget blocks: 1 for each that is gone now.  A pinned one stays."""
        return self._now("delete", check_keys(keys), None, delete_steps, timeout)

    def touch(self, keys: Iterable[Key]) -> None:
        """They were used: the owner learns it with the next beat.  `get` and `exists` say so by themselves."""
        self._living().touch(check_keys(keys))

    # --- in the background ---------------------------------------------------------------------------------------------

    def submit_get(
        self, keys: Iterable[Key], memory: Pieces | Sequence[Any], *, timeout: float | None = None
    ) -> BlockTicket:
        """`get` in the background; never blocks.  The memory is in use until the ticket is done."""
        listed = check_keys(keys)
        return self._submit("get", listed, _pieces(listed, memory, writable=True), get_steps, timeout)

    def submit_put(
        self, keys: Iterable[Key], memory: Pieces | Sequence[Any], *, timeout: float | None = None
    ) -> BlockTicket:
        """`put` in the background; never blocks."""
        listed = check_keys(keys)
        return self._submit("put", listed, _pieces(listed, memory, writable=False), put_steps, timeout)

    def submit_exists(self, keys: Iterable[Key], *, timeout: float | None = None) -> BlockTicket:
        """`exists` in the background; never blocks."""
        return self._submit("lookup", check_keys(keys), None, lookup_steps, timeout)

    def submit_delete(self, keys: Iterable[Key], *, timeout: float | None = None) -> BlockTicket:
        """`delete` in the background; never blocks."""
        return self._submit("delete", check_keys(keys), None, delete_steps, timeout)

    def completed(self) -> list[BlockTicket]:
        """The tickets that have ended since the last call, each once; empties `fileno`."""
        with contextlib.suppress(OSError, ValueError):  # nothing to read, or closed
            os.eventfd_read(self.fileno())
        return [self._done.popleft() for _ in range(len(self._done))]

    def fileno(self) -> int:
        """A descriptor that is readable while `completed` has something; only wait on it."""
        return self._event.fileno()

    def drain(self, timeout: float | None = None) -> bool:
        """Wait until nothing that was submitted runs; False after `timeout` seconds."""
        pump = self._pump
        return pump is None or pump.drain(None if timeout is None else patience("BLOCKS", "timeout", timeout))

    # --- the store -------------------------------------------------------------------------------------------------------

    @property
    def attached(self) -> bool:
        """Whether an owner's memory is here and its directory answers; else everything is a miss."""
        return self._keeper is not None and self._keeper.ready

    @property
    def block_bytes(self) -> int:
        """Most bytes of a block; 0 while nothing is attached."""
        attachment = self._living().attachment
        return attachment.layout.capacity if attachment is not None else 0

    @property
    def incarnation(self) -> str:
        """Which life of the owner the blocks are from, as hexadecimal digits; "" while nothing is attached."""
        attachment = self._living().attachment
        return f"{attachment.incarnation:016x}" if attachment is not None else ""

    @property
    def backend(self) -> str:
        """The device that the memory is imported on."""
        return str(self._living().device.backend)

    def stats(self) -> dict[str, Any]:
        """Hits, misses by reason, bytes, batches, seconds, ... since the store was opened; ready for JSON."""
        keeper = self._living()
        return self._stats.snapshot() | {"known": len(keeper.index), "ready": keeper.ready}

    def close(self, timeout: float = 10.0) -> None:
        """End what runs, tell the owner, unmap.  Can be called again until it succeeds.

        MappingBusyError when a copy does not come back from the owner's memory in `timeout` seconds.
        """
        timeout = patience("BLOCKS", "timeout", timeout)
        if not self._open:
            return
        if self._pump is not None:
            self._pump.abandon()
            self._pump.drain(timeout)
        self._undo(timeout)
        if self._owned is not None:
            self._owned.close()
        self._open = False
        self._need_not_warn()

    def _undo(self, timeout: float = 1.0) -> None:
        if self._keeper is not None:
            self._keeper.close(timeout)
        if self._pump is None or self._pump.stop(timeout):
            self._pump = None
            self._event.close()  # else its thread, which is inside a call, may still ring it

    def _die(self) -> None:
        super()._die()
        if self._pump is not None:
            self._pump.forget()
        self._event.close()

    def __repr__(self) -> str:
        state = "closed" if self.closed else "attached" if self.attached else "no owner"
        return f"<BlockStore {self.name!r} {state}, {self.namespace!r}>"

    # --- for the thread ------------------------------------------------------------------------------------------------

    def submit_question(
        self, ask: Ask, means: Means, timeout: float, then: Callable[[bytes | BaseException], None]
    ) -> None:
        """Between rooms: ask without waiting."""
        self._living().submit(ask, means.attachment, timeout, then)

    def finished(self, job: Job) -> None:
        """Between rooms: a job has ended: tell who waits."""
        if job.pieces is not None:
            job.pieces.release()
        ticket = job.ticket
        took = time.monotonic() - job.started
        self._count(ticket.kind, ticket.work, took)
        ticket.end(took)
        self._done.append(ticket)
        self._event.ring()

    def beat(self) -> float:
        """Between rooms: keep what is attached; seconds until the next time."""
        return self._living().beat()

    # --- inside ----------------------------------------------------------------------------------------------------------

    def _living(self) -> Keeper:
        self._check_open()
        assert self._keeper is not None
        return self._keeper

    def _now(
        self,
        kind: str,
        keys: list[Key],
        pieces: Pieces | None,
        steps: Callable[..., Steps],
        timeout: float | None,
    ) -> Flags:
        keeper = self._living()
        started = time.monotonic()
        work = _work(keys, timeout, started)
        means = keeper.means(-1) if keys else None
        try:
            if means is None:
                work.reasons[:] = Reason.NO_OWNER
            else:
                with contextlib.closing(
                    steps(means, work, pieces) if pieces is not None else steps(means, work)
                ) as each:
                    self._drive(keeper, means, work, each)
        finally:
            if pieces is not None:
                pieces.release()
        if kind == "get" and means is not None:
            keeper.used(keys, work)
        self._count(kind, work, time.monotonic() - started)
        return succeeded(work.reasons)

    def _drive(self, keeper: Keeper, means: Means, work: Work, steps: Steps) -> None:
        """Do on this thread what the steps want."""
        value: Any = None
        failure: BaseException | None = None
        while True:
            try:
                effect = steps.send(value) if failure is None else steps.throw(failure)
            except StopIteration:
                return
            value, failure = None, None
            if isinstance(effect, Ask):
                left = ASK_S if work.deadline is None else min(ASK_S, max(0.001, work.deadline - time.monotonic()))
                try:
                    value = keeper.ask(effect, means, left)
                except (ExchangeError, UnknownUserError) as error:
                    failure = error
            else:
                value = effect.batch.run(self._engine)

    def _submit(
        self,
        kind: str,
        keys: list[Key],
        pieces: Pieces | None,
        steps: Callable[..., Steps],
        timeout: float | None,
    ) -> BlockTicket:
        keeper = self._living()
        work = _work(keys, timeout, time.monotonic())
        ticket = BlockTicket(next(self._ids), kind, work)

        pump = self._pump
        assert pump is not None
        bell = pump.bell

        def make() -> tuple[Means, Steps] | None:
            means = keeper.means(bell) if keys else None
            if means is None:
                work.reasons[:] = Reason.NO_OWNER
                return None
            return means, steps(means, work, pieces) if pieces is not None else steps(means, work)

        pump.add(Job(ticket, pieces, make))
        return ticket

    def _count(self, kind: str, work: Work, took: float) -> None:
        if kind == "get":
            self._stats.got(work.reasons, work.moved, took)
        elif kind == "put":
            self._stats.put(work.reasons, work.moved, took)
        elif kind == "lookup":
            self._stats.looked_up(len(work.keys), work.asked, took)
        if work.corrupt and self._keeper is not None:
            self._keeper.report(work.corrupt)


def _work(keys: list[Key], timeout: float | None, now: float) -> Work:
    deadline = None if timeout is None else now + max(0.0, min(seconds("BLOCKS", "timeout", timeout), 1e6))
    return Work(keys, np.full(len(keys), Reason.PENDING, np.int8), deadline)


def _pieces(keys: list[Key], memory: Pieces | Sequence[Any], *, writable: bool) -> Pieces:
    if not isinstance(memory, Pieces):
        return Pieces.of_buffers(len(keys), memory, writable=writable)
    memory = memory.borrowed()
    if memory.count != len(keys):
        raise refused(f"memory for {memory.count} blocks, {len(keys)} keys", "the same number of both")
    return memory
