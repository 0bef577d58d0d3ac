# SPDX-License-Identifier: Apache-2.0
"""Where the physical address of an import comes from (docs/windows.md, driver specification 14).

The driver's IMPORT takes a *local* physical address inside a UB window that a management plane has programmed.
A `WindowProvider` knows that address.
"""

from __future__ import annotations

import errno
from dataclasses import dataclass
from typing import Protocol

from obmm.driver.abi import BASIC_GRANULARITY, Cache
from obmm.driver.topology import Controller
from obmm.errors import ObmmArgumentError, ObmmError
from obmm.handle import Handle


@dataclass(frozen=True, slots=True, weakref_slot=True)
class Window:
    """A programmed piece of the local UB window: physical `address`, `length` in bytes, and what its kind makes of an import.

    `cache` is "cc" or "nc".

    >>> obmm.Window(0xA0000000, 2 << 20, "cc").length
    2097152
    """

    address: int
    length: int
    cache: Cache


class WindowProvider(Protocol):
    """Finds or makes the window for an import.

    >>> with a.export_region("2MiB") as region:
    ...     handle, controller = region.handle(), b.controllers[0]
    ...     window = b.windows.acquire(handle, controller, "cc")
    ...     window.length == handle.length, window.cache, b.windows.name
    ...     b.windows.release(window)
    (True, 'cc', 'emulator')
    """

    @property
    def name(self) -> str:
        """What `doctor` prints: "emulator", "static <path>", "explicit"."""

    def acquire(self, handle: Handle, controller: Controller, cache: Cache | None) -> Window:
        """A window of `controller` onto the memory of `handle`; `cache` None leaves the kind to the provider.

        ObmmError when it knows none.
        """

    def release(self, window: Window) -> None:
        """Give the `window` back.  Called after UNIMPORT, and after an import that failed."""


@dataclass(frozen=True, slots=True)
class ExplicitWindow:
    """A window whose `address` the caller knows: one import, at this address (a `WindowProvider`).

    `cache` is its kind, "cc" or "nc".  ObmmArgumentError for an address that is not a multiple of 2 MiB, and for another kind
    than the import asks for.

    >>> window = obmm.ExplicitWindow(0xA0000000, "cc")
    >>> with a.export_region("2MiB") as region:
    ...     given = window.acquire(region.handle(), b.controllers[0], None)
    >>> given.address == window.address, window.name
    (True, 'explicit')
    >>> window.release(given)
    """

    address: int
    cache: Cache

    def __post_init__(self) -> None:
        if not 0 < self.address < 1 << 64 or self.address % BASIC_GRANULARITY:
            raise ObmmArgumentError.because(
                "IMPORT",
                errno.EINVAL,
                f"window address {self.address:#x} is zero or not a multiple of 2 MiB",
                "the local physical address of a programmed window, never the exporter's UBA",
                "I7/I8",
            )
        if self.cache not in ("cc", "nc"):
            raise ObmmArgumentError.because(
                "IMPORT", errno.EINVAL, f"cache={self.cache!r} is not a kind of window", "'cc' or 'nc'", "I14"
            )

    @property
    def name(self) -> str:
        """ "explicit"."""
        return "explicit"

    def acquire(self, handle: Handle, controller: Controller, cache: Cache | None) -> Window:
        """The window, for `handle`; `controller` is not looked at, `cache` must be None or the window's kind
        (ObmmArgumentError).
        """
        if cache not in (None, self.cache):
            raise ObmmArgumentError.because(
                "IMPORT",
                errno.EINVAL,
                f"cache={cache!r} was asked for, but the window at {self.address:#x} is {self.cache!r}",
                f"a {cache} window",
                "I14",
            )
        return Window(self.address, handle.length, self.cache)

    def release(self, window: Window) -> None:
        """The caller owns the address: nothing to give back."""


class NoWindows:
    """What a real host without a table has: nothing, and a text that says so."""

    name = "none"

    def acquire(self, handle: Handle, controller: Controller, cache: Cache | None) -> Window:
        raise ObmmError(
            errno.ENXIO,
            "no window provider: IMPORT takes a local physical address of a UB window that the management plane has "
            "programmed (driver specification 14); fix: pass window=<address>, or a static table by OBMM_WINDOWS, or "
            "attach to a region that the management plane imported",
            operation="IMPORT",
        )

    def release(self, window: Window) -> None:
        pass
