# SPDX-License-Identifier: Apache-2.0
"""SGLang's per-layer n-gram embeddings (PLE) on rows of a published table: no host table, another gather."""

from __future__ import annotations

import errno
from collections.abc import Iterable, Iterator
from typing import Any

import torch
from sglang.srt.models import qwen4_exp
from sglang.srt.plugins.hook_registry import HookRegistry, HookType

from obmm.errors import ObmmArgumentError
from obmm.integrations.decode import plain_rows
from obmm.integrations.door import Door, zero_storage

_MODULE = qwen4_exp.__name__


def register(door: Door) -> None:
    """Hooks for the registry: the one allocation, the gather, and the loader of shards."""

    def allocate(shape: Any, dtype: Any, backend: str = "pinned", table_dir: Any = None, tag: Any = None) -> Any:
        return zero_storage(tuple(int(length) for length in shape), dtype)

    def made(original: Any, self: Any, embedding: Any, **options: Any) -> None:
        original(self, embedding, **options)
        self._obmm_spec = door.claim(
            None, rows=int(self.num_embeddings), row_bytes=self.embedding_dim * self.weight.element_size()
        )
        # Wrong scales would be silent: the published one stands until the checkpoint's own is loaded.
        scale = _scale_of(door, self._obmm_spec)
        if scale is not None:
            self.weight_scale.fill_(scale)

    def gather(self: Any, input_ids: Any, out: Any = None) -> Any:
        shape = (*input_ids.shape, self.embedding_dim)
        if out is None:
            out = self.allocate_output(shape, input_ids.device)
        elif tuple(out.shape) != shape or out.dtype != torch.bfloat16 or out.device != input_ids.device:
            raise ValueError(f"out is {out.dtype} {tuple(out.shape)}: bfloat16 {shape} on the ids' device is written")
        flat = input_ids.reshape(-1).long()
        if flat.numel():
            low, high = self.shard_indices.org_vocab_start_index, self.shard_indices.org_vocab_end_index
            spec = self._obmm_spec
            if low or high < spec.n_rows:
                flat = torch.where((flat >= low) & (flat < high), flat, -1)
            door.between_steps()
            rows = door.rows(spec, flat, "ple")
            out.view(-1, self.embedding_dim).copy_(plain_rows(rows, spec.dtype))
        return out

    def load_weights(original: Any, self: Any, weights: Iterable[tuple[str, Any]]) -> Any:
        for name, module in self.named_modules():
            if name.endswith(".ngram_embedding") and not hasattr(module, "_obmm_spec"):
                raise ObmmArgumentError.because(
                    "ENGRAM",
                    errno.EINVAL,
                    f"{name} was allocated on the device: the door takes the place of an offloaded table",
                    "start with --ple-offload-embedding",
                    "docs/engines-sglang.md",
                )
        return original(self, _without_tables(weights))

    target = f"{_MODULE}.Qwen4ExpPinnedHostEmbedding"
    HookRegistry.register(f"{_MODULE}.allocate_ple_host_table", allocate, HookType.REPLACE)
    HookRegistry.register(f"{target}.__init__", made, HookType.AROUND)
    HookRegistry.register(f"{target}.gather", gather, HookType.REPLACE)
    HookRegistry.register(f"{_MODULE}.Qwen4ExpForConditionalGeneration.load_weights", load_weights, HookType.AROUND)


def _without_tables(weights: Iterable[tuple[str, Any]]) -> Iterator[tuple[str, Any]]:
    """The loader would copy every shard into the one row that is here, and read the whole file for it."""
    return ((name, tensor) for name, tensor in weights if ".ngram_embedding.shard_" not in name)


def _scale_of(door: Door, spec: Any) -> float | None:
    constants = door.client.manifest.model.get("engram", {}).get("constants", {})
    scale = constants.get(str(spec.table_id), {}).get("weight_scale")
    return float(scale[0]) if scale else None
