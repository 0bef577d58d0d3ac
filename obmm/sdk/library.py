# SPDX-License-Identifier: Apache-2.0
"""Finding and loading ``libubsm_sdk.so`` (SDK specification 2, 15 rules 1-3)."""

from __future__ import annotations

import ctypes.util
import errno
import grp
import os
import stat
import subprocess
from typing import Any, Final

from obmm.closing import Owner
from obmm.sdk.abi import FUNCTIONS, MARKER, OPTIONAL, ffi
from obmm.sdk.errors import SdkLibraryError
from obmm.sdk.places import place

ENVIRONMENT: Final = "OBMM_SDK_LIBRARY"
INSTALLED: Final = "/usr/local/ubs_mem/lib/libubsm_sdk.so"
BARE: Final = "libubsm_sdk.so"


class Library(Owner):
    """A loaded SDK library.  `raw` has its C functions as cffi sees them.

    `standin` is the stand-in's version text, or None for the real library; `missing` names the optional functions that
    this file lacks.

    `path`: its file.  Made by `load`.
    """

    def __init__(self, path: str, raw: Any) -> None:
        self.path = path
        self.raw = raw
        absent = {name for name in FUNCTIONS if not hasattr(raw, name)}
        if absent - OPTIONAL:
            raise SdkLibraryError(
                errno.ENOEXEC, f"{path} is not a ubs-mem SDK: it lacks {', '.join(sorted(absent - OPTIONAL))}"
            )
        self.missing = frozenset(absent)
        self.standin: str | None = ffi.string(raw.ubsmem_standin_version()).decode() if hasattr(raw, MARKER) else None

    @property
    def kind(self) -> str:
        """``"real"`` or ``"stand-in"``: what every result must be labelled with."""
        return "real" if self.standin is None else "stand-in"

    def __str__(self) -> str:
        return self.path if self.standin is None else f"{self.path} (stand-in)"

    def __repr__(self) -> str:
        lacks = f" without {', '.join(sorted(self.missing))}" if self.missing else ""
        return f"<sdk.Library {self.path} {self.kind}{lacks}>"


def load(path: str | os.PathLike[str] | None = None) -> Library:
    """Load the SDK: `path`, else OBMM_SDK_LIBRARY, else the place where it installs, else the bare name.

    A stand-in is only taken when `path` or OBMM_SDK_LIBRARY names it.  SdkLibraryError says what was tried and why
    each failed.
    """
    named = os.fspath(path) if path is not None else os.environ.get(ENVIRONMENT)
    candidates = [named] if named else [INSTALLED, BARE]
    reasons = []
    for candidate in candidates:
        try:
            raw = ffi.dlopen(candidate, ffi.RTLD_NOW | ffi.RTLD_LOCAL)
        except OSError as failure:
            reasons.append(f"{candidate}: {_why(candidate, str(failure))}")
            continue
        library = Library(candidate, raw)
        if library.standin is not None and not named:
            raise SdkLibraryError(
                errno.ELIBACC,
                f"{candidate} is a stand-in ({library.standin}), which is never taken by itself; fix: name it by "
                f"{ENVIRONMENT} or as an argument if you want it, or repair LD_LIBRARY_PATH",
            )
        return library
    tried = "\n  - ".join(reasons)
    raise SdkLibraryError(
        errno.ENOENT,
        f"no ubs-mem SDK could be loaded; tried {', '.join(candidates)}:\n  - {tried}\n"
        f"The library is installed for group `ubsmd` (directory 0750, file 0550): {_membership()}. Fix: install the "
        f"package ubs_mem, add this user to group ubsmd, or name the file by {ENVIRONMENT}; without the SDK use "
        "obmm.open() directly",
    )


def _why(candidate: str, failure: str) -> str:
    """What dlopen said, and the first place on the way to the file that explains it."""
    if "/" not in candidate:
        found = ctypes.util.find_library(candidate.removeprefix("lib").removesuffix(".so"))
        return f"{failure}" + ("" if found is None else f" (the loader's cache has {found})")
    step = "/"
    for part in os.path.abspath(candidate).strip("/").split("/"):
        step = os.path.join(step, part)
        try:
            info = os.stat(step)
        except PermissionError:
            return f"{step} may not be looked at ({failure})"
        except OSError as missing:
            return f"{step}: {missing.strerror} ({failure})"
        need = os.R_OK if not stat.S_ISDIR(info.st_mode) else os.X_OK
        if not os.access(step, need):
            return f"{step} is {stat.filemode(info.st_mode)} of {info.st_uid}:{info.st_gid}, closed to this process ({failure})"
    folder = place(os.path.dirname(os.path.abspath(candidate)))
    return f"{failure}; {folder}; ldd: {_needs(os.path.abspath(candidate))}; the SDK's own needs are hcom, boundscheck, numa, libstdc++, spdlog"


def _needs(path: str) -> str:
    """The libraries that a file needs and where the loader finds each, as `ldd` tells (13)."""
    try:
        told = subprocess.run(["ldd", path], capture_output=True, text=True, timeout=10, check=False)
    except (OSError, subprocess.SubprocessError) as error:
        return f"not to be had ({error})"
    lines = (line.split(" (0x")[0].strip() for line in (told.stdout or told.stderr).splitlines())
    return ", ".join(filter(None, lines)) or "nothing that ldd knows"


def _membership() -> str:
    try:
        group = grp.getgrnam("ubsmd").gr_gid
    except KeyError:
        return "this host has no such group, so the daemon's package is not installed"
    inside = group in {os.getegid(), *os.getgroups()}
    return "this process is in it" if inside else "this process is not in it"
