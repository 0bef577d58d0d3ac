# SPDX-License-Identifier: Apache-2.0
"""What exported and imported regions share: identity, mappings, closing order."""

from __future__ import annotations

import abc
import errno
import os
import threading
import warnings
import weakref
from types import TracebackType
from typing import TYPE_CHECKING, Literal, Self

from obmm.arguments import whole
from obmm.closing import close_on_exit
from obmm.errors import ClosedError, MappingBusyError, ObmmArgumentError, ObmmError
from obmm.leased import Leased
from obmm.living import Living
from obmm.window import Cache

if TYPE_CHECKING:
    from obmm.device import Device
    from obmm.mapping import Mapping

PAGE = 4096
PMD = 2 << 20

Access = Literal["none", "r", "rw"]


class Region(abc.ABC):
    """A unit of memory that the driver manages on this host: an export or an import.

    `mem_id` is this host's number for it (reused as soon as it is free, so never an identity), `length` its bytes
    including the header, `pmd` whether its mappings use 2 MiB blocks: the first mapping fixes that for the region's
    whole life (rule M10), so it is chosen with the region.
    """

    _remove_operation: str

    def __init__(self, device: Device, mem_id: int, length: int, *, pmd: bool, label: str) -> None:
        self.device = device
        self.mem_id = mem_id
        self.length = length
        self.pmd = bool(pmd)
        self.label = label
        self.lease: Leased | None = None
        self._mappings: Living[Mapping] = Living()
        self._holds: dict[int, str] = {}
        self._lock = threading.RLock()
        self._open = True
        self._was_cached = False
        self._warn = weakref.finalize(self, _warn_leak, f"{type(self).__name__} {mem_id} {label!r}", os.getpid())
        self._warn.atexit = False

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

    @property
    def granularity(self) -> int:
        """Bytes that one right covers, and the unit of ownership calls: 4096, or 2 MiB with `pmd`."""
        return PMD if self.pmd else PAGE

    @property
    def peer(self) -> str:
        """Whose memory it is, for messages."""
        return "this host"

    @property
    def closed(self) -> bool:
        """True once the region was removed, or its device closed, or the process forked."""
        return not self._open

    @property
    def holds(self) -> tuple[str, ...]:
        """Why the region must not be closed now: who lends it, and to whom."""
        return tuple(self._holds.values())

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
        """
        self._check_open()
        low, high = self._bytes_of(start, stop)
        return self.map_bytes(access, low, high, cache)

    def map_bytes(
        self, access: Access, low: int, high: int, cache: Cache | None = None, at: int | None = None
    ) -> Mapping:
        """Map bytes [low, high) of the region, header included, rounded out to its granularity.

        `at` is an address that the caller has reserved for exactly these bytes: they replace what is there.
        """
        from obmm.mapping import Mapping  # arrows point down: a mapping knows its region, not the reverse

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

    def verify(self, mapping: Mapping) -> None:  # noqa: B027 - an export has nothing to verify
        """Called on every new mapping of the region's start before anybody gets it: refuse memory that is not ours."""

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
        """Refuse to close, saying `why`, until the hold is released.  For whoever lends this region to others."""
        return Hold(self, why)

    def close(self, force: bool = False) -> None:
        """Unmap everything and remove the region.  Idempotent.

        MappingBusyError, and nothing changed, while views live or somebody holds the region; ``force=True`` ignores
        both: late access through a view then faults in a defined way.  An EBUSY of the driver (another process has
        the region open) leaves the region, ready to be closed again.
        """
        with self._lock:
            if not self._open:
                return
            if not force:
                self.refuse_if_busy()
            for mapping in self.mappings:
                mapping.close(force=force)
            # closed before the call: interrupted right after it, a second removal could hit the id's next owner
            self._open = False
            try:
                self._remove()
            except ObmmError as error:
                # ESHUTDOWN: the emulator is gone, and the region with it
                if not (force and error.errno == errno.ESHUTDOWN):
                    self._open = True
                    raise
            self._warn.detach()
        self._removed()

    @abc.abstractmethod
    def _remove(self) -> None:
        """The driver's removal."""

    def _removed(self) -> None:  # noqa: B027 - an export owes nobody anything afterwards
        """What follows a successful removal."""

    def refuse_if_busy(self) -> None:
        """MappingBusyError that names what keeps the region from being closed, if anything does."""
        holds = self.holds
        if holds:
            raise MappingBusyError(errno.EBUSY, f"{self} is held: {'; '.join(holds)}", operation=self._remove_operation)
        for mapping in self.mappings:
            mapping.refuse_if_busy("close")

    def _check_open(self) -> None:
        if not self._open:
            raise ClosedError.of(self)

    def die(self) -> None:
        """In a forked child: the driver does not copy mappings, and the region belongs to the parent."""
        self._open = False
        self._warn.detach()
        for mapping in self._mappings.snapshot():
            mapping.die()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        close_on_exit(self, error)

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


class Hold:
    """Keeps a region from being closed.  Released once, by `release` or as a context manager."""

    def __init__(self, region: Region, why: str) -> None:
        self._region = region
        with region._lock:
            region._check_open()
            region._holds[id(self)] = why

    def release(self) -> None:
        self._region._holds.pop(id(self), None)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()


def _warn_leak(what: str, pid: int) -> None:
    if pid == os.getpid():
        warnings.warn(
            f"{what} was never closed: the region stays on this host until it is removed (`obmm ls`, `obmm gc`)",
            ResourceWarning,
            stacklevel=2,
        )
