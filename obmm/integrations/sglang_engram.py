# SPDX-License-Identifier: Apache-2.0
"""SGLang's Engram layers on rows of a published table: its embedding and its row stager, replaced.

Two classes are derived from the engine's own.  The hasher, the manager, the layers and the graphs stay as they are.
"""

from __future__ import annotations

import errno
import weakref
from typing import Any

import torch
from sglang.srt.layers import engram, engram_staging
from sglang.srt.plugins.hook_registry import HookRegistry, HookType
from sglang.srt.runtime_context import get_parallel
from torch import nn

from obmm.errors import ObmmArgumentError
from obmm.integrations.decode import BLOCK, fp8_rows
from obmm.integrations.door import Door, zero_storage
from obmm.integrations.engram import Step

STAGES = range(3)
"""Lanes that prefill steps take turns in."""

_ENGRAM, _STAGING = engram.__name__, engram_staging.__name__


def register(door: Door) -> None:
    """Have the engine's registry replace both classes, and start lookups as soon as a forward has hashed."""
    embedding, stager = classes(door)
    HookRegistry.register(f"{_ENGRAM}.EngramEmbedding", embedding, HookType.REPLACE)
    HookRegistry.register(f"{_STAGING}.EngramRowStager", stager, HookType.REPLACE)
    HookRegistry.register(f"{_ENGRAM}.EngramHasher.forward", embedding.ahead.hashed, HookType.AFTER)


class Ahead:
    """The lookups of one forward, started when its row numbers are known and taken by each layer.

    The numbers are held until the next forward: a layer's slice of them is known by its memory.
    """

    def __init__(self, door: Door) -> None:
        self._door = door
        self.layers: dict[int, Any] = {}
        self._step: Step | None = None
        self._ids: Any = None
        self._version = -1
        self._sharing: set[tuple[str, ...]] = set()

    def hashed(self, result: Any, *_: Any) -> None:
        """The hook behind the hasher: ids ``[T, layers, columns]``."""
        self._step = self._ids = None
        if result.is_cuda or not result.shape[0] or len(self.layers) != result.shape[1]:
            return  # a device's numbers are read back where they are needed
        self._door.between_steps()
        numbers = {embed.table: embed.owned_ids(result[:, place]).numpy() for place, embed in self.layers.items()}
        self._step = self._door.client.submit(numbers, "ahead")
        self._ids, self._version = result, result._version

    def share(self, embed: Any, group: Any) -> None:
        """Let one rank of the host make this layer's lookups for all, and once those of a whole forward."""
        steps: list[tuple[tuple[str, ...], Any]] = [((embed.table,), "forward")]
        every = tuple(self.layers[place].table for place in sorted(self.layers))
        if every not in self._sharing:
            self._sharing.add(every)
            steps += [(every, "ahead"), *((every, ("stage", lane)) for lane in STAGES)]
        self._door.share_on_host(steps, group)

    def taken(self, embed: Any, indices: Any) -> Any:
        """The rows of a layer whose ids are a slice of the numbers of this forward; None for any other ids."""
        step, ids = self._step, self._ids
        if step is None or ids._version != self._version or indices.shape != ids.shape[::2]:
            return None
        place = embed.place
        same = indices.data_ptr() == ids[:, place].data_ptr() and indices.stride() == ids[:, place].stride()
        return self._door.fetched(step, embed.spec, indices.device) if same else None


def classes(door: Door) -> tuple[Any, Any]:
    """The embedding and the stager of this door."""
    ahead = Ahead(door)
    # Not names of this module: the registry puts the new classes in the place of every copy of the old ones.
    base_embedding: Any = engram.EngramEmbedding
    base_stager: Any = engram_staging.EngramRowStager

    class ObmmEngramEmbedding(base_embedding):  # type: ignore[misc]
        """One layer's table, on another node; no row of it is here."""

        def __init__(self, num_embeddings: int, dim: int, layer_id: int, column_bounds: tuple[int, ...]) -> None:
            nn.Module.__init__(self)
            if engram_staging.EngramRowStager is not ObmmRowStager:
                raise ObmmArgumentError.because(
                    "ENGRAM",
                    errno.ENOTSUP,
                    f"{_STAGING}.EngramRowStager is not this door's: another plug-in replaced it",
                    "start without the other plug-in (SGLANG_PLUGINS=obmm)",
                )
            self.spec = door.claim(
                f"layer{layer_id}",
                rows=num_embeddings,
                row_bytes=dim + dim // BLOCK,
                dtype="f8_e4m3",
                offsets=column_bounds[:-1],
            )
            self.table = str(self.spec.table_id)
            self.place = len(ahead.layers)
            ahead.layers[self.place] = self
            self.dim = dim
            parallel = get_parallel()
            self.sliced = door.settings.share == "slice" and parallel.tp_size > 1
            self.tp_size = parallel.tp_size if self.sliced else 1
            rank = parallel.tp_rank if self.sliced else 0
            self.row_start, end = engram.shard_range(num_embeddings, column_bounds, rank, self.tp_size)
            self.rows = end - self.row_start
            self.host_table = self.peer = None
            self._sort_host_reads = self.staged_by_scheduler = False
            self.weight = nn.Parameter(zero_storage((num_embeddings, dim), torch.float8_e4m3fn), requires_grad=False)
            scales = zero_storage((num_embeddings, dim // BLOCK), torch.float8_e8m0fnu)
            self.scale = nn.Parameter(scales, requires_grad=False)
            self.weight.weight_loader = self._load_rows
            self.scale.weight_loader = self._load_rows

        @property
        def shared_host_table_without_ats(self) -> bool:
            """What the engine asks before it stages: rows that are not the device's."""
            return bool(door.settings.staging) and not (self.sliced and get_parallel().attn_dp_size > 1)

        def _load_rows(self, param: nn.Parameter, loaded_weight: Any) -> None:
            """Look at a few rows of the local checkpoint, and take none."""
            if loaded_weight.shape != param.shape:
                raise ObmmArgumentError.because(
                    "ENGRAM",
                    errno.EINVAL,
                    f"the checkpoint has {tuple(loaded_weight.shape)} for {self.table}, the model {tuple(param.shape)}",
                    "load the model's own checkpoint",
                )
            is_scale = param is self.scale
            door.compare(
                self.spec, self.dim if is_scale else 0, loaded_weight, "the scales" if is_scale else "the values"
            )

        def finish_load(self, label: str) -> None:
            """Collective where ranks share a reader: every rank calls it after loading, as for the engine's own tables."""
            parallel = get_parallel()
            if door.settings.share == "host" and parallel.tp_size > 1:
                if parallel.attn_dp_size > 1 or parallel.attn_cp_size > 1:
                    door.client.note("ranks", "each reads for itself: attention data or context parallelism")
                else:
                    ahead.share(self, parallel.tp_group)
            door.log.info(
                "obmm: %s: %s, %d rows of %d bytes, none here", label, self.table, self.spec.n_rows, self.spec.row_bytes
            )

        def owned_ids(self, indices: Any) -> Any:
            """Flat ids; -1 for rows that another rank reads."""
            flat = indices.reshape(-1)
            if self.rows == self.spec.n_rows:
                return flat
            return torch.where((flat >= self.row_start) & (flat < self.row_start + self.rows), flat, -1)

        def _owned_rows(self, indices: Any) -> Any:
            if not indices.numel():
                return self.new_rows(indices)
            rows = ahead.taken(self, indices)
            if rows is None:
                rows = door.rows(self.spec, self.owned_ids(indices), "forward")
            return fp8_rows(rows.view(-1, self.spec.row_bytes), self.dim).view(*indices.shape, self.dim)

        def forward(self, indices: Any, forward_batch: Any = None, *, cp_all_tokens: bool = False) -> Any:
            if self.sliced:
                return super().forward(indices, forward_batch, cp_all_tokens=cp_all_tokens)
            return self._owned_rows(indices)  # every row can be read here: no collective

        def dequant_staged(self, rows: Any, scales: Any, copied: Any, hash_shape: Any) -> Any:
            """`rows` are whole rows, `scales` is empty: what our stager made."""
            if copied is not None:
                stream = torch.cuda.current_stream()
                stream.wait_event(copied)
                rows.record_stream(stream)
            out = torch.zeros(*hash_shape, self.dim, dtype=torch.bfloat16, device=rows.device)
            out.view(-1, self.dim)[: rows.shape[0]] = fp8_rows(rows, self.dim)
            return self._reduce_owned_rows(out) if self.sliced else out

    ObmmEngramEmbedding.ahead = ahead

    class ObmmRowStager(base_stager):  # type: ignore[misc]
        """Fetches the rows of an extend batch while the forward before it runs."""

        def __init__(self, hasher: Any, embeds: list[Any], device: Any) -> None:
            self.hasher = hasher
            self.embeds = embeds
            self.device = device
            self.copy_stream = torch.cuda.Stream(device) if device.type == "cuda" else None
            self._copied: list[Any] = [None, None]
            self._turn = 0
            self._out: list[list[weakref.ref[Any]]] = [[] for _ in STAGES]
            door.client.note("prefill", "staged ahead of the forward by the scheduler")

        @classmethod
        def from_model(cls, model: Any, hasher: Any, device: Any) -> Any:
            """As the engine decides, but for its own switch: a table elsewhere is always worth it."""
            layers = sorted(
                (m for m in model.modules() if isinstance(m, engram.Engram)), key=lambda m: m.layer_hash_index
            )
            embeds = [m.embed for m in layers]
            why = None
            if not embeds or not all(isinstance(e, ObmmEngramEmbedding) for e in embeds):
                why = "no Engram layer of this door"
            elif get_parallel().attn_cp_size > 1:
                why = "prefill context parallelism: each rank looks up its own rows"
            elif not all(e.shared_host_table_without_ats for e in embeds):
                why = "switched off, or columns are shared with attention data parallelism"
            if why is not None:
                if embeds:
                    door.client.note("prefill", f"not staged: {why}")
                return None
            for embed in embeds:
                embed.enable_scheduler_staging()
            return cls(hasher, embeds, device)

        def stage(self, batch: Any) -> Any:
            if not batch.forward_mode.is_extend_without_speculative():
                return None
            windows = self._windows(batch)
            if windows is None:
                return None
            door.between_steps()
            ids, _ = self.hasher.hash_windows(*windows)
            numbers = {embed.table: embed.owned_ids(ids[:, place]).numpy() for place, embed in enumerate(self.embeds)}
            return self._in_place(numbers) if self.copy_stream is None else self._copies(numbers)

        def _copies(self, numbers: Any) -> list[Any]:
            """Rows on the device; two lanes of pinned memory take turns."""
            lane, self._turn = self._turn, 1 - self._turn
            if self._copied[lane] is not None:
                self._copied[lane].synchronize()  # two steps ago: its rows may still be on their way from this lane
            step = door.client.fetch(numbers, ("stage", lane))
            staged = []
            for embed in self.embeds:
                rows = torch.from_numpy(step.rows(embed.table))
                with torch.cuda.stream(self.copy_stream):
                    rows = rows.to(self.device, non_blocking=True)
                    copied = self._copied[lane] = torch.cuda.Event()
                    copied.record()
                staged.append((rows, rows[:0], copied))
            return staged

        def _in_place(self, numbers: Any) -> list[Any]:
            """Rows where they were gathered: in a lane that no batch holds any more, else copied out of a spare one."""
            free = (n for n, out in enumerate(self._out) if all(ref() is None for ref in out))
            lane = next(free, None)
            step = door.client.fetch(numbers, ("stage", lane))
            staged = []
            for embed in self.embeds:
                rows = torch.from_numpy(step.rows(embed.table))
                staged.append((rows if lane is not None else rows.clone(), torch.empty(0), None))
            if lane is not None:
                self._out[lane] = [weakref.ref(rows) for rows, _, _ in staged]
            return staged

    return ObmmEngramEmbedding, ObmmRowStager
