# SPDX-License-Identifier: Apache-2.0
"""As much of a running vLLM as its n-gram tables see: the engine's own layout, embeddings and layers on the CPU.

Triton has no back end for a CPU, so the engine's lookup kernels cannot run here: what they compute is written out in torch.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import tempfile
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from safetensors import safe_open
from stand_ins import Stream
from torch import nn
from toy_checkpoints import deepseek_config
from vllm.config import VllmConfig, set_current_vllm_config
from vllm.distributed import init_distributed_environment, initialize_model_parallel
from vllm.models.deepseek_v41.common import engram
from vllm.models.qwen4_exp.common import ngram_embedding
from vllm.plugins import load_general_plugins

BASE, HEADS, ORDER, LAYERS = 125_000, 4, 3, (1, 3)

GROUP = {"size": 1, "rank": 0}


def _cdiv(a: int, b: int) -> int:
    return -(-a // b)


for _module in (engram, ngram_embedding):
    _module.is_uva_available = lambda: True
    _module.get_accelerator_view_from_cpu_tensor = lambda tensor: tensor
    _module.triton = SimpleNamespace(cdiv=_cdiv, next_power_of_2=lambda n: 1 << max(0, n - 1).bit_length())
engram.get_engram_dp_size = lambda: 1
engram.get_tensor_model_parallel_world_size = lambda: GROUP["size"]
engram.get_tensor_model_parallel_rank = lambda: GROUP["rank"]
torch.cuda.get_device_properties = lambda device=None: SimpleNamespace(multi_processor_count=1)  # type: ignore[assignment]
torch.accelerator.current_device_index = lambda: 0  # type: ignore[assignment]

load_general_plugins()


@functools.cache
def started() -> None:
    """The engine's process groups, with one rank, over gloo."""
    where = Path(tempfile.mkdtemp()) / "store"
    with set_current_vllm_config(VllmConfig()):
        init_distributed_environment(1, 0, f"file://{where}", 0, "gloo")
        initialize_model_parallel(1, 1)


@contextlib.contextmanager
def configured(option: dict[str, Any] | None, **engram_options: Any) -> Iterator[None]:
    """An engine that is being built with this additional config."""
    config = VllmConfig(additional_config={} if option is None else {"obmm_engram": option})
    config.engram_config = SimpleNamespace(
        cpu_offload=True, dp_shared_memory=False, use_thp=False, embedding_across_dp=False, **engram_options
    )
    with set_current_vllm_config(config):
        yield


@contextlib.contextmanager
def ranks(size: int, rank: int) -> Iterator[None]:
    before = dict(GROUP)
    GROUP.update(size=size, rank=rank)
    try:
        yield
    finally:
        GROUP.update(before)


def close_doors() -> None:
    from obmm.integrations import vllm_door
    from obmm.integrations.door import Door

    for each in gc.get_objects():
        if type(each) is Door and each._client is not None:
            each._client.close()
    vllm_door._door.cache_clear()


def layout() -> Any:
    config = {**deepseek_config(BASE, HEADS, ORDER, LAYERS), "engram_compressed_vocab_size": 2000}
    return engram.EngramLayout(SimpleNamespace(**config))


class Layer(engram.Engram):
    """The engine's layer without its projection: its table, its staging, its prefetch."""

    def __init__(self, place: int, max_tokens: int) -> None:
        nn.Module.__init__(self)
        shape = layout()
        self.layer_hash_index = place
        self.use_sequence_parallel = False
        self.embed_tokens = self._create_embedding(shape, place)
        self._prefetch_stream = Stream()
        self._init_staging(max_tokens, shape.head_dim)


def tensors(checkpoint: Path, layer: int) -> tuple[torch.Tensor, torch.Tensor]:
    stem = f"model.layers.{layer}.engram.embed."
    with (
        safe_open(checkpoint / "a.safetensors", "pt") as values,
        safe_open(checkpoint / "b.safetensors", "pt") as scales,
    ):
        return values.get_tensor(stem + "weight"), scales.get_tensor(stem + "scale")


def layers(checkpoint: Path | None, max_tokens: int = 256) -> list[Layer]:
    """Both layers, loaded as the engine's loader does."""
    made = [Layer(place, max_tokens) for place in range(len(LAYERS))]
    for layer, number in zip(made, LAYERS, strict=True):
        if checkpoint is not None:
            weight, scale = tensors(checkpoint, number)
            table = layer.embed_tokens
            table.weight.weight_loader(table.weight, weight)
            table.weight_scale_inv.weight_loader(table.weight_scale_inv, scale)
    return made


def looked_up(weight: torch.Tensor, scale: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
    """What the engine's kernel computes: value times the power of two of its block, in float32, rounded once."""
    known = (ids >= 0) & (ids < weight.shape[0])
    at = torch.where(known, ids, 0)
    rows = weight[at].float().unflatten(-1, (-1, 32)) * scale[at].float().unsqueeze(-1)
    return torch.where(known.unsqueeze(-1), rows.flatten(-2), torch.zeros(())).to(torch.bfloat16)
