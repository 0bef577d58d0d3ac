# SPDX-License-Identifier: Apache-2.0
"""The manifest of one array: what the bytes of a region are (docs/exchange.md)."""

from __future__ import annotations

import errno
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from obmm.errors import ObmmArgumentError

FORMAT = "obmm-array"
VERSION = 1
_SCALAR = re.compile(r"[<>|=]?[a-zA-Z][0-9]*(\[[0-9]*[A-Za-z]+\])?", re.ASCII)
_DEPTH = 8


def _bad(problem: str) -> ObmmArgumentError:
    return ObmmArgumentError.because(
        "MANIFEST",
        errno.EINVAL,
        problem,
        "publish arrays with `obmm serve TABLE.npy` or ArrayManifest",
        "docs/exchange.md",
    )


@dataclass(frozen=True, slots=True)
class ArrayManifest:
    """A C-ordered array at the start of a region's payload: dtype, shape, and the SHA-256 of its bytes if known.

    In JSON: ``{"format": "obmm-array", "version": 1, "dtype": "<f4", "shape": [10000, 341], "sha256": "..."}``.  The
    dtype is as in a .npy file: a string with byte order, or a list of fields.  Object dtypes are refused.
    """

    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    sha256: str | None = None

    def __post_init__(self) -> None:
        if self.dtype.hasobject:
            raise _bad(f"dtype {self.dtype} holds Python objects, which are addresses in one process")
        if any(not isinstance(length, int) or length < 0 for length in self.shape) or len(self.shape) > 32:
            raise _bad(f"shape {self.shape} is not up to 32 lengths of zero or more")

    @property
    def nbytes(self) -> int:
        return self.dtype.itemsize * math.prod(self.shape)

    @property
    def rows(self) -> int:
        """Length of the first axis; 1 for a scalar."""
        return self.shape[0] if self.shape else 1

    @property
    def row_bytes(self) -> int:
        return self.dtype.itemsize * math.prod(self.shape[1:])

    def to_json(self) -> dict[str, Any]:
        """What to pass to `serve` beside the region."""
        document: dict[str, Any] = {
            "format": FORMAT,
            "version": VERSION,
            "dtype": np.lib.format.dtype_to_descr(self.dtype),
            "shape": list(self.shape),
        }
        if self.sha256 is not None:
            document["sha256"] = self.sha256
        return document

    @classmethod
    def parse(cls, manifest: Mapping[str, Any]) -> ArrayManifest:
        """The manifest in a lease's JSON; ObmmArgumentError that says what is wrong with it."""
        if manifest.get("format") != FORMAT or manifest.get("version") != VERSION:
            raise _bad(
                f"format {manifest.get('format')!r} version {manifest.get('version')!r}, not {FORMAT!r} {VERSION}"
            )
        shape, digest = manifest.get("shape"), manifest.get("sha256")
        if not isinstance(shape, list) or any(type(length) is not int for length in shape):
            raise _bad(f"shape {shape!r} is not a list of integers")
        if digest is not None and not (isinstance(digest, str) and re.fullmatch(r"[0-9a-f]{64}", digest)):
            raise _bad("sha256 is not 64 hexadecimal digits")
        try:
            dtype = np.lib.format.descr_to_dtype(_descr(manifest.get("dtype"), _DEPTH))
        except (TypeError, ValueError) as error:
            raise _bad(f"dtype {str(manifest.get('dtype'))[:100]!r}: {error}") from None
        return cls(dtype, tuple(shape), digest)

    def array(self, data: bytearray, rows: int | None = None) -> npt.NDArray[Any]:
        """``data`` as the array, or as ``rows`` of its rows."""
        shape = self.shape if rows is None else (rows, *self.shape[1:])
        return np.frombuffer(data, self.dtype, math.prod(shape)).reshape(shape)


def _descr(value: Any, depth: int) -> Any:
    """JSON has no tuples: give NumPy's field list back, having looked at every string in it."""
    if isinstance(value, str):
        if not _SCALAR.fullmatch(value):
            raise ValueError(f"{value[:40]!r} is no plain type")
        return value
    if not isinstance(value, list) or depth == 0:
        raise ValueError("neither a type nor a list of fields")
    if len(value) == 2 and isinstance(value[1], list) and all(type(length) is int for length in value[1]):
        return _descr(value[0], depth - 1), tuple(value[1])  # a subarray
    fields = []
    for field in value:
        if not isinstance(field, list) or not 2 <= len(field) <= 3:
            raise ValueError("a field is not [name, type] or [name, type, shape]")
        name = tuple(field[0]) if isinstance(field[0], list) else field[0]
        fields.append((name, _descr(field[1], depth - 1), *map(tuple, field[2:])))
    return fields
