# SPDX-License-Identifier: Apache-2.0
"""What callers should not do and do: odd keys, memory that shrinks, one batch after another, interrupts, a stopped process."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import obmm
from obmm import ObmmArgumentError
from obmm.blocks import Pieces, SlotLayout
from obmm.blocks.service import BlockService
from obmm.blocks.wire import Op
from obmm.exchange import Refusal, RequestRefusedError
from tests.blocks.rig import BLOCK, Rig, content, get, put, until
from tests.blocks.test_failures import Victim, deadly, victims

__all__ = ["deadly", "victims"]

Make = Callable[..., Rig]


@pytest.fixture
def file_memory(tmp_path: Path) -> tuple[Path, np.ndarray]:
    path = tmp_path / "file"
    path.write_bytes(content(b"a", 4096).tobytes() * 4)
    return path, np.memmap(path, np.uint8, "r+")


@pytest.mark.parametrize("call", ["put", "get", "submit_put", "submit_get"])
def test_a_file_that_shrinks_under_its_mapping_costs_its_blocks_only(
    rig: Make, file_memory: tuple[Path, np.ndarray], call: str
) -> None:
    store = rig().store()
    path, memory = file_memory
    put(store, b"a", b"b", size=4096)
    os.truncate(path, 4096)
    other = np.zeros(4096, np.uint8)
    keys = [b"a", b"b"] if "get" in call else [b"c", b"d"]
    done: Any = getattr(store, call)(keys, [memory[4096:8192], other])
    flags = done if isinstance(done, np.ndarray) else done.result(20)
    assert flags.tolist() == [0, 1]
    assert get(store, b"a", b"b", size=4096) == [1, 1]


def test_keys_of_every_length_are_keys(rig: Make) -> None:
    store = rig(slots=64).store()
    keys: list[Any] = [bytes(n) for n in (*range(18), 31, 33, 63, 65, 127, 129, 4095, 65535, 65536)]
    keys += ["é" * n for n in (1, 3, 32767)]
    assert put(store, *keys) == [1] * len(keys)
    assert get(store, *keys) == [1] * len(keys)


def test_a_thousand_of_the_same_key_in_a_batch(rig: Make) -> None:
    made = rig(slots=8)
    store = made.store()
    keys = [b"k", "k"] * 500
    assert store.put(keys, [content(b"k")] * 1000).all()
    assert made.owner.status()["blocks"] == 1
    assert get(store, *keys) == [1] * 1000
    assert store.exists(keys).all()
    store.pin(keys)
    store.unpin(keys)
    until(lambda: made.owner.status()["pinned"] == 0)


def test_a_pin_by_the_keys_other_name_is_a_pin(rig: Make) -> None:
    made = rig(slots=1)
    store = made.store()
    put(store, b"k")
    assert store.pin(["k"]).tolist() == store.pin([b"k"]).tolist() == [1]
    store.unpin(["k"])
    assert put(store, b"other") == [0]
    store.unpin(["k"])
    assert put(store, b"other") == [1]


def test_more_batches_by_address_than_the_guard_has_room_for(rig: Make) -> None:
    made = rig()
    store = made.store()
    put(store, b"a")
    out = np.zeros((6000, BLOCK), np.uint8)
    tickets = [
        store.submit_get([b"a"], Pieces.of_addresses(1, [out[i].ctypes.data], BLOCK), timeout=60) for i in range(6000)
    ]
    assert store.drain(120)
    assert all(ticket.done for ticket in tickets)
    assert get(store, b"a") == [1]


def test_overlapping_destinations_in_the_background_are_misses(rig: Make) -> None:
    store = rig().store()
    put(store, b"a", b"b", size=100)
    memory = bytearray(b"\x77" * 150)
    view = memoryview(memory)
    ticket = store.submit_get([b"a", b"b"], [view[:100], view[50:]])
    assert ticket.result(20).tolist() == [0, 0]
    assert memory == b"\x77" * 150


def test_memory_released_while_it_is_lent_stays_until_the_call_has_ended(rig: Make) -> None:
    store = rig(slots=4, block_bytes=8 << 20).store()
    assert store.put([b"a"], [np.ones(8 << 20, np.uint8)]).all()
    memory = bytearray(8 << 20)
    pieces = Pieces.of_buffers(1, [memory], writable=True)
    hold = threading.Event()
    store._pump.post(lambda store: hold.wait(20))
    ticket = store.submit_get([b"a"], pieces)
    pieces.release()
    with pytest.raises(BufferError):
        memory.clear()
    hold.set()
    assert ticket.result(20).all()
    memory.clear()


def test_a_commit_that_fails_in_the_middle_costs_only_what_was_not_taken(
    rig: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = rig(slots=2_100, block_bytes=64)
    store = made.store()
    answer, seen = made.owner.service.call, []

    def second_fails(caller: Any, body: bytes) -> bytes:
        if body[0] == Op.COMMIT:
            seen.append(body)
            if len(seen) == 2:
                return b"\7"
        return answer(caller, body)

    monkeypatch.setattr(made.owner.service, "call", second_fails)
    keys = [b"%d" % i for i in range(2_000)]
    ticket = store.submit_put(keys, [bytes([i % 256]) * 64 for i in range(2_000)])
    flags = ticket.result(20).tolist()
    assert flags == [1] * 1024 + [0] * 976


@pytest.mark.parametrize("where", ["reserving", "reserved", "committing"])
def test_slots_of_an_interrupted_put_go_back(rig: Make, monkeypatch: pytest.MonkeyPatch, where: str) -> None:
    made = rig(slots=8, term=0.5)
    store = made.store()
    session, ask = store._keeper._session, store._keeper._session.peer.call

    def interrupted(name: str, body: bytes, **options: Any) -> bytes:
        before = {"reserving": None, "reserved": None, "committing": Op.COMMIT}[where]
        if body[0] == before:
            raise KeyboardInterrupt
        said = ask(name, body, **options)
        if where == "reserving" and body[0] == Op.RESERVE:
            raise KeyboardInterrupt
        return said

    monkeypatch.setattr(session.peer, "call", interrupted)
    if where == "reserved":

        def run(*arguments: Any) -> int:
            raise KeyboardInterrupt

        monkeypatch.setattr("obmm.blocks.memory.Batch.run", run)
    for i in range(4):
        with pytest.raises(KeyboardInterrupt):
            put(store, b"%d" % i)
    monkeypatch.undo()
    until(lambda: made.owner.status()["reserved"] == 0)
    assert put(store, *[b"x%d" % i for i in range(8)]) == [1] * 8


def test_clocks_that_jump_give_misses_and_no_wrong_byte(rig: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    made = rig(term=1.0, slots=6)
    store = made.store()
    chance = np.random.default_rng(4)
    offset = 0.0
    monkeypatch.setattr(made.owner.service, "_clock", lambda: time.monotonic() + offset)
    for i in range(60):
        offset = float(chance.choice([-1e9, -3.0, 0.0, 3.0, 1e3 * i]))
        keys = [b"%d" % int(k) for k in chance.integers(0, 9, 3)]
        put(store, *keys)
        get(store, *keys)
    until(lambda: put(store, b"last") == [1])
    assert get(store, b"last") == [1]


def test_a_call_that_was_refused_keeps_no_memory(rig: Make) -> None:
    store = rig().store()
    memory = bytearray(BLOCK)
    pieces = Pieces.of_buffers(1, [memory], writable=True)
    for keys, timeout in (([b"a", b"b"], 1.0), ([b"a"], "soon")):
        for call in (store.get, store.submit_get):
            with pytest.raises(ObmmArgumentError):
                call(keys, pieces, timeout=timeout)
    pieces.release()
    memory.clear()


def test_a_user_that_was_stopped_past_its_lease_writes_where_it_may_not_and_nobody_reads_it(
    deadly: Any, key: Path, tmp_path: Path, victims: list[Victim]
) -> None:
    with obmm.open(deadly.device("a")) as a, obmm.open(deadly.device("b")) as b:
        made = Rig(a, b, key, tmp_path / "journal", slots=2, term=0.5)
        try:
            other = made.store()
            victims.append(Victim("user", str(b.backend), str(made.port), str(key)))
            victims[0].until("reserved")
            victims[0].process.send_signal(signal.SIGSTOP)
            until(lambda: made.owner.status()["reserved"] == made.owner.status()["pinned"] == 0)
            assert put(other, b"1", b"2") == get(other, b"1", b"2") == [1, 1]
            victims[0].process.send_signal(signal.SIGCONT)
            for step in ("half written", "written"):
                victims[0].until(step)
                get(other, b"1", b"2", b"half", b"before")  # compares what it gets
            assert sum(get(other, b"1", b"2")) == 1, "it wrote into a slot of another one"
            assert put(other, b"1", b"2") == get(other, b"1", b"2") == [1, 1]
        finally:
            made.close()


@pytest.mark.parametrize("newer", ["slots", "directory"])
def test_an_owner_of_another_version_that_comes_later_is_all_misses(
    rig: Make, monkeypatch: pytest.MonkeyPatch, newer: str
) -> None:
    made = rig(term=0.5)
    store = made.store()
    put(store, b"k")
    made.stop()

    def refuse(caller: Any, body: bytes) -> bytes:
        raise RequestRefusedError(Refusal.VERSION, "the owner's directory speaks version 2, not 1")

    if newer == "slots":
        monkeypatch.setattr(SlotLayout, "VERSION", 2)
        made.start()
        monkeypatch.undo()
    else:
        monkeypatch.setattr(BlockService, "call", lambda self, caller, body: refuse(caller, body))
        made.start()
    until(lambda: not store.attached)
    for _ in range(20):
        assert put(store, b"k") == get(store, b"k") == store.exists([b"k"]).tolist() == [0]
    monkeypatch.undo()
    made.stop()
    made.start()
    until(lambda: store.attached)
    assert put(store, b"k") == get(store, b"k") == [1]
