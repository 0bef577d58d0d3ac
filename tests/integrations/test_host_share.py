# SPDX-License-Identifier: Apache-2.0
"""Two ranks of a host, here two clients of one process: one reads, the other copies, and never another step's rows."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

import numpy as np
import pytest
from tables import ROWS, TABLES, Owner, content

from obmm import emulator
from obmm.errors import ObmmError
from obmm.integrations.engram import TableClient
from obmm.integrations.host_share import PublishingLane, offer, opened
from obmm.prefetch import Deadlines, PeerFailedError

_MOST = 1000
Pair = tuple[TableClient, TableClient]


@pytest.fixture
def pair(fabric: emulator.Fabric, served: Owner) -> Iterator[Pair]:
    """The reader and its follower, both on node b."""
    deadlines = Deadlines(decode=0.3, prefill=0.3, verify=0.3, probe=0.3)
    options = {"plain": True, "device": fabric.device("b"), "deadlines": deadlines, "plan": False}
    with TableClient(served.source, **options) as reader, TableClient(served.source, **options) as follower:
        with closing(opened(offer(reader.publish_lane(TABLES, _MOST, "step")))) as memory:
            follower.follow_lane(memory.fileno(), TABLES, _MOST, "step")
        yield reader, follower


def numbers(seed: int, rows: int = 48) -> dict[str, np.ndarray]:
    random = np.random.default_rng(seed)
    return {table: random.integers(0, ROWS, rows) for table in TABLES}


def both(client: TableClient, ids: dict[str, np.ndarray], edition: int = 1) -> bool:
    """Whether a step of the client has the rows of these numbers."""
    step = client.fetch(ids, "step")
    return all(np.array_equal(step.rows(table), content(table, ids[table], edition)) for table in TABLES)


def rows_read(client: TableClient) -> int:
    return client._source.store.stats().ids


def test_what_the_reader_read_is_copied(pair: Pair) -> None:
    reader, follower = pair
    before = rows_read(follower)
    for seed in range(5):
        ids = numbers(seed, 24 * (seed + 1))
        assert both(reader, ids)
        assert both(follower, ids)
    for client in pair:
        client.check()
    assert rows_read(follower) == before
    assert "copied from the host's reader, 5 steps; 0 were read here" in follower.explain()
    assert "read here for the other ranks of the host, 5 steps" in reader.explain()


def test_rows_that_the_background_gathered_are_published_when_they_are_taken(pair: Pair) -> None:
    reader, follower = pair
    ids = numbers(0, _MOST)
    lane = reader._shared[TABLES, "step"]
    assert isinstance(lane, PublishingLane)
    lane._few = 0
    step = reader.submit(ids, "step")
    assert not lane.gathered
    for table in TABLES:
        step.rows(table)
    before = rows_read(follower)
    assert both(follower, ids)
    assert rows_read(follower) == before


def test_other_numbers_than_the_readers_are_read_here(pair: Pair) -> None:
    reader, follower = pair
    assert both(reader, numbers(1))
    assert both(follower, numbers(2))
    assert both(reader, numbers(3))
    assert both(follower, numbers(3))
    assert "asks for other rows" in follower.explain()


def test_a_step_that_the_reader_does_not_make_is_read_here(pair: Pair) -> None:
    assert both(pair[1], numbers(1))
    assert "1 were read here" in pair[1].explain()


def test_a_rank_that_is_never_in_step_stops_waiting(pair: Pair) -> None:
    for seed in range(12):
        assert both(pair[1], numbers(seed))
    assert "8 steps in a row were not the reader's" in pair[1].explain()


def test_a_step_that_the_reader_is_behind_with_was_overwritten_and_is_read_here(pair: Pair) -> None:
    reader, follower = pair
    assert both(reader, numbers(1))
    assert both(reader, numbers(2))
    assert both(follower, numbers(1))
    assert both(follower, numbers(2))


def test_larger_steps_are_read_by_every_rank(pair: Pair) -> None:
    reader, follower = pair
    large, small = numbers(1, _MOST + 1), numbers(2)
    for ids in (large, small):
        assert both(reader, ids)
        assert both(follower, ids)
    assert "copied from the host's reader, 1 steps" in follower.explain()


def test_zeros_of_the_reader_are_zeros_of_all(pair: Pair, served: Owner) -> None:
    """Ranks of one model must go on with the same numbers."""
    reader, follower = pair
    assert both(reader, numbers(1))
    assert both(follower, numbers(1))
    served.do("withdraw")
    ids = numbers(2)
    for client, kind in ((reader, ObmmError), (follower, PeerFailedError)):
        step = client.fetch(ids, "step")
        assert not any(step.rows(table).any() for table in TABLES)
        with pytest.raises(kind):
            client.check()


def test_a_reader_that_closed_is_not_waited_for(pair: Pair) -> None:
    reader, follower = pair
    assert both(reader, numbers(1))
    reader.close()
    assert both(follower, numbers(2))
