# SPDX-License-Identifier: Apache-2.0
"""What can be made to go wrong on one host, on request."""

from __future__ import annotations

import errno
import math
from collections.abc import Callable
from dataclasses import dataclass, field, fields
from typing import Any

LONGEST = 1e9
"""Seconds that an injected delay may take."""
_ERRNO_NAMES = {name: number for number, name in errno.errorcode.items()} | {"EOPNOTSUPP": errno.EOPNOTSUPP}
_WORDS = {"0": False, "1": True, "no": False, "yes": True, "off": False, "on": True, "false": False, "true": True}


def whole(value: Any, low: int = 0, high: int = (1 << 32) - 1) -> int:
    """`value` as a whole number in [low, high], or ValueError."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise ValueError(f"{value!r} is not a whole number")
    if not low <= value <= high:
        raise ValueError(f"{value} is not between {low} and {high}")
    return value


def _errno(value: Any) -> int:
    if isinstance(value, str) and value in _ERRNO_NAMES:
        return _ERRNO_NAMES[value]
    number = whole(value, 0, 4095)
    if number and number not in errno.errorcode:
        raise ValueError(f"{number} is not an errno; write a number or a name such as EIO, or 0 for a healthy host")
    return number


def _drain(value: Any) -> int:
    return whole(value, -4095, 1)


def _seconds(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
        raise ValueError(f"{value!r} is not a time in seconds")
    if not 0 <= value <= LONGEST:
        raise ValueError(f"{value} s is not between 0 and {LONGEST:g}")
    return float(value)


def _flag(value: Any) -> bool:
    known = _WORDS.get(str(value).lower())
    if known is None:
        raise ValueError(f"{value!r} is neither 0 nor 1")
    return known


def _limit(value: Any) -> int | None:
    return None if value is None or value == "none" else whole(value)


def _range(value: Any) -> tuple[int, int] | None:
    if value is None or value == "none":
        return None
    if not isinstance(value, (list, tuple)) or len(value) != 2:
        raise ValueError(f"{value!r} is not [start, length]")
    start, length = (whole(one, 0, (1 << 52) - 1) for one in value)
    return (start, length) if length else None


def _fault(healthy: Any, text: str, parse: Callable[[Any], Any] = _errno) -> Any:
    return field(default=healthy, metadata={"text": text, "parse": parse})


@dataclass
class Faults:
    """Armed faults; each default is the healthy value. Errors are errnos, 0 = works. `reset` disarms all."""

    flush_error: int = _fault(0, "the cache engine fails with this errno")
    flush_skip: int = _fault(
        0, "good engine calls before flush_error starts (the clearing thread does not count)", whole
    )
    flush_busy: int = _fault(0, "the engine answers busy this many times, then works", whole)
    flush_sleep: float = _fault(0.0, "seconds that each engine call takes", _seconds)
    clearing_error: int = _fault(0, "the engine fails for the background clearing thread")
    drain_state: int = _fault(
        1, "UB write queue: 1 drained, 0 never (ETIMEDOUT), negative = error, which counts as drained", _drain
    )
    add_error: int = _fault(0, "adding memory to a remote node fails")
    add_sleep: float = _fault(0.0, "seconds that adding memory takes", _seconds)
    numa_remote: bool = _fault(True, "0: as if not booted with numa_remote", _flag)
    remove_error: int = _fault(0, "removing memory of a remote node fails with this errno")
    distance_error: int = _fault(0, "setting the distance of a remote node fails with this errno")
    ummu_refuses: bool = _fault(False, "1: no UMMU takes an export (EPERM)", _flag)
    ummu_free_error: int = _fault(0, "releasing a token fails with this errno")
    ummu_map_error: int = _fault(0, "mapping into the UMMU fails with this errno")
    token_min: int = _fault(0, "lowest token that UMMUs hand out", whole)
    token_max: int | None = _fault(None, "highest token that UMMUs hand out", _limit)
    alloc_fails: bool = _fault(False, "1: the kernel gives no fresh segment (ENOMEM)", _flag)
    alloc_limit: int | None = _fault(None, "most segments per node", _limit)
    linear_error: int = _fault(0, "changing the kernel's linear mapping fails with this errno")
    split_error: int = _fault(0, "splitting a VMA in UPDATE_RANGE fails with this errno")
    split_skip: int = _fault(0, "good splits before split_error starts", whole)
    range_ineffective: bool = _fault(
        False, "1: UPDATE_RANGE succeeds but leaves the page tables, as builds of mid May to early June 2026 did", _flag
    )
    remap_error: int = _fault(0, "building the page tables of a mapping fails with this errno")
    remote_nodes: int = _fault(0, "bit mask of local nodes that count as remote", whole)
    blocker: tuple[int, int] | None = _fault(None, "a foreign entry in /proc/iomem: (start, length)", _range)
    open_error: int = _fault(0, "open of any device node fails with this errno, for example EACCES")
    no_memory: bool = _fault(False, "1: no kernel memory for a new region or preimport (ENOMEM)", _flag)
    no_ids: bool = _fault(False, "1: no free mem_id (ENOSPC)", _flag)
    latency: float = _fault(0.0, "seconds added to each control call", _seconds)

    def reset(self) -> None:
        """Back to a healthy host."""
        for one in fields(self):
            setattr(self, one.name, one.default)

    def armed(self) -> dict[str, Any]:
        """What is not healthy: names as `inject` takes them, and values."""
        return {
            one.name.replace("_", "-"): getattr(self, one.name)
            for one in fields(self)
            if getattr(self, one.name) != one.default
        }
