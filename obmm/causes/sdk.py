# SPDX-License-Identifier: Apache-2.0
"""What each result code of the SDK means for each of its functions, and what to do (SDK specification 4.3, 13)."""

from __future__ import annotations

from typing import Final

from obmm.causes import Cause, Causes
from obmm.operations import OF_THE_SDK

CODES: Final[dict[int, tuple[str, str]]] = {
    6010: ("UBSM_ERR_PARAM_INVALID", "EINVAL"),
    6011: ("UBSM_ERR_NOPERM", "EACCES"),
    6012: ("UBSM_ERR_MEMORY", "ENOMEM"),
    6013: ("UBSM_ERR_UNIMPL", "ENOSYS"),
    6014: ("UBSM_CHECK_RESOURCE_ERROR", "EHOSTUNREACH"),
    6015: ("UBSM_ERR_MEMLIB", "ENODEV"),
    6016: ("UBSM_ERR_NO_NEEDED", "EEXIST"),
    6017: ("UBSM_ERR_BUSY", "EBUSY"),
    6020: ("UBSM_ERR_NOT_FOUND", "ENOENT"),
    6021: ("UBSM_ERR_ALREADY_EXIST", "EEXIST"),
    6022: ("UBSM_ERR_MALLOC_FAIL", "ENOMEM"),
    6023: ("UBSM_ERR_RECORD", "EIO"),
    6024: ("UBSM_ERR_IN_USING", "EBUSY"),
    6040: ("UBSM_ERR_NET", "ENOTCONN"),
    6050: ("UBSM_ERR_UBSE", "EREMOTEIO"),
    6051: ("UBSM_ERR_OBMM", "EIO"),
    6060: ("UBSM_ERR_LOCK_NOT_SUPPORTED", "EOPNOTSUPP"),
    6061: ("UBSM_ERR_LOCK_ALREADY_LOCKED", "EDEADLOCK"),
    6062: ("UBSM_ERR_DLOCK", "ENOLCK"),
    6099: ("UBSM_ERR_BUFF", "EIO"),
}
"""Result code -> its name in the SDK's header, the errno nearest to it: an SDK error is an OSError like every other."""

_LOCKS = "locks never wait: try again yourself; 6060: flags must be exactly 0x1 and the daemon's lock service (off in the shipped configuration) must be on and have a leader; 6061: this name is held (unlock before unmap); 6062: contention or an error of the lock service"

HINTS: Final[dict[tuple[str, int], tuple[str, str]]] = {
    ("initialize", 6015): ("the daemon is off (its socket is missing), this process is not in group `ubsmd`, all 128 client places are taken (a connection that is refused takes 2^n - 1 s for n attempts, 31 s by default), or libobmm.so.1 is missing or too old", "check `systemctl status ubsmd`, the socket's mode and your groups"),
    ("allocate", 6010): ("the size is not a multiple of 4 MiB (with MMAP_HUGETLB_PMD: of the PMD size), the flags are none of the 16 valid sets, or a name is not 1..47 bytes", "round the size up, take a set of obmm.sdk.Flag, shorten the name"),
    ("map", 6010): ("the length is not the object's size, it is already mapped in this process, prot, offset or flags are wrong, or mmap itself failed (address space, descriptor limit: one descriptor per unit, a writing map where this node's first mapper opened it read-only)", "compare list_objects(name) and `ulimit -n`"),
    ("unmap", 6010): ("the length is not the mapping's", "unmap whole objects"),
    ("unmap", 6020): ("the pointer is not the exact start of an SDK mapping of this process", "unmap the address that map returned, once"),
    ("set_ownership", 6010): ("the range is outside the mapping or not on 4 KiB borders, prot is not none, read or read-write, or the object is non-cacheable on this node (nothing to own)", "whole pages inside the mapping; none of it for a non-cacheable object"),
    ("set_ownership", 6051): ("the ownership ioctl was refused: state, alignment, missing flush engine or driver profile; units before the failing one stay changed", "`obmm explain UPDATE_RANGE EINVAL`"),
    ("write_lock", 6010): ("the object is smaller than one unit", "allocate at least mem_unit_size"),
    ("read_lock", 6010): ("the object is smaller than one unit", "allocate at least mem_unit_size"),
    ("unlock", 6020): ("this process does not hold the lock, or it expired (300 s by default) and was collected", "unlock once, in the process that locked, before it expires"),
    ("lease_malloc", 6010): ("the size is not a multiple of 4 MiB, the flags are not 0, 0x20 or 0x40, the distance is not 0, the region has no host with affinity, or mapping failed", "a multiple of 4 MiB, flags 0, 0x20 or 0x40, a region with a host that has affinity"),
    ("lease_free", 6010): ("the pointer is not a lease of this process (already freed, or a shared object: those are unmapped)", "free each lease once, with the address that lease_malloc returned"),
    ("map", 6011): ("the object's mode bits do not let this uid and gid in: reading is always needed, and root has no override", "create it with the mode that your users need"),
    ("deallocate", 6011): ("only the creator's uid and gid may delete it, root is not an exception", "run as the creator"),
    ("create_region", 6014): ("a host is unknown or not in one group with the others; host names are compared byte by byte", "take them from cluster() or lookup_regions()"),
    ("create_region", 6016): ("the name `default` is reserved for the group that exists anyway", "use `default` as it is, or choose another name"),
    ("destroy_region", 6016): ("the region `default` cannot be destroyed", "leave it"),
    ("create_region", 6021): ("a region of this name exists on this node", "use it, or destroy_region first"),
    ("allocate", 6020): ("the region, or the provider's host, is unknown", "take host names from cluster()"),
    ("lookup", 6020): ("the object is not attached on this node (it is not mapped here), or it does not exist", "map it first, or use list_objects, which needs no attachment"),
    ("map", 6020): ("no such object: a wrong name, or an anonymous object that was reclaimed", "list_objects(prefix)"),
    ("allocate", 6021): ("the name is taken in this cluster, maybe by a run that crashed", "SharedObject.open(), or delete it as its creator"),
    ("map", 6021): ("this process is already registered for the object, by an earlier map that failed half way", "close the session, or restart the process"),
    ("deallocate", 6024): ("it is mapped on some node", "unmap it everywhere first"),
    ("allocate", 6050): ("the engine refused: below 128 MiB on older engines, no free pool, no affine node, a region without a host with affinity, characters other than letters, digits and . : - _ in the name, or the PMD pool is too small", "ask for a multiple of 128 MiB, see the free memory in cluster(), bind the process to one NUMA node"),
    ("map", 6050): ("this node is not in the object's region, the provider is down, or the import was refused", "create it with provider=, which every node may attach; read the engine's log"),
    ("unmap", 6050): ("the region is busy: another descriptor of it is open", "close your regions() of this object first, then unmap again"),
    ("map", 6051): ("opening the region's node failed: EACCES (another user's), EPERM (cache mode), EAGAIN, or a container without the node", "compare owner and mode of /dev/obmm_shmdev<id> with this process"),
    ("lease_malloc", 6050): ("the engine refused: no free pool on the lenders, below 128 MiB on older engines, or (flags 0x40) no remote NUMA node can appear on this host", "see the free memory in cluster(), or borrow without 0x40"),
    ("register_faults", 6050): ("the engine's client library is missing, or this process is not in group `ubse`", "install libubse-client.so.1, add the user to group `ubse`"),
    ("lookup_regions", 6050): ("the cluster has fewer than two nodes, or the engine does not answer", "start the engine on a second node, read its log"),
    ("", 6010): ("an argument is invalid, or mapping memory failed", "compare the values that the message shows with what the call takes"),
    ("", 6011): ("this uid and gid may not do it; root has no override", "run as the creator, or have the creator allow it"),
    ("", 6012): ("copying memory failed inside the SDK", "retry, and read the daemon's log"),
    ("", 6013): ("the feature is switched off in the daemon", "see its configuration"),
    ("", 6014): ("the cluster's resources do not fit the request", "see cluster() and lookup_regions()"),
    ("", 6015): ("the library could not start", "check `systemctl status ubsmd` and the daemon's socket"),
    ("", 6016): ("the name is reserved", "choose another"),
    ("", 6017): ("an earlier time-out or crash under this name is still being cleaned up, or a parallel create runs", "retry in minutes (wait=), close descriptors that hold its regions"),
    ("", 6020): ("nothing of this name exists here", "compare the name with list_objects() and lookup_regions()"),
    ("", 6021): ("the name is taken", "use what is there, or choose another name"),
    ("", 6022): ("the SDK could not allocate memory in this process", "free some"),
    ("", 6023): ("the daemon could not keep its record in /dev/shm", "free space there and read its log"),
    ("", 6024): ("it is in use", "unmap it everywhere first"),
    ("", 6040): ("not initialised, the daemon is restarting, or it did not answer within MXM_CHANNEL_TIMEOUT (60 s by default; it still finishes the work)", "open a session, retry after the reconnection, raise the time-out"),
    ("", 6050): ("the UB engine refused or failed", "read the daemon's log for the engine's number"),
    ("", 6051): ("the OBMM driver refused", "read the kernel log (prefix OBMM:)"),
    ("", 6060): (_LOCKS, "allocate with flags 0x1, switch the daemon's lock service on"),
    ("", 6061): (_LOCKS, "unlock it first, or try again"),
    ("", 6062): (_LOCKS, "try again, and read the daemon's log when it stays so"),
    ("", 6099): ("the engine timed out (the operation may still complete and the name answer 6017 meanwhile), or a number without a public code", "read the daemon's log"),
}  # fmt: skip
"""(function, code) -> meaning and fix, most likely first.  Function "" is the text for every other one."""

_SAME_AS: Final = {
    "allocate_with_provider": "allocate",
    "lease_malloc_with_location": "lease_malloc",
    "read_lock": "write_lock",
}
_OF_LOCKS: Final = {(function, code) for function in ("write_lock", "unlock") for code in (6060, 6061, 6062)}
_LOST: Final = 6040


def cause(function: str, code: int) -> Cause:
    """What `code` means for `function`, and what to do.

    >>> cause("unmap", 6020).fix
    'unmap the address that map returned, once'
    """
    found = HINTS.get((_SAME_AS.get(function, function), code)) or HINTS.get(("", code))
    if found is None or code not in CODES:
        return Cause(
            "SDK specification 4.3", "a code that this package does not know", "read the daemon's log", str(code)
        )
    return Cause(f"SDK specification 4.3-{code}/13", *found, answer=f"{code} {CODES[code][0]}")


def _answers(function: str) -> list[int]:
    """The codes with a text of their own for `function`; then the lost connection, which all of them know."""
    own = _SAME_AS.get(function, function)
    return [*(code for code in CODES if (own, code) in HINTS or (own, code) in _OF_LOCKS), _LOST]


def _causes(function: str, first: list[int]) -> Causes:
    """By errno: those `first`, then every other code with the same errno."""
    ordered = [*first, *(code for code in CODES if code not in first)]  # no errno of a lock's code is another's
    return {
        (function, name): tuple(cause(function, code) for code in ordered if CODES[code][1] == name)
        for name in dict.fromkeys(CODES[code][1] for code in first)
    }


SDK: Causes = _causes("SDK", [code for code in CODES if ("unlock", code) not in _OF_LOCKS])
"""Of each function what is its own; what they have in common is the answer of ``SDK``."""

for _function in OF_THE_SDK:
    SDK |= _causes(_function, _answers(_function))
