# SPDX-License-Identifier: Apache-2.0
"""``OBMM_CHECK=1``: what is legal for the driver and still wrong.

* A view of an import whose peer is not known to be alive is warned about: touching it when the peer is gone ends the
  process, and handing it to a system call may crash the kernel (driver specification 17).
* Across emulated nodes, a breach of "many readers, or one writing node" (driver specification 16) is warned about with
  both stacks.  Each export has an account, a file in the user's runtime folder, of who holds which right where; the
  accounts of dead processes lapse.  On hardware other hosts cannot be seen, so nothing is claimed there.

Off, it costs one comparison per ownership call and none per access.
"""

from __future__ import annotations

import fcntl
import hashlib
import itertools
import json
import os
import threading
import traceback
import warnings
import weakref
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from obmm.driver.backend import ensure_runtime_directory
from obmm.driver.descriptor import Descriptor
from obmm.driver.process import start_time
from obmm.mapping.ownership import Right

_PACKAGE = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "")

if TYPE_CHECKING:
    from obmm.mapping.piece import Piece

_numbers = itertools.count(1)
_here = threading.local()  # .inside: this thread has an account open, and its lock

_checks: dict[int, MappingCheck] = {}
"""By number, all of this process whose entries may stand in an account.  Whether their mapping lives is looked up: the
finalizer that would say so can be interrupted."""


class OwnershipBreach(RuntimeWarning):
    """Two nodes hold rights over the same bytes that exclude each other."""


class PeerUnknown(RuntimeWarning):
    """A view of an import.  The caller keeps the import alive."""


def enabled() -> bool:
    """OBMM_CHECK is set."""
    return os.environ.get("OBMM_CHECK", "") not in ("", "0")


def watch(piece: Piece, runs: Iterator[tuple[int, int, Right]]) -> MappingCheck | None:
    """The checker of a new mapping's piece, or None when checks are off."""
    if not enabled():
        return None
    sweep()
    check = MappingCheck(piece)
    _checks[check.number] = check  # first: an interrupt may come before the end of what follows
    weakref.finalize(piece, sweep).atexit = False
    check.rights(runs)
    return check


def sweep() -> None:
    """Take what dead mappings have in accounts out of them.

    For finalizers: it raises nothing.  What could not be done now is done by the next call, in whichever thread; garbage
    collection may call it in the middle of an account, whose lock this thread then holds.
    """
    if getattr(_here, "inside", False):
        return
    with suppress(Exception):
        while gone := [check for number in list(_checks) if (check := _checks.get(number)) and check.over]:
            for check in gone:
                check.rights(iter(()))
                _checks.pop(check.number, None)


class MappingCheck:
    """The account entries of one mapping.  Not thread-safe: its mapping locks."""

    def __init__(self, piece: Piece) -> None:
        self.number = next(_numbers)
        self._piece = weakref.ref(piece)
        region = piece.region
        generation = region.export_generation
        self._warned = False
        self._lease = region.lease
        self._import = region.starts_without_right
        self._what = repr(region)
        self._node = region.device.root
        self._account: Path | None = None
        if piece.cache == "cc" and self._node and generation:
            name = hashlib.sha256(generation.to_bytes(8, "little")).hexdigest()[:24]
            self._account = ensure_runtime_directory() / f"check-{name}"
        self._me = [os.getpid(), start_time(os.getpid()), self.number]

    @property
    def over(self) -> bool:
        """Its mapping is closed or was collected."""
        piece = self._piece()
        return piece is None or not piece.open

    def view_made(self) -> None:
        """Warn, once, if nothing says that the peer lives."""
        if not self._import or self._warned or (self._lease is not None and self._lease.usable):
            return
        self._warned = True
        warnings.warn(
            f"a view of {self._what}, whose peer is not known to be alive (no lease is renewed for it): if it dies, "
            "touching the view ends this process, and a system call on it may crash the kernel; use read() or "
            "snapshot(), or import through obmm.connect()",
            PeerUnknown,
            stacklevel=4,
        )

    def rights(self, runs: Iterator[tuple[int, int, Right]]) -> None:
        """These are the mapping's rights from now on."""
        if self._account is None or self._me[0] != os.getpid():  # a forked child has the parent's object
            return
        mine = [[low, high, int(right)] for low, high, right in runs if right is not Right.NONE]
        stack = _stack()
        with self._entries() as entries:
            others = [entry for entry in entries if entry["node"] != self._node]
            if mine:
                entries.append({"who": self._me, "node": self._node, "runs": mine, "stack": stack})
        for entry in others:
            for low, high, right in mine:
                for other_low, other_high, other in entry["runs"]:
                    if low < other_high and other_low < high and Right.WRITE in (right, other):
                        self._report(max(low, other_low), min(high, other_high), right, other, entry, stack)
                        return

    @contextmanager
    def _entries(self) -> Iterator[list[dict[str, Any]]]:
        """The entries of all other live mappings; entries of dead ones are removed from the list."""
        assert self._account is not None
        try:
            _here.inside = True
            with (
                closing(Descriptor.open(self._account, os.O_RDWR | os.O_CREAT)) as opened,
                open(opened.fileno(), "r+", closefd=False) as file,
            ):
                fcntl.flock(file, fcntl.LOCK_EX)
                text = file.read()
                entries = [e for e in (json.loads(text) if text else []) if e["who"] != self._me and _lives(e["who"])]
                yield entries
                file.seek(0)
                file.truncate()
                if entries:
                    json.dump(entries, file)
                file.flush()
                fcntl.flock(file, fcntl.LOCK_UN)  # a child forked meanwhile has the file open, too
        finally:
            _here.inside = False

    def _report(self, low: int, high: int, right: int, other: int, entry: dict[str, Any], stack: str) -> None:
        warnings.warn(
            f"two nodes hold region bytes [{low}, {high}) at once: {self._node} has {Right(right).letter} and "
            f"{entry['node']} (pid {entry['who'][0]}) has {Right(other).letter}; on hardware one of them reads old data or "
            "overwrites the other's (driver specification 16: many readers, or one writing node)\n"
            f"--- here:\n{stack}--- there:\n{entry['stack']}",
            OwnershipBreach,
            stacklevel=5,
        )


def _lives(who: list[int]) -> bool:
    return start_time(who[0]) == who[1]


def _stack() -> str:
    """Who asked for the right: the frames outside this package."""
    frames = [f for f in traceback.extract_stack() if not os.path.abspath(f.filename).startswith(_PACKAGE)]
    return "".join(traceback.format_list(frames[-8:]))
