# SPDX-License-Identifier: Apache-2.0
"""Tables of byte rows in another node's memory (Engram specification 5 and 13.2).

with RowStore.attach(region.map("r"), lease.manifest) as store:
    store.gather_into("layer1", ids, out)
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
