# SPDX-License-Identifier: Apache-2.0
"""Local UB controllers and the export granule, read from sysfs (driver specification 12, 13 and 18)."""

from __future__ import annotations

import re
import struct
from dataclasses import dataclass
from pathlib import Path

from obmm.driver.abi import BASIC_GRANULARITY

_ENTITY = re.compile(r"[0-9a-fA-F]{5}")
_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}


@dataclass(frozen=True, slots=True)
class Controller:
    """One local bus controller: what an export or import names as its own side.

    `cna` is its primary CNA, `eid` 16 raw bytes, `ummu` the index of its UMMU, `numa` its NUMA node (-1: none, and the
    driver refuses imports through it, rule I12).

    `index` counts them on this host.

    >>> controller = a.controllers[0]
    >>> hex(controller.cna), len(controller.eid), len(controller.vendor_info())
    ('0x...', 16, 24)
    """

    index: int
    cna: int
    eid: bytes
    ummu: int
    numa: int

    def vendor_info(self) -> bytes:
        """The 24 bytes that make this controller's UMMU take an export (driver specification 18, V1, on chip)."""
        return struct.pack("<I4xQB7x", 0, 1 << self.ummu, 1)


def controllers(root: str = "") -> tuple[Controller, ...]:
    """The controllers below ``<root>/sys/devices``, by index.  World-readable, so no privilege is needed.

    A controller's folder may be a symbolic link; its entity is the first one with a file ``ubc``.  OSError or
    ValueError names the file that is missing or says something else than the driver specification 13.1.
    """
    found = []
    for folder in Path(f"{root}/sys/devices").glob("ub_bus_controller*"):
        match = re.fullmatch(r"ub_bus_controller(\d+)", folder.name)
        entities = sorted(path for path in folder.iterdir() if _ENTITY.fullmatch(path.name)) if match else []
        entity = next((path for path in entities if (path / "ubc").exists()), None)
        if match and entity:
            found.append(_controller(int(match[1]), entity))
    return tuple(sorted(found, key=lambda controller: controller.index))


def granule(root: str = "") -> int:
    """The unit of export sizes in bytes: the memseg when its parameter is readable (root only), else 2 MiB.

    Drivers before December 2025 say ``(null)`` for the default.
    """
    path = Path(f"{root}/sys/module/obmm/parameters/mem_allocator_granu")
    try:
        text = path.read_text().strip()
    except OSError:
        return BASIC_GRANULARITY
    match = re.fullmatch(r"(0[xX][0-9a-fA-F]+|\d+)([KMGT]?)B?", text, re.IGNORECASE)
    return _automatic(match[1]) * _UNITS[match[2].upper()] if match else BASIC_GRANULARITY


def _controller(index: int, entity: Path) -> Controller:
    def number(name: str, limit: int) -> int:
        path = entity / name
        text = path.read_text().strip()
        try:
            value = _automatic(text)
        except ValueError:
            raise ValueError(f"{path} says {text!r}, which is not a number") from None
        if not 0 <= value < limit:
            raise ValueError(f"{path} says {text}, which is not below {limit:#x}")
        return value

    return Controller(
        index=index,
        cna=number("primary_cna", 1 << 32),
        eid=number("eid", 1 << 128).to_bytes(16, "little"),
        ummu=number("ummu_map", 64),
        numa=number("numa", 1 << 31) if (entity / "numa").exists() else -1,
    )


def _automatic(text: str) -> int:
    """A number as C reads it with base 0: 0x is hexadecimal, a leading 0 octal."""
    return int(text, 8) if re.fullmatch(r"0[0-7]+", text) else int(text, 0)
