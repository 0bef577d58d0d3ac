# SPDX-License-Identifier: Apache-2.0
"""Rows of bytes as numbers: the engine's bits for every pair of a value and a scale."""

from __future__ import annotations

import torch

from obmm.integrations.decode import fp8_rows


def every_pair() -> torch.Tensor:
    """Uint8 ``[256, 256 + 8]``: each row has all values, under one scale."""
    byte = torch.arange(256, dtype=torch.uint8)
    return torch.cat([byte.expand(256, 256), byte[:, None].expand(256, 8)], dim=1).contiguous()


def test_every_value_under_every_scale_has_the_engines_bits() -> None:
    rows = every_pair()
    values = rows[:, :256].view(torch.float8_e4m3fn).float().unflatten(-1, (-1, 32))
    scales = rows[:, 256:].view(torch.float8_e8m0fnu).float().unsqueeze(-1)
    engines = (values * scales).flatten(-2).to(torch.bfloat16)
    ours = fp8_rows(rows, 256)
    same = (ours.view(torch.int16) == engines.view(torch.int16)) | (ours.isnan() & engines.isnan())
    assert bool(same.all())


def test_rows_with_a_stride_are_the_same() -> None:
    rows = every_pair()
    apart = torch.zeros(256, 272, dtype=torch.uint8)
    apart[:, :264] = rows
    ours, strided = fp8_rows(rows, 256), fp8_rows(apart[:, :264], 256)
    same = (ours.view(torch.int16) == strided.view(torch.int16)) | (ours.isnan() & strided.isnan())
    assert bool(same.all())


def test_no_rows_are_no_numbers() -> None:
    assert fp8_rows(torch.empty(0, 264, dtype=torch.uint8), 256).shape == (0, 256)
