# SPDX-License-Identifier: Apache-2.0
"""The rows of a table, block by block: values and scales side by side, with a digest of every tensor on the way.

Memory is constant: two blocks of rows and the pieces that they are packed from, whatever the size of the tensors.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import accumulate

import numpy as np
from numpy.typing import NDArray

from obmm.engram.checkpoint import Checkpoint
from obmm.engram.errors import refused
from obmm.engram.safetensors import TensorFile
from obmm.engram.tables import Part, SourceTable

BLOCK_BYTES = 16 << 20
_SUM_BYTES = 16
"""Of each tensor's SHA-256 that the manifest carries: hundreds of parts must fit into 64 KiB."""
_NAN_SCALE = 255


class PackedRows:
    """Iterate once: ``(first row, rows uint8 [n, row_bytes])``, each valid until the next.  Then `sums` is known.

    `parts`: which parts of the table, in this order (default: all of them).  While one block is written by who iterates,
    the one behind is read by a thread, and another one hashes.

    `checkpoint`: whose `table` it is; `block_bytes`: how much is read at a time.
    """

    def __init__(
        self,
        checkpoint: Checkpoint,
        table: SourceTable,
        block_bytes: int = BLOCK_BYTES,
        *,
        parts: Sequence[int] | None = None,
    ) -> None:
        self._checkpoint = checkpoint
        firsts = accumulate((part.weight.rows for part in table.parts), initial=0)
        every = list(zip(firsts, table.parts, strict=False))
        self._parts = every if parts is None else [every[number] for number in parts]
        longest = max((part.weight.rows for _, part in self._parts), default=0)
        self._step = max(1, min(block_bytes // table.row_bytes, longest))
        self._pieces = [
            [np.empty((self._step, tensor.row_bytes), np.uint8) for tensor in table.parts[0].tensors] for _ in range(2)
        ]
        single = len(self._pieces[0]) == 1
        self._packed = [
            pieces[0] if single else np.empty((self._step, table.row_bytes), np.uint8) for pieces in self._pieces
        ]
        self._hashing: list[Future[None] | None] = [None, None]
        """Of the pieces of each block: they are read into again when it is over."""
        self.sums: list[str] = []
        """Of every tensor in order (part by part, values before scales): the first half of its SHA-256, in hex."""

    def __iter__(self) -> Iterator[tuple[int, NDArray[np.uint8]]]:
        with ThreadPoolExecutor(1, "obmm-engram-read") as reader, ThreadPoolExecutor(1, "obmm-engram-hash") as hasher:
            for first, part in self._parts:
                digests = [hashlib.sha256() for _ in part.tensors]
                places = [(at, min(self._step, part.weight.rows - at)) for at in range(0, part.weight.rows, self._step)]
                coming: Future[NDArray[np.uint8]] | None = None
                for number, (at, rows) in enumerate(places):
                    block = (coming or reader.submit(self._read, part, number, at, rows)).result()
                    self._hashing[number % 2] = hasher.submit(self._hash, digests, number, rows)
                    if number + 1 < len(places):
                        coming = reader.submit(self._read, part, number + 1, *places[number + 1])
                    yield first + at, block
                self._await_hash(0)
                self._await_hash(1)
                self.sums += [digest.hexdigest()[: 2 * _SUM_BYTES] for digest in digests]

    def _read(self, part: Part, number: int, at: int, rows: int) -> NDArray[np.uint8]:
        self._await_hash(number % 2)
        packed, pieces = self._packed[number % 2], self._pieces[number % 2]
        column = 0
        for tensor, piece in zip(part.tensors, pieces, strict=True):
            data = piece[:rows]
            self._checkpoint.read_into(tensor, at, data.data.cast("B"))
            if piece is not packed:
                packed[:rows, column : column + tensor.row_bytes] = data
                column += tensor.row_bytes
            _refuse_nan(tensor, part, at, data)
        return packed[:rows]

    def _hash(self, digests: list[hashlib._Hash], number: int, rows: int) -> None:
        for piece, digest in zip(self._pieces[number % 2], digests, strict=True):
            digest.update(piece[:rows].data)

    def _await_hash(self, place: int) -> None:
        hashing, self._hashing[place] = self._hashing[place], None
        if hashing is not None:
            hashing.result()


def _refuse_nan(tensor: TensorFile, part: Part, at: int, data: NDArray[np.uint8]) -> None:
    """A scale that is not a number makes 32 values of a row so: the file is damaged (Engram specification 4.7)."""
    if tensor is not part.scale or tensor.dtype != "F8_E8M0" or data.max(initial=0) != _NAN_SCALE:
        return
    row = at + int(np.argmax((data == _NAN_SCALE).any(axis=1)))
    raise refused(f"{tensor.path}: row {row} of {tensor.name!r} has a scale that is not a number", "download it again")
