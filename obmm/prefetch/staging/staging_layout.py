# SPDX-License-Identifier: Apache-2.0
"""How staging that processes share lies in its memory (Engram specification 7.4).

A head, then the slots that the prefetcher asks for, each at a 2 MiB border.  The head::

    0    magic "OBMMSTG1", version, layers, max_tokens, ring, reader's pid
    64   u32: 1 when the reader has closed
    128  per layer: layer id, columns, row bytes
    then per layer, in lines of 64 bytes:
        the bell, rung at every change of one of its flags
        `ring` flags, step s in place s % ring:
            0   u64 ready: step + 1 while the fields are valid and the rows are not overwritten, else 0
            8   u64 retired: the highest step here that is over, + 1
            16  u64 place of the rows, or NOWHERE: all zero
            24  u32 tokens, padded tokens, status, whether the mask counts
        the mask of failed tokens of each flag

Only the reader writes.  A flag is valid when `ready` is the step's before and after what is read under it.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Self

from obmm._native import ffi, lib
from obmm.prefetch.hashing.plan import refused
from obmm.prefetch.rows import RowsStatus

MAGIC, VERSION = b"OBMMSTG1", 1
NOWHERE = (1 << 64) - 1
SLOT_ALIGNMENT = 2 << 20
MOST_STEPS = 1 << 62
STATUSES = tuple(RowsStatus)

_HEAD = struct.Struct("<8s5I")
_LAYER = struct.Struct("<q2I")
_FIELDS = struct.Struct("<Q4I")
_CLOSED_AT, _LAYERS_AT, _LINE = 64, 128, 64


class Fields(NamedTuple):
    """What a flag says of its step."""

    place: int
    n_tokens: int
    padded: int
    status: int
    has_mask: int


class StagedLayer(NamedTuple):
    """A layer's id and the shape of a token's rows."""

    layer_id: int
    columns: int
    row_bytes: int


@dataclass(frozen=True, slots=True)
class StagingLayout:
    """Sizes and offsets of the head."""

    layers: tuple[StagedLayer, ...]
    max_tokens: int
    ring: int
    reader: int

    @property
    def nbytes(self) -> int:
        """Of the head, up to the first slot."""
        return _up(self._flags_at + len(self.layers) * self._per_layer, SLOT_ALIGNMENT)

    @property
    def bells(self) -> tuple[int, ...]:
        """Where each layer's bell is."""
        return tuple(self._flags_at + layer * self._per_layer for layer in range(len(self.layers)))

    @property
    def flags(self) -> tuple[tuple[int, ...], ...]:
        """Where each layer's flags are, by step % ring."""
        return tuple(tuple(bell + _LINE * (1 + place) for place in range(self.ring)) for bell in self.bells)

    def mask(self, layer: int, step: int) -> int:
        return self.bells[layer] + _LINE * (1 + self.ring) + self._mask_bytes * (step % self.ring)

    def pack_into(self, head: Any) -> None:
        _HEAD.pack_into(head, 0, MAGIC, VERSION, len(self.layers), self.max_tokens, self.ring, self.reader)
        for place, layer in enumerate(self.layers):
            _LAYER.pack_into(head, _LAYERS_AT + place * _LAYER.size, *layer)

    @classmethod
    def unpack(cls, head: bytes) -> Self:
        """From the memory's first bytes; ObmmArgumentError when they are none of ours."""
        if len(head) >= _LAYERS_AT:
            magic, version, layers, max_tokens, ring, reader = _HEAD.unpack_from(head)
            if (magic, version) == (MAGIC, VERSION) and len(head) >= _LAYERS_AT + layers * _LAYER.size:
                found = (_LAYER.unpack_from(head, _LAYERS_AT + place * _LAYER.size) for place in range(layers))
                return cls(tuple(StagedLayer(*each) for each in found), max_tokens, ring, reader)
        raise refused(
            f"memory that begins with {head[:8]!r}", "pass the descriptor of a SharedStaging (its fileno())", "7.4"
        )

    @property
    def _flags_at(self) -> int:
        return _up(_LAYERS_AT + len(self.layers) * _LAYER.size, _LINE)

    @property
    def _mask_bytes(self) -> int:
        return _up(self.max_tokens, _LINE)

    @property
    def _per_layer(self) -> int:
        return _LINE * (1 + self.ring) + self._mask_bytes * self.ring


class StagingWords:
    """The words of the head that order everything else; every access is whole, aligned and in order.

    `memory`: a buffer of the head.
    """

    def __init__(self, memory: Any, *, writable: bool) -> None:
        self._kept = ffi.from_buffer("char[]", memory, require_writable=writable)
        self._base = ffi.cast("char *", self._kept)
        self._value = ffi.new("uint64_t *")
        self._bells: dict[int, Any] = {}

    def load(self, at: int) -> int:
        """What is read afterwards is at least as new as this word."""
        lib.obmm_load(self._base + at, 8, self._value, ffi.NULL)
        word = int(self._value[0])
        lib.obmm_fence_load()
        return word

    def load_again(self, at: int) -> int:
        """What was read before is not newer than this word."""
        lib.obmm_fence_load()
        lib.obmm_load(self._base + at, 8, self._value, ffi.NULL)
        return int(self._value[0])

    def store(self, *words: tuple[int, int]) -> None:
        """``(place, word)`` each.  What was written before is seen by all that see one of these words; what is written
        afterwards is not seen before all of them."""
        lib.obmm_fence_store()
        for at, word in words:
            lib.obmm_store(self._base + at, 8, word, ffi.NULL)
        lib.obmm_fence_store()

    def count(self, bell: int) -> int:
        return int(lib.obmm_bell_count(self._bell(bell)))

    def ring(self, bell: int) -> None:
        lib.obmm_bell_ring(self._bell(bell))

    def await_ring(self, bell: int, count: int, seconds: float) -> None:
        """Until the bell is rung, at most so long; may return early."""
        lib.obmm_bell_wait(self._bell(bell), count, int(seconds * 1e9))

    def _bell(self, at: int) -> Any:
        found = self._bells.get(at)
        if found is None:
            found = self._bells[at] = ffi.cast("uint32_t *", self._base + at)
        return found


READY, RETIRED, FIELDS, CLOSED = 0, 8, 16, _CLOSED_AT


def check_step(step: int) -> None:
    """ObmmArgumentError for a number that no flag can show: -1 would be what an empty one says."""
    if not 0 <= step < MOST_STEPS:
        raise refused(f"step {step}", "number steps from 0", "7.4")


def pack_fields(head: Any, flag: int, fields: Fields) -> None:
    """Write a flag's fields."""
    _FIELDS.pack_into(head, flag + FIELDS, *fields)


def unpack_fields(head: Any, flag: int) -> Fields:
    """Read a flag's fields."""
    return Fields(*_FIELDS.unpack_from(head, flag + FIELDS))


def staged(tables: Any, layers: Sequence[Any]) -> tuple[StagedLayer, ...]:
    """`PrefetchLayer`s with the row sizes of their tables."""
    return tuple(StagedLayer(each.layer_id, each.columns, tables[each.table].row_bytes) for each in layers)


def _up(number: int, unit: int) -> int:
    return -(-number // unit) * unit
