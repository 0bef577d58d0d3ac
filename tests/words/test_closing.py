# SPDX-License-Identifier: Apache-2.0
"""The base of everything that owns something: with blocks, copies, forks, leaks."""

from __future__ import annotations

import ast
import copy
import errno
import gc
import os
import pickle
import threading
import warnings
from pathlib import Path

import pytest

import obmm
from obmm import closing
from obmm.closing import Closing, Living, die, ending, in_forked_children, tell_of_forks
from obmm.errors import ClosedError, CopyError, ObmmError

PACKAGE = Path(obmm.__file__).parent
SOURCES = sorted(path for path in PACKAGE.rglob("*.py"))


class Thing(Closing):
    """Refuses to close as often as it is told to."""

    def __init__(self, refusals: int = 0) -> None:
        self.refusals = refusals
        self._open = True

    def close(self) -> None:
        if self.refusals:
            self.refusals -= 1
            raise ObmmError(errno.EBUSY, "views live")
        self._open = False

    def use(self) -> None:
        self._check_open()

    def __repr__(self) -> str:
        return "<Thing>"


def test_a_with_block_closes():
    with Thing() as thing:
        assert not thing.closed
    assert thing.closed


def test_a_refusal_at_the_end_of_a_block_is_raised_when_nothing_else_was():
    with pytest.raises(ObmmError, match="views live"), Thing(1) as thing:
        pass
    assert not thing.closed
    thing.close()
    assert thing.closed


@pytest.mark.parametrize("kind", [ValueError, KeyboardInterrupt, SystemExit])
def test_the_exception_of_a_block_is_kept_and_the_refusal_is_a_note_on_it(kind):
    with pytest.raises(kind) as caught, Thing(1):
        raise kind("mine")
    assert caught.value.__notes__ == ["and <Thing> stayed open: [Errno 16] views live"]


@pytest.mark.parametrize("kind", [ValueError, KeyboardInterrupt])
def test_what_is_undone_at_the_end_of_a_phase_does_not_hide_its_exception(kind):
    def undo() -> None:
        raise ObmmError(errno.EIO, "lost")

    with pytest.raises(kind) as caught, ending(undo, "writing back"):
        raise kind("mine")
    assert caught.value.__notes__ == ["and writing back failed: [Errno 5] lost"]
    with pytest.raises(ObmmError, match="lost"), ending(undo, "writing back"):
        pass


@pytest.mark.parametrize(
    "duplicate",
    [copy.copy, copy.deepcopy, pickle.dumps, lambda thing: copy.deepcopy([thing])],
    ids=["copy", "deepcopy", "dumps", "inside"],
)
def test_an_owner_has_no_copies(duplicate):
    with pytest.raises(
        CopyError, match=r"a Thing cannot be copied or pickled: .* fix: open it in the worker"
    ) as caught:
        duplicate(Thing())
    assert isinstance(caught.value, ObmmError)
    assert isinstance(caught.value, TypeError)


def test_what_is_closed_says_so():
    thing = Thing()
    thing.close()
    with pytest.raises(ClosedError, match="<Thing> is closed"):
        thing.use()


def in_child(check) -> int:
    pid = os.fork()
    if pid == 0:
        try:
            check()
        except BaseException:
            os._exit(1)
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def test_a_child_is_told_that_a_fork_is_why():
    thing = Thing()
    tell_of_forks(thing)

    def check() -> None:
        with pytest.raises(ClosedError, match="belongs to the parent of this forked process"):
            thing.use()

    assert in_child(check) == 0
    thing.use()


def test_one_that_fails_to_die_costs_the_others_nothing():
    class Undying(Thing):
        def _die(self) -> None:
            raise RuntimeError("never")

    first, second = Undying(), Thing()
    tell_of_forks(first)
    tell_of_forks(second)

    def check() -> None:
        assert second.closed

    assert in_child(check) == 0


def test_locks_are_renewed_in_a_child():
    lock = threading.Lock()
    lock.acquire()

    @in_forked_children
    def renew() -> None:
        nonlocal lock
        lock = threading.Lock()

    try:
        assert in_child(lambda: None if lock.acquire(timeout=1) else os._exit(1)) == 0
    finally:
        closing._renewals.remove(renew)


def test_what_is_forgotten_is_warned_about_and_ended():
    ended = []
    Thing()._warn_if_forgotten("a thing", lambda: ended.append("it"))
    with pytest.warns(ResourceWarning, match="a thing was never closed"):
        Thing()._warn_if_forgotten("a thing")
        gc.collect()
    assert ended == ["it"]


def test_what_ended_by_itself_is_not_forgotten():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        Thing()._warn_if_forgotten("a thing", over=lambda: True)
        gc.collect()


def test_the_living_are_listed_while_threads_add_and_drop_others():
    living: Living[Thing] = Living()
    kept = [Thing() for _ in range(50)]
    for thing in kept:
        living.add(thing)
    over = threading.Event()

    def churn() -> None:
        while not over.is_set():
            living.add(Thing())

    threads = [threading.Thread(target=churn) for _ in range(2)]
    for thread in threads:
        thread.start()
    for _ in range(200):
        assert set(kept) <= set(living.snapshot())
    over.set()
    for thread in threads:
        thread.join()


def test_dying_is_said_of_several_at_once():
    things = Thing(), Thing()
    die(*things)
    assert all(thing.closed for thing in things)


# --- the base is the only one ----------------------------------------------------------------------------------------

OWN_EXIT = {"emulator/model/mutex.py"}  # a lock of the driver model, which owns nothing


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: path.relative_to(PACKAGE).as_posix())
def test_with_blocks_forks_and_leaks_have_one_home(path):
    """Who writes an `__exit__` of its own hides the exception of somebody's with block sooner or later."""
    if path == PACKAGE / "closing.py":
        return
    tree = ast.parse(path.read_text())
    found = {
        node.name
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef) and node.name in ("__exit__", "__reduce_ex__")
    }
    found |= {
        node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute) and node.attr == "register_at_fork"
    }
    found |= {node.id for node in ast.walk(tree) if isinstance(node, ast.Name) and node.id == "ResourceWarning"}
    if path.relative_to(PACKAGE).as_posix() in OWN_EXIT:
        found -= {"__exit__"}
    assert not found
