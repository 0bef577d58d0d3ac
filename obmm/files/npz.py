# SPDX-License-Identifier: Apache-2.0
"""The arrays of a .npz file: .npy files in a zip archive, streamed out of it."""

from __future__ import annotations

import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

import numpy as np

from obmm.exchange.array_manifest import ArrayManifest
from obmm.files.npy import PARSE_ERRORS, read_header, write_header
from obmm.files.source import CHUNK, described, refused

MAX_MEMBERS = 100_000


class NpzArray:
    """One array of a .npz file."""

    def __init__(self, path: Path, name: str) -> None:
        self.path = path
        self.name = name
        self._member = member = f"{name}.npy"
        try:
            with zipfile.ZipFile(path) as archive, archive.open(member) as file:
                shape, self._fortran, dtype = read_header(file)
                self._start = file.tell()
                size = archive.getinfo(member).file_size
        except (*PARSE_ERRORS, zipfile.BadZipFile) as error:
            raise refused(
                path, f"{member!r} is not an array: {error}", "write it with numpy.savez(path, name=array)"
            ) from None
        self.manifest = described(path, name, dtype, shape)
        if size < self._start + self.manifest.nbytes:
            raise refused(path, f"{member!r} is cut short", "copy it again")

    def chunks(self) -> Iterator[memoryview]:
        """See `ArraySource.chunks`.  An array in Fortran order is read whole first."""
        if self._fortran and len(self.manifest.shape) > 1:
            with np.load(self.path, allow_pickle=False) as archive:
                array = archive[self.name]
            rows = max(1, CHUNK // max(1, self.manifest.row_bytes))
            for first in range(0, self.manifest.rows, rows):
                yield memoryview(array[first : first + rows].tobytes())
            return
        left = self.manifest.nbytes
        try:
            with zipfile.ZipFile(self.path) as archive, archive.open(self._member) as file:
                file.read(self._start)
                while left:
                    piece = file.read(min(CHUNK, left))
                    if not piece:
                        raise refused(self.path, "got shorter while it was read", "do not write to it meanwhile")
                    yield memoryview(piece)
                    left -= len(piece)
        except (zipfile.BadZipFile, EOFError) as error:
            raise refused(self.path, f"{self._member!r}: {error}", "copy it again") from None


def npz_names(path: Path) -> list[str]:
    """What the arrays of the file are called, in its order; nothing of them is read."""
    try:
        with zipfile.ZipFile(path) as archive:
            members = [name.removesuffix(".npy") for name in archive.namelist() if name.endswith(".npy")]
    except zipfile.BadZipFile as error:
        raise refused(path, f"is not a .npz file: {error}", "write it with numpy.savez(path, name=array)") from None
    if len(members) > MAX_MEMBERS:
        raise refused(path, f"has {len(members)} arrays, at most {MAX_MEMBERS} are read", "split it")
    return members


@contextmanager
def npz_writer(path: Path, name: str, manifest: ArrayManifest) -> Iterator[IO[bytes]]:
    """The bytes of one array go to what is yielded; `path` is written in place."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_STORED, allowZip64=True) as archive:
        with archive.open(f"{name}.npy", "w", force_zip64=True) as file:
            write_header(file, manifest.dtype, manifest.shape)
            yield file
