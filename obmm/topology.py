# SPDX-License-Identifier: Apache-2.0
"""Local UB controllers and the export granule, read from sysfs (driver specification 12, 13 and 18)."""

from __future__ import annotations

import re
import struct
from dataclasses import dataclass
from pathlib import Path

from obmm.abi import BASIC_GRANULARITY

_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}


@dataclass(frozen=True, slots=True)
class Controller:
    """One local bus controller: what an export or import names as its own side.

    `cna` is its primary CNA, `eid` 16 raw bytes, `ummu` the index of its UMMU, `numa` its NUMA node.
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
    """The controllers below ``<root>/sys/devices``, by index.  World-readable, so no privilege is needed."""
    found = []
    for folder in Path(f"{root}/sys/devices").glob("ub_bus_controller*"):
        match = re.fullmatch(r"ub_bus_controller(\d+)", folder.name)
        entity = next((path.parent for path in sorted(folder.glob("*/ubc"))), None)
        if match and entity:
            found.append(_controller(int(match[1]), entity))
    return tuple(sorted(found, key=lambda controller: controller.index))


def granule(root: str = "") -> int:
    """The unit of export sizes in bytes: the memseg when its parameter is readable (root only), else 2 MiB."""
    path = Path(f"{root}/sys/module/obmm/parameters/mem_allocator_granu")
    try:
        text = path.read_text().strip()
    except OSError:
        return BASIC_GRANULARITY
    match = re.fullmatch(r"(\d+)([KMGT]?)B?", text)
    return int(match[1]) * _UNITS[match[2]] if match else BASIC_GRANULARITY


def _controller(index: int, entity: Path) -> Controller:
    def number(name: str) -> int:
        return int((entity / name).read_text().strip(), 0)

    return Controller(
        index=index,
        cna=number("primary_cna"),
        eid=number("eid").to_bytes(16, "little"),
        ummu=number("ummu_map"),
        numa=number("numa"),
    )
