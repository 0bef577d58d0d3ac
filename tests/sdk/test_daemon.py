# SPDX-License-Identifier: Apache-2.0
"""What only the daemon mode has: its end and return, refused connections, engine connections (SDK specification 5, 12, 16)."""

from __future__ import annotations

import contextlib
import os
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator

import pytest

from obmm import emulator, sdk
from obmm.sdk.standin import StandIn
from obmm.sdk.standin_op import Op

from .process import Process

MIB = 1 << 20
SIZE = 4 * MIB
UNIT = 128 * MIB


@pytest.fixture
def own(fabric: emulator.Fabric) -> Iterator[StandIn]:
    with StandIn(fabric) as own:
        yield own


@pytest.fixture
def start(own: StandIn) -> Iterator[Callable[..., Process]]:
    """Initialised processes on the test's own stand-in."""
    started: list[Process] = []

    def start(node: str, **environment: str) -> Process:
        process = Process(own, node, **{"OBMM_SDK_STANDIN_SECOND_MS": "50", **environment})
        started.append(process)
        assert process.start() == [0, 0]
        return process

    yield start
    for process in started:
        process.close()


def _connected(process: Process) -> None:
    """Until the library has its daemon again, at most 20 seconds; costs one round trip."""
    end = time.monotonic() + 20
    while process.slot()[0] == 6040:
        assert time.monotonic() < end, "no reconnection"


@pytest.mark.parametrize("end", ["stop", "kill"])
def test_5_mapping_and_lease_survive_the_daemon(own: StandIn, start: Callable[..., Process], end: str) -> None:
    process = start("a")
    assert process.allocate_at("b", "x", SIZE) == 0
    address, lease = process.map("x", SIZE)[1], process.lease(SIZE)[1]
    process.poke(address, "c0ffee")
    process.poke(lease, "01ea5e")

    getattr(own, end)()
    while process.lookup("x")[0] != 6040:  # until the library has seen the end of its connection
        pass
    before = process.counters()[0]  # now: the last one may have been on its way when the connection ended
    assert [process.peek(address, 3), process.peek(lease, 3)] == ["c0ffee", "01ea5e"], "usable meanwhile"
    assert process.start() == [0, 0], "a second initialize does nothing"
    assert [process.unmap(1 << 40, SIZE), process.lookup_region("none")[0]] == [6020, 6040]

    own.start()
    _connected(process)
    assert process.counters()[0] - before == 2 + 1, "a reconnection is two round trips (12.1)"
    assert [process.peek(address, 3), process.peek(lease, 3)] == ["c0ffee", "01ea5e"]
    assert len(process.lookup("x")[3]) == 1
    assert own.status() == {"objects": {"x": {"a": [process.pid]}}, "leases": 1, "busy": []}
    assert [process.unmap(address, SIZE), process.lease_free(lease), process.deallocate("x")] == [0, 0, 0]
    assert own.status() == {"objects": {}, "leases": 0, "busy": []}


def test_5_after_a_failed_unmap_it_can_be_repeated_with_the_next_daemon(
    own: StandIn, start: Callable[..., Process]
) -> None:
    process = start("a")
    assert process.allocate_at("b", "x", SIZE) == 0
    address, lease = process.map("x", SIZE)[1], process.lease(SIZE)[1]
    own.kill()
    assert [process.unmap(address, SIZE), process.lease_free(lease)] == [6040, 6040]
    assert process.readable(address).startswith("---")
    assert process.readable(lease).startswith("---")
    own.start()
    _connected(process)
    assert [process.unmap(address, SIZE), process.lease_free(lease), process.deallocate("x")] == [0, 0, 0]


def test_5_the_next_daemon_releases_what_is_not_used_any_more(own: StandIn, start: Callable[..., Process]) -> None:
    process, other = start("a", MXM_CHANNEL_TIMEOUT="1"), start("b")
    assert other.allocate("x", SIZE) == 0
    own.inject(Op.MAP, lost=True)
    own.inject(Op.LEASE, lost=True)
    assert [process.map("x", SIZE)[0], process.lease(SIZE)[0]] == [6040, 6040]
    assert own.status() == {"objects": {"x": {"a": [process.pid]}}, "leases": 1, "busy": []}
    own.kill()
    own.start()
    _connected(process)
    assert own.status() == {"objects": {"x": {}}, "leases": 0, "busy": []}
    _connected(other)
    assert other.deallocate("x") == 0


def test_5_who_died_without_a_daemon_is_cleaned_up_by_the_next(own: StandIn, start: Callable[..., Process]) -> None:
    process, victim = start("a"), start("b")
    assert process.allocate("x", SIZE) == 0
    assert [victim.map("x", SIZE)[0], victim.lease(SIZE)[0]] == [0, 0]
    own.kill()
    victim.kill()
    own.start()
    end = time.monotonic() + 20
    while own.status() != {"objects": {"x": {}}, "leases": 0, "busy": []}:
        assert time.monotonic() < end, own.status()
    _connected(process)
    assert process.deallocate("x") == 0


def test_5_objects_and_regions_outlive_the_daemon(own: StandIn, start: Callable[..., Process]) -> None:
    process = start("a")
    assert [process.create_region("r", ["b", "a"]), process.allocate("x", SIZE, region="r")] == [0, 0]
    own.stop()
    own.start()
    _connected(process)
    assert process.lookup_region("r") == [0, 0, [["b", True], ["a", False]]]
    assert [process.allocate("x", SIZE), process.deallocate("x")] == [6021, 0]


def test_5_a_lock_survives_the_daemon(own: StandIn, start: Callable[..., Process]) -> None:
    process, other = start("a"), start("b")
    assert process.allocate("l", UNIT, flags=1) == 0
    here, there = process.map("l", UNIT, prot=0)[1], other.map("l", UNIT, prot=0)[1]
    assert process.lock("write_lock", "l") == 0
    own.kill()
    own.start()
    _connected(process)
    _connected(other)
    assert other.lock("write_lock", "l") == 6062
    assert [process.lock("unlock", "l"), other.lock("write_lock", "l"), other.lock("unlock", "l")] == [0, 0, 0]
    assert [process.unmap(here, UNIT), other.unmap(there, UNIT), process.deallocate("l")] == [0, 0, 0]


_REQUEST = struct.Struct("=4I4Q64s64s")
_HELLO, _NOBODY = 1, (1 << 64) - 1


@pytest.mark.parametrize(
    "sent",
    [
        b"",
        b"\0",
        b"\xff" * 5000,
        _REQUEST.pack(99, 0, 0, 0, 0, 0, 0, 0, b"a", b""),
        _REQUEST.pack(_HELLO, 0, 0, 0, _NOBODY, _NOBODY, 0, 0, b"nowhere", b""),
        _REQUEST.pack(_HELLO, 0, 0, 0, _NOBODY, _NOBODY, 0, 0, b"n" * 64, b""),
        _REQUEST.pack(_HELLO, 0, 1 << 31, 0, _NOBODY, _NOBODY, 0, 0, b"a", b""),
        _REQUEST.pack(_HELLO, 0, 0, 0, _NOBODY, _NOBODY, 0, 0, b"a", b"")
        + _REQUEST.pack(int(Op.CREATE_AT), 1, 1 << 31, 0, 0, 0, 0, 0, b"x", b""),
        _REQUEST.pack(_HELLO, 0, 0, 0, _NOBODY, _NOBODY, 0, 0, b"a", b"")
        + _REQUEST.pack(int(Op.REGION_CREATE), 1, 1044, 0, 0, 0, 0, 0, b"", b"r" * 64)
        + b"\xff" * 1044,
        _REQUEST.pack(_HELLO, 0, 0, 0, _NOBODY, _NOBODY, 0, 0, b"a", b"")
        + _REQUEST.pack(int(Op.STILL_OBJECTS), 1, 100, 0, 0, 0, 0, 0, b"", b"")
        + b"\xff" * 50,
    ],
)
def test_daemon_outlives_what_is_no_request(own: StandIn, start: Callable[..., Process], sent: bytes) -> None:
    process = start("a")
    with socket.socket(socket.AF_UNIX) as stranger, contextlib.suppress(ConnectionError):
        stranger.connect(f"{own.folder}/daemon.sock")
        stranger.sendall(sent)
        stranger.shutdown(socket.SHUT_WR)
        while stranger.recv(4096):
            pass
    assert [process.allocate("x", SIZE), process.deallocate("x")] == [0, 0]
    assert own.status() == {"objects": {}, "leases": 0, "busy": []}


def test_5_finalize_while_the_daemon_is_away(own: StandIn, start: Callable[..., Process]) -> None:
    process = start("a")
    own.stop()
    assert [process.finalize(), process.slot()[0], process.start()] == [0, 6040, [0, 6015]]
    own.start()
    assert [process.start(), process.slot()] == [[0, 0], [0, 1]]


def test_s2_a_missing_daemon_is_an_answer_at_once(own: StandIn) -> None:
    own.stop()
    process = Process(own, "a", HCOM_CONNECTION_RETRY_TIMES="10")
    code, seconds = process.timed("start")
    assert code == [0, 6015]
    assert seconds < 60, "ten attempts would take 1023 seconds"
    process.close()


@pytest.mark.parametrize("attempts", [1, 4])
def test_s2_a_refused_connection_takes_its_attempts(own: StandIn, attempts: int) -> None:
    """5: n attempts take 2^n - 1 seconds; here a second lasts 10 ms."""
    own.kill()
    process = Process(own, "a", HCOM_CONNECTION_RETRY_TIMES=str(attempts), OBMM_SDK_STANDIN_SECOND_MS="10")
    code, seconds = process.timed("start")
    assert code == [0, 6015]
    assert seconds >= 0.01 * (2**attempts - 1)
    own.start()
    assert process.start() == [0, 0]
    process.close()


def test_s2_one_wait_is_capped(own: StandIn) -> None:
    own.kill()
    process = Process(
        own,
        "a",
        HCOM_CONNECTION_RETRY_TIMES="10",
        HCOM_CONNECTION_RETRY_INTERVAL_SEC="1",
        OBMM_SDK_STANDIN_SECOND_MS="10",
    )
    code, seconds = process.timed("start")
    assert code == [0, 6015]
    assert 0.1 <= seconds < 10.23, "ten waits of one second, not 1023"
    process.close()


def test_12_1_engine_connections(fabric: emulator.Fabric) -> None:
    with StandIn(fabric, engine=True) as own:
        process, second = Process(own, "a"), Process(own, "a")
        assert [process.start(), second.start()] == [[0, 0], [0, 0]]
        made: dict[str, int] = {}
        addresses: dict[str, int] = {}

        def count(what: str, call: Callable[[], object]) -> None:
            before = own.engine_calls
            answer = call()
            if isinstance(answer, list):
                assert answer[0] == 0
                addresses[what] = answer[1]
            else:
                assert answer == 0
            made[what] = own.engine_calls - before

        count("allocate", lambda: process.allocate("x", SIZE))
        count("map", lambda: process.map("x", SIZE))
        count("again", lambda: second.map("x", SIZE))
        count("lookup", lambda: process.lookup("x"))
        count("unmap other", lambda: process.unmap(addresses["map"], SIZE))
        count("unmap", lambda: second.unmap(addresses["again"], SIZE))
        count("deallocate", lambda: process.deallocate("x"))
        assert made == {
            "allocate": 3 + 1,
            "map": 2,
            "again": 0,
            "lookup": 2,
            "unmap other": 0,
            "unmap": 1,
            "deallocate": 2,
        }
        made.clear()
        count("at", lambda: process.allocate_at("b", "x", SIZE))
        count("list", lambda: process.listed("x"))
        count("slot", lambda: process.slot())
        count("cluster", lambda: process.cluster())
        count("regions", lambda: process.regions())
        count("create region", lambda: process.create_region("r", ["a", "b"]))
        count("lookup region", lambda: process.lookup_region("r"))
        count("allocate named", lambda: process.allocate("y", SIZE, region="r"))
        count("lease", lambda: process.lease(SIZE))
        count("free", lambda: process.lease_free(addresses["lease"]))
        count("lease named", lambda: process.lease(SIZE, region="r"))
        count("lease at", lambda: process.lease_at(2, SIZE))
        count("destroy region", lambda: process.destroy_region("r"))
        assert made == {
            "at": 2,
            "list": 1,
            "slot": 1,
            "cluster": 1 + 3,
            "regions": 3,
            "create region": 3,
            "lookup region": 0,
            "allocate named": 1,
            "lease": 5,
            "free": 2,
            "lease named": 2,
            "lease at": 1,
            "destroy region": 0,
        }
        process.close()
        second.close()


def test_12_1_no_engine_connection_unless_asked(own: StandIn, start: Callable[..., Process]) -> None:
    process = start("a")
    assert [process.allocate("x", SIZE), process.deallocate("x"), own.engine_calls] == [0, 0, 0]


def test_s2_the_binding_says_a_missing_daemon_at_once(own: StandIn, monkeypatch: pytest.MonkeyPatch) -> None:
    _use(own, monkeypatch, HCOM_CONNECTION_RETRY_TIMES="10")
    own.stop()
    with pytest.raises(sdk.SdkError, match=r"daemon\.sock: No such file") as caught:
        sdk.connect()
    assert (caught.value.code, caught.value.elapsed) == (6015, 0.0)
    assert "systemctl status ubsmd" in str(caught.value)


def test_s2_the_binding_names_a_slow_refusal(own: StandIn, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("obmm.sdk.facts.REFUSED_SECONDS", 0.05)
    _use(own, monkeypatch, HCOM_CONNECTION_RETRY_TIMES="4", OBMM_SDK_STANDIN_SECOND_MS="10")
    own.kill()
    with pytest.raises(sdk.SdkError, match="so the connection was refused: the daemon is dead") as caught:
        sdk.connect()
    assert caught.value.code == 6015
    assert caught.value.elapsed >= 0.15
    own.start()
    with sdk.connect() as session:
        assert session.local_host().name == "a"


def test_15_4_the_binding_asks_for_one_attempt_only(own: StandIn, monkeypatch: pytest.MonkeyPatch) -> None:
    _use(own, monkeypatch, OBMM_SDK_STANDIN_SECOND_MS="10")
    monkeypatch.delenv("HCOM_CONNECTION_RETRY_TIMES", raising=False)
    own.kill()
    with pytest.raises(sdk.SdkError):
        sdk.connect()
    assert os.environ["HCOM_CONNECTION_RETRY_TIMES"] == "1"


def _use(own: StandIn, monkeypatch: pytest.MonkeyPatch, **environment: str) -> None:
    for name, value in {**own.environment("a"), **environment}.items():
        monkeypatch.setenv(name, value)


@pytest.fixture
def session(own: StandIn, monkeypatch: pytest.MonkeyPatch) -> Iterator[sdk.Session]:
    _use(own, monkeypatch)
    with sdk.connect() as session:
        yield session


def test_15_9_calls_wait_for_the_next_daemon_until_their_deadline(session: sdk.Session, own: StandIn) -> None:
    own.kill()
    with pytest.raises(sdk.SdkError, match="6040"):
        sdk.SharedObject.create(session, "x", SIZE)
    later = threading.Thread(target=own.start)
    later.start()
    with sdk.SharedObject.create(session, "x", SIZE, wait=30) as shared:
        later.join()
        shared.delete()


def test_5_session_and_objects_survive_the_daemon(session: sdk.Session, own: StandIn) -> None:
    shared, lease = sdk.SharedObject.create(session, "x", SIZE, provider="b"), session.lease(SIZE)
    memory = shared.regions("rw")
    memory.write(0, b"kept")
    own.kill()
    own.start()
    assert memory.read(0, 4) == b"kept"
    sdk.SharedObject.create(session, "y", SIZE, wait=30).delete()
    lease.close()
    shared.delete()
    assert memory.closed
