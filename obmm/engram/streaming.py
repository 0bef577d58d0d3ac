# SPDX-License-Identifier: Apache-2.0
"""The tables of a checkpoint into memory, several tensors at a time."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed

import numpy as np

from obmm.engram.checkpoint import Checkpoint
from obmm.engram.packing import PackedRows
from obmm.engram.tables import SourceTable
from obmm.rows import RowStore, TableSpec

_MOST = 4
"""Tensors at a time: each has blocks of its own, and the digest of one is the work of one CPU."""

Progress = Callable[[str, int], None]
"""Told the table and how many more bytes of it are in place."""


def stream(
    checkpoint: Checkpoint,
    sources: Sequence[SourceTable],
    specs: Sequence[TableSpec],
    store: RowStore,
    progress: Progress,
) -> dict[str, list[str]]:
    """Populate `store` with all tables -> the digests of their tensors, as `PackedRows.sums`, by table.

    The first error ends all of it.  `progress` is called by one thread at a time.
    """
    workers = min(_MOST, len(os.sched_getaffinity(0)))
    shares = [
        (source, spec, range(first, len(source.parts), workers))
        for source, spec in zip(sources, specs, strict=True)
        for first in range(min(workers, len(source.parts)))
    ]
    sums: dict[str, dict[int, list[str]]] = {source.name: {} for source in sources}
    stop, telling = threading.Event(), threading.Lock()

    def run(source: SourceTable, spec: TableSpec, parts: Sequence[int]) -> None:
        rows = PackedRows(checkpoint, source, parts=parts)
        for at, block in rows:
            if stop.is_set():
                return
            store.populate(spec.table_id, block, at)
            with telling:
                progress(source.name, block.nbytes)
        tensors = len(source.parts[0].tensors)
        for place, part in enumerate(parts):
            sums[source.name][part] = rows.sums[place * tensors : (place + 1) * tensors]

    # the content version is odd from here on, before several threads write
    store.populate(specs[0].table_id, np.empty((0, specs[0].row_bytes), np.uint8))
    with ThreadPoolExecutor(workers, "obmm-engram") as pool:
        running = [pool.submit(run, *share) for share in shares]
        try:
            for each in as_completed(running):
                each.result()
        except BaseException:  # an interrupt too: the threads end at their next block
            stop.set()
            pool.shutdown(cancel_futures=True)
            raise
    return {name: [each for part in sorted(found) for each in found[part]] for name, found in sums.items()}
