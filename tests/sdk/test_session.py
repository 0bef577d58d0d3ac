# SPDX-License-Identifier: Apache-2.0
"""The high-level side: sessions, objects, leases, events, and our own mappings of an object's units (section 11)."""

from __future__ import annotations

import atexit
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

import obmm
from obmm import sdk
from obmm.errors import ClosedError, MappingBusyError, ObmmError, OwnershipError
from obmm.rows import Manifest, RowStore, TableSpec
from obmm.sdk import FaultKind, Flag, RegionHost, SharedObject
from obmm.sdk.standin import StandIn
from obmm.sdk.standin_op import Op

from .process import Process

MIB = 1 << 20
SIZE = 4 * MIB
UNIT = 128 * MIB


@pytest.fixture
def on_a(standin: StandIn, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in standin.environment("a").items():
        monkeypatch.setenv(name, value)


@pytest.fixture
def session(on_a: None, fresh: None) -> Iterator[sdk.Session]:
    with sdk.connect() as session:
        yield session


def test_session_says_what_it_is(session: sdk.Session) -> None:
    assert session.kind == "stand-in"
    assert "stand-in" in repr(session)


def test_16_3_b1_library_says_its_mode(session: sdk.Session, standin: StandIn) -> None:
    assert session.library.standin is not None
    assert f"{standin.mode} mode on the OBMM emulator" in session.library.standin


def test_a_process_can_use_one_stand_in_after_another(
    standin: StandIn, on_a: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each on a fabric of its own."""
    with obmm.emulator.start(nodes=2) as fabric, StandIn(fabric, mode=standin.mode) as other:
        for used, node in ((standin, "b"), (other, "b"), (other, "a"), (standin, "a")):
            for name, value in used.environment(node).items():
                monkeypatch.setenv(name, value)
            with sdk.connect() as session:
                assert session.local_host().name == node
                with SharedObject.create(session, "x", SIZE, provider="b") as shared:
                    shared.map("rw")
                    view = shared.view()
                    view[:2] = node.encode() * 2
                    assert bytes(view[:2]) == node.encode() * 2
                    del view
                    with shared.regions("rw") as memory:
                        assert memory.read(0, 2) == node.encode() * 2
                    shared.delete()


def test_one_session_per_process(session: sdk.Session) -> None:
    with pytest.raises(ObmmError, match="share it"):
        sdk.connect()


def test_daemon_missing_is_said_at_once(on_a: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OBMM_SDK_STANDIN", "/nowhere")
    with pytest.raises(sdk.SdkError, match=r"/nowhere/(daemon\.sock|state): No such file") as caught:
        sdk.connect()
    assert caught.value.code == 6015
    assert "ubsmd" in str(caught.value)


def test_queries(session: sdk.Session) -> None:
    assert [host.name for host in session.hosts()] == ["a", "b", "c"]
    assert session.local_host().name == "a"
    # the memory pool's, which the driver's thread refills once a second after large objects have drained it
    end = time.monotonic() + 20
    while not session.local_host().numa[0].total:
        assert time.monotonic() < end
        time.sleep(0.01)
    assert [host.name for host in session.groups()[0].hosts] == ["a", "b", "c"]
    calls = session.calls
    calls.create_region("pair", [RegionHost("a", affinity=True), RegionHost("b")])
    assert calls.lookup_region("pair") == sdk.HostGroup((RegionHost("a", True), RegionHost("b")), "pair")
    with SharedObject.create(session, "x", SIZE, region="pair") as shared:
        shared.delete()
    calls.destroy_region("pair")
    with pytest.raises(sdk.SdkError) as caught:
        calls.lookup_region("pair")
    assert caught.value.code == 6020


def test_object_lives_through_the_sdk(session: sdk.Session) -> None:
    shared = SharedObject.create(session, "obj", 300 * MIB)
    assert [entry.name for entry in session.list("ob")] == ["obj"]
    with pytest.raises(sdk.SdkError, match="not attached on this node"):
        shared.units()
    shared.map("none")
    assert len(shared.units().mem_ids) == 3
    with pytest.raises(ObmmError, match="no right"):
        shared.view()
    shared.set_ownership("rw")
    view = shared.view()
    view[UNIT - 1 : UNIT + 1] = b"ab"
    with pytest.raises(MappingBusyError):
        shared.unmap()
    with pytest.raises(MappingBusyError):
        shared.set_ownership("none")
    del view
    shared.set_ownership("r")
    view = shared.view()
    assert view.readonly
    assert bytes(view[UNIT - 1 : UNIT + 1]) == b"ab"
    del view
    shared.delete()
    assert shared.closed
    assert session.list("obj") == ()


def test_open_finds_size_and_refuses_unknown_names(session: sdk.Session, b: Process) -> None:
    assert b.allocate("theirs", 2 * SIZE, flags=int(Flag.NONCACHE)) == 0
    with SharedObject.open(session, "theirs") as shared:
        assert shared.size == 2 * SIZE
        with pytest.raises(MappingBusyError, match="open in this process"):
            SharedObject.open(session, "theirs")
    with pytest.raises(sdk.SdkError, match="list_objects"):
        SharedObject.open(session, "their")
    assert b.deallocate("theirs") == 0


def test_errors_carry_operation_code_and_time(session: sdk.Session, standin: StandIn) -> None:
    with pytest.raises(sdk.SdkError, match="stand-in") as caught:
        session.calls.map("missing", SIZE, 1)
    assert (caught.value.code, caught.value.operation) == (6020, "map")
    standin.inject(Op.CREATE, code=6050)
    with pytest.raises(sdk.SdkError, match="multiple of 128 MiB"):
        SharedObject.create(session, "x", SIZE)


def test_busy_name_is_retried_until_the_deadline(session: sdk.Session, standin: StandIn) -> None:
    standin.inject(Op.CREATE, code=6017, times=2)
    with SharedObject.create(session, "x", SIZE, wait=10) as shared:
        shared.delete()
    standin.inject(Op.CREATE, code=6017)
    with pytest.raises(sdk.SdkError, match="6017"):
        SharedObject.create(session, "x", SIZE)


def test_16_2_counters_tell_what_one_operation_costs(session: sdk.Session, standin: StandIn) -> None:
    calls, units = session.calls, 3
    trip = 1 if standin.mode == "daemon" else 0
    shared = SharedObject.create(session, "x", units * UNIT)
    before = calls.counters()
    assert before is not None
    shared.map("rw")
    after = calls.counters()
    assert after is not None
    assert after - before == sdk.Counters(round_trips=trip, system_calls=2 * units + 1)
    assert before - before == sdk.Counters(0, 0)
    shared.delete()


def test_other_codes_are_not_retried(session: sdk.Session, standin: StandIn) -> None:
    standin.inject(Op.CREATE, code=6050)
    with pytest.raises(sdk.SdkError, match="6050"):
        SharedObject.create(session, "x", SIZE, wait=10)


def test_locks(session: sdk.Session) -> None:
    with SharedObject.create(session, "locked", UNIT, flags=Flag.WITH_LOCK) as shared:
        shared.map("none")
        with shared.writing():
            view = shared.view()
            view[0] = 7
            del view
        with shared.reading():
            view = shared.view()
            assert (view.readonly, view[0]) == (True, 7)
            del view
        with pytest.raises(ObmmError, match="no right"):
            shared.view()
        shared.delete()


def test_leases(session: sdk.Session, standin: StandIn) -> None:
    with session.lease(SIZE) as lease:
        view = lease.view()
        view[:3] = b"abc"
        with pytest.raises(MappingBusyError):
            session.close()
        del view
        assert session.leases == (lease,)
    assert standin.status()["leases"] == 0
    with pytest.raises(ClosedError):
        lease.view()
    session.lease(SIZE, location=sdk.Location(2)).close()


def test_fault_events(session: sdk.Session, standin: StandIn) -> None:
    events = session.faults()
    assert standin.fire("obj", FaultKind.MAR_TIMEOUT_ERR) >= 1
    event = events.get(10)
    while event.name != "obj":  # this process is registered for good: faults that earlier tests fired come first
        event = events.get(10)
    assert event.kind == FaultKind.MAR_TIMEOUT_ERR
    standin.fire("obj", 4242)
    assert events.get(10).kind == 4242
    assert events.drain() == ()
    with pytest.raises(TimeoutError):
        events.get(0.01)


@pytest.mark.parametrize("host", ["a", "b"])
@pytest.mark.parametrize("flags", [Flag.CACHE, Flag.NONCACHE, Flag.ONLY_IMPORT_NONCACHE, 0x28])
def test_11_units_are_one_contiguous_range(session: sdk.Session, host: str, flags: int) -> None:
    with SharedObject.create(session, "x", 300 * MIB, provider=host, flags=flags) as shared:
        with shared.regions("rw") as memory:
            noncacheable = flags & Flag.NONCACHE or (flags & Flag.ONLY_IMPORT_NONCACHE and host != "a")
            assert memory.cache == ("nc" if noncacheable else "cc")
            assert memory.nbytes == 300 * MIB
            assert [region.nbytes for region in memory.regions] == [UNIT, UNIT, 44 * MIB]
            assert tuple(region.mem_id for region in memory.regions) == shared.units().mem_ids
            memory.write(UNIT - 2, b"seam")
            assert memory.read(UNIT - 2, 4) == b"seam"
            memory.store("<u8", 2 * UNIT, 99)
            assert memory.load("<u8", 2 * UNIT) == 99
        shared.delete()


def test_11_gather_crosses_seams(session: sdk.Session) -> None:
    with SharedObject.create(session, "x", 2 * UNIT, provider="b") as shared:
        with shared.regions("rw") as memory:
            row_bytes = 1000
            seam = UNIT // row_bytes
            rng = np.random.default_rng(1)
            data = rng.integers(0, 256, (3, row_bytes), np.uint8)
            memory.write((seam - 1) * row_bytes, data)
            ids = np.array([seam + 1, seam, seam - 1])
            assert (memory.rows(row_bytes).gather(ids) == data[::-1]).all()
            with pytest.raises(ObmmError, match="row numbers of"):
                memory.rows(row_bytes).gather([1 << 40])
        shared.delete()


def test_11_a_row_store_works_on_the_units(session: sdk.Session) -> None:
    spec = TableSpec("t", n_rows=2 * UNIT // 1000, row_bytes=1000)
    seam = UNIT // 1000
    data = np.random.default_rng(2).integers(0, 256, (4, 1000), np.uint8)
    with SharedObject.create(session, "x", 2 * UNIT) as shared:
        with shared.regions("rw") as memory:
            assert memory.rows_memory.segments == [UNIT, UNIT]
            with RowStore.attach(memory.rows_memory, Manifest((spec,)), verify="none", plan=False) as store:
                store.populate("t", data, seam - 2)
                ids = np.array([seam + 1, seam - 2, seam], np.int64)
                assert (store.gather("t", ids) == data[[3, 0, 2]]).all()
        shared.delete()


def test_11_views_span_seams_and_hold_the_mapping(session: sdk.Session) -> None:
    with SharedObject.create(session, "x", 2 * UNIT) as shared:
        memory = shared.regions("rw")
        array = memory.as_numpy("<u8", (4,), UNIT - 16)
        array[:] = (1, 2, 3, 4)
        assert memory.load("<u8", UNIT) == 3
        for close in (memory.close, shared.unmap, shared.close, session.close):
            with pytest.raises(MappingBusyError):
                close()
        assert shared.mapped
        del array
        shared.delete()
        assert memory.closed
        with pytest.raises(ClosedError):
            memory.read(0, 1)


def test_11_ownership_moves_bytes_between_nodes(session: sdk.Session, b: Process) -> None:
    with SharedObject.create(session, "x", 2 * UNIT, provider="a") as shared:
        with shared.regions("none") as memory:
            with pytest.raises(OwnershipError):
                memory.read(0, 1)
            with memory.writing():
                memory.write(UNIT - 1, b"\x11\x22")
            there = b.map("x", 2 * UNIT, prot=0)[1]
            assert b.own("x", there, 2 * UNIT, 1) == 0
            assert b.peek(there + UNIT - 1, 2) == "1122"
            assert b.own("x", there, 2 * UNIT, 0) == 0
            with memory.reading(UNIT - 4096, UNIT + 4096):
                assert memory.read(UNIT - 1, 2) == b"\x11\x22"
            memory.acquire("r")
            memory.refresh()
            memory.release()
        assert b.unmap(there, 2 * UNIT) == 0
        shared.delete()


def test_11_detach_before_unmap_or_the_engine_is_busy(session: sdk.Session) -> None:
    shared = SharedObject.create(session, "x", SIZE, provider="b")
    address = shared.map("none")
    (mem_id,) = shared.units().mem_ids
    with obmm.attach(mem_id, SIZE) as region, region.map("none"):
        with pytest.raises(sdk.SdkError, match=r"regions\(\)") as caught:
            session.calls.unmap("x", address, SIZE)
        assert caught.value.code == 6050
    shared.delete()


def test_11_unknown_flags_are_found_out(session: sdk.Session, b: Process) -> None:
    assert b.allocate_at("b", "theirs", SIZE, flags=int(Flag.NONCACHE)) == 0
    with SharedObject.open(session, "theirs") as shared, shared.regions("rw") as memory:
        assert memory.cache == "nc"
    assert b.deallocate("theirs") == 0


def test_lost_memory_is_an_error_that_names_the_place(
    session: sdk.Session, b: Process, fabric: obmm.emulator.Fabric
) -> None:
    assert b.allocate_at("b", "theirs", SIZE) == 0
    there = b.map("theirs", SIZE, prot=0)[1]
    (on_b,) = b.lookup("theirs")[3]
    with SharedObject.open(session, "theirs", flags=0) as shared, shared.regions("r") as memory:
        fabric.inject("b", "revoke", mem_id=on_b)
        with pytest.raises(obmm.RemoteMemoryError):
            memory.rows(64).gather([5])
        with pytest.raises(obmm.RemoteMemoryError):
            memory.read(0, 1)
    b.unmap(there, SIZE)
    assert b.deallocate("theirs") == 0


def test_forked_child_makes_no_call(session: sdk.Session) -> None:
    pid = os.fork()
    if not pid:
        try:
            session.hosts()
        except ClosedError:
            try:
                session.calls.cluster()
            except sdk.SdkError:
                os._exit(0)
        finally:
            os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert session.hosts()


def test_15_8_in_a_forked_child_everything_is_closed_and_nothing_is_released(session: sdk.Session) -> None:
    shared, lease = SharedObject.create(session, "x", SIZE, provider="b"), session.lease(SIZE)
    address = shared.map("rw")
    view = lease.view()
    view[:4] = b"kept"
    calls = (lambda: shared.address, shared.units, lambda: shared.map("r"), lease.view, session.hosts)
    pid = os.fork()
    if not pid:
        status = 1
        try:
            for call in calls:
                with pytest.raises(ClosedError):
                    call()
            for thing in (shared, lease, session):
                thing.close()  # closed already: no call
            assert shared.closed
            assert session.closed
            status = 0
        finally:
            os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert bytes(view[:4]) == b"kept"
    assert (shared.address, len(shared.units().mem_ids)) == (address, 1)
    del view
    lease.close()
    shared.delete()


def test_15_8_a_forked_child_that_ends_by_itself_finalizes_nothing(session: sdk.Session) -> None:
    shared = SharedObject.create(session, "x", SIZE)
    shared.map("rw")
    pid = os.fork()
    if not pid:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
        try:
            atexit._run_exitfuncs()
        finally:
            os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert len(shared.units().mem_ids) == 1
    shared.delete()


def test_15_8_close_ends_objects_leases_and_attachments_in_order(session: sdk.Session, standin: StandIn) -> None:
    shared, lease = SharedObject.create(session, "x", 2 * UNIT, provider="b", mode=0o666), session.lease(SIZE)
    memory = shared.regions("rw")
    session.close()
    assert memory.closed
    assert (shared.closed, lease.closed) == (True, True)
    assert standin.status() == {"objects": {"x": {}}, "leases": 0, "busy": []}
    session.close()
    with sdk.connect() as again, SharedObject.open(again, "x") as found:
        found.delete()


def test_process_that_closes_nothing_leaves_nothing(on_a: None, fresh: None, standin: StandIn, b: Process) -> None:
    assert b.allocate("x", SIZE, mode=0o666) == 0
    program = (
        "from obmm import sdk\n"
        "s = sdk.connect(); o = sdk.SharedObject.open(s, 'x'); m = o.regions('rw'); l = s.lease(4 << 20)\n"
        "m.write(0, b'x')\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)
    end = time.monotonic() + 5
    while standin.status() != {"objects": {"x": {}}, "leases": 0, "busy": []}:
        assert time.monotonic() < end, standin.status()
    assert b.deallocate("x") == 0


def test_threads_share_a_session(session: sdk.Session) -> None:
    def work(number: int) -> None:
        for turn in range(3):
            with SharedObject.create(session, f"t{number}", SIZE, provider="ab"[turn % 2]) as shared:
                with shared.regions("rw") as memory:
                    memory.write(0, bytes([number]) * 100)
                    assert memory.read(0, 100) == bytes([number]) * 100
                shared.delete()

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(work, range(8)))
    assert session.objects == ()


def test_a_name_that_is_open_here_is_refused_before_anything_is_allocated(session: sdk.Session) -> None:
    """Its object was deleted by another process meanwhile: an allocation would have no owner."""
    with SharedObject.create(session, "x", SIZE) as shared:
        session.calls.deallocate("x")
        with pytest.raises(MappingBusyError, match="open in this process"):
            SharedObject.create(session, "x", SIZE)
        assert not session.calls.list_objects("x")
        assert session.objects == (shared,)


def test_a_refused_creation_leaves_its_name_free(session: sdk.Session) -> None:
    with pytest.raises(sdk.SdkError, match="6020"):
        SharedObject.create(session, "x", SIZE, region="nowhere")
    assert session.objects == ()
    SharedObject.create(session, "x", SIZE).delete()
