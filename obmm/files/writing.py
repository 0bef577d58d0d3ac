# SPDX-License-Identifier: Apache-2.0
"""Arrays into files, in pieces; a file gets its name once it is whole."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import IO, Any

import numpy as np

from obmm.exchange.array_manifest import ArrayManifest
from obmm.files.npy import npy_writer, refuse_foreign
from obmm.files.npz import npz_writer
from obmm.files.safetensors import code_of, safetensors_writer
from obmm.files.source import refused
from obmm.files.torch_file import refuse_what_torch_has_not, write_torch

_REFUSE: dict[str, Callable[[Path, np.dtype[Any]], object]] = {
    ".safetensors": code_of,
    ".npz": refuse_foreign,
    ".pt": refuse_what_torch_has_not,
    ".pth": refuse_what_torch_has_not,
}


@contextmanager
def array_writer(
    path: str | os.PathLike[str], manifest: ArrayManifest, name: str = "table", rows: int | None = None
) -> Iterator[IO[bytes]]:
    """A file at `path` to write the bytes of an array to, or of `rows` of its rows; the suffix chooses the format.

    `manifest` says its dtype and shape.  .safetensors, .npz and .pt call the array `name`; without one of these suffixes the
    file is a .npy.  When the block ends well the file is there, complete; otherwise it is as before.  ObmmArgumentError for a
    format that has no such type, or a path that is not a regular file.

    >>> manifest = obmm.exchange.ArrayManifest(np.dtype("<f4"), (10, 4))
    >>> with obmm.files.array_writer(folder / "out.npz", manifest, "words", rows=2) as file:
    ...     file.write(np.ones((2, 4), "<f4").tobytes())
    32
    >>> np.load(folder / "out.npz")["words"].shape
    (2, 4)
    """
    target = Path(path)
    if target.exists() and not target.is_file():
        raise refused(target, "is not a regular file", "name a file: a device or a pipe would be replaced")
    whole = manifest if rows is None else replace(manifest, shape=(rows, *manifest.shape[1:]), sha256=None)
    if target.suffix not in _REFUSE:
        with npy_writer(target, whole) as file:
            yield file
        return
    _REFUSE[target.suffix](target, whole.dtype)  # before any work
    temporary = target.with_name(f".{target.name}.{os.getpid()}")
    raw = target.with_name(f".{target.name}.{os.getpid()}.raw")
    try:
        if target.suffix == ".npz":
            with npz_writer(temporary, name, whole) as file:
                yield file
        elif target.suffix == ".safetensors":
            with safetensors_writer(temporary, name, whole) as file:
                yield file
        else:
            with open(raw, "wb") as file:
                yield file
            write_torch(temporary, name, whole, raw)
        os.replace(temporary, target)
    finally:
        temporary.unlink(missing_ok=True)
        raw.unlink(missing_ok=True)
