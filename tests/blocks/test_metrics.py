# SPDX-License-Identifier: Apache-2.0
"""What Prometheus is shown of users and owners."""

from __future__ import annotations

import socket
import subprocess
import urllib.request
from collections.abc import Callable
from pathlib import Path

import pytest

from obmm import emulator
from obmm.blocks import BlockStoreError
from obmm.blocks.exposition import OwnerCollector, StoreCollector
from obmm.integrations.block_door import BlockDoor
from obmm.integrations.exposed import expose
from tests.blocks.rig import MODEL, Rig
from tests.blocks.test_commands import OBMM, end, fabric, serve

prometheus = pytest.importorskip("prometheus_client", reason="the extra `metrics` is not installed")

__all__ = ["fabric"]


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port: int = listener.getsockname()[1]
        return port


def text_of(collector: object) -> str:
    registry = prometheus.CollectorRegistry(auto_describe=False)
    registry.register(collector)
    shown: str = prometheus.generate_latest(registry).decode()
    return shown


def test_a_users_counters_are_shown_by_reason(rig: Callable[..., Rig]) -> None:
    store = rig().store()
    data = [bytes([i]) * 64 for i in range(4)]
    keys = [b"%d" % i for i in range(4)]
    store.put(keys, data)
    store.put(keys, data)
    store.get([*keys, b"absent"], [bytearray(64) for _ in range(5)])
    shown = text_of(StoreCollector(store.stats, {"door": "test"}))
    for line in (
        'obmm_kv_hits_total{door="test"} 4.0',
        'obmm_kv_stored_total{door="test"} 4.0',
        'obmm_kv_existed_total{door="test"} 4.0',
        'obmm_kv_misses_total{door="test",reason="absent"} 1.0',
        'obmm_kv_loaded_bytes_total{door="test"} 256.0',
        'obmm_kv_load_seconds_count{door="test"} 1.0',
        'obmm_kv_store_seconds_count{door="test"} 2.0',
        'obmm_kv_ready{door="test"} 1.0',
    ):
        assert line in shown, shown


def test_a_closed_store_shows_nothing_and_fails_no_scrape(rig: Callable[..., Rig]) -> None:
    store = rig().store()
    collector = StoreCollector(store.stats)
    store.close()
    assert text_of(collector) == ""


def test_an_owners_figures_name_no_key(rig: Callable[..., Rig]) -> None:
    made = rig()
    made.store().put([b"a secret name"], [bytes(64)])
    shown = text_of(OwnerCollector(made.owner.status))
    assert "obmm_kv_owner_blocks 1.0" in shown
    assert 'obmm_kv_owner_events_total{event="stored"} 1.0' in shown
    assert "secret" not in shown


def scrape(port: int) -> str:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
        shown: str = answer.read().decode()
        return shown


def test_blocks_serve_answers_on_the_metrics_port(fabric: emulator.Fabric, tmp_path: Path) -> None:
    port = free_port()
    process, _ = serve(fabric, tmp_path, "--plain", "--metrics", f"127.0.0.1:{port}")
    try:
        shown = scrape(port)
        assert "obmm_kv_owner_slots" in shown
        assert "obmm_exchange_connections" in shown
    finally:
        assert end(process) == 0


def test_a_port_that_is_taken_ends_blocks_serve_with_a_sentence(fabric: emulator.Fabric, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        command = [*OBMM, "blocks", "serve", "--plain", "--size", "1MiB", "--port", "0", "--metrics", address]
        command += ["--journal", str(tmp_path / "journal"), "--device", fabric.device("a")]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 1
    assert address.rpartition(":")[2] in done.stderr
    assert "choose another port" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_door_shows_its_counters_until_it_is_closed(rig: Callable[..., Rig]) -> None:
    made, port = rig(), free_port()
    where = {"source": f"127.0.0.1:{made.port}/kv", "key": str(made.key), "device": str(made.b.backend)}
    door = BlockDoor("lmcache", MODEL, metrics=f"127.0.0.1:{port}", **where)
    door.store.put([b"x"], [bytes(64)])
    assert 'obmm_kv_stored_total{door="lmcache"} 1.0' in scrape(port)
    door.close()
    with pytest.raises(OSError, match="refused"):
        scrape(port)


def test_a_doors_port_that_is_taken_is_one_sentence() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        with pytest.raises(BlockStoreError, match="another address or port"):
            expose(f"127.0.0.1:{taken.getsockname()[1]}", NoFigures(), ports=1)


def test_what_a_closed_door_has_done_can_still_be_asked(rig: Callable[..., Rig]) -> None:
    made = rig()
    where = {"source": f"127.0.0.1:{made.port}/kv", "key": str(made.key), "device": str(made.b.backend)}
    door = BlockDoor("lmcache", MODEL, **where)
    door.store.put([b"x"], [bytes(64)])
    door.close()
    assert door.explain()["stored"] == 1
    assert door.metrics()["obmm_kv_stored_bytes_total"] == 64
    assert door.completed() == []
    assert door.errors == 0


class NoFigures:
    """A collector of nothing."""

    def collect(self) -> tuple[()]:
        return ()
