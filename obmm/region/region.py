# SPDX-License-Identifier: Apache-2.0
"""What exported and imported regions share: identity, mappings, closing order."""

from __future__ import annotations

import abc
import errno
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Literal

from obmm.arguments import whole
from obmm.closing import Closing, Living, Scoped, die, refuse_if_busy
from obmm.driver.abi import PAGE, PMD, Cache
from obmm.errors import MappingBusyError, ObmmArgumentError
from obmm.region.kept import Kept
from obmm.region.leased import Leased

if TYPE_CHECKING:
    from obmm.mapping.mapping import Mapping
    from obmm.region.device import Device

Access = Literal["none", "r", "rw"]


class Region(Closing):
    """A unit of memory that the driver manages on this host: an export or an import.

    `mem_id` is this host's number for it (reused as soon as it is free, so never an identity), `length` its bytes
    including the header, `pmd` whether its mappings use 2 MiB blocks: the first mapping fixes that for the region's
    whole life (rule M10), so it is chosen with the region.

    >>> region = a.export_region("2MiB", label="words")
    >>> region.nbytes, region.data_offset, region.granularity, region.caches
    (4190208, 4096, 4096, ('cc', 'nc'))
    >>> with region.map("r") as memory, region.map_bytes("r", 0, 4096) as header:
    ...     len(region.mappings), header.nbytes
    (2, ...)
    >>> hold = region.hold("a friend reads it")
    >>> region.holds
    ('a friend reads it',)
    >>> region.close()
    Traceback (most recent call last):
    obmm.MappingBusyError: ...
    >>> hold.release()
    >>> region.close()
    >>> region.closed
    True
    """

    _remove_operation: str

    def __init__(
        self, device: Device, mem_id: int, length: int, *, pmd: bool, label: str, kept: Kept | None = None
    ) -> None:
        """`kept`: what to give back at the end, if this process made the region."""
        self.device = device
        self._kept = kept
        self.mem_id = mem_id
        self.length = length
        self.pmd = bool(pmd)
        self.label = label
        self.lease: Leased | None = None
        self._mappings: Living[Mapping] = Living()
        self._holds: Living[Hold] = Living()
        self._lock = threading.RLock()
        self._open = True
        self._was_cached = False
        self._warn_if_forgotten(
            f"{type(self).__name__} {mem_id} {label!r}, which stays on this host until it is removed (`obmm ls`, `obmm gc`),"
        )

    # --- description -------------------------------------------------------------------------------------------------

    @property
    @abc.abstractmethod
    def data_offset(self) -> int:
        """Where the payload starts, in bytes from the region's start.  Every Python offset counts from here."""

    @property
    @abc.abstractmethod
    def nbytes(self) -> int:
        """Bytes of payload."""

    @property
    @abc.abstractmethod
    def generation(self) -> int | None:
        """The export generation, or None for a raw region without a header."""

    @property
    def export_generation(self) -> int:
        """What names the export on every node, 0 if this object does not know it."""
        return self.generation or 0

    @property
    @abc.abstractmethod
    def caches(self) -> tuple[Cache, ...]:
        """The cache modes in which the region can be mapped; the first is the default."""

    def made_as(self, kept: Kept) -> bool:
        """Between rooms: whether `kept` notes what this region is to the host."""
        return self._kept is kept

    @property
    def granularity(self) -> int:
        """Bytes that one right covers, and the unit of ownership calls: 4096, or 2 MiB with `pmd`."""
        return PMD if self.pmd else PAGE

    @property
    def peer(self) -> str:
        """Whose memory it is, for messages."""
        return "this host"

    @property
    def holds(self) -> tuple[str, ...]:
        """Why the region must not be closed now: who lends it, and to whom."""
        return tuple(hold.why for hold in self._holds.snapshot())

    @property
    def mappings(self) -> tuple[Mapping, ...]:
        """The live mappings made through this object."""
        return tuple(mapping for mapping in self._mappings.snapshot() if not mapping.closed)

    # --- mapping -----------------------------------------------------------------------------------------------------

    def map(
        self, access: Access = "r", start: int = 0, stop: int | None = None, *, cache: Cache | None = None
    ) -> Mapping:
        """Map payload bytes [start, stop) into this process (driver specification 9.3).

        `access` is the initial right and, for "r", the most that the mapping can ever have: "none" (N, can be raised
        to either), "r" (R) or "rw" (W).  `cache` is "cc" or "nc"; an import has the kind of its window.

        `start` and `stop` in bytes.  ObmmArgumentError for a range outside of the payload, or a cache mode that the region lacks.
        """
        self._check_open()
        low, high = self._bytes_of(start, stop)
        return self.map_bytes(access, low, high, cache)

    def map_bytes(
        self, access: Access, low: int, high: int, cache: Cache | None = None, at: int | None = None
    ) -> Mapping:
        """Map bytes [low, high) of the region, header included, rounded out to its granularity.

        `at` is an address that the caller has reserved for exactly these bytes: they replace what is there.

        `access` and `cache` as for `map`, with its errors.
        """
        from obmm.mapping.mapping import Mapping  # arrows point down: a mapping knows its region, not the reverse

        unit = self.granularity
        with self._lock:
            self._check_open()
            if isinstance(cache, str) and cache == "nc" and self._was_cached:
                raise ObmmArgumentError.because(
                    "MMAP",
                    errno.EPERM,
                    f"cache='nc': {self!r} was mapped cacheable before, and the driver then miscounts non-cacheable "
                    "mappings when they close",
                    "map it 'nc' from the start, or export another region",
                    "Q11",
                )
            mapping = None
            try:
                mapping = Mapping(
                    self, access, low // unit * unit, min(-(-high // unit) * unit, self.length), cache, at
                )
                self._was_cached = self._was_cached or mapping.cache == "cc"
                self._mappings.add(mapping)
                return mapping
            except BaseException:
                if mapping is not None:
                    mapping.close(force=True)
                raise

    def verify(self, read_page: Callable[[], bytes]) -> None:
        """Between rooms: called on every new mapping of the region's start before the caller gets it: refuse memory that is not ours.

        `read_page` reads its first page through the fabric.  StaleHandleError, ObmmError: it is another export.
        """

    def _write_first_page(self, page: bytes, cache: Cache) -> None:
        from obmm.mapping.mapping import write_header_page  # arrows point down, as in map_bytes

        with self.map_bytes("rw", 0, len(page), cache) as mapping:
            write_header_page(mapping, page)

    @property
    def starts_without_right(self) -> bool:
        """True when a fresh cacheable mapping may meet old cache lines and must start with no right (rule 16-6)."""
        return False

    def _bytes_of(self, start: int, stop: int | None) -> tuple[int, int]:
        start = whole("MMAP", "start", start)
        if start == 0 and stop is None:
            return 0, self.length
        end = self.nbytes if stop is None else whole("MMAP", "stop", stop)
        if not 0 <= start < end <= self.nbytes:
            raise ObmmArgumentError.because(
                "MMAP",
                errno.EINVAL,
                f"[{start}, {end}) is empty or outside the payload of {self.nbytes} bytes",
                "offsets count from the payload, in bytes",
                "M11",
            )
        return start + self.data_offset, end + self.data_offset

    # --- closing -----------------------------------------------------------------------------------------------------

    def hold(self, why: str) -> Hold:
        """Refuse to close, saying `why`, until the hold is released.  For objects that lend this region to others."""
        with self._lock:
            self._check_open()
            return Hold(self, why)

    def close(self, force: bool = False) -> None:
        """Unmap everything and remove the region.  Idempotent.

        MappingBusyError, and nothing changed, while views live or somebody holds the region; ``force=True`` ignores
        both: late access through a view then faults in a defined way.  An EBUSY of the driver (another process has
        the region open) leaves the region, ready to be closed again.
        """
        with self._lock:
            if self._open:
                if not force:
                    self._refuse_if_busy()
                for mapping in self.mappings:
                    mapping.close(force=force)
                if self._kept is not None:
                    self._kept.remove(force=force)
                self._open = False
                self._need_not_warn()
        if self._kept is not None and not self._forked:
            self.device.give_back(self._kept, force=force)

    def _refuse_if_busy(self) -> None:
        holds = self.holds
        if holds:
            raise MappingBusyError(errno.EBUSY, f"{self} is held: {'; '.join(holds)}", operation=self._remove_operation)
        refuse_if_busy(*self.mappings)

    def _die(self) -> None:
        super()._die()
        self._need_not_warn()
        die(*self._mappings.snapshot())  # the driver does not copy mappings

    def __bool__(self) -> bool:
        return self._open

    def __repr__(self) -> str:
        state = "" if self._open else " closed"
        checked = "" if self.generation is not None else " unverified"
        label = f" {self.label!r}" if self.label else ""
        return (
            f"<{type(self).__name__}{label} mem_id={self.mem_id} length={self.length} "
            f"{'pmd' if self.pmd else 'page'}{checked}{state} on {self.device.backend}>"
        )


class Hold(Scoped):
    """Keeps a region from being closed, while it lives and until `release` or the end of a with block.

    Releasing is idempotent.
    """

    def __init__(self, region: Region, why: str) -> None:
        self._region = region
        self.why = why
        region._holds.add(self)

    def release(self) -> None:
        """The region may be closed, as far as this is concerned."""
        self._region._holds.discard(self)

    def _leave(self, failed: bool) -> None:
        self.release()
