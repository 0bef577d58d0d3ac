# SPDX-License-Identifier: Apache-2.0
"""The fault guard as Python sees it: ranges are registered once, and a handler that displaced ours is noticed.

A fault inside a registered range and a guarded call is an error code from the native call; `fault_kind` and the
range's id turn it into a `RemoteMemoryError` where the mapping is known (docs/safety.md).
"""

from __future__ import annotations

import os
import warnings
from typing import Any

from obmm._native import ffi, lib

_SIGNALS = {7: "SIGBUS", 11: "SIGSEGV"}


def fault_kind(signo: int) -> str:
    """``"SIGBUS"`` (the memory is gone) or ``"SIGSEGV"`` (no right, or no mapping)."""
    return _SIGNALS.get(signo, f"signal {signo}")


def register(address: int, length: int, identity: int) -> int:
    """Guard ``[address, address + length)``; returns the slot for `unregister`.  Ranges may overlap."""
    slot = int(lib.obmm_guard_add(ffi.cast("void *", address), length, identity))
    if slot < 0:
        raise _refused(-slot, address, length)
    return slot


def register_held(held: Any, identity: int) -> None:
    """Guard the mapping in `held` (`obmm.driver.new_held`), whose release unregisters it."""
    result = lib.obmm_held_guard(held, identity)
    if result < 0:
        raise _refused(-result, int(ffi.cast("uintptr_t", held.base)), held.length)


def _refused(code: int, address: int, length: int) -> OSError:
    return OSError(code, f"guarding [{address:#x}, +{length:#x}): {os.strerror(code)}")


def unregister(slot: int) -> None:
    """Forget a slot.  A guarded call that runs in the range from now on would take its fault as a stranger's."""
    lib.obmm_guard_remove(slot)


def verify() -> None:
    """Two system calls, for map and gather: is our handler still the first?

    If another was installed since (``faulthandler.enable()``, a runtime), ours is put back on top, the other one
    gets the faults that are not ours, and a RuntimeWarning says so.
    """
    lost = lib.obmm_guard_check()
    if not lost:
        return
    result = lib.obmm_guard_install()
    names = " and ".join(name for bit, name in enumerate(_SIGNALS.values()) if lost & (1 << bit))
    done = "it was put back in front" if result == 0 else f"it could not be put back ({os.strerror(-result)})"
    warnings.warn(
        f"a handler for {names} was installed after obmm's; without obmm's in front, a fault in remote memory would "
        f"end the process: {done}",
        RuntimeWarning,
        stacklevel=3,
    )
