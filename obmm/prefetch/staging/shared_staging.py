# SPDX-License-Identifier: Apache-2.0
"""One reader per node gathers, every rank copies: the reader's side (Engram specification 7.4)."""

from __future__ import annotations

import errno
import fcntl
import mmap
import os
from collections.abc import Sequence
from typing import Any

import numpy as np

from obmm.closing import Closing, tell_of_forks
from obmm.driver.descriptor import Descriptor
from obmm.errors import ClosedError, MappingBusyError
from obmm.prefetch.flight import PrefetchLayer
from obmm.prefetch.hashing.plan import refused
from obmm.prefetch.rows import Rows, RowsStatus
from obmm.prefetch.source import Described
from obmm.prefetch.staging.staging_layout import (
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


class SharedStaging(Closing):
    """Staging memory of an `EngramPrefetcher` that other processes of the node read, with a ready flag per layer and step.

    The reader, on the thread of its prefetcher::

        staging = SharedStaging(store, layers, max_tokens)
        prefetcher = EngramPrefetcher(store, layers, max_tokens, staging=staging.allocate)
        ...  # hand staging.fileno() to the other ranks: StagingFollower(fd)
        prefetcher.begin(ids, n_tokens, step=step); prefetcher.start()
        staging.publish(layer, step, prefetcher.consume(layer))  # for each layer
        staging.retire(step); prefetcher.drain()  # in this order; the same before cancel()

    `depth`: the prefetcher's; as many steps may be published and not retired.

    The reader never waits.  A follower copies, and looks again afterwards whether the step was retired meanwhile: a
    slow one loses the step and knows it, one that was killed costs nothing.  Ranks of one model do not lose steps, as the
    collectives of the layers keep them together.

    The prefetcher has no device: every rank copies to its own.

    `store`, `layers` and `max_tokens` are the prefetcher's.  ObmmArgumentError for others.
    """

    def __init__(self, store: Described, layers: Sequence[PrefetchLayer], max_tokens: int, depth: int = 2) -> None:
        if not layers or max_tokens < 1 or depth < 1:
            raise refused(f"{len(layers)} layers, max_tokens={max_tokens}, depth={depth}", "at least 1 each", "7.4")
        self._layout = StagingLayout(staged(store.tables, layers), max_tokens, depth, os.getpid())
        self._place_of = {layer.layer_id: place for place, layer in enumerate(layers)}
        self._flags, self._bells = self._layout.flags, self._layout.bells
        self._end = self._layout.nbytes
        self._file = Descriptor.memfd("obmm-staging")
        os.ftruncate(self._fd, self._end)
        fcntl.fcntl(self._fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK)  # no follower can take pages away
        self._head = mmap.mmap(self._fd, self._end)
        # A description of this process alone: its lock goes when the process does, and with no other descriptor.
        self._life = Descriptor.open(f"/proc/self/fd/{self._fd}", os.O_RDWR)
        fcntl.flock(self._life, fcntl.LOCK_EX)
        tell_of_forks(self)
        self._layout.pack_into(self._head)
        self._words = StagingWords(self._head, writable=True)
        # what the flags say, which only this side writes: the step that each shows (-1: none), and its last one
        self._shown = [[-1] * depth for _ in layers]
        self._over = [[-1] * depth for _ in layers]
        self._last: list[tuple[Any, int]] = [(None, NOWHERE)] * len(layers)
        """The buffer that was published last, and its place: as a rule the next one is the same object."""
        self._slots: list[tuple[int, int, int]] = []  # (address, bytes, place in the memory)
        self._memory: list[mmap.mmap] = []
        self._open = True

    def allocate(self, nbytes: int) -> memoryview:
        """Zeroed pages of `nbytes` at the end of the memory: the prefetcher's ``staging=``.

        ObmmArgumentError for a size that no layer has here: the followers' buffers would not fit.
        """
        self._check_open()
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
        self._check_open()
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
        """Mark a step invalid: call it before `drain` or `cancel`, which free its slots."""
        self._check_open()
        check_step(step)
        index = step % self._layout.ring
        if any(shown[index] not in (-1, step) for shown in self._shown):
            raise refused(f"retire({step}), which is not published", "number steps from 0 without a gap", "7.4")
        places = range(len(self._layout.layers))
        flags = [flags[index] for flags in self._flags]
        over = [max(step, over[index]) for over in self._over]
        # In this order: a reader that finds a flag down can then see why.
        self._words.store(*[(flag + RETIRED, last + 1) for flag, last in zip(flags, over, strict=True)])
        self._words.store(*[(flag + READY, 0) for flag in flags])
        for place in places:
            if self._shown[place][index] < 0:  # who waits for it was not woken by a publication
                self._words.ring(self._bells[place])
            self._shown[place][index], self._over[place][index] = -1, over[place]

    def fileno(self) -> int:
        """The descriptor of the memory, close-on-exec: hand it over with `socket.send_fds`, ``pass_fds`` or a fork."""
        self._check_open()
        return self._fd

    def close(self) -> None:
        """Followers learn that nothing more comes; the memory goes when the prefetcher's buffers do.  Idempotent.

        MappingBusyError while a step is published and not retired.
        """
        if not self._open:
            return
        if any(step >= 0 for shown in self._shown for step in shown):
            raise MappingBusyError(errno.EBUSY, "PREFETCH: a step is published; fix: retire() it", operation="PREFETCH")
        self._open = False
        self._words.store((CLOSED, 1))
        for place in range(len(self._layout.layers)):
            self._words.ring(self._bells[place])
        self._memory.clear()
        self._slots.clear()
        self._last.clear()
        self._let_go()

    def _leave(self, failed: bool) -> None:
        if not failed:
            self.close()

    def __del__(self) -> None:
        if self._open:
            self._let_go()

    def __repr__(self) -> str:
        if not self._open:
            return "<SharedStaging closed>"
        return f"<SharedStaging {len(self._layout.layers)} layers, {self._end >> 20} MiB>"

    # --- inside ---------------------------------------------------------------------------------------------------

    def _is_closed(self) -> ClosedError:
        if self._forked:
            return ClosedError.of("SharedStaging", "belongs to the parent process; use StagingFollower here")
        return super()._is_closed()

    def _die(self) -> None:
        """A child that outlives the reader must not look like it."""
        super()._die()
        self._let_go()

    def _let_go(self) -> None:
        self._life.close()
        self._file.close()

    @property
    def _fd(self) -> int:
        return self._file.fileno()

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
