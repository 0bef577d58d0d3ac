# SPDX-License-Identifier: Apache-2.0
"""What no memory can do is refused alike by all of them: a mapping, a strip, an SDK object's units, a store's tables.

Never by a bare Python error, never after something was touched.
"""

from __future__ import annotations

import ctypes
import errno
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import numpy as np
import pytest

from obmm import ClosedError, Device, MappingBusyError, ObmmArgumentError, ObmmError, OwnershipError
from obmm.blocks import Pieces
from obmm.mapping import Memory, Strip
from obmm.rows import GatherEngine, Manifest, RowStore, TableSpec
from obmm.sdk import ObjectMemory

MIB = 1 << 20
ROW = 64
OBJECTS = np.array([1, 2], object)


class Inner(ctypes.Structure):
    _fields_ = (("count", ctypes.c_long), ("thing", ctypes.py_object))


class Outer(ctypes.Structure):
    _fields_ = (("Offset", ctypes.c_long), ("inner", Inner * 2))


class Plain(ctypes.Structure):
    _fields_ = (("Offset", ctypes.c_long), ("O", ctypes.c_double * 3))


REFERENCES = {
    "py_object": ctypes.py_object * 2,
    "structure": Inner,
    "structure in a structure": Outer,
}
"""What ctypes has of them; a view may say that it is of bytes."""

Make = Callable[[ExitStack, Device, str, str], Memory]


def a_mapping(stack: ExitStack, a: Device, access: str, cache: str) -> Memory:
    region = stack.enter_context(a.export_region(4 * MIB, header=False))
    return stack.enter_context(region.map(access, cache=cache))


def a_strip(stack: ExitStack, a: Device, access: str, cache: str) -> Memory:
    regions = [stack.enter_context(a.export_region(2 * MIB, header=False)) for _ in range(2)]
    return stack.enter_context(Strip.side_by_side(regions, access, cache))


def an_object(stack: ExitStack, a: Device, access: str, cache: str) -> Memory:
    regions = [stack.enter_context(a.export_region(2 * MIB, header=False)) for _ in range(2)]
    units = [a.attach(region.mem_id, region.length) for region in regions]
    return stack.enter_context(ObjectMemory(units, access, cache, lambda memory: None, None))


KINDS = {"mapping": a_mapping, "strip": a_strip, "sdk object": an_object}


@pytest.fixture(params=KINDS.values(), ids=KINDS.keys())
def make(request, a: Device) -> Iterator[Callable[..., Memory]]:
    """4 MiB of raw memory, of each kind."""
    with ExitStack() as stack:
        yield lambda access="rw", cache="cc": request.param(stack, a, access, cache)


END = 4 * MIB

# name -> (what is done, the errno, words of the answer)
ARGUMENTS: dict[str, tuple[Callable[[Memory], object], int, str]] = {
    "load before the start": (lambda m: m.load("<u8", -8), errno.EINVAL, "outside the mapped payload"),
    "load behind the end": (lambda m: m.load("<u8", END), errno.EINVAL, "outside the mapped payload"),
    "load across the end": (lambda m: m.load("<u8", END - 4), errno.EINVAL, "outside the mapped payload"),
    "load not aligned": (lambda m: m.load("<u8", 4), errno.EINVAL, "not naturally aligned"),
    "load of no scalar": (lambda m: m.load("complex128", 0), errno.EINVAL, "not a scalar"),
    "load of an unhashable type": (lambda m: m.load([], 0), errno.EINVAL, "not a scalar"),
    "load at a text": (lambda m: m.load("<u8", "0"), errno.EINVAL, "offset='0'"),
    "store not aligned": (lambda m: m.store("<u4", 2, 1), errno.EINVAL, "not naturally aligned"),
    "store of what does not fit": (lambda m: m.store("u1", 0, 256), errno.EINVAL, "value=256"),
    "store of a text": (lambda m: m.store("u1", 0, "x"), errno.EINVAL, "value='x'"),
    "read behind the end": (lambda m: m.read(END - 1, 2), errno.EINVAL, "outside the mapped payload"),
    "read of a negative size": (lambda m: m.read(0, -1), errno.EINVAL, "outside the mapped payload"),
    "read of more than there is": (lambda m: m.read(0, 1 << 60), errno.EINVAL, "outside the mapped payload"),
    "read of half a byte": (lambda m: m.read(0, 0.5), errno.EINVAL, "size=0.5"),
    "read at None": (lambda m: m.read(None), errno.EINVAL, "offset=None"),
    "read into what cannot be written": (lambda m: m.read_into(b"12345678", 0), errno.EINVAL, "writable contiguous"),
    "read into no buffer": (lambda m: m.read_into(8, 0), errno.EINVAL, "out=8"),
    "read into objects": (lambda m: m.read_into(OBJECTS.copy(), 0), errno.EINVAL, "Python objects"),
    "write behind the end": (lambda m: m.write(END - 1, b"12"), errno.EINVAL, "outside the mapped payload"),
    "write of no buffer": (lambda m: m.write(0, 8), errno.EINVAL, "data=8"),
    "write of a text": (lambda m: m.write(0, "text"), errno.EINVAL, "data='text'"),
    "write of objects": (lambda m: m.write(0, OBJECTS), errno.EINVAL, "Python objects"),
    "write of what has gaps": (lambda m: m.write(0, np.zeros((4, 4))[:, ::2]), errno.EINVAL, "contiguous"),
    "rows outside": (lambda m: m.rows(ROW, ROW, END // ROW + 1), errno.EINVAL, "inside the mapped payload"),
    "rows of no bytes": (lambda m: m.rows(0), errno.EINVAL, "at least one row"),
    "rows that overlap": (lambda m: m.rows(ROW, ROW - 1), errno.EINVAL, "at least one row"),
    "rows of half a byte": (lambda m: m.rows(1.5), errno.EINVAL, "row_bytes=1.5"),
    "gather of no row": (lambda m: m.rows(ROW).gather([END]), errno.ERANGE, "row numbers of"),
    "gather of halves": (lambda m: m.rows(ROW).gather([0.5]), errno.EINVAL, "int32 or int64"),
    "gather of no array": (lambda m: m.rows(ROW).gather([[1], [2, 3]]), errno.EINVAL, "int32 or int64"),
    "gather into too little": (lambda m: m.rows(ROW).gather([0], bytearray(1)), errno.EINVAL, "64"),
    "gather into what cannot be written": (lambda m: m.rows(ROW).gather([0], bytes(ROW)), errno.EINVAL, "writable"),
    "gather into objects": (
        lambda m: m.rows(8).gather([0, 1], OBJECTS.copy()),
        errno.EINVAL,
        "Python objects",
    ),
    "view outside": (lambda m: m.view(0, END + 1), errno.EINVAL, "outside the mapped payload"),
    "view backwards": (lambda m: m.view(8, 0), errno.EINVAL, "outside the mapped payload"),
    "view from a text": (lambda m: m.view("0"), errno.EINVAL, "start='0'"),
    "array outside": (lambda m: m.as_numpy("<u8", END), errno.EINVAL, "outside the mapped payload"),
    "array of objects": (lambda m: m.as_numpy(object), errno.EINVAL, "Python objects"),
    "array of no type": (lambda m: m.as_numpy("no type"), errno.EINVAL, "dtype='no type'"),
    "array of a negative shape": (lambda m: m.as_numpy("u1", (-1,)), errno.EINVAL, "shape"),
    "array of a shape in words": (lambda m: m.as_numpy("u1", "all"), errno.EINVAL, "shape='all'"),
    "array of too few strides": (lambda m: m.as_numpy("u1", (2, 2), 0, (2,)), errno.EINVAL, "do not fit"),
    "acquire of no right": (lambda m: m.acquire("rw"), errno.EINVAL, "right='rw'"),
    "acquire of an unhashable right": (lambda m: m.acquire([]), errno.EINVAL, "right="),
    "acquire outside": (lambda m: m.acquire("r", 0, END + 4096), errno.EFAULT, "not inside the mapping"),
    "acquire of nothing": (lambda m: m.acquire("r", 4096, 4096), errno.EFAULT, "empty"),
    "acquire not on borders": (lambda m: m.acquire("r", 0, 5000), errno.EINVAL, "round_out gives"),
    "acquire from a text": (lambda m: m.acquire("r", "0"), errno.EINVAL, "start='0'"),
    "release to more": (lambda m: m.release(keep="rw"), errno.EINVAL, "keep='rw'"),
    "rounding halves": (lambda m: m.round_out(0.5, 1), errno.EINVAL, "start=0.5"),
}


@pytest.mark.parametrize("what", ARGUMENTS)
def test_an_argument_that_cannot_be_right_is_refused_by_name(make, what):
    misuse, code, words = ARGUMENTS[what]
    memory = make()
    memory.write(0, bytes(range(256)))
    with pytest.raises(ObmmArgumentError, match=words) as caught:
        misuse(memory)
    assert caught.value.errno == code
    assert memory.read(0, 256) == bytes(range(256))
    assert memory.right.letter == "W"
    assert memory.views == ()


USES: dict[str, Callable[[Memory], object]] = {
    "load": lambda m: m.load("<u8", 0),
    "store": lambda m: m.store("<u8", 0, 1),
    "read": lambda m: m.read(0, 8),
    "snapshot": lambda m: m.snapshot(0, 8),
    "read_into": lambda m: m.read_into(bytearray(8), 0),
    "write": lambda m: m.write(0, b"8 bytes!"),
    "rows": lambda m: m.rows(ROW),
    "view": lambda m: m.view(0, 8),
    "buffer": lambda m: m.__buffer__(0),
    "as_numpy": lambda m: m.as_numpy("<u8", 1),
    "dlpack": lambda m: m.__dlpack__(),
    "acquire": lambda m: m.acquire("r"),
    "release": lambda m: m.release(),
    "reading": lambda m: m.reading().__enter__(),
    "writing": lambda m: m.writing().__enter__(),
    "publish": lambda m: m.publish(),
    "refresh": lambda m: m.refresh(),
    "address": lambda m: m.address,
}


@pytest.mark.parametrize("use", USES)
def test_what_is_closed_says_so(make, use):
    memory = make()
    memory.close()
    memory.close()
    with pytest.raises(ClosedError, match="is closed"):
        USES[use](memory)


def test_rows_of_memory_that_was_closed_say_so(make):
    memory = make()
    rows = memory.rows(ROW)
    memory.close()
    with pytest.raises(ClosedError, match="is closed"):
        rows.gather([0])


@pytest.mark.parametrize("use", ["load", "read", "snapshot", "read_into", "view", "as_numpy", "dlpack"])
def test_without_the_right_to_load_nothing_is_read(make, use):
    with pytest.raises(OwnershipError, match="cannot be loaded: it would be a SIGSEGV"):
        USES[use](make("none"))


@pytest.mark.parametrize("use", ["store", "write"])
def test_without_the_right_to_store_nothing_is_written(make, use):
    with pytest.raises(OwnershipError, match=r"cannot be stored to: .* map the region with access 'rw'"):
        USES[use](make("r"))


@pytest.mark.parametrize(
    "use", [lambda m: m.acquire("w"), lambda m: m.writing().__enter__()], ids=["acquire", "writing"]
)
def test_what_was_mapped_to_be_read_is_not_written(make, use):
    memory = make("r")
    with pytest.raises(ObmmArgumentError, match="was mapped with access 'r'") as caught:
        use(memory)
    assert caught.value.errno == errno.EPERM
    assert memory.right.letter == "R"


def test_a_writable_view_needs_the_right(make):
    with pytest.raises(OwnershipError, match="cannot be stored to"):
        make("r").as_numpy("u1", 8, writable=True)


@pytest.mark.parametrize("use", ["acquire", "release"])
def test_there_is_no_ownership_without_caches(make, use):
    with pytest.raises(ObmmArgumentError, match="has no ownership"):
        USES[use](make("rw", "nc"))


@pytest.mark.parametrize(
    "use", [Memory.close, Memory.publish, Memory.refresh, Memory.release], ids=lambda f: f.__name__
)
def test_nothing_is_taken_from_under_a_view(make, use):
    memory = make()
    view = memory.view(END // 2 - 8, END // 2 + 8)  # across the seam, where there is one
    use = getattr(memory, use.__name__)
    with pytest.raises(MappingBusyError, match="views live: memoryview"):
        use()
    assert memory.right.letter == "W"
    view[0] = 1
    del view
    memory.release()


def test_what_was_written_and_not_published_is_not_dropped(make):
    with pytest.raises(OwnershipError, match="unpublished writes"):
        make().refresh()


def test_the_right_to_a_seam_is_given_to_both_sides_or_to_none(make):
    memory = make("rw")
    view = memory.view(END // 2, END // 2 + 8)
    with pytest.raises(MappingBusyError):
        memory.release(END // 2 - 4096, END // 2 + 4096)
    assert memory.right.letter == "W"
    del view


# --- tables: what they share with memory is answered alike -----------------------------------------------------------


@pytest.fixture(scope="module")
def engine() -> Iterator[GatherEngine]:
    with GatherEngine(1) as engine:
        yield engine


@pytest.fixture(params=KINDS.values(), ids=KINDS.keys())
def store(request, a: Device, engine: GatherEngine) -> Iterator[RowStore]:
    with ExitStack() as stack:
        memory = request.param(stack, a, "rw", "cc")
        manifest = Manifest((TableSpec("t", n_rows=END // ROW, row_bytes=ROW),))
        yield stack.enter_context(RowStore.attach(memory, manifest, verify="none", plan=False, engine=engine))


IDS, OUT = np.zeros(1, np.int64), np.zeros(ROW, np.uint8)
TABLES: dict[str, Callable[[RowStore], object]] = {
    "no such table": lambda s: s.gather("u", [0]),
    "no such row": lambda s: s.gather("t", [END]),
    "halves": lambda s: s.gather("t", [0.5]),
    "no array": lambda s: s.gather("t", [[1], [2, 3]]),
    "ids of bytes": lambda s: s.gather_into("t", np.zeros(1, np.uint8), OUT),
    "into too little": lambda s: s.gather_into("t", IDS, bytearray(1)),
    "into what cannot be written": lambda s: s.gather_into("t", IDS, bytes(ROW)),
    "into objects": lambda s: s.gather_into("t", IDS, np.zeros(ROW // 8, object)),
    "into no buffer": lambda s: s.gather_into("t", IDS, 8),
    "rows outside": lambda s: s.populate("t", np.zeros((2, ROW), np.uint8), END // ROW - 1),
    "rows of another size": lambda s: s.populate("t", np.zeros((2, ROW - 1), np.uint8)),
    "rows of objects": lambda s: s.populate("t", np.zeros((1, ROW // 8), object)),
    "rows at half": lambda s: s.populate("t", np.zeros((1, ROW), np.uint8), 0.5),
    "columns of none": lambda s: s.column_slice([0]),
    "ranges backwards": lambda s: s.id_range(2, 1),
    "threads in words": lambda s: s.gather_into("t", IDS, OUT, threads="all"),
    "a deadline in words": lambda s: s.gather_into("t", IDS, OUT, deadline="soon"),
    "an unknown way": lambda s: s.gather_into("t", IDS, OUT, invalid="ignore"),
}


@pytest.mark.parametrize("what", TABLES)
def test_a_table_refuses_alike_over_every_memory(store, what):
    with pytest.raises(ObmmArgumentError):
        TABLES[what](store)
    assert store.gather("t", [0]).tobytes() == bytes(ROW)


def test_a_store_over_memory_that_was_closed_says_so(a: Device, engine: GatherEngine):
    for kind in KINDS.values():
        with ExitStack() as stack:
            memory = kind(stack, a, "rw", "cc")
            manifest = Manifest((TableSpec("t", n_rows=END // ROW, row_bytes=ROW),))
            store = RowStore.attach(memory, manifest, verify="none", plan=False, engine=engine)
            memory.close()
            with pytest.raises(ClosedError):
                store.gather("t", [0])
            with pytest.raises(ObmmError):
                store.populate("t", np.zeros((1, ROW), np.uint8))


# --- strips ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("given", [[], "regions", [1, 2], None])
def test_a_strip_is_made_of_regions(given):
    with pytest.raises(ObmmArgumentError, match="at least one region"):
        Strip.side_by_side(given)


def test_a_strip_is_made_of_mappings_that_lie_side_by_side(a):
    with a.export_region(2 * MIB, header=False) as one, a.export_region(2 * MIB, header=False) as two:
        with one.map("rw") as first, two.map("rw") as second:
            with pytest.raises(ObmmArgumentError, match="does not follow"):
                Strip([second, first] if first.address < second.address else [first, second], owned=False)
            with pytest.raises(ObmmArgumentError, match="at least one mapping"):
                Strip([], owned=False)


def test_a_strip_does_what_a_mapping_does_across_its_seam(a):
    with ExitStack() as stack:
        memory = a_strip(stack, a, "rw", "cc")
        seam = memory.nbytes // 2
        data = np.random.default_rng(1).integers(0, 256, 3 * ROW, np.uint8)
        assert memory.write(seam - ROW, data) == 3 * ROW
        out = bytearray(3 * ROW)
        assert memory.read_into(out, seam - ROW) == 3 * ROW
        assert bytes(out) == memory.read(seam - ROW, 3 * ROW) == data.tobytes()
        assert (
            memory.rows(ROW).gather([seam // ROW, seam // ROW - 1]).tobytes()
            == data[ROW : 2 * ROW].tobytes() + data[:ROW].tobytes()
        )
        assert (memory.as_numpy("u1", (3 * ROW,), seam - ROW) == data).all()
        assert memory.view(seam - 1, seam + 1).tobytes() == data[ROW - 1 : ROW + 1].tobytes()
        memory.publish()
        assert memory.right.letter == "R"
        memory.refresh()
        with memory.writing(seam - 4096, seam + 4096):
            memory.store("<u8", seam, 7)
        assert memory.load("<u8", seam) == 7
        assert memory.right.letter == "R"
        assert memory.round_out(seam - 1, seam + 1) == (seam - 4096, seam + 4096)


def test_the_header_of_the_first_region_is_published_for_all_of_a_strip(a):
    with a.export_region(4 * MIB - 4096) as first, a.export_region(2 * MIB, header=False) as second:
        with Strip.side_by_side([first, second], "rw") as memory:
            memory.write(first.nbytes - 2, b"seam")
            memory.publish()
            assert memory.right.letter == "R"
        with first.map("r") as mapping:
            assert mapping.read(first.nbytes - 2, 2) == b"se"


@pytest.mark.parametrize("kind", REFERENCES)
@pytest.mark.parametrize("cast", [False, True])
def test_memory_of_python_references_is_neither_shown_nor_overwritten(make, kind, cast):
    mapping = make()
    thing = REFERENCES[kind]()
    buffer = memoryview(thing).cast("B") if cast else thing
    before = bytes(thing)
    for call in (
        lambda: mapping.write(0, buffer),
        lambda: mapping.read_into(buffer, 0),
        lambda: mapping.rows(8).gather(np.zeros(len(before) // 8, np.int64), buffer),
        lambda: Pieces.of_buffers(1, [buffer], writable=True),
    ):
        with pytest.raises(ObmmArgumentError, match="Python objects"):
            call()
    assert bytes(thing) == before


def test_structures_of_numbers_are_memory_like_any(make):
    mapping = make()
    there, back = Plain(7, (1.0, 2.0, 3.0)), Plain()
    mapping.write(0, there)
    mapping.read_into(back, 0)
    assert bytes(back) == bytes(there)
