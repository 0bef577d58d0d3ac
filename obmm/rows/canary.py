# SPDX-License-Identifier: Apache-2.0
"""Canary rows: a few rows per table whose bytes the manifest knows (Engram specification 5.4)."""

from __future__ import annotations

import errno
import random

import numpy as np
from numpy.typing import NDArray

from obmm._native import ffi, lib
from obmm.rows.errors import CanaryError
from obmm.rows.manifest import Canary
from obmm.rows.table import TableSpec

ROWS = 16


def crc32c(data: bytes | memoryview | NDArray[np.uint8]) -> int:
    """CRC-32C (Castagnoli) of local bytes."""
    held = ffi.from_buffer(data)
    return int(lib.obmm_crc32c(0, held, len(held)))


def choose(spec: TableSpec, seed: int) -> NDArray[np.int64]:
    """Which rows: the first, the last, and others at random."""
    if spec.n_rows <= ROWS:
        return np.arange(spec.n_rows, dtype=np.int64)
    inner = random.Random(seed).sample(range(1, spec.n_rows - 1), ROWS - 2)
    return np.array([0, *sorted(inner), spec.n_rows - 1], np.int64)


def sums(ids: NDArray[np.int64], rows: NDArray[np.uint8]) -> Canary:
    """(row number, CRC-32C) for gathered rows ``[n, row_bytes]``."""
    return tuple((int(row), crc32c(np.ascontiguousarray(data))) for row, data in zip(ids, rows, strict=True))


def compare(spec: TableSpec, expected: Canary, rows: NDArray[np.uint8]) -> None:
    """CanaryError when gathered canary rows are not what the manifest says."""
    for (row, crc), data in zip(expected, rows, strict=True):
        found = crc32c(data)
        if found != crc:
            raise CanaryError(
                errno.ESTALE,
                f"CANARY: row {row} of table {spec.table_id!r} has CRC-32C {found:#010x}, the manifest says {crc:#010x} "
                "[Engram specification 5.4]: another table or model, or memory that was overwritten; fix: fetch handle "
                "and manifest together, again",
                operation="GATHER",
                reason="canary",
            )
