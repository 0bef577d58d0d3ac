# SPDX-License-Identifier: Apache-2.0
"""Tensors of torch's .pt and .pth files, weights only: no code in a file ever runs.  Needs torch."""

from __future__ import annotations

import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from obmm.exchange.array_manifest import ArrayManifest
from obmm.exchange.torch_types import numpy_dtype, tensor_from
from obmm.files.source import CHUNK, described, missing, refused

_DEPTH = 8


def _load(path: Path) -> Any:
    try:
        import torch
    except ImportError:
        raise missing(path, "torch") from None
    try:
        # what torch wrote before 1.6 is not an archive, and is read whole
        return torch.load(path, map_location="cpu", mmap=zipfile.is_zipfile(path), weights_only=True)
    except Exception as error:  # torch has no error of its own: RuntimeError, OSError without a name, EOFError ...
        if type(error).__name__ == "UnpicklingError":  # by name: the package never imports pickle
            raise refused(
                path,
                "is not a file of tensors in dicts and lists; code and objects in it are not run",
                "torch.save(model.state_dict(), path), where the file is trusted",
            ) from None
        if isinstance(error, OSError) and error.filename:
            raise
        first = (str(error).splitlines() or [type(error).__name__])[0][:200]
        raise refused(path, f"torch does not read it: {first}", "copy it again, or torch.save tensors anew") from None


def _tensors(value: Any, prefix: str = "", depth: int = _DEPTH) -> Iterator[tuple[str, Any]]:
    """Every tensor in nested dicts and lists, named by its path with dots."""
    if hasattr(value, "untyped_storage"):
        yield prefix or "tensor", value
    elif isinstance(value, Mapping | list | tuple) and depth:
        for key, inner in value.items() if isinstance(value, Mapping) else enumerate(value):
            yield from _tensors(inner, f"{prefix}.{key}" if prefix else str(key), depth - 1)


class TorchArray:
    """One tensor of a .pt file, memory-mapped."""

    def __init__(self, path: Path, name: str, tensor: Any) -> None:
        self.path = path
        self.name = name
        if str(tensor.layout) != "torch.strided" or tensor.is_meta or tensor.is_quantized:
            kind = "without data" if tensor.is_meta else "quantised" if tensor.is_quantized else f"of {tensor.layout}"
            raise refused(path, f"{name!r:.100} is {kind}", "save it dense, or name others with --tensor")
        try:
            dtype = numpy_dtype(tensor.dtype)
        except (TypeError, ValueError) as error:
            raise refused(path, f"{name!r:.100}: {error}", "convert it, or name others with --tensor") from None
        self._tensor = tensor.detach().resolve_conj().resolve_neg()
        self.manifest = described(path, name, dtype, tuple(tensor.shape))

    def chunks(self) -> Iterator[memoryview]:
        """See `ArraySource.chunks`."""
        import torch

        if not self.manifest.nbytes:
            return
        rows = self._tensor if self._tensor.dim() else self._tensor.reshape(1)
        step = max(1, CHUNK // self.manifest.row_bytes)
        for first in range(0, self.manifest.rows, step):
            piece = rows[first : first + step].contiguous()
            yield memoryview(piece.view(torch.uint8).numpy() if piece.dim() else piece.numpy()).cast("B")


def torch_tensors(path: Path) -> list[tuple[str, Any]]:
    """The tensors of a file with their names."""
    return list(_tensors(_load(path)))


def refuse_what_torch_has_not(path: Path, dtype: np.dtype[Any]) -> None:
    """ObmmArgumentError about `path`, before any work: no torch here, or a type that it has not."""
    try:
        import torch  # noqa: F401
    except ImportError:
        raise missing(path, "torch") from None
    try:
        tensor_from(np.empty(0, dtype))
    except (TypeError, ValueError):
        raise refused(path, f"torch has no {dtype}", "write .npy, or .safetensors for small floats") from None


def write_torch(path: Path, name: str, manifest: ArrayManifest, raw: Path) -> None:
    """A .pt file with ``{name: tensor}`` of the bytes in the file `raw`."""
    import torch

    data = np.memmap(raw, np.uint8, "r+") if manifest.nbytes else np.empty(0, np.uint8)
    torch.save({name: tensor_from(data[: manifest.nbytes].view(manifest.dtype).reshape(manifest.shape))}, path)
