# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from memory_source import MemorySource, MemoryTable, fault

from obmm.errors import ObmmArgumentError
from obmm.prefetch import Deadlines, EngramPrefetcher, LocalReplica, PrefetchLayer, RowsStatus

TABLE = MemoryTable(100, 264)
ALL_ROWS = TABLE.rows(np.arange(100), 2)
IDS = np.random.default_rng(0).integers(0, 100, (8, 1, 4))


@pytest.fixture(params=["memory", "file"])
def replica(request: pytest.FixtureRequest, tmp_path: Path) -> LocalReplica:
    if request.param == "memory":
        return LocalReplica({"t": ALL_ROWS}, generation=2)
    path = tmp_path / "tables.bin"
    path.write_bytes(b"x" * 4096 + ALL_ROWS.tobytes())
    return LocalReplica.from_file(path, {"t": (4096, 100, 264)}, generation=2)


def test_a_prefetcher_goes_on_with_the_replicas_bytes(replica: LocalReplica) -> None:
    source = MemorySource({"t": TABLE})

    def gone() -> None:
        raise fault()

    source.before = gone
    with EngramPrefetcher(
        source, [PrefetchLayer(1, "t", 4)], 8, policy="local", replica=replica, deadlines=Deadlines(decode=10)
    ) as prefetcher:
        for _ in range(5):
            prefetcher.begin(IDS, 8)
            prefetcher.start()
            rows = prefetcher.consume(1)
            assert rows.status is RowsStatus.REPLICA
            assert np.array_equal(rows.buffer, TABLE.rows(IDS[:, 0], 2))
            prefetcher.drain()
    source.close()


def test_a_replica_is_a_source_of_its_own(replica: LocalReplica) -> None:
    with EngramPrefetcher(replica, [PrefetchLayer(1, "t", 4)], 8, invalid="zero") as prefetcher:
        ids = IDS.copy()
        ids[3] = -1
        ids[4, 0, 2] = 100
        prefetcher.begin(ids, 8)
        prefetcher.start()
        rows = prefetcher.consume(1)
        assert rows.status is RowsStatus.OK
        assert not rows.buffer[3].any()
        assert not rows.buffer[4, 2].any()
        assert np.array_equal(rows.buffer[:3], TABLE.rows(IDS[:3, 0], 2))


def test_what_the_replica_does_not_hold_is_refused(replica: LocalReplica) -> None:
    out = np.empty((1, 4, 264), np.uint8)
    with pytest.raises(ObmmArgumentError, match="id 100 in a replica of 100 rows"):
        replica.submit_many([("t", np.array([[0, 1, 2, 100]]), out)])
    with pytest.raises(ObmmArgumentError, match="float32"):
        LocalReplica({"t": np.zeros((2, 2), np.float32)})  # type: ignore[dict-item]
