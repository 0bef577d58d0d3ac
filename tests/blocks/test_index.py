# SPDX-License-Identifier: Apache-2.0
"""What a user knows of the directory, and forgets."""

from __future__ import annotations

import time

import numpy as np

from obmm.blocks.index import PlaceIndex
from obmm.blocks.wire import NOWHERE


def places(*numbers: int) -> list[bytes]:
    return [number.to_bytes(16, "big") + bytes(8) + b"\1" * 8 for number in numbers]


def test_the_oldest_of_too_many_go_first() -> None:
    index = PlaceIndex(most=3)
    index.add([b"1", b"2"], places(1, 2))
    index.add([b"3", b"4", b"5"], places(3, 4, 5))
    assert index.known([b"1", b"2", b"3", b"4", b"5"]) == [False, False, True, True, True]
    assert index.drop_hashes([place[:16] for place in places(1, 2, 3)]) == 1
    index.add([b"6", b"7", b"8", b"9"], places(6, 7, 8, 9))
    assert len(index) == 3
    assert index.places([b"6", b"9"]) == [None, places(9)[0]]


def test_a_block_with_two_names_in_one_batch_is_forgotten_by_both() -> None:
    index = PlaceIndex()
    index.add(["k", b"k", b"j"], places(1, 1, 2))
    assert index.drop_hashes([places(1)[0][:16]]) == 1
    assert index.known(["k", b"k", b"j"]) == [False, False, True]


def test_what_is_nowhere_is_not_known_and_ends_what_was() -> None:
    index = PlaceIndex()
    index.add([b"a", b"b"], [places(1)[0], NOWHERE])
    assert index.known([b"a", b"b"]) == [True, False]
    index.add([b"a", b"c"], places(7, 3))
    assert index.places([b"a", b"c"]) == places(7, 3)


def test_a_full_index_takes_a_batch_in_the_time_of_one_with_room() -> None:
    """Where each entry that goes were looked for over the holes of the others, this would be a hundred times as long."""

    def median_of(index: PlaceIndex, first: int) -> float:
        taken = []
        for batch in range(first, first + 48):
            numbers = range(batch << 10, (batch + 1) << 10)
            keys, where = [b"%d" % number for number in numbers], places(*numbers)
            began = time.thread_time()
            index.add(keys, where)
            taken.append(time.thread_time() - began)
        return float(np.median(taken))

    full, empty = PlaceIndex(most=1 << 18), PlaceIndex(most=1 << 20)
    numbers = range(1 << 18)
    full.add([b"%d" % number for number in numbers], places(*numbers))
    assert median_of(full, 1 << 8) < 10 * median_of(empty, 1 << 8)
    assert len(full) == 1 << 18
