# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import copy
import ctypes
import gc
import mmap
import os
import pickle
import select
import threading
from collections.abc import Callable

import numpy as np
import pytest

from obmm import ClosedError, ObmmArgumentError
from obmm.blocks import BlockStore, Namespace, Pieces, Reason
from obmm.blocks import keeper as keeper_code
from obmm.errors import CopyError
from tests.blocks.rig import BLOCK, MODEL, Rig, content, get, put, until

Make = Callable[..., Rig]


@pytest.mark.parametrize("cache", ["nc", "cc"])
def test_what_one_user_stores_another_one_loads(rig: Make, cache: str) -> None:
    made = rig(cache=cache)
    writer, reader = made.store(), made.store()
    assert put(writer, b"1", "two", b"") == [1, 1, 1]
    assert reader.exists([b"1", b"2", "two", b""]).tolist() == [1, 0, 1, 1]
    assert get(reader, b"1", b"2", "two", b"") == [1, 0, 1, 1]
    assert reader.stats()["misses"] == {"absent": 1}


def test_text_and_its_bytes_are_one_key(rig: Make) -> None:
    store = rig().store()
    assert put(store, "kä") == [1]
    assert store.exists(["kä".encode()]).tolist() == [1]


def test_what_is_gone_is_not_known_by_its_other_name(rig: Make) -> None:
    made = rig(term=2.0)  # two thirds of it is what a busy machine may take for a beat; after that everything is a miss
    store = made.store()
    for gone in (lambda: store.delete(["k"]), lambda: made.owner.evict(1)):
        put(store, "k")
        assert get(store, b"k") == get(store, "k") == get(store, b"k") == [1]
        gone()
        until(lambda: not store.known(["k", b"k"]).any())
        assert put(store, b"k") == [1]
        assert get(store, "k") == [1]
        store.delete([b"k"])


def test_another_model_finds_nothing(rig: Make) -> None:
    made = rig()
    assert put(made.store(), b"k") == [1]
    other = made.store(Namespace(model="n", dtype="u1"))
    assert other.exists([b"k"]).tolist() == [0]
    assert get(other, b"k") == [0]


def test_a_hot_lookup_asks_no_owner(rig: Make) -> None:
    made = rig()
    writer, reader = made.store(), made.store()
    keys = [b"%d" % i for i in range(10)]
    put(writer, *keys)
    assert reader.exists(keys).all()
    asked = reader.stats()["questions"]["lookup"]
    for _ in range(5):
        assert reader.exists(keys).all()
        assert get(reader, *keys) == [1] * 10
        assert reader.known(keys).all()
    assert reader.stats()["questions"]["lookup"] == asked == 1


def test_leading_counts_to_the_first_gap(rig: Make) -> None:
    store = rig().store()
    put(store, b"0", b"1", b"3")
    assert store.leading([b"0", b"1", b"2", b"3"]) == 2
    assert store.leading([b"0", b"1", b"3"]) == 3
    assert store.leading([b"2"]) == 0
    assert store.leading([]) == 0


def test_a_key_that_comes_twice_in_a_batch_is_stored_once(rig: Make) -> None:
    made = rig()
    store = made.store()
    ticket = store.submit_put([b"k", b"k", b"j"], [content(b"k"), content(b"k"), content(b"j")])
    assert ticket.result(10).tolist() == [1, 1, 1]
    assert ticket.reasons.tolist() == [Reason.OK, Reason.EXISTED, Reason.OK]
    assert made.owner.status()["blocks"] == 2
    assert get(store, b"k", b"k", b"j") == [1, 1, 1]


def test_what_is_stored_already_is_not_copied_again(rig: Make) -> None:
    made = rig()
    first, second = made.store(), made.store()
    put(first, b"k")
    ticket = first.submit_put([b"k"], [content(b"k")])
    assert ticket.result(10).tolist() == [1]
    assert ticket.reasons.tolist() == [Reason.EXISTED]
    assert ticket.nbytes == 0
    # a user that does not know writes into a slot of its own, and the directory keeps the first
    assert put(second, b"k") == [1]
    status = made.owner.status()
    assert status["blocks"] == 1
    assert status["counts"]["existed"] == 1
    assert get(second, b"k") == [1]


def test_blocks_in_pieces_and_by_address(rig: Make) -> None:
    store = rig().store()
    pool = np.random.default_rng(1).integers(0, 256, (8, 4096), dtype=np.uint8)
    landing = np.zeros_like(pool)

    def pieces(memory: np.ndarray, rows: list[int], size: int) -> Pieces:
        return Pieces.of_addresses(len(rows) // 2, [memory.ctypes.data + 4096 * row for row in rows], size)

    assert store.put([b"a", b"b"], pieces(pool, [0, 3, 5, 1], 2000)).tolist() == [1, 1]
    assert store.get([b"b", b"a"], pieces(landing, [0, 1, 2, 3], 2000)).tolist() == [1, 1]
    for at, row in enumerate([5, 1, 0, 3]):
        assert np.array_equal(landing[at, :2000], pool[row, :2000])
    assert not landing[:, 2000:].any()
    slots = Pieces.of_slots(pool.ctypes.data, 4096, np.array([7, 2], np.int32), 4096)
    assert store.put([b"7", b"2"], slots).tolist() == [1, 1]
    assert store.get([b"2"], [out := bytearray(4096)]).tolist() == [1]
    assert out == pool[2].tobytes()


def test_a_block_of_another_size_is_a_miss(rig: Make) -> None:
    store = rig().store()
    ticket = store.submit_put([b"big", b"none"], [bytes(BLOCK + 1), b""])
    assert ticket.result(10).tolist() == [0, 0]
    assert ticket.reasons.tolist() == [Reason.LENGTH] * 2
    put(store, b"k", size=100)
    assert get(store, b"k", size=99) == [0]
    assert get(store, b"k", size=100) == [1]
    assert store.stats()["misses"] == {"length": 1}


def test_a_full_store_evicts_what_was_longest_unused(rig: Make) -> None:
    made = rig(slots=4, term=0.4)
    store, fresh = made.store(), made.store()
    put(store, b"0", b"1", b"2", b"3")
    before = made.owner.status()["counts"].get("hits", 0)
    assert get(store, b"0") == [1]  # without a question: the owner learns of it with a beat
    assert made.owner.status()["counts"].get("hits", 0) == before
    until(lambda: made.owner.directory.order()[-1] == MODEL.hash(b"0"))
    assert put(store, b"4") == [1]
    assert fresh.exists([b"0", b"1", b"2", b"3", b"4"]).tolist() == [1, 0, 1, 1, 1]


def test_a_pinned_block_stays_and_a_store_of_pins_is_full(rig: Make) -> None:
    made = rig(slots=3)
    store = made.store()
    put(store, b"a", b"b", b"c")
    assert store.pin([b"a", b"b", b"c", b"d"]).tolist() == [1, 1, 1, 0]
    ticket = store.submit_put([b"x"], [content(b"x")])
    assert ticket.result(10).tolist() == [0]
    assert ticket.reasons.tolist() == [Reason.FULL]
    assert store.delete([b"a"]).tolist() == [0]
    assert store.unpin([b"b"]).tolist() == [1]
    assert put(store, b"x") == [1]
    assert get(made.store(), b"a", b"b", b"c", b"x") == [1, 0, 1, 1]


def test_pins_of_a_user_end_with_it(rig: Make) -> None:
    made = rig(slots=1)
    holder, other = made.store(), made.store()
    put(holder, b"a")
    assert holder.pin([b"a"]).all()
    assert put(other, b"b") == [0]
    holder.close()
    assert put(other, b"b") == [1]


def test_a_key_that_was_pinned_twice_is_unpinned_once_more(rig: Make) -> None:
    made = rig(slots=1)
    store = made.store()
    put(store, b"a")
    store.pin([b"a"])
    store.pin([b"a"])
    store.unpin([b"a"])
    assert put(store, b"b") == [0]
    store.unpin([b"a"])
    assert put(store, b"b") == [1]


def test_a_deleted_block_is_a_miss_for_all_at_once(rig: Make) -> None:
    made = rig()
    writer, reader = made.store(), made.store()
    put(writer, b"k")
    assert get(reader, b"k") == [1]
    assert writer.delete([b"k", b"j"]).tolist() == [1, 0]
    assert get(reader, b"k") == [0]  # although the reader believes that it is there
    assert get(writer, b"k") == [0]
    assert put(writer, b"k") == [1]
    assert get(reader, b"k") == [1]


def test_a_block_that_moved_is_found_by_another_look(rig: Make) -> None:
    made = rig()
    writer, reader = made.store(), made.store()
    put(writer, b"k")
    assert get(reader, b"k") == [1]
    writer.delete([b"k"])
    put(writer, b"k")
    assert get(reader, b"k") == [1]
    assert reader.stats()["questions"]["lookup"] == 2


def test_a_tenant_has_no_more_than_its_share(rig: Make) -> None:
    made = rig(slots=8, limits={"small": 2})
    small, large = made.store(tenant="small"), made.store(tenant="large")
    put(large, b"l1", b"l2", b"l3")
    for i in range(6):
        assert put(small, b"s%d" % i) == [1]
    tenants = made.owner.status()["tenants"]
    assert tenants["small"]["slots"] == 2
    assert get(made.store(), b"l1", b"l2", b"l3") == [1, 1, 1]


def test_tickets_tell_by_a_descriptor(rig: Make) -> None:
    store = rig().store()
    tickets = [store.submit_put([b"%d" % i], [content(b"%d" % i)]) for i in range(10)]
    seen: list[int] = []
    poll = select.poll()
    poll.register(store, select.POLLIN)
    while len(seen) < 10:
        assert poll.poll(10_000)
        seen += [ticket.id for ticket in store.completed()]
    assert sorted(seen) == [ticket.id for ticket in tickets]
    assert not poll.poll(0)
    out = [bytearray(BLOCK) for _ in range(10)]
    got = store.submit_get([b"%d" % i for i in range(10)], out)
    assert got.result(10).all()
    assert [bytes(each) for each in out] == [content(b"%d" % i).tobytes() for i in range(10)]
    assert store.submit_exists([b"1", b"x"]).result(10).tolist() == [1, 0]
    assert store.submit_delete([b"1", b"x"]).result(10).tolist() == [1, 0]
    assert store.drain(10)


def test_many_threads_share_a_store(rig: Make) -> None:
    made = rig(slots=64)
    store = made.store()
    wrong: list[BaseException] = []

    def work(me: int) -> None:
        try:
            for i in range(30):
                keys = [b"%d" % ((me * 7 + i * 3 + j) % 90) for j in range(4)]
                put(store, *keys[:2])
                get(store, *keys)
        except BaseException as error:
            wrong.append(error)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    assert store.stats()["hits"] > 0


def test_more_keys_than_one_question_takes(rig: Make) -> None:
    store = rig(slots=2_100, block_bytes=64).store()
    keys = [b"%d" % i for i in range(2_050)]
    data = np.arange(2_050 * 64, dtype=np.uint32).astype(np.uint8).reshape(2_050, 64)
    assert store.put(keys, list(data)).all()
    out = np.zeros_like(data)
    assert store.get(keys, list(out)).all()
    assert np.array_equal(out, data)
    assert store.exists([b"x%s" % key for key in keys]).sum() == 0


def test_a_deadline_makes_misses_and_nothing_is_lost(rig: Make) -> None:
    store = rig().store()
    put(store, b"k")
    assert get(store, b"k") == [1]
    ticket = store.submit_get([b"k"], [bytearray(BLOCK)], timeout=0.0)
    assert ticket.result(10).tolist() == [0]
    assert ticket.reasons.tolist() == [Reason.LATE]
    assert store.get([b"k"], [bytearray(BLOCK)], timeout=-1).tolist() == [0]
    assert get(store, b"k") == [1]


@pytest.mark.parametrize(
    ("keys", "memory", "problem"),
    [
        ([b"a"], [], "0 buffers for 1 keys"),
        ([b"a"], [b"readonly"], "not a writable"),
        ([1], [bytearray(8)], "keys\\[0\\] is int"),
        ([None], [bytearray(8)], "keys\\[0\\] is NoneType"),
        ([b"x" * 70_000], [bytearray(8)], "70000 bytes"),
        (["\ud800"], [bytearray(8)], "keys\\[0\\] is text without UTF-8"),
        ([b"a"], [np.zeros(3, object)], "Python objects|not a writable"),
        ([b"a"], [np.zeros((4, 4), np.uint8)[:, ::2]], "contiguous"),
    ],
)
def test_arguments_that_cannot_be_right_are_refused(rig: Make, keys: list, memory: list, problem: str) -> None:
    store = rig().store()
    with pytest.raises(ObmmArgumentError, match=problem):
        store.get(keys, memory)


def test_memory_that_overlaps_is_refused_before_anything_is_loaded(rig: Make) -> None:
    store = rig().store()
    put(store, b"a", b"b", size=100)
    memory = bytearray(b"\x77" * 150)
    view = memoryview(memory)
    with pytest.raises(ObmmArgumentError, match="overlap"):
        store.get([b"a", b"b"], [view[:100], view[50:]])
    assert memory == b"\x77" * 150


@pytest.mark.parametrize(
    ("addresses", "sizes"),
    [
        ([1.5], 8),
        (["x"], 8),
        ([-1], 8),
        ([4096], 0),
        ([4096, 8192], [1]),
        ([], 8),
        ([2**70], 8),
        ([0], 8),
        ([0, 4096], 8),
        ([2**64 - 8], 64),
        ([2**60], 8),
    ],
)
def test_addresses_that_are_none_are_refused(addresses: list, sizes: object) -> None:
    with pytest.raises(ObmmArgumentError):
        Pieces.of_addresses(1, addresses, sizes)


@pytest.mark.parametrize(
    ("base", "stride", "slots", "size"),
    [(2**62, 2**62, [3], 64), (4096, 64, [2**60], 64), (0, 64, [0], 64), ("x", 64, [0], 8), (4096, 64, [0], "x")],
)
def test_slots_that_are_beyond_all_memory_are_refused(base: object, stride: int, slots: list, size: object) -> None:
    with pytest.raises(ObmmArgumentError):
        Pieces.of_slots(base, stride, slots, size)


def test_memory_that_was_released_is_refused(rig: Make) -> None:
    store = rig().store()
    put(store, b"a")
    pieces = Pieces.of_buffers(1, [bytearray(BLOCK)], writable=True)
    assert store.get([b"a"], pieces).tolist() == store.get([b"a"], pieces).tolist() == [1]
    pieces.release()
    with pytest.raises(ObmmArgumentError, match="released"):
        store.get([b"a"], pieces)


def test_memory_that_went_away_costs_its_blocks_only(rig: Make) -> None:
    store = rig().store()
    put(store, b"a", b"b", size=4096)
    gone = mmap.mmap(-1, 8192)
    address = np.frombuffer(gone, np.uint8).ctypes.data
    kept = np.zeros(4096, np.uint8)
    where = Pieces.of_addresses(2, [address, kept.ctypes.data], 4096)
    # the addresses stay, the right to them goes
    libc = ctypes.CDLL(None, use_errno=True)
    assert libc.mprotect(ctypes.c_void_p(address), 8192, 0) == 0
    try:
        ticket = store.submit_get([b"a", b"b"], where)
        assert ticket.result(10).tolist() == [0, 1]
        assert ticket.reasons.tolist() == [Reason.BUFFER, Reason.OK]
    finally:
        libc.mprotect(ctypes.c_void_p(address), 8192, 3)
    assert np.array_equal(kept, content(b"b", 4096))


def test_a_closed_store_says_so_and_closing_twice_is_nothing(rig: Make) -> None:
    store = rig().store()
    put(store, b"a")
    store.close()
    store.close()
    for call in (
        lambda: store.exists([b"a"]),
        lambda: get(store, b"a"),
        store.stats,
        lambda: store.submit_exists([b"a"]),
    ):
        with pytest.raises(ClosedError):
            call()
    assert store.closed


def test_closing_ends_what_was_submitted(rig: Make) -> None:
    store = rig(slots=64, block_bytes=1 << 20).store()
    data = [np.zeros(1 << 20, np.uint8) for _ in range(32)]
    tickets = [store.submit_put([b"%d" % i], [data[i]]) for i in range(32)]
    store.close()
    assert all(ticket.done for ticket in tickets)


def test_no_copy_and_no_pickle_of_a_store(rig: Make) -> None:
    made = rig()
    store = made.store()
    for call in (copy.copy, copy.deepcopy, pickle.dumps):
        for thing in (store, made.owner):
            with pytest.raises(CopyError):
                call(thing)


def test_a_forked_child_is_refused_and_the_parent_goes_on(rig: Make) -> None:
    store = rig().store()
    put(store, b"a")
    pid = os.fork()
    if not pid:
        code = 1
        try:
            store.exists([b"a"])
        except ClosedError as error:
            code = 0 if "parent" in str(error) else 2
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert get(store, b"a") == [1]


def test_a_store_that_is_closed_while_it_attaches_again_keeps_nothing(
    rig: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = rig()
    peer = made.peer()
    store = BlockStore(peer, made.b, MODEL)
    keeper, real = store._keeper, keeper_code.attach
    assert keeper is not None

    def attach(*arguments: object) -> object:
        attachment = real(*arguments)
        closing = threading.Thread(target=keeper.close, args=(1.0,))
        closing.start()
        closing.join()  # it has found nothing yet
        return attachment

    resting = threading.Event()  # the store's own thread does not attach meanwhile

    def rest() -> float:
        resting.set()
        return 60.0

    monkeypatch.setattr(keeper, "beat", rest)
    keeper.on_change()
    assert resting.wait(30)
    keeper._detach()
    with monkeypatch.context() as patched:
        patched.setattr(keeper_code, "attach", attach)
        keeper._attach()
    assert keeper.attachment is None
    assert not peer.leases
    store.close()


def test_nothing_is_left_in_the_fabric_and_in_the_process(rig: Make) -> None:
    made = rig()
    peer = made.peer()
    BlockStore(peer, made.b, MODEL).close()  # what the process makes once, it has now
    gc.collect()  # what earlier tests left is not ours, whenever it goes
    before, threads = len(os.listdir("/proc/self/fd")), threading.active_count()
    for _ in range(3):
        store = BlockStore(peer, made.b, MODEL)
        put(store, b"x")
        assert len(os.listdir("/proc/self/fd")) > before, "a store in use has descriptors of its own"
        store.close()
    until(
        lambda: len(os.listdir("/proc/self/fd")) <= before
    )  # notes and journals are files that threads have open for a moment
    assert threading.active_count() <= threads, [each.name for each in threading.enumerate()]
    assert made.owner.status()["users"] == []
