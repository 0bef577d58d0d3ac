# SPDX-License-Identifier: Apache-2.0
"""Where the physical address of an import comes from (docs/windows.md, driver specification 14).

The driver's IMPORT takes a *local* physical address inside a UB window that a management plane has programmed.
A `WindowProvider` is whoever knows that address.
"""

from __future__ import annotations

import errno
from dataclasses import dataclass
from typing import Literal, Protocol

from obmm.abi import BASIC_GRANULARITY
from obmm.errors import ObmmArgumentError
from obmm.handle import Handle
from obmm.topology import Controller

Cache = Literal["cc", "nc"]


@dataclass(frozen=True, slots=True)
class Window:
    """A programmed piece of the local UB window: physical address, bytes, and what its kind makes of an import."""

    address: int
    length: int
    cache: Cache


class WindowProvider(Protocol):
    """Finds or makes the window for an import."""

    @property
    def name(self) -> str:
        """What `doctor` prints: "emulator", "static <path>", "explicit"."""

    def acquire(self, handle: Handle, controller: Controller, cache: Cache | None) -> Window:
        """A window of `controller` onto the handle's memory; `cache` None leaves the kind to the provider."""

    def release(self, window: Window) -> None:
        """Give the window back.  Called after UNIMPORT, and after an import that failed."""


@dataclass(frozen=True, slots=True)
class ExplicitWindow:
    """A window whose address the caller knows: one import, at this address."""

    address: int
    cache: Cache

    def __post_init__(self) -> None:
        if not 0 < self.address < 1 << 64 or self.address % BASIC_GRANULARITY:
            raise ObmmArgumentError.because(
                "IMPORT",
                errno.EINVAL,
                f"window address {self.address:#x} is zero or no multiple of 2 MiB",
                "the local physical address of a programmed window, never the exporter's UBA",
                "I7/I8",
            )
        if self.cache not in ("cc", "nc"):
            raise ObmmArgumentError.because(
                "IMPORT", errno.EINVAL, f"cache={self.cache!r} is no kind of window", "'cc' or 'nc'", "I14"
            )

    @property
    def name(self) -> str:
        return "explicit"

    def acquire(self, handle: Handle, controller: Controller, cache: Cache | None) -> Window:
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
