# SPDX-License-Identifier: Apache-2.0
"""Coherent caches: what loads and stores see without strict mode."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .mapping import map_pieces, memory_pieces

if TYPE_CHECKING:
    from .calls import Action
    from .host import Host
    from .region import Region
    from .vma import Vma


class CoherentCaches:
    """Exporter and importers share one memory; maintenance has nothing to do (22.3 rule 1)."""

    def map_actions(self, host: Host, vma: Vma) -> list[Action]:
        """The client's mmap calls that make `vma` real."""
        pieces = memory_pieces(host, vma.region, vma.offset, vma.end - vma.start)
        return map_pieces(vma.start, vma.rights, pieces)

    def flush(self, region: Region, offset: int, length: int, operation: int) -> None:
        """Write back or drop lines of a part of `region`."""
