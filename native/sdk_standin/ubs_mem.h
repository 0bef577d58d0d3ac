/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The interface of libubsm_sdk.so in our own words (SDK specification 3, 4, 6):
 * what the stand-in answers to, checked against the sizes of section 3.
 */
#ifndef UBS_MEM_H
#define UBS_MEM_H

#include "../abi/lp64.h"

#include <assert.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#ifdef __cplusplus
extern "C" {
#endif

#define UBSM_MAX_NAME 47
#define UBSM_MAX_HOST 63
#define UBSM_MAX_UNITS 2048

enum {
	UBSM_FLAG_WITH_LOCK = 0x1,
	UBSM_FLAG_NONCACHE = 0x2,
	UBSM_FLAG_ONLY_IMPORT_NONCACHE = 0x8,
	UBSM_FLAG_MMAP_HUGETLB_PMD = 0x20,
	UBSM_FLAG_MALLOC_WITH_NUMA = 0x40,
};

enum {
	UBSM_OK = 0,
	UBSM_ERR_PARAM_INVALID = 6010,
	UBSM_ERR_NOPERM = 6011,
	UBSM_CHECK_RESOURCE_ERROR = 6014,
	UBSM_ERR_MEMLIB = 6015,
	UBSM_ERR_NO_NEEDED = 6016,
	UBSM_ERR_BUSY = 6017,
	UBSM_ERR_NOT_FOUND = 6020,
	UBSM_ERR_ALREADY_EXIST = 6021,
	UBSM_ERR_MALLOC_FAIL = 6022,
	UBSM_ERR_RECORD = 6023,
	UBSM_ERR_IN_USING = 6024,
	UBSM_ERR_NET = 6040,
	UBSM_ERR_UBSE = 6050,
	UBSM_ERR_OBMM = 6051,
	UBSM_ERR_LOCK_NOT_SUPPORTED = 6060,
	UBSM_ERR_LOCK_ALREADY_LOCKED = 6061,
	UBSM_ERR_DLOCK = 6062,
	UBSM_ERR_BUFF = 6099,
};

typedef struct {
	char host_name[64];
	bool affinity;
} ubsmem_region_node_desc_t;

typedef struct {
	int host_num;
	ubsmem_region_node_desc_t hosts[16];
} ubsmem_region_attributes_t;

typedef struct {
	int num;
	ubsmem_region_attributes_t region[6];
} ubsmem_regions_t;

typedef struct {
	char region_name[48];
	size_t size;
	ubsmem_region_attributes_t region_attr;
} ubsmem_region_desc_t;

typedef struct {
	uint32_t slot_id, socket_id, numa_id, mem_lend_ratio;
	uint64_t mem_total, mem_free, mem_borrow, mem_lend;
	uint8_t resv[16];
} ubsmem_numa_mem_t;

typedef struct {
	char host_name[64];
	int numa_num;
	ubsmem_numa_mem_t numa[32];
} ubsmem_host_info_t;

typedef struct {
	int host_num;
	ubsmem_host_info_t host[16];
} ubsmem_cluster_info_t;

typedef struct {
	char name[49];
	size_t size;
} ubsmem_shmem_desc_t;

typedef struct {
	char name[49];
	size_t size;
	uint32_t mem_num;
	uint64_t mem_unit_size;
	uint64_t mem_id_list[UBSM_MAX_UNITS];
} ubsmem_shmem_info_t;

typedef struct {
	uint32_t slot_id, socket_id, numa_id, port_id;
} ubs_mem_location_t;

typedef struct {
	char host_name[64];
	uint32_t socket_id, numa_id, port_id;
} ubs_mem_provider_t;

static_assert(sizeof(ubsmem_region_node_desc_t) == 65, "section 3");
static_assert(sizeof(ubsmem_region_attributes_t) == 1044, "section 3");
static_assert(sizeof(ubsmem_regions_t) == 6268, "section 3");
static_assert(sizeof(ubsmem_region_desc_t) == 1104, "section 3");
static_assert(sizeof(ubsmem_numa_mem_t) == 64, "section 3");
static_assert(sizeof(ubsmem_host_info_t) == 2120, "section 3");
static_assert(sizeof(ubsmem_cluster_info_t) == 33928, "section 3");
static_assert(sizeof(ubsmem_shmem_desc_t) == 64, "section 3");
static_assert(sizeof(ubsmem_shmem_info_t) == 16464, "section 3");
static_assert(sizeof(ubs_mem_location_t) == 16, "section 3");
static_assert(sizeof(ubs_mem_provider_t) == 76, "section 3");
static_assert(offsetof(ubsmem_shmem_info_t, mem_id_list) == 80, "section 3");

typedef int32_t (*shmem_faults_func)(const char *name, uint32_t kind);
typedef void (*ubsmem_logger_func)(int level, const char *text);
typedef struct ubsmem_options ubsmem_options_t; /* empty in C: only the pointer is tested */

#define UBSM_API __attribute__((visibility("default")))

UBSM_API int ubsmem_init_attributes(ubsmem_options_t *options);
UBSM_API int ubsmem_initialize(const ubsmem_options_t *options);
UBSM_API int ubsmem_finalize(void);
UBSM_API int ubsmem_set_logger_level(int level);
UBSM_API int ubsmem_set_extern_logger(ubsmem_logger_func logger);

UBSM_API int ubsmem_lookup_regions(ubsmem_regions_t *regions);
UBSM_API int ubsmem_create_region(const char *name, size_t size, const ubsmem_region_attributes_t *attributes);
UBSM_API int ubsmem_lookup_region(const char *name, ubsmem_region_desc_t *region);
UBSM_API int ubsmem_destroy_region(const char *name);

UBSM_API int ubsmem_shmem_allocate(const char *region, const char *name, size_t size, mode_t mode, uint64_t flags);
UBSM_API int ubsmem_shmem_allocate_with_provider(const ubs_mem_provider_t *provider, const char *name, size_t size,
						 mode_t mode, uint64_t flags);
UBSM_API int ubsmem_shmem_deallocate(const char *name);
UBSM_API int ubsmem_shmem_map(void *addr, size_t length, int prot, int flags, const char *name, off_t offset,
			      void **out);
UBSM_API int ubsmem_shmem_unmap(void *ptr, size_t length);
UBSM_API int ubsmem_shmem_set_ownership(const char *name, void *start, size_t length, int prot);
UBSM_API int ubsmem_shmem_write_lock(const char *name);
UBSM_API int ubsmem_shmem_read_lock(const char *name);
UBSM_API int ubsmem_shmem_unlock(const char *name);
UBSM_API int ubsmem_shmem_list_lookup(const char *prefix, ubsmem_shmem_desc_t *array, uint32_t *count);
UBSM_API int ubsmem_shmem_lookup(const char *name, ubsmem_shmem_info_t *info);

UBSM_API int ubsmem_lease_malloc(const char *region, size_t size, uint32_t distance, uint64_t flags, void **out);
UBSM_API int ubsmem_lease_malloc_with_location(const ubs_mem_location_t *location, size_t size, uint64_t flags,
					       void **out);
UBSM_API int ubsmem_lease_free(void *ptr);
UBSM_API int ubsmem_lookup_cluster_statistic(ubsmem_cluster_info_t *cluster);
UBSM_API int ubsmem_local_nid_query(uint32_t *slot);
UBSM_API int ubsmem_shmem_faults_register(shmem_faults_func callback);

/*
 * Only the stand-in has these.  The marker says which mode the environment
 * asks for; the counters are this process's since its start.
 */
UBSM_API const char *ubsmem_standin_version(void);
UBSM_API void ubsmem_standin_counters(uint64_t *round_trips, uint64_t *system_calls);

/*
 * And these, for users of a stand-in.  `folder` is what OBMM_SDK_STANDIN
 * names.  Non-negative, or a negative errno.
 */
UBSM_API int ubsmem_standin_create(const char *folder, const char *fabric, const char *nodes, uint64_t unit);
/* Release everything; -EBUSY when some process still has memory of it mapped. */
UBSM_API int ubsmem_standin_destroy(const char *folder);
/* A daemon: says "ready" on `out`, ends when `in` ends.  With `engine`, extra connections as the real daemon makes. */
UBSM_API int ubsmem_standin_serve(const char *folder, int engine, int in, int out);
/* What exists, as JSON. */
UBSM_API int ubsmem_standin_status(const char *folder, char *text, size_t size);
/* The next `times` requests `op` (wire.h) get `code`, take longer, or get no answer. */
UBSM_API int ubsmem_standin_inject(const char *folder, uint32_t op, int32_t code, uint32_t delay_ms, int lost,
				   uint32_t times);
/* How many processes get the fault. */
UBSM_API int ubsmem_standin_fire(const char *folder, const char *name, uint32_t kind);

#ifdef __cplusplus
}
#endif

#endif

