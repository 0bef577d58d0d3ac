# SPDX-License-Identifier: Apache-2.0
"""`peer.open(name)`: an array in another node's memory, as one object to index."""

from __future__ import annotations

import copy
import threading
from contextlib import ExitStack

import numpy as np
import pytest

import obmm
from obmm import MappingBusyError, RemoteMemoryError, emulator
from obmm.errors import ClosedError, ObmmArgumentError
from obmm.exchange import ArrayManifest, RemoteTable
from obmm.exchange.dtypes import named

WORDS = np.arange(1000 * 24, dtype="<f4").reshape(1000, 4, 6)


@pytest.fixture(scope="module")
def nodes():
    with emulator.start(nodes=2) as fabric:
        yield fabric


class World:
    """Arrays that node a publishes, and a peer of node b."""

    def __init__(self, fabric, stack: ExitStack) -> None:
        self.stack = stack
        self.a = stack.enter_context(obmm.open(fabric.device("a")))
        self.b = stack.enter_context(obmm.open(fabric.device("b")))

    def publish(self, **arrays):
        published = {}
        for name, array in arrays.items():
            region = self.stack.enter_context(self.a.export_region(max(1, array.nbytes), label=name))
            with region.map("rw") as m:
                with m.writing():
                    m.write(0, np.ascontiguousarray(array).reshape(-1).view(np.uint8))
                m.publish()
            published[name] = (region, ArrayManifest(array.dtype, array.shape).to_json())
        server = self.stack.enter_context(obmm.serve(published, port=0, plain=True, term_s=60))
        return self.stack.enter_context(obmm.connect(f"127.0.0.1:{server.port}", plain=True))

    def open(self, array, name="words") -> RemoteTable:
        return self.stack.enter_context(self.publish(**{name: array}).open(name, self.b))


@pytest.fixture
def world(nodes):
    with ExitStack() as stack:
        yield World(nodes, stack)


def test_it_says_what_it_is(world):
    table = world.open(WORDS)
    assert (table.name, table.dtype, table.shape, len(table)) == ("words", WORDS.dtype, WORDS.shape, 1000)
    assert (table.ndim, table.nbytes) == (3, WORDS.nbytes)
    assert "'words' float32 [1000, 4, 6]" in repr(table)


@pytest.mark.parametrize(
    "key",
    [
        0,
        999,
        -1,
        np.int32(5),
        slice(10, 20),
        slice(None),
        slice(5, 2),
        slice(None, None, 7),
        slice(-3, None),
        slice(9, 3, -2),
        slice(None, None, 10**30),
        slice(0, 10**30),
    ],
    ids=str,
)
def test_one_row_and_slices_are_numpys(world, key):
    assert (world.open(WORDS)[key] == WORDS[key]).all()


@pytest.mark.parametrize("kind", [list, np.int32, np.int64, np.uint16, np.uint64])
def test_ids_of_any_shape_and_integer_type(world, kind):
    ids = np.array([[3, 1, 2], [999, 0, 3]])
    given_ids = ids.tolist() if kind is list else ids.astype(kind)
    assert (world.open(WORDS)[given_ids] == WORDS[ids]).all()
    assert world.open(WORDS, "more")[[]].shape == (0, 4, 6)


@pytest.mark.parametrize(
    "key", [(7, 3), (7, slice(3)), (slice(3), 1), ([7, 3], 0), (...,), (), (np.arange(3), None)], ids=str
)
def test_a_tuple_is_not_taken_for_rows(world, key):
    with pytest.raises(ObmmArgumentError, match=r"only rows are indexed .*fix: table\[7\]\[3\]") as caught:
        world.open(WORDS)[key]
    assert f"{len(key)} indices" in str(caught.value)


def test_going_through_it_gives_every_row_once(world, monkeypatch):
    monkeypatch.setattr("obmm.exchange.remote_table._ITERATED", 7 * WORDS[0].nbytes)  # 1000 is no multiple of 7
    assert (np.stack(list(world.open(WORDS))) == WORDS).all()


@pytest.mark.parametrize("shape", [(0, 3), (4, 0)], ids=str)
def test_a_row_of_an_empty_table_is_named(world, shape):
    table = world.open(np.zeros(shape, "<f4"), "empty")
    with pytest.raises(ObmmArgumentError, match="row 5 does not exist in 'empty'") as caught:
        table.gather([5])
    assert "0 to -1" not in str(caught.value)


@pytest.mark.parametrize("kind", [">f4", "U3", [("a", "<f4")]], ids=str)
def test_what_torch_has_not_is_one_sentence(world, kind):
    pytest.importorskip("torch", reason="pip install torch")
    with pytest.raises(ObmmArgumentError, match="torch has no"):
        world.open(np.zeros(3, kind), "odd").torch()


def test_gather_writes_into_the_callers_array(world):
    out = np.empty((2, 4, 6), "<f4")
    assert world.open(WORDS).gather([7, 8], out) is out
    assert (out == WORDS[7:9]).all()


@pytest.mark.parametrize(
    ("ids", "problem"),
    [
        ([1000], "1000"),
        ([-1], "-1"),
        ([1.5], "integers"),
        ([True, False], "integers"),
        ("text", "integers"),
        (np.array([1 << 63], np.uint64), "does not exist"),
        (1000, "row 1000 does not exist"),
        (-1001, "row -1001 does not exist"),
    ],
    ids=str,
)
def test_what_is_no_row_is_refused_by_name(world, ids, problem):
    with pytest.raises(ObmmArgumentError, match=problem):
        world.open(WORDS)[ids]


@pytest.mark.parametrize(
    "out",
    [np.empty((2, 4, 6), "<f8"), np.empty((3, 4, 6), "<f4"), bytearray(192), np.empty((2, 4, 12), "<f4")[:, :, ::2]],
)
def test_a_wrong_out_is_refused(world, out):
    with pytest.raises(ObmmArgumentError, match="out is"):
        world.open(WORDS).gather([1, 2], out)


def test_all_of_it_is_a_guarded_copy(world):
    table = world.open(WORDS)
    for whole in (table.numpy(), np.asarray(table), np.array(table), np.from_dlpack(table)):
        assert (whole == WORDS).all()
    assert np.asarray(table, "<f8").dtype == np.float64
    with pytest.raises(ValueError, match="only a copy"):
        table.__array__(copy=False)


def test_torch_gets_a_tensor(world):
    torch = pytest.importorskip("torch", reason="pip install torch")
    table = world.open(WORDS)
    assert torch.equal(table.torch(), torch.from_numpy(WORDS))
    assert torch.equal(torch.from_dlpack(table), torch.from_numpy(WORDS))
    assert (table[torch.tensor([[5], [6]])] == WORDS[[[5], [6]]]).all()


def test_bfloat16_stays_bfloat16(world):
    pytest.importorskip("ml_dtypes", reason="pip install 'obmm[files]'")
    array = np.arange(64).reshape(16, 4).astype(named("bfloat16"))
    table = world.open(array)
    assert table.dtype == array.dtype
    assert (table[[3, 1]].view("u2") == array[[3, 1]].view("u2")).all()
    with pytest.raises(BufferError, match="torch"):
        table.__dlpack__()


def test_a_view_is_read_only_and_keeps_the_table_open(world):
    table = world.open(WORDS)
    view = table.view()
    assert (view == WORDS).all()
    assert not view.flags.writeable
    with pytest.raises(MappingBusyError):
        table.close()
    assert not table.closed
    del view
    table.close()
    table.close()
    assert table.closed


@pytest.mark.parametrize("shape", [(0, 4), (5, 0), (), (3,)], ids=str)
def test_empty_and_odd_shapes(world, shape):
    array = np.zeros(shape, "<i8")
    table = world.open(array)
    assert table.numpy().shape == shape
    if shape:
        assert len(table) == shape[0]
        assert table[:].shape == shape


def test_a_closed_table_says_so(world):
    table = world.open(WORDS)
    table.close()
    for use in (lambda: table[0], table.numpy, table.view, table.refresh):
        with pytest.raises(ClosedError):
            use()


def test_closing_releases_the_lease(world):
    peer = world.publish(words=WORDS)
    with peer.open("words", world.b):
        assert len(peer.leases) == 1
    assert peer.leases == ()


def test_what_is_no_array_is_refused_and_nothing_stays(world):
    region = world.stack.enter_context(world.a.export_region(4096, label="raw"))
    server = world.stack.enter_context(obmm.serve({"raw": region}, port=0, plain=True, term_s=60))
    peer = world.stack.enter_context(obmm.connect(f"127.0.0.1:{server.port}", plain=True))
    with pytest.raises(ObmmArgumentError):
        peer.open("raw", world.b)
    assert peer.leases == ()
    assert world.b.regions == ()


def test_a_dead_owner_is_an_error_and_not_a_signal(nodes):
    with ExitStack() as stack:
        world = World(nodes, stack)
        table = world.open(WORDS)
        nodes.inject("a", "revoke", mem_id=world.a.regions[0].mem_id)
        for read in (lambda: table[0], lambda: table[[1, 2]], table.numpy, lambda: table[2:5]):
            with pytest.raises(RemoteMemoryError):
                read()


def test_many_threads_read_one_table(world):
    table = world.open(WORDS)
    wrong = []

    def reader(seed: int) -> None:
        random = np.random.default_rng(seed)
        for _ in range(200):
            ids = random.integers(0, 1000, random.integers(1, 300))
            if not (table[ids] == WORDS[ids]).all():
                wrong.append(seed)

    threads = [threading.Thread(target=reader, args=(seed,)) for seed in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_M4_it_is_not_copied(world):
    with pytest.raises(obmm.ObmmError, match="copied"):
        copy.copy(world.open(WORDS))


CYCLE: list[object] = []
CYCLE.append(CYCLE)


@pytest.mark.parametrize(
    "key", [[[1], [2, 3]], (1, 2), slice(None, "a"), slice(None, None, 0), CYCLE, [[2**70]]], ids=repr
)
def test_what_names_no_rows_is_refused(world, key):
    table = world.open(WORDS)
    with pytest.raises(ObmmArgumentError):
        table[key]
