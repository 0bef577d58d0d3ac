# SPDX-License-Identifier: Apache-2.0
"""A file descriptor with an owner: noted by the call that makes it, closed once, at the latest with its object.

Between ``fd = os.open(...)`` and its note a signal handler may raise, and the descriptor leaks.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from typing import Any, Self

from obmm._native import ffi, lib
from obmm.closing import Owner
from obmm.errors import ObmmError


class Descriptor(Owner):
    """Made by `eventfd`, `memfd`, `open` or `dup`; all of them close on exec, and raise ObmmError."""

    __slots__ = ("_note",)

    def __init__(self) -> None:
        # the destructor is a function in C: no interrupt can come into it
        self._note = ffi.gc(ffi.new("struct obmm_descriptor *"), lib.obmm_descriptor_close)

    @classmethod
    def eventfd(cls) -> Self:
        """A counter that starts at 0 and never blocks."""
        return cls()._made(lib.obmm_descriptor_eventfd)

    @classmethod
    def memfd(cls, name: str) -> Self:
        """Anonymous memory that can be sealed."""
        return cls()._made(lib.obmm_descriptor_memfd, name.encode())

    @classmethod
    def open(cls, path: str | os.PathLike[str], flags: int, mode: int = 0o600) -> Self:
        """As `os.open`; EINVAL for a name with a NUL in it, of which the system would see the first part only."""
        if b"\0" in os.fsencode(path):
            raise ObmmError(errno.EINVAL, f"no descriptor of {os.fspath(path)!r}: a NUL ends no name; fix: name a file")
        return cls()._made(lib.obmm_descriptor_open, os.fsencode(path), flags, mode, path=os.fspath(path))

    @classmethod
    def dup(cls, fd: int) -> Self:
        """Another number of the same open file."""
        return cls()._made(lib.obmm_descriptor_dup, fd)

    def _made(self, call: Callable[..., int], *arguments: Any, path: str | None = None) -> Self:
        result = call(self._note, *arguments)
        if result < 0:
            where = "" if path is None else f" of {path}"
            raise ObmmError(
                -result,
                f"no descriptor{where}: {os.strerror(-result)}"
                f"{'; fix: close something, or raise `ulimit -n`' if result == -errno.EMFILE else ''}",
            )
        return self

    def fileno(self) -> int:
        """Its number, or -1 once closed."""
        return int(self._note.fd_plus_one) - 1

    def ring(self) -> None:
        """Wake up who waits for an `eventfd`; nothing once it is closed.

        What the system refuses is asked for once more: a wake-up that is lost hangs somebody.
        """
        if self.fileno() < 0:
            return
        try:
            os.eventfd_write(self.fileno(), 1)
        except BlockingIOError:
            pass  # it is readable already
        except Exception:
            os.eventfd_write(self.fileno(), 1)

    def close(self) -> None:
        """Close it.  Idempotent."""
        lib.obmm_descriptor_close(self._note)

    def __repr__(self) -> str:
        return f"<Descriptor {self.fileno()}>"
