/* SPDX-License-Identifier: Apache-2.0 */
/* Units as the SDK maps them (SDK specification 7.3-7.5), with the system calls that 12.2 counts. */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include "../abi/obmm_abi.h"
#include "standin.h"

static size_t unit_length(const struct standin_mapping *mapping, uint32_t i)
{
	size_t start = i * mapping->unit;
	size_t left = mapping->length - start;

	return left < mapping->unit ? left : mapping->unit;
}

/* Addresses for the whole object; with PMD mappings on a block's border. */
static char *reserve(void *hint, size_t length, size_t border)
{
	const int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
	char *room, *start;

	standin_count_calls(1);
	if (!border)
		return mmap(hint, length, PROT_NONE, flags, -1, 0);
	room = mmap(hint, length + border, PROT_NONE, flags, -1, 0);
	if (room == MAP_FAILED)
		return room;
	start = (char *)(((uintptr_t)room + border - 1) & ~(border - 1));
	if (start > room)
		munmap(room, start - room);
	munmap(start + length, room + border - start);
	return start;
}

static int open_and_map(struct standin_mapping *mapping, uint32_t i, int prot, int flags)
{
	struct obmm_sys *sys = mapping->sys;
	uint64_t offset = mapping->flags & UBSM_FLAG_MMAP_HUGETLB_PMD ? OBMM_MMAP_FLAG_HUGETLB_PMD : 0;
	char path[64];
	void *at;

	snprintf(path, sizeof(path), "/dev/obmm_shmdev%llu", (unsigned long long)mapping->mem_ids[i]);
	standin_count_calls(1);
	mapping->fds[i] = sys->open(sys, path, mapping->open_flags);
	if (mapping->fds[i] < 0)
		return UBSM_ERR_OBMM;
	standin_count_calls(1);
	at = sys->mmap(sys, mapping->base + i * mapping->unit, unit_length(mapping, i), prot, flags | MAP_FIXED,
		       mapping->fds[i], offset);
	return at == MAP_FAILED ? UBSM_ERR_PARAM_INVALID : UBSM_OK;
}

static void close_units(struct standin_mapping *mapping)
{
	struct obmm_sys *sys = mapping->sys;

	for (uint32_t i = 0; i < mapping->count; i++) {
		if (mapping->fds[i] < 0)
			continue;
		standin_count_calls(1);
		sys->close(sys, mapping->fds[i]);
		mapping->fds[i] = -1;
	}
}

int standin_map_units(struct standin_mapping *mapping, const struct standin_units *units, void *addr, int prot,
		      int flags)
{
	struct obmm_sys *sys = standin_sys();
	const int pmd = units->flags & UBSM_FLAG_MMAP_HUGETLB_PMD;
	int fixed = flags & (MAP_FIXED | MAP_FIXED_NOREPLACE);
	int code = UBSM_OK;

	if (fixed && pmd && (uintptr_t)addr % (2UL << 20))
		return UBSM_ERR_PARAM_INVALID;
	mapping->sys = sys;
	mapping->unit = units->unit;
	mapping->flags = units->flags;
	mapping->count = units->count;
	mapping->open_flags = units->open_mode;
	if (units->flags & (UBSM_FLAG_NONCACHE | UBSM_FLAG_ONLY_IMPORT_NONCACHE))
		mapping->open_flags |= O_SYNC;
	mapping->fds = malloc(units->count * sizeof(*mapping->fds));
	mapping->mem_ids = malloc(units->count * sizeof(*mapping->mem_ids));
	if (!mapping->fds || !mapping->mem_ids)
		return UBSM_ERR_MALLOC_FAIL;
	for (uint32_t i = 0; i < units->count; i++) {
		mapping->fds[i] = -1;
		mapping->mem_ids[i] = units->mem_ids[i];
	}
	mapping->base = fixed ? addr : reserve(addr, mapping->length, pmd ? standin_pmd_size() : 0);
	if (mapping->base == MAP_FAILED)
		return UBSM_ERR_PARAM_INVALID;
	for (uint32_t i = 0; i < mapping->count && !code; i++)
		code = open_and_map(mapping, i, prot, flags & ~MAP_FIXED_NOREPLACE);
	if (code) {
		close_units(mapping);
		sys->munmap(sys, mapping->base, mapping->length);
	}
	return code;
}

int standin_seal_units(struct standin_mapping *mapping)
{
	struct obmm_sys *sys = mapping->sys;
	void *at;

	standin_count_calls(1);
	at = sys->mmap(sys, mapping->base, mapping->length, PROT_NONE,
		       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
	if (at == MAP_FAILED)
		return UBSM_ERR_PARAM_INVALID;
	close_units(mapping);
	return UBSM_OK;
}

void standin_reopen_units(struct standin_mapping *mapping)
{
	for (uint32_t i = 0; i < mapping->count; i++)
		open_and_map(mapping, i, PROT_NONE, MAP_SHARED);
}

void standin_unmap_units(struct standin_mapping *mapping)
{
	standin_count_calls(1);
	munmap(mapping->base, mapping->length);
}

int standin_own_units(struct standin_mapping *mapping, char *start, size_t length, int prot)
{
	struct obmm_sys *sys = mapping->sys;
	const char *end = start + length;
	uint8_t access = prot == PROT_NONE ? OBMM_SHM_MEM_NO_ACCESS :
			 prot == PROT_READ ? OBMM_SHM_MEM_READONLY :
					     OBMM_SHM_MEM_READWRITE;

	for (uint32_t i = 0; i < mapping->count; i++) {
		char *low = mapping->base + i * mapping->unit;
		char *high = low + unit_length(mapping, i);
		struct obmm_cmd_update_range range = {
			.start = (uintptr_t)(low < start ? start : low),
			.end = (uintptr_t)(high < end ? high : end),
			.mem_state = OBMM_SHM_MEM_NORMAL | access,
			.cache_ops = OBMM_SHM_CACHE_INFER,
		};

		if (range.start >= range.end)
			continue;
		standin_count_calls(1);
		if (sys->ioctl(sys, mapping->fds[i], OBMM_SHMDEV_UPDATE_RANGE, &range))
			return UBSM_ERR_OBMM;
	}
	return UBSM_OK;
}

void standin_free_mapping(struct standin_mapping *mapping)
{
	if (!mapping)
		return;
	free(mapping->fds);
	free(mapping->mem_ids);
	free(mapping);
}
