# SPDX-License-Identifier: Apache-2.0
"""Tables on an emulated node, whose every byte is a function of table, row, place and publication."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
from memory_source import MemoryTable
from numpy.typing import NDArray

from obmm import Device, ExportedRegion, Mapping
from obmm.driver.abi import Cache
from obmm.prefetch import EngramLayer, PrefetchLayer, engram_layers, engram_model, engram_tables
from obmm.rows import LocalMemory, Manifest, RowStore

VOCABULARY, HEADS, ORDERS, ROW_BYTES = 1_000, 2, 3, 264
TOKEN_MAP = np.arange(VOCABULARY, dtype=np.int32)
LAYERS: tuple[EngramLayer, ...] = engram_layers([1, 14], vocabulary=VOCABULARY, bases=[151] * ORDERS, heads=HEADS)
MODEL: dict[str, Any] = engram_model(LAYERS, TOKEN_MAP, pad_token=2)
WANTED = [PrefetchLayer(layer.layer_id, layer.layer_id, HEADS * ORDERS) for layer in LAYERS]


def content(layer_id: int, rows: Any, generation: int) -> NDArray[np.uint8]:
    return MemoryTable(0, ROW_BYTES, salt=layer_id).rows(rows, generation)


def described(neutral_zero: bool = True) -> Manifest:
    return Manifest(engram_tables(LAYERS, ROW_BYTES, neutral_zero=neutral_zero), model=MODEL)


def fill(owner: RowStore, generation: int) -> Manifest:
    """Publish the tables as `generation`, which is the next even version."""
    for layer in LAYERS:
        owner.populate(layer.layer_id, content(layer.layer_id, np.arange(layer.rows), generation))
    manifest = owner.publish()
    assert manifest.generation == generation
    return manifest


@dataclass
class Published:
    """Both ends of one region: the exporter's store and the importer's."""

    region: ExportedRegion
    mapping: Mapping
    owner: RowStore
    store: RowStore

    def take_away(self) -> None:
        """Unexport under the importer: what it mapped is gone."""
        self.owner.close()
        self.mapping.close()
        self.region.close()


@contextmanager
def published(a: Device, b: Device, cache: Cache = "cc", hot_rows: int = 0) -> Iterator[Published]:
    """Tables exported on `a`, imported on `b`, as generation 2."""
    with ExitStack() as undo:
        region = undo.enter_context(a.export_region(described().nbytes))
        mapping = undo.enter_context(region.map("rw", cache=cache))
        owner = undo.enter_context(RowStore.attach(mapping, described(), verify="none"))
        manifest = fill(owner, 2)
        imported = undo.enter_context(b.import_region(region.handle(cache=cache)))
        store = undo.enter_context(RowStore.attach([imported], manifest, plan=False, hot_rows=hot_rows))
        yield Published(region, mapping, owner, store)


def replica(generation: int) -> RowStore:
    """The same tables in this process's own memory."""
    memory = bytearray(described().nbytes)
    owner = RowStore.attach(LocalMemory(memory, path="file"), described(), verify="none")
    for layer in LAYERS:
        owner.populate(layer.layer_id, content(layer.layer_id, np.arange(layer.rows), generation))
    owner.publish()
    return owner
