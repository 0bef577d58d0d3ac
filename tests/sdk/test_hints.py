# SPDX-License-Identifier: Apache-2.0
"""What an error says, for each code at each call of section 13 of the SDK specification, and what it finds out."""

from __future__ import annotations

import os
import resource
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from obmm import sdk
from obmm.sdk import Calls, Flag, Location, Provider, RegionHost
from obmm.sdk.facts import entrance, open_regions
from obmm.sdk.places import place
from obmm.sdk.session import Session
from obmm.sdk.standin import StandIn
from obmm.sdk.standin_op import Op

from .stub import Stub

MIB = 1 << 20
SIZE = 4 * MIB

_HOSTS = (RegionHost("a", affinity=True), RegionHost("b"))
CALLS: dict[str, Callable[[Calls], object]] = {
    "initialize": lambda c: c.initialize(),
    "lookup_regions": lambda c: c.lookup_regions(),
    "create_region": lambda c: c.create_region("r", _HOSTS),
    "lookup_region": lambda c: c.lookup_region("r"),
    "destroy_region": lambda c: c.destroy_region("r"),
    "allocate": lambda c: c.allocate("x", SIZE),
    "allocate_with_provider": lambda c: c.allocate_with_provider("x", SIZE, Provider("a")),
    "deallocate": lambda c: c.deallocate("x"),
    "map": lambda c: c.map("x", SIZE, 3),
    "unmap": lambda c: c.unmap("x", 1 << 40, SIZE),
    "set_ownership": lambda c: c.set_ownership("x", 1 << 40, SIZE, 3),
    "write_lock": lambda c: c.write_lock("x"),
    "read_lock": lambda c: c.read_lock("x"),
    "unlock": lambda c: c.unlock("x"),
    "list_objects": lambda c: c.list_objects("x"),
    "lookup": lambda c: c.lookup("x"),
    "lease_malloc": lambda c: c.lease_malloc(SIZE),
    "lease_malloc_with_location": lambda c: c.lease_malloc_with_location(SIZE, Location(1)),
    "lease_free": lambda c: c.lease_free(1 << 40),
    "cluster": lambda c: c.cluster(),
    "local_slot": lambda c: c.local_slot(),
}
"""One call of each operation that can fail."""


@pytest.fixture(scope="module")
def stub(tmp_path_factory: pytest.TempPathFactory) -> Stub:
    return Stub(tmp_path_factory.mktemp("stub"))


@pytest.fixture
def calls(stub: Stub) -> Iterator[Calls]:
    stub.answer(0)
    yield Calls(stub.library)
    stub.answer(0)


@pytest.mark.parametrize(
    ("operation", "code", "words"),
    [
        ("initialize", 6015, ["systemctl status ubsmd", "socket", "group", "128 client places", "libobmm", "31 s"]),
        ("allocate", 6010, ["4 MiB", "16 valid sets", "PMD", "1..47 bytes"]),
        ("allocate_with_provider", 6010, ["4 MiB", "16 valid sets", "PMD", "1..47 bytes"]),
        (
            "map",
            6010,
            ["object's size", "already mapped", "prot, offset or flags", "address space", "descriptor limit"],
        ),
        ("write_lock", 6010, ["smaller than one unit", "mem_unit_size"]),
        ("read_lock", 6010, ["smaller than one unit", "mem_unit_size"]),
        ("map", 6011, ["mode bits", "root has no override"]),
        ("deallocate", 6011, ["creator's uid and gid", "root is not an exception"]),
        ("create_region", 6014, ["unknown", "not in one group", "byte by byte"]),
        ("allocate", 6017, ["time-out or crash", "parallel create", "retry in minutes"]),
        ("allocate_with_provider", 6017, ["time-out or crash", "parallel create", "retry in minutes"]),
        ("map", 6017, ["time-out or crash", "retry in minutes"]),
        ("deallocate", 6017, ["time-out or crash", "retry in minutes"]),
        ("allocate", 6020, ["region", "unknown"]),
        ("allocate_with_provider", 6020, ["provider's host", "cluster()"]),
        ("lookup", 6020, ["not attached on this node", "map it first", "list_objects"]),
        ("map", 6020, ["wrong name", "anonymous object that was reclaimed", "list_objects(prefix)"]),
        ("allocate", 6021, ["taken", "crashed", "SharedObject.open()"]),
        ("allocate_with_provider", 6021, ["taken", "crashed", "SharedObject.open()"]),
        ("map", 6021, ["already registered", "restart the process"]),
        ("deallocate", 6024, ["mapped on some node", "unmap it everywhere"]),
        *((operation, 6040, ["not initialised", "restarting", "MXM_CHANNEL_TIMEOUT"]) for operation in CALLS),
        (
            "allocate",
            6050,
            ["128 MiB", "no free pool", "no affine node", "host with affinity", "characters", "PMD pool"],
        ),
        ("allocate", 6050, ["multiple of 128 MiB", "free memory", "one NUMA node"]),
        ("allocate_with_provider", 6050, ["multiple of 128 MiB", "free memory", "one NUMA node"]),
        ("map", 6050, ["object's region", "provider is down", "import was refused", "provider="]),
        ("unmap", 6050, ["another descriptor", "regions()"]),
        ("lease_malloc", 6050, ["no free pool", "0x40", "cluster()"]),
        ("lease_malloc_with_location", 6050, ["no free pool", "0x40", "cluster()"]),
        ("map", 6051, ["EACCES", "EPERM", "EAGAIN", "container", "/dev/obmm_shmdev<id>"]),
        ("set_ownership", 6051, ["state", "alignment", "flush engine", "obmm explain UPDATE_RANGE"]),
        *(
            (operation, code, ["never wait", "exactly 0x1", "service", "held", "contention"])
            for operation in ("write_lock", "read_lock", "unlock")
            for code in (6060, 6061, 6062)
        ),
        *((operation, 6099, ["timed out", "may still complete", "daemon's log"]) for operation in CALLS),
    ],
)
def test_section_13(calls: Calls, stub: Stub, operation: str, code: int, words: list[str]) -> None:
    stub.answer(code)
    with pytest.raises(sdk.SdkError) as caught:
        CALLS[operation](calls)
    assert (caught.value.code, caught.value.operation) == (code, operation)
    text = str(caught.value)
    assert f"sdk.{operation}(" in text
    assert [word for word in words if word not in text] == []


@pytest.mark.parametrize("operation", CALLS)
def test_13_finding_out_more_neither_fails_nor_changes_the_answer(calls: Calls, stub: Stub, operation: str) -> None:
    for code in set(sdk.Code) - {sdk.Code.OK}:
        stub.answer(code)
        if (operation, code) == ("list_objects", sdk.Code.NOT_FOUND):
            assert calls.list_objects("x") == (), "no objects at all is not an error"
        else:
            _text(lambda: CALLS[operation](calls), code)


# --- what it finds out -------------------------------------------------------------------------------------------------


@pytest.fixture
def session(standin: StandIn, monkeypatch: pytest.MonkeyPatch, fresh: None) -> Iterator[Session]:
    for name, value in standin.environment("a").items():
        monkeypatch.setenv(name, value)
    with sdk.connect() as session:
        yield session


def _text(call: Callable[[], object], code: int) -> str:
    with pytest.raises(sdk.SdkError) as caught:
        call()
    assert caught.value.code == code
    return str(caught.value)


def test_13_map_prints_both_sizes_and_the_descriptor_limit(session: Session) -> None:
    session.calls.allocate("x", SIZE)
    text = _text(lambda: session.calls.map("x", 2 * SIZE, 3), 6010)
    assert f"the object has {SIZE} bytes, {2 * SIZE} were asked for" in text
    assert f"RLIMIT_NOFILE is {resource.getrlimit(resource.RLIMIT_NOFILE)[0]}" in text
    session.calls.deallocate("x")


def test_13_permissions_print_who_this_process_is(session: Session, standin: StandIn) -> None:
    for op, call in (
        (Op.MAP, lambda: session.calls.map("x", SIZE, 3)),
        (Op.DELETE, lambda: session.calls.deallocate("x")),
    ):
        standin.inject(op, code=6011)
        assert f"uid {os.geteuid()}, gid {os.getegid()}, groups" in _text(call, 6011)


def test_13_create_region_prints_the_known_names(session: Session) -> None:
    hosts = [RegionHost("a", affinity=True), RegionHost("A")]
    assert "the groups of this node: 'a', 'b', 'c'" in _text(lambda: session.calls.create_region("r", hosts), 6014)


def test_13_unknown_provider_prints_the_cluster(session: Session) -> None:
    text = _text(lambda: session.calls.allocate_with_provider("x", SIZE, Provider("z")), 6020)
    assert "the cluster's hosts: 'a', 'b', 'c'" in text


@pytest.mark.parametrize("op", [Op.CREATE, Op.CREATE_AT, Op.LEASE])
def test_13_engine_refusals_print_free_memory(session: Session, standin: StandIn, op: Op) -> None:
    call = {
        Op.CREATE: lambda: session.calls.allocate("x", SIZE),
        Op.CREATE_AT: lambda: session.calls.allocate_with_provider("x", SIZE, Provider("b")),
        Op.LEASE: lambda: session.calls.lease_malloc(SIZE),
    }[op]
    standin.inject(op, code=6050)
    text = _text(call, 6050)
    assert "free memory: a " in text
    assert all(f"{name} {free >> 20} MiB" in text for name, free in _free(session).items())


def _free(session: Session) -> dict[str, int]:
    return {host.name: sum(numa.free for numa in host.numa) for host in session.hosts()}


def test_9_a_lease_as_numa_node_says_that_it_cannot_appear_here(session: Session) -> None:
    assert "no remote NUMA node" in _text(lambda: session.lease(128 * MIB, flags=Flag.MALLOC_WITH_NUMA), 6050)
    assert session.leases == ()


def test_13_failed_open_prints_nodes_and_identity(session: Session, standin: StandIn) -> None:
    standin.inject(Op.MAP, code=6051)
    text = _text(lambda: session.calls.map("x", SIZE, 3), 6051)
    assert "/dev/obmm_shmdev" in text
    assert f"uid {os.geteuid()}" in text
    assert "O_SYNC" in text


def test_13_busy_unmap_lists_open_regions(tmp_path: Path) -> None:
    (tmp_path / "3").symlink_to("/dev/obmm_shmdev7")
    (tmp_path / "4").symlink_to("/dev/null")
    (tmp_path / "5").symlink_to("/dev/obmm_shmdev12")
    (tmp_path / "6").write_text("no link")
    before = open_regions()  # of this process, which other tests share
    assert open_regions(str(tmp_path)) == ["/dev/obmm_shmdev12", "/dev/obmm_shmdev7"]
    assert open_regions() == before


def test_13_no_connection_is_told_from_a_lost_one_and_a_time_out(
    calls: Calls, stub: Stub, monkeypatch: pytest.MonkeyPatch
) -> None:
    stub.answer(6040)
    assert "no connection: initialize was not called" in _text(calls.cluster, 6040)
    stub.answer(0)
    calls.initialize()
    stub.answer(6040)
    assert "connection is lost" in _text(calls.cluster, 6040)
    monkeypatch.setenv("MXM_CHANNEL_TIMEOUT", "0")
    assert "still finishes the work" in _text(calls.cluster, 6040)
    stub.answer(0)
    calls.finalize()
    monkeypatch.setenv("MXM_CHANNEL_TIMEOUT", "rubbish")
    stub.answer(6040)
    assert "or finalize was" in _text(calls.cluster, 6040)


def test_13_a_time_out_is_named_as_one(standin: StandIn, monkeypatch: pytest.MonkeyPatch, fresh: None) -> None:
    for name, value in {**standin.environment("a"), "MXM_CHANNEL_TIMEOUT": "1"}.items():
        monkeypatch.setenv(name, value)
    with sdk.connect() as session:
        standin.inject(Op.SLOT, lost=True)
        assert "no answer within 1 s" in _text(session.calls.local_slot, 6040)


def test_13_initialize_says_place_groups_and_time(calls: Calls, stub: Stub, monkeypatch: pytest.MonkeyPatch) -> None:
    stub.answer(6015)
    text = _text(calls.initialize, 6015)
    assert "it waited 0.0 s;" in text
    assert "/run/matrix/memory/MxmAgentIpcServer: No such file" in text
    assert f"groups {sorted(os.getgroups())}" in text
    assert "libobmm" in text
    monkeypatch.setattr("obmm.sdk.facts.REFUSED_SECONDS", 0.0)
    assert "so the connection was refused" in _text(calls.initialize, 6015)


def test_place_says_mode_and_owner(tmp_path: Path) -> None:
    file = tmp_path / "socket"
    file.touch(0o640)
    assert place(file) == f"{file} is -rw-r----- of {os.getuid()}:{os.getgid()}"
    assert place(tmp_path / "none").endswith("none: No such file or directory")


def test_15_4_the_entrance_is_the_daemons_or_the_stand_ins(monkeypatch: pytest.MonkeyPatch) -> None:
    assert entrance(False) == "/run/matrix/memory/MxmAgentIpcServer"
    monkeypatch.delenv("OBMM_SDK_STANDIN", raising=False)
    assert entrance(True) == ""
    monkeypatch.setenv("OBMM_SDK_STANDIN", "/folder")
    assert entrance(True) == "/folder/daemon.sock"
    monkeypatch.setenv("OBMM_SDK_STANDIN_MODE", "in-process")
    assert entrance(True) == "/folder/state"


# --- rules of the binding (15) that need a library which can fail ----------------------------------------------------


def test_15_4_the_log_is_silent_before_anything_else(tmp_path: Path) -> None:
    stub = Stub(tmp_path)
    calls = Calls(stub.library)
    calls.lookup_regions()
    assert stub.calls == ["set_logger_level", "lookup_regions"]
    calls.initialize()
    assert stub.calls[2:] == ["init_attributes", "initialize"]


def test_5_a_failed_initialize_is_followed_by_finalize(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stub = Stub(tmp_path)
    (tmp_path / "socket").touch()
    monkeypatch.setattr("obmm.sdk.facts.DAEMON_SOCKET", str(tmp_path / "socket"))
    stub.answer(6015)
    with pytest.raises(sdk.SdkError, match="6015"):
        Session(stub.library)
    assert stub.calls[-2:] == ["initialize", "finalize"]


@pytest.mark.parametrize(("code", "again"), [(6017, True), (6040, True), (6050, False), (6099, False), (6020, False)])
def test_15_9_only_busy_and_reconnecting_are_tried_again(calls: Calls, stub: Stub, code: int, again: bool) -> None:
    calls.initialize()
    stub.answer(code, times=2)
    before = len(stub.calls)
    if again:
        calls.allocate("x", SIZE, wait=30)
        assert stub.calls[before:] == ["shmem_allocate"] * 3
    else:
        _text(lambda: calls.allocate("x", SIZE, wait=30), code)
        assert stub.calls[before:].count("shmem_allocate") == 1


def test_15_9_no_connection_is_not_waited_for(calls: Calls, stub: Stub) -> None:
    stub.answer(6040)
    _text(lambda: calls.allocate("x", SIZE, wait=3600), 6040)


def test_15_9_a_time_out_is_not_repeated(calls: Calls, stub: Stub, monkeypatch: pytest.MonkeyPatch) -> None:
    calls.initialize()
    monkeypatch.setenv("MXM_CHANNEL_TIMEOUT", "0")
    stub.answer(6040)
    before = len(stub.calls)
    _text(lambda: calls.allocate("x", SIZE, wait=3600), 6040)
    assert stub.calls[before:] == ["shmem_allocate"]


def test_15_9_a_deadline_ends_the_trying(calls: Calls, stub: Stub) -> None:
    stub.answer(6017)
    start = time.monotonic()
    with pytest.raises(sdk.SdkError) as caught:
        calls.allocate("x", SIZE, wait=0.2)
    assert caught.value.elapsed <= time.monotonic() - start
    assert stub.calls[-2:] == ["shmem_allocate"] * 2
