# SPDX-License-Identifier: Apache-2.0
"""The manifest of one array: what the bytes of a region are (docs/exchange.md)."""

from __future__ import annotations

import errno
import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from obmm.errors import ObmmArgumentError, other_version
from obmm.exchange.dtypes import NAMED, holds_foreign, is_foreign, named

FORMAT = "obmm-array"
VERSION = 1
_SCALAR = re.compile(r"[<>|=]?[a-zA-Z][0-9]*(\[[0-9]*[A-Za-z]+\])?", re.ASCII)
_DEPTH = 8
_MOST = (1 << 63) - 1  # bytes of an array


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
    """A C-ordered array at the start of a region's payload: `dtype`, `shape`, and the SHA-256 of its bytes if known.

    In JSON: ``{"format": "obmm-array", "version": 1, "dtype": "<f4", "shape": [10000, 341], "sha256": "..."}``.  The
    dtype is as in a .npy file: a string with byte order, or a list of fields; or the name of a type of ml_dtypes
    (``"bfloat16"``, ``"float8_e4m3fn"``).  Refused are object dtypes, and types that a reader could not tell from another:
    ObmmArgumentError.  `sha256`: 64 hexadecimal digits.

    >>> manifest = obmm.exchange.ArrayManifest(np.dtype("<f4"), (10, 4))
    >>> manifest.nbytes, manifest.rows, manifest.row_bytes
    (160, 10, 16)
    >>> obmm.exchange.ArrayManifest.parse(manifest.to_json()) == manifest
    True
    >>> manifest.array(bytearray(32), rows=2).shape
    (2, 4)
    """

    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    sha256: str | None = None

    def __post_init__(self) -> None:
        if self.dtype.hasobject:
            raise _bad(f"dtype {self.dtype} holds Python objects, which are addresses in one process")
        if (is_foreign(self.dtype) and self.dtype.name not in NAMED) or holds_foreign(self.dtype):
            raise _bad(f"dtype {self.dtype} has no name in a manifest")
        if not is_foreign(self.dtype) and not _told_apart(self.dtype):
            raise _bad(f"dtype {self.dtype} is not read back as what it is")
        if self.dtype.itemsize == 0:
            raise _bad(f"dtype {self.dtype} has no bytes")
        if any(type(length) is not int or length < 0 for length in self.shape) or len(self.shape) > 32:
            raise _bad(f"shape {self.shape!r:.200} is not up to 32 lengths of zero or more")
        # as NumPy counts it: an axis of length zero makes the others no smaller
        if math.prod(length for length in (self.dtype.itemsize, *self.shape) if length) > _MOST:
            raise _bad(f"shape {self.shape!r:.200} of {self.dtype.itemsize}-byte items is larger than any memory")

    @property
    def nbytes(self) -> int:
        """Bytes of the whole array."""
        return self.dtype.itemsize * math.prod(self.shape)

    @property
    def rows(self) -> int:
        """Length of the first axis; 1 for a scalar."""
        return self.shape[0] if self.shape else 1

    @property
    def row_bytes(self) -> int:
        """Bytes of one row: one entry of the first axis."""
        return self.dtype.itemsize * math.prod(self.shape[1:])

    def to_json(self) -> dict[str, Any]:
        """What to pass to `serve` beside the region."""
        document: dict[str, Any] = {
            "format": FORMAT,
            "version": VERSION,
            "dtype": self.dtype.name if is_foreign(self.dtype) else np.lib.format.dtype_to_descr(self.dtype),
            "shape": list(self.shape),
        }
        if self.sha256 is not None:
            document["sha256"] = self.sha256
        return document

    @classmethod
    def parse(cls, manifest: Mapping[str, Any]) -> ArrayManifest:
        """The manifest in a lease's JSON; ObmmArgumentError that says what is wrong with it, a ValueError included."""
        if not isinstance(manifest, Mapping):
            raise _bad(f"a manifest of type {type(manifest).__name__}")
        kind, version = manifest.get("format"), manifest.get("version")
        if not isinstance(kind, str) or kind != FORMAT:
            raise _bad(f"format {kind!r}, not {FORMAT!r}")
        if type(version) is not int or version != VERSION:
            raise _bad(other_version("the array's manifest", manifest.get("version"), VERSION))
        shape, digest = manifest.get("shape"), manifest.get("sha256")
        if not isinstance(shape, list) or any(type(length) is not int for length in shape):
            raise _bad(f"shape {shape!r} is not a list of integers")
        if digest is not None and not (isinstance(digest, str) and re.fullmatch(r"[0-9a-f]{64}", digest)):
            raise _bad("sha256 is not 64 hexadecimal digits")
        try:
            text = manifest.get("dtype")
            dtype = named(text) if isinstance(text, str) and text in NAMED else _parsed(text)
        except Exception as error:  # NumPy's parser has errors of many kinds
            raise _bad(f"dtype {str(manifest.get('dtype'))[:100]!r}: {error}") from None
        return cls(dtype, tuple(shape), digest)

    def array(self, data: bytearray, rows: int | None = None) -> npt.NDArray[Any]:
        """``data`` as the array of `shape`, or as ``rows`` of its rows; no copy."""
        shape = self.shape if rows is None else (rows, *self.shape[1:])
        return np.frombuffer(data, self.dtype, math.prod(shape)).reshape(shape)


def _parsed(descr: Any) -> np.dtype[Any]:
    return np.lib.format.descr_to_dtype(_descr(descr, _DEPTH))


def _told_apart(dtype: np.dtype[Any]) -> bool:
    """Whether a reader makes the same type of what the manifest will say."""
    try:
        return bool(_parsed(json.loads(json.dumps(np.lib.format.dtype_to_descr(dtype)))) == dtype)
    except Exception:  # as in `parse`
        return False


def _descr(value: Any, depth: int) -> Any:
    """JSON has no tuples: give NumPy's field list back, having looked at every string in it."""
    if isinstance(value, str):
        if not _SCALAR.fullmatch(value):
            raise ValueError(f"{value[:40]!r} is not a plain type")
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
