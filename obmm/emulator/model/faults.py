# SPDX-License-Identifier: Apache-2.0
"""What can be made to go wrong on one host, on request."""

from __future__ import annotations

from dataclasses import dataclass, fields


@dataclass
class Faults:
    """Armed faults. Every error field holds an errno, 0 = works. `reset` disarms everything."""

    flush_error: int = 0
    """The cache engine fails with this errno ..."""
    flush_skip: int = 0
    """... after this many good calls (calls of the clearing thread are not counted)."""
    flush_busy: int = 0
    """The engine answers busy this many times, then works."""
    flush_sleep: float = 0.0
    """Seconds that each engine call takes."""
    clearing_error: int = 0
    """The engine fails for the background clearing thread."""
    drain_state: int = 1
    """UB write queue: 1 drained, 0 never, negative = error (which counts as drained)."""
    add_error: int = 0
    """Adding memory to a remote node fails."""
    add_sleep: float = 0.0
    """Seconds that adding memory takes."""
    numa_remote: bool = True
    """False: as if not booted with `numa_remote`."""
    remove_error: int = 0
    """Removing memory of a remote node fails."""
    distance_error: int = 0
    """Setting the distance of a remote node fails."""
    ummu_refuses: bool = False
    """No UMMU takes the request (EPERM)."""
    ummu_free_error: int = 0
    """Releasing a token fails."""
    ummu_map_error: int = 0
    """Mapping into the UMMU fails."""
    token_min: int = 0
    """Narrower token range of every UMMU: lowest ..."""
    token_max: int | None = None
    """... and highest token."""
    alloc_fails: bool = False
    """No fresh segment."""
    alloc_limit: int | None = None
    """At most this many segments per node."""
    linear_error: int = 0
    """Changing the kernel's linear mapping fails."""
    split_error: int = 0
    """Splitting a VMA fails ..."""
    split_skip: int = 0
    """... after this many good ones."""
    remap_error: int = 0
    """Building the page tables of a mapping fails."""
    remote_nodes: int = 0
    """Bit mask of local nodes that count as remote."""
    blocker: tuple[int, int] | None = None
    """A foreign entry in /proc/iomem: (start, length)."""
    open_error: int = 0
    """open of any device node fails, for example with EACCES."""
    no_memory: bool = False
    """The kernel has no memory for a new region or preimport (X6, P6, I1, R11)."""
    no_ids: bool = False
    """No free mem_id (X10, P8, I11)."""
    latency: float = 0.0
    """Seconds added to each control call."""

    def reset(self) -> None:
        """Back to a healthy host."""
        for one in fields(self):
            setattr(self, one.name, one.default)
