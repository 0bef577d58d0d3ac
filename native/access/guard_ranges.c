/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The registered ranges: slots that a signal handler can read at any moment.
 * Each slot is a sequence lock; blocks of slots are added and never freed.
 */
#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>

#include "guard_internal.h"

struct slot {
	_Atomic uint32_t sequence; /* odd while the owner changes the rest */
	_Atomic uint32_t used;
	_Atomic uintptr_t base;
	_Atomic uintptr_t end;
	_Atomic uint64_t id;
};

enum { BLOCK_SLOTS = 256, MAX_BLOCKS = 256 };

struct block {
	struct slot slots[BLOCK_SLOTS];
};

static struct block first_block;
static _Atomic(struct block *) blocks[MAX_BLOCKS] = { &first_block };
static _Atomic int range_count;
/* Held by add and remove only. */
static pthread_mutex_t registry_mutex = PTHREAD_MUTEX_INITIALIZER;

/* One consistent look at a slot; false if it is free or just changing. */
static bool slot_read(struct slot *slot, uintptr_t *base, uintptr_t *end, uint64_t *id)
{
	uint32_t before = atomic_load_explicit(&slot->sequence, memory_order_acquire);
	bool used;

	if (before & 1)
		return false;
	/* Acquire each, rather than one fence: TSAN does not know fences. */
	used = atomic_load_explicit(&slot->used, memory_order_acquire);
	*base = atomic_load_explicit(&slot->base, memory_order_acquire);
	*end = atomic_load_explicit(&slot->end, memory_order_acquire);
	*id = atomic_load_explicit(&slot->id, memory_order_acquire);
	return used && atomic_load_explicit(&slot->sequence, memory_order_acquire) == before;
}

static void slot_write(struct slot *slot, uintptr_t base, uintptr_t end, uint64_t id, bool used)
{
	uint32_t sequence = atomic_load_explicit(&slot->sequence, memory_order_relaxed);

	atomic_store_explicit(&slot->sequence, sequence + 1, memory_order_relaxed);
	atomic_store_explicit(&slot->used, used, memory_order_release);
	atomic_store_explicit(&slot->base, base, memory_order_release);
	atomic_store_explicit(&slot->end, end, memory_order_release);
	atomic_store_explicit(&slot->id, id, memory_order_release);
	atomic_store_explicit(&slot->sequence, sequence + 2, memory_order_release);
}

bool obmm_guard_find(uintptr_t address, struct obmm_fault *fault)
{
	for (int b = 0; b < MAX_BLOCKS; b++) {
		struct block *block = atomic_load_explicit(&blocks[b], memory_order_acquire);

		if (!block)
			return false;
		for (int i = 0; i < BLOCK_SLOTS; i++) {
			uintptr_t base, end;
			uint64_t id;

			if (!slot_read(&block->slots[i], &base, &end, &id) || address < base || address >= end)
				continue;
			fault->id = id;
			fault->offset = address - base;
			fault->address = address;
			return true;
		}
	}
	return false;
}

int obmm_guard_covers(const void *address)
{
	struct obmm_fault unused;

	return obmm_guard_find((uintptr_t)address, &unused);
}

static void registry_prefork(void)
{
	obmm_guard_chain_prefork();
	pthread_mutex_lock(&registry_mutex);
}

static void registry_postfork(void)
{
	pthread_mutex_unlock(&registry_mutex);
	obmm_guard_chain_postfork();
}

/* Mutex held. */
static int registry_insert(uintptr_t base, uintptr_t end, uint64_t id)
{
	for (int b = 0; b < MAX_BLOCKS; b++) {
		struct block *block = atomic_load_explicit(&blocks[b], memory_order_relaxed);

		if (!block) {
			block = calloc(1, sizeof(*block));
			if (!block)
				return -ENOMEM;
			atomic_store_explicit(&blocks[b], block, memory_order_release);
		}
		for (int i = 0; i < BLOCK_SLOTS; i++) {
			if (atomic_load_explicit(&block->slots[i].used, memory_order_relaxed))
				continue;
			slot_write(&block->slots[i], base, end, id, true);
			return b * BLOCK_SLOTS + i;
		}
	}
	return -ENOMEM;
}

int obmm_guard_add(const void *base, size_t length, uint64_t id)
{
	uintptr_t start = (uintptr_t)base, end = start + length;
	static bool fork_handled; /* under the mutex */
	int result = obmm_guard_arm();

	if (result < 0)
		return result;
	if (!start || end <= start)
		return -EINVAL;
	pthread_mutex_lock(&registry_mutex);
	if (!fork_handled)
		fork_handled = !pthread_atfork(registry_prefork, registry_postfork, registry_postfork);
	result = registry_insert(start, end, id);
	if (result >= 0)
		atomic_fetch_add_explicit(&range_count, 1, memory_order_relaxed);
	pthread_mutex_unlock(&registry_mutex);
	return result;
}

int obmm_guard_remove(int number)
{
	struct block *block;
	struct slot *slot;
	int result = -EINVAL;

	if (number < 0 || number >= MAX_BLOCKS * BLOCK_SLOTS)
		return -EINVAL;
	pthread_mutex_lock(&registry_mutex);
	block = atomic_load_explicit(&blocks[number / BLOCK_SLOTS], memory_order_relaxed);
	slot = block ? &block->slots[number % BLOCK_SLOTS] : NULL;
	if (slot && atomic_load_explicit(&slot->used, memory_order_relaxed)) {
		slot_write(slot, 0, 0, 0, false);
		atomic_fetch_sub_explicit(&range_count, 1, memory_order_relaxed);
		result = 0;
	}
	pthread_mutex_unlock(&registry_mutex);
	return result;
}

int obmm_guard_count(void)
{
	return atomic_load_explicit(&range_count, memory_order_relaxed);
}
