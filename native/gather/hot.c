/* SPDX-License-Identifier: Apache-2.0 */
#include "hot.h"

#include <assert.h>
#include <errno.h>
#include <string.h>
#include <sys/mman.h>

enum { WAYS = 8, LINE = 64 };

/* In `lock`, above the number of threads that read. */
static const uint32_t WRITER = 1u << 31;

struct set {
	uint32_t lock;
	uint32_t hand;
	uint64_t version;
	uint8_t used[WAYS]; /* since the hand came by */
	uint8_t unused[LINE - 16 - WAYS];
	uint64_t rows[WAYS]; /* number + 1; 0: none */
};
static_assert(sizeof(struct set) == 2 * LINE, "a set is two lines");

struct obmm_hot {
	uint64_t n_sets;
	uint64_t bytes; /* of the whole mapping */
	size_t row_bytes;
	size_t stride;
	uint8_t *data;
	struct set sets[] __attribute__((aligned(LINE)));
};

int obmm_hot_create(uint64_t rows, uint32_t row_bytes, struct obmm_hot **out)
{
	size_t stride = ((size_t)row_bytes + LINE - 1) & ~(size_t)(LINE - 1);
	uint64_t n_sets = rows / WAYS + (rows % WAYS != 0), bytes;
	struct obmm_hot *hot;

	if (!rows || !row_bytes || row_bytes > OBMM_HOT_MOST_BYTES)
		return -EINVAL;
	if (n_sets > UINT32_MAX)
		return -ENOMEM;
	bytes = sizeof(*hot) + n_sets * (sizeof(struct set) + WAYS * stride);
	/* populated now: a gather must not wait for pages */
	hot = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
	if (hot == MAP_FAILED)
		return -ENOMEM;
	hot->n_sets = n_sets;
	hot->bytes = bytes;
	hot->row_bytes = row_bytes;
	hot->stride = stride;
	hot->data = (uint8_t *)&hot->sets[n_sets];
	*out = hot;
	return 0;
}

void obmm_hot_free(struct obmm_hot *hot)
{
	if (hot)
		munmap(hot, hot->bytes);
}

uint64_t obmm_hot_rows(const struct obmm_hot *hot)
{
	return hot->n_sets * WAYS;
}

uint64_t obmm_hot_bytes(const struct obmm_hot *hot)
{
	return hot->bytes;
}

static uint64_t set_of(const struct obmm_hot *hot, uint64_t row)
{
	return ((row * 0x9E3779B97F4A7C15u >> 32) * hot->n_sets) >> 32;
}

static uint8_t *data_of(const struct obmm_hot *hot, uint64_t set, unsigned int way)
{
	return hot->data + (set * WAYS + way) * hot->stride;
}

/* WAYS when it is not there.  Outside the lock the answer is a guess: who has none need not take the lock. */
static unsigned int way_of(const struct set *set, uint64_t row)
{
	unsigned int way = 0;

	while (way < WAYS && __atomic_load_n(&set->rows[way], __ATOMIC_RELAXED) != row + 1)
		way++;
	return way;
}

void obmm_hot_expect_get(const struct obmm_hot *hot, uint64_t row)
{
	const struct set *set = &hot->sets[set_of(hot, row)];

	__builtin_prefetch(set, 1);
	__builtin_prefetch(set->rows);
}

void obmm_hot_expect_put(const struct obmm_hot *hot, uint64_t row)
{
	uint64_t index = set_of(hot, row);
	/* where the hand is now: a guess, which costs nothing when it is wrong */
	unsigned int way = __atomic_load_n(&hot->sets[index].hand, __ATOMIC_RELAXED) % WAYS;
	const uint8_t *data = data_of(hot, index, way);

	for (size_t i = 0; i < hot->stride; i += LINE)
		__builtin_prefetch(data + i, 1);
}

bool obmm_hot_get(struct obmm_hot *hot, uint64_t row, uint64_t version, uint8_t *dst)
{
	uint64_t index = set_of(hot, row);
	struct set *set = &hot->sets[index];
	bool found = false;

	if (way_of(set, row) == WAYS)
		return false;
	if (!(__atomic_fetch_add(&set->lock, 1, __ATOMIC_ACQUIRE) & WRITER) && set->version == version) {
		unsigned int way = way_of(set, row);

		if (way < WAYS) {
			memcpy(dst, data_of(hot, index, way), hot->row_bytes);
			__atomic_store_n(&set->used[way], 1, __ATOMIC_RELAXED);
			found = true;
		}
	}
	__atomic_fetch_sub(&set->lock, 1, __ATOMIC_RELEASE);
	return found;
}

/* CLOCK: the next one that was not read since the hand was there. */
static unsigned int victim(struct set *set)
{
	for (;;) {
		unsigned int way = set->hand % WAYS;

		__atomic_store_n(&set->hand, set->hand + 1, __ATOMIC_RELAXED);
		if (!set->rows[way] || !set->used[way])
			return way;
		set->used[way] = 0;
	}
}

void obmm_hot_put(struct obmm_hot *hot, uint64_t row, uint64_t version, const uint8_t *src)
{
	uint64_t index = set_of(hot, row);
	struct set *set = &hot->sets[index];
	uint32_t unlocked = 0;

	if (!__atomic_compare_exchange_n(&set->lock, &unlocked, WRITER, false, __ATOMIC_ACQUIRE, __ATOMIC_RELAXED))
		return;
	if (set->version < version) {
		for (unsigned int way = 0; way < WAYS; way++)
			__atomic_store_n(&set->rows[way], 0, __ATOMIC_RELAXED);
		set->version = version;
	}
	if (set->version == version && way_of(set, row) == WAYS) {
		unsigned int way = victim(set);

		memcpy(data_of(hot, index, way), src, hot->row_bytes);
		__atomic_store_n(&set->rows[way], row + 1, __ATOMIC_RELAXED);
		set->used[way] = 0;
	}
	__atomic_fetch_sub(&set->lock, WRITER, __ATOMIC_RELEASE);
}
