# SPDX-License-Identifier: Apache-2.0
"""The door into SGLang: found by its plug-in mechanism, closed unless ``SGLANG_OBMM_ENGRAM`` names a source.

SGLANG_OBMM_ENGRAM=10.0.0.7:13857/flash python -m sglang.launch_server --model-path /models/flash
"""

from __future__ import annotations

import os

from obmm.errors import ObmmError
from obmm.integrations.settings import EngramSettings
from obmm.integrations.versions import HookPoint, check_hooks, check_version

SETTING = "SGLANG_OBMM_ENGRAM"

_ENGRAM = "sglang.srt.layers.engram"
_STAGING = "sglang.srt.layers.engram_staging"
_QWEN = "sglang.srt.models.qwen4_exp"

ENGRAM_HOOKS = (
    HookPoint(f"{_ENGRAM}:EngramEmbedding.__init__", ("num_embeddings", "dim", "layer_id", "column_bounds")),
    HookPoint(f"{_ENGRAM}:EngramEmbedding.forward", ("indices", "forward_batch", "cp_all_tokens")),
    HookPoint(f"{_ENGRAM}:EngramEmbedding.dequant_staged", ("rows", "scales", "copied", "hash_shape")),
    HookPoint(f"{_ENGRAM}:EngramEmbedding._owned_rows", ("indices",)),
    HookPoint(f"{_ENGRAM}:EngramEmbedding._load_rows", ("param", "loaded_weight")),
    HookPoint(f"{_ENGRAM}:EngramEmbedding._reduce_owned_rows", ("values",)),
    HookPoint(f"{_ENGRAM}:EngramEmbedding.finish_load", ("label",)),
    HookPoint(f"{_ENGRAM}:EngramEmbedding.new_rows", ("indices",)),
    HookPoint(f"{_ENGRAM}:shard_range", ("num_embeddings", "column_bounds", "tp_rank", "tp_size")),
    HookPoint(f"{_ENGRAM}:EngramHasher.forward", ("input_ids", "forward_batch")),
    HookPoint(f"{_ENGRAM}:EngramHasher.hash_windows", ("tokens", "blocked")),
    HookPoint(f"{_STAGING}:EngramRowStager.__init__", ("hasher", "embeds", "device")),
    HookPoint(f"{_STAGING}:EngramRowStager.from_model", ("model", "hasher", "device")),
    HookPoint(f"{_STAGING}:EngramRowStager.stage", ("batch",)),
    HookPoint(f"{_STAGING}:EngramRowStager._windows", ("batch",)),
)
PLE_HOOKS = (
    HookPoint(f"{_QWEN}:allocate_ple_host_table", ("shape", "dtype", "backend", "table_dir", "tag")),
    HookPoint(f"{_QWEN}:Qwen4ExpPinnedHostEmbedding.__init__", ("embedding", "backend", "table_dir")),
    HookPoint(f"{_QWEN}:Qwen4ExpPinnedHostEmbedding.gather", ("input_ids", "out")),
    HookPoint(f"{_QWEN}:Qwen4ExpPinnedHostEmbedding.allocate_output", ("shape", "device")),
    HookPoint(f"{_QWEN}:Qwen4ExpForConditionalGeneration.load_weights", ("weights",)),
)


def plugin() -> None:
    """The entry point.  What is wrong ends the server: an ordinary exception would only be logged, and a local table made."""
    text = os.environ.get(SETTING, "")
    if not text:
        return
    try:
        settings = EngramSettings.parse(text, setting=SETTING)
        version = check_version("sglang")
        check_hooks("sglang", ENGRAM_HOOKS + PLE_HOOKS)
    except ObmmError as error:
        raise SystemExit(f"obmm: {error.strerror}") from error
    from obmm.integrations import sglang_engram, sglang_ple
    from obmm.integrations.door import Door

    door = Door("sglang", version, settings)
    sglang_engram.register(door)
    sglang_ple.register(door)
    door.log.info("obmm: rows of %s in sglang %s", settings.source, version)
