# SPDX-License-Identifier: Apache-2.0
"""Figures as people read them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

BYTES = "bytes/s"


def duration(ns: float | None) -> str:
    """A time in the unit that fits."""
    if ns is None:
        return "-"
    if not ns:
        return "below clock"  # not more than the clock's own cost
    for unit, size in (("s", 1e9), ("ms", 1e6), ("us", 1e3)):
        if ns >= size:
            return f"{ns / size:.3g} {unit}"
    return f"{ns:.3g} ns"


def size(nbytes: float) -> str:
    """Bytes in the unit that fits."""
    for unit, unit_bytes in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if nbytes >= unit_bytes:
            return f"{nbytes / unit_bytes:.3g} {unit}"
    return f"{nbytes:.0f} B"


def rate(bytes_per_s: float) -> str:
    """A rate in the unit that fits."""
    return f"{bytes_per_s / 1e9:.3g} GB/s" if bytes_per_s >= 1e8 else f"{bytes_per_s / 1e6:.3g} MB/s"


def figure(value: float, unit: str) -> str:
    """A time in ns, or a rate in `BYTES`."""
    return rate(value) if unit == BYTES else duration(value)


def failed(row: Mapping[str, Any]) -> str:
    """How many operations of a result failed, and how many of these at a deadline."""
    timeouts = row.get("timeouts", 0)
    return f"{row['failures']} ({timeouts} timed out)" if timeouts else str(row["failures"])
