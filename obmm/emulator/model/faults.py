# SPDX-License-Identifier: Apache-2.0
"""What can be made to go wrong on one host, on request."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Any


def _fault(healthy: Any, text: str) -> Any:
    return field(default=healthy, metadata={"text": text})


@dataclass
class Faults:
    """Armed faults; each default is the healthy value. Errors are errnos, 0 = works. `reset` disarms all."""

    flush_error: int = _fault(0, "the cache engine fails with this errno")
    flush_skip: int = _fault(0, "good engine calls before flush_error starts (the clearing thread does not count)")
    flush_busy: int = _fault(0, "the engine answers busy this many times, then works")
    flush_sleep: float = _fault(0.0, "seconds that each engine call takes")
    clearing_error: int = _fault(0, "the engine fails for the background clearing thread")
    drain_state: int = _fault(
        1, "UB write queue: 1 drained, 0 never (ETIMEDOUT), negative = error, which counts as drained"
    )
    add_error: int = _fault(0, "adding memory to a remote node fails")
    add_sleep: float = _fault(0.0, "seconds that adding memory takes")
    numa_remote: bool = _fault(True, "0: as if not booted with numa_remote")
    remove_error: int = _fault(0, "removing memory of a remote node fails with this errno")
    distance_error: int = _fault(0, "setting the distance of a remote node fails with this errno")
    ummu_refuses: bool = _fault(False, "1: no UMMU takes an export (EPERM)")
    ummu_free_error: int = _fault(0, "releasing a token fails with this errno")
    ummu_map_error: int = _fault(0, "mapping into the UMMU fails with this errno")
    token_min: int = _fault(0, "lowest token that UMMUs hand out")
    token_max: int | None = _fault(None, "highest token that UMMUs hand out")
    alloc_fails: bool = _fault(False, "1: the kernel gives no fresh segment (ENOMEM)")
    alloc_limit: int | None = _fault(None, "most segments per node")
    linear_error: int = _fault(0, "changing the kernel's linear mapping fails with this errno")
    split_error: int = _fault(0, "splitting a VMA in UPDATE_RANGE fails with this errno")
    split_skip: int = _fault(0, "good splits before split_error starts")
    range_ineffective: bool = _fault(
        False, "1: UPDATE_RANGE succeeds but leaves the page tables, as builds of mid May to early June 2026 did"
    )
    remap_error: int = _fault(0, "building the page tables of a mapping fails with this errno")
    remote_nodes: int = _fault(0, "bit mask of local nodes that count as remote")
    blocker: tuple[int, int] | None = _fault(None, "a foreign entry in /proc/iomem: (start, length)")
    open_error: int = _fault(0, "open of any device node fails with this errno, for example EACCES")
    no_memory: bool = _fault(False, "1: no kernel memory for a new region or preimport (ENOMEM)")
    no_ids: bool = _fault(False, "1: no free mem_id (ENOSPC)")
    latency: float = _fault(0.0, "seconds added to each control call")

    def reset(self) -> None:
        """Back to a healthy host."""
        for one in fields(self):
            setattr(self, one.name, one.default)
