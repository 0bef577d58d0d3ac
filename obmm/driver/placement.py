# SPDX-License-Identifier: Apache-2.0
"""Where a region's memory lies, seen from the CPUs that this process may use."""

from __future__ import annotations

import os
import warnings
from pathlib import Path

LOCAL_DISTANCE = 10

_warned: set[int] = set()


def distance(node: int, root: str = "") -> tuple[int, int] | None:
    """(nearest node with CPUs of this process, its distance to `node`); None where the kernel does not tell."""
    usable = os.sched_getaffinity(0)
    found: list[tuple[int, int]] = []
    for folder in Path(f"{root}/sys/devices/system/node").glob("node[0-9]*"):
        try:
            cpus = _cpus((folder / "cpulist").read_text())
            distances = (folder / "distance").read_text().split()
            if cpus & usable:
                found.append((int(distances[node]), int(folder.name.removeprefix("node"))))
        except (OSError, ValueError, IndexError):
            continue
    if not found:
        return None
    far, near = min(found)
    return near, far


def warn_if_far(node: int, what: str, root: str = "") -> None:
    """One RuntimeWarning per node whose memory every CPU of this process reaches only over another socket."""
    if node in _warned:
        return
    seen = distance(node, root)
    if seen is not None and seen[1] > LOCAL_DISTANCE:
        _warned.add(node)
        warnings.warn(
            f"{what} lies on NUMA node {node}, but this process runs on node {seen[0]} (distance {seen[1]}, local is "
            f"{LOCAL_DISTANCE}): pin it with `numactl --cpunodebind={node}`, or choose numa={seen[0]}",
            RuntimeWarning,
            stacklevel=3,
        )


def _cpus(text: str) -> set[int]:
    """CPU numbers of a list such as ``0-3,8``."""
    found: set[int] = set()
    for part in text.strip().split(","):
        if part:
            low, _, high = part.partition("-")
            found.update(range(int(low), int(high or low) + 1))
    return found
