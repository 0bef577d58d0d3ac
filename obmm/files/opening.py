# SPDX-License-Identifier: Apache-2.0
"""From a path and the names of tensors to arrays."""

from __future__ import annotations

import errno
import os
import stat
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from obmm.errors import ObmmError
from obmm.files.npy import NpyFile
from obmm.files.npz import NpzArray, npz_names
from obmm.files.safetensors import SafetensorsArray, tensor_names
from obmm.files.source import ArraySource, refused
from obmm.files.torch_file import TorchArray, torch_tensors

SUFFIXES = (".safetensors", ".npy", ".npz", ".pt", ".pth")
_SHOWN = 8


def open_arrays(path: str | os.PathLike[str], tensors: Sequence[str] = ()) -> list[ArraySource]:
    """The arrays of a file that are named in `tensors`, or all of them.

    `path`: a .safetensors file, a checkpoint's ``*.safetensors.index.json`` or folder, a .npy, .npz, .pt or .pth file.
    Nothing is read but headers.  ObmmArgumentError: it is none of these, is cut short, or lacks a tensor.

    >>> np.savez(folder / "tables.npz", words=np.zeros((10, 4)), units=np.zeros(3, "<i4"))
    >>> [array.name for array in obmm.files.open_arrays(folder / "tables.npz")]
    ['words', 'units']
    >>> (table,) = obmm.files.open_arrays(folder / "tables.npz", ["units"])
    >>> table.manifest.shape
    (3,)
    """
    place = Path(path)
    if b"\0" in os.fsencode(place):
        raise refused(place, "a NUL ends no name", "pass the path of a file")
    try:
        if not stat.S_ISREG(kind := place.stat().st_mode) and not stat.S_ISDIR(kind):
            raise refused(place, "is neither a file nor a folder", "copy what it gives into a file")
        return _open(place, list(tensors))
    except ObmmError:
        raise
    except OSError as error:
        raise refused(
            place, error.strerror or str(error), "pass the path of a file", error.errno or errno.EIO
        ) from None


def _open(path: Path, tensors: list[str]) -> list[ArraySource]:
    if path.is_dir() or path.name.endswith((".safetensors", ".safetensors.index.json")):
        names = _chosen(path, tensor_names(path), tensors)
        return [SafetensorsArray(path, name) for name in names]
    if path.suffix == ".npz":
        return [NpzArray(path, name) for name in _chosen(path, npz_names(path), tensors)]
    if path.suffix in (".pt", ".pth"):
        found = torch_tensors(path)
        by_name = dict(found)
        return [TorchArray(path, name, by_name[name]) for name in _chosen(path, [each for each, _ in found], tensors)]
    if path.suffix != ".npy" and not _is_npy(path):
        raise refused(
            path, "is not a kind of file that is known here", f"one of {', '.join(SUFFIXES)}, or a checkpoint's folder"
        )
    if tensors:
        raise refused(path, "has one array without a name", "leave --tensor out")
    return [NpyFile(path)]


def _is_npy(path: Path) -> bool:
    with path.open("rb") as file:
        return file.read(6) == b"\x93NUMPY"


def _chosen(path: Path, names: Sequence[str], wanted: list[str]) -> Sequence[str]:
    lacking = next((name for name in wanted if name not in set(names)), None)
    if lacking is not None:
        some = ", ".join(names[:_SHOWN]) + (f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else "")
        raise refused(path, f"has no tensor {lacking!r}", f"choose of: {some or 'nothing'}", errno.ENOENT)
    if not names:
        raise refused(path, "has no array", "name a file with arrays", errno.ENOENT)
    chosen = wanted or names
    twice = next((name for name, count in Counter(names).items() if count > 1 and name in chosen), None)
    if twice is not None:
        raise refused(path, f"has two arrays that are called {twice!r}", "write it with one of each name")
    return list(dict.fromkeys(chosen))
