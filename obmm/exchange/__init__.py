# SPDX-License-Identifier: Apache-2.0
"""Handles over TCP: authenticated, leased, revocable (docs/exchange.md).

`serve` publishes regions, `connect` fetches them.  The wire is described byte by byte in docs/exchange-protocol.md.

An owner serves an array, a reader opens it.  The key is a file that both have:

>>> key = obmm.exchange.Key.generate(folder / "cluster.key")
>>> region = a.export_region("2MiB", label="words")
>>> manifest = obmm.exchange.ArrayManifest(np.dtype("<f4"), (100, 8))
>>> with region.map("rw") as memory, memory.writing():
...     memory.as_numpy("<f4", manifest.shape)[:] = np.arange(800, dtype="<f4").reshape(100, 8)
>>> with region.map("rw") as memory:
...     memory.publish()
>>> server = obmm.serve({"words": (region, manifest.to_json())}, host="127.0.0.1", port=0, key=key)
>>> server.addresses, server.alive, server.closed, server.error
(('127.0.0.1:...',), True, False, None)
>>> peer = obmm.connect(server.addresses[0], key=folder / "cluster.key")
>>> peer.address, peer.list()["words"]             # a RegionEntry
('127.0.0.1:...', RegionEntry(name='words', length=4194304, ...))
>>> table = peer.open("words", b)
>>> table[[3, 1]][:, 0].tolist()
[24.0, 8.0]

What the owner sees, and what it can end:

>>> (record,) = server.find_leases(region="words")
>>> record.state.value, record.holder.partition("@")[2], len(record.short)
('active', '127.0.0.1...', 8)
>>> type(server.status()), type(server.counts())   # for people, for monitors
(<class 'dict'>, <class 'dict'>)
>>> server.events()[0], server.fileno() >= 0
(ServerEvent(kind='connected', ...), True)
>>> server.reload(key=folder / "cluster.key"), server.rekey(key), server.wait(timeout=0)
(0, None, False)
>>> table.close()

A lease by itself, for `Device.import_region`:

>>> lease = peer.fetch("words", importer_eid=b.controllers[0].eid)
>>> lease.status.name, lease.usable, lease.remaining > 30, lease.age >= 0, lease.revoke_deadline, lease.users
('ACTIVE', True, True, True, None, ())
>>> lease.expires > 1e9, lease.fileno() >= 0, peer.leases == (lease,), lease.manifest["dtype"]
(True, True, True, '<f4')
>>> lease.check()
>>> lease.on_change(print)
>>> with b.import_region(lease) as imported:
...     len(lease.users)
1
>>> lease.release()                                # the region did that when it closed
True
>>> with peer.import_region("words", b) as imported:
...     imported.nbytes == region.nbytes
True

Small questions and answers of programs over the same connection:

>>> class Echo:
...     def call(self, caller, body):              # in the server's thread: at once
...         return body
>>> server.answer_calls("echo", Echo())
>>> peer.call("echo", b"hello"), peer.submit_call("echo", b"again").result(timeout=10)
(b'hello', b'again')
>>> server.refuse_calls("echo")
>>> peer.call("echo", b"hello")
Traceback (most recent call last):
obmm.exchange.errors.RequestRefusedError: ...

The end, in order:

>>> peer.status().keys() == server.status().keys(), peer.events(), peer.fileno() >= 0
(True, (), True)
>>> server.end_leases(holder="nobody"), server.revoke("words", timeout=5)
((), ())
>>> server.publish("words", region, manifest.to_json())
>>> peer.release_for_the_dead(bytes(16))
True
>>> peer.close(), server.close(timeout=5), region.close()
(None, (), None)
"""

from obmm.exchange.access import Access
from obmm.exchange.array_manifest import ArrayManifest
from obmm.exchange.errors import (
    AuthenticationError,
    DeadlineError,
    ExchangeError,
    JournalError,
    LeaseError,
    LeasesOutstandingError,
    PeerUnreachableError,
    ProtocolError,
    Refusal,
    RequestRefusedError,
)
from obmm.exchange.keys import Key
from obmm.exchange.lease import Lease, LeaseEvent, LeaseStatus
from obmm.exchange.leases import LeaseRecord, LeaseState
from obmm.exchange.limits import Limits
from obmm.exchange.messages import RegionEntry
from obmm.exchange.net import DEFAULT_PORT
from obmm.exchange.peer import Peer, connect
from obmm.exchange.remote_table import RemoteTable
from obmm.exchange.server import Server, serve
from obmm.exchange.server_event import ServerEvent
from obmm.exchange.tls import TlsFiles

__all__ = [
    "DEFAULT_PORT",
    "Access",
    "ArrayManifest",
    "AuthenticationError",
    "DeadlineError",
    "ExchangeError",
    "JournalError",
    "Key",
    "Lease",
    "LeaseError",
    "LeaseEvent",
    "LeaseRecord",
    "LeaseState",
    "LeaseStatus",
    "LeasesOutstandingError",
    "Limits",
    "Peer",
    "PeerUnreachableError",
    "ProtocolError",
    "Refusal",
    "RegionEntry",
    "RemoteTable",
    "RequestRefusedError",
    "Server",
    "ServerEvent",
    "TlsFiles",
    "connect",
    "serve",
]
