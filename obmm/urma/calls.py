# SPDX-License-Identifier: Apache-2.0
"""One call of the library: errno cleared before, its answer explained after (URMA specification 6)."""

from __future__ import annotations

import threading
from typing import Any

from obmm.closing import in_forked_children
from obmm.urma.abi import ffi
from obmm.urma.errors import UrmaError
from obmm.urma.library import Library


class Calls:
    """The functions of `library` by their names without ``urma_``."""

    def __init__(self, library: Library) -> None:
        self.library = library

    def pointer(self, operation: str, *arguments: Any, **fields: object) -> Any:
        """A call that answers a pointer; UrmaError for NULL, also where the provider gave no reason."""
        ffi.errno = 0
        made = getattr(self.library.raw, "urma_" + operation)(*arguments)
        if not made:
            raise UrmaError.answered(operation, ffi.errno, str(self.library), **fields)
        return made

    def status(self, operation: str, *arguments: Any, **fields: object) -> None:
        """A call that answers a status; UrmaError for anything but 0."""
        code = getattr(self.library.raw, "urma_" + operation)(*arguments)
        if code:
            raise UrmaError.answered(operation, int(code), str(self.library), **fields)

    def address(self, name: str) -> int:
        """Of a function, for native code."""
        return int(ffi.cast("uintptr_t", ffi.addressof(self.library.raw, name)))


_lock = threading.Lock()
_users: dict[str, int] = {}


def acquire(library: Library) -> Calls:
    """One more user of the library, which is initialised for the first one.  `release` it."""
    with _lock:
        calls = Calls(library)
        if not _users.get(library.path):
            calls.status("init", ffi.NULL)
        _users[library.path] = _users.get(library.path, 0) + 1
        return calls


def release(calls: Calls) -> None:
    """One user less; the last one's end is the library's."""
    with _lock:
        left = _users[calls.library.path] - 1
        if not left:
            calls.status("uninit")
        _users[calls.library.path] = left


@in_forked_children
def _forked() -> None:
    """What the parent initialised is the parent's."""
    global _lock
    _lock = threading.Lock()
    _users.clear()
