# SPDX-License-Identifier: Apache-2.0
"""Mapped memory of regions: guarded access, rights, views.

`Memory` is what `Mapping` (one region, by `Region.map`) and `Strip` (several side by side) have in common.
"""

from obmm.mapping.mapping import Mapping
from obmm.mapping.memory import Memory
from obmm.mapping.ownership import Right
from obmm.mapping.strip import Strip

__all__ = ["Mapping", "Memory", "Right", "Strip"]
