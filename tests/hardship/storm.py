# SPDX-License-Identifier: Apache-2.0
"""Many processes on a fabric of several nodes, killed at random, with the invariants checked all the time."""

from __future__ import annotations

import random
import time
from pathlib import Path

from obmm import emulator
from obmm.emulator.topology import Topology

from ..conformance.replay.native_process import NativeProcess, Nursery
from ..conformance.replay.native_system import build_probe

LONGER_THAN_ANY_STORM_S = 36_000.0


class Storm:
    """`workers` processes over the nodes of one fabric."""

    def __init__(
        self,
        folder: Path,
        seed: int,
        nodes: int = 2,
        workers: int = 8,
        lifetime: float = LONGER_THAN_ANY_STORM_S,
    ) -> None:
        self._lifetime = lifetime
        self.random = random.Random(seed)
        self.fabric = emulator.start(nodes=nodes)
        self._nursery = Nursery()
        self._probe = str(build_probe(folder))
        controllers = [host.controllers[0] for host in Topology.default(nodes).hosts]
        self._owners = {
            node: (controller.cna, controller.eid.hex())
            for node, controller in zip(self.fabric.nodes, controllers, strict=True)
        }
        self._roots = {node: str(self.fabric.root(node)) for node in self.fabric.nodes}
        self.workers = [self._spawn() for _ in range(workers)]
        self.killed = 0
        self.checks = 0

    def _spawn(self) -> NativeProcess:
        node = self.random.choice(self.fabric.nodes)
        process = self._nursery.spawn({"probe": self._probe, "table": {"socket": self.fabric.socket, "node": node}})
        order = {
            "module": "tests.hardship.storm_worker",
            "function": "storm",
            "node": node,
            "roots": self._roots,
            "owners": self._owners,
            "seed": self.random.getrandbits(32),
            "seconds": self._lifetime,
        }
        process.start("run", order)
        return process

    def rage(self, seconds: float, kills: float) -> None:
        """Kill and replace workers for this long, and at least so many, however busy the machine; raise when an invariant breaks or a worker complains."""
        until = time.monotonic() + seconds
        while time.monotonic() < until or self.killed < kills:
            time.sleep(self.random.uniform(0, 0.05))
            index = self.random.randrange(len(self.workers))
            victim = self.workers[index]
            complaint = victim.poll()
            if complaint is not None:
                raise AssertionError(f"a worker on its own: {complaint.get('failure', complaint)}")
            victim.kill()
            self.killed += 1
            self.check()
            self.workers[index] = self._spawn()
        status = self.fabric.status()
        assert status["internal_errors"] == 0, Path(self.fabric.root(0)).parent.parent.joinpath("log").read_text()

    def check(self) -> None:
        """The model's invariants, in the server."""
        self.fabric.request("check")
        self.checks += 1

    def calm(self) -> None:
        """Kill all; nothing may be open or mapped, and everything can be removed."""
        for worker in self.workers:
            worker.kill()
        self.workers.clear()
        self.check()
        status = self.fabric.status()
        assert status["open_files"] == 0, status
        for node in status["nodes"].values():
            assert node["processes"] == [], node
            assert all(region["opens"] == region["mappings"] == 0 for region in node["regions"]), node
        for node in self.fabric.nodes:
            self._remove_all(node, [(region["mem_id"], region["kind"]) for region in status["nodes"][node]["regions"]])
        left = self.fabric.status()["nodes"]
        assert all(node["regions"] == [] for node in left.values()), left
        self.check()

    def _remove_all(self, node: str, regions: list[tuple[int, str]]) -> None:
        process = self._nursery.spawn({"probe": self._probe, "table": {"socket": self.fabric.socket, "node": node}})
        for mem_id, kind in regions:
            result = process.perform(f"ioctl UN{kind.upper()}", {"args": {"mem_id": mem_id}})
            assert result == {"ret": 0}, (node, mem_id, kind, result)
        process.kill()

    def close(self) -> None:
        """End the fabric."""
        for worker in self.workers:
            worker.kill()
        self._nursery.close()
        self.fabric.close()
