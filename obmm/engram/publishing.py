# SPDX-License-Identifier: Apache-2.0
"""From the tables of a checkpoint to a region that other nodes import."""

from __future__ import annotations

import errno
import hashlib
import json
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any

from obmm.engram.checkpoint import Checkpoint
from obmm.engram.errors import refused
from obmm.engram.streaming import Progress, stream
from obmm.engram.tables import SourceTable
from obmm.errors import ObmmError
from obmm.prefetch.hashing.geometry import table_sizes
from obmm.region.device import Device
from obmm.region.exported import ExportedRegion
from obmm.rows import Manifest, RowStore, TableSpec

TABLE_ALIGNMENT = 2 << 20
MAX_MODEL_BYTES = 56 << 10
"""Of JSON about the tensors: a served manifest has 64 KiB at most, and needs room for tables and canary rows."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What publishing will make: nothing is allocated yet.

    `specs`: where each table lies, in the order of `sources`; `model`: the manifest's entries, still without digests.
    """

    sources: tuple[SourceTable, ...]
    specs: tuple[TableSpec, ...]
    model: Mapping[str, Any] = field(default_factory=dict)

    @property
    def nbytes(self) -> int:
        """Payload bytes of the region."""
        return max(spec.end for spec in self.specs)


def plan(checkpoint: Checkpoint, sources: Sequence[SourceTable], *, model: str = "") -> Plan:
    """Where the tables go, and what readers are told; ObmmArgumentError when ``config.json`` contradicts a table.

    `model`: a name for the manifest (default: the checkpoint's folder).

    `sources`: as `find_tables` gives them.
    """
    config = checkpoint.config()
    specs: list[TableSpec] = []
    at = 0
    for source in sources:
        spec = TableSpec(
            source.name,
            source.rows,
            source.row_bytes,
            base_offset=at,
            dtype=source.dtype.lower(),
            values=source.values,
            scale_layout=source.scale_layout,
            head_offsets=_head_offsets(source, config),
            neutral_zero=source.family.neutral_zero,
            layer_id=source.layer_id,
        )
        specs.append(spec)
        at = -(-spec.end // TABLE_ALIGNMENT) * TABLE_ALIGNMENT
    geometry = {key: config[key] for key in sorted(config) if key.startswith(("engram_", "ple_", "ngram_"))}
    about: dict[str, Any] = {
        "family": sources[0].family.name,
        "config": _small(geometry),
        "constants": {source.name: dict(source.constants) for source in sources if source.constants},
    }
    return Plan(
        tuple(sources), tuple(specs), {"model": model or checkpoint.folder.resolve().name, "engram": _small(about)}
    )


def publish(
    device: Device,
    checkpoint: Checkpoint,
    planned: Plan,
    *,
    label: str,
    numa: Sequence[int] = (0,),
    pmd: bool = False,
    progress: Progress = lambda table, nbytes: None,
) -> tuple[ExportedRegion, Manifest]:
    """Export a region, stream the tables into it, publish -> the region, open, and the manifest to serve with it.

    `numa`: the nodes whose memory is used, in equal shares.  A failure leaves nothing exported.

    `device`: where; `planned`: of `plan`, for this `checkpoint`; `label` and `pmd` as for `Device.export_region`; `progress`:
    called while rows are copied.  ObmmArgumentError for a checkpoint that changed, or memory that is not there.
    """
    size = -(-planned.nbytes // len(numa))
    with ExitStack() as undo:
        try:
            region = undo.enter_context(
                device.export_region(dict.fromkeys(numa, size), pmd=pmd, label=label)
                if len(numa) > 1
                else device.export_region(planned.nbytes, numa=numa[0], pmd=pmd, label=label)
            )
        except ObmmError as error:
            if error.errno not in (errno.ENOMEM, errno.ENOSPC):
                raise
            raise refused(
                f"the tables need {planned.nbytes:,} bytes, and NUMA node {' and '.join(map(str, numa))} of "
                f"{device.backend} does not have that much memory to export",
                f"spread them over nodes with --numa 0,1, or enlarge the pool ({error.strerror})",
                errno.ENOMEM,
            ) from error
        with (
            region.map("rw") as mapping,
            RowStore.attach(mapping, Manifest(planned.specs, model=planned.model), verify="none", plan=False) as store,
        ):
            sums = stream(checkpoint, planned.sources, planned.specs, store, progress)
            about = {**planned.model["engram"], "sums": sums, "fingerprint": fingerprint(planned.specs, sums)}
            manifest = store.publish(engram=about)
        undo.pop_all()
    return region, manifest


def fingerprint(specs: Sequence[TableSpec], sums: Mapping[str, Sequence[str]]) -> str:
    """One SHA-256, in hex, over the shapes of all tables and the digests of all their tensors."""
    facts = [[spec.table_id, spec.n_rows, spec.row_bytes, spec.dtype, list(sums[str(spec.table_id)])] for spec in specs]
    return hashlib.sha256(json.dumps(facts, separators=(",", ":")).encode()).hexdigest()


def _head_offsets(source: SourceTable, config: Mapping[str, Any]) -> tuple[int, ...]:
    """The first row of each column's head, where the checkpoint says it."""
    known = source.constants.get("head_offsets")
    if known is not None:
        return tuple(int(offset) for offset in known)
    keys = ("engram_layer_ids", "engram_max_ngram_size", "engram_vocab_size", "engram_n_heads")
    if not all(key in config for key in keys):
        return ()
    layers, order, base, heads = (config[key] for key in keys)
    numbers = [order, base, heads, *(layers if isinstance(layers, list) else [None])]
    if any(type(number) is not int for number in numbers) or not (2 <= order <= 16 and 1 <= heads <= 1024 and base > 0):
        raise refused(
            f"config.json has {dict(zip(keys, (layers, order, base, heads), strict=True))}", "see the model's"
        )
    if source.layer_id not in layers or len(layers) > 1024:
        raise refused(
            f"the checkpoint has a table of layer {source.layer_id}, and config.json lists {layers}",
            "put the model's own config.json beside its tensors",
        )
    sizes = table_sizes([base] * (order - 1), heads, len(layers))[layers.index(source.layer_id)]
    flat = [size for per_order in sizes for size in per_order]
    if sum(flat) > source.rows:
        raise refused(
            f"layer {source.layer_id} has {source.rows:,} rows, and the sizes that config.json asks for add up to "
            f"{sum(flat):,}",
            "put the model's own config.json beside its tensors",
        )
    return tuple(accumulate(flat[:-1], initial=0))


def _small(about: dict[str, Any]) -> dict[str, Any]:
    size = len(json.dumps(about))
    if size > MAX_MODEL_BYTES:
        raise refused(f"{size} bytes of constants and configuration", f"at most {MAX_MODEL_BYTES}: see --map")
    return about
