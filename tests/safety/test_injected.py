# SPDX-License-Identifier: Apache-2.0
"""An interrupt at every step of what makes, enters, leaves and closes an owner: then nothing is left without an owner.

In ``make test`` each recipe tries `COUNT` steps, the same ones each time: ``OBMM_INJECT_SEED`` chooses others.  ``make
interrupts`` tries every line, those of loops the first times and the last time.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import inspect
import os
import pkgutil
import sys
from collections.abc import Iterator

import pytest

import obmm
from obmm import emulator
from obmm.closing import Scoped

from .injector import (
    SEED,
    Injector,
    settled,
    steady,
    steps_at_each_place,
    steps_to_try,
    unraisable_is_not_kept,
)
from .place import Place
from .recipes import COVERS, NOT_COVERED, RECIPES

EVERY_PLACE = bool(os.environ.get("OBMM_INJECT_EVERY_PLACE"))
OPCODES = bool(os.environ.get("OBMM_INJECT_OPCODES"))


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    with emulator.start(nodes=2) as fabric:
        yield Place(fabric, tmp_path_factory.mktemp("place"))
        fabric.check()


def scoped(cls: type = Scoped) -> Iterator[type]:
    for sub in cls.__subclasses__():
        if not inspect.isabstract(sub) and sub.__module__.startswith("obmm."):
            yield sub
        yield from scoped(sub)


def test_every_class_that_is_entered_and_closed_has_a_recipe():
    """Found by walking the packages: a new class gets a recipe, or says why it has none."""
    for found in pkgutil.walk_packages(obmm.__path__, "obmm."):
        if not found.name.endswith("__main__") and not found.name.startswith("obmm.lib"):
            with contextlib.suppress(ImportError):  # a door to an engine that is not installed
                importlib.import_module(found.name)
    names = {name for covered in COVERS.values() for name in covered} | set(NOT_COVERED)
    assert set(COVERS) <= set(RECIPES)
    without = {
        path
        for cls in scoped()
        if not names & {cls.__name__, (path := f"{cls.__module__}.{cls.__qualname__}").removeprefix("obmm.")}
    }
    assert not without


@pytest.mark.skipif(sys.gettrace() is not None, reason="a tracer runs already (coverage without sys.monitoring)")
@pytest.mark.timeout(0)
@pytest.mark.parametrize("name", RECIPES)
@pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning")
def test_nothing_is_left(place, name):
    with unraisable_is_not_kept(), RECIPES[name](place) as (operation, close):
        injector = Injector(opcodes=OPCODES)
        operation()  # what is made once for the whole process is made now
        injector.run(operation, 0)
        steps = injector.steps
        gc.collect()
        before, left, injected = steady(place.fabric), {}, 0
        for step in steps_at_each_place(injector.order) if EVERY_PLACE else steps_to_try(steps, SEED):
            injected += injector.run(operation, step)
            close()
            changed = settled(place.fabric, before)
            if changed:
                left[f"{step}: {injector.at}"] = changed
                before = steady(place.fabric)  # one leak is not blamed on the steps after it
                if len(left) == 12:
                    break
        print(f"\n{name}: {injected} interrupts at {steps} steps, {len(left)} left something")
    assert not left, "\n".join([f"OBMM_INJECT_SEED={SEED}", *(f"{where}: {what}" for where, what in left.items())])
