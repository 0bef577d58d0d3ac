# SPDX-License-Identifier: Apache-2.0
"""Small checkpoints of each family, written without the library that usually writes them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from obmm.prefetch.hashing.geometry import table_sizes

Tensor = tuple[str, tuple[int, ...], bytes]


def write_file(path: Path, tensors: Mapping[str, Tensor]) -> None:
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    at = 0
    for name, (dtype, shape, data) in tensors.items():
        header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [at, at + len(data)]}
        at += len(data)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for _, _, data in tensors.values():
            file.write(data)


def write_sharded(folder: Path, files: Mapping[str, Mapping[str, Tensor]]) -> None:
    for file, tensors in files.items():
        write_file(folder / file, tensors)
    where = {name: file for file, tensors in files.items() for name in tensors}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": where}))


def numbers(seed: int, *shape: int, high: int = 255) -> NDArray[np.uint8]:
    return np.random.default_rng(seed).integers(0, high, shape, np.uint8)


def deepseek_config(base: int, heads: int = 2, order: int = 3, layers: tuple[int, ...] = (1, 3)) -> dict[str, Any]:
    rows = [sum(sum(per) for per in layer) for layer in table_sizes([base] * (order - 1), heads, len(layers))]
    return {
        "engram_layer_ids": list(layers),
        "engram_max_ngram_size": order,
        "engram_vocab_size": base,
        "engram_n_heads": heads,
        "engram_head_dim": 64,
        "engram_num_embeddings": rows,
        "engram_pad_token_id": 2,
    }


def deepseek(
    folder: Path, base: int = 101, prefix: str = "model.", seed: int = 0, **geometry: Any
) -> dict[str, NDArray[np.uint8]]:
    """Two layers, values and scales in different files -> the packed rows of each table."""
    config = deepseek_config(base, **geometry)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps({"text_config": config}))
    files: dict[str, dict[str, Tensor]] = {"a.safetensors": {}, "b.safetensors": {}}
    packed = {}
    for layer, rows in zip(config["engram_layer_ids"], config["engram_num_embeddings"], strict=True):
        values, scales = numbers(seed + layer, rows, 64), numbers(seed + 100 + layer, rows, 2)
        values[values & 127 == 127] = 1  # not a number
        files["a.safetensors"][f"{prefix}layers.{layer}.engram.embed.weight"] = "F8_E4M3", (rows, 64), values.tobytes()
        files["b.safetensors"][f"{prefix}layers.{layer}.engram.embed.scale"] = "F8_E8M0", (rows, 2), scales.tobytes()
        files["b.safetensors"][f"{prefix}layers.{layer}.engram.q_weight"] = "F32", (2,), bytes(8)
        packed[f"layer{layer}"] = np.concatenate([values, scales], axis=1)
    write_sharded(folder, files)
    return packed


def qwen(
    folder: Path, rows: int = 1000, parts: int = 4, heads: int = 4, layer: int = 5, seed: int = 7
) -> dict[str, NDArray[np.uint8]]:
    """One layer in parts of which the last is shorter, all in one file -> the packed rows."""
    folder.mkdir(parents=True, exist_ok=True)
    values = numbers(seed, rows, 160)
    values[values & 127 == 127] = 1
    step = -(-rows // parts)
    stem = f"model.layers.{layer}.ple.ple_embedding."
    sizes = np.full(heads, rows // heads, np.int64)
    tensors: dict[str, Tensor] = {}
    for part in range(parts):
        piece = values[part * step : (part + 1) * step]
        tensors[f"{stem}ngram_embedding.shard_{part}.weight"] = "F8_E4M3", piece.shape, piece.tobytes()
    tensors[f"{stem}ngram_embedding.weight_scale"] = "BF16", (1,), b"\x00\x3f"
    tensors[f"{stem}layer_multipliers"] = "I64", (3,), np.array([3, 5, 7], np.int64).tobytes()
    tensors[f"{stem}ngram_heads_offsets"] = "I64", (heads,), (np.arange(heads) * sizes).astype(np.int64).tobytes()
    tensors[f"{stem}ngram_heads_vocab_sizes"] = "I64", (heads,), sizes.tobytes()
    tensors[f"{stem}hashstats_a"] = "F32", (1,), bytes(4)
    write_file(folder / "ple-fp8.safetensors", tensors)
    return {f"layer{layer}": values}
