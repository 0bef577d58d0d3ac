# SPDX-License-Identifier: Apache-2.0
"""What each errno of a region's node means (driver specification 9), and of the emulator's own call."""

from __future__ import annotations

from obmm.causes import GATE, Causes
from obmm.causes import because as _c

REGION: Causes = {
    # --- region node ---------------------------------------------------------------------------------------------
    ("SHMDEV_OPEN", "ENOENT"): (
        _c(
            "OPEN1",
            "the region's node does not exist: removed, or this container has no devtmpfs",
            "check `obmm ls`; make the node from its sysfs `dev`",
        ),
    ),
    ("SHMDEV_OPEN", "EACCES"): (
        _c(
            "OPEN1",
            "region nodes are root:root 0600 and no udev event is ever sent for them",
            "chmod the node after every creation, or use `obmm open-broker`",
        ),
    ),
    ("SHMDEV_OPEN", "EPERM"): (
        _c(
            "OPEN2/OPEN3",
            "the region cannot be opened in this cache mode: an import is CC or NC according to its window, "
            "and a user-address export cannot be opened at all",
            "map with cache='nc' for a region in an NC window, cache='cc' for one in a CC window",
        ),
    ),
    ("SHMDEV_OPEN", "EAGAIN"): (
        _c("OPEN4", "the region is being created or removed right now", "retry, or give it up"),
    ),
    ("SHMDEV_OPEN", "ENXIO"): (_c("OPEN1", "the region was removed", "fetch a fresh handle"),),
    ("MMAP", "EINVAL"): (
        _c("M11", "offset and length reach past the end of the region", "stay inside `region.length`"),
        _c(
            "M8/M9",
            "a PMD mapping needs address, offset and length aligned to 2 MiB",
            "align them, or map with 4 KiB pages",
        ),
        _c("M5", "private mappings are refused", "map shared"),
        _c("M1", "length 0 or an offset that is not a multiple of the page size", "align to 4096"),
    ),
    ("MMAP", "EPERM"): (
        _c(
            "M10",
            "the first mapping fixed the region to the other granularity (4 KiB or PMD) for its whole life",
            "use that granularity",
        ),
        _c(
            "M12",
            "somebody on this host maps the region in the other cache mode (CC or NC)",
            "use one mode, or wait until it is unmapped",
        ),
        _c("M6", "the region was created without ALLOW_MMAP, or is a NUMA import", "export with allow_mmap"),
        _c("M4", "PROT_EXEC on a /dev mounted noexec", "do not map executable"),
    ),
    ("MMAP", "EACCES"): (_c("M3", "a writable mapping through a read-only descriptor", "open the region for writing"),),
    ("MMAP", "ENOMEM"): (
        _c(
            "M2/M13",
            "address space, map count or kernel memory exhausted",
            "raise vm.max_map_count; unmap something",
        ),
    ),
    ("MMAP", "EOVERFLOW"): (_c("M2", "offset + length overflows", "stay inside the region"),),
    ("MMAP", "ENODEV"): (_c("2", "the control node cannot be mapped", "map the region node"),),
    ("MUNMAP", "EINVAL"): (
        _c("9.5", "a PMD mapping can only be cut at 2 MiB borders", "unmap exactly what was mapped"),
    ),
    ("MUNMAP", "ENOMEM"): (_c("9.5", "splitting the mapping exceeds vm.max_map_count", "unmap whole mappings"),),
    ("UPDATE_RANGE", "EINVAL"): (
        _c("O5", "start or end is not aligned to the region's granularity (4 KiB or PMD)", "round explicitly"),
        _c(
            "O2",
            "the region is mapped non-cacheable: ownership does not apply",
            "NC needs no ownership calls, only barriers",
        ),
        _c("O3", "this region was never mapped cacheable on this host", "map it with cache='cc' first"),
        _c("O4/O7/O8", "empty range, or an impossible state or cache operation", "use none, r or w"),
    ),
    ("UPDATE_RANGE", "EPERM"): (
        _c("O6", "the region was opened with fewer rights than asked for", "map it 'rw' to acquire 'w'"),
    ),
    ("UPDATE_RANGE", "EFAULT"): (
        _c("O9", "the range is not completely covered by mappings of this region", "stay inside one mapping"),
    ),
    ("UPDATE_RANGE", "ENOMEM"): (
        _c(
            "O10",
            "too many pieces: the mapping's pieces never merge again and count against vm.max_map_count",
            "use larger ranges; raise vm.max_map_count",
        ),
    ),
    ("UPDATE_RANGE", "EOPNOTSUPP"): (
        _c("O11", "the cache flush engine is missing", "load the HHA cache driver"),
        GATE,
    ),
    ("UPDATE_RANGE", "ETIMEDOUT"): (
        _c(
            "O11",
            "the UB write queue did not drain within one second",
            "check the link and the peer; rights are rolled back",
        ),
    ),
    ("UPDATE_RANGE", "ENOTRECOVERABLE"): (
        _c("Q8", "older drivers: the change failed half way", "treat the region as lost: close it"),
    ),
    # --- the emulator's own call ---------------------------------------------------------------------------------
    ("PROGRAM_WINDOW", "ENOENT"): (
        _c(
            "22.3-2",
            "no emulated node has the handle's owner CNA and EID",
            "serve the region from a node of the same fabric",
        ),
    ),
    ("PROGRAM_WINDOW", "ENODEV"): (_c("22.3-2", "the controller is not one of this node", "use a local controller"),),
    ("PROGRAM_WINDOW", "ENOSPC"): (
        _c(
            "22.3-2",
            "no free window space of that kind is large enough",
            "close imports, or give the topology larger windows",
        ),
    ),
    ("PROGRAM_WINDOW", "EINVAL"): (_c("22.3-2", "the length is not a multiple of 2 MiB", "pass the handle's length"),),
}
