# SPDX-License-Identifier: Apache-2.0
"""Tensors of torch's .pt and .pth files, weights only: no code in a file ever runs.  Needs torch."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from obmm.exchange.array_manifest import ArrayManifest
from obmm.exchange.torch_types import numpy_dtype, tensor_from
from obmm.files.source import CHUNK, missing, refused

_DEPTH = 8


def _load(path: Path) -> Any:
    try:
        import torch
    except ImportError:
        raise missing(path, "torch") from None
    try:
        return torch.load(path, map_location="cpu", mmap=True, weights_only=True)
    except OSError:
        raise
    except Exception as error:  # torch has no error of its own: RuntimeError, UnpicklingError, EOFError ...
        first = (str(error).splitlines() or [type(error).__name__])[0][:200]
        raise refused(
            path, f"torch does not read it as weights only: {first}", "save tensors with torch.save"
        ) from None


def _tensors(value: Any, prefix: str = "", depth: int = _DEPTH) -> Iterator[tuple[str, Any]]:
    """Every tensor in nested dicts, named by its path with dots."""
    if hasattr(value, "untyped_storage"):
        yield prefix or "tensor", value
    elif isinstance(value, Mapping) and depth:
        for key, inner in value.items():
            yield from _tensors(inner, f"{prefix}.{key}" if prefix else str(key), depth - 1)


class TorchArray:
    """One tensor of a .pt file, memory-mapped."""

    def __init__(self, path: Path, name: str, tensor: Any) -> None:
        self.path = path
        self.name = name
        try:
            dtype = numpy_dtype(tensor.dtype)
        except ValueError as error:
            raise refused(path, f"{name!r}: {error}", "convert the tensor") from None
        self._tensor = tensor.detach()
        self.manifest = ArrayManifest(dtype, tuple(tensor.shape))

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


def torch_arrays(path: Path) -> list[TorchArray]:
    """The tensors of a file, by name."""
    return [TorchArray(path, name, tensor) for name, tensor in _tensors(_load(path))]


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
