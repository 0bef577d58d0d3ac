# SPDX-License-Identifier: Apache-2.0
"""The binary interface of ``libubsm_sdk.so`` (SDK specification 3, 4, 6), checked when this module is imported."""

from __future__ import annotations

from enum import IntEnum, IntFlag
from typing import Any, Final

from cffi import FFI

DECLARATIONS: Final = """
typedef struct { char room[64]; } ubsmem_options_t;
typedef struct { char host_name[64]; _Bool affinity; } ubsmem_region_node_desc_t;
typedef struct { int host_num; ubsmem_region_node_desc_t hosts[16]; } ubsmem_region_attributes_t;
typedef struct { int num; ubsmem_region_attributes_t region[6]; } ubsmem_regions_t;
typedef struct { char region_name[48]; size_t size; ubsmem_region_attributes_t region_attr; } ubsmem_region_desc_t;
typedef struct {
    uint32_t slot_id, socket_id, numa_id, mem_lend_ratio;
    uint64_t mem_total, mem_free, mem_borrow, mem_lend;
    uint8_t resv[16];
} ubsmem_numa_mem_t;
typedef struct { char host_name[64]; int numa_num; ubsmem_numa_mem_t numa[32]; } ubsmem_host_info_t;
typedef struct { int host_num; ubsmem_host_info_t host[16]; } ubsmem_cluster_info_t;
typedef struct { char name[49]; size_t size; } ubsmem_shmem_desc_t;
typedef struct {
    char name[49];
    size_t size;
    uint32_t mem_num;
    uint64_t mem_unit_size;
    uint64_t mem_id_list[2048];
} ubsmem_shmem_info_t;
typedef struct { uint32_t slot_id, socket_id, numa_id, port_id; } ubs_mem_location_t;
typedef struct { char host_name[64]; uint32_t socket_id, numa_id, port_id; } ubs_mem_provider_t;

typedef int32_t (*shmem_faults_func)(const char *name, uint32_t fault_type);
typedef void (*ubsmem_logger_func)(int level, const char *text);

int ubsmem_init_attributes(ubsmem_options_t *options);
int ubsmem_initialize(const ubsmem_options_t *options);
int ubsmem_finalize(void);
int ubsmem_set_logger_level(int level);
int ubsmem_set_extern_logger(ubsmem_logger_func logger);

int ubsmem_lookup_regions(ubsmem_regions_t *regions);
int ubsmem_create_region(const char *name, size_t size, const ubsmem_region_attributes_t *attributes);
int ubsmem_lookup_region(const char *name, ubsmem_region_desc_t *region);
int ubsmem_destroy_region(const char *name);

int ubsmem_shmem_allocate(const char *region, const char *name, size_t size, uint32_t mode, uint64_t flags);
int ubsmem_shmem_allocate_with_provider(const ubs_mem_provider_t *provider, const char *name, size_t size,
                                        uint32_t mode, uint64_t flags);
int ubsmem_shmem_deallocate(const char *name);
int ubsmem_shmem_map(void *addr, size_t length, int prot, int flags, const char *name, int64_t offset, void **out);
int ubsmem_shmem_unmap(void *addr, size_t length);
int ubsmem_shmem_set_ownership(const char *name, void *start, size_t length, int prot);
int ubsmem_shmem_write_lock(const char *name);
int ubsmem_shmem_read_lock(const char *name);
int ubsmem_shmem_unlock(const char *name);
int ubsmem_shmem_list_lookup(const char *prefix, ubsmem_shmem_desc_t *array, uint32_t *count);
int ubsmem_shmem_lookup(const char *name, ubsmem_shmem_info_t *info);

int ubsmem_lease_malloc(const char *region, size_t size, uint32_t distance, uint64_t flags, void **out);
int ubsmem_lease_malloc_with_location(const ubs_mem_location_t *location, size_t size, uint64_t flags, void **out);
int ubsmem_lease_free(void *ptr);
int ubsmem_lookup_cluster_statistic(ubsmem_cluster_info_t *cluster);
int ubsmem_local_nid_query(uint32_t *slot);
int ubsmem_shmem_faults_register(shmem_faults_func callback);

/* the stand-in's own: the real library has neither */
const char *ubsmem_standin_version(void);
void ubsmem_standin_counters(uint64_t *round_trips, uint64_t *system_calls);
"""

OPTIONAL: Final = frozenset(
    {
        "ubsmem_shmem_allocate_with_provider",
        "ubsmem_lease_malloc_with_location",
        "ubsmem_local_nid_query",
        "ubsmem_shmem_faults_register",
    }
)
"""Functions that installed libraries may lack (15 rule 3)."""

FUNCTIONS: Final = (
    "ubsmem_init_attributes",
    "ubsmem_initialize",
    "ubsmem_finalize",
    "ubsmem_set_logger_level",
    "ubsmem_set_extern_logger",
    "ubsmem_lookup_regions",
    "ubsmem_create_region",
    "ubsmem_lookup_region",
    "ubsmem_destroy_region",
    "ubsmem_shmem_allocate",
    "ubsmem_shmem_allocate_with_provider",
    "ubsmem_shmem_deallocate",
    "ubsmem_shmem_map",
    "ubsmem_shmem_unmap",
    "ubsmem_shmem_set_ownership",
    "ubsmem_shmem_write_lock",
    "ubsmem_shmem_read_lock",
    "ubsmem_shmem_unlock",
    "ubsmem_shmem_list_lookup",
    "ubsmem_shmem_lookup",
    "ubsmem_lease_malloc",
    "ubsmem_lease_malloc_with_location",
    "ubsmem_lease_free",
    "ubsmem_lookup_cluster_statistic",
    "ubsmem_local_nid_query",
    "ubsmem_shmem_faults_register",
)
"""The 26 functions of section 6."""

MARKER: Final = "ubsmem_standin_version"

#: type -> size, alignment, offset of each field (section 3)
LAYOUT: Final[dict[str, tuple[int, int, dict[str, int]]]] = {
    "ubsmem_region_node_desc_t": (65, 1, {"host_name": 0, "affinity": 64}),
    "ubsmem_region_attributes_t": (1044, 4, {"host_num": 0, "hosts": 4}),
    "ubsmem_regions_t": (6268, 4, {"num": 0, "region": 4}),
    "ubsmem_region_desc_t": (1104, 8, {"region_name": 0, "size": 48, "region_attr": 56}),
    "ubsmem_numa_mem_t": (
        64,
        8,
        {
            "slot_id": 0,
            "socket_id": 4,
            "numa_id": 8,
            "mem_lend_ratio": 12,
            "mem_total": 16,
            "mem_free": 24,
            "mem_borrow": 32,
            "mem_lend": 40,
            "resv": 48,
        },
    ),
    "ubsmem_host_info_t": (2120, 8, {"host_name": 0, "numa_num": 64, "numa": 72}),
    "ubsmem_cluster_info_t": (33928, 8, {"host_num": 0, "host": 8}),
    "ubsmem_shmem_desc_t": (64, 8, {"name": 0, "size": 56}),
    "ubsmem_shmem_info_t": (
        16464,
        8,
        {"name": 0, "size": 56, "mem_num": 64, "mem_unit_size": 72, "mem_id_list": 80},
    ),
    "ubs_mem_location_t": (16, 4, {"slot_id": 0, "socket_id": 4, "numa_id": 8, "port_id": 12}),
    "ubs_mem_provider_t": (76, 4, {"host_name": 0, "socket_id": 64, "numa_id": 68, "port_id": 72}),
}


class Flag(IntFlag):
    """Flags of shared objects and leases (4.2).

    >>> int(obmm.sdk.Flag.WITH_LOCK)
    1
    """

    CACHE = 0x0
    WITH_LOCK = 0x1
    NONCACHE = 0x2
    WR_DELAY_COMP = 0x4
    ONLY_IMPORT_NONCACHE = 0x8
    MEM_ANONYMOUS = 0x10
    MMAP_HUGETLB_PMD = 0x20
    MALLOC_WITH_NUMA = 0x40


class FaultKind(IntEnum):
    """What a fault callback reports (10)."""

    ATOMIC_DATA_ERR = 0
    READ_DATA_ERR = 1
    FLOW_POISON = 2
    FLOW_READ_AUTH_POISON = 3
    FLOW_READ_AUTH_RESPERR = 4
    TIMEOUT_POISON = 5
    TIMEOUT_RESPERR = 6
    READ_DATA_POISON = 7
    READ_DATA_RESPERR = 8
    MAR_NOPORT_VLD_INT_ERR = 9
    MAR_FLUX_INT_ERR = 10
    MAR_WITHOUT_CXT_ERR = 11
    RSP_BKPRE_OVER_TIMEOUT_ERR = 12
    MAR_NEAR_AUTH_FAIL_ERR = 13
    MAR_FAR_AUTH_FAIL_ERR = 14
    MAR_TIMEOUT_ERR = 15
    MAR_ILLEGAL_ACCESS_ERR = 16
    REMOTE_READ_DATA_ERR_OR_WRITE_RESPONSE_ERR = 17
    HEALTHY = 1000


MIB: Final = 1 << 20
GRANULE: Final = 4 * MIB
MAX_NAME: Final = 47
MAX_HOST_NAME: Final = 63
MAX_HOSTS: Final = 16
NO_PORT: Final = 0xFFFFFFFF

OBJECT_FLAGS: Final = frozenset(
    (0x0, 0x10, 0x1, 0x11, 0x2, 0x6, 0x12, 0x16, 0x8, 0xC, 0x18, 0x1C, 0x28, 0x2C, 0x38, 0x3C)
)
"""The 16 flag sets that a shared object may have (4.2)."""
LEASE_FLAGS: Final = frozenset((0x0, 0x20, 0x40))

ffi: Final[Any] = FFI()  # structures have no static types
ffi.cdef(DECLARATIONS)


def layout_faults(of: Any) -> list[str]:
    """How the structures of the cffi object `of` differ from section 3."""
    faults = []
    for name, (size, alignment, fields) in LAYOUT.items():
        if of.sizeof(name) != size:
            faults.append(f"sizeof({name}) is {of.sizeof(name)}, not {size}")
        if of.alignof(name) != alignment:
            faults.append(f"alignof({name}) is {of.alignof(name)}, not {alignment}")
        faults += [
            f"offsetof({name}, {field}) is {of.offsetof(name, field)}, not {at}"
            for field, at in fields.items()
            if of.offsetof(name, field) != at
        ]
    return faults


if _faults := layout_faults(ffi):
    raise ImportError(f"the structures of libubsm_sdk.so do not fit this platform: {'; '.join(_faults)}")
