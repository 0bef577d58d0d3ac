# SPDX-License-Identifier: Apache-2.0
"""What an interrupt or a fork may cut short: descriptors, finalizers, constructors, the ledger of views."""

from __future__ import annotations

import ast
import gc
import os
import subprocess
import sys
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

import obmm
from obmm import emulator
from obmm.blocks import BlockStore, Namespace
from obmm.exchange import connect, serve

from .injector import ROOT, SEED, Injected, Injector, settled, steady, steps_to_try, unraisable_is_not_kept
from .place import Place
from .recipes_above import block_owner

MIB = 1 << 20
SECONDS = float(os.environ.get("OBMM_VIEW_SECONDS", "2"))
PACKAGE = Path(obmm.__file__).parent

RAW = {"open", "eventfd", "memfd_create", "pipe", "pipe2", "dup", "timerfd_create", "pidfd_open"}
BY_HAND = {
    # processes of their own, which end when they are interrupted
    "emulator",
    "cli",
    "bench",
    # an opener's descriptor belongs to the file object that asked
    "exchange/keys.py",
    "regular.py",
}


def test_descriptors_are_noted_by_the_call_that_makes_them():
    raw = []
    for path in sorted(PACKAGE.rglob("*.py")):
        place = path.relative_to(PACKAGE)
        if place.parts[0] in BY_HAND or place.as_posix() in BY_HAND:
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Attribute) and node.attr in RAW and ast.unparse(node.value) == "os":
                raw.append(f"{place}:{node.lineno}: os.{node.attr}")
    assert not raw, "use obmm.driver.descriptor"


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    with emulator.start(nodes=2) as fabric:
        yield Place(fabric, tmp_path_factory.mktemp("place"))


# --- calls that must have ended when their interrupt comes through ------------------------------------------------------

CALLS = """
import os, random, signal, sys, threading, time
from obmm.undisturbed import joined, undisturbed
end, over, rng = time.monotonic() + float(sys.argv[1]), threading.Event(), random.Random(int(sys.argv[2]))
sent = made = got = 0
begun, ended = [], []

def pester():
    global sent
    while not over.wait(rng.random() * 0.001):
        sent += 1
        os.kill(os.getpid(), 2)

def work():
    begun.append(made)
    time.sleep(0.0005)
    ended.append(made)

def wait():
    thread = threading.Thread(target=work)
    thread.start()
    assert joined(thread)

def call(what):
    global made
    made += 1
    begun.clear()
    ended.clear()
    try:
        undisturbed(what)
    finally:
        # an interrupt before it began is one too
        assert begun == ended and len(begun) < 2, (begun, ended)

thread = threading.Thread(target=pester)
started = False
while True:
    try:
        if not started:
            started = True
            thread.start()
        while time.monotonic() < end:
            call(work if made % 2 else wait)
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # none comes late
        over.set()
        break
    except KeyboardInterrupt:
        got += 1
joined(thread)
print(sent, got, made, [each.name for each in threading.enumerate()])
"""


def test_a_call_has_ended_when_its_interrupt_comes_through():
    """Signals, not a tracer: it is `threading.Thread` of the standard library that an interrupt breaks."""
    child = subprocess.run(
        [sys.executable, "-c", CALLS, str(SECONDS), str(SEED)], capture_output=True, text=True, timeout=SECONDS + 60
    )
    assert (child.returncode, child.stderr) == (0, "")
    sent, got, made, threads = child.stdout.split(maxsplit=3)
    assert min(int(sent), int(got), int(made)) > 20
    assert threads == "['MainThread']\n"


def test_threads_are_waited_for_by_joined():
    """After an interrupt in `Thread.join` Python 3.11 says of a thread that runs that it has ended."""
    joins = []
    for path in sorted(PACKAGE.rglob("*.py")):
        place = path.relative_to(PACKAGE)
        if place.parts[0] in ("emulator", "cli", "bench") or place.as_posix() == "undisturbed.py":
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "join":
                owner = ast.unparse(node.func.value)
                if "thread" in owner or "keeper" in owner:
                    joins.append(f"{place}:{node.lineno}: {owner}.join")
    assert not joins, "use obmm.undisturbed.joined"


# --- finalizers that an interrupt cuts short ---------------------------------------------------------------------------

Make = Callable[[], object]


@contextmanager
def a_device(place: Place) -> Iterator[Make]:
    yield lambda: obmm.open(place.fabric.device("a"))


@contextmanager
def a_mapping(place: Place) -> Iterator[Make]:
    with place.devices() as (a, _), a.export_region(MIB) as region:
        yield lambda: region.map("r")


@contextmanager
def a_server(place: Place) -> Iterator[Make]:
    with place.devices() as (a, _), a.export_region(MIB) as region:
        journal = place.folder / "dropped.journal"
        yield lambda: serve({"t": region}, host="127.0.0.1", port=0, plain=True, journal=journal)


@contextmanager
def a_peer(place: Place) -> Iterator[Make]:
    with place.devices() as (a, _), a.export_region(MIB) as region:
        journal = place.folder / "leases.journal"
        with serve({"t": region}, host="127.0.0.1", port=0, plain=True, journal=journal) as server:
            yield lambda: connect(f"127.0.0.1:{server.port}", plain=True)


@contextmanager
def a_block_store(place: Place) -> Iterator[Make]:
    with place.devices() as (a, b), block_owner(place, a) as port, connect(f"127.0.0.1:{port}", plain=True) as peer:
        yield lambda: BlockStore(peer, b, Namespace(model="m", dtype="u1"))


MAKERS = [a_device, a_mapping, a_server, a_peer, a_block_store]


def finalizer_lines() -> list[int]:
    code = weakref.finalize.__call__.__code__
    return sorted({line for _, _, line in code.co_lines() if line is not None and line > code.co_firstlineno})


@pytest.mark.parametrize("maker", MAKERS, ids=lambda maker: maker.__name__)
@pytest.mark.parametrize("line", finalizer_lines())
@pytest.mark.skipif(sys.gettrace() is not None, reason="a tracer runs already (coverage without sys.monitoring)")
@pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning")
def test_who_is_forgotten_is_given_back_although_its_finalizer_was_cut_short(place, maker, line):
    code = weakref.finalize.__call__.__code__

    def trace(frame: FrameType, event: str, _argument: object) -> Any:
        if frame.f_code is not code:
            return None
        if event == "line" and frame.f_lineno == line:
            raise Injected
        return trace

    with unraisable_is_not_kept(), maker(place) as make:
        del_me = make()  # what is made once for the process is made now
        del_me.close()
        del del_me
        before = steady(place.fabric)
        thing = make()
        sys.settrace(trace)
        try:
            del thing
            gc.collect()
        finally:
            sys.settrace(None)
        left = settled(place.fabric, before)
        assert not left, left


# --- gathers whose tickets an interrupt takes away ----------------------------------------------------------------------

DROPPED = """
import os, random, signal, sys, threading, time
import numpy as np
from obmm.rows import GatherEngine, LocalMemory, Manifest, RowStore, TableSpec
from obmm.undisturbed import joined
end, over, rng = time.monotonic() + float(sys.argv[1]), threading.Event(), random.Random(int(sys.argv[2]))
sys.unraisablehook = lambda _report: None
engine = GatherEngine(2)
memory = LocalMemory(np.zeros(64 * 4096, "u1"))
store = RowStore.attach(memory, Manifest((TableSpec("t", 4096, 64),)), verify="none", plan=False, engine=engine)
ids = np.random.default_rng(1).integers(0, 4096, 30_000)  # 1.9 MB of rows: given back to the kernel when freed
sent = made = got = wrong = 0

def pester():
    global sent
    while not over.wait(rng.random() * 0.001):
        sent += 1
        os.kill(os.getpid(), 2)

def drop_one():
    out = np.empty((len(ids), 64), "u1")
    store.submit("t", ids, out)

thread = threading.Thread(target=pester)
started = False
while True:
    try:
        if not started:
            started = True
            thread.start()
        while time.monotonic() < end:
            drop_one()
            made += 1
            other = np.full((len(ids), 64), 0xEE, "u1")  # where the rows of before would go
            wrong += int((other != 0xEE).any())
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # none comes late
        over.set()
        break
    except KeyboardInterrupt:
        got += 1
    except Exception:
        engine.reap()  # no free tickets
while not joined(thread):
    pass
deadline = time.monotonic() + 20
while engine.in_use and time.monotonic() < deadline:
    engine.reap()
assert not wrong, wrong
assert not engine.in_use and not engine.abandoned
engine.close()
print(sent, got, made)
"""


def test_rows_of_a_ticket_that_was_lost_go_nowhere_else():
    """Native threads write on: what they write to lives until they have ended, and their tickets come back."""
    child = subprocess.run(
        [sys.executable, "-c", DROPPED, str(SECONDS), str(SEED)], capture_output=True, text=True, timeout=SECONDS + 60
    )
    assert child.returncode == 0, child.stderr[-2000:]
    assert min(map(int, child.stdout.split())) > 20


# --- closes that an interrupt cuts short --------------------------------------------------------------------------------


@contextmanager
def an_export(place: Place) -> Iterator[Make]:
    with place.devices() as (a, _):
        yield lambda: a.export_region(MIB)


@pytest.mark.parametrize("maker", [*MAKERS, an_export], ids=lambda maker: maker.__name__)
@pytest.mark.skipif(sys.gettrace() is not None, reason="a tracer runs already (coverage without sys.monitoring)")
def test_a_close_that_was_interrupted_is_finished_by_the_second(place, maker):
    """The object is held all the time: no finalizer and no collection helps."""
    with maker(place) as make:
        thing = make()  # what is made once for the process is made now
        thing.close()
        before = steady(place.fabric)  # with what a closed one has still, its bell for events say
        injector = Injector()
        injector.run(make().close, 0)
        for step in steps_to_try(injector.steps, SEED):
            thing = make()
            injector.run(thing.close, step)
            thing.close()
            left = settled(place.fabric, before)
            assert not left, f"{step}: {injector.at}: {left} (OBMM_INJECT_SEED={SEED})"
            assert thing.closed


# --- forks in the middle of a constructor ------------------------------------------------------------------------------


@pytest.mark.parametrize("maker", MAKERS, ids=lambda maker: maker.__name__)
@pytest.mark.skipif(sys.gettrace() is not None, reason="a tracer runs already (coverage without sys.monitoring)")
def test_a_child_forked_at_any_line_of_a_constructor_begins_well(place, maker):
    seen: set[tuple[str, int]] = set()
    failed: list[str] = []

    def forks(frame: FrameType, event: str, _argument: object) -> Any:
        if not frame.f_code.co_filename.startswith(ROOT):
            return None
        where = (frame.f_code.co_filename.removeprefix(ROOT), frame.f_lineno)
        if event == "line" and where not in seen and frame.f_code.co_name in ("__init__", "connect", "serve", "map"):
            seen.add(where)
            sys.settrace(None)
            troubles: list[object] = []
            hook, sys.unraisablehook = sys.unraisablehook, troubles.append
            child = os.fork()
            if not child:
                os._exit(len(troubles))
            sys.unraisablehook = hook
            if os.waitpid(child, 0)[1]:
                failed.append(f"{where[0]}:{where[1]}")
            sys.settrace(forks)
        return forks

    with maker(place) as make:
        sys.settrace(forks)
        try:
            thing = make()
        finally:
            sys.settrace(None)
        thing.close()
    assert not failed
    assert len(seen) > 5


# --- the ledger of views -----------------------------------------------------------------------------------------------

VIEWS = """
import gc, os, signal, sys, threading, time
import obmm
device = obmm.open(sys.argv[1])
region = device.export_region(1 << 20)
mapping = region.map("rw")
end = time.monotonic() + float(sys.argv[2])
over = threading.Event()
sent = made = got = 0

def pester():
    global sent
    while not over.wait(0.0002):
        sent += 1
        os.kill(os.getpid(), 2)

thread = threading.Thread(target=pester)
started = False
while True:
    try:
        if not started:
            started = True
            thread.start()
        while time.monotonic() < end:
            view = mapping.view(0, 4096)
            rows = mapping.as_numpy("<u8", (8, 8))
            made += 2
            del view, rows
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # none comes late
        over.set()
        thread.join()
        break
    except KeyboardInterrupt:
        got += 1
view = rows = None
gc.collect()
mapping.close()
region.close()
device.close()
print(sent, got, made)
"""


@pytest.mark.timeout(0)
def test_close_works_after_interrupts_under_views(place):
    child = subprocess.run(
        [sys.executable, "-c", VIEWS, place.fabric.device("a"), str(SECONDS)],
        capture_output=True,
        text=True,
        timeout=SECONDS + 60,
    )
    assert child.returncode == 0, child.stderr[-2000:]
    sent, got, made = map(int, child.stdout.split())
    assert min(sent, got, made) > 20
    print(f"\n{sent} signals, {got} interrupts, {made} views")


def test_a_view_whose_callback_was_lost_is_not_counted(place):
    """What lives is looked up: an entry that was left behind says nothing."""
    with place.devices() as (a, _), a.export_region(MIB) as region:
        mapping = region.map("rw")

        def interrupted(frame: FrameType, event: str, _argument: object) -> Any:
            if frame.f_code.co_name == "<lambda>" and frame.f_code.co_filename.endswith("views.py"):
                raise Injected
            return interrupted

        hook, sys.unraisablehook = sys.unraisablehook, lambda _: None
        view = mapping.view(0, 4096)
        sys.settrace(interrupted)
        try:
            del view
            gc.collect()
        finally:
            sys.settrace(None)
            sys.unraisablehook = hook
        mapping.close()
