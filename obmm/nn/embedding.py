# SPDX-License-Identifier: Apache-2.0
"""A frozen embedding whose table lies elsewhere: in another node's memory, or in any array."""

from __future__ import annotations

import copy
import errno
from collections.abc import Mapping
from typing import Any, Protocol

import numpy as np
import torch

from obmm.arguments import whole
from obmm.errors import ObmmArgumentError
from obmm.exchange.torch_types import numpy_dtype, tensor_from


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

    `source`: a `RemoteTable` of two axes ``[num_embeddings, embedding_dim]``, or an array or a tensor of that shape.
    `forward` takes ids of any shape and integer type, on the CPU or a device, and gives ``[*ids.shape, embedding_dim]``
    there, of the table's type, or of the one that ``.half()`` or ``.to(dtype)`` of the model asked for.  Every row is a
    guarded copy: RemoteMemoryError when the owner is gone.  Nothing is trained; `padding_idx` is kept for compatibility
    (in torch it only stops a gradient).  ObmmArgumentError for a table of other axes or of numbers that torch does not
    have, for ids that are not integers, and for rows that do not exist.

    The layer has no weight in a ``state_dict``.  One in a checkpoint that is loaded is left alone once three of its rows are
    the table's.  A deep copy reads the same source; a pickle of a layer over a `RemoteTable` is refused.  ``torch.compile``
    breaks its graph here.

    >>> import torch
    >>> layer = obmm.nn.Embedding.from_pretrained(np.arange(12, dtype="f4").reshape(4, 3), padding_idx=0)
    >>> layer(torch.tensor([[2, 1]])).tolist()         # in a model; a RemoteTable in place of the array
    [[[6.0, 7.0, 8.0], [3.0, 4.0, 5.0]]]
    >>> tuple(layer.weight.shape)                      # a copy, for code that ties weights
    (4, 3)
    >>> layer.forward(torch.tensor([3])).shape, layer.num_embeddings, layer.extra_repr()
    (torch.Size([1, 3]), 4, '4, 3...')
    """

    max_norm = None
    norm_type = 2.0
    scale_grad_by_freq = False
    sparse = False

    def __init__(
        self, source: TableSource | np.ndarray[Any, Any] | torch.Tensor, padding_idx: int | None = None
    ) -> None:
        super().__init__()
        table = _table(source)
        if len(table.shape) != 2:
            raise _refused(f"a table of shape {list(table.shape)}", "two axes: [num_embeddings, embedding_dim]")
        self.num_embeddings, self.embedding_dim = table.shape
        if padding_idx is not None:
            count = self.num_embeddings
            padding_idx = whole("EMBEDDING", "padding_idx", padding_idx, low=-count, high=count - 1) % max(1, count)
        self.padding_idx = padding_idx
        self._source = table
        try:
            self._dtype: torch.dtype = tensor_from(np.empty(0, table.dtype)).dtype
        except (TypeError, ValueError):
            fix = "numbers that torch has, in this machine's byte order"
            raise _refused(f"a table of {table.dtype}", fix) from None
        # what .to(dtype) of a model changes
        self.register_buffer("_form", torch.empty(0, dtype=self._dtype), persistent=False)

    @classmethod
    def from_pretrained(
        cls,
        source: TableSource | np.ndarray[Any, Any] | torch.Tensor,
        freeze: bool = True,
        padding_idx: int | None = None,
    ) -> Embedding:
        """As ``torch.nn.Embedding.from_pretrained``: `source` and `padding_idx` as for the class; `freeze` must be True.

        ObmmArgumentError otherwise.
        """
        if not freeze:
            raise _refused("freeze=False: another node's table is not trained from here", "freeze=True")
        return cls(source, padding_idx)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        """Rows of `ids` -> ``[*ids.shape, embedding_dim]``, on the device of `ids`."""
        if not isinstance(ids, torch.Tensor):
            raise _refused(f"ids of type {type(ids).__name__}", "a tensor: torch.as_tensor(ids)")
        if ids.is_floating_point() or ids.is_complex() or ids.dtype == torch.bool:
            raise _refused(f"ids of type {ids.dtype}", "int32 or int64")
        if ids.is_meta:
            return torch.empty((*ids.shape, self.embedding_dim), dtype=self._form.dtype, device="meta")
        return self._read(ids)

    @torch.compiler.disable  # type: ignore[untyped-decorator]  # reads of another node's memory cannot be traced
    def _read(self, ids: torch.Tensor) -> torch.Tensor:
        numbers = ids.detach().to("cpu", torch.int64).numpy()
        rows = torch.empty((*ids.shape, self.embedding_dim), dtype=self._dtype, pin_memory=ids.is_cuda)
        if numbers.size:
            self._check(numbers)
            self._source.gather(numbers, _numpy_over(rows, self._source.dtype))
        return rows.to(ids.device, non_blocking=True).to(self._form.dtype)

    def _check(self, numbers: np.ndarray[Any, Any]) -> None:
        low, high = int(numbers.min()), int(numbers.max())
        if low < 0 or high >= self.num_embeddings:
            wrong = low if low < 0 else high
            fix = f"ids are 0 to {self.num_embeddings - 1}" if self.num_embeddings else "the table has no rows"
            raise _refused(f"id {wrong} is not a row", fix, errno.ERANGE)

    def __deepcopy__(self, memo: dict[int, Any]) -> Embedding:
        memo[id(self._source)] = self._source  # it exists once
        twin = type(self).__new__(type(self))
        memo[id(self)] = twin
        twin.__dict__.update(copy.deepcopy(self.__dict__, memo))
        return twin

    def _load_from_state_dict(
        self,
        state_dict: Mapping[str, Any],
        prefix: str,
        local_metadata: Any,
        strict: bool,
        missing_keys: list[str],
        unexpected_keys: list[str],
        error_msgs: list[str],
    ) -> None:
        rest = dict(state_dict)
        weight = rest.pop(f"{prefix}weight", None)
        if weight is not None and not self._is(weight):
            error_msgs.append(f"{prefix}weight is another table than {self._source!r}: load the model that it is of")
        super()._load_from_state_dict(rest, prefix, local_metadata, strict, missing_keys, unexpected_keys, error_msgs)

    def _is(self, weight: torch.Tensor) -> bool:
        """Whether a checkpoint's weight is the table, by its shape and three rows."""
        if tuple(weight.shape) != (self.num_embeddings, self.embedding_dim):
            return False
        if weight.is_meta or not self.num_embeddings:
            return True
        some = torch.tensor([0, self.num_embeddings // 2, self.num_embeddings - 1])
        ours, theirs = self._read(some).float(), weight.detach()[some.to(weight.device)].to("cpu", self._dtype).float()
        return bool(torch.allclose(ours, theirs, rtol=1e-2, equal_nan=True))

    @property
    def weight(self) -> torch.Tensor:
        """A copy of the whole table, for code that ties weights.  As large as the table: prefer `forward`."""
        return tensor_from(self._source.gather(np.arange(self.num_embeddings)))

    def extra_repr(self) -> str:
        """Shown in the model's `repr`."""
        padding = "" if self.padding_idx is None else f", padding_idx={self.padding_idx}"
        return f"{self.num_embeddings}, {self.embedding_dim}{padding}, source={self._source!r}"


def _table(source: Any) -> TableSource:
    """What an array, a tensor or a source is read through."""
    if isinstance(source, torch.Tensor):
        flat = source.detach().cpu().contiguous().reshape(-1)
        return _Local(_numpy_over(flat, numpy_dtype(flat.dtype)).reshape(tuple(source.shape)))
    if isinstance(source, np.ndarray):
        return _Local(source)
    if not all(hasattr(source, part) for part in ("dtype", "shape", "gather")):
        raise _refused(
            f"a source of type {type(source).__name__}",
            "Embedding.from_pretrained(table), a RemoteTable (peer.open), an array or a tensor",
        )
    table: TableSource = source
    return table


def _numpy_over(tensor: torch.Tensor, dtype: np.dtype[Any]) -> np.ndarray[Any, Any]:
    """A NumPy array over the tensor's own memory, of a type that torch and NumPy spell differently."""
    flat: np.ndarray[Any, Any] = tensor.view(torch.uint8).numpy()
    return flat.view(dtype)


def _refused(problem: str, fix: str, code: int = errno.EINVAL) -> ObmmArgumentError:
    return ObmmArgumentError.because("EMBEDDING", code, problem, fix, "docs/tutorial.md")
