# SPDX-License-Identifier: Apache-2.0
"""Rows by number straight from a mapping (docs/rows.md)."""

from __future__ import annotations

import numpy as np
import pytest

import obmm
from obmm import ObmmArgumentError

MIB = 1 << 20
ROW = 1364


@pytest.fixture(params=["cc", "nc"])
def table(a, b, request):
    """(mapping on the importer, the same rows locally)."""
    rows = np.arange(1000 * ROW, dtype=np.uint64).astype("u1").reshape(1000, ROW)
    rows[:, 0:4] = np.arange(1000, dtype="<u4").view("u1").reshape(1000, 4)
    with a.export_region(2 * MIB) as region:
        with region.map("rw", cache=request.param) as mapping:
            mapping.write(0, rows)
            mapping.publish()
        with b.import_region(region.handle(cache=request.param)) as imported, imported.map("r") as mapping:
            yield mapping, rows


@pytest.mark.parametrize("kind", [np.int32, np.int64])
@pytest.mark.parametrize("shape", [(0,), (1,), (64,), (12, 32), (3, 0)])
def test_every_byte_of_every_row(table, kind, shape):
    mapping, local = table
    ids = np.random.default_rng(1).integers(0, 1000, shape).astype(kind)
    picked = mapping.rows(ROW).gather(ids)
    assert picked.shape == (*shape, ROW)
    assert np.array_equal(picked, local[ids])


def test_stride_and_offset(table):
    mapping, local = table
    rows = mapping.rows(100, row_stride=ROW, n_rows=500, offset=10 * ROW + 8)
    assert len(rows) == 500
    assert np.array_equal(rows.gather([0, 499]), local[[10, 509], 8:108])


def test_into_a_buffer_of_the_callers(table):
    mapping, local = table
    out = np.zeros((2, ROW), "u1")
    assert mapping.rows(ROW).gather([5, 7], out) is out
    assert np.array_equal(out, local[[5, 7]])
    with pytest.raises(ObmmArgumentError, match="2 rows need 2728"):
        mapping.rows(ROW).gather([5, 7], bytearray(10))


@pytest.mark.parametrize("bad", [-1, 1 << 40, 10_000])
def test_a_bad_id_is_named_and_nothing_is_read(table, bad):
    mapping, _ = table
    out = np.full((3, ROW), 9, "u1")
    with pytest.raises(ObmmArgumentError, match=f"id {bad} at index 2"):
        mapping.rows(ROW).gather(np.array([1, 2, bad]), out)
    assert (out == 9).all()


@pytest.mark.parametrize(
    "arguments", [(0,), (ROW, ROW - 1), (ROW, ROW, 0), (ROW, ROW, 10**9), (ROW, ROW, 1, -8), (ROW, ROW, 1, 1 << 40)]
)
def test_rows_outside_the_mapping_are_refused(table, arguments):
    with pytest.raises(ObmmArgumentError):
        table[0].rows(*arguments)


def test_float_ids_are_refused(table):
    with pytest.raises(ObmmArgumentError, match="float64"):
        table[0].rows(ROW).gather([1.0, 2.0])


def test_a_gather_from_memory_that_is_gone(a, b):
    region = a.export_region(2 * MIB)
    with b.import_region(region.handle()) as imported, imported.map("r") as mapping:
        rows = mapping.rows(64)
        region.close()
        with pytest.raises(obmm.RemoteMemoryError) as caught:
            rows.gather([100, 3])
        assert caught.value.offset in (6400, 192)


def test_out_over_the_rows_or_the_ids_is_refused(a):
    """The rows are read while it is written: others would come."""
    with a.export_region(1 << 20) as region, region.map("rw") as mapping:
        mapping.write(0, np.arange(64 * 16, dtype="<u2"))
        rows = mapping.rows(64, n_rows=16)
        for start in (0, 64 * 15, 63):
            view = mapping.view(start, start + 128)
            with pytest.raises(obmm.ObmmArgumentError, match="overlaps the rows"):
                rows.gather([3, 1], out=view)
            del view
        beside = mapping.view(64 * 16, 64 * 18)
        rows.gather([3, 1], out=beside)
        assert bytes(beside[:64]) == mapping.read(64 * 3, 64)
        del beside
        ids = np.zeros(16, np.int64)
        with pytest.raises(obmm.ObmmArgumentError, match="overlaps"):
            rows.gather(ids[:2], out=ids.view("u1")[:128])
