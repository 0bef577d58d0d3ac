# SPDX-License-Identifier: Apache-2.0
"""Huge pages of the recorded machine: spread over its nodes, and taken from the nearest."""

from __future__ import annotations

from .replay.emulator_world import topology
from .replay.huge_pages import HugePages
from .replay.transcript import Transcript


def pool(config: str, total: int) -> HugePages:
    (spec,) = topology(Transcript.load().header, config).hosts
    pages = HugePages(spec)
    pages.resize(total)
    return pages


def test_pages_come_from_the_local_node_first_then_from_the_nearest() -> None:
    assert pool("A", 24).take(14, None) == [0] * 12 + [1] * 2
    assert pool("B", 32).take(32, None) == [0] * 8 + [1] * 8 + [2] * 8 + [3] * 8


def test_a_bound_page_comes_from_its_node_or_from_nowhere() -> None:
    pages = pool("B", 32)
    assert pages.take(8, 2) == [2] * 8
    assert pages.take(1, 2) is None
    pages.give([2])
    assert pages.take(1, 2) == [2]


def test_a_rest_goes_to_the_first_nodes() -> None:
    assert pool("B", 6).take(6, None) == [0, 0, 1, 1, 2, 3]
