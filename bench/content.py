# SPDX-License-Identifier: Apache-2.0
"""What every benchmark memory holds, and the comparison with it: 64-bit word i is ``i * FACTOR``."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
from numpy.typing import NDArray

from obmm.bench.compiled import ffi, library

FACTOR = np.uint64(0x9E3779B97F4A7C15)
CHUNK = 4 << 20


class VerificationError(AssertionError):
    """Bytes that were read are not those that must be there: no figure of this run is worth anything."""


def words(offset: int, nbytes: int) -> NDArray[np.uint64]:
    """The content of bytes [offset, offset + nbytes); both multiples of 8."""
    return np.arange(offset // 8, (offset + nbytes) // 8, dtype=np.uint64) * FACTOR


def fill(nbytes: int, write: Callable[[int, NDArray[np.uint64]], object], progress: Callable[[float], None]) -> None:
    """Hand the whole content to ``write(offset, words)``, piece by piece."""
    for offset in range(0, nbytes, CHUNK):
        write(offset, words(offset, min(CHUNK, nbytes - offset)))
        progress(min(1.0, (offset + CHUNK) / nbytes))


def pieces(nbytes: int) -> Iterator[tuple[int, NDArray[np.uint64]]]:
    """(offset, words) of the whole content."""
    for offset in range(0, nbytes, CHUNK):
        yield offset, words(offset, min(CHUNK, nbytes - offset))


def check_rows(out: NDArray[np.uint8], ids: NDArray[np.int64], bases: NDArray[np.uint64], stride: int) -> int:
    """Compare gathered rows ``[tables, count, row_bytes]`` with the content, every byte -> bytes compared."""
    tables, count, row_bytes = out.shape
    wrong = library().bench_wrong_rows(
        ffi.from_buffer("uint8_t[]", out),
        ffi.from_buffer("int64_t[]", ids),
        ffi.from_buffer("uint64_t[]", bases),
        tables,
        count,
        row_bytes,
        stride,
    )
    if wrong:
        raise VerificationError(f"{wrong} of {tables * count} rows of {row_bytes} bytes are not what the memory holds")
    return out.nbytes


def check_words(found: NDArray[np.uint64], offset: int) -> int:
    """Compare what was read from `offset` on -> bytes compared."""
    if not np.array_equal(found, words(offset, found.nbytes)):
        raise VerificationError(f"bytes [{offset}, {offset + found.nbytes}) are not what the memory holds")
    return found.nbytes
