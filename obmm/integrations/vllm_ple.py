# SPDX-License-Identifier: Apache-2.0
"""vLLM's per-layer n-gram embeddings (PLE) on rows of a published table."""

from __future__ import annotations

import errno
import functools
import re
from types import ModuleType
from typing import Any

import torch

from obmm.errors import ObmmArgumentError
from obmm.integrations.door import zero_storage
from obmm.integrations.vllm_door import door, wrapped

_LAYER = re.compile(r"(?:^|\.)layers\.(\d+)\.")


def install(module: ModuleType) -> None:
    """Wrap the classes of the module; they do as before where the option is not set."""
    pinned: Any = module.Qwen4ExpPLEPinnedHostEmbedding
    if "weight_loader" not in vars(pinned):  # inherited: wrap it where the door is, and nowhere else
        inherited = pinned.weight_loader

        @functools.wraps(inherited)
        def weight_loader(self: Any, *arguments: Any, **options: Any) -> Any:
            return inherited(self, *arguments, **options)

        pinned.weight_loader = weight_loader
    wrapped(pinned, "__init__", _made)
    wrapped(pinned, "allocate_embedding_weight", _allocate)
    wrapped(pinned, "weight_loader", _load)
    wrapped(pinned, "_lookup", _lookup)
    wrapped(module.Qwen4ExpPLEDeviceEmbedding, "allocate_embedding_weight", _refuse_device)


def _allocate(original: Any, self: Any, num_embeddings: int, embedding_dim: int, dtype: Any) -> Any:
    made = door()
    if made is None:
        return original(self, num_embeddings, embedding_dim, dtype)
    self._obmm_door, self._obmm_rows = made, num_embeddings
    return zero_storage((num_embeddings, embedding_dim), dtype)


def _made(original: Any, self: Any, num_embeddings: int, embedding_dim: int, *, prefix: str, **options: Any) -> None:
    original(self, num_embeddings, embedding_dim, prefix=prefix, **options)
    made = getattr(self, "_obmm_door", None)
    if made is None:
        return
    layer = _LAYER.search(prefix)
    spec = self._obmm_spec = made.claim(
        f"layer{layer[1]}" if layer else None,
        rows=num_embeddings,
        row_bytes=embedding_dim * self.weight.element_size(),
        dtype={torch.float8_e4m3fn: "f8_e4m3", torch.bfloat16: "bf16"}.get(self.weight.dtype),
    )
    constants = made.client.manifest.model.get("engram", {}).get("constants", {}).get(str(spec.table_id), {})
    scale = getattr(self, "weight_scale", None)
    if scale is not None and constants.get("weight_scale"):
        scale.data.fill_(float(constants["weight_scale"][0]))  # the checkpoint's file may be left out


def _load(original: Any, self: Any, param: Any, loaded: Any, *arguments: Any, **options: Any) -> None:
    """Everything but the table: the scale is loaded as ever."""
    if getattr(self, "_obmm_door", None) is None or param is not self.weight:
        original(self, param, loaded, *arguments, **options)


def _lookup(original: Any, self: Any, input_ids: Any, output: Any = None) -> Any:
    made = getattr(self, "_obmm_door", None)
    if made is None:
        return original(self, input_ids, output)
    shape = (*input_ids.shape, self.embedding_dim)
    if output is None:
        output = torch.empty(shape, dtype=self.weight.dtype, device=input_ids.device)
    elif tuple(output.shape) != shape or output.dtype != self.weight.dtype or output.device != input_ids.device:
        raise ValueError(f"the output is {output.dtype} {tuple(output.shape)}: {self.weight.dtype} {shape} is written")
    flat = input_ids.reshape(-1).long()
    if flat.numel():
        made.between_steps()
        low, high = self.shard_indices.org_vocab_start_index, self.shard_indices.org_vocab_end_index
        if low or high < self._obmm_spec.n_rows:
            flat = torch.where((flat >= low) & (flat < high), flat, -1)
        rows = made.rows(self._obmm_spec, flat, "ple")
        output.view(torch.uint8).view(flat.numel(), -1).copy_(rows)
    return output


def _refuse_device(original: Any, self: Any, num_embeddings: int, embedding_dim: int, dtype: Any) -> Any:
    if door() is not None:
        raise ObmmArgumentError.because(
            "ENGRAM",
            errno.EINVAL,
            "the n-gram table would be allocated on the device: the door takes the place of an offloaded one",
            "start with --engram-config '{\"cpu_offload\": true}'",
            "docs/engines-vllm.md",
        )
    return original(self, num_embeddings, embedding_dim, dtype)
