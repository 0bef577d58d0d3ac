# SPDX-License-Identifier: Apache-2.0
"""What a region that this process made is to the host, noted so that it is given back exactly once.

An interrupt may come between any two instructions.  So the device has a record of each region before the region exists,
every step is noted by the very call that makes it or undoes it, and giving back can be repeated until all is done.
"""

from __future__ import annotations

import errno
import threading
import warnings
from pathlib import Path
from typing import Any, Literal, Protocol

from obmm.closing import Owner
from obmm.driver.abi import Cache
from obmm.driver.calls import Driver, new_owned
from obmm.driver.topology import Controller
from obmm.errors import ObmmError
from obmm.handle import Handle
from obmm.region.leased import Leased
from obmm.region.stamp import OwnerStamp
from obmm.undisturbed import undisturbed
from obmm.windows.provider import Window, WindowProvider


class Pages(Protocol):
    """Memory of this process that the region is made of."""

    def free(self) -> None:
        """Give it back.  Idempotent."""


class Kept(Owner):
    """A region of this process in the driver, its windows, its lease and its pinned pages.

    `priv` is the private data that the region was made with: before it is removed, the region of that number must still
    carry it.
    """

    def __init__(self, driver: Driver, kind: Literal["export", "import"], priv: bytes) -> None:
        self._driver = driver
        self._kind = kind
        self._priv = priv
        self._lock = threading.RLock()
        self.owned: Any = new_owned()
        """``struct obmm_owned *``, for the call that makes the region."""
        self.windows: list[tuple[WindowProvider, Window]] = []
        self.lease: Leased | None = None
        self.pages: Pages | None = None

    @property
    def mem_id(self) -> int:
        """The region's number on this host; 0 before it was made and once it is removed."""
        return int(self.owned.mem_id)

    @property
    def settled(self) -> bool:
        """Nothing is held."""
        return not (self.mem_id or self.windows or self.lease or self.pages)

    def give_back(self, *, force: bool = False) -> None:
        """Remove the region, then what it was made with.  Can be repeated until it succeeded.

        `force`: an emulator that is gone has taken the region with it, and one that can never be removed stays.
        """
        with self._lock:
            self.remove(force=force)
            if self.lease is not None:
                self.lease.detach(self)
                self.lease = None

    def remove(self, *, force: bool = False) -> None:
        """All of it but the lease, whose owner may be told when the region does not count as open any more."""
        with self._lock:
            if self.mem_id:
                self._remove(force)
            self.release_windows()
            if self.pages is not None:
                self.pages.free()
                self.pages = None

    def acquire_window(
        self, provider: WindowProvider, handle: Handle, local: Controller, wanted: Cache | None
    ) -> tuple[Window, bool]:
        """A window of the provider's, which is this region's from now on -> (it, whether it was given before)."""

        def take() -> None:
            self.windows.append((provider, provider.acquire(handle, local, wanted)))

        undisturbed(take)
        *before, (_, window) = self.windows
        return window, any(window == taken for _, taken in before)

    def release_windows(self, but: Window | None = None) -> None:
        """Give the windows back, all but one."""
        for held in list(self.windows):
            provider, window = held
            if window is not but:
                provider.release(window)
                self.windows.remove(held)

    def _remove(self, force: bool) -> None:
        if self._is_somebody_elses():
            self._is_gone("the number belongs to another region now")
            return
        try:
            if self._kind == "export":
                self._driver.unexport_owned(self.owned)
            else:
                self._driver.unimport_owned(self.owned)
        except ObmmError as error:
            if error.errno == errno.ENOENT:
                self._is_gone("there is no such region any more")
            elif error.errno == errno.ESHUTDOWN or (force and error.errno == errno.ENOTRECOVERABLE):
                self.owned.mem_id = 0  # the emulator's server is gone, and every region with it
            else:
                raise

    def _is_gone(self, how: str) -> None:
        number, self.owned.mem_id = self.mem_id, 0
        warnings.warn(
            f"{self._kind} {number} of this process was removed by somebody else, and {how}: nothing was removed now",
            RuntimeWarning,
            stacklevel=5,
        )

    def _is_somebody_elses(self) -> bool:
        """Numbers are used again at once.  Where sysfs does not tell, the number is believed."""
        try:
            found = Path(f"{self._driver.root}/sys/devices/obmm/obmm_shmdev{self.mem_id}/priv").read_bytes()
        except OSError:
            return False
        mine, theirs = OwnerStamp.find(self._priv), OwnerStamp.find(found)
        return mine != theirs if mine is not None else theirs is not None

    def __repr__(self) -> str:
        return f"<{self._kind} {self.mem_id or 'without a region'} of {self._driver.backend}>"
