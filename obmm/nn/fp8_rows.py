# SPDX-License-Identifier: Apache-2.0
"""Rows of packed FP8 with block scales, taken apart on the device (Engram specification 4.7): 256 values, then 8 scales.

`dequantised` is the readable way in torch; `dequantise` does the same in one kernel of Triton, for a device.
"""

from __future__ import annotations

import errno
from typing import Any

import torch

from obmm.errors import ObmmArgumentError

VALUES, SCALES = 256, 8
ROW_BYTES = VALUES + SCALES
_BLOCK = VALUES // SCALES
_BIAS = 127


def dequantised(rows: torch.Tensor) -> torch.Tensor:
    """`rows` uint8 ``[..., 264]`` -> bfloat16 ``[..., 256]``: E4M3 values, each block of 32 times 2 to the power of (scale - 127).

    ObmmArgumentError for other rows.

    >>> import torch
    >>> obmm.nn.dequantised(torch.zeros(2, 264, dtype=torch.uint8)).shape
    torch.Size([2, 256])
    """
    _check(rows)
    values = rows[..., :VALUES].view(torch.float8_e4m3fn).to(torch.float32)
    scales = torch.exp2(rows[..., VALUES:].to(torch.float32) - _BIAS)
    return (values.unflatten(-1, (SCALES, _BLOCK)) * scales.unsqueeze(-1)).flatten(-2).to(torch.bfloat16)


def dequantise(rows: torch.Tensor, out: torch.Tensor | None = None) -> torch.Tensor:
    """The same in one Triton kernel on the device that `rows` is on -> `out`.  Needs triton; may be captured in a graph.

    `rows` uint8 ``[..., 264]``, `out` bfloat16 ``[..., 256]``; ObmmArgumentError for others, and for rows on the CPU.

    >>> import torch
    >>> obmm.nn.dequantise(torch.zeros(2, 264, dtype=torch.uint8))
    Traceback (most recent call last):
    obmm.errors.ObmmArgumentError: ...
    """
    _check(rows)
    if out is None:
        out = torch.empty((*rows.shape[:-1], VALUES), dtype=torch.bfloat16, device=rows.device)
    if out.shape != (*rows.shape[:-1], VALUES) or out.dtype != torch.bfloat16 or not out.is_contiguous():
        raise _refused(f"out of {out.dtype} {list(out.shape)}", f"contiguous bfloat16 {[*rows.shape[:-1], VALUES]}")
    if not rows.is_contiguous() or rows.device.type == "cpu":
        raise _refused(
            f"rows on {rows.device}, contiguous: {rows.is_contiguous()}", "contiguous rows on a device; dequantised()"
        )
    count = rows.numel() // ROW_BYTES
    if count:
        from obmm.nn.fp8_kernel import kernel

        kernel[(count,)](rows.view(torch.float8_e4m3fn), rows, out, VALUES=VALUES, SCALES=SCALES)
    return out


def _check(rows: Any) -> None:
    if rows.dtype != torch.uint8 or rows.dim() == 0 or rows.shape[-1] != ROW_BYTES:
        raise _refused(f"rows of {rows.dtype} {list(rows.shape)}", f"uint8 [..., {ROW_BYTES}]")


def _refused(problem: str, fix: str) -> ObmmArgumentError:
    return ObmmArgumentError.because("EMBEDDING", errno.EINVAL, problem, fix, "docs/device.md")
