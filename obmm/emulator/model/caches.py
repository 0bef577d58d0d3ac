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

    def __init__(self, host: Host) -> None:
        self._host = host

    def map_actions(self, vma: Vma, start: int, end: int) -> list[Action]:
        """The client's mmap calls that make [start, end) of `vma` real."""
        pieces = memory_pieces(self._host, vma.region, vma.offset + start - vma.start, end - start)
        return map_pieces(start, vma.rights, pieces)

    def acquire(self, vma: Vma) -> None:
        """Rights appear on a piece."""

    def flush(self, region: Region, offset: int, length: int, operation: int) -> None:
        """Write back or drop lines of a part of `region`."""

    def drop(self, region: Region, offset: int, length: int) -> None:
        """What is behind a part of `region` has changed: no line of it is worth keeping."""

    def tick(self) -> None:
        """A driver call on this host."""

    def forget(self, region: Region) -> None:
        """The region is gone, or what is behind it."""

    def close(self) -> None:
        """The host is gone."""
