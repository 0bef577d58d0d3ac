# SPDX-License-Identifier: Apache-2.0
"""From tensor names to tables: which tensors, in which order, make the rows of which layer."""

from __future__ import annotations

import errno
import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from obmm.engram.checkpoint import Checkpoint
from obmm.engram.errors import refused
from obmm.engram.families import FAMILIES, Family
from obmm.engram.safetensors import TensorFile

_NUMBERS = {"I64": "<i8", "I32": "<i4", "F32": "<f4", "F64": "<f8", "U8": "u1"}


@dataclass(frozen=True, slots=True)
class Part:
    """Rows of one tensor, and the scales that go behind each.  Made by `find_tables`."""

    weight: TensorFile
    scale: TensorFile | None

    @property
    def tensors(self) -> tuple[TensorFile, ...]:
        """The weight's, and the scales' where there are any."""
        return (self.weight,) if self.scale is None else (self.weight, self.scale)


@dataclass(frozen=True, slots=True)
class SourceTable:
    """One table of a checkpoint: its parts follow each other without a gap. Made by `find_tables`."""

    layer_id: int
    family: Family
    parts: tuple[Part, ...]
    constants: Mapping[str, list[Any]] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """As the manifest calls it."""
        return f"layer{self.layer_id}"

    @property
    def rows(self) -> int:
        """How many."""
        return sum(part.weight.rows for part in self.parts)

    @property
    def row_bytes(self) -> int:
        """Bytes of a packed row: the values, then the scales."""
        return sum(tensor.row_bytes for tensor in self._some.tensors)

    @property
    def values(self) -> int:
        """Values of a row."""
        return self._some.weight.shape[1]

    @property
    def dtype(self) -> str:
        """The safetensors type of the values."""
        return self._some.weight.dtype

    @property
    def scale_layout(self) -> str:
        """In words, for the manifest."""
        scale = self._some.scale
        return (
            "" if scale is None else f"{scale.shape[1]} x {scale.dtype} behind the values, one per {self.family.block}"
        )

    @property
    def nbytes(self) -> int:
        """Bytes of all packed rows."""
        return self.rows * self.row_bytes

    @property
    def _some(self) -> Part:
        return self.parts[0]


def find_tables(checkpoint: Checkpoint, families: Sequence[Family] = FAMILIES) -> tuple[SourceTable, ...]:
    """The tables of the one family that the checkpoint has, by layer.

    ObmmArgumentError: no family or several match, a shard is missing or cut short, types or shapes are not the family's.

    `families`: those that are looked for, `FAMILIES` or one's own (`families_of`).
    """
    found = {family.name: matched for family in families if (matched := _matched(checkpoint.names, family.weight))}
    if len(found) != 1:
        what = f"tables of {', '.join(found)}" if found else f"no n-gram table of {', '.join(f.name for f in families)}"
        raise refused(f"{checkpoint.path} has {what}", "name the model's checkpoint, or its tensors by --map TOML")
    (name,) = found
    family = next(each for each in families if each.name == name)
    scales = _matched(checkpoint.names, family.scale) if family.scale is not None else {}
    tables = [
        SourceTable(
            layer,
            family,
            tuple(_part(checkpoint, family, layer, part, weight, scales) for part, weight in _in_order(layer, parts)),
            _constants(checkpoint, family, layer),
        )
        for layer, parts in sorted(found[name].items())
    ]
    for table in tables:
        shapes = {(part.weight.shape[1], part.weight.dtype, len(part.tensors)) for part in table.parts}
        if len(shapes) != 1:
            raise refused(f"the parts of layer {table.layer_id} differ: {sorted(shapes)}", "name one checkpoint")
    return tuple(tables)


def _matched(names: Sequence[str], pattern: re.Pattern[str]) -> dict[int, dict[int, str]]:
    """layer -> part -> tensor name; part 0 where there is one only."""
    found: dict[int, dict[int, str]] = defaultdict(dict)
    for name in names:
        match = pattern.fullmatch(name)
        if match is not None:
            groups = match.groupdict()
            layer, part = int(groups["layer"]), int(groups.get("part") or 0)
            if found[layer].setdefault(part, name) != name:
                raise refused(f"both {found[layer][part]!r} and {name!r} are layer {layer}, part {part}", "one of them")
    return found


def _in_order(layer: int, parts: Mapping[int, str]) -> list[tuple[int, str]]:
    missing = sorted(set(range(max(parts) + 1)) - set(parts))
    if missing:
        raise refused(
            f"layer {layer} has {len(parts)} parts and none with number {missing[0]}",
            "complete the download",
            errno.ENOENT,
        )
    return sorted(parts.items())


def _part(
    checkpoint: Checkpoint, family: Family, layer: int, part: int, name: str, scales: Mapping[int, Mapping[int, str]]
) -> Part:
    weight = checkpoint.tensor(name)
    if len(weight.shape) != 2 or not weight.row_bytes or weight.dtype not in family.dtypes:
        raise refused(
            f"{name!r} is {weight.dtype} {list(weight.shape)}; {family.name} has rows of {' or '.join(family.dtypes)}",
            "name the checkpoint as it was published",
        )
    if family.scale is None:
        return Part(weight, None)
    scale_name = scales.get(layer, {}).get(part)
    if scale_name is None:
        raise refused(f"{name!r} has no scales beside it", "complete the download", errno.ENOENT)
    scale = checkpoint.tensor(scale_name)
    wanted = (weight.rows, -(-weight.shape[1] // family.block)) if family.block else (weight.rows,)
    if scale.dtype not in family.scale_dtypes or scale.shape[: len(wanted)] != wanted or len(scale.shape) != 2:
        raise refused(
            f"{scale_name!r} is {scale.dtype} {list(scale.shape)}; {list(wanted)} of "
            f"{' or '.join(family.scale_dtypes)} belong to {name!r}",
            "name the checkpoint as it was published",
        )
    return Part(weight, scale)


def _constants(checkpoint: Checkpoint, family: Family, layer: int) -> dict[str, list[Any]]:
    constants: dict[str, list[Any]] = {}
    for key, pattern in family.constants.items():
        name = _matched(checkpoint.names, pattern).get(layer, {}).get(0)
        if name is None:
            continue
        tensor = checkpoint.tensor(name)
        data = checkpoint.read(tensor)
        if tensor.dtype == "BF16":
            numbers = (np.frombuffer(data, "<u2").astype("<u4") << 16).view("<f4")
        elif tensor.dtype in _NUMBERS:
            numbers = np.frombuffer(data, _NUMBERS[tensor.dtype])
        else:
            raise refused(f"{name!r} is {tensor.dtype}", f"one of {', '.join(_NUMBERS)}, BF16")
        constants[key] = numbers.tolist()
    return constants
