# SPDX-License-Identifier: Apache-2.0
"""A checkpoint on disk: one safetensors file, or a folder of them with or without an index."""

from __future__ import annotations

import errno
import json
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from obmm.closing import Closing
from obmm.driver.descriptor import Descriptor
from obmm.engram.errors import refused_file
from obmm.engram.safetensors import TensorFile, read_header
from obmm.regular import read_regular

INDEX = "model.safetensors.index.json"
_MAX_JSON = 256 << 20


class Checkpoint(Closing):
    """The tensors of the checkpoint at `path` by name, read in slices: a file, an index, or a folder.

    Only the files that hold a tensor that was asked for are opened: a folder without its other shards will do.  Use it in
    a ``with`` block.  ObmmArgumentError for what is not a checkpoint.  `obmm.engram` has an example of each call.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self._headers: dict[Path, dict[str, TensorFile]] = {}
        self._files: dict[Path, Descriptor] = {}
        self._opening = threading.Lock()
        self._where = self._places()

    @property
    def names(self) -> tuple[str, ...]:
        """Of all tensors, in order."""
        return tuple(self._where)

    @property
    def folder(self) -> Path:
        """Where its files lie."""
        return self.path if self.path.is_dir() else self.path.parent

    def config(self) -> dict[str, Any]:
        """The model's ``config.json``, its ``text_config`` folded in; empty where there is none.

        ObmmArgumentError when it is not a JSON object.
        """
        path = self.folder / "config.json"
        if not path.exists():
            return {}
        config = _object(path)
        inner = config.get("text_config")
        return {**config, **inner} if isinstance(inner, dict) else config

    def tensor(self, name: str) -> TensorFile:
        """Where a tensor lies; ObmmArgumentError when its shard is missing, cut short, or does not have it."""
        path = self._where.get(name)
        if path is None:
            raise refused_file(f"{self.path} has no tensor {name!r}", "name the checkpoint of that model", errno.ENOENT)
        header = self._header(path)
        if name not in header:
            raise refused_file(
                f"{path} has no tensor {name!r}, which the index says it has",
                "complete the download, or copy it again",
                errno.ENOENT,
            )
        return header[name]

    def read_into(self, tensor: TensorFile, first: int, out: memoryview) -> None:
        """Rows from `first` on, as many as fill `out`.  ObmmArgumentError when the file has become shorter."""
        at = tensor.offset + first * tensor.row_bytes
        descriptor = self._file(tensor.path)
        while out.nbytes:
            got = os.preadv(descriptor, [out], at)
            if got == 0:
                raise refused_file(
                    f"{tensor.path} ends inside {tensor.name!r}", "complete the download, or copy it again", errno.EIO
                )
            out, at = out[got:], at + got

    def read(self, tensor: TensorFile) -> bytearray:
        """A small tensor whole; ObmmArgumentError for one of more than 1 MiB."""
        if tensor.nbytes > 1 << 20:
            raise refused_file(f"{tensor.name!r} has {tensor.nbytes} bytes, at most 1 MiB is a constant", "see the map")
        data = bytearray(tensor.nbytes)
        self.read_into(tensor, 0, memoryview(data))
        return data

    @property
    def closed(self) -> bool:
        """True while no file is open: reading opens those that it needs."""
        return not self._files

    def close(self) -> None:
        """Close the files.  Idempotent."""
        while self._files:
            self._files.popitem()[1].close()

    def __del__(self) -> None:
        if getattr(self, "_files", None):
            self.close()

    # --- inside ---------------------------------------------------------------------------------------------------

    def _places(self) -> dict[str, Path]:
        if self.path.is_file() and self.path.name.endswith(".index.json"):
            return _indexed(self.path)
        if self.path.is_file():
            return dict.fromkeys(self._header(self.path), self.path)
        if not self.path.is_dir():
            raise refused_file(
                f"{self.path}: no such file or folder",
                "name a .safetensors file, an index or a folder with them",
                errno.ENOENT,
            )
        places: dict[str, Path] = {}
        index = self.path / INDEX
        if index.exists():
            places = _indexed(index)
        indexed = dict(places)
        for path in self._unlisted(indexed):
            for name in self._header(path):
                if name in places and name not in indexed:  # an index says which one counts
                    raise refused_file(
                        f"{self.path} has tensor {name!r} in {places[name].name} and in {path.name}",
                        "name one of the files, or take the other one out of the folder",
                    )
                places.setdefault(name, path)
        if not places:
            raise refused_file(
                f"{self.path} has neither {INDEX} nor a .safetensors file",
                "name a .safetensors file, an index or a folder with them",
                errno.ENOENT,
            )
        return places

    def _unlisted(self, places: dict[str, Path]) -> Iterator[Path]:
        """Files that no index speaks of: some models keep their tables beside the index."""
        listed = set(places.values())
        return (path for path in sorted(self.path.glob("*.safetensors")) if path not in listed)

    def _header(self, path: Path) -> dict[str, TensorFile]:
        if path not in self._headers:
            self._headers[path] = read_header(path)
        return self._headers[path]

    def _file(self, path: Path) -> int:
        with self._opening:  # several threads read
            if path not in self._files:
                self._files[path] = Descriptor.open(path, os.O_RDONLY)
            return self._files[path].fileno()


def _object(path: Path) -> dict[str, Any]:
    try:
        value = json.loads(read_regular(path, _MAX_JSON))
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.EFBIG):
            raise
        raise refused_file(
            f"{path}: {error.strerror}", "name a .safetensors file, an index or a folder with them"
        ) from error
    except (ValueError, RecursionError) as error:
        raise refused_file(
            f"{path} is not JSON: {str(error)[:100]}", "complete the download, or copy it again"
        ) from error
    if not isinstance(value, dict):
        raise refused_file(f"{path} is not a JSON object", "complete the download, or copy it again")
    return value


def _indexed(path: Path) -> dict[str, Path]:
    found = _object(path).get("weight_map")
    if not isinstance(found, dict) or not all(isinstance(file, str) and file for file in found.values()):
        raise refused_file(f"{path} has no weight_map", "complete the download, or copy it again")
    folder = path.parent.resolve()
    places = {}
    for name, file in found.items():
        place = path.parent / file
        if Path(file).is_absolute() or ".." in Path(file).parts:
            raise refused_file(f"{path} names {file!r}, outside of {folder}", "complete the download, or copy it again")
        places[name] = place
    return places
