# SPDX-License-Identifier: Apache-2.0
"""NumPy files, a chunk at a time: nothing here needs memory for the whole array, and nothing is ever unpickled."""

from __future__ import annotations

import ast
import errno
import os
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import numpy as np

from obmm.errors import ObmmArgumentError
from obmm.exchange.array_manifest import ArrayManifest
from obmm.exchange.dtypes import is_foreign
from obmm.files.source import CHUNK, described

MAX_HEADER = 1 << 20
"""Bytes; of a header that is longer nothing is parsed."""


PARSE_ERRORS = (ValueError, SyntaxError, TypeError, struct.error, MemoryError, RecursionError)


def _bad(path: Path, problem: str, fix: str) -> ObmmArgumentError:
    return ObmmArgumentError.because("NPY", errno.EINVAL, f"{path}: {problem}", fix, "docs/exchange.md")


class NpyFile:
    """A .npy file of any dtype and shape but objects.  ``manifest`` describes it in C order."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        try:
            with open(self.path, "rb") as file:
                shape, self._fortran, dtype = read_header(file)
                self._start = file.tell()
                size = os.fstat(file.fileno()).st_size
        except OSError as error:
            raise ObmmArgumentError.because(
                "NPY", error.errno or errno.EIO, f"{self.path}: {error.strerror}", "pass the path of a .npy file"
            ) from None
        except PARSE_ERRORS as error:
            advice = "write it with numpy.save(path, array); objects cannot be shared"
            raise _bad(self.path, f"is not a .npy file: {error}", advice) from None
        if dtype.hasobject:
            raise _bad(
                self.path, f"dtype {dtype} holds Python objects", "convert it to numbers or fixed-length bytes first"
            )
        self.manifest = described(self.path, self.path.stem, dtype, shape)
        if size < self._start + self.manifest.nbytes:
            missing = self._start + self.manifest.nbytes - size
            raise _bad(self.path, f"is cut short: {missing} bytes are missing", "copy it again")

    @property
    def name(self) -> str:
        """The file's name without its suffix."""
        return self.path.stem

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


def read_header(file: IO[bytes]) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    """Shape, whether in Fortran order, and dtype of the .npy file that begins here.  One of `PARSE_ERRORS` if none does."""
    version = np.lib.format.read_magic(file)
    if version == (1, 0):
        return np.lib.format.read_array_header_1_0(file, max_header_size=MAX_HEADER)
    if version == (2, 0):
        return np.lib.format.read_array_header_2_0(file, max_header_size=MAX_HEADER)
    if version == (3, 0):  # as 2.0, but in UTF-8: NumPy writes it for field names beyond Latin-1
        return _utf8_header(file)
    raise ValueError(f"format version {version[0]}.{version[1]}: written by a newer NumPy")


def _utf8_header(file: IO[bytes]) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    (size,) = struct.unpack("<I", file.read(4))
    if size > MAX_HEADER:
        raise ValueError(f"a header of {size} bytes")
    entry = ast.literal_eval(file.read(size).decode("utf-8"))
    if not isinstance(entry, dict) or set(entry) != {"descr", "fortran_order", "shape"}:
        raise ValueError("the header is not what NumPy writes")
    shape, fortran = entry["shape"], entry["fortran_order"]
    if not isinstance(shape, tuple) or any(type(each) is not int for each in shape) or type(fortran) is not bool:
        raise ValueError("the header is not what NumPy writes")
    return shape, fortran, np.lib.format.descr_to_dtype(entry["descr"])


def write_header(file: IO[bytes], dtype: np.dtype[Any], shape: tuple[int, ...]) -> None:
    """The header of a .npy file in C order, in the oldest version that can say it, as numpy.save does."""
    header = {"descr": np.lib.format.dtype_to_descr(dtype), "fortran_order": False, "shape": shape}
    try:
        np.lib.format.write_array_header_1_0(file, header)
    except UnicodeEncodeError:
        text = repr(header).encode("utf-8")
        text += b" " * (-(len(text) + 13) % 64) + b"\n"
        file.write(np.lib.format.magic(3, 0) + struct.pack("<I", len(text)) + text)
    except ValueError:  # more than 64 KiB; nothing was written
        np.lib.format.write_array_header_2_0(file, header)


def refuse_foreign(path: Path, dtype: np.dtype[Any]) -> None:
    """ObmmArgumentError for a type that a header of NumPy's cannot name: a reader would get bytes without a type."""
    if is_foreign(dtype):
        raise _bad(path, f"the {path.suffix or '.npy'} format has no {dtype.name}", "write .safetensors or .pt")


@contextmanager
def npy_writer(path: str | os.PathLike[str], manifest: ArrayManifest, rows: int | None = None) -> Iterator[IO[bytes]]:
    """A file to write the array's bytes to (or ``rows`` of its rows); it gets its name once all of them are there."""
    target = Path(path)
    if target.exists() and not target.is_file():
        raise _bad(target, "is not a regular file", "name a file: a device or a pipe would be replaced")
    refuse_foreign(target, manifest.dtype)
    shape = manifest.shape if rows is None else (rows, *manifest.shape[1:])
    temporary = target.with_name(f".{target.name}.{os.getpid()}")
    try:
        with open(temporary, "wb") as file:
            write_header(file, manifest.dtype, shape)
            yield file
        os.replace(temporary, target)
    finally:
        temporary.unlink(missing_ok=True)
