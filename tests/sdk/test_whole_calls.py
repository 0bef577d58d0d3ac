# SPDX-License-Identifier: Apache-2.0
"""A call of the SDK and its note are one: no interrupt between them, no second thread in the middle."""

from __future__ import annotations

import os
import signal
import threading
import time

import pytest

import obmm
from obmm import sdk
from obmm.sdk import SharedObject
from obmm.sdk.abi import Flag
from obmm.sdk.errors import SdkArgumentError, SdkError
from obmm.undisturbed import undisturbed

SIZE = 4 << 20


@pytest.fixture
def session(standin, monkeypatch, fresh):
    for name, value in standin.environment("a").items():
        monkeypatch.setenv(name, value)
    with sdk.connect() as session:
        yield session


def test_an_interrupt_comes_through_when_the_call_was_noted():
    noted = []

    def slow() -> None:
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(0.2)
        noted.append("whole")

    with pytest.raises(KeyboardInterrupt):
        undisturbed(slow)
    assert noted == ["whole"]
    assert undisturbed(lambda: 7) == 7


def test_an_interrupted_creation_leaves_no_object(session, monkeypatch):
    allocate = session.calls.allocate

    def slow(*given, **options):
        os.kill(os.getpid(), signal.SIGINT)
        allocate(*given, **options)

    monkeypatch.setattr(session.calls, "allocate", slow)
    with pytest.raises(KeyboardInterrupt):
        SharedObject.create(session, "x", SIZE)
    assert session.objects == ()
    assert session.list("x") == ()


def test_an_interrupted_lease_is_given_back(session, monkeypatch, standin):
    borrow = session.calls.lease_malloc

    def slow(*given, **options):
        os.kill(os.getpid(), signal.SIGINT)
        return borrow(*given, **options)

    monkeypatch.setattr(session.calls, "lease_malloc", slow)
    with pytest.raises(KeyboardInterrupt):
        session.lease(SIZE)
    assert session.leases == ()
    assert standin.status()["leases"] == 0


def interrupted(monkeypatch, session, name, operation):
    """`operation`, with an interrupt while the SDK's function `name` runs."""
    function = getattr(session.calls, name)

    def slow(*given, **options):
        os.kill(os.getpid(), signal.SIGINT)
        return function(*given, **options)

    with monkeypatch.context() as patch:
        patch.setattr(session.calls, name, slow)
        with pytest.raises(KeyboardInterrupt):
            operation()


def test_interrupted_maps_locks_and_unmaps_are_noted(session, monkeypatch):
    def locked():
        with shared.writing():
            pass

    shared = SharedObject.create(session, "x", 128 << 20, flags=Flag.WITH_LOCK)
    interrupted(monkeypatch, session, "map", lambda: shared.map("none"))
    assert shared.mapped
    interrupted(monkeypatch, session, "write_lock", locked)
    interrupted(monkeypatch, session, "unlock", locked)
    locked()  # neither left it locked
    interrupted(monkeypatch, session, "unmap", shared.unmap)
    assert not shared.mapped
    interrupted(monkeypatch, session, "deallocate", shared.delete)
    assert shared.closed
    assert session.list("x") == ()


def test_s7_an_object_is_deleted_whole_or_not_at_all(session, fabric):
    """Somebody has the middle one of its three units open."""

    def regions() -> set[int]:
        return {region["mem_id"] for region in fabric.status()["nodes"]["a"]["regions"]}

    before = regions()  # what a killed process left is freed by the next who finds it
    shared = SharedObject.create(session, "x", 300 << 20)
    shared.map("rw")
    shared.view()[0] = 7
    shared.unmap()
    units = regions() - before
    assert len(units) == 3
    with obmm.open(fabric.device("a")) as device:
        held = device.driver.new_held()
        device.driver.open_region(sorted(units)[1], writable=False, non_cacheable=False, held=held)
        with pytest.raises(SdkError) as caught:
            shared.delete()
        assert caught.value.code == 6024
        assert units <= regions()
        shared.map("r")
        assert shared.view()[0] == 7
        shared.unmap()
        device.driver.release(held)
    shared.delete()
    assert not units & regions()


def test_unmap_from_four_threads_is_one_unmap(session):
    shared, errors = SharedObject.create(session, "x", SIZE), []

    def unmap() -> None:
        try:
            shared.unmap()
        except Exception as error:
            errors.append(error)

    for _ in range(20):
        shared.map("rw")
        threads = [threading.Thread(target=unmap) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert not errors
    shared.delete()


def test_rights_that_were_given_back_in_part_can_be_taken_again(session):
    shared = SharedObject.create(session, "x", SIZE)
    shared.map("rw")
    shared.set_ownership("none", 0, 4096)
    shared.set_ownership("rw", 0, 4096)
    view = shared.view()
    assert not view.readonly
    del view
    shared.delete()


@pytest.mark.parametrize(
    "given",
    [{"size": "4MiB"}, {"size": 4.5}, {"name": b"x"}, {"name": 5}, {"mode": -1}, {"mode": "rw"}, {"flags": "0x1"}],
    ids=str,
)
def test_values_of_a_wrong_type_are_refused_by_name(session, given):
    with pytest.raises(SdkArgumentError, match=next(iter(given))):
        SharedObject.create(session, **{"name": "x", "size": SIZE, **given})
    assert session.objects == ()
