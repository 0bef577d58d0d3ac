# SPDX-License-Identifier: Apache-2.0
"""vLLM's Engram embedding on rows of a published table: its one allocation and its lookup, replaced per object."""

from __future__ import annotations

import errno
from types import ModuleType
from typing import Any

import torch

from obmm.errors import ObmmArgumentError
from obmm.integrations.decode import BLOCK, fp8_rows
from obmm.integrations.door import zero_storage
from obmm.integrations.vllm_door import door, wrapped


def install(module: ModuleType) -> None:
    """Wrap the classes of the module; they do as before where the option is not set."""
    table: Any = module.ParallelEngramEmbedding
    wrapped(table, "_allocate_weights", _allocate)
    wrapped(table, "lookup", _lookup)
    wrapped(module.Engram, "_create_embedding", _create)


def _allocate(original: Any, self: Any) -> Any:
    made = door()
    if made is None:
        return original(self)
    if self.block_size != BLOCK:
        raise _refused(f"scales for {self.block_size} values each", f"tables have one for {BLOCK}")
    self._obmm_door, self._obmm_spec = made, None
    self._weight_loader = lambda param, loaded: _look(self, param, loaded)
    rows = self.part_num_embeddings
    return (
        zero_storage((rows, self.dim), torch.float8_e4m3fn),
        zero_storage((rows, self.dim // BLOCK), torch.uint8),
    )


def _create(original: Any, self: Any, layout: Any, layer_hash_index: int) -> Any:
    embed = original(self, layout, layer_hash_index)
    made = getattr(embed, "_obmm_door", None)
    if made is not None:
        sizes = [size for order in layout.primes[layer_hash_index] for size in order]
        starts = [sum(sizes[:place]) for place in range(len(sizes))]
        embed._obmm_spec = made.claim(
            f"layer{layout.layer_ids[layer_hash_index]}",
            rows=embed.num_embeddings,
            row_bytes=embed.dim + embed.dim // BLOCK,
            dtype="f8_e4m3",
            offsets=starts,
        )
        made.client.note(
            f"layer {layout.layer_ids[layer_hash_index]}", f"columns {embed.head_start} and on, of {len(sizes)}"
        )
    return embed


def _look(self: Any, param: Any, loaded: Any) -> None:
    """Compare a few rows of the local checkpoint, and take none."""
    spec = self._obmm_spec
    if spec is None:  # loaded before the layer said which one it is: its own check comes with the claim
        return
    is_scale = param is self.weight_scale_inv
    if loaded.shape != (spec.n_rows, param.shape[1]):
        raise _refused(
            f"the checkpoint has {tuple(loaded.shape)} for {spec.table_id!r}, which has {spec.n_rows} rows",
            "load the model's own checkpoint",
        )
    self._obmm_door.compare(spec, self.dim if is_scale else 0, loaded, "the scales" if is_scale else "the values")


def _lookup(original: Any, self: Any, indices: Any, out: Any, background: bool = False) -> None:
    """`indices` ``[T, columns]``; `out` bfloat16 ``[T, this rank's columns, dim]``, or uint8 with whole rows."""
    made = getattr(self, "_obmm_door", None)
    if made is None:
        original(self, indices, out, background=background)
        return
    tokens, columns = indices.shape[0], self.part_n_hash_cols
    if not tokens:
        return
    made.between_steps()
    mine = indices[:, self.head_start : self.head_start + columns]
    mine = torch.where((mine >= self.vocab_start_idx) & (mine < self.vocab_end_idx), mine, -1)
    if mine.shape[1] < columns:  # the last rank's columns may be fewer than it has room for
        mine = torch.nn.functional.pad(mine, (0, columns - mine.shape[1]), value=-1)
    rows = made.rows(self._obmm_spec, mine, "lookup")
    if out.dtype == torch.uint8:
        width = self._obmm_spec.row_bytes
        out.as_strided((tokens, columns * width), (out.stride(0), 1)).copy_(rows.view(tokens, columns * width))
    else:
        out.view(-1, self.dim).copy_(fp8_rows(rows, self.dim))


def _refused(problem: str, fix: str) -> ObmmArgumentError:
    return ObmmArgumentError.because("ENGRAM", errno.EINVAL, problem, fix, "docs/engines-vllm.md")
