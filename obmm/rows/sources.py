# SPDX-License-Identifier: Apache-2.0
"""What a store can be attached to, and the forms in which a manifest comes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from obmm.driver.abi import Cache
from obmm.mapping import Memory
from obmm.region.region import Access, Region
from obmm.rows.errors import refused
from obmm.rows.manifest import Manifest
from obmm.rows.mapped import MappedMemory
from obmm.rows.memory import RowMemory

Source = Memory | RowMemory | Sequence[Region]


def manifest_of(manifest: Manifest | bytes | str | dict[str, Any]) -> Manifest:
    """`manifest` itself, or what its JSON describes."""
    if isinstance(manifest, Manifest):
        return manifest
    return Manifest.from_json(manifest) if isinstance(manifest, bytes | str) else Manifest.from_dict(manifest)


def memory_of(source: Source, access: Access, cache: Cache | None) -> RowMemory:
    """The memory of a store; regions are mapped for it."""
    if isinstance(source, Memory):
        return MappedMemory(source, owned=False)
    if isinstance(source, Sequence):
        if not source or not all(isinstance(region, Region) for region in source):
            raise refused(f"source={source!r:.60}", "at least one region, or a mapping", "5.2")
        return MappedMemory.side_by_side(source, access, cache)
    if not hasattr(source, "version_address"):
        raise refused(f"source={source!r:.60}", "a mapping, a list of regions, or another RowMemory", "13.2")
    return source
