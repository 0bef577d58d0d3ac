# SPDX-License-Identifier: Apache-2.0
"""Rows of bytes as the numbers that an engine computes with, by torch's own conversions and on any device."""

from __future__ import annotations

import functools
from typing import Any

import torch

from obmm._native import ffi, lib

BLOCK = 32
_DTYPES = {"f8_e4m3": torch.float8_e4m3fn, "bf16": torch.bfloat16, "f16": torch.float16, "f32": torch.float32}


def fp8_rows(rows: Any, dim: int) -> Any:
    """uint8 ``[n, dim + dim / 32]`` -> bfloat16 ``[n, dim]``: each value times the power of two of its block.

    The arithmetic of the engines: float32, rounded once.  Example: byte 0x40 (2.0) with scale byte 120 is 0.015625.
    """
    if rows.device.type == "cpu" and rows.is_contiguous():
        out = torch.empty(rows.shape[0], dim, dtype=torch.bfloat16)
        target, source = ffi.cast("uint16_t *", out.data_ptr()), ffi.cast("uint8_t *", rows.data_ptr())
        lib.obmm_fp8_rows(source, rows.shape[0], dim, _products()[1], target)
        return out
    return _product(rows[:, :dim].unflatten(-1, (-1, BLOCK)), rows[:, dim:].unsqueeze(-1)).flatten(-2)


def _product(values: Any, scales: Any) -> Any:
    """Bytes -> bfloat16: what the engines compute."""
    product = values.view(torch.float8_e4m3fn).float() * scales.view(torch.float8_e8m0fnu).float()
    return product.to(torch.bfloat16)


@functools.cache
def _products() -> tuple[Any, Any]:
    """What torch makes of every pair, ``[scale, value]``, and where it lies: the CPU looks it up."""
    every = torch.arange(256, dtype=torch.uint8)
    table = _product(every.expand(256, 256).contiguous(), every.unsqueeze(-1)).contiguous()
    return table, ffi.cast("uint16_t *", table.data_ptr())


def storage_dtype(name: str) -> Any:
    """The torch type of a table's values: ``f8_e4m3``, ``bf16``, ``f16``, ``f32``."""
    return _DTYPES[name]


def plain_rows(rows: Any, dtype: str) -> Any:
    """uint8 ``[n, bytes]`` -> ``[n, values]`` in the table's own type; no copy."""
    return rows.view(_DTYPES[dtype])
