# SPDX-License-Identifier: Apache-2.0
"""Several mappings at consecutive addresses, used as one (Engram specification 5.2)."""

from __future__ import annotations

import ctypes
import errno
import mmap
from collections.abc import Sequence
from itertools import pairwise
from typing import Final, Self

from obmm.closing import Owner
from obmm.driver.abi import Cache
from obmm.errors import ObmmArgumentError, ObmmError
from obmm.mapping.mapping import Mapping
from obmm.mapping.memory import Memory
from obmm.region.region import Access, Region

_MAP_NORESERVE: Final = 0x4000


class Strip(Memory):
    """The payloads of `mappings`, which lie side by side, as one range: everything that a `Mapping` can, across the seams.

    Offsets are in bytes from the first mapping's first payload byte.  With `owned` closing the strip closes the mappings.
    ObmmArgumentError when the mappings do not follow each other.

    >>> first, second = a.export_region("2MiB", header=False), a.export_region("2MiB", header=False)
    >>> strip = obmm.mapping.Strip.side_by_side([first, second], "rw")
    >>> with strip.writing():
    ...     strip.write((2 << 20) - 2, b"seam")
    4
    >>> strip.read((2 << 20) - 2, 4), len(strip.mappings), strip.nbytes >> 20
    (b'seam', 2, 4)
    >>> strip.close(), first.close(), second.close()
    (None, None, None)
    """

    def __init__(self, mappings: Sequence[Mapping], *, owned: bool) -> None:
        if not mappings or not all(isinstance(mapping, Mapping) for mapping in mappings):
            raise _bad(f"mappings={mappings!r:.60}", "at least one mapping")
        for mapping, following in pairwise(mappings):
            if mapping.address + mapping.nbytes != following.address or mapping.cache != following.cache:
                raise _bad(
                    f"{following!r} does not follow {mapping!r}", "map the regions with side_by_side(), in order"
                )
        super().__init__([mapping._piece for mapping in mappings], 0, sum(mapping.nbytes for mapping in mappings))
        self._mappings = tuple(mappings)
        self._owned = owned

    @classmethod
    def side_by_side(cls, regions: Sequence[Region], access: Access = "r", cache: Cache | None = None) -> Self:
        """Map the payloads of `regions`, in order, at consecutive addresses.

        The first one's header is mapped in front; the payloads of all but the last must be whole granules.

        `access` and `cache` as for `Region.map`.
        """
        return cls(map_side_by_side(regions, access, cache), owned=True)

    @property
    def mappings(self) -> tuple[Mapping, ...]:
        """In order."""
        return self._mappings

    def close(self, force: bool = False) -> None:
        """Unmap, the last one first, if the mappings are its own.  Idempotent, otherwise as `Mapping.close`.

        `force` as there.
        """
        if not self._owned:
            return
        if not force:
            self._refuse_if_busy()
        for mapping in reversed(self._mappings):
            mapping.close(force)

    def __repr__(self) -> str:
        state = "closed" if self.closed else f"right={self.right.letter}"
        return f"<{type(self).__name__} {self.nbytes} bytes in {len(self._mappings)} mappings {self.cache} {state} of {self.region!r}>"


def map_side_by_side(regions: Sequence[Region], access: Access, cache: Cache | None) -> list[Mapping]:
    """A mapping of each region's payload, at consecutive addresses; the caller closes them."""
    if not isinstance(regions, Sequence) or not regions or not all(isinstance(region, Region) for region in regions):
        raise _bad(f"regions={regions!r:.60}", "at least one region")
    units = [region.granularity for region in regions]
    for region, unit in zip(regions[:-1], units, strict=False):
        if region.nbytes % unit or region.data_offset % unit:
            raise _bad(
                f"{region!r}: a payload of {region.nbytes} bytes at {region.data_offset} cannot lie next to another",
                "use raw regions (header=False) for segments with 2 MiB blocks, or slot mode in one region",
            )
    sizes = [region.nbytes for region in regions]
    room = _Room(regions[0].data_offset + sum(sizes), max(units))
    mappings: list[Mapping] = []
    try:
        at = room.address
        for i, region in enumerate(regions):
            low = region.data_offset if i else 0
            mapping = region.map_bytes(access, low, region.data_offset + region.nbytes, cache, at)
            mappings.append(mapping)
            at = mapping._piece.end
            room.used_up_to(at)
    except BaseException:
        for mapping in mappings:
            mapping.close()
        raise
    finally:
        room.give_back()
    return mappings


class _Room(Owner):
    """Reserved addresses that mappings replace from the front on."""

    def __init__(self, length: int, alignment: int) -> None:
        libc = ctypes.CDLL(None, use_errno=True)
        libc.mmap.restype = ctypes.c_void_p
        libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
        libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
        self._munmap = libc.munmap
        length = -(-length // mmap.PAGESIZE) * mmap.PAGESIZE
        whole = length + alignment
        start = libc.mmap(None, whole, 0, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _MAP_NORESERVE, -1, 0)
        if start == ctypes.c_void_p(-1).value:
            code = ctypes.get_errno()
            raise ObmmError(code, f"reserving {whole} bytes of addresses failed", operation="MMAP")
        self.address = -(-start // alignment) * alignment
        self._end = start + whole
        if self.address > start:
            self._munmap(start, self.address - start)
        self._next = self.address

    def used_up_to(self, address: int) -> None:
        """Everything below belongs to mappings now."""
        self._next = address

    def give_back(self) -> None:
        """Unmap what is left."""
        if self._next < self._end:
            self._munmap(self._next, self._end - self._next)
            self._next = self._end


def _bad(problem: str, fix: str) -> ObmmArgumentError:
    return ObmmArgumentError.because("MMAP", errno.EINVAL, problem, fix, "Engram specification 5.2")
