# SPDX-License-Identifier: Apache-2.0
"""One reader per node gathers, every rank copies: the reader's side (Engram specification 7.4)."""

from __future__ import annotations

import errno
import fcntl
import mmap
import os
import weakref
from collections.abc import Sequence
from types import TracebackType
from typing import Any, Self

import numpy as np

from obmm.errors import ClosedError, MappingBusyError
from obmm.prefetch.flight import PrefetchLayer
from obmm.prefetch.plan import refused
from obmm.prefetch.rows import Rows, RowsStatus
from obmm.prefetch.source import RowSource
from obmm.prefetch.staging_layout import (
    CLOSED,
    NOWHERE,
    READY,
    RETIRED,
    SLOT_ALIGNMENT,
    STATUSES,
    Fields,
    StagingLayout,
    StagingWords,
    check_step,
    pack_fields,
    staged,
)

_NUMBER = {status: place for place, status in enumerate(STATUSES)}
_ALL_ZERO = (RowsStatus.FAILED, RowsStatus.EMPTY)


class SharedStaging:
    """Staging memory of an `EngramPrefetcher` that other processes of the node read, with a ready flag per layer and step.

    The reader, on the thread of its prefetcher::

        staging = SharedStaging(store, layers, max_tokens)
        prefetcher = EngramPrefetcher(store, layers, max_tokens, staging=staging.allocate)
        ...  # hand staging.fileno() to the other ranks: StagingFollower(fd)
        prefetcher.begin(ids, n_tokens, step=step); prefetcher.start()
        staging.publish(layer, step, prefetcher.consume(layer))  # for each layer
        staging.retire(step); prefetcher.drain()  # in this order; the same before cancel()

    `depth`: the prefetcher's; as many steps may be published and not retired.

    The reader waits for nobody.  A follower copies, and looks again afterwards whether the step was retired meanwhile: a
    slow one loses the step and knows it, one that was killed costs nothing.  Ranks of one model do not lose steps, as the
    collectives of the layers keep them together.

    The prefetcher has no device: every rank copies to its own.
    """

    def __init__(self, store: RowSource, layers: Sequence[PrefetchLayer], max_tokens: int, depth: int = 2) -> None:
        if not layers or max_tokens < 1 or depth < 1:
            raise refused(f"{len(layers)} layers, max_tokens={max_tokens}, depth={depth}", "at least 1 each", "7.4")
        self._layout = StagingLayout(staged(store.tables, layers), max_tokens, depth, os.getpid())
        self._place_of = {layer.layer_id: place for place, layer in enumerate(layers)}
        self._flags, self._bells = self._layout.flags, self._layout.bells
        self._end = self._layout.nbytes
        self._fd = os.memfd_create("obmm-staging", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        try:
            os.ftruncate(self._fd, self._end)
            fcntl.fcntl(self._fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK)  # no follower can take pages away
            self._head = mmap.mmap(self._fd, self._end)
            # A description of this process alone: its lock goes when the process does, and with no other descriptor.
            self._life = os.open(f"/proc/self/fd/{self._fd}", os.O_RDWR | os.O_CLOEXEC)
        except BaseException:
            os.close(self._fd)
            raise
        fcntl.flock(self._life, fcntl.LOCK_EX)
        _alive.add(self)
        self._layout.pack_into(self._head)
        self._words = StagingWords(self._head, writable=True)
        # what the flags say, which only this side writes: the step that each shows (-1: none), and its last one
        self._shown = [[-1] * depth for _ in layers]
        self._over = [[-1] * depth for _ in layers]
        self._last: list[tuple[Any, int]] = [(None, NOWHERE)] * len(layers)
        """The buffer that was published last, and its place: as a rule the next one is the same object."""
        self._slots: list[tuple[int, int, int]] = []  # (address, bytes, place in the memory)
        self._memory: list[mmap.mmap] = []
        self._closed = False

    def allocate(self, nbytes: int) -> memoryview:
        """Zeroed pages at the end of the memory: the prefetcher's ``staging=``.

        ObmmArgumentError for a size that no layer has here: the followers' buffers would not fit.
        """
        self._check_alive()
        sizes = {self._layout.max_tokens * layer.columns * layer.row_bytes for layer in self._layout.layers}
        if nbytes not in sizes:
            raise refused(
                f"a slot of {nbytes} bytes, the layers have {sorted(sizes)} for {self._layout.max_tokens} tokens",
                "give SharedStaging the prefetcher's store, layers and max_tokens",
                "7.4",
            )
        size = max(-(-nbytes // SLOT_ALIGNMENT) * SLOT_ALIGNMENT, SLOT_ALIGNMENT)
        os.ftruncate(self._fd, self._end + size)
        memory = mmap.mmap(self._fd, size, offset=self._end)
        self._memory.append(memory)
        self._slots.append((np.frombuffer(memory, np.uint8).ctypes.data, nbytes, self._end))
        self._end += size
        return memoryview(memory)[:nbytes]

    def publish(self, layer: int, step: int, rows: Rows) -> None:
        """Tell the followers that the rows of a layer are there, or what became of them.

        `step`: a number that all ranks know, growing; `rows`: what `consume` gave.  ObmmArgumentError for a step that is
        retired, rows in other memory than `allocate`'s, or `depth` steps that are not retired.
        """
        self._check_alive()
        check_step(step)
        place = self._layer(layer)
        layout, words = self._layout, self._words
        index = step % layout.ring
        if self._shown[place][index] >= 0 or step <= self._over[place][index]:
            raise refused(
                f"publish(layer {layer}, step {step}) while step {self._shown[place][index]} is published and "
                f"{self._over[place][index]} was retired last",
                f"retire() every step, number steps from 0 without a gap; the depth is {layout.ring}",
                "7.4",
            )
        flag = self._flags[place][index]
        padded = len(rows.buffer)
        failed = rows.failed_tokens
        nowhere = rows.status in _ALL_ZERO or not rows.n_tokens or (failed is not None and bool(failed.all()))
        if failed is not None:
            mask = layout.mask(place, step)
            self._head[mask : mask + rows.n_tokens] = failed.tobytes()
        if nowhere:
            where = NOWHERE
        elif rows.buffer is self._last[place][0]:
            where = self._last[place][1]
        else:
            where = self._where(rows.buffer)
            self._last[place] = rows.buffer, where
        fields = Fields(where, rows.n_tokens, padded, _NUMBER[rows.status], int(failed is not None))
        pack_fields(self._head, flag, fields)
        self._shown[place][index] = step
        words.store((flag + READY, step + 1))
        words.ring(self._bells[place])

    def retire(self, step: int) -> None:
        """Nothing of a step is valid any more: call it before `drain` or `cancel`, which free its slots."""
        self._check_alive()
        check_step(step)
        index = step % self._layout.ring
        if any(shown[index] not in (-1, step) for shown in self._shown):
            raise refused(f"retire({step}), which is not published", "number steps from 0 without a gap", "7.4")
        places = range(len(self._layout.layers))
        flags = [flags[index] for flags in self._flags]
        over = [max(step, over[index]) for over in self._over]
        # In this order: whoever finds a flag down finds out why.
        self._words.store(*[(flag + RETIRED, last + 1) for flag, last in zip(flags, over, strict=True)])
        self._words.store(*[(flag + READY, 0) for flag in flags])
        for place in places:
            if self._shown[place][index] < 0:  # who waits for it was not woken by a publication
                self._words.ring(self._bells[place])
            self._shown[place][index], self._over[place][index] = -1, over[place]

    def fileno(self) -> int:
        """The descriptor of the memory, close-on-exec: hand it over with `socket.send_fds`, ``pass_fds`` or a fork."""
        self._check_alive()
        return self._fd

    def close(self) -> None:
        """Followers learn that nothing more comes; the memory goes when the prefetcher's buffers do.  Idempotent.

        MappingBusyError while a step is published and not retired.
        """
        if self._closed or os.getpid() != self._layout.reader:
            return
        if any(step >= 0 for shown in self._shown for step in shown):
            raise MappingBusyError(errno.EBUSY, "PREFETCH: a step is published; fix: retire() it", operation="PREFETCH")
        self._closed = True
        self._words.store((CLOSED, 1))
        for place in range(len(self._layout.layers)):
            self._words.ring(self._bells[place])
        self._memory.clear()
        self._slots.clear()
        self._last.clear()
        self._let_go()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            self.close()

    def __del__(self) -> None:
        if not getattr(self, "_closed", True):
            self._let_go()

    def __repr__(self) -> str:
        if self._closed:
            return "<SharedStaging closed>"
        return f"<SharedStaging {len(self._layout.layers)} layers, {self._end >> 20} MiB>"

    # --- inside ---------------------------------------------------------------------------------------------------

    def _check_alive(self) -> None:
        if self._closed:
            raise ClosedError.of("SharedStaging")
        if os.getpid() != self._layout.reader:
            raise ClosedError.of("SharedStaging", "belongs to the parent process; use StagingFollower here")

    def _let_go(self) -> None:
        for fd in (self._fd, self._life):
            if fd >= 0:
                os.close(fd)
        self._fd = self._life = -1

    def _layer(self, layer: int) -> int:
        try:
            return self._place_of[layer]
        except KeyError:
            raise refused(f"layer {layer}", f"use one of {sorted(self._place_of)}", "7.4") from None

    def _where(self, buffer: Any) -> int:
        """The place in the memory of an array in one of the slots."""
        if isinstance(buffer, np.ndarray):
            at = buffer.ctypes.data
            for address, size, place in self._slots:
                if address <= at and at + buffer.nbytes <= address + size:
                    return place + at - address
        raise refused(
            f"rows in memory of their own ({type(buffer).__name__})",
            "make the prefetcher with staging=this.allocate and without a device",
            "7.4",
        )


_alive: weakref.WeakSet[SharedStaging] = weakref.WeakSet()


def _forked() -> None:
    """A child that outlives the reader must not look like it."""
    for staging in tuple(_alive):
        staging._let_go()


os.register_at_fork(after_in_child=_forked)
