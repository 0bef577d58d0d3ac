# SPDX-License-Identifier: Apache-2.0
"""Result codes of the SDK (SDK specification 4.3), and what each means for each operation (13)."""

from __future__ import annotations

import errno
from enum import IntEnum
from typing import Final


class Code(IntEnum):
    """What the SDK's functions return."""

    OK = 0
    PARAM_INVALID = 6010
    NOPERM = 6011
    MEMORY = 6012
    UNIMPL = 6013
    CHECK_RESOURCE = 6014
    MEMLIB = 6015
    NO_NEEDED = 6016
    BUSY = 6017
    NOT_FOUND = 6020
    ALREADY_EXIST = 6021
    MALLOC_FAIL = 6022
    RECORD = 6023
    IN_USING = 6024
    NET = 6040
    UBSE = 6050
    OBMM = 6051
    LOCK_NOT_SUPPORTED = 6060
    LOCK_ALREADY_LOCKED = 6061
    DLOCK = 6062
    BUFF = 6099


_C_NAMES: Final = {Code.OK: "UBSM_OK", Code.CHECK_RESOURCE: "UBSM_CHECK_RESOURCE_ERROR"}


def c_name(code: int) -> str:
    """The name in the SDK's header, or the number of a code that it does not have."""
    try:
        known = Code(code)
    except ValueError:
        return f"code {code}"
    return _C_NAMES.get(known, f"UBSM_ERR_{known.name}")


#: The errno nearest to each code: an SDK error is an OSError like every other of this package.
ERRNO: Final[dict[int, int]] = {
    Code.PARAM_INVALID: errno.EINVAL,
    Code.NOPERM: errno.EACCES,
    Code.MEMORY: errno.ENOMEM,
    Code.UNIMPL: errno.ENOSYS,
    Code.CHECK_RESOURCE: errno.EHOSTUNREACH,
    Code.MEMLIB: errno.ENODEV,
    Code.NO_NEEDED: errno.EEXIST,
    Code.BUSY: errno.EBUSY,
    Code.NOT_FOUND: errno.ENOENT,
    Code.ALREADY_EXIST: errno.EEXIST,
    Code.MALLOC_FAIL: errno.ENOMEM,
    Code.RECORD: errno.EIO,
    Code.IN_USING: errno.EBUSY,
    Code.NET: errno.ENOTCONN,
    Code.UBSE: errno.EREMOTEIO,
    Code.OBMM: errno.EIO,
    Code.LOCK_NOT_SUPPORTED: errno.EOPNOTSUPP,
    Code.LOCK_ALREADY_LOCKED: errno.EDEADLK,
    Code.DLOCK: errno.ENOLCK,
    Code.BUFF: errno.EIO,
}

_LOCKS = "locks never wait: try again yourself; 6060: flags must be exactly 0x1 and the daemon's lock service (off in the shipped configuration) must be on and have a leader; 6061: this name is held (unlock before unmap); 6062: contention or an error of the lock service"

#: (operation, code) -> causes with their fixes, most likely first.  Operation "" is the text for every other one.
HINTS: Final[dict[tuple[str, int], str]] = {
    ("initialize", Code.MEMLIB): "the daemon is off (its socket is missing), this process is not in group `ubsmd`, all 128 client places are taken (a connection that is refused takes 2^n - 1 s for n attempts, 31 s by default), or libobmm.so.1 is missing or too old; fix: check `systemctl status ubsmd`, the socket's mode and your groups",
    ("allocate", Code.PARAM_INVALID): "the size is no multiple of 4 MiB (with MMAP_HUGETLB_PMD: of the PMD size), the flags are none of the 16 valid sets, or a name is not 1..47 bytes",
    ("map", Code.PARAM_INVALID): "the length is not the object's size, it is already mapped in this process, prot, offset or flags are wrong, or mmap itself failed (address space, descriptor limit: one descriptor per unit, a writing map where this node's first mapper opened it read-only); fix: compare list_objects(name) and `ulimit -n`",
    ("unmap", Code.PARAM_INVALID): "the length is not the mapping's; fix: unmap whole objects",
    ("unmap", Code.NOT_FOUND): "the pointer is not the exact start of an SDK mapping of this process",
    ("set_ownership", Code.PARAM_INVALID): "the range is outside the mapping or not on 4 KiB borders, prot is not none, read or read-write, or the object is non-cacheable on this node (nothing to own)",
    ("set_ownership", Code.OBMM): "the ownership ioctl was refused: state, alignment, missing flush engine or driver profile; units before the failing one stay changed; fix: `obmm explain UPDATE_RANGE EINVAL`",
    ("write_lock", Code.PARAM_INVALID): "the object is smaller than one unit; fix: allocate at least mem_unit_size",
    ("read_lock", Code.PARAM_INVALID): "the object is smaller than one unit; fix: allocate at least mem_unit_size",
    ("unlock", Code.NOT_FOUND): "this process does not hold the lock, or it expired (300 s by default) and was collected",
    ("lease_malloc", Code.PARAM_INVALID): "the size is no multiple of 4 MiB, the flags are not 0, 0x20 or 0x40, the distance is not 0, the region has no host with affinity, or mapping failed",
    ("lease_free", Code.PARAM_INVALID): "the pointer is no lease of this process (already freed, or a shared object: those are unmapped)",
    ("map", Code.NOPERM): "the object's mode bits do not let this uid and gid in: reading is always needed, and root has no override; fix: create it with the mode that your users need",
    ("deallocate", Code.NOPERM): "only the creator's uid and gid may delete it, root is no exception; fix: run as the creator",
    ("create_region", Code.CHECK_RESOURCE): "a host is unknown or not in one group with the others; host names are compared byte by byte; fix: take them from cluster() or lookup_regions()",
    ("create_region", Code.NO_NEEDED): "the name `default` is reserved for the group that exists anyway",
    ("destroy_region", Code.NO_NEEDED): "the region `default` cannot be destroyed",
    ("create_region", Code.ALREADY_EXIST): "a region of this name exists on this node; fix: use it, or destroy_region first",
    ("allocate", Code.NOT_FOUND): "the region, or the provider's host, is unknown; fix: take host names from cluster()",
    ("lookup", Code.NOT_FOUND): "the object is not attached on this node (nobody here maps it), or it does not exist; fix: map it first, or use list_objects, which needs no attachment",
    ("map", Code.NOT_FOUND): "no such object: a wrong name, or an anonymous object that was reclaimed; fix: list_objects(prefix)",
    ("allocate", Code.ALREADY_EXIST): "the name is taken in this cluster, maybe by a run that crashed; fix: SharedObject.open(), or delete it as its creator",
    ("map", Code.ALREADY_EXIST): "this process is already registered for the object, by an earlier map that failed half way; fix: close the session, or restart the process",
    ("deallocate", Code.IN_USING): "it is mapped on some node; fix: unmap it everywhere first",
    ("allocate", Code.UBSE): "the engine refused: below 128 MiB on older engines, no free pool, no affine node, a region without a host with affinity, characters other than letters, digits and . : - _ in the name, or the PMD pool is too small; fix: ask for a multiple of 128 MiB, see the free memory in cluster(), bind the process to one NUMA node",
    ("map", Code.UBSE): "this node is not in the object's region, the provider is down, or the import was refused; fix: create it with provider=, which every node may attach; read the engine's log",
    ("unmap", Code.UBSE): "the region is busy: another descriptor of it is open; fix: close your regions() of this object first, then unmap again",
    ("map", Code.OBMM): "opening the region's node failed: EACCES (another user's), EPERM (cache mode), EAGAIN, or a container without the node; fix: compare owner and mode of /dev/obmm_shmdev<id> with this process",
    ("lease_malloc", Code.UBSE): "the engine refused: no free pool on the lenders, below 128 MiB on older engines, or (flags 0x40) no remote NUMA node can appear on this host; fix: see the free memory in cluster(), or borrow without 0x40",
    ("register_faults", Code.UBSE): "the engine's client library is missing, or this process is not in group `ubse`",
    ("lookup_regions", Code.UBSE): "the cluster has fewer than two nodes, or the engine does not answer",
    ("", Code.PARAM_INVALID): "an argument is invalid, or mapping memory failed",
    ("", Code.NOPERM): "this uid and gid may not do it; root has no override",
    ("", Code.MEMORY): "copying memory failed inside the SDK; fix: retry, and read the daemon's log",
    ("", Code.UNIMPL): "the feature is switched off in the daemon; fix: see its configuration",
    ("", Code.CHECK_RESOURCE): "the cluster's resources do not fit the request; fix: see cluster() and lookup_regions()",
    ("", Code.MEMLIB): "the library could not start; fix: check `systemctl status ubsmd` and the daemon's socket",
    ("", Code.NO_NEEDED): "the name is reserved; fix: choose another",
    ("", Code.BUSY): "an earlier time-out or crash under this name is still being cleaned up, or a parallel create runs; fix: retry in minutes (wait=), close descriptors that hold its regions",
    ("", Code.NOT_FOUND): "nothing of this name exists here",
    ("", Code.ALREADY_EXIST): "the name is taken",
    ("", Code.MALLOC_FAIL): "the SDK could not allocate memory in this process; fix: free some",
    ("", Code.RECORD): "the daemon could not keep its record in /dev/shm; fix: free space there and read its log",
    ("", Code.IN_USING): "it is in use; fix: unmap it everywhere first",
    ("", Code.NET): "not initialised, the daemon is restarting, or it did not answer within MXM_CHANNEL_TIMEOUT (60 s by default; it still finishes the work); fix: open a session, retry after the reconnection, raise the time-out",
    ("", Code.UBSE): "the UB engine refused or failed; fix: read the daemon's log for the engine's number",
    ("", Code.OBMM): "the OBMM driver refused; fix: read the kernel log (prefix OBMM:)",
    ("", Code.LOCK_NOT_SUPPORTED): _LOCKS,
    ("", Code.LOCK_ALREADY_LOCKED): _LOCKS,
    ("", Code.DLOCK): _LOCKS,
    ("", Code.BUFF): "the engine timed out (the operation may still complete and the name answer 6017 meanwhile), or a number without a public code; fix: read the daemon's log",
}  # fmt: skip

_SAME_AS: Final = {"allocate_with_provider": "allocate", "lease_malloc_with_location": "lease_malloc"}


def hint(operation: str, code: int) -> str:
    """What `code` means for `operation`, and what to do."""
    key = _SAME_AS.get(operation, operation)
    found = HINTS.get((key, code)) or HINTS.get(("", code))
    return found or "a code that this package does not know; fix: read the daemon's log"
