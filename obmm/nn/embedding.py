# SPDX-License-Identifier: Apache-2.0
"""A frozen embedding whose table lies elsewhere: in another node's memory, or in any array."""

from __future__ import annotations

import errno
from typing import Any, Protocol

import numpy as np
import torch

from obmm.errors import ObmmArgumentError
from obmm.exchange.torch_types import tensor_from


class TableSource(Protocol):
    """What an embedding reads: `obmm.exchange.RemoteTable` is one."""

    @property
    def dtype(self) -> np.dtype[Any]: ...
    @property
    def shape(self) -> tuple[int, ...]: ...
    def gather(self, ids: Any, out: Any = None) -> Any:
        """Rows by number, ids of any shape -> ``[*ids.shape, *shape[1:]]``."""


class _Local:
    """An array of this process as a source."""

    def __init__(self, array: np.ndarray[Any, Any]) -> None:
        self.array = array
        self.dtype: np.dtype[Any] = array.dtype
        self.shape: tuple[int, ...] = array.shape

    def gather(self, ids: Any, out: Any = None) -> Any:
        return np.take(self.array, ids, axis=0, out=out)


class Embedding(torch.nn.Module):  # type: ignore[misc]  # torch is optional, and untyped where it is not installed
    """A drop-in for a frozen ``torch.nn.Embedding``: the same rows for the same ids, without the table in this process.

    `source`: a `RemoteTable` of two axes ``[num_embeddings, embedding_dim]``, or an array of that shape.  `forward` takes
    ids of any shape and integer type, on the CPU or a device, and gives ``[*ids.shape, embedding_dim]`` there.  Every row
    is a guarded copy: RemoteMemoryError when the owner is gone.  Nothing is trained; `padding_idx` is kept for
    compatibility (in torch it only stops a gradient).  ObmmArgumentError for a table of other axes, ids that are not integers,
    and rows that do not exist.

    >>> import torch
    >>> layer = obmm.nn.Embedding.from_pretrained(np.arange(12, dtype="f4").reshape(4, 3), padding_idx=0)
    >>> layer(torch.tensor([[2, 1]])).tolist()         # in a model; a RemoteTable in place of the array
    [[[6.0, 7.0, 8.0], [3.0, 4.0, 5.0]]]
    >>> tuple(layer.weight.shape)                      # a copy, for code that ties weights
    (4, 3)
    >>> layer.forward(torch.tensor([3])).shape, layer.num_embeddings, layer.extra_repr()
    (torch.Size([1, 3]), 4, '4, 3...')
    """

    def __init__(self, source: TableSource | np.ndarray[Any, Any], padding_idx: int | None = None) -> None:
        super().__init__()
        table: TableSource = _Local(source) if isinstance(source, np.ndarray) else source
        if len(table.shape) != 2:
            raise _refused(f"a table of shape {list(table.shape)}", "two axes: [num_embeddings, embedding_dim]")
        self.num_embeddings, self.embedding_dim = table.shape
        if padding_idx is not None:
            if not -self.num_embeddings <= padding_idx < self.num_embeddings:
                raise _refused(f"padding_idx={padding_idx}", f"a row of the table: 0 to {self.num_embeddings - 1}")
            padding_idx %= self.num_embeddings
        self.padding_idx = padding_idx
        self._source = table
        self._dtype: torch.dtype = tensor_from(np.empty(0, table.dtype)).dtype

    @classmethod
    def from_pretrained(
        cls, source: TableSource | np.ndarray[Any, Any], freeze: bool = True, padding_idx: int | None = None
    ) -> Embedding:
        """As ``torch.nn.Embedding.from_pretrained``: `source` and `padding_idx` as for the class; `freeze` must be True.

        ObmmArgumentError otherwise.
        """
        if not freeze:
            raise _refused("freeze=False: another node's table is not trained from here", "freeze=True")
        return cls(source, padding_idx)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        """Rows of `ids` -> ``[*ids.shape, embedding_dim]``, on the device of `ids`."""
        if ids.is_floating_point() or ids.is_complex() or ids.dtype == torch.bool:
            raise _refused(f"ids of type {ids.dtype}", "int32 or int64")
        numbers = ids.detach().to("cpu", torch.int64).numpy()
        rows = torch.empty((*ids.shape, self.embedding_dim), dtype=self._dtype, pin_memory=ids.is_cuda)
        if numbers.size:
            self._check(numbers)
            self._source.gather(numbers, _numpy_over(rows, self._source.dtype))
        return rows.to(ids.device, non_blocking=True)

    def _check(self, numbers: np.ndarray[Any, Any]) -> None:
        low, high = int(numbers.min()), int(numbers.max())
        if low < 0 or high >= self.num_embeddings:
            wrong = low if low < 0 else high
            raise _refused(f"id {wrong} is not a row", f"ids are 0 to {self.num_embeddings - 1}", errno.ERANGE)

    @property
    def weight(self) -> torch.Tensor:
        """A copy of the whole table, for code that ties weights.  As large as the table: prefer `forward`."""
        return tensor_from(self._source.gather(np.arange(self.num_embeddings)))

    def extra_repr(self) -> str:
        """Shown in the model's `repr`."""
        padding = "" if self.padding_idx is None else f", padding_idx={self.padding_idx}"
        return f"{self.num_embeddings}, {self.embedding_dim}{padding}, source={self._source!r}"


def _numpy_over(tensor: torch.Tensor, dtype: np.dtype[Any]) -> np.ndarray[Any, Any]:
    """A NumPy array over the tensor's own memory, of a type that torch and NumPy spell differently."""
    flat: np.ndarray[Any, Any] = tensor.view(torch.uint8).numpy()
    return flat.view(dtype)


def _refused(problem: str, fix: str, code: int = errno.EINVAL) -> ObmmArgumentError:
    return ObmmArgumentError.because("EMBEDDING", code, problem, fix, "docs/tutorial.md")
