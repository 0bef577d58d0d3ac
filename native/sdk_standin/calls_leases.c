/* SPDX-License-Identifier: Apache-2.0 */
/* Leases: private borrowed memory (SDK specification 6.3, 9). */
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "standin.h"

static int bad_lease(size_t size, uint64_t flags)
{
	if (standin_bad_size(size) || (flags && flags != UBSM_FLAG_MMAP_HUGETLB_PMD && flags != UBSM_FLAG_MALLOC_WITH_NUMA))
		return 1;
	return flags == UBSM_FLAG_MMAP_HUGETLB_PMD && size % standin_pmd_size();
}

static int give_back(uint64_t lease)
{
	struct standin_request request = { .op = STANDIN_LEASE_FREE, .arg = { lease } };

	return standin_call(&request, NULL, NULL, NULL);
}

static int borrow(struct standin_request *request, const void *payload, void **out)
{
	struct standin_mapping *mapping;
	struct standin_units *units;
	uint64_t lease;
	int code;

	code = standin_call_units(request, payload, &units);
	if (code)
		return code;
	lease = units->lease;
	mapping = calloc(1, sizeof(*mapping));
	if (mapping) {
		mapping->lease = lease;
		mapping->length = units->unit * units->count;
		code = standin_map_units(mapping, units, NULL, PROT_READ | PROT_WRITE, MAP_SHARED);
	} else {
		code = UBSM_ERR_MALLOC_FAIL;
	}
	free(units);
	if (code) {
		standin_free_mapping(mapping);
		give_back(lease);
		return UBSM_ERR_PARAM_INVALID;
	}
	*out = mapping->base;
	standin_table_add(mapping);
	return UBSM_OK;
}

int ubsmem_lease_malloc(const char *region, size_t size, uint32_t distance, uint64_t flags, void **out)
{
	struct standin_request request = { .op = STANDIN_LEASE, .arg = { size, 0, flags } };

	if (standin_bad_name(region) || !out || bad_lease(size, flags) || distance)
		return UBSM_ERR_PARAM_INVALID;
	strcpy(request.region, region);
	return borrow(&request, NULL, out);
}

int ubsmem_lease_malloc_with_location(const ubs_mem_location_t *location, size_t size, uint64_t flags, void **out)
{
	struct standin_request request = {
		.op = STANDIN_LEASE_AT,
		.size = sizeof(*location),
		.arg = { size, 0, flags },
	};

	if (!location || !out || bad_lease(size, flags))
		return UBSM_ERR_PARAM_INVALID;
	return borrow(&request, location, out);
}

int ubsmem_lease_free(void *ptr)
{
	struct standin_mapping *mapping = ptr ? standin_table_at(ptr) : NULL;
	int code;

	if (!mapping || !mapping->lease)
		return UBSM_ERR_PARAM_INVALID;
	code = standin_seal_units(mapping);
	if (!code)
		code = give_back(mapping->lease);
	if (code)
		return code;
	standin_table_remove(mapping);
	standin_unmap_units(mapping);
	standin_free_mapping(mapping);
	return UBSM_OK;
}
