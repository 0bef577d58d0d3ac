# SPDX-License-Identifier: Apache-2.0
"""Many processes doing anything in any order: the invariants hold after each step."""

from __future__ import annotations

import os
import random
import threading

import pytest

from obmm.emulator.model import KernelError

from .harness import INFER, INVAL, PAGE, PMD, Client, N, R, W, X, fabric

STEPS = 600


class Storm:
    """Random calls of random processes on all hosts of one fabric."""

    def __init__(self, seed: int, **kind: bool | int) -> None:
        self.random = random.Random(seed)
        self.fabric = fabric(2, **kind)
        self.clients: list[Client] = []
        self.mapped: list = []
        self.files: list = []
        self.decoded: list[tuple[Client, int]] = []
        self.refused = 0

    def step(self) -> None:
        pick = self.random.choice
        actions = [self.arrive, self.export, self.export, self.import_, self.import_, self.remove, self.remove]
        actions += [self.map] * 5 + [self.update] * 8 + [self.unmap] * 3 + [self.close, self.kill, self.fail]
        try:
            pick(actions)()
        except KernelError:
            self.refused += 1

    def someone(self) -> Client:
        if not self.clients:
            self.arrive()
        return self.random.choice(self.clients)

    def arrive(self) -> None:
        if len(self.clients) < 8:
            self.clients.append(Client(self.random.choice(list(self.fabric.hosts.values()))))

    def export(self) -> None:
        self.someone().export(self.random.choice([PMD, 2 * PMD, 3 * PMD, PAGE]), self.random.choice([1, 3, 0]))

    def import_(self) -> None:
        importer = self.someone()
        exporter = self.random.choice(list(self.fabric.hosts.values()))
        controller = exporter.spec.controllers[0]
        region = self.random.choice(list(exporter.regions.values()) or [None])
        if region is None or region.kind != "export":
            return
        kind = self.random.choice(["CC", "NC"])
        window = importer.host.program(controller.cna, region.tokenid, region.uba, region.size, kind)
        self.decoded.append((importer, window))
        importer.import_(window, region.size)

    def remove(self) -> None:
        client = self.someone()
        mem_id = self.random.randint(1, 12)
        (client.unexport if self.random.random() < 0.5 else client.unimport)(mem_id)

    def map(self) -> None:
        client = self.someone()
        flags = self.random.choice([os.O_RDWR, os.O_RDWR, os.O_RDONLY, os.O_RDWR | os.O_SYNC])
        file = client.open(self.random.randint(1, 12), flags)
        self.files.append(file)
        pmd = self.random.random() < 0.2
        length = self.random.choice([PMD, 2 * PMD]) if pmd else self.random.choice([PAGE, 8 * PAGE, PMD])
        offset = self.random.choice([0, PMD] if pmd else [0, PAGE, PMD]) | pmd << 63
        rights = self.random.choice([N, R, X, W])
        self.mapped.append(client.map_file(file, rights, length, offset))

    def update(self) -> None:
        if self.mapped:
            mapped = self.random.choice(self.mapped)
            start, end = self.part(mapped)
            mapped.update(self.random.choice([N, R, X, W]), self.random.choice([INFER, INFER, INVAL, 0]), start, end)

    def unmap(self) -> None:
        if self.mapped:
            mapped = self.random.choice(self.mapped)
            mapped.unmap(*self.part(mapped))

    def part(self, mapped) -> tuple[int, int]:
        pages = mapped.length // PAGE
        if self.random.random() < 0.4:
            return 0, mapped.length
        start = self.random.randrange(pages)
        return start * PAGE, self.random.randint(start + 1, pages) * PAGE

    def close(self) -> None:
        if self.files:
            self.files.pop(self.random.randrange(len(self.files))).release()

    def kill(self) -> None:
        client = self.someone()
        client.exit()
        self.clients.remove(client)
        for mapped in self.mapped:
            if mapped.client is client:
                mapped.detach()
        self.mapped = [mapped for mapped in self.mapped if mapped.client is not client]

    def fail(self) -> None:
        host = self.random.choice(list(self.fabric.hosts.values()))
        if self.random.random() < 0.5:
            host.faults.reset()
        else:
            fault = self.random.choice(["flush-error", "alloc-fails", "ummu-map-error", "remap-error", "split-error"])
            self.fabric.inject(host.name, fault, value=5)

    def end(self) -> None:
        """All go; nothing may stay busy, and everything can be removed."""
        while self.clients:
            self.kill()
        for file in self.files:
            file.release()
        self.fabric.check()
        for host in self.fabric.hosts.values():
            host.faults.reset()
            janitor = Client(host)
            for mem_id, region in list(host.regions.items()):
                (janitor.unexport if region.kind == "export" else janitor.unimport)(mem_id)
            janitor.exit()
            assert not host.regions
            assert not host.files
            assert not len(host.imports)
            assert all(pool.counters()["used"] == 0 for pool in host.pools.values())
        self.fabric.check()
        self.fabric.close()


@pytest.mark.parametrize("kind", [{}, {"strict": True}, {"poison_unit": PMD}], ids=["coherent", "strict", "units"])
@pytest.mark.parametrize("seed", range(3))
def test_invariants_hold_after_each_step(seed, kind):
    storm = Storm(seed, **kind)
    for _ in range(STEPS):
        storm.step()
        storm.fabric.check()
    assert storm.refused < STEPS
    storm.end()


def test_invariants_hold_with_threads_at_once():
    storm = Storm(99)
    hosts = list(storm.fabric.hosts.values())
    failures: list[BaseException] = []

    def work(seed: int) -> None:
        rng = random.Random(seed)
        client = Client(hosts[seed % 2])
        try:
            for _ in range(60):
                try:
                    mem_id = client.export().mem_id
                    mapped = client.map(mem_id, rng.choice([N, R, W]))
                    mapped.update(rng.choice([N, R, W]), start=rng.randrange(8) * PAGE)
                    mapped.unmap()
                    client.unexport(rng.choice([mem_id, mem_id, 1]))
                except KernelError:
                    pass
                storm.fabric.check()
        except BaseException as error:
            failures.append(error)
        finally:
            client.exit()

    for host in hosts:
        host.faults.flush_sleep = 0.001
    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    storm.end()
