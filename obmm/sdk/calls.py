# SPDX-License-Identifier: Apache-2.0
"""Every function of the SDK as a Python method (SDK specification 6): values in, values or explained errors out."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, Final

from obmm.arguments import patience, wrong_type
from obmm.closing import Owner
from obmm.sdk import arguments
from obmm.sdk.abi import MAX_NAME, FaultKind, Flag, ffi
from obmm.sdk.codes import Code
from obmm.sdk.errors import SdkError, SdkLibraryError
from obmm.sdk.facts import facts
from obmm.sdk.library import Library
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

MAP_SHARED: Final = 1
_FIRST_LIST: Final = 64
_PAUSE_SECONDS: Final = 0.05
_CONNECTING: Final = frozenset(
    {"initialize", "lookup_regions", "create_region", "lookup_region", "destroy_region"}
)  # whatever else these answer, there is a connection then (5)


class Calls(Owner):
    """The SDK's functions.  Arguments are checked here with the library's rules, before the call.

    Any thread may call; unmap, set_ownership and locks of one object exclude each other (15 rule 5).  Calls wait for
    the daemon without cancellation, up to MXM_CHANNEL_TIMEOUT seconds (60).

    `name` and `region` are those of the cluster, `size` and `address` in bytes, `prot` 0 none, 1 read, 3 read and write, `mode`
    permission bits, `flags` of `Flag`, `wait` in seconds.  SdkArgumentError before, SdkError after a call; SdkLibraryError for
    a function that the library lacks.  Example: `obmm.sdk`.
    """

    def __init__(self, library: Library) -> None:
        self.library = library
        self._raw = library.raw
        self._locks: dict[str, threading.RLock] = {}
        self._pid = os.getpid()
        self.connected = False
        """Whether this process connected to the daemon and did not call `finalize` since."""
        self.set_logger_level(4)  # the region calls connect by themselves, and the log is on (15 rule 4)

    # --- start-up ----------------------------------------------------------------------------------------------------

    def initialize(self) -> None:
        """Connect to the daemon; a second call does nothing.  The library's log is silent since its loading (15 rule 4)."""
        os.environ.setdefault("HCOM_CONNECTION_RETRY_TIMES", "1")
        options = ffi.new("ubsmem_options_t *")
        self._call("init_attributes", self._raw.ubsmem_init_attributes, options)
        self._call("initialize", self._raw.ubsmem_initialize, options)

    def finalize(self) -> None:
        """Between rooms: `Session.close` does it.  Close the connection: the daemon takes back what this process still
        has.
        """
        self._call("finalize", self._raw.ubsmem_finalize)
        self.connected = False

    @property
    def timeout(self) -> float:
        """Seconds that one round trip may take (2)."""
        try:
            return float(int(os.environ.get("MXM_CHANNEL_TIMEOUT", "60")))
        except ValueError:
            return 60.0

    def set_logger_level(self, level: int) -> None:
        """`level` 0 debug (the library's own default, on stdout) .. 4 critical (nothing)."""
        arguments.check_log_level(level)
        self._call("set_logger_level", self._raw.ubsmem_set_logger_level, level, level=level)

    def set_logger(self, logger: Any) -> None:
        """Between rooms: send the library's log to `logger`, a cffi ``ubsmem_logger_func`` that lives for ever."""
        self._call("set_logger", self._raw.ubsmem_set_extern_logger, logger)

    # --- regions -----------------------------------------------------------------------------------------------------

    def lookup_regions(self) -> tuple[HostGroup, ...]:
        """The groups of hosts that this node may share with; group 0 is what ``default`` means."""
        out = ffi.new("ubsmem_regions_t *")
        self._call("lookup_regions", self._raw.ubsmem_lookup_regions, out)
        return tuple(_group(out.region[i]) for i in range(out.num))

    def create_region(self, name: str, hosts: Sequence[RegionHost]) -> None:
        """Name a group of 2..16 hosts on this node.  At least one must have affinity: those provide the memory."""
        arguments.check_region("create_region", name)
        arguments.check_hosts(hosts)
        attributes = ffi.new("ubsmem_region_attributes_t *")
        attributes.host_num = len(hosts)
        for i, host in enumerate(hosts):
            attributes.hosts[i].host_name = host.name.encode()
            attributes.hosts[i].affinity = host.affinity
        names = [host.name for host in hosts]
        self._call("create_region", self._raw.ubsmem_create_region, _c(name), 0, attributes, name=name, hosts=names)

    def lookup_region(self, name: str) -> HostGroup:
        """The region of this name on this node; 6020 for ``default`` too."""
        arguments.check_name("lookup_region", name)
        out = ffi.new("ubsmem_region_desc_t *")
        self._call("lookup_region", self._raw.ubsmem_lookup_region, _c(name), out, name=name)
        return _group(out.region_attr, _text(out.region_name))

    def destroy_region(self, name: str) -> None:
        """Forget the name; objects made with it live on."""
        arguments.check_region("destroy_region", name)
        self._call("destroy_region", self._raw.ubsmem_destroy_region, _c(name), name=name)

    # --- shared objects ----------------------------------------------------------------------------------------------

    def allocate(
        self,
        name: str,
        size: int,
        *,
        region: str = "default",
        mode: int = 0o600,
        flags: int = Flag.CACHE,
        wait: float = 0.0,
    ) -> None:
        """Create the object `name` of `size` bytes (a multiple of 4 MiB) in `region`.

        `wait`: seconds to go on trying while the name is busy (6017) or the daemon reconnects (6040).
        """
        arguments.check_name("allocate", region)
        arguments.check_object("allocate", name, size, flags)
        arguments.check_mode("allocate", mode)
        self._call(
            "allocate",
            self._raw.ubsmem_shmem_allocate,
            _c(region),
            _c(name),
            size,
            mode,
            flags,
            wait=wait,
            region=region,
            name=name,
            size=size,
            mode=f"{mode:04o}",
            flags=hex(flags),
        )

    def allocate_with_provider(
        self,
        name: str,
        size: int,
        provider: Provider,
        *,
        mode: int = 0o600,
        flags: int = Flag.CACHE,
        wait: float = 0.0,
    ) -> None:
        """As `allocate`, with memory of exactly the host of `provider`; every node of the cluster may attach."""
        function = self._optional("ubsmem_shmem_allocate_with_provider")
        arguments.check_host("allocate_with_provider", provider.host)
        arguments.check_object("allocate_with_provider", name, size, flags)
        arguments.check_mode("allocate_with_provider", mode)
        wanted = ffi.new("ubs_mem_provider_t *")
        wanted.host_name = provider.host.encode()
        wanted.socket_id, wanted.numa_id, wanted.port_id = provider.socket_id, provider.numa_id, provider.port_id
        self._call(
            "allocate_with_provider",
            function,
            wanted,
            _c(name),
            size,
            mode,
            flags,
            wait=wait,
            provider=provider.host,
            name=name,
            size=size,
            mode=f"{mode:04o}",
            flags=hex(flags),
        )

    def deallocate(self, name: str, *, wait: float = 0.0) -> None:
        """Delete the object: its creator only (uid and gid), and only while it is not mapped."""
        arguments.check_name("deallocate", name)
        self._call("deallocate", self._raw.ubsmem_shmem_deallocate, _c(name), wait=wait, name=name)

    def map(self, name: str, size: int, prot: int, *, wait: float = 0.0) -> int:
        """Map the whole object of `size` bytes -> address.  Once per process; `prot` 0, 1 (read) or 3 (read-write)."""
        arguments.check_name("map", name)
        arguments.check_map(size, prot)
        out = ffi.new("void **")
        with self._of(name):
            self._call(
                "map",
                self._raw.ubsmem_shmem_map,
                ffi.NULL,
                size,
                prot,
                MAP_SHARED,
                _c(name),
                0,
                out,
                wait=wait,
                name=name,
                size=size,
                prot=prot,
            )
        return int(ffi.cast("uintptr_t", out[0]))

    def unmap(self, name: str, address: int, size: int) -> None:
        """Unmap the whole object.  After a failure the range is inaccessible, and this can be repeated."""
        with self._of(name):
            self._call("unmap", self._raw.ubsmem_shmem_unmap, _pointer(address), size, name=name, size=size)

    def set_ownership(self, name: str, address: int, size: int, prot: int) -> None:
        """Take (1 read, 3 read-write) or give back (0) the right to [address, address + size)."""
        arguments.check_name("set_ownership", name)
        arguments.check_ownership(size, prot)
        with self._of(name):
            self._call(
                "set_ownership",
                self._raw.ubsmem_shmem_set_ownership,
                _c(name),
                _pointer(address),
                size,
                prot,
                name=name,
                size=size,
                prot=prot,
            )

    def write_lock(self, name: str) -> None:
        """Lock for writing, and take the right.  Objects with flags exactly 0x1; never waits."""
        self._locking("write_lock", self._raw.ubsmem_shmem_write_lock, name)

    def read_lock(self, name: str) -> None:
        """Lock for reading, as `write_lock`."""
        self._locking("read_lock", self._raw.ubsmem_shmem_read_lock, name)

    def unlock(self, name: str) -> None:
        """Give the right back, then the lock."""
        self._locking("unlock", self._raw.ubsmem_shmem_unlock, name)

    def list_objects(self, prefix: str) -> tuple[ObjectEntry, ...]:
        """All objects of the cluster whose names start with `prefix`, attached or not."""
        arguments.check_name("list_objects", prefix, longest=MAX_NAME + 1)
        room = _FIRST_LIST
        while True:
            out = ffi.new("ubsmem_shmem_desc_t[]", room)
            count = ffi.new("uint32_t *", room)
            try:
                self._call("list_objects", self._raw.ubsmem_shmem_list_lookup, _c(prefix), out, count, prefix=prefix)
            except SdkError as error:
                if error.code == Code.NOT_FOUND:
                    return ()
                if error.code == Code.PARAM_INVALID and count[0] > room:
                    room = count[0] + _FIRST_LIST
                    continue
                raise
            return tuple(ObjectEntry(_text(out[i].name), out[i].size) for i in range(count[0]))

    def lookup(self, name: str) -> ObjectUnits:
        """The units of an object that some process of this node maps."""
        arguments.check_name("lookup", name, longest=MAX_NAME + 1)
        out = ffi.new("ubsmem_shmem_info_t *")
        self._call("lookup", self._raw.ubsmem_shmem_lookup, _c(name), out, name=name)
        ids = tuple(int(out.mem_id_list[i]) for i in range(out.mem_num))
        return ObjectUnits(_text(out.name), out.size, out.mem_unit_size, ids)

    # --- leases, cluster, faults -------------------------------------------------------------------------------------

    def lease_malloc(self, size: int, *, region: str = "default", flags: int = Flag.CACHE, wait: float = 0.0) -> int:
        """Borrow `size` bytes (a multiple of 4 MiB), readable and writable -> address."""
        arguments.check_name("lease_malloc", region)
        arguments.check_lease("lease_malloc", size, flags)
        out = ffi.new("void **")
        self._call(
            "lease_malloc",
            self._raw.ubsmem_lease_malloc,
            _c(region),
            size,
            0,
            flags,
            out,
            wait=wait,
            region=region,
            size=size,
            flags=hex(flags),
        )
        return int(ffi.cast("uintptr_t", out[0]))

    def lease_malloc_with_location(
        self, size: int, location: Location, *, flags: int = Flag.CACHE, wait: float = 0.0
    ) -> int:
        """As `lease_malloc`, from the lender at `location`; ObmmArgumentError for what is no `Location`."""
        function = self._optional("ubsmem_lease_malloc_with_location")
        arguments.check_lease("lease_malloc_with_location", size, flags)
        if not isinstance(location, Location):
            raise wrong_type("SDK", "location", location, "a Location")
        place = ffi.new("ubs_mem_location_t *")
        place.slot_id, place.socket_id = location.slot_id, location.socket_id
        place.numa_id, place.port_id = location.numa_id, location.port_id
        out = ffi.new("void **")
        self._call(
            "lease_malloc_with_location",
            function,
            place,
            size,
            flags,
            out,
            wait=wait,
            slot=location.slot_id,
            size=size,
            flags=hex(flags),
        )
        return int(ffi.cast("uintptr_t", out[0]))

    def lease_free(self, address: int) -> None:
        """Give borrowed memory back."""
        self._call("lease_free", self._raw.ubsmem_lease_free, _pointer(address), address=hex(address))

    def cluster(self) -> tuple[Host, ...]:
        """Hosts and their NUMA memory.  Hosts without statistics are left out."""
        out = ffi.new("ubsmem_cluster_info_t *")
        self._call("cluster", self._raw.ubsmem_lookup_cluster_statistic, out)
        return tuple(_host(out.host[i]) for i in range(out.host_num))

    def local_slot(self) -> int:
        """This node's slot id."""
        function = self._optional("ubsmem_local_nid_query")
        out = ffi.new("uint32_t *")
        self._call("local_slot", function, out)
        return int(out[0])

    def register_faults(self, callback: Any) -> None:
        """Between rooms: `Session.faults` does it.  `callback`: a cffi ``shmem_faults_func`` that lives for ever."""
        self._call("register_faults", self._optional("ubsmem_shmem_faults_register"), callback)

    # --- stand-in only -----------------------------------------------------------------------------------------------

    def counters(self) -> Counters | None:
        """What the stand-in has counted, or None for the real library."""
        if self.library.standin is None:
            return None
        trips, calls = ffi.new("uint64_t *"), ffi.new("uint64_t *")
        self._raw.ubsmem_standin_counters(trips, calls)
        return Counters(trips[0], calls[0])

    # --- inside ------------------------------------------------------------------------------------------------------

    def _of(self, name: str) -> threading.RLock:
        return self._locks.setdefault(name, threading.RLock())

    def _locking(self, operation: str, function: Callable[..., int], name: str) -> None:
        arguments.check_name(operation, name)
        with self._of(name):
            self._call(operation, function, _c(name), name=name)

    def _optional(self, name: str) -> Callable[..., int]:
        if name in self.library.missing:
            raise SdkLibraryError(
                38, f"{self.library} has no {name}: an older release; fix: update the package ubs_mem"
            )
        function: Callable[..., int] = getattr(self._raw, name)
        return function

    def _call(
        self, operation: str, function: Callable[..., int], *given: Any, wait: float = 0.0, **fields: object
    ) -> None:
        if os.getpid() != self._pid:
            raise SdkError(
                Code.NET,
                f"sdk.{operation}: the SDK does not survive fork, a call in the child would block for ever; fix: "
                "start workers by spawn, or load the library in the child",
                operation=operation,
            )
        wait = patience("SDK", "wait", wait)
        start = time.monotonic()
        while True:
            attempt = time.monotonic()
            code = function(*given)
            now = time.monotonic()
            if operation in _CONNECTING and code not in (Code.MEMLIB, Code.PARAM_INVALID, Code.NO_NEEDED):
                self.connected = True
            if code == Code.OK:
                return
            if not self._passes(code, now - attempt) or now - start + _PAUSE_SECONDS > wait:
                seen = facts(self, operation, code, now - start, fields)
                raise SdkError.answered(operation, code, now - start, str(self.library), seen, **fields)
            time.sleep(_PAUSE_SECONDS)  # the daemon does not report when a name is free again

    def _passes(self, code: int, seconds: float) -> bool:
        """Whether waiting helps: a busy name, or a lost connection.  A time-out's work may have been done (15 rule 9)."""
        return code == Code.BUSY or (code == Code.NET and self.connected and seconds < self.timeout)


def fault_kind(value: int) -> FaultKind | int:
    """The kind, or the number of one that newer libraries may report."""
    try:
        return FaultKind(value)
    except ValueError:
        return value


def _c(name: str) -> bytes:
    return name.encode()


def _pointer(address: int) -> Any:
    return ffi.cast("void *", address)


def _text(field: Any) -> str:
    text: bytes = ffi.string(field)
    return text.decode(errors="backslashreplace")


def _group(attributes: Any, name: str = "") -> HostGroup:
    hosts = (attributes.hosts[i] for i in range(attributes.host_num))
    return HostGroup(tuple(RegionHost(_text(host.host_name), bool(host.affinity)) for host in hosts), name)


def _host(host: Any) -> Host:
    found = (host.numa[i] for i in range(host.numa_num))
    return Host(
        _text(host.host_name),
        tuple(
            NumaMemory(
                n.slot_id, n.socket_id, n.numa_id, n.mem_lend_ratio, n.mem_total, n.mem_free, n.mem_borrow, n.mem_lend
            )
            for n in found
        ),
    )
