# SPDX-License-Identifier: Apache-2.0
"""Arguments of every wrong kind: refused by name, before any arithmetic, with nothing left behind."""

from __future__ import annotations

import numpy as np
import pytest

import obmm
from obmm import Handle, ObmmArgumentError
from obmm.mapping.mapping import read_header_page

MIB = 1 << 20


def named(value: object) -> str:
    """The same in every process: addresses are not."""
    return "object" if type(value) is object else repr(value)


WRONG_NUMBERS = [1.5, 8.0, float("nan"), float("inf"), "x", "", b"x", [1], {}, (1, 2), object(), True, np.float64(2)]


@pytest.fixture
def region(a):
    with a.export_region(2 * MIB) as region:
        yield region


@pytest.fixture
def rw(region):
    with region.map("rw") as mapping:
        yield mapping


def test_an_offset_that_wraps_around_in_numpy_never_reaches_the_header(region, rw):
    before = read_header_page(rw)
    for offset in (np.uint64(2**64 - 8), np.int64(2**63 - 8), np.int64(-8)):
        with pytest.raises(ObmmArgumentError, match="outside the mapped payload"):
            rw.store("<u8", offset, 1)
        with pytest.raises(ObmmArgumentError, match="outside the mapped payload"):
            rw.write(offset, b"8 bytes!")
        with pytest.raises(ObmmArgumentError, match="outside the mapped payload"):
            rw.read(offset, 8)
    assert read_header_page(rw) == before


def test_rows_that_wrap_around_in_numpy_are_outside(rw):
    with pytest.raises(ObmmArgumentError, match="inside the mapped payload"):
        rw.rows(8, 8, np.int64(2**62), np.int64(8))
    with pytest.raises(ObmmArgumentError):
        rw.rows(8, 1 << 64)


def test_shapes_that_wrap_around_in_numpy_are_outside(rw):
    with pytest.raises(ObmmArgumentError, match="outside the mapped payload"):
        rw.as_numpy("<u8", (np.int64(2**61), np.int64(8)))
    with pytest.raises(ObmmArgumentError, match="outside the mapped payload"):
        rw.as_numpy("<u8", (np.int64(2**31), 3), 0, (np.int64(2**33), 8))


def test_numpy_integers_are_whole_numbers(a, rw):
    a.export_region(np.int64(2 * MIB), numa=np.int32(0)).close()
    rw.store("<u8", np.uint8(248), np.int16(7))
    assert rw.load("<u8", np.int64(248)) == 7
    assert len(rw.rows(np.uint8(200), np.uint8(200))) == rw.nbytes // 200
    assert rw.as_numpy("<u8", np.int64(1), np.uint8(248))[0] == 7
    assert rw.view(np.uint8(248), np.int32(256)).tobytes() == (7).to_bytes(8, "little")


@pytest.mark.parametrize("wrong", WRONG_NUMBERS, ids=named)
def test_an_offset_is_a_whole_number(region, rw, wrong):
    for call in (
        lambda: rw.load("<u8", wrong),
        lambda: rw.store("<u8", wrong, 0),
        lambda: rw.read(wrong),
        lambda: rw.read(0, wrong),
        lambda: rw.read_into(bytearray(8), wrong),
        lambda: rw.write(wrong, b""),
        lambda: rw.rows(wrong),
        lambda: rw.rows(8, 8, 1, wrong),
        lambda: rw.acquire("r", wrong),
        lambda: rw.release(0, wrong),
        lambda: rw.round_out(wrong, 1),
        lambda: rw.view(wrong),
        lambda: rw.as_numpy("u1", 1, wrong),
        lambda: region.map("r", wrong),
        lambda: region.map("r", 0, wrong),
    ):
        with pytest.raises(ObmmArgumentError, match="whole number"):
            call()


@pytest.mark.parametrize("wrong", [*WRONG_NUMBERS, None], ids=named)
def test_numbers_of_a_device_are_whole_numbers(a, wrong):
    calls = [a.query_pa, a.query_id, lambda w: a.query_pa(1, w), a.attach, obmm.eid]
    if wrong is not None:
        calls += [
            lambda w: a.attach(1, w),
            lambda w: a.export_region("2MiB", controller=w),
            lambda w: a.export_region("2MiB", hardware_word=w),
            lambda w: a.export_region("2MiB", numa=w),
        ]
    for call in calls:
        with pytest.raises(ObmmArgumentError, match="whole number"):
            call(wrong)
    assert a.regions == ()


@pytest.mark.parametrize("number", [-1, 1 << 64, 1 << 70])
def test_queries_take_64_bits(a, number):
    for call in (a.query_pa, a.query_id, lambda n: a.query_pa(1, n)):
        with pytest.raises(ObmmArgumentError, match="out of range"):
            call(number)


@pytest.mark.parametrize("wrong", [None, 5, b"x", [], "\ud800"], ids=named)
def test_a_label_is_a_text(a, b, region, wrong):
    with pytest.raises(ObmmArgumentError, match="label"):
        a.export_region("2MiB", label=wrong)
    with pytest.raises(ObmmArgumentError, match="label"):
        b.import_region(region.handle(), label=wrong)


@pytest.mark.parametrize("name", ["priv", "vendor_info"])
@pytest.mark.parametrize("wrong", ["x", 5, [1], {}], ids=named)
def test_private_and_vendor_data_are_bytes(a, name, wrong):
    with pytest.raises(ObmmArgumentError, match=f"{name}=.*bytes"):
        a.export_region("2MiB", **{name: wrong})


@pytest.mark.parametrize("wrong", [None, 5, "x", b"x" * 80, [], object()], ids=named)
def test_what_is_imported_is_a_handle_or_a_lease(b, wrong):
    with pytest.raises(ObmmArgumentError, match="Handle"):
        b.import_region(wrong)


@pytest.mark.parametrize("wrong", ["x", 1.5, b"", {}, object()], ids=named)
def test_a_window_is_an_address_or_a_provider(b, region, wrong):
    with pytest.raises(ObmmArgumentError, match="window="):
        b.import_region(region.handle(), window=wrong)


@pytest.mark.parametrize("wrong", [None, 5, "x" * 80, [0] * 80], ids=lambda value: type(value).__name__)
def test_a_handle_is_read_from_bytes(wrong):
    with pytest.raises(ObmmArgumentError, match="80 bytes"):
        Handle.unpack(wrong)


@pytest.mark.parametrize("wrong", [5, b"emulator", [], 1.5], ids=named)
def test_a_device_is_named_by_a_text(wrong):
    with pytest.raises(ObmmArgumentError, match="device="):
        obmm.open(wrong)


@pytest.mark.parametrize("path", ["/nowhere/windows.toml", "\0", "x" * 5000], ids=["absent", "null", "long"])
def test_a_window_table_that_cannot_be_read_is_named(path):
    with pytest.raises(ObmmArgumentError, match=r"the window table .* cannot be read"):
        obmm.open(windows=path)


@pytest.mark.parametrize("wrong", [[], {}, 5, None, b"r"], ids=named)
def test_words_are_words(region, rw, wrong):
    for call in (
        lambda: rw.acquire(wrong),
        lambda: rw.release(keep=wrong),
        lambda: region.map(wrong),
        lambda: rw.load(wrong, 0),
        lambda: rw.store(wrong, 0, 0),
    ):
        with pytest.raises(ObmmArgumentError):
            call()


@pytest.mark.parametrize("dtype", [[], "V0", "9" * 5000, {0: 1}, "\ud800", 5, "O"], ids=lambda value: repr(value)[:9])
def test_a_dtype_that_no_array_can_have(rw, dtype):
    with pytest.raises(ObmmArgumentError, match="dtype"):
        rw.as_numpy(dtype)


@pytest.mark.parametrize("wrong", ["4", {0: 1}, (1.5,), (-1,), (None, 2), -4], ids=named)
def test_a_shape_is_made_of_sizes(rw, wrong):
    with pytest.raises(ObmmArgumentError, match="shape"):
        rw.as_numpy("u1", wrong)


@pytest.mark.parametrize("wrong", [b"read-only", 5, None, "text", np.zeros((4, 4))[:, ::2]], ids=lambda v: str(type(v)))
def test_a_target_is_a_writable_contiguous_buffer(rw, wrong):
    with pytest.raises(ObmmArgumentError, match="writable contiguous buffer"):
        rw.read_into(wrong)
    with pytest.raises(ObmmArgumentError, match="writable contiguous buffer"):
        rw.rows(8).gather([0], out=5 if wrong is None else wrong)


def test_more_bytes_than_there_are_is_refused_before_they_are_allocated(rw):
    with pytest.raises(ObmmArgumentError, match="outside the mapped payload"):
        rw.read(0, 1 << 62)
    with pytest.raises(ObmmArgumentError, match="outside the mapped payload"):
        rw.read(0, -1)
