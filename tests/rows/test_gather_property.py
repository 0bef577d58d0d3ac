# SPDX-License-Identifier: Apache-2.0
"""Random gathers against NumPy, and every kernel that this CPU has."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from row_shelf import expected, publish

from obmm._native import ffi, lib
from obmm.rows import GatherEngine, LocalMemory, Manifest, RowStore, TableSpec

ROWS = 211


@pytest.fixture(scope="module")
def stores(engine: GatherEngine) -> dict[int, RowStore]:
    """A store for each row size, each with three heads, none larger than its memory."""
    found = {}
    for row_bytes in (8, 64, 100, 264, 1364):
        spec = TableSpec("t", ROWS, row_bytes, head_offsets=(0, 50, 120))
        owner = RowStore.attach(
            LocalMemory(bytearray(spec.end)), Manifest((spec,)), verify="none", plan=False, engine=engine
        )
        publish(owner)
        found[row_bytes] = owner
    return found


@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_any_gather_equals_the_oracle(stores: dict[int, RowStore], data: st.DataObject) -> None:
    row_bytes = data.draw(st.sampled_from(sorted(stores)))
    store = stores[row_bytes]
    tokens = data.draw(st.integers(0, 90))
    rng = np.random.default_rng(data.draw(st.integers(0, 1 << 30)))
    local, zero = data.draw(st.booleans()), data.draw(st.booleans())
    heads = np.array([0, 50, 120, ROWS])
    top = np.diff(heads) if local else np.full(3, ROWS)
    ids = (rng.random((tokens, 3)) * top).astype(np.int64)
    wanted = ids + heads[:3] if local else ids.copy()
    if zero and tokens:
        wild = rng.random(ids.shape) < 0.2
        ids[wild] = rng.choice([-1, -(1 << 31), ROWS, (1 << 31) - 1], wild.sum())
        wanted[wild] = -1
    if data.draw(st.booleans()):
        columns = data.draw(st.lists(st.integers(0, 2), unique=True))
        store = store.column_slice(columns)
        wanted[:, [c for c in range(3) if c not in columns]] = -1
    if data.draw(st.booleans()):
        low, high = sorted(data.draw(st.tuples(st.integers(0, ROWS), st.integers(0, ROWS))))
        store = store.id_range(low, high)
        wanted[(wanted < low) | (wanted >= high)] = -1
    options: dict[str, Any] = {
        "id_space": "local" if local else "flat",
        "invalid": "zero" if zero else "error",
    }
    out = np.full((tokens, 3, row_bytes), 0xAA, np.uint8)
    numbers = ids.astype(data.draw(st.sampled_from([np.int32, np.int64])))
    how = data.draw(st.sampled_from(["now", "threads", "deadline", "ticket", "prepared"]))
    if how == "ticket":
        rows = store.submit("t", numbers, out, **options).result()
    elif how == "prepared":
        rows = store.prepare("t", numbers, out, **options)()
    else:
        more = {"threads": {"threads": 4}, "deadline": {"deadline": 60.0}}.get(how, {})
        rows = store.gather_into("t", numbers, out, **options, **more)
    assert (out == expected(wanted, row_bytes)).all()
    assert rows == (wanted >= 0).sum()


@pytest.mark.parametrize("isa", ["generic", "avx2", "avx512", "neon"])
def test_every_instruction_set_of_this_cpu_gives_the_same_bytes(stores: dict[int, RowStore], isa: str) -> None:
    if lib.obmm_gather_use(isa.encode()):
        pytest.skip(f"this CPU has no {isa}")
    try:
        ids = np.arange(3 * ROWS) % ROWS
        for row_bytes, store in stores.items():
            assert (store.gather("t", ids) == expected(ids, row_bytes)).all()
        assert ffi.string(lib.obmm_gather_isa()).decode() == isa
    finally:
        lib.obmm_gather_use(ffi.NULL)
