# SPDX-License-Identifier: Apache-2.0
"""What every kind of file offers: arrays, each with a manifest, read in pieces."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from obmm.errors import ObmmArgumentError
from obmm.exchange.array_manifest import ArrayManifest

CHUNK = 8 << 20
"""Bytes that are in memory at a time."""


class ArraySource(Protocol):
    """One array of a file.  Made by `open_arrays`.

    >>> np.save(folder / "words.npy", np.zeros((10, 4), "<f4"))
    >>> (array,) = obmm.files.open_arrays(folder / "words.npy")
    >>> array.name, array.path.name, array.manifest.shape, [len(chunk) for chunk in array.chunks()]
    ('words', 'words.npy', (10, 4), [160])
    """

    @property
    def path(self) -> Path:
        """The file that holds it."""

    @property
    def name(self) -> str:
        """What the array is called: in its file, or the file itself."""

    @property
    def manifest(self) -> ArrayManifest:
        """Its dtype and shape."""

    def chunks(self) -> Iterator[memoryview]:
        """The array's bytes in C order, in pieces of at most `CHUNK` bytes (one row at least), each good until the next."""


def refused(path: Path, problem: str, fix: str, code: int = errno.EINVAL) -> ObmmArgumentError:
    """A file that is not what it was taken for."""
    return ObmmArgumentError.because("FILE", code, f"{path}: {problem}", fix, "docs/files.md")


def described(path: Path, name: str, dtype: np.dtype[Any], shape: tuple[int, ...]) -> ArrayManifest:
    """The manifest of an array in the file `path`; ObmmArgumentError that names both when none can say what it is."""
    try:
        return ArrayManifest(dtype, shape)
    except ObmmArgumentError as error:
        problem = str(error.strerror).partition(": ")[2].partition(" [")[0]
        raise refused(path, f"{name!r:.100}: {problem}", "convert it, or serve others") from None


def missing(path: Path, package: str) -> ObmmArgumentError:
    """A package that reads this kind of file is not installed."""
    return refused(
        path, f"reading and writing it needs the package {package}", "pip install 'obmm[files]'", errno.ENOSYS
    )
