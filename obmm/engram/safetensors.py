# SPDX-License-Identifier: Apache-2.0
"""The header of a safetensors file: where each tensor's bytes lie.  No tensor is ever read whole.

A file is eight bytes with the length of the header (little-endian), the header (a JSON object: name -> dtype, shape, and the
two offsets of its bytes), and the bytes.
"""

from __future__ import annotations

import errno
import json
import math
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from obmm.engram.errors import refused_file
from obmm.errors import ObmmError
from obmm.regular import open_regular

MAX_HEADER = 100 << 20
"""Bytes: what the format's own readers allow."""

_ITEM_BYTES = {
    **dict.fromkeys(("BOOL", "U8", "I8", "F8_E4M3", "F8_E5M2", "F8_E8M0"), 1),
    **dict.fromkeys(("U16", "I16", "F16", "BF16"), 2),
    **dict.fromkeys(("U32", "I32", "F32"), 4),
    **dict.fromkeys(("U64", "I64", "F64"), 8),
}
_MAX_LENGTH = 1 << 48


@dataclass(frozen=True, slots=True)
class TensorFile:
    """One tensor in a file: `nbytes` bytes from byte `offset` of the file on, in C order, little-endian."""

    name: str
    path: Path
    dtype: str
    shape: tuple[int, ...]
    offset: int
    nbytes: int

    @property
    def rows(self) -> int:
        """Length of the first axis."""
        return self.shape[0] if self.shape else 1

    @property
    def row_bytes(self) -> int:
        """Bytes of one row."""
        return self.nbytes // self.rows if self.rows else 0


def read_header(path: Path) -> dict[str, TensorFile]:
    """The tensors of a file by name; ObmmArgumentError for a file that is not a safetensors file, or ends too early."""
    try:
        with open_regular(path) as file:
            size = os.fstat(file.fileno()).st_size
            length = int.from_bytes(file.read(8), "little")
            if size < 8 or not 2 <= length <= min(size - 8, MAX_HEADER):
                raise _bad(path, f"{size} bytes, and a header of {length} bytes is announced")
            text = file.read(length)
    except OSError as error:
        known = (
            isinstance(error, FileNotFoundError | PermissionError | IsADirectoryError) or error.errno == errno.EINVAL
        )
        if not known or isinstance(error, ObmmError):
            raise
        raise refused_file(
            f"{path}: {error.strerror}", "complete the download, or copy it again", error.errno or errno.EIO
        ) from error
    try:
        header = json.loads(text, object_pairs_hook=_once)
    except (ValueError, RecursionError) as error:
        raise _bad(path, f"its header is not JSON: {str(error)[:100]}") from error
    if not isinstance(header, dict):
        raise _bad(path, "its header is not a JSON object")
    base = 8 + length
    return {name: _tensor(path, name, entry, base, size) for name, entry in header.items() if name != "__metadata__"}


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    names = dict(pairs)
    if len(names) != len(pairs):
        raise ValueError("a name occurs twice")
    return names


def _tensor(path: Path, name: str, entry: Any, base: int, size: int) -> TensorFile:
    if not isinstance(entry, dict):
        raise _bad(path, f"the entry of {name!r:.100} is not an object")
    dtype, shape, offsets = entry.get("dtype"), _lengths(entry.get("shape")), _lengths(entry.get("data_offsets"))
    if not isinstance(dtype, str) or shape is None or offsets is None or len(offsets) != 2 or offsets[0] > offsets[1]:
        raise _bad(path, f"the entry of {name!r:.100} is not dtype, shape and two offsets")
    start, end = offsets
    item = _ITEM_BYTES.get(dtype)
    if item is not None and end - start != item * math.prod(shape):
        raise _bad(path, f"{name!r:.100} of {dtype} {list(shape)} has {end - start} bytes")
    if base + end > size:
        raise refused_file(
            f"{path} is cut short: {size} bytes, and {name!r:.100} ends at byte {base + end}",
            "complete the download, or copy it again",
        )
    return TensorFile(name, path, dtype, shape, base + start, end - start)


def _lengths(value: Any) -> tuple[int, ...] | None:
    if not isinstance(value, list) or not all(type(each) is int and 0 <= each <= _MAX_LENGTH for each in value):
        return None
    return tuple(value)


def _bad(path: Path, problem: str) -> Exception:
    return refused_file(f"{path} is not a safetensors file: {problem}", "complete the download, or name another file")
