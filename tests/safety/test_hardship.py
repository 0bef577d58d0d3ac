# SPDX-License-Identifier: Apache-2.0
"""SIGKILL at every step, fork and spawn in the middle, an exporter revoked under 64 threads."""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import subprocess
import sys
import threading

import pytest
from click.testing import CliRunner

import obmm
from obmm import RemoteMemoryError, emulator
from obmm.cli.main import main

MIB = 1 << 20


@pytest.fixture(scope="module")
def fabric():
    with emulator.start(nodes=2) as fabric:
        yield fabric
        assert fabric.status()["internal_errors"] == 0


# One process that does everything, stopping before each step until it is told to go on.
VICTIM = """
import sys, obmm
def step(name):
    print(name, flush=True)
    sys.stdin.readline()
step("start")
a = obmm.open(sys.argv[1]); step("opened a")
b = obmm.open(sys.argv[2]); step("opened b")
region = a.export_region(1 << 20, label="victim"); step("exported")
mapping = region.map("rw"); step("mapped")
mapping.write(0, bytes(range(256))); step("written")
view = mapping.view(); step("viewed")
del view; mapping.publish(); step("published")
imported = b.import_region(region.handle(), label="victim"); step("imported")
reader = imported.map("r"); step("mapped the import")
assert reader.read(0, 256) == bytes(range(256)); step("read")
writer = imported.map("rw"); step("mapped the import again")
writer.close(); step("closed a mapping")
reader.close(); step("closed the mappings")
imported.close(); step("unimported")
mapping.close(); step("unmapped")
region.close(); step("unexported")
a.close(); b.close(); step("closed")
"""
STEPS = VICTIM.count("step(") - 1


def victim(fabric: emulator.Fabric, steps: int) -> str:
    """Let it do `steps` steps, kill it before the next -> what it did last."""
    child = subprocess.Popen(
        [sys.executable, "-c", VICTIM, fabric.device("a"), fabric.device("b")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    name = child.stdout.readline().strip()
    for _ in range(steps):
        child.stdin.write("\n")
        child.stdin.flush()
        name = child.stdout.readline().strip()
    child.send_signal(signal.SIGKILL)
    child.communicate()
    return name


def collect(fabric: emulator.Fabric, node: str) -> None:
    command = ["gc", "--yes", "--exports", "--force", "--json", "--device", fabric.device(node)]
    result = CliRunner().invoke(main, command)
    assert result.exit_code == 0, result.output


def test_SIGKILL_at_every_step_leaves_nothing_that_gc_does_not_find(fabric):
    with obmm.open(fabric.device("a")) as a, a.export_region(MIB, label="alive") as mine, mine.map("rw") as mapping:
        mapping.write(0, b"not yours")
        with obmm.open(fabric.device("b")) as b, b.import_region(mine.handle()) as living, living.map("r") as reader:
            done = []
            for steps in range(STEPS):
                done.append(victim(fabric, steps))
                for node in ("b", "a"):
                    collect(fabric, node)
                left = {name: [r["mem_id"] for r in node["regions"]] for name, node in fabric.status()["nodes"].items()}
                assert left == {"a": [mine.mem_id], "b": [living.mem_id]}, done[-1]
                assert fabric.status()["nodes"]["b"]["windows"] == 1
                assert reader.read(0, 9) == b"not yours"
            assert (done[0], done[-1], len(set(done))) == ("start", "closed", STEPS)


def test_64_threads_read_while_the_exporter_is_revoked_and_each_raises_once(fabric):
    with obmm.open(fabric.device("a")) as a, obmm.open(fabric.device("b")) as b:
        region = a.export_region(MIB)
        with b.import_region(region.handle()) as imported, imported.map("r") as mapping:
            errors: list[list[BaseException]] = [[] for _ in range(64)]
            reading = threading.Barrier(65)

            def hammer(mine: list[BaseException]) -> None:
                out = bytearray(1364)
                reading.wait()
                while True:
                    try:
                        mapping.read_into(out, 4096)
                    except RemoteMemoryError as error:
                        mine.append(error)
                        return

            threads = [threading.Thread(target=hammer, args=(mine,)) for mine in errors]
            for thread in threads:
                thread.start()
            reading.wait()
            fabric.inject("a", "revoke", mem_id=region.mem_id)
            for thread in threads:
                thread.join(60)
            assert not any(thread.is_alive() for thread in threads)
            assert [len(mine) for mine in errors] == [1] * 64
            assert {(error.kind, error.peer) for (error,) in errors} == {("SIGBUS", imported.peer)}
        region.close()


FAULTHANDLER = """
import faulthandler, sys, threading, warnings
import obmm
from obmm import emulator
when = sys.argv[1]
if when == "before": faulthandler.enable()
with emulator.start(nodes=2) as fabric, obmm.open(fabric.device("a")) as a, obmm.open(fabric.device("b")) as b:
    region = a.export_region(1 << 20)
    imported = b.import_region(region.handle())
    mapping = imported.map("r")
    if when == "after": faulthandler.enable()
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        b_again = imported.map("r")   # where a handler in front of ours is noticed
        b_again.close()
    print(len([w for w in seen if "handler" in str(w.message)]))
    fabric.inject("a", "revoke", mem_id=region.mem_id)
    try: mapping.load("u1", 0)
    except obmm.RemoteMemoryError as error: print(error.kind)
    mapping.close(); imported.close(); region.close()
"""


@pytest.mark.parametrize(("when", "warned"), [("before", 0), ("after", 1)])
def test_faulthandler_before_and_after(when, warned):
    done = subprocess.run(
        [sys.executable, "-c", FAULTHANDLER, when],
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, "PYTHONFAULTHANDLER": ""},
    )
    assert done.stdout.split() == [str(warned), "SIGBUS"], done.stderr
    assert done.returncode == 0


def test_fork_in_the_middle_of_everything(fabric):
    """Threads read, a view lives, a phase is open: the child has nothing, and may open its own."""
    with obmm.open(fabric.device("a")) as a, a.export_region(MIB) as region, region.map("rw") as mapping:
        stop = threading.Event()

        def hammer() -> None:
            while not stop.is_set():
                mapping.read(0, 4096)

        threads = [threading.Thread(target=hammer) for _ in range(4)]
        for thread in threads:
            thread.start()
        view = mapping.view(0, 100)
        try:
            with mapping.writing():
                for _ in range(10):
                    pid = os.fork()
                    if pid == 0:
                        code = 1
                        try:
                            assert a.closed
                            assert region.closed
                            assert mapping.closed
                            with obmm.open(fabric.device("b")) as own, own.export_region(MIB) as other:
                                with other.map("rw") as fresh:
                                    fresh.store("u1", 0, 1)
                            code = 0
                        finally:
                            os._exit(code)
                    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
                view[0] = 7
        finally:
            stop.set()
            for thread in threads:
                thread.join()
        assert mapping.load("u1", 0) == 7
        del view


def spawned(device: str, packed: bytes, answers: multiprocessing.Queue) -> None:
    with obmm.open(device) as own, own.import_region(obmm.Handle.unpack(packed)) as imported, imported.map("r") as m:
        answers.put(m.read(0, 5))


def test_spawn_in_the_middle_hands_over_a_handle_and_nothing_else(fabric):
    context = multiprocessing.get_context("spawn")
    with obmm.open(fabric.device("a")) as a, a.export_region(MIB) as region, region.map("rw") as mapping:
        mapping.write(0, b"spawn")
        answers = context.Queue()
        child = context.Process(target=spawned, args=(fabric.device("b"), region.handle().pack(), answers))
        child.start()
        assert answers.get(timeout=60) == b"spawn"
        child.join(60)
        assert child.exitcode == 0
        with pytest.raises(TypeError):
            json.dumps(mapping)
