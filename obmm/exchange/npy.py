# SPDX-License-Identifier: Apache-2.0
"""NumPy files, a chunk at a time: nothing here needs memory for the whole array, and nothing is ever unpickled."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import numpy as np

from obmm.errors import ObmmArgumentError
from obmm.exchange.array_manifest import ArrayManifest

CHUNK = 8 << 20


def _bad(path: Path, problem: str, fix: str) -> ObmmArgumentError:
    return ObmmArgumentError.because("NPY", errno.EINVAL, f"{path}: {problem}", fix, "docs/exchange.md")


class NpyFile:
    """A .npy file of any dtype and shape but objects.  ``manifest`` describes it in C order."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        try:
            with open(self.path, "rb") as file:
                version = np.lib.format.read_magic(file)
                shape, self._fortran, dtype = _read_header(file, version)
                self._start = file.tell()
                size = os.fstat(file.fileno()).st_size
        except OSError as error:
            raise ObmmArgumentError.because(
                "NPY", error.errno or errno.EIO, f"{self.path}: {error.strerror}", "pass the path of a .npy file"
            ) from None
        except ValueError as error:
            advice = "write it with numpy.save(path, array); of an .npz, save one array at a time"
            raise _bad(self.path, f"is no .npy file: {error}", advice) from None
        if dtype.hasobject:
            raise _bad(
                self.path, f"dtype {dtype} holds Python objects", "convert it to numbers or fixed-length bytes first"
            )
        self.manifest = ArrayManifest(dtype, shape)
        if size < self._start + self.manifest.nbytes:
            missing = self._start + self.manifest.nbytes - size
            raise _bad(self.path, f"is cut short: {missing} bytes are missing", "copy it again")

    def chunks(self) -> Iterator[memoryview]:
        """The array's bytes in C order, in pieces of at most `CHUNK` bytes (one row at least).

        Each is good until the next one is asked for.
        """
        if self._fortran and len(self.manifest.shape) > 1:
            yield from self._reordered()
            return
        left = self.manifest.nbytes
        buffer = bytearray(min(CHUNK, left))
        with open(self.path, "rb", buffering=0) as file:
            file.seek(self._start)
            while left:
                got = file.readinto(memoryview(buffer)[: min(CHUNK, left)])
                if not got:
                    raise _bad(self.path, "got shorter while it was read", "do not write to it meanwhile")
                yield memoryview(buffer)[:got]
                left -= got

    def _reordered(self) -> Iterator[memoryview]:
        array: Any = np.load(self.path, mmap_mode="r", allow_pickle=False)
        rows = max(1, CHUNK // max(1, self.manifest.row_bytes))
        for first in range(0, self.manifest.rows, rows):
            yield memoryview(array[first : first + rows].tobytes())


def _read_header(file: IO[bytes], version: tuple[int, int]) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    if version == (1, 0):
        return np.lib.format.read_array_header_1_0(file)
    if version in ((2, 0), (3, 0)):
        return np.lib.format.read_array_header_2_0(file)
    raise ValueError(f"format version {version[0]}.{version[1]}")


@contextmanager
def npy_writer(path: str | os.PathLike[str], manifest: ArrayManifest, rows: int | None = None) -> Iterator[IO[bytes]]:
    """A file to write the array's bytes to (or ``rows`` of its rows); it gets its name once all of them are there."""
    target = Path(path)
    if target.exists() and not target.is_file():
        raise _bad(target, "is no regular file", "name a file: a device or a pipe would be replaced")
    shape = manifest.shape if rows is None else (rows, *manifest.shape[1:])
    temporary = target.with_name(f".{target.name}.{os.getpid()}")
    try:
        with open(temporary, "wb") as file:
            header = {
                "descr": np.lib.format.dtype_to_descr(manifest.dtype),
                "fortran_order": False,
                "shape": shape,
            }
            try:
                np.lib.format.write_array_header_1_0(file, header)  # as numpy.save: many readers know no other
            except ValueError:  # a header of more than 64 KiB; nothing was written
                np.lib.format.write_array_header_2_0(file, header)
            yield file
        os.replace(temporary, target)
    finally:
        temporary.unlink(missing_ok=True)
