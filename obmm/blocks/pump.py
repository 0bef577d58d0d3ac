# SPDX-License-Identifier: Apache-2.0
"""The store's own thread: drives what was submitted, keeps the user known to the owner, attaches to a new one."""

from __future__ import annotations

import errno
import logging
import os
import select
import threading
import time
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Protocol

from obmm.blocks.reasons import Reason
from obmm.blocks.steps import Ask, Means, Move
from obmm.blocks.ticket import Job
from obmm.driver.descriptor import Descriptor
from obmm.rows.engine import GatherEngine
from obmm.undisturbed import joined, undisturbed

log = logging.getLogger("obmm.blocks.user")

ASK_S = 2.0
_COLLECT_S = 5.0


class Driven(Protocol):
    """What the thread needs of its store."""

    def submit_question(
        self, ask: Ask, means: Means, timeout: float, then: Callable[[bytes | BaseException], None]
    ) -> None: ...
    def finished(self, job: Job) -> None: ...
    def beat(self) -> float: ...


class Pump:
    """One thread, an eventfd for the gather engine and one for all other callers.

    It keeps no reference to its store between turns: a store without references ends.
    """

    def __init__(
        self, store: Callable[[], Driven | None], engine: GatherEngine, name: str, forgotten: Callable[[], object]
    ) -> None:
        """`forgotten` is called by the thread, which no signal interrupts, once the store is not held any more."""
        self._store, self._engine, self._forgotten = store, engine, forgotten
        self._mail: deque[Callable[[Driven], object]] = deque()
        self._bell, self._wake = Descriptor.eventfd(), Descriptor.eventfd()
        self._moving: list[Job] = []
        self._waiting: deque[Job] = deque()  # for a free ticket of the engine
        self._running = True
        self._begun = False
        self._idle = threading.Condition()
        self._jobs: set[Job] = set()
        self._over = False
        self._thread = threading.Thread(target=self._run, name=f"obmm-blocks-{name}", daemon=True)
        self._next_beat = time.monotonic()

    @property
    def bell(self) -> int:
        """What native threads ring at the end of a submitted batch."""
        return self._bell.fileno()

    @property
    def wake(self) -> Descriptor:
        """What wakes the thread up."""
        return self._wake

    def start(self) -> None:
        def begin() -> None:
            self._thread.start()
            self._begun = True

        undisturbed(begin)

    def add(self, job: Job) -> None:
        """Begin a job; from any thread, never blocks."""
        with self._idle:
            over = self._over
            if not over:
                self._jobs.add(job)
        if over:  # the store was closed meanwhile
            job.give_up()
        else:
            self.post(partial(self._begin, job))

    def post(self, call: Callable[[Driven], object]) -> None:
        """Have the thread make a call, unless it has ended."""
        with self._idle:  # between look and write the descriptor is neither closed nor reused
            if not self._over:
                self._mail.append(call)
                self._wake.ring()

    def hurry(self) -> None:
        """Beat now: something has changed."""
        with self._idle:
            self._next_beat = 0.0
            self._wake.ring()

    def drain(self, timeout: float | None) -> bool:
        """Wait until no job is on the way."""
        with self._idle:
            return self._idle.wait_for(lambda: not self._jobs, timeout)

    def abandon(self) -> None:
        """Blocks that have not started yet do not start any more."""
        self.post(self._abandon)

    def _abandon(self, store: Driven) -> None:
        for job in self._moving:
            if job.batch is not None:
                job.batch.abandon(self._engine)

    def stop(self, timeout: float) -> bool:
        """End the thread; False when it is still inside a call: it gives its descriptors back when it comes out."""
        with self._idle:
            self._running = False
            self._wake.ring()
        if not self._begun:
            self.forget()
            return True
        if self._thread is not threading.current_thread():
            return joined(self._thread, timeout)
        return False

    def forget(self) -> None:
        """Close the descriptors; in a forked child no other thread uses them."""
        self._bell.close()
        self._wake.close()

    # --- the thread --------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            self._turns()
        finally:
            self._let_go()

    def _turns(self) -> None:
        poll = select.poll()
        poll.register(self._bell, select.POLLIN)
        poll.register(self._wake, select.POLLIN)
        while self._running:
            pause = self._next_beat - time.monotonic()
            if not self._mail and pause > 0:
                poll.poll(min(pause, 60.0) * 1000 + 1)
            for fd in (self._bell, self._wake):
                try:
                    os.eventfd_read(fd.fileno())
                except BlockingIOError:
                    continue
            store = self._store()
            if store is None:
                if self._running:
                    self._forgotten()
                return
            try:
                self._turn(store)
            except Exception:
                log.exception("bug: the thread of a block store met an exception")
                self._next_beat = time.monotonic() + 1.0
            del store

    def _let_go(self) -> None:
        """The end: no ticket waits for ever; give the descriptors back now, even if this object lives on for a while."""
        moving = {job for job in self._moving if job.batch and not job.batch.collect(self._engine, _COLLECT_S)}
        with self._idle:
            self._over = True
            ended, self._jobs = self._jobs - moving, moving
            self._idle.notify_all()
            if not moving:  # else a native thread will ring
                self.forget()
        for job in ended:
            job.give_up()

    def _turn(self, store: Driven) -> None:
        while self._mail:
            self._mail.popleft()(store)
        for job in tuple(self._moving):
            assert job.batch is not None
            if job.batch.native.outcome.status != -errno.EINPROGRESS and job.batch.collect(self._engine, _COLLECT_S):
                self._moving.remove(job)
                job.batch = None
                self._advance(store, job, 0)
        while self._waiting:
            job = self._waiting.popleft()
            if not self._move(store, job):
                break
        if time.monotonic() >= self._next_beat:
            self._next_beat = time.monotonic() + store.beat()

    def _begin(self, job: Job, store: Driven) -> None:
        try:
            begun = job.make()
            if begun is not None:
                job.means, job.steps = begun
        except Exception:
            log.exception("bug: the steps of %r could not begin", job.ticket)
            job.fail(Reason.CLOSED)
        if job.steps is None:
            self._end(store, job)
        else:
            self._advance(store, job, None)

    def _advance(self, store: Driven, job: Job, value: object) -> None:
        """Send in what the job waited for, and do what it wants next."""
        assert job.steps is not None
        try:
            effect = job.steps.throw(value) if isinstance(value, BaseException) else job.steps.send(value)
        except StopIteration:
            self._end(store, job)
        except Exception as error:
            log.error("%r ended early: %s", job.ticket, error)
            job.fail(Reason.CLOSED)
            self._end(store, job)
        else:
            if isinstance(effect, Ask):
                self._ask(store, job, effect)
            else:
                assert isinstance(effect, Move)
                job.batch = effect.batch
                self._move(store, job)

    def _ask(self, store: Driven, job: Job, ask: Ask) -> None:
        def then(answer: bytes | BaseException) -> None:
            self.post(lambda store: self._advance(store, job, answer))

        assert job.means is not None
        store.submit_question(ask, job.means, min(ASK_S, job.time_left), then)

    def _move(self, store: Driven, job: Job) -> bool:
        """Submit the job's batch; False when the engine has no ticket left: later."""
        assert job.batch is not None
        refusal = job.batch.submit(self._engine)
        if refusal == -errno.EAGAIN and self._moving:
            self._waiting.appendleft(job)
            return False
        if refusal:
            job.batch = None
            self._advance(store, job, refusal)
        else:
            self._moving.append(job)
        return True

    def _end(self, store: Driven, job: Job) -> None:
        store.finished(job)
        with self._idle:
            self._jobs.discard(job)
            self._idle.notify_all()
