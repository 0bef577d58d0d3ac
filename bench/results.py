# SPDX-License-Identifier: Apache-2.0
"""Result files: JSON that `results.schema.json` describes."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

FORMAT, VERSION = "obmm-bench", 2
Document = dict[str, Any]
SCHEMA = Path(__file__).with_name("results.schema.json")


class NotResults(ValueError):
    """A file that holds no results of this benchmark."""


def read(path: str | os.PathLike[str]) -> Document:
    """The document in `path`."""
    try:
        document = json.loads(Path(path).read_text())
    except (OSError, ValueError) as error:
        raise NotResults(f"{path}: {error}") from error
    if not isinstance(document, dict) or (document.get("format"), document.get("version")) != (FORMAT, VERSION):
        raise NotResults(f"{path}: no results of `obmm bench run` (format {FORMAT}, version {VERSION})")
    return document


def write(document: Document, path: str | os.PathLike[str]) -> None:
    """Whole or not at all."""
    target = Path(path)
    part = target.with_name(target.name + ".part")
    part.write_text(json.dumps(document, indent=1) + "\n")
    part.replace(target)


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


BYTES = "bytes/s"


def figure(value: float, unit: str) -> str:
    """A time in ns, or a rate in `BYTES`."""
    return rate(value) if unit == BYTES else duration(value)
