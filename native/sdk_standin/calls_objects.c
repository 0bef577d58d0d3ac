/* SPDX-License-Identifier: Apache-2.0 */
/* Named shared objects (SDK specification 6.2, 7). */
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "standin.h"

static int bad_pmd_size(size_t size, uint64_t flags)
{
	return flags & UBSM_FLAG_MMAP_HUGETLB_PMD && size % standin_pmd_size();
}

int ubsmem_shmem_allocate(const char *region, const char *name, size_t size, mode_t mode, uint64_t flags)
{
	struct standin_request request = { .op = STANDIN_RESOLVE, .arg = { size, mode, flags } };
	int code;

	if (standin_bad_name(region) || standin_bad_name(name) || standin_bad_size(standin_page_round(size)) ||
	    standin_bad_object_flags(flags) || bad_pmd_size(size, flags))
		return UBSM_ERR_PARAM_INVALID;
	strcpy(request.region, region);
	strcpy(request.name, name);
	code = standin_call(&request, NULL, NULL, NULL);
	if (code)
		return code;
	request.op = STANDIN_CREATE;
	request.arg[0] = standin_page_round(size);
	return standin_call(&request, NULL, NULL, NULL);
}

int ubsmem_shmem_allocate_with_provider(const ubs_mem_provider_t *provider, const char *name, size_t size, mode_t mode,
					uint64_t flags)
{
	struct standin_request request = {
		.op = STANDIN_CREATE_AT,
		.size = sizeof(*provider),
		.arg = { standin_page_round(size), mode, flags },
	};
	size_t host;

	if (!provider || standin_bad_name(name))
		return UBSM_ERR_PARAM_INVALID;
	host = strnlen(provider->host_name, sizeof(provider->host_name));
	if (host < 1 || host > UBSM_MAX_HOST || standin_bad_size(standin_page_round(size)) ||
	    standin_bad_object_flags(flags))
		return UBSM_ERR_PARAM_INVALID;
	strcpy(request.name, name);
	return standin_call(&request, provider, NULL, NULL);
}

int ubsmem_shmem_deallocate(const char *name)
{
	struct standin_request request = { .op = STANDIN_DELETE };

	if (standin_bad_name(name))
		return UBSM_ERR_PARAM_INVALID;
	strcpy(request.name, name);
	return standin_call(&request, NULL, NULL, NULL);
}

static int bad_map(void *addr, size_t length, int prot, int flags, const char *name, off_t offset, void **out)
{
	const size_t page = standin_page_round(1);
	const int fixed = flags & (MAP_FIXED | MAP_FIXED_NOREPLACE);

	if (!name || !out || (uintptr_t)addr % page || !length || standin_bad_name(name) || prot < 0 || prot > 3 ||
	    standin_table_object(name) || standin_page_round(offset))
		return 1;
	if (fixed && !addr)
		return 1;
	if ((uintptr_t)addr + standin_page_round(length) < (uintptr_t)addr || standin_page_round(length) < length)
		return 1;
	return fixed && standin_table_overlaps(addr, standin_page_round(length));
}

static int undo_map(const char *name)
{
	struct standin_request request = { .op = STANDIN_UNMAP };

	strcpy(request.name, name);
	return standin_call(&request, NULL, NULL, NULL);
}

int ubsmem_shmem_map(void *addr, size_t length, int prot, int flags, const char *name, off_t offset, void **out)
{
	struct standin_request request = { .op = STANDIN_MAP, .arg = { prot } };
	struct standin_mapping *mapping;
	struct standin_units *units;
	int code;

	if (bad_map(addr, length, prot, flags, name, offset, out))
		return UBSM_ERR_PARAM_INVALID;
	strcpy(request.name, name);
	code = standin_call_units(&request, NULL, &units);
	if (code)
		return code;
	mapping = calloc(1, sizeof(*mapping));
	if (!mapping) {
		code = UBSM_ERR_MALLOC_FAIL;
	} else if (standin_page_round(length) != units->size) {
		code = UBSM_ERR_PARAM_INVALID;
	} else {
		strcpy(mapping->name, name);
		mapping->length = units->size;
		code = standin_map_units(mapping, units, addr, prot, flags);
	}
	free(units);
	if (code) {
		standin_free_mapping(mapping);
		undo_map(name);
		return code;
	}
	*out = mapping->base;
	standin_table_add(mapping);
	return UBSM_OK;
}

int ubsmem_shmem_unmap(void *ptr, size_t length)
{
	struct standin_mapping *mapping;
	int code;

	if (!ptr || !length)
		return UBSM_ERR_PARAM_INVALID;
	mapping = standin_table_at(ptr);
	if (!mapping || mapping->lease)
		return UBSM_ERR_NOT_FOUND;
	if (standin_page_round(length) != mapping->length)
		return UBSM_ERR_PARAM_INVALID;
	if (mapping->locked)
		return UBSM_ERR_LOCK_ALREADY_LOCKED;
	code = standin_seal_units(mapping);
	if (code)
		return code;
	code = undo_map(mapping->name);
	if (code) {
		standin_reopen_units(mapping);
		return code;
	}
	standin_table_remove(mapping);
	standin_unmap_units(mapping);
	standin_free_mapping(mapping);
	return UBSM_OK;
}

int ubsmem_shmem_set_ownership(const char *name, void *start, size_t length, int prot)
{
	struct standin_mapping *mapping;
	char *at = start;

	if (standin_bad_name(name) || !start || !length || length % 4096 ||
	    (prot != PROT_NONE && prot != PROT_READ && prot != (PROT_READ | PROT_WRITE)))
		return UBSM_ERR_PARAM_INVALID;
	mapping = standin_table_object(name);
	if (!mapping)
		return UBSM_ERR_NOT_FOUND;
	length = standin_page_round(length);
	if ((uintptr_t)at % 4096 || at < mapping->base || at >= mapping->base + mapping->length ||
	    length > (size_t)(mapping->base + mapping->length - at))
		return UBSM_ERR_PARAM_INVALID;
	if (mapping->flags & (UBSM_FLAG_NONCACHE | UBSM_FLAG_ONLY_IMPORT_NONCACHE))
		return UBSM_ERR_PARAM_INVALID;
	return standin_own_units(mapping, at, length, prot);
}

static int lock_call(enum standin_op op, const char *name)
{
	struct standin_request request = { .op = op };

	strcpy(request.name, name);
	return standin_call(&request, NULL, NULL, NULL);
}

static int find_lockable(const char *name, struct standin_mapping **mapping)
{
	if (standin_bad_name(name))
		return UBSM_ERR_PARAM_INVALID;
	*mapping = standin_table_object(name);
	if (!*mapping)
		return UBSM_ERR_NOT_FOUND;
	return (*mapping)->flags == UBSM_FLAG_WITH_LOCK ? UBSM_OK : UBSM_ERR_LOCK_NOT_SUPPORTED;
}

static int take_lock(enum standin_op op, const char *name, int prot)
{
	struct standin_mapping *mapping;
	int code = find_lockable(name, &mapping);

	if (code)
		return code;
	code = lock_call(op, name);
	if (code)
		return code;
	/* a defect of the original (7.6): it asks for the right over whole units */
	if (mapping->length < mapping->unit) {
		lock_call(STANDIN_UNLOCK, name);
		return UBSM_ERR_PARAM_INVALID;
	}
	code = standin_own_units(mapping, mapping->base, mapping->length, prot);
	if (code) {
		lock_call(STANDIN_UNLOCK, name);
		return code;
	}
	mapping->locked++;
	return UBSM_OK;
}

int ubsmem_shmem_write_lock(const char *name)
{
	return take_lock(STANDIN_WRITE_LOCK, name, PROT_READ | PROT_WRITE);
}

int ubsmem_shmem_read_lock(const char *name)
{
	return take_lock(STANDIN_READ_LOCK, name, PROT_READ);
}

int ubsmem_shmem_unlock(const char *name)
{
	struct standin_mapping *mapping;
	int code = find_lockable(name, &mapping);

	if (code)
		return code;
	if (!mapping->locked)
		return UBSM_ERR_NOT_FOUND;
	code = standin_own_units(mapping, mapping->base, mapping->length, PROT_NONE);
	if (code)
		return code;
	mapping->locked--;
	return lock_call(STANDIN_UNLOCK, name);
}

int ubsmem_shmem_list_lookup(const char *prefix, ubsmem_shmem_desc_t *array, uint32_t *count)
{
	struct standin_request request = { .op = STANDIN_LIST };
	size_t length, size;
	uint32_t found;
	void *body;
	int code;

	if (!prefix || !array || !count)
		return UBSM_ERR_PARAM_INVALID;
	length = strnlen(prefix, UBSM_MAX_NAME + 2);
	if (length < 1 || length > UBSM_MAX_NAME + 1)
		return UBSM_ERR_PARAM_INVALID;
	strcpy(request.name, prefix);
	code = standin_call(&request, NULL, &body, &size);
	if (!code) {
		found = size / sizeof(*array);
		if (found > *count)
			code = UBSM_ERR_PARAM_INVALID;
		else if (found)
			memcpy(array, body, found * sizeof(*array));
		*count = found;
	}
	free(body);
	return code;
}

int ubsmem_shmem_lookup(const char *name, ubsmem_shmem_info_t *info)
{
	struct standin_request request = { .op = STANDIN_LOOKUP };
	size_t length, size;
	void *body;
	int code;

	if (!name)
		return UBSM_ERR_PARAM_INVALID;
	length = strnlen(name, UBSM_MAX_NAME + 2);
	if (length < 1 || length > UBSM_MAX_NAME + 1)
		return UBSM_ERR_PARAM_INVALID;
	strcpy(request.name, name);
	code = standin_call(&request, NULL, &body, &size);
	if (!code && size != sizeof(*info))
		code = UBSM_ERR_NET;
	if (!code)
		memcpy(info, body, size);
	free(body);
	return code;
}
