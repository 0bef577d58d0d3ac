# SPDX-License-Identifier: Apache-2.0
r"""Engram tables of a checkpoint, packed into rows that other nodes can gather.

with Checkpoint(path) as checkpoint:
    tables = find_tables(checkpoint)

A small checkpoint of a family of one's own, published on node a and compared:

>>> manifest = obmm.exchange.ArrayManifest(np.dtype("|u1"), (50, 64))
>>> with obmm.files.array_writer(folder / "model.safetensors", manifest, "layers.3.grams.weight") as file:
...     file.write(bytes(range(200)) * 16)
3200
>>> _ = (folder / "family.toml").write_text('''
... [[family]]
... name = "mine"
... weight = 'layers[.](?P<layer>[0-9]+)[.]grams[.]weight'
... dtypes = ["U8"]
... ''')
>>> families = obmm.engram.families_of(folder / "family.toml")
>>> checkpoint = obmm.engram.Checkpoint(folder / "model.safetensors")
>>> checkpoint.names, checkpoint.folder == folder, checkpoint.config()
(('layers.3.grams.weight',), True, {})
>>> tensor = checkpoint.tensor("layers.3.grams.weight")
>>> row = bytearray(64)
>>> checkpoint.read_into(tensor, 1, memoryview(row))
>>> row[0], len(checkpoint.read(tensor))
(64, 3200)
>>> (table,) = obmm.engram.find_tables(checkpoint, families)        # a SourceTable, of Parts
>>> table.name, table.rows, table.row_bytes, table.values, table.dtype, table.scale_layout, table.nbytes
('layer3', 50, 64, 64, ...)
>>> len(table.parts[0].tensors)
1
>>> [(first, rows.shape) for first, rows in obmm.engram.PackedRows(checkpoint, table)]
[(0, (50, 64))]
>>> planned = obmm.engram.plan(checkpoint, [table], model="mine")  # a Plan
>>> planned.nbytes >= 3200
True
>>> region, manifest = obmm.engram.publish(a, checkpoint, planned, label="mine")
>>> with b.import_region(region.handle()) as imported, obmm.rows.RowStore.attach([imported], manifest) as store:
...     list(obmm.engram.compare(checkpoint, table, store.gather, samples=None))  # each a Difference
[]
>>> region.close(), checkpoint.close()
(None, None)
>>> checkpoint.closed
True
"""

from obmm.engram.checkpoint import Checkpoint
from obmm.engram.families import FAMILIES, Family, families_of
from obmm.engram.packing import PackedRows
from obmm.engram.publishing import Plan, plan, publish
from obmm.engram.tables import Part, SourceTable, find_tables
from obmm.engram.verifying import Difference, compare

__all__ = [
    "FAMILIES",
    "Checkpoint",
    "Difference",
    "Family",
    "PackedRows",
    "Part",
    "Plan",
    "SourceTable",
    "compare",
    "families_of",
    "find_tables",
    "plan",
    "publish",
]
