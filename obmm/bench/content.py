# SPDX-License-Identifier: Apache-2.0
"""What every benchmark memory holds, and the comparison with it: 64-bit word i is ``i * FACTOR``."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from obmm.bench.compiled import library, pointer

FACTOR = np.uint64(0x9E3779B97F4A7C15)
CHUNK = 4 << 20


class VerificationError(AssertionError):
    """Bytes that were read are not those that must be there: no figure of this run is worth anything."""


def words(offset: int, nbytes: int) -> NDArray[np.uint64]:
    """The content of bytes [offset, offset + nbytes); both multiples of 8."""
    made = np.empty(nbytes // 8, np.uint64)
    put(made, offset)
    return made


def put(target: NDArray[np.uint64], offset: int) -> None:
    """Fill `target`, contiguous words, with the content from byte `offset` on."""
    library().bench_fill(pointer("uint64_t[]", target), offset // 8, len(target))


def fill(nbytes: int, write: Callable[[int, NDArray[np.uint64]], object], progress: Callable[[float], None]) -> None:
    """Hand the whole content to ``write(offset, words)``, piece by piece; `words` is used again after each."""
    piece = np.empty(min(CHUNK, nbytes) // 8, np.uint64)
    for offset in range(0, nbytes, CHUNK):
        part = piece[: min(CHUNK, nbytes - offset) // 8]
        put(part, offset)
        write(offset, part)
        progress(min(1.0, (offset + CHUNK) / nbytes))


def fill_array(array: NDArray[np.uint8], progress: Callable[[float], None]) -> None:
    """Write the whole content into `array`, in place."""
    target = array.view(np.uint64)
    for offset in range(0, array.nbytes, CHUNK):
        put(target[offset // 8 : (offset + CHUNK) // 8], offset)
        progress(min(1.0, (offset + CHUNK) / array.nbytes))


def check_rows(out: NDArray[np.uint8], ids: NDArray[np.int64], bases: NDArray[np.uint64], stride: int) -> int:
    """Compare gathered rows ``[tables, count, row_bytes]`` with the content, every byte -> bytes compared.

    `row_bytes`, `stride` and `bases` are multiples of 4.
    """
    tables, count, row_bytes = out.shape
    wrong = library().bench_wrong_rows(
        pointer("uint8_t[]", out),
        pointer("int64_t[]", ids),
        pointer("uint64_t[]", bases),
        tables,
        count,
        row_bytes,
        stride,
    )
    if wrong:
        raise VerificationError(f"{wrong} of {tables * count} rows of {row_bytes} bytes are not what the memory holds")
    return out.nbytes


def check_words(found: NDArray[np.uint64], offset: int, *, flipped: bool = False) -> int:
    """Compare what was read from byte `offset` on -> bytes compared.  `flipped`: its complement is expected."""
    wrong = library().bench_wrong_words(pointer("uint64_t[]", found), offset // 8, len(found), flipped)
    if wrong:
        raise VerificationError(
            f"{wrong} words of bytes [{offset}, {offset + found.nbytes}) are not what the memory holds"
        )
    return found.nbytes
