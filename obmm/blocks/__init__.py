# SPDX-License-Identifier: Apache-2.0
"""Blocks of bytes under keys in another node's memory: an owner, a directory, users (docs/blocks.md).

`BlockOwner` exports the memory and answers for it, `BlockStore` stores and loads.

An owner on one node, a user on another.  Both name the same facts of the model:

>>> layout = obmm.blocks.SlotLayout.for_blocks(4096, slots=8)
>>> owner = obmm.blocks.BlockOwner(a, layout, name="kv")
>>> server = obmm.serve({}, port=0, plain=True)
>>> owner.serve(server)
>>> owner.manifest["format"], owner.status()["slots"]
('obmm-blocks', 8)
>>> peer = obmm.connect(server.addresses[0], plain=True)
>>> model = obmm.blocks.Namespace(model="m", dtype="bfloat16")
>>> store = obmm.blocks.BlockStore(peer, b, model)
>>> store.attached, store.block_bytes, len(store.incarnation) > 0, store.backend
(True, 4096, True, 'emulator:...')

Every call takes lists and answers 1 or 0 for each key:

>>> blocks = [np.full(4096, n, "u1") for n in (1, 2)]
>>> store.put(["one", "two"], blocks).tolist()
[1, 1]
>>> room = [np.empty(4096, "u1") for _ in range(3)]
>>> store.get(["one", "two", "three"], room).tolist(), room[1][0] == 2
([1, 1, 0], ...True...)
>>> store.exists(["one", "three"]).tolist(), store.known(["one"]).tolist(), store.leading(["one", "two", "three"])
([1, 0], [1], 2)
>>> store.pin(["one"]).tolist(), owner.evict(8), store.unpin(["one"]).tolist()
([1], 1, [1])
>>> store.touch(["one"])
>>> store.delete(["one"]).tolist()
[1]

In the background, for an event loop:

>>> ticket = store.submit_put(["four"], blocks[:1])
>>> ticket.wait(10), ticket.done, ticket.result().tolist(), ticket.nbytes
(True, True, [1], 4096)
>>> others = [store.submit_get(["four"], room[:1]), store.submit_exists(["four"]), store.submit_delete(["four"])]
>>> store.drain(10), len(store.completed()) >= 3, store.fileno() >= 0
(True, True, True)
>>> sum(store.stats()["bytes"].values()) > 0
True

The other way in, and the end:

>>> with obmm.blocks.BlockStore.open(f"{server.addresses[0]}/kv", model, plain=True, device=fabric.device("b")) as other:
...     other.exists(["four"]).tolist()
[0]
>>> store.close(), peer.close(), owner.close(), server.close()
(None, None, None, ())
"""

from obmm.blocks.buffers import Pieces
from obmm.blocks.errors import BlockStoreError
from obmm.blocks.keys import Namespace
from obmm.blocks.layout import SlotLayout
from obmm.blocks.owner import BlockOwner
from obmm.blocks.reasons import Reason
from obmm.blocks.store import BlockStore
from obmm.blocks.ticket import BlockTicket

__all__ = [
    "BlockOwner",
    "BlockStore",
    "BlockStoreError",
    "BlockTicket",
    "Namespace",
    "Pieces",
    "Reason",
    "SlotLayout",
]
