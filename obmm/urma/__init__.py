# SPDX-License-Identifier: Apache-2.0
"""The URMA path: one-sided reads and writes of a peer's registered memory through ``liburma.so.0`` (URMA specification).

Examples run on the stand-in, which is never taken unless it is named:

>>> import os
>>> from obmm import urma
>>> from obmm.urma.standin import StandIn
>>> standin = StandIn(("a", "b"))
>>> os.environ.update(standin.environment("a"))
>>> library = urma.load(standin.library)           # a Library
>>> library.kind, library.trouble
('stand-in', '')

An owner registers memory and hands out a ticket; a reader asks for pieces:

>>> context = urma.Context(library=library)
>>> context.check()
>>> context in urma.contexts()                     # those of this process that are open
True
>>> context.attributes                             # Attributes
Attributes(...)
>>> table = context.buffer(1 << 16, access="rw")   # pages that peers may reach
>>> table[:4] = list(b"rows")
>>> segment, address, nbytes = context.segment_of(table)
>>> queue = context.queue()
>>> server = obmm.serve({}, port=0, plain=True)
>>> segments = urma.publish(server)                # PublishedSegments
>>> segments.add("table", segment, queue, {"rows": 1})
>>> peer = obmm.connect(server.addresses[0], plain=True)
>>> found = urma.fetch(peer, "table")              # a FetchedSegment
>>> found.generation == segment.generation, found.manifest["content"]
(True, {'rows': 1})
>>> landing = context.buffer(4096)                 # where reads arrive
>>> target = queue.attach(found.ticket)            # a TargetSegment
>>> target.read(0, 4), target.read_many([0, 64], 4, landing[:8])
(b'rows', 8)
>>> landing[:4] = list(b"more")
>>> target.write_many([128], 4, landing[:4]), queue.read_many(target, [128], 4, landing[:4])
(4, 4)
>>> queue.write_many(target, [0], 4, landing[:4]), queue.alive
(4, True)
>>> library.counters()["posts"] > 0
True
>>> ticket = urma.Ticket.unpack(segment.ticket(queue))
>>> len(ticket.pack()), ticket.length
(128, 65536)
>>> peer.close(), server.close()
(None, ())
>>> import mmap
>>> own = context.register(mmap.mmap(-1, 4096), access="local")   # a Segment over memory of one's own
>>> own.close()
>>> context.free(landing)

Tables of rows in a segment:

>>> obmm.rows.LocalMemory.format(table, generation=7)
>>> spec = obmm.rows.TableSpec("words", n_rows=16, row_bytes=64)
>>> owner = obmm.rows.RowStore.attach(obmm.rows.LocalMemory(table, header=True), obmm.rows.Manifest((spec,)), verify="none")
>>> owner.populate("words", np.full((16, 64), 9, "u1"))
>>> manifest = owner.publish()
>>> with urma.UrmaMemory(context, segment.ticket(queue)) as memory:
...     memory.queue.alive, memory.fetch is not None
...     store = obmm.rows.RowStore.attach(memory, manifest)
...     int(store.gather("words", [3]).sum())
...     store.close()
(True, True)
576
>>> owner.close(), context.close(), standin.close()
(None, None, None)
"""

from obmm.urma.codes import Status
from obmm.urma.context import Attributes, Context, contexts
from obmm.urma.errors import (
    UrmaArgumentError,
    UrmaError,
    UrmaLibraryError,
    UrmaQueueDead,
    UrmaRefused,
    UrmaTicketError,
    UrmaTimeout,
)
from obmm.urma.library import Library, load
from obmm.urma.memory import UrmaMemory
from obmm.urma.publishing import CALLS, FetchedSegment, PublishedSegments, fetch, publish
from obmm.urma.queue import Queue
from obmm.urma.segment import Segment
from obmm.urma.target import TargetSegment
from obmm.urma.ticket import Ticket

__all__ = [
    "CALLS",
    "Attributes",
    "Context",
    "FetchedSegment",
    "Library",
    "PublishedSegments",
    "Queue",
    "Segment",
    "Status",
    "TargetSegment",
    "Ticket",
    "UrmaArgumentError",
    "UrmaError",
    "UrmaLibraryError",
    "UrmaMemory",
    "UrmaQueueDead",
    "UrmaRefused",
    "UrmaTicketError",
    "UrmaTimeout",
    "contexts",
    "fetch",
    "load",
    "publish",
]
