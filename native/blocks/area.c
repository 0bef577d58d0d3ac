/* SPDX-License-Identifier: Apache-2.0 */
#include "area.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>

#include "../access/copy.h"
#include "../core/obmm_rw.h"

enum { WRITER = -1 };

/* The lock is held over the driver's call: rights of one slot change in the order in which they are counted. */
struct obmm_slot_use {
	pthread_mutex_t mutex;
	pthread_cond_t left;
	int32_t users[]; /* readers, or WRITER */
};

struct obmm_slot_use *obmm_slot_use_create(uint32_t slots)
{
	struct obmm_slot_use *use = calloc(1, sizeof(*use) + slots * sizeof(use->users[0]));

	if (!use)
		return NULL;
	pthread_mutex_init(&use->mutex, NULL);
	pthread_cond_init(&use->left, NULL);
	return use;
}

void obmm_slot_use_free(struct obmm_slot_use *use)
{
	if (use) {
		pthread_cond_destroy(&use->left);
		pthread_mutex_destroy(&use->mutex);
	}
	free(use);
}

static int set_right(const struct obmm_block_area *area, uint32_t slot, uint8_t access, uint8_t operation)
{
	uint64_t start = (uint64_t)(uintptr_t)area->base + slot * area->stride;

	return obmm_rw_set_ownership(area->sys, area->fd, start, start + area->stride, OBMM_SHM_MEM_NORMAL | access,
				     operation);
}

/*
 * Taking a right never drops what is cached (rule 9.8), and another process of this host may have kept the lines
 * alive: a reader drops them itself.  Written back first: such a process may be in the middle of writing.
 */
static int enter_to_read(const struct obmm_block_area *area, uint32_t slot)
{
	int32_t *users = &area->use->users[slot];
	int result;

	if (*users == WRITER)
		return -EBUSY;
	result = set_right(area, slot, OBMM_SHM_MEM_READONLY, OBMM_SHM_CACHE_WB_INVAL);
	if (!result)
		(*users)++;
	return result;
}

static int enter_to_write(const struct obmm_block_area *area, uint32_t slot)
{
	int32_t *users = &area->use->users[slot];
	int result;

	/* Readers of what stood there before: each is one copy long. */
	while (*users > 0)
		pthread_cond_wait(&area->use->left, &area->use->mutex);
	if (*users == WRITER)
		return -EBUSY;
	result = set_right(area, slot, OBMM_SHM_MEM_READWRITE, OBMM_SHM_CACHE_INFER);
	if (!result)
		*users = WRITER;
	return result;
}

int obmm_slot_enter(const struct obmm_block_area *area, uint32_t slot, int to_write)
{
	int result;

	if (!area->use)
		return 0;
	pthread_mutex_lock(&area->use->mutex);
	result = to_write ? enter_to_write(area, slot) : enter_to_read(area, slot);
	pthread_mutex_unlock(&area->use->mutex);
	return result;
}

int obmm_slot_leave(const struct obmm_block_area *area, uint32_t slot, int to_write)
{
	int32_t *users;
	int result = 0;

	if (!area->use)
		return 0;
	users = &area->use->users[slot];
	pthread_mutex_lock(&area->use->mutex);
	*users = to_write ? 0 : *users - 1;
	if (!*users) {
		/* a reader's lines need no call: the next one to come drops them */
		result = set_right(area, slot, OBMM_SHM_MEM_NO_ACCESS,
				   to_write ? OBMM_SHM_CACHE_WB_INVAL : OBMM_SHM_CACHE_NONE);
		pthread_cond_broadcast(&area->use->left);
	}
	pthread_mutex_unlock(&area->use->mutex);
	return result;
}

static int clear_one(const struct obmm_block_area *area, uint32_t slot)
{
	uint8_t *header = area->base + slot * area->stride;
	int result = obmm_slot_enter(area, slot, 1), left;

	if (result)
		return result;
	/* magic, version and state in one word */
	result = obmm_store(header, 8, 0, NULL);
	if (!result)
		result = obmm_store(header + 8, 8, 0, NULL);
	obmm_fence_full();
	left = obmm_slot_leave(area, slot, 1);
	return result ? result : left;
}

int obmm_slots_clear(const struct obmm_block_area *area, const uint32_t *slots, uint32_t count)
{
	int first = obmm_gate_enter(area->gate);

	if (first)
		return first;
	for (uint32_t i = 0; i < count; i++) {
		int result = slots[i] < area->slots ? clear_one(area, slots[i]) : -ERANGE;

		if (!first)
			first = result;
	}
	obmm_gate_leave(area->gate);
	return first;
}
