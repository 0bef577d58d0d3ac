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
from obmm.driver.calls import Driver
from obmm.windows.emulator import EmulatorWindows

MIB = 1 << 20


@pytest.fixture(scope="module")
def fabric():
    with emulator.start(nodes=2) as fabric:
        yield fabric
        assert fabric.status()["internal_errors"] == 0


def everything(device_a: str, device_b: str) -> None:
    """A whole life: two devices, a region, an import of it, mappings, a view."""
    with obmm.open(device_a) as a, obmm.open(device_b) as b, a.export_region(MIB, label="victim") as region:
        with region.map("rw") as mapping:
            mapping.write(0, bytes(range(256)))
            view = mapping.view()
            del view
            mapping.publish()
            with b.import_region(region.handle(), label="victim") as imported, imported.map("r") as reader:
                assert reader.read(0, 256) == bytes(range(256))
                with imported.map("rw") as writer, writer.writing():
                    writer.store("u1", 0, 1)


DRIVER_CALLS = (
    "open_region",
    "map",
    "release",
    "update_range",
    "export",
    "unexport_owned",
    "import_",
    "unimport_owned",
)
WINDOW_CALLS = ("acquire", "release")


class Countdown:
    """Every call to the driver and to the windows, in this process: SIGKILL just before the one with a given number."""

    def __init__(self, last: int | None) -> None:
        self.last = last
        self.names: list[str] = []
        for owner, names in ((Driver, DRIVER_CALLS), (EmulatorWindows, WINDOW_CALLS)):
            for name in names:
                setattr(owner, name, self.counted(name, getattr(owner, name)))

    def counted(self, name: str, call):
        def counted(*arguments, **options):
            if len(self.names) == self.last:
                os.kill(os.getpid(), signal.SIGKILL)
            self.names.append(name)
            return call(*arguments, **options)

        return counted


def victim(fabric: emulator.Fabric, last: int | None) -> list[str]:
    """Live in a forked child, and be killed before call `last` -> the calls made, if it lived to the end."""
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            countdown = Countdown(last)
            everything(fabric.device("a"), fabric.device("b"))
            os.write(writer, " ".join(countdown.names).encode())
            code = 0
        finally:
            os._exit(code)
    os.close(writer)
    with os.fdopen(reader) as pipe:
        names = pipe.read().split()
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == (0 if last is None else -signal.SIGKILL)
    return names


def collect(fabric: emulator.Fabric, node: str) -> None:
    command = ["gc", "--yes", "--exports", "--force", "--json", "--device", fabric.device(node)]
    result = CliRunner().invoke(main, command)
    assert result.exit_code == 0, result.output


def test_SIGKILL_before_every_call_leaves_nothing_that_gc_does_not_find(fabric):
    with obmm.open(fabric.device("a")) as a, a.export_region(MIB, label="alive") as mine, mine.map("rw") as mapping:
        mapping.write(0, b"not yours")
        with obmm.open(fabric.device("b")) as b, b.import_region(mine.handle()) as living, living.map("r") as reader:
            names = victim(fabric, None)
            # between EXPORT and the header, between the window and IMPORT, between UNIMPORT and its window
            for first, then in (("export", "open_region"), ("acquire", "import_"), ("unimport_owned", "release")):
                assert names[names.index(first) + 1] == then
            for last in range(len(names)):
                victim(fabric, last)
                for node in ("b", "a"):
                    collect(fabric, node)
                nodes = fabric.status()["nodes"]
                left = {name: [r["mem_id"] for r in node["regions"]] for name, node in nodes.items()}
                assert (left, nodes["b"]["windows"]) == ({"a": [mine.mem_id], "b": [living.mem_id]}, 1), names[last]
                assert reader.read(0, 9) == b"not yours"


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
import faulthandler, sys
import obmm
from obmm import emulator
when = sys.argv[1]
if when == "before": faulthandler.enable()
with emulator.start(nodes=2) as fabric, obmm.open(fabric.device("a")) as a, obmm.open(fabric.device("b")) as b:
    region = a.export_region(1 << 20)
    imported = b.import_region(region.handle())
    mapping = imported.map("r")
    if when == "after": faulthandler.enable()
    fabric.inject("a", "revoke", mem_id=region.mem_id)
    try: mapping.load("u1", 0)
    except obmm.RemoteMemoryError as error: print(error.kind)
    mapping.close(); imported.close(); region.close()
"""


@pytest.mark.parametrize("when", ["before", "after"])
def test_faulthandler_before_and_after(when):
    done = subprocess.run(
        [sys.executable, "-c", FAULTHANDLER, when],
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, "PYTHONFAULTHANDLER": ""},
    )
    assert done.stdout.split() == ["SIGBUS"], done.stderr
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
