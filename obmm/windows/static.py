# SPDX-License-Identifier: Apache-2.0
"""Windows from a table that the cluster's admin keeps (docs/windows.md)."""

from __future__ import annotations

import errno
import itertools
import os
import shlex
import stat
import threading
import weakref
from dataclasses import dataclass
from pathlib import Path

from obmm.closing import Owner
from obmm.driver.abi import BASIC_GRANULARITY, Cache
from obmm.driver.topology import Controller
from obmm.errors import ObmmArgumentError, ObmmError
from obmm.handle import Handle
from obmm.sizes import parse_size
from obmm.toml_text import read_toml
from obmm.windows.provider import Window

_REQUIRED = {"address", "length", "cache", "local_cna", "owner_cna"}
_OPTIONAL = {"tokenid", "uba"}


def _bad(problem: str, fix: str) -> ObmmArgumentError:
    return ObmmArgumentError.because("WINDOWS", errno.EINVAL, problem, fix, "docs/windows.md")


@dataclass(frozen=True, slots=True)
class _Entry:
    window: Window
    local_cna: int
    owner_cna: int
    tokenid: int | None
    uba: int | None

    def matches(self, handle: Handle, controller: Controller, cache: Cache | None) -> bool:
        return (
            self.local_cna == controller.cna
            and self.owner_cna == handle.owner_cna
            and self.tokenid in (None, handle.tokenid)
            and self.uba in (None, handle.uba)
            and cache in (None, self.window.cache)
            and self.window.length >= handle.length
        )


class StaticWindows(Owner):
    """Programmed windows listed in the TOML file `path`, one ``[[window]]`` each (a `WindowProvider`)::

        [[window]]
        address = 0xa0000000      # local physical address
        length = "128MiB"         # or bytes
        cache = "cc"              # or "nc"
        local_cna = 0x40a
        owner_cna = 0x50b
        tokenid = 5               # optional, like uba: only for this export

    The file holds secrets: it must belong to this user (or root) and have mode 0600.  An entry serves one import
    at a time in this process; the driver refuses a second one of another process (rule I13), and then the next
    matching entry is tried.  ObmmArgumentError for a file that is unfit, ObmmError ENOSPC where no entry matches.

    >>> table = folder / "windows.toml"
    >>> _ = table.write_text('''
    ... [[window]]
    ... address = 0xa0000000
    ... length = "128MiB"
    ... cache = "cc"
    ... local_cna = 0x50a
    ... owner_cna = 0x40a
    ... ''')
    >>> table.chmod(0o600)
    >>> windows = obmm.StaticWindows(table)
    >>> with a.export_region("2MiB") as region:
    ...     window = windows.acquire(region.handle(), b.controllers[0], None)
    >>> hex(window.address), windows.name
    ('0xa0000000', 'static ...windows.toml')
    >>> windows.release(window)
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        try:
            facts = os.stat(self.path)
        except (OSError, ValueError) as error:
            code = error.errno if isinstance(error, OSError) and error.errno else errno.EINVAL
            raise ObmmArgumentError.because(
                "WINDOWS",
                code,
                f"the window table {str(path)[:200]!r} cannot be read: {error}",
                "the path of a TOML table (argument `windows` or OBMM_WINDOWS)",
                "docs/windows.md",
            ) from error
        if stat.S_IMODE(facts.st_mode) & 0o077 or facts.st_uid not in (0, os.geteuid()):
            raise ObmmArgumentError.because(
                "WINDOWS",
                errno.EACCES,
                f"{self.path} has mode {stat.S_IMODE(facts.st_mode):04o} and owner {facts.st_uid}: it holds tokens",
                f"chmod 0600 {shlex.quote(str(self.path))} and make it yours or root's",
                "docs/windows.md",
            )
        try:
            document = read_toml(self.path)
        except ValueError as error:
            raise _bad(f"{self.path} is not TOML: {error}", "the form that docs/windows.md shows") from error
        unknown = set(document) - {"window"}
        if unknown:
            raise _bad(f"{self.path} has unknown keys {sorted(unknown)}", "only [[window]] tables")
        self._entries = tuple(
            _entry(self.path, number, raw) for number, raw in enumerate(document.get("window", []), 1)
        )
        _refuse_overlaps(self.path, self._entries)
        # a window that was lost on its way to the caller is free again
        self._taken: weakref.WeakValueDictionary[int, Window] = weakref.WeakValueDictionary()
        self._lock = threading.Lock()

    @property
    def name(self) -> str:
        return f"static {self.path}"

    def __len__(self) -> int:
        """Windows in the table."""
        return len(self._entries)

    def acquire(self, handle: Handle, controller: Controller, cache: Cache | None) -> Window:
        with self._lock:
            for entry in self._entries:
                if entry.window.address not in self._taken and entry.matches(handle, controller, cache):
                    window = Window(entry.window.address, handle.length, entry.window.cache)
                    self._taken[window.address] = window
                    return window
        raise ObmmError(
            errno.ENOSPC,
            f"{self.path} has no free window from controller {controller.cna:#x} to owner {handle.owner_cna:#x} "
            f"of at least {handle.length} bytes" + (f" and kind {cache}" if cache else ""),
            operation="IMPORT",
        )

    def release(self, window: Window) -> None:
        with self._lock:
            if self._taken.get(window.address) is window:
                del self._taken[window.address]


def _number(path: Path, place: str, key: str, value: object) -> int:
    if isinstance(value, str):
        try:
            return parse_size(value)
        except ValueError as error:
            raise _bad(f"{path}, {place}: {key} = {value!r}: {error}", 'bytes, or a text such as "128MiB"') from error
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise _bad(f"{path}, {place}: {key} = {value!r} is not a number", "a non-negative integer")
    return value


def _entry(path: Path, number: int, raw: dict[str, object]) -> _Entry:
    place = f"[[window]] {number}"
    missing, unknown = _REQUIRED - set(raw), set(raw) - _REQUIRED - _OPTIONAL
    if missing or unknown:
        raise _bad(
            f"{path}, {place}: missing {sorted(missing)}, unknown {sorted(unknown)}",
            f"exactly {sorted(_REQUIRED)}, optionally {sorted(_OPTIONAL)}",
        )
    numbers = {key: _number(path, place, key, value) for key, value in raw.items() if key != "cache"}
    cache = raw["cache"]
    if cache != "cc" and cache != "nc":
        raise _bad(f"{path}, {place}: cache = {cache!r}", '"cc" or "nc", as the window is')
    for key in ("address", "length"):
        if numbers[key] == 0 or numbers[key] % BASIC_GRANULARITY:
            raise _bad(f"{path}, {place}: {key} = {numbers[key]:#x} is zero or not a multiple of 2 MiB", "align it")
    return _Entry(
        Window(numbers["address"], numbers["length"], cache),
        numbers["local_cna"],
        numbers["owner_cna"],
        numbers.get("tokenid"),
        numbers.get("uba"),
    )


def _refuse_overlaps(path: Path, entries: tuple[_Entry, ...]) -> None:
    ordered = sorted((entry.window for entry in entries), key=lambda window: window.address)
    for one, two in itertools.pairwise(ordered):
        if one.address + one.length > two.address:
            raise _bad(
                f"{path}: the windows at {one.address:#x} and {two.address:#x} overlap", "give each its own range"
            )
