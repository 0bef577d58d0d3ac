# SPDX-License-Identifier: Apache-2.0
"""Windows of an emulated node: the provider programs the emulated decoder (driver specification 22.3 rule 2)."""

from __future__ import annotations

from obmm._native import ffi, lib
from obmm.driver import Driver
from obmm.errors import ObmmError
from obmm.handle import Handle
from obmm.topology import Controller
from obmm.window import Cache, Window

_KINDS: dict[Cache, int] = {"cc": 1, "nc": 2}


class EmulatorWindows:
    """Plays the management plane of an emulated node: each import gets its own decoder entry."""

    def __init__(self, driver: Driver) -> None:
        self._sys = driver.direct

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
            return Window(int(address[0]), handle.length, kind)
        except BaseException:  # an interrupt right after the call: nobody else knows the window
            if address[0]:
                lib.obmm_emulator_unprogram(self._sys, address[0])
            raise

    def release(self, window: Window) -> None:
        """Forget the decoder entry."""
        result = lib.obmm_emulator_unprogram(self._sys, window.address)
        if result < 0:
            raise ObmmError.refused("PROGRAM_WINDOW", -result, address=window.address)
