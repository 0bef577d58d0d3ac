# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import numpy as np
import pytest

from obmm.errors import ObmmArgumentError
from obmm.prefetch import EngramHasher, engram_layers, engram_model, engram_tables
from obmm.rows import Manifest

LAYERS = engram_layers([1, 14], vocabulary=5, bases=[5_000, 5_000], heads=4)
TOKEN_MAP = np.array([0, 1, 1, 2, 3, 0, 4], np.int32)


def test_tables_start_at_2_mib_and_carry_their_heads() -> None:
    first, second = engram_tables(LAYERS, 264, neutral_zero=True, dtype="e4m3")
    assert (first.table_id, second.table_id) == (1, 14)
    assert (first.n_rows, second.n_rows) == tuple(layer.rows for layer in LAYERS)
    assert first.base_offset == 0
    assert second.base_offset % (2 << 20) == 0
    assert 0 <= second.base_offset - first.end < 2 << 20
    assert first.head_offsets == LAYERS[0].offsets
    assert second.row_stride == 264
    assert second.neutral_zero


def test_a_hasher_is_made_from_the_published_manifest() -> None:
    model = engram_model(LAYERS, TOKEN_MAP, pad_token=3, dead_tokens=[6], model="toy")
    manifest = Manifest.from_json(Manifest(engram_tables(LAYERS, 264), model=model).to_json())
    entry = manifest.to_dict()
    assert (entry["pad_id"], entry["dead_ids"], entry["model"]) == (2, [6], "toy")
    hasher = EngramHasher(entry, token_map=TOKEN_MAP)
    assert hasher.rows == tuple(table.n_rows for table in manifest.tables)
    # token 6 is dead, token 3 is the pad token: both look the same to the first position
    assert np.array_equal(hasher.hash([6], [0, 1]), hasher.hash([3], [0, 1]))


def test_a_pad_that_is_no_token_is_refused() -> None:
    with pytest.raises(ObmmArgumentError, match="pad token 7"):
        engram_model(LAYERS, TOKEN_MAP, pad_token=7)
