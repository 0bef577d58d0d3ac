# SPDX-License-Identifier: Apache-2.0
"""The fault guard as Python sees it: ranges are registered once, and ours stays the first handler (docs/safety.md).

A fault inside a registered range and a guarded call is an error code from the native call; `fault_kind` and the
range's id turn it into a `RemoteMemoryError` where the mapping is known.

Every thread's guarded calls look every now and then whether a fault would reach us.  What Python's own modules do to
handlers and masks is seen at once: `verify` puts a look behind ``signal.signal``, ``signal.pthread_sigmask``,
``faulthandler.enable`` and ``faulthandler.disable``.  ``signal.signal`` with SIG_DFL or SIG_IGN never reaches the kernel
while ranges may be in use: in the moment until the look a fault of another thread would end the process.
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]
import faulthandler
import functools
import os
import threading
from collections.abc import Callable
from typing import Any

from obmm._native import ffi, lib

_SIGNALS = {7: "SIGBUS", 11: "SIGSEGV"}
_MARK = "_obmm_looks_behind"

_told: dict[int, int] = {}
"""SIG_DFL or SIG_IGN, where the program has asked for it and the guard stands for it."""


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
    """Guard the mapping in `held` (`Driver.new_held`), whose release unregisters it."""
    result = lib.obmm_held_guard(held, identity)
    if result < 0:
        raise _refused(-result, int(ffi.cast("uintptr_t", held.base)), held.length)


def _refused(code: int, address: int, length: int) -> OSError:
    return OSError(code, f"guarding [{address:#x}, +{length:#x}): {os.strerror(code)}")


def unregister(slot: int) -> None:
    """Forget a slot.  A guarded call that runs in the range from now on would take its fault as a stranger's."""
    lib.obmm_guard_remove(slot)


def verify() -> None:
    """Our handler is the first now, and stays so whatever Python's own modules install later.

    Who displaced it (a runtime, a crash reporter) gets the faults that are not ours, once each.
    """
    _displace_behind()
    _look_behind(_signal, "signal", lib.obmm_guard_look)
    _look_behind(_signal, "pthread_sigmask", lib.obmm_guard_distrust)
    _look_behind(faulthandler, "enable", lib.obmm_guard_look)
    _look_behind(faulthandler, "disable", lib.obmm_guard_look)
    lib.obmm_guard_look()


def _look_behind(module: Any, name: str, look: Callable[[], None]) -> None:
    """Let `look` follow each call of ``module.name`` that is made through the module, once."""
    call = getattr(module, name)
    if getattr(call, _MARK, False):
        return

    @functools.wraps(call)
    def followed(*args: Any, **options: Any) -> Any:
        try:
            return call(*args, **options)
        finally:
            look()  # the one call here: an interrupt comes after it, not in its place

    setattr(followed, _MARK, True)
    setattr(module, name, followed)


def _displace_behind() -> None:
    """Let the guard stand for SIG_DFL and SIG_IGN, once; ``signal.getsignal`` answers what was asked for."""
    install, asked = _signal.signal, _signal.getsignal
    if getattr(asked, _MARK, False):
        return

    @functools.wraps(asked)
    def getsignal(signalnum: Any, /) -> Any:
        return _told[signalnum] if signalnum in _told else asked(signalnum)

    @functools.wraps(install)
    def signal(signalnum: Any, handler: Any, /) -> Any:
        before = getsignal(signalnum)  # ValueError for what is not a signal
        if _can_stand_for(signalnum, handler) and not lib.obmm_guard_displace(signalnum, handler == _signal.SIG_IGN):
            _told[signalnum] = int(handler)
        else:
            install(signalnum, handler)
            _told.pop(signalnum, None)
        return before

    setattr(getsignal, _MARK, True)
    _signal.signal, _signal.getsignal = signal, getsignal


def _can_stand_for(signalnum: object, handler: object) -> bool:
    """Only the main thread may install handlers; the others get Python's own refusal."""
    return (
        signalnum in _SIGNALS
        and isinstance(handler, int)
        and handler in (_signal.SIG_DFL, _signal.SIG_IGN)
        and threading.get_ident() == threading.main_thread().ident
    )
