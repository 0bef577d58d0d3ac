# SPDX-License-Identifier: Apache-2.0
"""What each errno of the control node means: opening it, and the commands of driver specification 6."""

from __future__ import annotations

from obmm.causes import GATE, POINTER, UNLOADING, Causes
from obmm.causes import because as _c

CONTROL: Causes = {
    # --- /dev/obmm -----------------------------------------------------------------------------------------------
    ("OPEN", "ENOENT"): (
        _c(
            "2",
            "the control node does not exist: the module obmm is not loaded, or this container was not given the node",
            "run `modprobe obmm` as root, or pass /dev/obmm into the container; without UB hardware use "
            "obmm.open('emulator') after `obmm emulate up`",
        ),
    ),
    ("OPEN", "EACCES"): (
        _c(
            "2",
            "the control node is root:root 0600 and this process is neither root nor in its group",
            "run as root, `chgrp`/`chmod` the node, or use `obmm open-broker`",
        ),
    ),
    ("OPEN", "EPERM"): (
        _c(
            "2",
            "the mode bits allow it but the device cgroup of this container denies the node",
            "allow the device in the container (for example `--device /dev/obmm`)",
        ),
    ),
    ("OPEN", "ENXIO"): (
        _c(
            "2",
            "a stale device node: no driver stands behind it",
            "load the module obmm and recreate the node",
        ),
    ),
    ("OPEN", "ENODEV"): (
        _c(
            "2",
            "a stale device node: no driver stands behind it",
            "load the module obmm and recreate the node",
        ),
        _c(
            "docs/emulator.md",
            "on an emulated node: `node-death` was injected, and what has died stays dead",
            "start another fabric: `obmm emulate down`, then `obmm emulate up`",
        ),
    ),
    ("OPEN", "ECONNREFUSED"): (
        _c("docs/emulator.md", "no fabric answers on the emulator's socket", "start one with `obmm emulate up`"),
    ),
    # --- through a broker ----------------------------------------------------------------------------------------
    ("BROKER_OPEN", "EACCES"): (
        _c(
            "docs/safety.md",
            "the broker's policy does not allow it",
            "ask its admin for a rule; its audit log has the refusal",
        ),
    ),
    ("BROKER_OPEN", "EAGAIN"): (
        _c(
            "docs/safety.md", "too many connections to the broker at once", "retry; it closes each after its one answer"
        ),
    ),
    ("BROKER_OPEN", "ENAMETOOLONG"): (
        _c("docs/safety.md", "the socket's path has more than 107 bytes", "choose a shorter one"),
    ),
    # --- EXPORT --------------------------------------------------------------------------------------------------
    ("EXPORT", "E2BIG"): (
        _c(
            "X1",
            "`length` is the number of entries of size[] (at most 16), not bytes",
            "pass bytes as a size per node",
        ),
    ),
    ("EXPORT", "EINVAL"): (
        _c(
            "X3a",
            "a size is not a multiple of the host's memseg",
            "round up to `dev.granule` (2 MiB unless configured)",
        ),
        _c("X4", "the total size is 0", "ask for at least one granule"),
        _c(
            "X5",
            "the memory's nodes and the controller's node (pxm_numa) are not online local nodes with CPUs on one socket",
            "take memory from nodes on the controller's socket, or name the controller of the memory's socket",
        ),
        _c(
            "X2",
            "pxm_numa is negative or above 16",
            "use the controller's NUMA node; negative values crashed older kernels",
        ),
        _c("X7", "an unknown export flag", "use ALLOW_MMAP (1) and FAST (2) only"),
        _c("X8/X9", "priv is longer than 512 bytes or vendor_info longer than 128", "shorten it"),
        _c(
            "X14",
            "the UMMU refused the mapping: memory blocks smaller than 2 MiB << ubm_granule, or its table is full",
            "check the UMMU parameter ubm_granule; remove exports that are no longer needed",
        ),
    ),
    ("EXPORT", "ENODEV"): (
        _c(
            "X3b",
            "a NUMA node with a size is absent, offline or remote",
            "use an online local node (`numactl -H`)",
        ),
        _c("X11", "the node has no pool allocator", "use another node"),
    ),
    ("EXPORT", "EOVERFLOW"): (_c("X3c", "the sizes overflow 64 bits", "ask for less"),),
    ("EXPORT", "ENOMEM"): (
        _c(
            "X12",
            "not enough contiguous memory on the node, or with FAST not enough cleared memory",
            "drop FAST or retry when clearing is done; raise pmd_mapping=<n>% at boot; remove exports (`obmm ls`)",
        ),
        _c(
            "X12",
            "the cache flush engine is missing, so memory cannot be cleared",
            "load the HHA cache driver",
        ),
        _c("X6", "no kernel memory for the region", "free memory on this host"),
    ),
    ("EXPORT", "ENOSPC"): (
        _c("X10", "all 1048575 mem_ids of this host are in use", "remove regions: `obmm ls`, `obmm gc`"),
    ),
    ("EXPORT", "EPERM"): (
        _c(
            "X13",
            "no UMMU accepts the vendor data (1 to 23 bytes, wrong index mask), or token ids are exhausted",
            "let obmm fill vendor_info from the controller; remove exports that are no longer needed",
        ),
        UNLOADING,
    ),
    ("EXPORT", "EIO"): (_c("X14", "the UMMU mapping failed", "read the kernel log; check the UMMU driver"),),
    ("EXPORT", "EREMOTEIO"): (_c("X14", "the UMMU mapping failed", "read the kernel log; check the UMMU driver"),),
    ("EXPORT", "EFAULT"): (POINTER,),
    # --- EXPORT_PID ----------------------------------------------------------------------------------------------
    ("EXPORT_PID", "EINVAL"): (
        _c("P1-P3", "flags must be 0: a user-address export can be neither mapped nor fast", "pass no flags"),
        _c("P4/P5", "length is 0 or not a multiple of the PMD size (2 MiB)", "export whole huge pages"),
        _c("P15", "length is not a multiple of the memseg", "round up to `dev.granule`"),
    ),
    ("EXPORT_PID", "ESRCH"): (
        _c(
            "P9",
            "no such process in the initial PID namespace",
            "use pid 0 for this process; inside a container other ids differ",
        ),
    ),
    ("EXPORT_PID", "EFAULT"): (
        _c("P11", "the first page cannot be pinned for writing", "touch the memory before exporting it"),
    ),
    ("EXPORT_PID", "ENOMEM"): (
        _c("P12", "only a part of the range could be pinned", "make the whole range resident and writable"),
        _c("P6/P10/P14", "no kernel memory", "free memory on this host"),
    ),
    ("EXPORT_PID", "EOPNOTSUPP"): (
        _c(
            "P13",
            "a page is not hugetlbfs memory, or not on the controller's socket",
            "use hugetlb pages (not THP) of that socket",
        ),
        _c("P16", "the cache flush engine is missing", "load the HHA cache driver"),
        GATE,
    ),
    ("EXPORT_PID", "ENOSPC"): (
        _c("P8", "all mem_ids of this host are in use", "remove regions: `obmm ls`, `obmm gc`"),
    ),
    ("EXPORT_PID", "EPERM"): (
        _c("P17", "no UMMU accepts the vendor data", "let obmm fill vendor_info"),
        UNLOADING,
    ),
    # --- UNEXPORT / UNIMPORT -------------------------------------------------------------------------------------
    ("UNEXPORT", "ENOENT"): (
        _c(
            "U1/U3",
            "no such region on this host: never created, already removed, or an id outside 1..1048575",
            "nothing to do",
        ),
    ),
    ("UNEXPORT", "EBUSY"): (
        _c(
            "U4",
            "somebody on this host still has the region open or mapped (a mapping keeps its file open, a forked child too)",
            "close mappings first; `obmm ls` shows who holds it",
        ),
    ),
    ("UNEXPORT", "EINVAL"): (
        _c("U5", "the id belongs to an import", "remove it with UNIMPORT"),
        _c("U2", "flags must be 0", "pass no flags"),
    ),
    ("UNEXPORT", "ENOTRECOVERABLE"): (
        _c(
            "U6",
            "the UMMU could not be torn down and rolling back failed too",
            "do not remove it again; reboot this host",
        ),
    ),
    ("UNIMPORT", "ENOENT"): (
        _c(
            "U1/U3",
            "no such region on this host: never created, already removed, or an id outside 1..1048575",
            "nothing to do",
        ),
    ),
    ("UNIMPORT", "EBUSY"): (
        _c(
            "U4",
            "somebody on this host still has the region open or mapped",
            "close mappings first; `obmm ls` shows who holds it",
        ),
        _c(
            "6.5-2",
            "pages of the remote NUMA node cannot be migrated away",
            "free the memory on that node and retry",
        ),
    ),
    ("UNIMPORT", "EINVAL"): (
        _c("U5", "the id belongs to an export", "remove it with UNEXPORT"),
        _c("U2", "flags must be 0", "pass no flags"),
    ),
    ("UNIMPORT", "EINTR"): (
        _c("6.5-2", "a signal interrupted the removal of a remote NUMA node", "retry when ready to wait"),
    ),
    ("UNIMPORT", "EOPNOTSUPP"): (
        _c("6.5-3", "the cache flush engine is missing", "load the HHA cache driver"),
        GATE,
    ),
    ("UNIMPORT", "ENOTRECOVERABLE"): (
        _c(
            "6.5",
            "removal failed and rolling back failed too: the region stays, and a second removal is known to crash hosts",
            "never remove it again; reboot this host",
        ),
    ),
    # --- IMPORT --------------------------------------------------------------------------------------------------
    ("IMPORT", "EINVAL"): (
        _c(
            "I14",
            "the address range is not inside one CC window or one NC window of the controller named by scna. "
            "The address is a *local* physical address of a programmed UB window, never the exporter's UBA",
            "take the address from a window provider (`obmm doctor` shows which is active)",
        ),
        _c("I3", "exactly one of ALLOW_MMAP and NUMA_REMOTE must be set", "set one of them"),
        _c("I2/I4", "an unknown import flag, or PREIMPORT without NUMA_REMOTE", "use 1, 4 or 6"),
        _c(
            "I6-I9",
            "address or length is 0, not a multiple of 2 MiB, or wraps around",
            "pass a 2 MiB aligned window",
        ),
        _c("I5", "priv is longer than 512 bytes", "shorten it"),
        _c("I10", "base_dist 1..10 is not a NUMA distance", "use 0 (default) or 11..255"),
        _c(
            "I17/I19/I20",
            "the range does not fit the declared preimport, or its scna, dcna or EIDs differ",
            "repeat its fields exactly",
        ),
        _c("I22", "a NUMA import needs a CC window", "use an address in a CC window"),
    ),
    ("IMPORT", "ENODEV"): (
        _c(
            "I12",
            "scna is not the primary CNA of a local controller (or that controller has no NUMA node). "
            "scna is the *importer's* own CNA; the owner's goes to dcna",
            "use a controller of this host: `obmm doctor` lists them",
        ),
        _c("I24", "setting the NUMA distance failed", "read the kernel log"),
    ),
    ("IMPORT", "EEXIST"): (
        _c(
            "I13/I21",
            "another import or preimport already uses (a part of) this physical range",
            "`obmm ls` shows it; take another window",
        ),
    ),
    ("IMPORT", "EBUSY"): (
        _c(
            "I15/I25",
            "the range partly overlaps another resource in /proc/iomem",
            "take another window; read /proc/iomem",
        ),
    ),
    ("IMPORT", "EPERM"): (
        _c(
            "I23",
            "hot-plug refused: not booted with numa_remote, bad node, or not memory-block aligned",
            "see driver specification 15",
        ),
        UNLOADING,
    ),
    ("IMPORT", "EFAULT"): (
        _c("I16", "PREIMPORT names an address that no DECLARE_PREIMPORT covers", "declare the range first"),
        POINTER,
    ),
    ("IMPORT", "EAGAIN"): (_c("I18", "the preimport is still being created", "retry"),),
    ("IMPORT", "ENOSPC"): (_c("I11", "all mem_ids of this host are in use", "remove regions: `obmm ls`, `obmm gc`"),),
    ("IMPORT", "ENOMEM"): (_c("I1/I13/I25", "no kernel memory", "free memory on this host"),),
    ("IMPORT", "ENOTRECOVERABLE"): (_c("6.4", "a step failed and rolling back failed too", "reboot this host"),),
    # --- preimport -----------------------------------------------------------------------------------------------
    ("DECLARE_PREIMPORT", "EINVAL"): (
        _c(
            "R2/R3",
            "address or length is not a multiple of the memory block (128 MiB with 4 KiB pages)",
            "align both",
        ),
        _c("R4/R5/R9", "address or length is 0, or the range wraps around", "pass a real range"),
        _c("R6", "flags must be 0", "pass no flags"),
        _c("R8", "base_dist 1..10 is not a NUMA distance", "use 0 (default) or 11..255"),
        _c("R13", "the range is not inside a CC window of the controller", "use an address in a CC window"),
    ),
    ("DECLARE_PREIMPORT", "ENODEV"): (
        _c("R7", "scna is not a local controller's CNA", "`obmm doctor` lists the controllers"),
    ),
    ("DECLARE_PREIMPORT", "EEXIST"): (
        _c("R10", "the range overlaps a live import or preimport", "take another range"),
    ),
    ("DECLARE_PREIMPORT", "EBUSY"): (
        _c("R12", "the range collides with an entry of /proc/iomem", "take another range"),
    ),
    ("DECLARE_PREIMPORT", "EPERM"): (
        _c("R14", "hot-plug refused", "boot with numa_remote in pre-online mode"),
        UNLOADING,
    ),
    ("DECLARE_PREIMPORT", "ENOMEM"): (_c("R11", "no kernel memory", "free memory on this host"),),
    ("UNDECLARE_PREIMPORT", "EFAULT"): (
        _c("V2", "no preimport covers this address", "read /proc/obmm/preimport_info"),
        POINTER,
    ),
    ("UNDECLARE_PREIMPORT", "EINVAL"): (
        _c("V5", "not exactly the declared range", "repeat address and length of the declaration"),
        _c("V3", "the address belongs to a plain import", "remove that with UNIMPORT"),
        _c("V1", "flags must be 0", "pass no flags"),
    ),
    ("UNDECLARE_PREIMPORT", "EBUSY"): (_c("V6", "an import still uses the preimport", "unimport it first"),),
    ("UNDECLARE_PREIMPORT", "EAGAIN"): (_c("V4", "the preimport is still being created", "retry"),),
    ("UNDECLARE_PREIMPORT", "EINTR"): (
        _c("V7", "a signal interrupted the memory removal", "retry when ready to wait"),
    ),
    # --- ADDR_QUERY ----------------------------------------------------------------------------------------------
    ("ADDR_QUERY", "ENOENT"): (
        _c(
            "6.8",
            "no region has this id, or no region contains this physical address",
            "`obmm ls` lists the regions",
        ),
    ),
    ("ADDR_QUERY", "EINVAL"): (
        _c(
            "6.8",
            "the offset lies outside the region, or the key type is neither BY_PA nor BY_ID_OFFSET",
            "stay inside the region",
        ),
    ),
}
