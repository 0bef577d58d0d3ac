# SPDX-License-Identifier: Apache-2.0
"""Sizes as people write them."""

from __future__ import annotations

import re

_UNITS = {
    "": 1,
    "B": 1,
    **{f"{letter}iB": 1 << 10 * power for power, letter in enumerate("KMGT", 1)},
    **{letter: 1 << 10 * power for power, letter in enumerate("KMGT", 1)},
}


def parse_size(text: str) -> int:
    """Bytes in `text`: ``"256MiB"``, ``"2M"``, ``"4096"``.  Units are powers of 1024; MB and GB are refused as ambiguous."""
    match = re.fullmatch(r"\s*([0-9]{1,20})\s*([A-Za-z]{0,8})\s*", text)
    if not match:
        raise ValueError(f"{text[:64]!r} is not a size; write 4096, 256MiB or 2G")
    unit = match[2]
    if unit not in _UNITS:
        raise ValueError(f"{unit!r} is not a unit; write B, KiB, MiB, GiB or TiB (powers of 1024)")
    return int(match[1]) * _UNITS[unit]


def format_size(size: int) -> str:
    """The largest unit that divides `size`: ``format_size(4 << 20) == "4 MiB"``."""
    for unit, power in (("TiB", 40), ("GiB", 30), ("MiB", 20), ("KiB", 10)):
        if size and size % (1 << power) == 0:
            return f"{size >> power} {unit}"
    return f"{size} B"
