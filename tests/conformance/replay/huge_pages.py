# SPDX-License-Identifier: Apache-2.0
"""The recorded machine's pool of huge pages: which node a page of a case's own memory comes from.

``nr_hugepages`` spreads pages evenly over the nodes with memory. A page without a binding comes from the local node
while that has one, then from the nearest that has; a bound one from its node only.
"""

from __future__ import annotations

from obmm.emulator.topology import HostSpec

LOCAL = 0
"""The recorder's processes ran on the first node."""


class HugePages:
    """Free pages by node."""

    def __init__(self, spec: HostSpec) -> None:
        self._spec = spec
        self._free = dict.fromkeys((node.id for node in spec.nodes), 0)

    def resize(self, total: int) -> None:
        """What writing `total` into nr_hugepages does on a machine where none is in use."""
        share, rest = divmod(total, len(self._free))
        self._free = {node: share + (index < rest) for index, node in enumerate(self._free)}

    def take(self, pages: int, bound: int | None) -> list[int] | None:
        """The node of each page, in the order of their first touch; None when there are too few."""
        order = [bound] if bound is not None else sorted(self._free, key=self._distance)
        if sum(self._free[node] for node in order) < pages:
            return None
        taken = []
        for node in order:
            count = min(pages - len(taken), self._free[node])
            self._free[node] -= count
            taken += [node] * count
        return taken

    def give(self, nodes: list[int]) -> None:
        """Pages that were unmapped."""
        for node in nodes:
            self._free[node] += 1

    def _distance(self, node: int) -> int:
        return self._spec.distance(LOCAL, node)
