# SPDX-License-Identifier: Apache-2.0
"""Windows of an emulated node: the provider programs the emulated decoder (driver specification 22.3 rule 2)."""

from __future__ import annotations

import errno
import weakref
from typing import Any

from obmm._native import ffi, lib
from obmm.closing import Owner
from obmm.driver.abi import Cache
from obmm.driver.calls import Driver
from obmm.driver.topology import Controller
from obmm.errors import ObmmError
from obmm.handle import Handle
from obmm.windows.provider import Window

_KINDS: dict[Cache, int] = {"cc": 1, "nc": 2}


class EmulatorWindows(Owner):
    """Plays the management plane of an emulated node: each import gets its own decoder entry."""

    def __init__(self, driver: Driver) -> None:
        self._sys = driver.direct
        # by the window object: (window, uint64_t *) that the native calls fill and clear themselves; unclaimed: not made yet
        self._programmed: dict[int, tuple[Window, Any]] = {}
        self._unclaimed: list[Any] = []
        self._released: weakref.WeakValueDictionary[int, Window] = weakref.WeakValueDictionary()

    @property
    def name(self) -> str:
        return "emulator"

    def acquire(self, handle: Handle, controller: Controller, cache: Cache | None) -> Window:
        """Program a window of `controller`, cacheable unless asked otherwise, onto the handle's memory."""
        kind: Cache = cache or "cc"
        wanted = ffi.new("struct obmm_emulator_window *")
        wanted.owner_eid = list(handle.owner_eid)
        wanted.owner_cna = handle.owner_cna
        wanted.tokenid = handle.tokenid
        wanted.uba = handle.uba
        wanted.length = handle.length
        wanted.local_cna = controller.cna
        wanted.cache = _KINDS[kind]
        address = ffi.new("uint64_t *")
        self._unclaimed.append(address)
        try:
            result = lib.obmm_emulator_program(self._sys, wanted, address)
            if result < 0:
                raise ObmmError.refused(
                    "PROGRAM_WINDOW",
                    -result,
                    owner_cna=handle.owner_cna,
                    local_cna=controller.cna,
                    length=handle.length,
                    cache=kind,
                )
            window = Window(int(address[0]), handle.length, kind)
            self._programmed[id(window)] = (window, address)
            return window
        except BaseException:  # an interrupt right after the call: no other code knows the window
            self._unprogram(address)
            raise
        finally:
            self._unclaimed.remove(address)

    def release(self, window: Window) -> None:
        """Forget the decoder entry.  Idempotent; a window that a dead process programmed is forgotten, too."""
        entry = self._programmed.get(id(window))
        if entry is None:
            if self._released.get(id(window)) is window:
                return
            entry = window, ffi.new("uint64_t *", window.address)
        self._released[id(window)] = window  # the native call clears its note: from here on it is done once
        self._unprogram(entry[1])
        self._programmed.pop(id(window), None)

    def forget(self) -> None:
        """Forget every decoder entry that is left: no import of this provider's exists any more."""
        for address in tuple(self._unclaimed):
            self._unprogram(address)
        for window, _ in tuple(self._programmed.values()):
            self.release(window)

    def _unprogram(self, address: Any) -> None:
        result = lib.obmm_emulator_release(self._sys, address)
        if result < 0 and result != -errno.ESHUTDOWN:  # an emulator that is gone has no decoder
            raise ObmmError.refused("PROGRAM_WINDOW", -result, address=int(address[0]))
