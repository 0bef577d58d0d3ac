# SPDX-License-Identifier: Apache-2.0
"""The small parts against plain descriptions of what they do."""

from __future__ import annotations

import errno

from hypothesis import given
from hypothesis import strategies as st

from obmm.emulator.model.decoder import Decoder, Entry
from obmm.emulator.model.ids import LowestFree
from obmm.emulator.model.intervals import IntervalSet
from obmm.emulator.model.ownership import INVAL, NONE, WB_INVAL, WB_ONLY, OwnershipTable, weight
from obmm.emulator.model.ummu import uba_of
from obmm.emulator.topology import MIB, Window

from .harness import N, R, W, X, refusal

UNITS = 12


@st.composite
def ranges(draw: st.DrawFn) -> tuple[int, int]:
    start = draw(st.integers(0, UNITS - 1))
    return start, draw(st.integers(start + 1, UNITS))


@given(st.lists(st.tuples(ranges(), st.sampled_from([N, R, X, W]), st.sampled_from([N, R, X, W]))))
def test_9_8_counters_and_inferred_operation_are_those_of_single_pages(changes):
    table, pages = OwnershipTable(UNITS), [(0, 0)] * UNITS
    for (first, last), before, after in changes:
        held = [(first, last, before)]
        for low, high, rights in held:
            table.change(low, high, N, rights)
            for page in range(low, high):
                pages[page] = tuple(map(sum, zip(pages[page], weight(rights), strict=True)))
        expected = NONE
        for page in range(first, last):
            (readers, writers), (r0, w0), (r1, w1) = pages[page], weight(before), weight(after)
            now = readers - r0 + r1, writers - w0 + w1
            if writers and not now[1]:
                expected |= WB_ONLY if now[0] else WB_INVAL
            elif readers and not now[0] and not writers:
                expected |= INVAL
            pages[page] = now
        assert table.change(first, last, before, after) == expected
    flat = [(r, w) for first, last, r, w in table.runs() for _ in range(first, last)]
    assert flat == pages
    assert all(one[2:] != other[2:] for one, other in zip(table.runs(), table.runs()[1:], strict=False))


@given(st.lists(st.tuples(st.booleans(), ranges())))
def test_interval_set_is_a_set(steps):
    intervals, plain = IntervalSet(), set()
    for add, (start, end) in steps:
        (intervals.add if add else intervals.discard)(start, end)
        plain = plain | set(range(start, end)) if add else plain - set(range(start, end))
        assert {n for low, high in intervals for n in range(low, high)} == plain
        assert all(low < high for low, high in intervals)
        assert [n in intervals for n in range(UNITS)] == [n in plain for n in range(UNITS)]
        within = {n for low, high in intervals.within(start, end) for n in range(low, high)}
        missing = {n for low, high in intervals.missing(start, end) for n in range(low, high)}
        assert within == plain & set(range(start, end))
        assert missing == set(range(start, end)) - plain


@given(st.lists(st.one_of(st.none(), st.integers(0, 9), st.tuples(st.integers(0, 9), st.integers(0, 9)))))
def test_7_lowest_free_number_first(steps):
    numbers, taken = LowestFree(0, 7), set()
    for step in steps:
        if isinstance(step, int):
            if step in taken:
                taken.remove(step)
                numbers.give(step)
            continue
        first, last = step or (0, 7)
        expected = min((n for n in range(first, min(last, 7) + 1) if n not in taken), default=None)
        assert numbers.take(first, last) == expected
        if expected is not None:
            taken.add(expected)


def test_7_uba_is_top_down_and_naturally_aligned():
    assert uba_of(4 * MIB) == 0xFFFFFFC00000
    assert uba_of(2 * MIB) == 0xFFFFFFE00000
    assert uba_of(6 * MIB) == 0xFFFFFF800000
    assert uba_of(12 * MIB) == 0xFFFFFF000000


def test_decoder_gives_out_every_free_address_and_none_twice():
    decoder, window = Decoder(), Window("CC", 8 * MIB, 16 * MIB)
    taken = []
    for _ in range(4):
        address = decoder.free_range(window, 4 * MIB)
        decoder.add(Entry(address, 4 * MIB, 1, 0, 0))
        taken.append(address)
    assert taken == [8 * MIB, 12 * MIB, 16 * MIB, 20 * MIB]
    assert decoder.free_range(window, 2 * MIB) is None
    decoder.remove(12 * MIB)
    assert decoder.free_range(window, 4 * MIB, 4 * MIB) == 12 * MIB
    assert decoder.free_range(window, 6 * MIB) is None


def test_decoder_refuses_overlaps_and_odd_ranges():
    decoder = Decoder()
    decoder.add(Entry(4 * MIB, 4 * MIB, 1, 0, 0))
    for pa, length, expected in (
        (6 * MIB, 2 * MIB, errno.EEXIST),
        (2 * MIB, 8 * MIB, errno.EEXIST),
        (1 * MIB, 2 * MIB, errno.EINVAL),
        (2 * MIB, 0, errno.EINVAL),
    ):
        assert refusal(lambda pa=pa, length=length: decoder.add(Entry(pa, length, 1, 0, 0))).errno == expected
    assert refusal(lambda: decoder.remove(6 * MIB)).errno == errno.ENOENT
    assert [entry.pa for entry in decoder.overlapping(7 * MIB, 9 * MIB)] == [4 * MIB]
