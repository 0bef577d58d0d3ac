# SPDX-License-Identifier: Apache-2.0
"""What regions and mappings need of a lease (`obmm.exchange.Lease` has it)."""

from __future__ import annotations

from typing import Protocol

from obmm.handle import Handle


class Leased(Protocol):
    """A handle that somebody lends for a time."""

    @property
    def handle(self) -> Handle: ...

    @property
    def name(self) -> str:
        """What the owner calls the region."""
        ...

    @property
    def age(self) -> float:
        """Seconds since the owner was last heard from."""
        ...

    @property
    def usable(self) -> bool:
        """True while new views and guarded calls are allowed."""
        ...

    def check(self) -> None:
        """Raise, with the reason, unless `usable`."""

    def importing(self, where: str) -> None:
        """It is about to be imported on the device `where`; raises as `check` does."""

    def attach(self, user: object) -> None:
        """`user` was imported under this lease."""

    def detach(self, user: object) -> None:
        """`user` was removed from the driver; the last one's end releases the lease."""
