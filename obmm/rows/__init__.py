# SPDX-License-Identifier: Apache-2.0
"""Tables of byte rows in another node's memory (Engram specification 5 and 13.2).

with RowStore.attach(region.map("r"), lease.manifest) as store:
    store.gather_into("layer1", ids, out)

An owner lays rows of bytes into a region and publishes them; a reader attaches and gathers:

>>> table = obmm.rows.TableSpec("words", n_rows=100, row_bytes=64)
>>> region = a.export_region("2MiB")
>>> owner = obmm.rows.RowStore.attach([region], obmm.rows.Manifest((table,)), verify="none", access="rw")
>>> owner.populate("words", np.arange(6400, dtype="<u4").astype("u1").reshape(100, 64))
>>> manifest = owner.publish(pad_id=2)
>>> imported = b.import_region(region.handle())
>>> store = obmm.rows.RowStore.attach([imported], manifest)
>>> store.gather("words", [3, 1, 2]).shape, store.read_row("words", 1)[:2]
((3, 64), b'@A')
>>> store.path, store.backend, store.region, store.engine.threads > 0
('cacheable', 'emulator:...', ..., True)

The same into a buffer that one owns, in the background, prepared, several at once:

>>> ids, out = np.array([5, 6, 7]), np.empty((3, 64), "u1")
>>> store.gather_into("words", ids, out, deadline=10)
3
>>> store.expect()
>>> ticket = store.submit("words", ids, out)       # a Ticket
>>> ticket.wait(10), ticket.done(), ticket.result(), ticket.generation == store.generation(), ticket.seconds >= 0
(True, True, 3, True, True)
>>> ticket.ready(store.generation())
True
>>> [each.result(10) for each in store.submit_many([("words", ids, out)])]
[3]
>>> again = store.prepare("words", ids, out)       # a PreparedGather
>>> again()
3
>>> step = store.prepare_many([("words", ids, out)])
>>> [each.result(10) for each in step.submit()]
[3]
>>> unwanted = store.submit("words", ids, out)
>>> unwanted.abandon()

Parts of a table, and what is known of it:

>>> store.id_range(0, 50).gather("words", [60], invalid="zero").max()
np.uint8(0)
>>> with_heads = obmm.rows.TableSpec("heads", n_rows=100, row_bytes=64, head_offsets=(0, 50))
>>> store.column_slice([0], n_columns=2).gather("words", [[1, 2]]).shape
(1, 2, 64)
>>> store.view("words").shape                      # unguarded
(100, 64)
>>> store.healthy(), store.heartbeat_age, store.check_generation() == store.generation()
(True, None, True)
>>> probe = store.submit_probe()
>>> probe.wait(10), probe.result()                 # canary rows that are right
(True, 16)
>>> store.stats().gathers > 3
True
>>> print(store.explain())
table 'words': rows of 64 B, cacheable, ...
>>> plan = store.plans["words"]
>>> plan.explain() in store.explain(), plan.paying_hits is None or plan.paying_hits > 0
(True, True)
>>> store.refresh(manifest)
>>> store.close()
>>> warm = obmm.rows.RowStore.attach([imported], manifest, hot_rows=obmm.rows.HOT_ROWS)  # rows that recur stay here
>>> warm.gather("words", [3, 3, 1]).shape, warm.hot["words"].hits + warm.hot["words"].misses
((3, 64), ...)
>>> warm.close(), imported.close()
(None, None)

An owner of non-cacheable memory can beat, so that readers notice when it ends:

>>> with a.export_region("2MiB") as other:
...     beating = obmm.rows.RowStore.attach([other], obmm.rows.Manifest((table,)), verify="none", access="rw", cache="nc")
...     heart = beating.heartbeat(interval=1.0)
...     heart.beating, heart.closed, heart.close(), beating.close()
(True, False, None, None)
>>> owner.close(), region.close()
(None, None)
"""

from obmm.rows.engine import GatherEngine, default_engine
from obmm.rows.errors import CanaryError, GatherDeadlineError
from obmm.rows.heartbeat import Heartbeat
from obmm.rows.hot import HOT_ROWS, HotRows
from obmm.rows.local import LocalMemory
from obmm.rows.manifest import Manifest
from obmm.rows.mapped import MappedMemory
from obmm.rows.memory import RowMemory
from obmm.rows.planner import Plan
from obmm.rows.prepared import PreparedGather, PreparedStep
from obmm.rows.stats import GatherStats
from obmm.rows.store import RowStore
from obmm.rows.table import TableId, TableSpec
from obmm.rows.ticket import Ticket

__all__ = [
    "HOT_ROWS",
    "CanaryError",
    "GatherDeadlineError",
    "GatherEngine",
    "GatherStats",
    "Heartbeat",
    "HotRows",
    "LocalMemory",
    "Manifest",
    "MappedMemory",
    "Plan",
    "PreparedGather",
    "PreparedStep",
    "RowMemory",
    "RowStore",
    "TableId",
    "TableSpec",
    "Ticket",
    "default_engine",
]
