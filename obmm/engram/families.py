# SPDX-License-Identifier: Apache-2.0
"""What the n-gram tables of known models are called in their checkpoints; others by a TOML map.

A family is a few patterns.  The TOML form of the first one below::

    [[family]]
    name = "deepseek-v41"
    weight = '(?:model\\.)?layers\\.(?P<layer>\\d+)\\.engram\\.embed\\.weight'
    scale = '(?:model\\.)?layers\\.(?P<layer>\\d+)\\.engram\\.embed\\.scale'
    dtypes = ["F8_E4M3"]
    scale_dtypes = ["F8_E8M0", "U8"]
    block = 32
    neutral_zero = true
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from obmm.engram.errors import refused
from obmm.toml_text import read_toml


@dataclass(frozen=True, slots=True)
class Family:
    r"""The tensor names of one family of models.

    `weight`: a pattern of whole names with the group ``layer`` and, where a table is stored in pieces, ``part``.
    `scale`: the same for block scales that belong behind each row, or empty.
    `constants`: name in the manifest -> pattern (group ``layer``) of small tensors that readers need.
    `dtypes`, `scale_dtypes`: safetensors types that are accepted.  `block`: values per scale.
    `neutral_zero`: whether a row of zeros leaves the model's hidden state as it was.  ObmmArgumentError for a pattern without the group.

    >>> import re
    >>> obmm.engram.Family("mine", re.compile(r"layers\.(?P<layer>\d+)\.grams")).name
    'mine'
    """

    name: str
    weight: re.Pattern[str]
    scale: re.Pattern[str] | None = None
    constants: Mapping[str, re.Pattern[str]] = field(default_factory=dict)
    dtypes: tuple[str, ...] = ("F8_E4M3", "BF16", "F16", "F32", "I8", "U8")
    scale_dtypes: tuple[str, ...] = ("F8_E8M0", "U8", "F32")
    block: int = 0
    neutral_zero: bool = False

    def __post_init__(self) -> None:
        for pattern in (self.weight, self.scale, *self.constants.values()):
            if pattern is not None and "layer" not in pattern.groupindex:
                raise refused(f"family {self.name!r}: {pattern.pattern!r} has no group (?P<layer>...)", "add it")


_DSV41 = r"(?:model\.)?layers\.(?P<layer>\d+)\.engram\.embed\."
_PLE = r"(?:[\w.]+\.)?layers\.(?P<layer>\d+)\.ple\.ple_embedding\."

FAMILIES: tuple[Family, ...] = (
    Family(
        "deepseek-v41",
        re.compile(_DSV41 + "weight"),
        re.compile(_DSV41 + "scale"),
        dtypes=("F8_E4M3",),
        scale_dtypes=("F8_E8M0", "U8"),
        block=32,
        neutral_zero=True,
    ),
    Family(
        "qwen4-ple",
        re.compile(_PLE + r"ngram_embedding\.shard_(?P<part>\d+)\.weight"),
        constants={
            "weight_scale": re.compile(_PLE + r"ngram_embedding\.weight_scale"),
            "multipliers": re.compile(_PLE + "layer_multipliers"),
            "head_offsets": re.compile(_PLE + "ngram_heads_offsets"),
            "head_sizes": re.compile(_PLE + "ngram_heads_vocab_sizes"),
        },
        dtypes=("F8_E4M3", "BF16"),
    ),
)
"""The families that are known by name."""

_KEYS = {"name", "weight", "scale", "constants", "dtypes", "scale_dtypes", "block", "neutral_zero"}


def families_of(path: Path) -> tuple[Family, ...]:
    """The families of the TOML map at `path`; ObmmArgumentError that names what is wrong with it."""
    try:
        entries = read_toml(path).get("family")
    except (OSError, ValueError) as error:
        raise refused(f"{path}: {error}", "a TOML file with [[family]] tables") from error
    if not isinstance(entries, list) or not entries or not all(isinstance(entry, dict) for entry in entries):
        raise refused(f"{path} has no [[family]]", "see the page")
    return tuple(_family(path, entry) for entry in entries)


def _family(path: Path, entry: dict[str, Any]) -> Family:
    unknown = set(entry) - _KEYS
    if unknown or not {"name", "weight"} <= set(entry):
        raise refused(f"{path}: a family with {sorted(entry)}", f"name and weight, and any of {sorted(_KEYS)}")
    constants, block = entry.get("constants", {}), entry.get("block", 0)
    lists = [entry.get(key, []) for key in ("dtypes", "scale_dtypes")]
    texts = [*_texts(constants.values() if isinstance(constants, dict) else [0]), *_texts(entry.get("scale", ""))]
    if not all(texts) or not all(isinstance(each, list) and all(_texts(each)) for each in lists):
        raise refused(f"{path}: family {entry['name']!r} has patterns or types that are not strings", "see the page")
    if type(block) is not int or not 0 <= block <= 1 << 20 or type(entry.get("neutral_zero", False)) is not bool:
        raise refused(f"{path}: block={block!r}", "values per scale, a whole number; neutral_zero is true or false")
    try:
        compiled = {name: re.compile(text) for name, text in constants.items()}
        weight, scale = re.compile(entry["weight"]), re.compile(entry["scale"]) if entry.get("scale") else None
    except (re.error, TypeError) as error:
        raise refused(f"{path}: family {entry['name']!r}: {error}", "patterns of Python's re module") from error
    given = {key: tuple(entry[key]) for key in ("dtypes", "scale_dtypes") if key in entry}
    neutral = bool(entry.get("neutral_zero", False))
    return Family(str(entry["name"]), weight, scale, compiled, block=block, neutral_zero=neutral, **given)


def _texts(values: Iterable[Any]) -> list[bool]:
    return [isinstance(value, str) for value in values]
