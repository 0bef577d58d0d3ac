# SPDX-License-Identifier: Apache-2.0
"""Manifests and table layouts: what is packed comes back, and nothing else gets in."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from obmm import ObmmArgumentError
from obmm.rows import Manifest, TableSpec
from obmm.rows.canary import choose, crc32c


@st.composite
def tables(draw: st.DrawFn) -> TableSpec:
    rows, row_bytes = draw(st.integers(1, 1 << 40)), draw(st.integers(1, 1 << 20))
    stride = draw(st.integers(0, 3)) * 8 + -(-row_bytes // 8) * 8
    slots = draw(st.sampled_from([0, 1, 100]))
    heads = sorted({0, *draw(st.lists(st.integers(0, rows - 1), max_size=5))}) if draw(st.booleans()) else []
    return TableSpec(
        table_id=draw(st.integers(0, 99) | st.text(min_size=1, max_size=5)),
        n_rows=rows,
        row_bytes=row_bytes,
        row_stride=stride,
        base_offset=draw(st.integers(0, 1 << 40)) * 8,
        dtype=draw(st.sampled_from(["u1", "float8_e4m3"])),
        values=draw(st.integers(0, 4096)),
        head_offsets=tuple(heads),
        rows_per_segment=slots,
        segment_bytes=slots * stride,
        neutral_zero=draw(st.booleans()),
        layer_id=draw(st.none() | st.integers(0, 99)),
    )


@given(tables(), st.integers(0, (1 << 64) - 1), st.dictionaries(st.sampled_from(["model", "layers"]), st.integers()))
def test_a_manifest_comes_back_from_its_json(table: TableSpec, generation: int, model: dict[str, Any]) -> None:
    manifest = Manifest((table,), generation, {table.table_id: ((0, 5), (table.n_rows - 1, 6))}, model=model)
    again = Manifest.from_json(manifest.to_json())
    assert again == manifest
    assert again.sha256 == manifest.sha256
    assert Manifest.from_dict(json.loads(manifest.to_json())) == manifest


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(1 << 70), 1 << 70) | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)


@given(st.data())
def test_anything_else_is_refused_with_the_reason(data: st.DataObject) -> None:
    entry = Manifest((TableSpec("t", 100, 64),), 2, {"t": ((1, 2),)}).to_dict()
    place: Any = entry
    while True:
        key = data.draw(st.sampled_from(sorted(place) if isinstance(place, dict) else range(len(place))))
        if isinstance(place[key], dict | list) and place[key] and data.draw(st.booleans()):
            place = place[key]
            continue
        place[key] = data.draw(JSON)
        break
    try:
        manifest = Manifest.from_dict(entry)
    except ObmmArgumentError:
        return
    assert Manifest.from_json(manifest.to_json()) == manifest


@given(st.binary(max_size=40))
def test_no_bytes_do_more_than_be_refused(text: bytes) -> None:
    with pytest.raises(ObmmArgumentError, match="MANIFEST"):
        Manifest.from_json(text)


def test_deep_nesting_is_refused() -> None:
    with pytest.raises(ObmmArgumentError):
        Manifest.from_json(b"[" * 200_000)


@pytest.mark.parametrize(
    ("change", "what"),
    [
        ({"n_rows": 0}, "n_rows=0"),
        ({"row_bytes": 0}, "row_bytes=0"),
        ({"row_stride": 60}, "row_stride=60"),
        ({"row_stride": 68}, "row_stride=68"),
        ({"base_offset": -8}, "base_offset=-8"),
        ({"base_offset": 4}, "base_offset=4"),
        ({"rows_per_segment": 3, "segment_bytes": 191}, "segment_bytes=191"),
        ({"head_offsets": (1, 2)}, "head_offsets"),
        ({"head_offsets": (0, 5, 5)}, "head_offsets"),
        ({"head_offsets": (0, 100)}, "head_offsets"),
        ({"n_rows": 1 << 62, "row_stride": 1 << 20}, "ends at byte"),
    ],
)
def test_a_layout_that_cannot_be_is_refused(change: dict[str, Any], what: str) -> None:
    with pytest.raises(ObmmArgumentError) as caught:
        replace(TableSpec("t", 100, 64), **change)
    assert what in str(caught.value)


def test_two_tables_of_one_name_are_refused() -> None:
    with pytest.raises(ObmmArgumentError, match="each with its own id"):
        Manifest((TableSpec(1, 10, 64), TableSpec("1", 10, 64)))


def test_the_default_stride_is_a_multiple_of_eight() -> None:
    assert [TableSpec("t", 1, n).row_stride for n in (1, 8, 264, 1364)] == [8, 8, 264, 1368]


def test_canary_rows_include_both_ends() -> None:
    rows = choose(TableSpec("t", 1000, 64), seed=3)
    assert len(set(rows.tolist())) == 16
    assert {0, 999} <= set(rows.tolist())
    assert choose(TableSpec("t", 5, 64), seed=3).tolist() == [0, 1, 2, 3, 4]


def test_crc32c_is_castagnoli() -> None:
    assert crc32c(b"123456789") == 0xE3069283
    assert crc32c(bytes(32)) == 0x8A9136AA
    assert crc32c(b"") == 0
