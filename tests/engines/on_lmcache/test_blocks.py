# SPDX-License-Identifier: Apache-2.0
"""LMCache's own adapter, factory and benchmark over a store of blocks."""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from lmcache.v1.distributed.l2_adapters import native_plugin_l2_adapter as plugin

from obmm.errors import ObmmError
from obmm.integrations import lmcache as door
from tests.engines.kv_owner import KvOwner, kv_owner

BLOCK = 256 << 10


@pytest.fixture(scope="module")
def kv(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KvOwner]:
    with kv_owner(tmp_path_factory.mktemp("kv"), BLOCK, 512) as owner:
        yield owner


def connector(kv: KvOwner, **options: Any) -> door.Connector:
    return door.Connector(**kv.options, **options)


def wait(made: door.Connector, identity: int) -> door.Completion:
    deadline = time.monotonic() + 20
    poll = select.poll()
    poll.register(made.event_fd(), select.POLLIN)
    while time.monotonic() < deadline:
        poll.poll(1000)
        for each in made.drain_completions():
            if each[0] == identity:
                return each
    raise AssertionError("no completion")


def adapter_json(kv: KvOwner, **options: Any) -> str:
    return json.dumps(
        {
            "type": "native_plugin",
            "module_path": "obmm.integrations.lmcache",
            "class_name": "Connector",
            "adapter_params": kv.options | options,
        }
    )


def bench(kv: KvOwner, *arguments: str, **options: Any) -> tuple[dict[str, Any], str]:
    """`lmcache bench l2` in a process of its own -> its JSON, and everything that it said."""
    command = [sys.executable, "-P", "-m", "lmcache.cli.main"]
    script = Path(sys.executable).with_name("lmcache")
    command = [str(script)] if script.exists() else command
    done = subprocess.run(
        [*command, "bench", "l2", "--l2-adapter", adapter_json(kv, **options), "--format", "json", *arguments],
        capture_output=True,
        text=True,
        timeout=200,
        env=os.environ | {"LMCACHE_DISABLE_BANNER": "1"},
    )
    assert done.returncode == 0, done.stderr[-3000:] + done.stdout[-1000:]
    result, _ = json.JSONDecoder().raw_decode(done.stdout[done.stdout.index("{") :])  # words follow
    return dict(result), done.stdout + done.stderr


def found(part: str, report: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    """Every value of a report whose name has this part."""
    if isinstance(report, dict):
        for key, value in report.items():
            yield from found(part, value, f"{name}.{key}" if name else key)
    elif part in name.rpartition(".")[2]:
        yield name, report


def test_set_exists_get_and_delete_through_the_six_methods(kv: KvOwner) -> None:
    made = connector(kv)
    try:
        keys = [f"model@00000000@0@{i:064x}" for i in range(8)]
        blocks = [bytearray(os.urandom(BLOCK)) for _ in keys]
        assert wait(made, made.submit_batch_exists(keys))[1:] == (True, "", [False] * 8)
        stored = wait(made, made.submit_batch_set(keys[:6], [memoryview(each) for each in blocks[:6]]))
        assert stored[1]
        assert wait(made, made.submit_batch_exists(keys))[3] == [True] * 6 + [False] * 2
        out = [bytearray(BLOCK) for _ in keys]
        got = wait(made, made.submit_batch_get(keys, [memoryview(each) for each in out]))
        assert got[1] is False
        assert got[3] == [True] * 6 + [False] * 2
        assert out[:6] == blocks[:6]
        assert wait(made, made.submit_batch_delete(keys[:1]))[3] == [True]
        assert wait(made, made.submit_batch_exists(keys[:2]))[3] == [False, True]
    finally:
        made.close()


def test_what_cannot_be_submitted_is_a_completion_and_no_exception(kv: KvOwner) -> None:
    made = connector(kv)
    for submit in (
        lambda: made.submit_batch_get(["a"], []),
        lambda: made.submit_batch_set(["a"], [object()]),  # type: ignore[list-item]
        lambda: made.submit_batch_exists([3]),  # type: ignore[list-item]
    ):
        _, ok, text, flags = wait(made, submit())
        assert not ok
        assert text
        assert flags is None
    made.close()
    assert made.submit_batch_exists(["a"]) > 0
    assert [each[1] for each in made.drain_completions()] == [False]


def test_the_real_factory_takes_it(kv: KvOwner) -> None:
    config = plugin.NativePluginL2AdapterConfig.from_dict(json.loads(adapter_json(kv)))
    adapter = plugin._create_native_plugin_l2_adapter(config)
    adapter.close()


def test_an_untested_version_and_a_missing_owner_are_sentences(kv: KvOwner, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ObmmError, match=r"does a server \(.*`obmm blocks serve`"):
        door.Connector(source="127.0.0.1:1/kv", key=kv.key, device=kv.device)
    monkeypatch.setattr("obmm.integrations.versions.installed", lambda engine: "9.9")
    with pytest.raises(ObmmError, match=r"9\.9"):
        connector(kv)


def test_its_benchmark_verifies_every_byte(kv: KvOwner) -> None:
    result, said = bench(
        kv, "--num-keys", "32", "--data-size-kb", "256", "--rounds", "2", "--no-skip-verify", model="bench"
    )
    assert kv.counts["stored"] >= 32
    assert "All 32 keys data verified OK" in said, said[-2000:]
    assert [each[1] for each in found("rounds_timed_out", result)].count(0) == 3
    keys, good = ([each[1] for each in found(name, result)] for name in ("total_keys", "total_success"))
    assert len(keys) == 3
    # store and load: every key; lookups ask for keys that were never stored as well
    assert sum(k == g for k, g in zip(keys, good, strict=True)) >= 2


SCRIPT = """
import json, select, sys
from obmm.integrations.lmcache import Connector

options, what, count = json.loads(sys.argv[1]), sys.argv[2], 12
made = Connector(**options)
keys = [f"model@00000000@0@{i:064x}" for i in range(count)]
memory = [bytearray(bytes([i + 1]) * SIZE if what == "store" else SIZE) for i in range(count)]
views = [memoryview(each) for each in memory]
identity = made.submit_batch_set(keys, views) if what == "store" else made.submit_batch_get(keys, views)
poll = select.poll()
poll.register(made.event_fd(), select.POLLIN)
while not (done := [each for each in made.drain_completions() if each[0] == identity]):
    poll.poll(1000)
right = sum(bytes(each) == bytes([i + 1]) * SIZE for i, each in enumerate(memory))
print(json.dumps({"flags": sum(done[0][3]), "right": right, "stored": made.stats()["stored"]}))
made.close()
""".replace("SIZE", str(BLOCK))


def process(kv: KvOwner, what: str, model: str) -> dict[str, int]:
    """A fresh interpreter on node b."""
    command = [sys.executable, "-P", "-c", SCRIPT, json.dumps(kv.options | {"model": model}), what]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr
    return dict(json.loads(done.stdout))


def test_a_second_process_loads_what_the_first_one_stored_and_another_model_nothing(kv: KvOwner) -> None:
    assert process(kv, "store", "shared")["flags"] == 12
    assert process(kv, "load", "shared") == {"flags": 12, "right": 12, "stored": 0}
    assert process(kv, "load", "other") == {"flags": 0, "right": 0, "stored": 0}
