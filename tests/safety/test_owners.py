# SPDX-License-Identifier: Apache-2.0
"""What owns something outside Python can be neither copied nor pickled."""

from __future__ import annotations

import copy
import dataclasses
import enum
import importlib
import inspect
import os
import pickle
import pkgutil
from collections.abc import Iterator

import numpy as np
import pytest

import obmm
from obmm import emulator
from obmm.closing import Owner, Scoped
from obmm.errors import ClosedError, CopyError
from obmm.rows import GatherEngine, Manifest, RowStore, TableSpec

MIB = 1 << 20

GIVES_BACK = ("close", "release", "free", "fileno", "__exit__", "__del__")


def public_classes() -> Iterator[tuple[str, type]]:
    """Whatever a package offers."""
    for found in pkgutil.walk_packages(obmm.__path__, "obmm."):
        if not found.ispkg:
            continue
        try:
            module = importlib.import_module(found.name)
        except ImportError:  # a door to an engine that is not installed
            continue
        for name in getattr(module, "__all__", ()):
            thing = getattr(module, name)
            if inspect.isclass(thing):
                yield f"{found.name}.{name}", thing
    for name in obmm.__all__:
        if inspect.isclass(thing := getattr(obmm, name)):
            yield f"obmm.{name}", thing


@pytest.mark.parametrize(("name", "thing"), sorted(public_classes(), key=str), ids=lambda given: str(given))
def test_who_has_something_to_give_back_is_an_owner(name, thing):
    if dataclasses.is_dataclass(thing) or getattr(thing, "_is_protocol", False) or issubclass(thing, enum.Enum):
        return
    if name.startswith("obmm.emulator.model."):
        return  # the driver model, which no process but the fabric's own has
    if any(hasattr(thing, method) for method in GIVES_BACK):
        assert issubclass(thing, Owner)


def owners(cls: type = Owner) -> Iterator[type]:
    for sub in cls.__subclasses__():
        if sub.__module__.startswith("obmm."):
            yield sub
            yield from owners(sub)


def test_no_class_takes_the_refusals_back():
    list(public_classes())  # imports them all
    assert len(set(owners())) > 30
    for cls in owners():
        for name in ("__copy__", "__deepcopy__", "__getstate__", "__reduce__"):
            assert getattr(cls, name, None) is getattr(object, name, None), f"{cls.__name__}.{name}"
        assert cls.__reduce_ex__ is Owner.__reduce_ex__
        if issubclass(cls, Scoped):
            assert cls.__exit__ is Scoped.__exit__


@pytest.fixture(scope="module")
def things() -> Iterator[dict[str, object]]:
    """One of each that a user gets into his hands."""
    manifest = Manifest((TableSpec("t", 64, 64),))
    with (
        emulator.start(nodes=1) as fabric,
        obmm.open(fabric.device()) as device,
        device.export_region(2 * MIB) as region,
        region.map("rw") as mapping,
        GatherEngine(1) as engine,
        RowStore.attach(mapping, manifest, verify="none", plan=False, engine=engine) as store,
        obmm.serve({"r": region}, port=0, plain=True) as server,
        obmm.connect(server.addresses[0], plain=True) as peer,
        peer.fetch("r") as lease,
    ):
        ids, out = np.zeros(1, np.int64), np.zeros(64, np.uint8)
        ticket = store.submit("t", ids, out)
        ticket.wait()
        yield {
            "Fabric": fabric,
            "Device": device,
            "ExportedRegion": region,
            "Mapping": mapping,
            "RowView": mapping.rows(64),
            "GatherEngine": engine,
            "RowStore": store,
            "Ticket": ticket,
            "PreparedStep": store.prepare_many([("t", ids, out)]),
            "Server": server,
            "Peer": peer,
            "Lease": lease,
        }


KINDS = [
    "Device",
    "ExportedRegion",
    "Fabric",
    "GatherEngine",
    "Lease",
    "Mapping",
    "Peer",
    "PreparedStep",
    "RowStore",
    "RowView",
    "Server",
    "Ticket",
]


@pytest.mark.parametrize("duplicate", [copy.copy, copy.deepcopy, pickle.dumps], ids=lambda call: call.__name__)
@pytest.mark.parametrize("kind", KINDS)
def test_there_is_one_of_each(things, kind, duplicate):
    with pytest.raises(CopyError, match=f"a {kind} cannot be copied or pickled"):
        duplicate(things[kind])


@pytest.mark.parametrize("kind", ["Device", "ExportedRegion", "Mapping", "Peer", "Server"])
def test_a_forked_child_is_told_that_the_fork_is_why(things, kind):
    thing = things[kind]
    pid = os.fork()
    if pid == 0:
        try:
            thing._check_open()  # type: ignore[attr-defined]
        except ClosedError as error:
            os._exit(0 if "belongs to the parent of this forked process" in str(error) else 2)
        os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
