# SPDX-License-Identifier: Apache-2.0
"""A process on an emulated node that makes raw SDK calls for a test: JSON lines in, JSON lines out."""

from __future__ import annotations

import json
import os
import queue
import signal
import sys
import threading
import time
from typing import Any

from obmm.sdk.abi import NO_PORT, ffi
from obmm.sdk.library import load

library = load()
raw = library.raw
_events: queue.SimpleQueue[tuple[str, int, bool]] = queue.SimpleQueue()


@ffi.callback("shmem_faults_func")
def _on_fault(name: Any, kind: int) -> int:
    _events.put((ffi.string(name).decode(), kind, threading.current_thread() is threading.main_thread()))
    return 0


def _text(value: str | None) -> Any:
    return ffi.NULL if value is None else value.encode()


def _address(value: int) -> Any:
    return ffi.cast("void *", value)


def kind() -> str:
    return library.kind


def start() -> list[int]:
    options = ffi.new("ubsmem_options_t *")
    return [raw.ubsmem_init_attributes(options), raw.ubsmem_initialize(options)]


def nulls() -> list[int]:
    return [raw.ubsmem_init_attributes(ffi.NULL), raw.ubsmem_initialize(ffi.NULL)]


def finalize() -> int:
    return int(raw.ubsmem_finalize())


def logger(level: int) -> int:
    return int(raw.ubsmem_set_logger_level(level))


def extern_logger_null() -> int:
    return int(raw.ubsmem_set_extern_logger(ffi.NULL))


def allocate(name: str | None, size: int, region: str | None = "default", mode: int = 0o600, flags: int = 0) -> int:
    return int(raw.ubsmem_shmem_allocate(_text(region), _text(name), size, mode, flags))


def allocate_at(host: str, name: str, size: int, mode: int = 0o600, flags: int = 0) -> int:
    provider = ffi.new("ubs_mem_provider_t *", {"socket_id": NO_PORT, "numa_id": NO_PORT, "port_id": NO_PORT})
    ffi.memmove(provider.host_name, host.encode(), len(host))
    return int(raw.ubsmem_shmem_allocate_with_provider(provider, name.encode(), size, mode, flags))


def deallocate(name: str) -> int:
    return int(raw.ubsmem_shmem_deallocate(name.encode()))


def map(name: str, size: int, prot: int = 3, flags: int = 1, offset: int = 0, addr: int = 0) -> list[int]:
    out = ffi.new("void **")
    code = raw.ubsmem_shmem_map(_address(addr), size, prot, flags, name.encode(), offset, out)
    return [code, int(ffi.cast("uintptr_t", out[0]))]


def unmap(addr: int, size: int) -> int:
    return int(raw.ubsmem_shmem_unmap(_address(addr), size))


def own(name: str, addr: int, size: int, prot: int) -> int:
    return int(raw.ubsmem_shmem_set_ownership(name.encode(), _address(addr), size, prot))


def lock(which: str, name: str) -> int:
    return int(getattr(raw, f"ubsmem_shmem_{which}")(name.encode()))


def listed(prefix: str, room: int = 64) -> list[Any]:
    out, count = ffi.new("ubsmem_shmem_desc_t[]", max(room, 1)), ffi.new("uint32_t *", room)
    code = raw.ubsmem_shmem_list_lookup(prefix.encode(), out, count)
    found = [[ffi.string(out[i].name).decode(), out[i].size] for i in range(0 if code else count[0])]
    return [code, count[0], found]


def lookup(name: str) -> list[Any]:
    out = ffi.new("ubsmem_shmem_info_t *")
    code = raw.ubsmem_shmem_lookup(name.encode(), out)
    ids = [out.mem_id_list[i] for i in range(out.mem_num)]
    assert not any(out.mem_id_list[i] for i in range(out.mem_num, 2048))
    return [code, out.size, out.mem_unit_size, ids]


def regions() -> list[Any]:
    out = ffi.new("ubsmem_regions_t *")
    code = raw.ubsmem_lookup_regions(out)
    hosts = [
        [ffi.string(out.region[g].hosts[i].host_name).decode() for i in range(out.region[g].host_num)]
        for g in range(out.num)
    ]
    return [code, hosts]


def create_region(name: str, hosts: list[str], size: int = 0, affinity: int = 1) -> int:
    attributes = ffi.new("ubsmem_region_attributes_t *")
    attributes.host_num = len(hosts)
    for i, host in enumerate(hosts[:16]):
        attributes.hosts[i].host_name = host.encode()
        attributes.hosts[i].affinity = i < affinity
    return int(raw.ubsmem_create_region(name.encode(), size, attributes))


def lookup_region(name: str) -> list[Any]:
    out = ffi.new("ubsmem_region_desc_t *")
    code = raw.ubsmem_lookup_region(name.encode(), out)
    hosts = out.region_attr.hosts
    found = [[ffi.string(hosts[i].host_name).decode(), hosts[i].affinity] for i in range(out.region_attr.host_num)]
    return [code, out.size, found]


def destroy_region(name: str) -> int:
    return int(raw.ubsmem_destroy_region(name.encode()))


def lease(size: int, flags: int = 0, distance: int = 0, region: str = "default") -> list[int]:
    out = ffi.new("void **")
    code = raw.ubsmem_lease_malloc(region.encode(), size, distance, flags, out)
    return [code, int(ffi.cast("uintptr_t", out[0]))]


def lease_at(slot: int, size: int, flags: int = 0) -> list[int]:
    out = ffi.new("void **")
    place = ffi.new("ubs_mem_location_t *", {"slot_id": slot})
    code = raw.ubsmem_lease_malloc_with_location(place, size, flags, out)
    return [code, int(ffi.cast("uintptr_t", out[0]))]


def lease_free(addr: int) -> int:
    return int(raw.ubsmem_lease_free(_address(addr)))


def cluster() -> list[Any]:
    out = ffi.new("ubsmem_cluster_info_t *")
    code = raw.ubsmem_lookup_cluster_statistic(out)
    hosts = [out.host[i] for i in range(out.host_num)]
    return [code, [[ffi.string(h.host_name).decode(), [h.numa[i].slot_id for i in range(h.numa_num)]] for h in hosts]]


def slot() -> list[int]:
    out = ffi.new("uint32_t *")
    return [raw.ubsmem_local_nid_query(out), out[0]]


def faults(null: bool = False) -> int:
    return int(raw.ubsmem_shmem_faults_register(ffi.NULL if null else _on_fault))


def event() -> tuple[str, int, bool]:
    return _events.get(timeout=10)


def peek(addr: int, size: int) -> str:
    return bytes(ffi.buffer(ffi.cast("char *", addr), size)).hex()


def poke(addr: int, data: str) -> None:
    given = bytes.fromhex(data)
    ffi.memmove(_address(addr), given, len(given))


def readable(addr: int) -> str:
    """How a child of this process ends that reads a byte: OBMM mappings are not inherited, so it is asked here."""
    with open("/proc/self/maps") as maps:
        for line in maps:
            low, high = (int(x, 16) for x in line.split()[0].split("-"))
            if low <= addr < high:
                return line.split()[1]
    return "nothing"


def counters() -> list[int]:
    trips, calls = ffi.new("uint64_t *"), ffi.new("uint64_t *")
    raw.ubsmem_standin_counters(trips, calls)
    return [trips[0], calls[0]]


def forked() -> list[int]:
    """What a forked child gets: initialize, a round trip, finalize."""
    out, back = os.pipe()
    pid = os.fork()
    if not pid:
        os.write(back, json.dumps([*start(), slot()[0], finalize()]).encode())
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    with os.fdopen(out, "rb") as answer:
        os.close(back)
        codes: list[int] = json.loads(answer.read())
        return codes


def churn(name: str, host: str, size: int) -> None:
    """Objects and leases come and go until this process is killed."""
    while True:
        allocate_at(host, name, size)
        code, address = map(name, size)
        leased, lease_address = lease(size)
        if not leased:
            poke(lease_address, "77")
            lease_free(lease_address)
        if not code:
            poke(address, "88")
            unmap(address, size)
        deallocate(name)


def timed(name: str, *given: Any) -> list[Any]:
    """Another function's result, and the seconds that it took."""
    before = time.monotonic()
    return [globals()[name](*given), time.monotonic() - before]


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def main() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    for line in sys.stdin:
        name, given, named = json.loads(line)
        print(json.dumps(globals()[name](*given, **named)), flush=True)


if __name__ == "__main__":
    main()
