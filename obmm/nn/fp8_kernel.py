# SPDX-License-Identifier: Apache-2.0
"""The Triton kernel of `obmm.nn.fp8_rows`: one program a row."""

from __future__ import annotations

import triton  # type: ignore[import-not-found,unused-ignore]
import triton.language as tl  # type: ignore[import-not-found,unused-ignore]


@triton.jit  # type: ignore[untyped-decorator,unused-ignore]
def kernel(values, scales, out, VALUES: tl.constexpr, SCALES: tl.constexpr, BIAS: tl.constexpr):  # type: ignore[no-untyped-def]
    """E4M3 values and power-of-two scales of one row -> bfloat16."""
    row = tl.program_id(0).to(tl.int64)
    place = tl.arange(0, VALUES)
    start = row * (VALUES + SCALES)
    value = tl.load(values + start + place).to(tl.float32)
    scale = tl.load(scales + start + VALUES + place // (VALUES // SCALES)).to(tl.float32)
    tl.store(out + row * VALUES + place, (value * tl.exp2(scale - BIAS)).to(tl.bfloat16))
