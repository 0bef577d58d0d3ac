# SPDX-License-Identifier: Apache-2.0
"""Many clients, many regions, the descriptor limit."""

from __future__ import annotations

import errno
import os
import random
import resource
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from obmm import emulator
from obmm.emulator import Fabric

from .children import Child
from .node import MIB, Node

pytestmark = pytest.mark.alone  # thousands of regions, or clients, and what they cost

CLIENTS = 64
REGIONS = 10_000
KIB = 1024


def anonymous_memory(pid: int) -> int:
    """Bytes of anonymous resident memory."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) * KIB
    raise AssertionError("no RssAnon")


def test_64_clients_at_once(fabric: Fabric, a: Node) -> None:
    shared = a.export(2 * MIB).mem_id

    def body() -> None:
        mine = Node(fabric, "a")
        own = mine.export(2 * MIB).mem_id
        for mem_id in (shared, own):
            fd = mine.open_region(mem_id)
            start = mine.map(fd, 2 * MIB)
            mine.own(fd, start, 2 * MIB, 0x5)

    children = [Child(body) for _ in range(CLIENTS)]
    status = fabric.status()
    assert status["clients"] == CLIENTS + 1
    regions = {region["mem_id"]: region for region in status["nodes"]["a"]["regions"]}
    assert len(regions) == CLIENTS + 1
    assert regions[shared]["mappings"] == CLIENTS
    for child in children:
        child.kill()
    fabric.check()
    for mem_id in regions:
        a.unexport(mem_id)


def test_10000_regions_in_little_memory(fabric: Fabric, a: Node) -> None:
    before, descriptors = anonymous_memory(fabric.server_pid), len(os.listdir(f"/proc/{fabric.server_pid}/fd"))
    ids = [a.export(2 * MIB).mem_id for _ in range(REGIONS)]
    assert ids == list(range(1, REGIONS + 1))
    assert (anonymous_memory(fabric.server_pid) - before) / REGIONS < 4 * KIB
    assert len(os.listdir(f"/proc/{fabric.server_pid}/fd")) - descriptors <= REGIONS
    assert a.query(REGIONS, MIB) == a.query(REGIONS) + MIB
    os.close(a.open_region(REGIONS))


def test_the_soft_descriptor_limit_is_raised_and_the_hard_one_is_a_clear_error() -> None:
    # in a child: a hard limit cannot be raised again
    with Child(_hit_the_limit) as child:
        assert child.finish() == 0


def _hit_the_limit() -> None:
    resource.setrlimit(resource.RLIMIT_NOFILE, (64, 96))
    with emulator.start(nodes=1) as fabric:
        assert fabric.status()["descriptor_limit"] == 96
        node = Node(fabric)
        with pytest.raises(OSError) as refused:
            for _ in range(200):
                node.export()
        assert refused.value.errno == errno.ENOMEM
        node.unexport(1)
        with pytest.raises(OSError) as refused:
            for _ in range(3):
                node.open()
        assert refused.value.errno in (errno.ENFILE, errno.EMFILE)
        log = (fabric.root().parents[1] / "log").read_text()
        assert "RLIMIT_NOFILE" in log


def _held(status: dict[str, Any]) -> set[tuple[int, int]]:
    regions = [region for node in status["nodes"].values() for region in node["regions"]]
    return {(region["opens"], region["mappings"]) for region in regions}


def test_storm_of_processes_that_die_at_random(fabric: Fabric) -> None:
    """Export, import, map, own, die by SIGKILL; the model's invariants hold after each death."""
    chance = random.Random(7)
    a, b = Node(fabric, "a"), Node(fabric, "b")
    exports = [a.export(4 * MIB) for _ in range(4)]
    imports = [b.import_(b.program("a", one, 4 * MIB), 4 * MIB, "a") for one in exports]

    def body(seed: int) -> None:
        mine = random.Random(seed)
        name = mine.choice("ab")
        node = Node(fabric, name)
        while True:
            mem_id = mine.choice([one.mem_id for one in exports] if name == "a" else imports)
            fd = node.open_region(mem_id)
            start = node.map(fd, 2 * MIB, offset=mine.choice([0, 2 * MIB]))
            for _ in range(mine.randrange(4)):
                page = mine.randrange(512) * 4096
                node.own(fd, start + page, 4096 * mine.randrange(1, 513 - page // 4096), mine.choice([0x5, 0x9, 0xD]))
            if mine.random() < 0.5:
                node.unmap(start, 2 * MIB)
            os.close(fd)
            if mine.random() < 0.3:
                node.unexport(node.export().mem_id)

    running: list[int] = []
    for round_ in range(40):
        pid = os.fork()
        if not pid:
            try:
                body(round_)
            finally:
                os._exit(1)
        running.append(pid)
        if len(running) > 5:
            victim = running.pop(chance.randrange(len(running)))
            os.kill(victim, signal.SIGKILL)
            os.waitpid(victim, 0)
            fabric.check()
    for pid in running:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
    fabric.check()
    end = time.monotonic() + 30  # an exit that takes longer than a request waits for it is not over yet
    while (status := fabric.status())["clients"] != 2 or _held(status) != {(0, 0)}:
        assert time.monotonic() < end, (status["clients"], _held(status))
        time.sleep(0.05)
    for mem_id in imports:
        b.unimport(mem_id)
    for region in status["nodes"]["a"]["regions"]:
        a.unexport(region["mem_id"])


def test_the_benchmark_of_calls_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    from bench import emulator_calls

    for name, value in {"SAMPLES": 20, "REGION": 4 * MIB, "LOADS": 64, "TURNS": 3}.items():
        monkeypatch.setattr(emulator_calls, name, value)
    report = emulator_calls.measure()
    assert report["backend"] == "emulator"
    assert all(row["p50_us"] > 0 for row in report["calls"])
    assert report["load"]["ratio"] > 0
