# SPDX-License-Identifier: Apache-2.0
"""Finding and loading ``liburma.so.0`` (URMA specification 2, 4.7, 10)."""

from __future__ import annotations

import errno
import os
import threading
from pathlib import Path
from typing import Any, Final

from obmm.urma.abi import FUNCTIONS, MARKER, ffi
from obmm.urma.errors import UrmaLibraryError

ENVIRONMENT: Final = "OBMM_URMA_LIBRARY"
FORCED_ABI: Final = "OBMM_URMA_ABI"
INSTALLED: Final = "/usr/lib64/liburma.so.0"
BARE: Final = "liburma.so.0"


class Library:
    """A loaded URMA library.  `raw` has its C functions as cffi sees them.

    `standin` is the stand-in's version text, or None for the real library; `profile` the layout of its structures (4.7).

    `path`: its file.  Made by `load`.
    """

    def __init__(self, path: str, raw: Any) -> None:
        self.path = path
        self.raw = raw
        absent = [name for name in FUNCTIONS if not hasattr(raw, name)]
        if absent:
            raise UrmaLibraryError(errno.ENOEXEC, f"{path} is not a URMA core library: it lacks {', '.join(absent)}")
        self.standin: str | None = ffi.string(raw.urma_standin_version()).decode() if hasattr(raw, MARKER) else None
        self.profile = "C" if self.standin is not None else _profile(path, raw)

    @property
    def kind(self) -> str:
        """``"real"`` or ``"stand-in"``: what every result must be labelled with."""
        return "real" if self.standin is None else "stand-in"

    @property
    def trouble(self) -> str:
        """Why the kernel last refused the stand-in to reach another process; "" for none, and for the real library."""
        return "" if self.standin is None else ffi.string(self.raw.urma_standin_trouble()).decode()

    def counters(self) -> dict[str, int] | None:
        """What the stand-in did in this process: posts, polls, requests, bytes, copies; and how many contexts and things made
        from them it has now (references).  None for the real library.
        """
        if self.standin is None:
            return None
        counts = ffi.new("urma_standin_counts_t *")
        self.raw.urma_standin_counters(counts)
        names = ("posts", "polls", "requests", "bytes", "copies", "references")
        return {name: int(getattr(counts, name)) for name in names}

    def __str__(self) -> str:
        return self.path if self.standin is None else f"{self.path} (stand-in)"

    def __repr__(self) -> str:
        return f"<urma.Library {self.path} {self.kind} profile {self.profile}>"


_lock = threading.Lock()
_loaded: dict[str, Library] = {}


def load(path: str | os.PathLike[str] | None = None) -> Library:
    """Load the library: `path`, else OBMM_URMA_LIBRARY, else the place where it installs, else the bare name.

    A stand-in is only taken when `path` or OBMM_URMA_LIBRARY names it, and never beside the real library in one process.
    UrmaLibraryError says what was tried and why each failed.
    """
    named = os.fspath(path) if path is not None else os.environ.get(ENVIRONMENT)
    candidates = [named] if named else [INSTALLED, BARE]
    reasons = []
    with _lock:
        for candidate in candidates:
            if candidate in _loaded:
                return _loaded[candidate]
            try:
                library = _open(candidate)
            except OSError as failure:
                if isinstance(failure, UrmaLibraryError):
                    raise
                reasons.append(f"{candidate}: {_why(candidate, str(failure))}")
                continue
            if library.standin is not None and not named:
                raise UrmaLibraryError(
                    errno.ELIBACC,
                    f"{candidate} is a stand-in ({library.standin}), which is never taken by itself; fix: name it by "
                    f"{ENVIRONMENT} or as an argument if you want it, or repair LD_LIBRARY_PATH",
                )
            for other in _loaded.values():
                if other.kind != library.kind:
                    raise UrmaLibraryError(
                        errno.EBUSY,
                        f"this process has {other} loaded, and {library} has the same so-name; fix: one of them in "
                        "another process",
                    )
            _loaded[candidate] = library
            return library
    tried = "\n  - ".join(reasons)
    raise UrmaLibraryError(
        errno.ENOENT,
        f"no URMA library could be loaded; tried {', '.join(candidates)}:\n  - {tried}\n"
        f"Fix: install UMDK's urma packages, or name the file by {ENVIRONMENT}.  Without the hardware there is a stand-in: "
        "obmm.urma.standin.StandIn(), whose environment() names its library",
    )


def _open(candidate: str) -> Library:
    # the library logs while it loads, and from any thread in every failing call (2)
    os.environ.setdefault("URMA_LOG_LEVEL", "fatal")
    os.environ.setdefault("UDMA_LOG_LEVEL", "fatal")
    return Library(candidate, ffi.dlopen(candidate, ffi.RTLD_NOW | ffi.RTLD_LOCAL))


def _profile(path: str, raw: Any) -> str:
    forced = os.environ.get(FORCED_ABI)
    if forced in ("A", "C"):
        return forced
    if hasattr(raw, "urma_get_seg_ctx"):
        return "C"
    if not hasattr(raw, "urma_alloc_jfs"):
        return "A"
    raise UrmaLibraryError(
        errno.ELIBBAD,
        f"{path} is a build of April to June 2026 (profile M: urma_alloc_jfs without urma_get_seg_ctx), whose structures "
        f"differ from those of every release; fix: install a release, or set {FORCED_ABI}=C if you know that it has "
        "the layout of late June [URMA specification 4.7]",
    )


def _why(candidate: str, failure: str) -> str:
    """What dlopen said, and what usually explains it."""
    if "/" not in candidate:
        return failure
    file = Path(candidate)
    if not file.exists():
        return f"no such file ({failure})"
    providers = file.parent / "urma"
    names = sorted(each.name for each in providers.glob("liburma*")) if providers.is_dir() else []
    beside = f"providers in {providers}: {', '.join(names) or 'none'}"
    common = "beside it" if (file.parent / "liburma_common.so.0").exists() else "not beside it"
    return f"{failure}; {beside}; liburma_common.so.0, which it needs, is {common}"
