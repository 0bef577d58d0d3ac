# SPDX-License-Identifier: Apache-2.0
"""URMA on one machine without the hardware (URMA specification 11).

Nothing here is ever used by itself: programs get the stand-in library only by naming it.  Timings of the stand-in say
nothing about UB.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
import weakref
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from cffi import FFI

from obmm.closing import Closing
from obmm.urma.library import ENVIRONMENT

SENTENCE: Final = (
    "stand-in: says nothing about UB; the other process's memory is copied by this machine's kernel, and lists save "
    "system calls, not trips"
)
"""What every report of a stand-in's timings must carry (section 13, B1)."""
FOLDER: Final = "OBMM_URMA_STANDIN"
LIBRARY: Final = str(Path(__file__).resolve().parents[1] / "liburma_standin.so")
"""The stand-in library, installed beside the package."""

_ffi: Final[Any] = FFI()
_ffi.cdef(
    """
int urma_standin_create(const char *folder, const char *nodes);
int urma_standin_status(const char *folder, char *text, size_t size);
int urma_standin_inject(const char *folder, const char *rule);
int urma_standin_reach(const char *folder, const char *node, int reachable);
"""
)


class StandIn(Closing):
    """`nodes` whose processes read and write each other's registered memory.  Ends with this object.

    Its state is a locked file that all its processes share; `environment` is what a process on a node needs.
    """

    def __init__(self, nodes: Sequence[str] = ("a", "b")) -> None:
        self.nodes = tuple(nodes)
        self.folder = tempfile.mkdtemp(prefix="obmm-urma-")
        self._finish = weakref.finalize(self, _end, os.getpid(), self.folder)
        # the name that programs link against, in a folder of its own
        place = Path(self.folder, "lib")
        place.mkdir()
        self.library = str(place / "liburma.so.0")
        os.symlink(LIBRARY, self.library)
        self._functions = _ffi.dlopen(LIBRARY, _ffi.RTLD_NOW | _ffi.RTLD_LOCAL)
        self._open = True
        self._call("create", ",".join(self.nodes).encode())

    def environment(self, node: str = "", **more: str) -> dict[str, str]:
        """Variables of a process on `node` (default: the first one)."""
        return {
            ENVIRONMENT: self.library,
            FOLDER: self.folder,
            "OBMM_URMA_STANDIN_NODE": node or self.nodes[0],
            **more,
        }

    def status(self) -> dict[str, Any]:
        """Processes, segments, targets, copies in progress, rules and how often each was looked at; no tokens."""
        text = _ffi.new("char[]", 1 << 16)
        self._call("status", text, 1 << 16)
        found: dict[str, Any] = json.loads(_ffi.string(text))
        return found

    def inject(self, rule: str) -> None:
        """A fault for all processes from now on, such as ``"every=7,status=9"`` (``native/urma_standin/faults.h``)."""
        self._call("inject", rule.encode())

    def mend(self) -> None:
        """No injected faults any more."""
        self._call("inject", b"")

    def reach(self, node: str, reachable: bool) -> None:
        """Whether requests reach `node`."""
        self._call("reach", node.encode(), reachable)

    def close(self) -> None:
        """Forget it.  Processes that use it go on until they end.  Idempotent."""
        self._finish()
        self._open = False

    def __repr__(self) -> str:
        return f"<urma.StandIn {','.join(self.nodes)} {self.folder}{'' if self._open else ' closed'}>"

    def _call(self, function: str, *given: Any) -> None:
        _ask(self._functions, self.folder, function, *given)


@contextmanager
def one_unanswered() -> Iterator[None]:
    """The next request over the stand-in of this process's environment gets no answer, as if the link had lost it.

    For measuring what a deadline costs; rules that were injected before are forgotten afterwards.  KeyError without one.
    """
    inject("first=1,drop")
    try:
        yield
    finally:
        inject("")


def inject(rule: str) -> None:
    """As `StandIn.inject`, of the stand-in that this process's environment names; "" forgets all rules.  KeyError without one."""
    folder = os.environ[FOLDER]
    _ask(_ffi.dlopen(LIBRARY, _ffi.RTLD_NOW | _ffi.RTLD_LOCAL), folder, "inject", rule.encode())


def _ask(functions: Any, folder: str, function: str, *given: Any) -> None:
    result = getattr(functions, f"urma_standin_{function}")(folder.encode(), *given)
    if result < 0:
        raise OSError(-result, f"URMA stand-in: {function}: {os.strerror(-result)}")


def _end(owner: int, folder: str) -> None:
    if os.getpid() == owner:  # a forked child ends: the stand-in is its parent's
        shutil.rmtree(folder, ignore_errors=True)
