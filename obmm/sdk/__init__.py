# SPDX-License-Identifier: Apache-2.0
"""The SDK path: shared memory through openEuler's ubs-mem SDK, ``libubsm_sdk.so`` (SDK specification).

Examples run on the stand-in, which is never taken unless it is named:

>>> import os
>>> from obmm import sdk
>>> from obmm.sdk.standin import StandIn
>>> standin = StandIn(fabric, unit=4 << 20)
>>> os.environ.update(standin.environment("a"))    # this process is on node a of the cluster
>>> library = sdk.load(standin.library)            # a Library
>>> library.kind
'stand-in'
>>> session = sdk.connect()                        # a Session
>>> session.kind, session.check_open(), session.local_host().name
('stand-in', None, 'a')
>>> host = session.hosts()[0]                      # a Host with NumaMemory
>>> host.name, host.numa[0].total > 0, len(session.groups()[0].hosts)   # a HostGroup
('a', True, 2)

An object of the cluster, through the SDK and through this package:

>>> table = sdk.SharedObject.create(session, "table", 4 << 20, provider="a")
>>> session.objects == (table,), [entry.name for entry in session.list("tab")], table.nbytes >> 20, table.mapped
(True, ['table'], 4, False)
>>> memory = table.regions("rw", device=a)         # an ObjectMemory, guarded
>>> with memory.writing():
...     memory.write(0, b"rows")
4
>>> memory.read(0, 4), memory.rows_memory.nbytes == memory.nbytes
(b'rows', True)
>>> memory.close()
>>> by_hand = sdk.ObjectMemory.of(table.units(), 0, "r", device=a, cache="cc", closed=lambda memory: None)
>>> by_hand.close()
>>> table.unmap()
>>> table.map("rw") == table.address, len(table.units().mem_ids)
(True, 1)
>>> table.set_ownership("rw"), bytes(table.view()[:4]), table.set_ownership("none")
(None, b'rows', None)
>>> table.close()
>>> table.closed
True
>>> again = sdk.SharedObject.open(session, "table", flags=0)
>>> again.delete()
>>> locked = sdk.SharedObject.create(session, "locked", 4 << 20, flags=int(sdk.Flag.WITH_LOCK))
>>> _ = locked.map("rw")
>>> with locked.writing():
...     locked.view()[:2] = b"ok"
>>> with locked.reading():
...     bytes(locked.view()[:2])
b'ok'
>>> locked.delete()

Borrowed memory, and news of faults:

>>> lease = session.lease(4 << 20)                 # a Lease
>>> lease.address > 0, len(lease.view()) >> 20, session.leases == (lease,)
(True, 4, True)
>>> lease.close()
>>> faults = session.faults()                      # FaultEvents
>>> watched = sdk.SharedObject.create(session, "watched", 4 << 20, provider="a")
>>> _ = watched.map("r")
>>> standin.fire("watched", sdk.FaultKind.READ_DATA_ERR) > 0
True
>>> faults.get(timeout=10).name, faults.drain()    # a FaultEvent
('watched', ())
>>> watched.delete()

Each of the library's functions by itself, with the library's own rules:

>>> calls = session.calls                          # Calls
>>> calls.initialize(), calls.timeout > 0, calls.set_logger_level(4), calls.local_slot() >= 0
(None, True, None, True)
>>> calls.lookup_regions()[0].hosts[0].name, calls.cluster()[0].name
('a', 'a')
>>> calls.create_region("pair", [sdk.RegionHost("a", affinity=True), sdk.RegionHost("b")])
>>> calls.lookup_region("pair").name, calls.destroy_region("pair")
('pair', None)
>>> calls.allocate("one", 4 << 20)
>>> calls.allocate_with_provider("two", 4 << 20, sdk.Provider("a"))
>>> address = calls.map("one", 4 << 20, 3)
>>> calls.set_ownership("one", address, 4 << 20, 3), calls.set_ownership("one", address, 4 << 20, 0)
(None, None)
>>> calls.lookup("one").unit >> 20, [entry.name for entry in calls.list_objects("o")]   # ObjectUnits, ObjectEntry
(4, ['one'])
>>> calls.unmap("one", address, 4 << 20), calls.deallocate("one"), calls.deallocate("two")
(None, None, None)
>>> calls.allocate("three", 4 << 20, flags=int(sdk.Flag.WITH_LOCK))
>>> address = calls.map("three", 4 << 20, 3)
>>> calls.write_lock("three"), calls.unlock("three"), calls.read_lock("three"), calls.unlock("three")
(None, None, None, None)
>>> calls.unmap("three", address, 4 << 20), calls.deallocate("three")
(None, None)
>>> calls.lease_free(calls.lease_malloc(4 << 20))
>>> calls.lease_free(calls.lease_malloc_with_location(4 << 20, sdk.Location(slot_id=calls.local_slot())))
>>> calls.counters().round_trips > 0               # Counters
True
>>> session.close(), standin.close()
(None, None)
"""

from obmm.sdk.abi import FaultKind, Flag
from obmm.sdk.calls import Calls
from obmm.sdk.codes import Code
from obmm.sdk.errors import SdkArgumentError, SdkError, SdkLibraryError
from obmm.sdk.faults import FaultEvent, FaultEvents
from obmm.sdk.lease import Lease
from obmm.sdk.library import Library, load
from obmm.sdk.object_memory import ObjectMemory
from obmm.sdk.records import (
    Counters,
    Host,
    HostGroup,
    Location,
    NumaMemory,
    ObjectEntry,
    ObjectUnits,
    Provider,
    RegionHost,
)
from obmm.sdk.session import Session, connect
from obmm.sdk.shared_object import SharedObject

__all__ = [
    "Calls",
    "Code",
    "Counters",
    "FaultEvent",
    "FaultEvents",
    "FaultKind",
    "Flag",
    "Host",
    "HostGroup",
    "Lease",
    "Library",
    "Location",
    "NumaMemory",
    "ObjectEntry",
    "ObjectMemory",
    "ObjectUnits",
    "Provider",
    "RegionHost",
    "SdkArgumentError",
    "SdkError",
    "SdkLibraryError",
    "Session",
    "SharedObject",
    "connect",
    "load",
]
