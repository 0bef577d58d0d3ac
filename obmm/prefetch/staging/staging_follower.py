# SPDX-License-Identifier: Apache-2.0
"""One reader per node gathers, every rank copies: the other ranks' side (Engram specification 7.4)."""

from __future__ import annotations

import errno
import fcntl
import mmap
import os
import time

import numpy as np
from numpy.typing import NDArray

from obmm.arguments import seconds
from obmm.closing import Closing
from obmm.driver.descriptor import Descriptor
from obmm.errors import ClosedError, ObmmError
from obmm.prefetch.failures import PeerFailedError
from obmm.prefetch.hashing.plan import refused
from obmm.prefetch.rows import Rows, RowsStatus
from obmm.prefetch.staging.staging_layout import (
    CLOSED,
    NOWHERE,
    READY,
    RETIRED,
    STATUSES,
    Fields,
    StagedLayer,
    StagingLayout,
    StagingWords,
    check_step,
    unpack_fields,
)
from obmm.rows import GatherDeadlineError

_LONGEST = 3600.0  # seconds in one system call


class StagingFollower(Closing):
    """A rank that takes its rows from another process's `SharedStaging`, of which it has the descriptor `fd`.

    It never writes to the shared memory: so its failures do not reach other processes.  Rows are copied to a buffer of its
    own whose address never changes.  One thread at a time.  The descriptor stays the caller's.

    `layer` and `step` are the reader's numbers.  ObmmArgumentError for a layer that it does not publish, ClosedError after
    `close`.
    """

    def __init__(self, fd: int) -> None:
        self._layout = StagingLayout.unpack(os.pread(fd, mmap.PAGESIZE, 0))
        self._file = Descriptor.dup(fd)
        self._owner = os.getpid()
        self._error: ObmmError | None = None
        self._gone = False
        self._map()
        layout = self._layout
        self._flags, self._bells = layout.flags, layout.bells
        self._place_of = {layer.layer_id: place for place, layer in enumerate(layout.layers)}
        self._buffers: dict[int, NDArray[np.uint8]] = {
            layer.layer_id: np.zeros((layout.max_tokens, layer.columns, layer.row_bytes), np.uint8)
            for layer in layout.layers
        }
        # a layer's last copy: its place, tokens and padding, and the views for it; as a rule the next one is the same
        self._last: dict[int, tuple[tuple[int, ...], NDArray[np.uint8], NDArray[np.uint8] | None]] = {}

    def wait(self, layer: int, step: int, timeout: float) -> Rows:
        """The rows of `layer` in `step`, waiting at most `timeout` seconds for the reader's flag.

        `buffer` is uint8 ``[padded_tokens, columns, row_bytes]`` at this rank's fixed address, valid until the next `wait`
        for the layer; `status` is the reader's.  Never raises for what the reader did (Engram specification 11.3-1): the
        whole buffer zero, no tokens and FAILED when the flag did not come in time, when the reader is gone or has closed,
        or when it retired the step before it was copied; `drain` then raises.
        """
        place = self._layer(layer)
        check_step(step)
        flag, words = self._flags[place][step % self._layout.ring], self._words
        if words.load(flag + READY) != step + 1:
            error = self._await(place, step, timeout)
            if error is not None:
                return self._failed(layer, error)
        rows = self._copy(place, step, flag)
        return rows if rows is not None else self._failed(layer, _lost(layer, step))

    def poll(self, layer: int, step: int) -> bool:
        """Whether `wait` would find the rows, or know that they never come, at once."""
        place = self._layer(layer)
        check_step(step)
        flag = self._flags[place][step % self._layout.ring]
        words = self._words
        if words.load(flag + READY) == step + 1 or words.load(flag + RETIRED) > step or words.load(CLOSED):
            return True
        self._gone = self._gone or not self._reader_lives()
        return self._gone

    def drain(self) -> None:
        """The step is over.  Raises the first error since the last call: publish none of the step's tokens.

        GatherDeadlineError: the flag did not come in time.  PeerFailedError: the reader is gone, it has closed, or its
        own gather failed.  ObmmError: the step was retired before it was copied.
        """
        error, self._error = self._error, None
        if error is not None:
            raise error

    def rows_u8(self, layer: int) -> NDArray[np.uint8]:
        """What `wait` hands out, whole: uint8 ``[max_tokens, columns, row_bytes]``."""
        self._layer(layer)
        return self._buffers[layer]

    @property
    def layers(self) -> tuple[StagedLayer, ...]:
        """(layer id, columns, row bytes) of every layer that the reader publishes."""
        return self._layout.layers

    @property
    def closed(self) -> bool:
        """True once closed, or in a forked child."""
        return self._fd < 0

    def close(self) -> None:
        """Let the shared memory go; `rows_u8` stays.  Idempotent."""
        self._file.close()

    @property
    def _fd(self) -> int:
        return self._file.fileno()

    def __repr__(self) -> str:
        state = "closed" if self._fd < 0 else "its reader is gone" if self._gone else f"reader {self._layout.reader}"
        return f"<StagingFollower {len(self._layout.layers)} layers, {state}>"

    # --- inside ---------------------------------------------------------------------------------------------------

    def _layer(self, layer: int) -> int:
        if self._fd < 0:
            raise ClosedError.of("StagingFollower")
        if os.getpid() != self._owner:
            raise ClosedError.of("StagingFollower", "belongs to the parent process; make one after the fork")
        try:
            return self._place_of[layer]
        except KeyError:
            raise refused(f"layer {layer}", f"use one of {sorted(self._place_of)}", "7.4") from None

    def _map(self) -> None:
        """All of the memory that there is now; the reader may have asked for more since."""
        self._memory = mmap.mmap(self._fd, 0, prot=mmap.PROT_READ)
        self._bytes = np.frombuffer(self._memory, np.uint8)
        self._words = StagingWords(self._memory, writable=False)

    def _await(self, place: int, step: int, timeout: float) -> ObmmError | None:
        """Until the flag is the step's; or why it never will be."""
        layer, words = self._layout.layers[place].layer_id, self._words
        flag, bell = self._flags[place][step % self._layout.ring], self._bells[place]
        deadline = time.monotonic() + seconds("PREFETCH", "timeout", timeout)
        while True:
            count = words.count(bell)  # before the flag: a ring after the look at it is not slept through
            if words.load(flag + READY) == step + 1:
                return None
            if words.load(flag + RETIRED) > step:
                return _lost(layer, step)
            if self._gone or words.load(CLOSED):
                return _gone(layer, step)
            left = deadline - time.monotonic()
            if left <= 0:
                return self._late(layer, step, timeout)
            words.await_ring(bell, count, min(left, _LONGEST))

    def _copy(self, place: int, step: int, flag: int) -> Rows | None:
        """The rows as they were while the flag was valid, or None."""
        layer = self._layout.layers[place].layer_id
        fields = unpack_fields(self._memory, flag)
        if self._words.load_again(flag + READY) != step + 1:
            return None  # the fields may be of two steps
        last = self._last.get(layer)
        if last is None or last[0] != fields[:3]:
            last = self._last[layer] = fields[:3], *self._views(layer, fields)
        _, out, source = last
        failed = None
        if source is None:
            out[:] = 0
        else:
            np.copyto(out, source)
        if fields.has_mask:
            at = self._layout.mask(place, step)
            failed = self._bytes[at : at + fields.n_tokens].astype(np.bool_)
        if self._words.load_again(flag + READY) != step + 1:
            return None
        status = STATUSES[fields.status]
        if status is RowsStatus.FAILED:
            self._error = self._error or _failed_there(layer, step)
        return Rows(out, fields.n_tokens, status, failed)

    def _views(self, layer: int, fields: Fields) -> tuple[NDArray[np.uint8], NDArray[np.uint8] | None]:
        """Where the rows go, and where they are (None: all zero)."""
        out = self._buffers[layer][: fields.padded]
        if fields.place == NOWHERE:
            return out, None
        end = fields.place + out.nbytes
        if end > len(self._bytes):
            self._map()
        return out, self._bytes[fields.place : end].reshape(out.shape)

    def _failed(self, layer: int, error: ObmmError) -> Rows:
        self._error = self._error or error
        buffer = self._buffers[layer]
        buffer[:] = 0
        return Rows(buffer, 0, RowsStatus.FAILED)

    def _late(self, layer: int, step: int, timeout: float) -> ObmmError:
        if self._reader_lives():
            return GatherDeadlineError(
                errno.ETIMEDOUT,
                f"PREFETCH: the reader published no rows of layer {layer}, step {step} within {timeout * 1e3:.3g} ms "
                "[Engram specification 11.3-3]; fix: look at the reader's process, or allow more time",
                operation="PREFETCH",
            )
        self._gone = True  # the reader does not wait for it from now on
        return _gone(layer, step)

    def _reader_lives(self) -> bool:
        """Its lock on the memory goes with its process, however that ended."""
        try:
            fcntl.flock(self._fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        fcntl.flock(self._fd, fcntl.LOCK_UN)
        return False


def _lost(layer: int, step: int) -> ObmmError:
    return ObmmError(
        errno.ESTALE,
        f"PREFETCH: the reader retired step {step} before layer {layer} was copied [Engram specification 7.4]; fix: keep "
        "the ranks together (a collective, a barrier), or run the step again",
        operation="PREFETCH",
    )


def _gone(layer: int, step: int) -> PeerFailedError:
    return PeerFailedError(
        errno.EHOSTDOWN,
        f"PREFETCH: the reader of the shared staging is gone, no rows of layer {layer}, step {step} [Engram specification "
        "7.4]; fix: start the ranks again",
        operation="PREFETCH",
    )


def _failed_there(layer: int, step: int) -> PeerFailedError:
    return PeerFailedError(
        errno.EIO,
        f"PREFETCH: the reader's gather of layer {layer}, step {step} failed [Engram specification 11.2]; fix: see the "
        "error that its drain() raises",
        operation="PREFETCH",
    )
