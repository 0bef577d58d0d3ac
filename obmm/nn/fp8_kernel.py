# SPDX-License-Identifier: Apache-2.0
"""The Triton kernel of `obmm.nn.fp8_rows`: one program a row."""

from __future__ import annotations

import triton  # type: ignore[import-not-found,unused-ignore]
import triton.language as tl  # type: ignore[import-not-found,unused-ignore]


@triton.jit  # type: ignore[untyped-decorator,unused-ignore]
def kernel(values, scales, out, VALUES: tl.constexpr, SCALES: tl.constexpr):  # type: ignore[no-untyped-def]
    """E4M3 values and power-of-two scales of one row -> bfloat16."""
    row = tl.program_id(0).to(tl.int64)
    place = tl.arange(0, VALUES)
    start = row * (VALUES + SCALES)
    value = tl.load(values + start + place).to(tl.float32)
    scale = tl.load(scales + start + VALUES + place // (VALUES // SCALES)).to(tl.int32)
    # a scale is the exponent of its float; a device's exp2 makes nothing of the least one, which has no exponent of its own
    bits = tl.where(scale == 0, 0x00400000, scale << 23)
    tl.store(out + row * VALUES + place, (value * bits.to(tl.float32, bitcast=True)).to(tl.bfloat16))
