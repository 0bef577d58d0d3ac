# SPDX-License-Identifier: Apache-2.0
"""What vLLM's doors share: the option, the hooks that must be as they were, and one door per process."""

from __future__ import annotations

import functools
import threading
from typing import Any

from obmm.integrations.door import Door
from obmm.integrations.settings import EngramSettings
from obmm.integrations.versions import HookPoint, check_hooks, check_version

OPTION = "obmm_engram"

ENGRAM = "vllm.models.deepseek_v41.common.engram"
PLE = "vllm.models.qwen4_exp.common.ngram_embedding"

ENGRAM_HOOKS = (
    HookPoint(
        f"{ENGRAM}:ParallelEngramEmbedding.__init__",
        ("num_embeddings", "dim", "head_sizes", "block_size", "cpu_offload", "dp_shared_memory", "use_thp"),
    ),
    HookPoint(f"{ENGRAM}:ParallelEngramEmbedding._allocate_weights"),
    HookPoint(f"{ENGRAM}:ParallelEngramEmbedding.lookup", ("indices", "out", "background")),
    HookPoint(f"{ENGRAM}:Engram._create_embedding", ("layout", "layer_hash_index")),
)
PLE_HOOKS = (
    HookPoint(
        f"{PLE}:Qwen4ExpPLEPinnedHostEmbedding.__init__",
        ("num_embeddings", "embedding_dim", "params_dtype", "padding_size"),
    ),
    HookPoint(
        f"{PLE}:Qwen4ExpPLEPinnedHostEmbedding.allocate_embedding_weight", ("num_embeddings", "embedding_dim", "dtype")
    ),
    HookPoint(f"{PLE}:Qwen4ExpPLEPinnedHostEmbedding.weight_loader", ("param", "loaded_weight", "checkpoint_start")),
    HookPoint(f"{PLE}:Qwen4ExpPLEPinnedHostEmbedding._lookup", ("input_ids", "output")),
    HookPoint(
        f"{PLE}:Qwen4ExpPLEDeviceEmbedding.allocate_embedding_weight", ("num_embeddings", "embedding_dim", "dtype")
    ),
)


def settings() -> EngramSettings | None:
    """What the additional config of the engine that is being built says; ObmmArgumentError for nonsense."""
    from vllm.config import get_current_vllm_config

    config = get_current_vllm_config().additional_config
    options = config.get(OPTION) if isinstance(config, dict) else None
    return None if options is None else EngramSettings.of(options, setting=f"additional_config[{OPTION!r}]")


def door() -> Door | None:
    """The door that this process's options ask for; the same one for all layers."""
    wanted = settings()
    if wanted is None:
        return None
    with _making:
        return _door(wanted)


_making = threading.Lock()


@functools.cache
def _door(wanted: EngramSettings) -> Door:
    version = check_version("vllm")
    check_hooks("vllm", ENGRAM_HOOKS + PLE_HOOKS)
    return Door("vllm", version, wanted)


def wrapped(owner: Any, name: str, around: Any) -> None:
    """Put ``around(original, self, ...)`` in the place of a method, once."""
    original = vars(owner)[name]
    if hasattr(original, "_obmm_original"):
        return

    @functools.wraps(original)
    def method(self: Any, *arguments: Any, **options: Any) -> Any:
        return around(original, self, *arguments, **options)

    method._obmm_original = original  # type: ignore[attr-defined]
    setattr(owner, name, method)
