# SPDX-License-Identifier: Apache-2.0
"""What hostile or careless programs do to the library, each found by trying."""

from __future__ import annotations

import gc
import signal
import subprocess
import sys
import threading

import pytest

import obmm
from obmm import RemoteMemoryError, emulator

MIB = 1 << 20


@pytest.fixture(scope="module")
def fabric():
    with emulator.start(nodes=2) as fabric:
        yield fabric
        assert fabric.status()["internal_errors"] == 0


@pytest.fixture
def pair(fabric):
    with obmm.open(fabric.device("a")) as a, obmm.open(fabric.device("b")) as b:
        yield a, b


def test_a_dead_view_as_the_other_buffer_is_not_blamed_on_this_mapping(pair, fabric):
    a, b = pair
    victim = a.export_region(MIB)
    with b.import_region(victim.handle()) as imported, imported.map("r") as source:
        view = source.view(0, 100)
        with b.export_region(MIB) as own, own.map("rw") as target:
            fabric.inject("a", "revoke", mem_id=victim.mem_id)
            with pytest.raises(RemoteMemoryError, match="view of other remote memory") as caught:
                target.write(0, view)
            assert (caught.value.kind, caught.value.offset) == ("SIGBUS", None)
            del caught, view
    victim.close()


def test_regions_and_mappings_are_listed_while_other_threads_make_them(pair):
    a, _ = pair
    wrong: list[Exception] = []
    stop = threading.Event()
    with a.export_region(MIB) as region:

        def look() -> None:
            try:
                while not stop.is_set():
                    assert region.mappings is not None
                    repr(a)
            except Exception as error:
                wrong.append(error)

        before = sys.getswitchinterval()
        sys.setswitchinterval(1e-5)
        threads = [threading.Thread(target=look) for _ in range(2)]
        try:
            for thread in threads:
                thread.start()
            for _ in range(3):
                held = [region.map("r") for _ in range(40)]
                del held
        finally:
            stop.set()
            sys.setswitchinterval(before)
            for thread in threads:
                thread.join()
    assert wrong == []


def test_garbage_collected_inside_the_checkers_account_does_not_wait_for_itself(fabric, monkeypatch):
    """A mapping in a cycle, freed by a collection that starts while its account is locked by this very thread."""
    from obmm.mapping import checker

    monkeypatch.setenv("OBMM_CHECK", "1")
    monkeypatch.setattr(checker, "_lives", lambda who: gc.collect() >= 0 and True)
    with obmm.open(fabric.device("a")) as a, a.export_region(MIB) as region:
        first = region.map("r")
        lost = region.map("r")
        cycle = [lost]
        cycle.append(cycle)
        gc.disable()
        try:
            del lost, cycle
            first.release()
        finally:
            gc.enable()
        monkeypatch.undo()
        account = first._piece.check._account
        first.close()
    assert account.read_text() == ""


STORM = """
import gc, sys, threading
import numpy as np
import obmm
from obmm import emulator
gc.set_threshold(3)
with emulator.start(nodes=1) as fabric, obmm.open(fabric.device("a")) as a, a.export_region(1 << 20) as region:
    stop = threading.Event()
    def storm():
        while not stop.is_set(): gc.collect()
    def work(n):
        for i in range(60):
            m = region.map("rw")
            m.store("u1", n, i)
            view = m.as_numpy("u1", 100)
            cycle = [m, view]; cycle.append(cycle)
            try: m.close()
            except obmm.MappingBusyError: pass
            del view, cycle
            assert m.load("u1", n) < 60
    threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
    collector = threading.Thread(target=storm)
    for t in [collector, *threads]: t.start()
    for t in threads: t.join()
    stop.set(); collector.join()
    gc.collect()
    assert region.mappings == (), region.mappings
print("lived")
"""


def test_collections_at_every_allocation_free_mappings_and_break_none():
    done = subprocess.run([sys.executable, "-c", STORM], capture_output=True, text=True, timeout=120)
    assert (done.stdout, done.returncode) == ("lived\n", 0), done.stderr


# An unguarded look at memory that is gone: the handler that was there before gets the signal, with its place.
LOOK = """
import ctypes, faulthandler, os, signal, sys, threading
import obmm
from obmm import emulator
how = sys.argv[1]
if how == "faulthandler": faulthandler.enable()
seen = []
if how == "python": signal.signal(signal.SIGBUS, lambda *_: os._exit(42))
with emulator.start(nodes=2) as fabric, obmm.open(fabric.device("a")) as a, obmm.open(fabric.device("b")) as b:
    region = a.export_region(1 << 20)
    mapping = b.import_region(region.handle()).map("r")
    array = mapping.as_numpy("u1", 4096)
    fabric.inject("a", "revoke", mem_id=region.mem_id)
    try: mapping.load("u1", 0)
    except obmm.RemoteMemoryError: print("guarded", flush=True)
    if how == "thread":
        t = threading.Thread(target=lambda: array.sum()); t.start(); t.join()
    array.sum()
    print("not reached")
"""


@pytest.mark.parametrize("how", ["plain", "faulthandler", "thread"])
def test_an_unguarded_look_at_dead_memory_is_a_SIGBUS_for_who_was_there_before(how):
    done = subprocess.run([sys.executable, "-c", LOOK, how], capture_output=True, text=True, timeout=60)
    assert done.stdout == "guarded\n"
    assert done.returncode == -signal.SIGBUS
    assert ("Fatal Python error: Bus error" in done.stderr) == (how == "faulthandler")


RECURSE = """
import faulthandler, resource, sys, threading
from obmm import emulator
import obmm
if sys.argv[1] == "faulthandler": faulthandler.enable()
sys.setrecursionlimit(1 << 30)
# small: from 3.12 on the interpreter has a limit of its own for calls in C
resource.setrlimit(resource.RLIMIT_STACK, (1 << 20, resource.getrlimit(resource.RLIMIT_STACK)[1]))
with emulator.start(nodes=1) as fabric, obmm.open(fabric.device("a")) as a, a.export_region(1 << 20) as r, r.map("r") as m:
    print(m.load("u1", 0), flush=True)
    class Deep:
        def __getattr__(self, name): return getattr(self, name + "x")
    import ctypes
    call = ctypes.CFUNCTYPE(ctypes.c_int)
    def down(): return below()
    below = call(down)
    if len(sys.argv) > 2:
        threading.stack_size(256 << 10)
        t = threading.Thread(target=down); t.start(); t.join()
    down()
"""


@pytest.mark.parametrize("arguments", [["faulthandler"], ["plain"], ["plain", "thread"]])
def test_an_overflow_of_the_stack_ends_as_it_would_without_us(arguments):
    """On the alternate stack if there is one; without one the kernel ends the process, and nothing hangs."""
    done = subprocess.run([sys.executable, "-c", RECURSE, *arguments], capture_output=True, text=True, timeout=120)
    assert done.returncode == -signal.SIGSEGV
    assert done.stdout == "0\n"
    assert ("Segmentation fault" in done.stderr) == (arguments == ["faulthandler"])
