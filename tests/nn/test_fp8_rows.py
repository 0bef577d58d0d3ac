# SPDX-License-Identifier: Apache-2.0
"""Packed FP8 rows against NumPy, value by value."""

from __future__ import annotations

import numpy as np
import pytest

from obmm.errors import ObmmArgumentError

torch = pytest.importorskip("torch", reason="pip install torch")
ml_dtypes = pytest.importorskip("ml_dtypes", reason="pip install 'obmm[files]'")

from obmm.nn.fp8_rows import dequantised  # noqa: E402 - needs torch


def test_every_value_under_every_scale_is_numpys():
    rows = np.empty((256, 264), np.uint8)
    rows[:, :256] = np.arange(256)
    rows[:, 256:] = np.minimum(np.arange(256)[:, None] + np.arange(8), 254)
    ours = dequantised(torch.from_numpy(rows)).view(torch.uint16).numpy()
    values = rows[:, :256].view(ml_dtypes.float8_e4m3fn).astype(np.float32)
    with np.errstate(over="ignore", invalid="ignore"):
        scales = np.exp2(rows[:, 256:].astype(np.float32) - 127).repeat(32, axis=1)
        theirs = (values * scales).astype(ml_dtypes.bfloat16)
    same = (ours == theirs.view(np.uint16)) | np.isnan(theirs.astype(np.float32))
    assert same.all()


def test_the_specifications_examples():
    row = np.zeros(264, np.uint8)
    row[:6] = [0x38, 0x40, 0x3C, 0x7E, 0xB8, 0x01]
    row[256:] = 120
    assert dequantised(torch.from_numpy(row))[:6].tolist() == [
        0.0078125,
        0.015625,
        0.01171875,
        3.5,
        -0.0078125,
        2.0**-16,
    ]


@pytest.mark.parametrize(
    "rows", [torch.zeros(3, 263, dtype=torch.uint8), torch.zeros(3, 264), torch.tensor(3, dtype=torch.uint8)]
)
def test_what_is_no_packed_row_is_refused(rows):
    with pytest.raises(ObmmArgumentError):
        dequantised(rows)
