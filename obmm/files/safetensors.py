# SPDX-License-Identifier: Apache-2.0
"""Tensors of safetensors files: one file, a sharded checkpoint's index, or a folder."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import numpy as np

from obmm.engram import Checkpoint
from obmm.exchange.array_manifest import ArrayManifest
from obmm.exchange.dtypes import named
from obmm.files.source import CHUNK, described, refused

_PLAIN = {
    "BOOL": "|b1",
    "U8": "|u1",
    "I8": "|i1",
    "U16": "<u2",
    "I16": "<i2",
    "F16": "<f2",
    "U32": "<u4",
    "I32": "<i4",
    "F32": "<f4",
    "U64": "<u8",
    "I64": "<i8",
    "F64": "<f8",
}
_NAMED = {"BF16": "bfloat16", "F8_E4M3": "float8_e4m3fn", "F8_E5M2": "float8_e5m2", "F8_E8M0": "float8_e8m0fnu"}


def _dtype(path: Path, name: str, code: str) -> np.dtype[Any]:
    if code in _PLAIN:
        return np.dtype(_PLAIN[code])
    if code not in _NAMED:
        known = ", ".join((*_PLAIN, *_NAMED))
        raise refused(path, f"{name!r:.100} is of type {code!r:.20}, and known are {known}", "convert the tensor")
    try:
        return named(_NAMED[code])
    except ValueError as error:
        raise refused(path, f"{name!r:.100} is of type {code}: {error}", "then serve it again") from None


class SafetensorsArray:
    """One tensor of a checkpoint."""

    def __init__(self, checkpoint: Path, name: str) -> None:
        self._checkpoint = checkpoint
        self.name = name
        with Checkpoint(checkpoint) as files:
            tensor = files.tensor(name)
        self.path = tensor.path
        self.manifest = described(tensor.path, name, _dtype(tensor.path, name, tensor.dtype), tensor.shape)

    def chunks(self) -> Iterator[memoryview]:
        """See `ArraySource.chunks`."""
        width, rows = self.manifest.row_bytes, self.manifest.rows
        if not width or not rows:
            return
        step = max(1, CHUNK // width)
        buffer = memoryview(bytearray(min(step, rows) * width))
        with Checkpoint(self._checkpoint) as files:
            tensor = files.tensor(self.name)
            for first in range(0, rows, step):
                piece = buffer[: min(step, rows - first) * width]
                files.read_into(tensor, first, piece)
                yield piece


def tensor_names(checkpoint: Path) -> tuple[str, ...]:
    """The tensors of a file, of an index, or of a folder."""
    with Checkpoint(checkpoint) as files:
        return files.names


def code_of(path: Path, dtype: np.dtype[Any]) -> str:
    """What the format calls a type; ObmmArgumentError about `path` when it has no name for it."""
    named = {text: code for code, text in _NAMED.items()}
    plain = {descr: code for code, descr in _PLAIN.items()}
    code = named.get(dtype.name) or plain.get(str(np.lib.format.dtype_to_descr(dtype)))
    if code is None:
        raise refused(path, f"the safetensors format has no {dtype}", "write .npy")
    return code


@contextmanager
def safetensors_writer(path: Path, name: str, manifest: ArrayManifest) -> Iterator[IO[bytes]]:
    """The bytes of one tensor go to what is yielded; `path` is written in place."""
    code = code_of(path, manifest.dtype)
    entry = {"dtype": code, "shape": list(manifest.shape), "data_offsets": [0, manifest.nbytes]}
    text = json.dumps({name: entry}, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        yield file
