# SPDX-License-Identifier: Apache-2.0
"""Owners and users that die, wherever they are; memory that rots; an owner that is silent or another one."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pytest

import obmm
from obmm import Device, emulator
from obmm.blocks import BlockStore, BlockStoreError, Reason
from obmm.blocks.wire import Op
from obmm.exchange import RequestRefusedError
from tests.blocks.rig import BLOCK, MODEL, Rig, content, get, put, until

Make = Callable[..., Rig]
ROOT = Path(__file__).resolve().parents[2]


class Victim:
    """A process that does a step when it is told to."""

    def __init__(self, *arguments: str) -> None:
        command = [sys.executable, "-P", "-m", "tests.blocks.victim", *arguments]
        environment = os.environ | {"PYTHONPATH": str(ROOT)}
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT, env=environment
        )

    def step(self) -> str:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        return self.process.stdout.readline().strip()

    def until(self, name: str) -> None:
        while (done := self.step()) != name:
            assert done, "the victim ended by itself"

    def kill(self) -> None:
        self.process.send_signal(signal.SIGKILL)
        self.process.wait(10)
        for pipe in (self.process.stdin, self.process.stdout):
            assert pipe is not None
            pipe.close()


@pytest.fixture
def victims() -> Iterator[list[Victim]]:
    made: list[Victim] = []
    yield made
    for victim in made:
        if victim.process.poll() is None:
            victim.kill()


@pytest.fixture(scope="module")
def deadly() -> Iterator[emulator.Fabric]:
    """A fabric for those that are killed: what they leave in it disturbs no other test."""
    with emulator.start(nodes=2) as fabric:
        yield fabric
        assert fabric.status()["internal_errors"] == 0


@pytest.fixture
def nodes(deadly: emulator.Fabric) -> Iterator[tuple[Device, Device]]:
    with obmm.open(deadly.device("a")) as a, obmm.open(deadly.device("b")) as b:
        yield a, b


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


@pytest.mark.parametrize(
    "step", ["connected", "attached", "stored", "pinned", "reserved", "half written", "written", "closed"]
)
def test_a_user_killed_at_any_step_costs_what_it_had_not_committed(
    nodes: tuple[Device, Device], key: Path, tmp_path: Path, victims: list[Victim], step: str
) -> None:
    made = Rig(*nodes, key, tmp_path / "journal", slots=3, term=0.5)
    try:
        end_of_a_user(made, victims, step)
    finally:
        made.close()


def end_of_a_user(made: Rig, victims: list[Victim], step: str) -> None:
    other = made.store()
    victims.append(Victim("user", str(made.b.backend), str(made.port), str(made.key)))
    victims[0].until(step)
    victims[0].kill()
    stored = step not in ("connected", "attached")
    assert get(other, b"before", b"half") == [int(stored), 0]
    # its reservations and pins end with its lease: the whole store can be used again
    until(lambda: made.owner.status()["reserved"] == 0 and made.owner.status()["pinned"] == 0)
    assert put(other, b"1", b"2", b"3") == [1, 1, 1]
    assert get(other, b"1", b"2", b"3", b"half") == [1, 1, 1, 0]


@pytest.mark.parametrize("step", ["opened", "exported", "listening", "served"])
def test_an_owner_killed_at_any_step_is_all_misses_until_another_one_comes(
    nodes: tuple[Device, Device], key: Path, tmp_path: Path, victims: list[Victim], step: str
) -> None:
    a, b = nodes
    port = free_port()
    arguments = ("owner", str(a.backend), str(port), str(key), str(tmp_path / "journal"))
    victims.append(Victim(*arguments))
    victims[0].until(step)
    store: BlockStore | None = None
    peer = None
    try:
        if step == "served":
            peer = obmm.connect(f"127.0.0.1:{port}", key=key)
            store = BlockStore(peer, b, MODEL)
            assert put(store, b"old") == [1]
            assert get(store, b"old") == [1]
        victims[0].kill()
        if store is not None:
            until(lambda: not store.attached)
            assert get(store, b"old") == [0]
            assert put(store, b"new") == [0]
            assert store.stats()["misses"]["no_owner"] == 1
        victims.append(Victim(*arguments))
        victims[1].until("serving")
        if store is None:
            peer = obmm.connect(f"127.0.0.1:{port}", key=key)
            store = BlockStore(peer, b, MODEL)
        until(lambda: store.attached)
        assert get(store, b"old") == [0]
        assert put(store, b"new") == [1]
        assert get(store, b"new") == [1]
    finally:
        if store is not None:
            store.close()
        if peer is not None:
            peer.close(timeout=0.2, force=True)
        for victim in victims:
            if victim.process.poll() is None:
                victim.kill()


@pytest.mark.parametrize("moment", ["slots were chosen", "slots were cleared", "reserved", "committed"])
def test_an_owner_killed_inside_a_put_is_a_miss_and_nothing_of_it_is_found_again(
    nodes: tuple[Device, Device], key: Path, tmp_path: Path, victims: list[Victim], moment: str
) -> None:
    """In an eviction before and after the slots' headers are cleared; after RESERVE and COMMIT, before the answer."""
    a, b = nodes
    port = free_port()
    arguments = ("owner", str(a.backend), str(port), str(key), str(tmp_path / "journal"))
    victims.append(Victim(*arguments, moment))
    victims[0].until("served")
    full = [b"%d" % i for i in range(16)]
    with ExitStack() as stack:
        peers = [obmm.connect(f"127.0.0.1:{port}", key=key) for _ in range(2)]
        for peer in peers:
            stack.callback(peer.close, timeout=0.2, force=True)
        writer, reader = [stack.enter_context(BlockStore(peer, b, MODEL)) for peer in peers]
        assert put(writer, *full) == get(reader, *full) == [1] * 16
        victims[0].until("serving")  # from now on it is armed
        ticket = writer.submit_put([b"x", b"y"], [content(b"x"), content(b"y")])
        assert ticket.result(30).tolist() == [0, 0]
        assert set(ticket.reasons.tolist()) == {Reason.NO_ANSWER}
        assert victims[0].process.wait(10) == -signal.SIGKILL
        get(reader, *full, b"x")  # checks the bytes of what is still there
        for store in (writer, reader):
            until(lambda store=store: not store.attached)  # type: ignore[misc]
            assert get(store, *full, b"x", b"y") == [0] * 18
        victims.append(Victim(*arguments, "never"))
        victims[1].until("serving")
        for store in (writer, reader):
            until(lambda store=store: store.attached)  # type: ignore[misc]
            assert get(store, *full, b"x", b"y") == [0] * 18
        assert put(writer, *full) == get(reader, *full) == [1] * 16


def test_a_silent_owner_is_all_misses_in_time_and_comes_back(rig: Make) -> None:
    made = rig(term=0.3)
    store = made.store()
    put(store, b"k")
    service = made.server._service
    held = service.mailbox.post(lambda: time.sleep(1.5))
    until(lambda: not store.attached)
    assert get(store, b"k") == [0]
    held.result(10)
    until(lambda: store.attached)
    assert get(store, b"k") == [1]


def test_a_ticket_ends_with_its_store_whatever_the_owner_does(rig: Make) -> None:
    made = rig()
    store, may_answer = made.store(), threading.Event()
    held = made.server._service.mailbox.post(lambda: may_answer.wait(60))
    tickets = [store.submit_exists([b"x"]), store.submit_put([b"x"], [content(b"x")])]
    store.close(0)
    try:
        assert [ticket.wait(20) for ticket in tickets] == [True, True]
        assert not any(ticket.result().any() for ticket in tickets)
    finally:
        may_answer.set()
        held.result(20)


def test_what_a_slow_owner_granted_and_pinned_unheard_goes_back(rig: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    made = rig(slots=8, term=1.0)
    store, other = made.store(), made.store()
    assert put(store, b"a") == [1]
    answer = made.owner.service.call

    def slow(caller: object, body: bytes) -> bytes:
        if body[0] in (Op.RESERVE, Op.COMMIT, Op.PIN):
            time.sleep(0.05)
        return answer(caller, body)

    monkeypatch.setattr(made.owner.service, "call", slow)
    for i in range(12):
        assert store.put([b"%d" % i], [content(b"%d" % i)], timeout=0.02).tolist() == [0]
        assert store.submit_put([b"%d" % i], [content(b"%d" % i)], timeout=0.02).result(10).tolist() == [0]
    assert store.pin([b"a"], timeout=0.02).tolist() == [0]
    monkeypatch.undo()
    until(lambda: made.owner.status()["reserved"] == made.owner.status()["pinned"] == 0)
    keys = [b"x%d" % i for i in range(8)]
    assert put(other, *keys) == get(other, *keys) == [1] * 8


def test_a_new_owner_on_the_same_address_is_found(rig: Make) -> None:
    made = rig(term=1.0)
    store = made.store()
    put(store, b"k")
    made.stop()
    assert get(store, b"k") == [0]
    made.start()
    until(lambda: store.attached and store.incarnation == f"{made.owner.incarnation:016x}")
    assert get(store, b"k") == [0]
    assert put(store, b"k") == [1]
    assert get(store, b"k") == [1]
    assert store.stats()["attached"] == 2


def test_an_owner_that_ends_in_order_waits_for_its_users(rig: Make) -> None:
    made = rig()
    store = made.store()
    put(store, b"k")
    made.owner.close(timeout=10)
    assert get(store, b"k") == [0]
    assert not store.attached


def test_a_lapsed_user_becomes_known_again_with_its_pins(rig: Make) -> None:
    made = rig(term=30.0)
    store = made.store()
    put(store, b"k")
    store.pin([b"k"])
    for user in tuple(made.owner.directory._users.values()):
        made.owner.directory.close(user)
    assert made.owner.status()["pinned"] == 0
    assert store.exists([b"other"]).tolist() == [0]  # the question finds out
    until(lambda: made.owner.status()["pinned"] == 1)
    assert get(store, b"k") == [1]


@pytest.mark.parametrize("cache", ["nc", "cc"])
def test_rotten_memory_is_a_miss_and_its_block_is_dropped(strict_rig: Make, cache: str) -> None:
    made = strict_rig(cache=cache)
    store = made.store()
    keys = [b"%d" % i for i in range(8)]
    put(store, *keys)
    mapping, stride = made.owner.memory.mapping, made.layout.stride
    for slot in range(made.layout.slots):
        with mapping.writing(slot * stride, (slot + 1) * stride) if cache == "cc" else mapping.writing():
            at = slot * stride + 64 + 17 * slot
            mapping.store("u1", at, int(mapping.load("u1", at)) ^ 1)
    ticket = store.submit_get(keys, [np.zeros(BLOCK, np.uint8) for _ in keys])
    assert not ticket.result(20).any()
    assert set(ticket.reasons.tolist()) <= {Reason.CORRUPT, Reason.ABSENT}
    until(lambda: made.owner.status()["blocks"] == 0)
    assert put(store, *keys) == [1] * 8
    assert get(store, *keys) == [1] * 8


def test_a_thousand_random_headers_are_misses(rig: Make) -> None:
    made = rig(slots=4)
    store = made.store()
    random = np.random.default_rng(5)
    for _ in range(250):
        put(store, b"a", b"b", b"c")
        for slot in range(4):
            mapping = made.owner.memory.mapping
            mapping.write(slot * made.layout.stride, random.integers(0, 256, 64, dtype=np.uint8).tobytes())
        assert get(store, b"a", b"b", b"c") == [0, 0, 0]


def test_users_on_hosts_that_do_not_snoop_each_other_see_whole_blocks(strict_rig: Make) -> None:
    """Owner's host and another one, cacheable: rights are taken for each slot, and every slot is used again and again."""
    made = strict_rig(cache="cc", slots=6)
    here, there = made.store(device=made.a), made.store()
    for i in range(40):
        writer, reader = (here, there) if i % 2 else (there, here)
        key = b"%d" % (i % 9)
        writer.delete([key])
        assert put(writer, key) == [1]
        assert get(reader, key) == [1]
        assert get(writer, key) == [1]


def test_an_owner_of_another_version_is_a_sentence(rig: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    made = rig()
    original = made.layout.to_json

    def newer(incarnation: int) -> dict[str, object]:
        return original(incarnation) | {"version": 2}

    made.owner.close(timeout=1)
    made.server.close(timeout=1)
    monkeypatch.setattr(type(made.layout), "to_json", lambda self, incarnation: newer(incarnation))
    made.start()
    monkeypatch.undo()
    with pytest.raises(BlockStoreError, match="same version of obmm"):
        made.store()


@pytest.mark.parametrize("wrong", [b"", b"\0", b"\0" + bytes(7), b"\0" + b"\xff" * 4_000, b"\7"])
def test_an_owner_that_answers_nonsense_is_misses(rig: Make, monkeypatch: pytest.MonkeyPatch, wrong: bytes) -> None:
    made = rig()
    store = made.store()
    put(store, b"k")
    monkeypatch.setattr(made.owner.service, "call", lambda caller, body: wrong)
    keys, memory = [b"a", b"b"], [bytearray(BLOCK), bytearray(BLOCK)]
    assert store.put(keys, memory).tolist() == [0, 0]
    assert store.get(keys, memory).tolist() == [0, 0]
    assert not store.exists(keys).any()
    assert not store.pin(keys).any()
    assert not store.delete(keys).any()
    assert store.submit_put(keys, memory).result(10).tolist() == [0, 0]
    assert store.submit_get(keys, memory).result(10).tolist() == [0, 0]
    monkeypatch.undo()
    until(lambda: put(store, b"a") == [1])


def test_an_owner_that_answers_with_another_block_is_misses(rig: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    made = rig()
    store, reader = made.store(), made.store()
    put(store, b"a", b"b")
    answer, directory = made.owner.service.call, made.owner.directory
    place = directory.lookup(MODEL.hash(b"a"))

    def confused(caller: object, body: bytes) -> bytes:
        said = answer(caller, body)
        if body[0] in (Op.LOOKUP, Op.PIN):
            return b"\0" + place
        return said[:2] + place + said[2 + len(place) :] if body[0] == Op.COMMIT else said

    monkeypatch.setattr(made.owner.service, "call", confused)
    assert get(reader, b"b") == reader.exists([b"b"]).tolist() == reader.pin([b"b"]).tolist() == [0]
    assert put(reader, b"c") == [0]
    assert get(reader, b"a") == [1], "the same answer, where it is right"
    assert reader.stats()["misses"] == {"no_answer": 1}


def test_a_name_that_is_not_served_is_a_sentence(rig: Make) -> None:
    made = rig()
    with pytest.raises(RequestRefusedError, match="no service answers calls to 'other'"):
        made.store(name="other")


def test_content_differs_from_key_to_key() -> None:
    assert not np.array_equal(content(b"a"), content(b"b")), "the other tests would show nothing"
