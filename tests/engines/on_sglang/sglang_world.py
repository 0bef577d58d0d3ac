# SPDX-License-Identifier: Apache-2.0
"""As much of a running SGLang as its Engram layers see: the engine's own hasher, manager, layers, and a batch."""

from __future__ import annotations

import contextlib
import gc
import itertools
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from safetensors import safe_open
from sglang.srt import plugins
from sglang.srt.distributed import parallel_state
from sglang.srt.layers import engram, engram_staging
from sglang.srt.model_executor.forward_batch_info import ForwardMode
from sglang.srt.model_executor.model_runner_components import ngram_embedding_manager
from sglang.srt.models import qwen4_exp
from sglang.srt.plugins.hook_registry import HookRegistry
from sglang.srt.runtime_context import get_parallel
from tokenizers import Tokenizer, models, pre_tokenizers
from torch import nn
from toy_checkpoints import deepseek_config

BASE, HEADS, ORDER, LAYERS = 125_000, 4, 3, (1, 3)
VOCABULARY = 2000

_HOOKED = (
    (engram, "EngramEmbedding"),
    (engram_staging, "EngramRowStager"),
    (engram_staging, "EngramEmbedding"),
    (engram.EngramHasher, "forward"),
    (qwen4_exp, "allocate_ple_host_table"),
    (qwen4_exp.Qwen4ExpPinnedHostEmbedding, "__init__"),
    (qwen4_exp.Qwen4ExpPinnedHostEmbedding, "gather"),
    (qwen4_exp.Qwen4ExpForConditionalGeneration, "load_weights"),
)


def originals() -> list[tuple[Any, str, Any]]:
    return [(owner, name, vars(owner)[name]) for owner, name in _HOOKED]


def restore(kept: list[tuple[Any, str, Any]]) -> None:
    HookRegistry.reset()
    plugins._plugins_loaded = False
    for owner, name, value in kept:
        setattr(owner, name, value)


def load_plugins() -> None:
    plugins.load_plugins()


def doors() -> list[Any]:
    """Those of this process that have attached a table."""
    from obmm.integrations.door import Door

    return [d for d in gc.get_objects() if type(d) is Door and d._client is not None and not d._client.closed]


def close_doors() -> None:
    """Nothing of an engine closes a table: a server ends with its process."""
    for each in doors():
        each._client.close()


@contextlib.contextmanager
def parallel(tp_size: int = 1, tp_rank: int = 0, group: Any = None) -> Iterator[None]:
    """Ranks of one process have no group that they meet in; those of several give the engine's own."""
    group = group or SimpleNamespace(
        rank_in_group=tp_rank, barrier=lambda: None, broadcast_object=lambda value, src=0: value
    )
    with get_parallel().override(
        tp_size=tp_size, tp_rank=tp_rank, tp_group=group, attn_dp_size=1, attn_cp_size=1, attn_cp_rank=0
    ):
        yield


def coordinator(rank: int, ranks: int, meeting: Path) -> Any:
    """The engine's own group of tensor-parallel processes, over gloo."""
    torch.distributed.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=ranks)
    off = dict.fromkeys(
        ("pynccl", "mscclpp", "custom_allreduce", "torch_symm_mem_all_reduce", "hpu_communicator", "xpu_communicator"),
        False,
    )
    options = {f"use_{name}": value for name, value in off.items()}
    return parallel_state.GroupCoordinator([list(range(ranks))], rank, "gloo", **options)


def layout() -> Any:
    config = deepseek_config(BASE, HEADS, ORDER, LAYERS)
    return engram.EngramLayout.from_config(SimpleNamespace(**config))


class ToyTokenizer:
    """Words of a `tokenizers` model, as a Hugging Face tokenizer shows them."""

    def __init__(self) -> None:
        words = {f"w{number}": number for number in range(VOCABULARY)}
        self.backend_tokenizer = Tokenizer(models.WordLevel(words, unk_token="w0"))
        self.backend_tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()

    def __len__(self) -> int:
        return VOCABULARY


def hasher() -> Any:
    made = engram.EngramHasher(layout(), ToyTokenizer(), 2, VOCABULARY)
    made.init_history(8, "cpu")
    return made


def embeddings(checkpoint: Path | None) -> list[Any]:
    """The engine's embedding of each layer, loaded as its loader does."""
    shape = layout()
    made = []
    for place, layer in enumerate(shape.layer_ids):
        bounds = shape.column_bounds(place)
        embed = engram.EngramEmbedding(shape.num_embeddings[place], shape.head_dim, layer, bounds)
        if checkpoint is not None:
            for name, file, param in (("weight", "a", embed.weight), ("scale", "b", embed.scale)):
                with safe_open(checkpoint / f"{file}.safetensors", "pt") as opened:
                    param.weight_loader(param, opened.get_tensor(f"model.layers.{layer}.engram.embed.{name}"))
        embed.finish_load(f"layer {layer}")
        made.append(embed)
    return made


class Layer(engram.Engram):
    """The engine's layer without its projection: what looks rows up."""

    def __init__(self, place: int, embed: Any) -> None:
        nn.Module.__init__(self)
        self.layer_hash_index = place
        self.embed = embed
        self.image_token_id = None


class Model(nn.Module):
    def __init__(self, embeds: Sequence[Any], made: Any) -> None:
        super().__init__()
        self.hasher = made
        self.layers = nn.ModuleList(Layer(place, embed) for place, embed in enumerate(embeds))


def manager(model: Model) -> Any:
    config = SimpleNamespace(use_engram=True, use_ngram_embedding=False, context_len=4096, ngram_embedding_n=ORDER)
    pool = SimpleNamespace(req_to_token=torch.zeros(8, 4096))
    ngram_embedding_manager.async_h2d = lambda data, dtype, device: torch.tensor(data, dtype=dtype)
    return ngram_embedding_manager.NgramEmbeddingManager.from_model(
        model=model, model_config=config, req_to_token_pool=pool, max_running_requests=8, device="cpu"
    )


def extend_batch(requests: Sequence[tuple[Sequence[int], int]]) -> Any:
    """Requests ``(tokens so far, how many of them a cache has)``."""
    prefix = [cached for _, cached in requests]
    return SimpleNamespace(
        forward_mode=ForwardMode.EXTEND,
        reqs=[SimpleNamespace(full_untruncated_fill_ids=list(tokens)) for tokens, _ in requests],
        prefix_lens=prefix,
        extend_lens=[len(tokens) - cached for tokens, cached in requests],
        encoder_swa_reset=None,
        engram_history=None,
        engram_staged_rows=None,
    )


def forward_batch(mode: Any, batch: Any = None, **fields: Any) -> Any:
    known = {"forward_mode": mode, "engram_history": None, "engram_staged_rows": None, "spec_info": None}
    if batch is not None:
        lens = batch.extend_lens
        known |= {
            "engram_history": batch.engram_history,
            "engram_staged_rows": batch.engram_staged_rows,
            "extend_seq_lens_cpu": lens,
            "extend_seq_lens": torch.tensor(lens),
            "extend_start_loc": torch.tensor([0, *itertools.accumulate(lens[:-1])]),
            "positions": torch.cat([torch.arange(p, p + n) for p, n in zip(batch.prefix_lens, lens, strict=True)]),
            "req_pool_indices": torch.arange(len(lens)),
            "out_cache_loc": torch.arange(1, 1 + sum(lens)),
        }
    return SimpleNamespace(**(known | fields))


def tokens(seed: int, n: int) -> list[int]:
    return np.random.default_rng(seed).integers(0, VOCABULARY, n).tolist()


Step = Callable[[Any, Any], list[torch.Tensor]]
"""Of a model and its manager -> the rows of each layer."""


def conversation() -> list[Step]:
    """Two chunks of one request beside another one, decode steps, and drafts of which some are rejected."""
    first, second = tokens(1, 700), tokens(2, 300)
    drafts = [[11, 12, 13, 14], [21, 22, 23, 24]]
    decode, verify = ForwardMode.DECODE, ForwardMode.TARGET_VERIFY
    return [
        _extend([(first[:512], 0), (second, 0)]),
        _extend([(first, 512), (second, 299)]),
        *(_lookup(decode, [[5 + turn], [9 + turn]], [700 + turn, 300 + turn]) for turn in range(4)),
        _lookup(verify, drafts, [704, 304], spec_info=SimpleNamespace(draft_token_num=4)),
        _lookup(decode, [[31], [32]], [706, 308]),
    ]


def _extend(requests: list[tuple[list[int], int]]) -> Step:
    def run(model: Any, manager: Any) -> list[torch.Tensor]:
        batch = extend_batch(requests)
        manager.prepare_for_forward(batch, chunked_req=None)
        assert (batch.engram_staged_rows is None) == (manager.engram_stager is None)
        forward = forward_batch(ForwardMode.EXTEND, batch)
        ids = model.hasher(torch.tensor([t for tokens, cached in requests for t in tokens[cached:]]), forward)
        return [layer.embed_rows(ids[:, place], forward, False) for place, layer in enumerate(model.layers)]

    return run


def _lookup(mode: Any, ids: list[list[int]], position: list[int], **fields: Any) -> Step:
    def run(model: Any, manager: Any) -> list[torch.Tensor]:
        flat = torch.tensor(ids)
        places = torch.tensor(position)[:, None] + torch.arange(flat.shape[1])
        requests = torch.arange(len(ids))
        forward = forward_batch(
            mode,
            positions=places.reshape(-1),
            req_pool_indices=requests,
            out_cache_loc=torch.arange(1, 1 + flat.numel()),
            **fields,
        )
        hashed = model.hasher(flat.reshape(-1), forward)
        rows = [layer.embed_rows(hashed[:, place], forward, False) for place, layer in enumerate(model.layers)]
        if mode is ForwardMode.TARGET_VERIFY:
            manager.update_after_verify(verify_ids_2d=flat, req_pool_indices=requests, commit_lens=torch.tensor([2, 4]))
        return rows

    return run
