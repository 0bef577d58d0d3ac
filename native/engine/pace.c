/* SPDX-License-Identifier: Apache-2.0 */
#include "pace.h"

#include <stddef.h>

enum {
	FIRST_BITS = 3, /* up to 15 rows are of one size */
	TRY_EVERY = 64,
	TOO_SLOW = 2,		/* times the best: such a neighbour is not tried again before the best is known to be as slow */
	WEIGHT = 4,		/* an observation counts one part of so many */
	SHARE_NS = 6000,	/* a ready thread is worth it for so much work ... */
	WOKEN_SHARE_NS = 100000, /* ... and one that has to be woken */
};

static const uint16_t threads_of[OBMM_PACE_LEVELS] = { 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128 };

unsigned int obmm_pace_threads(unsigned int level)
{
	return threads_of[level < OBMM_PACE_LEVELS ? level : OBMM_PACE_LEVELS - 1];
}

/* The largest level that needs no more threads. */
static unsigned int level_below(uint64_t threads)
{
	unsigned int level = 0;

	while (level + 1 < OBMM_PACE_LEVELS && threads_of[level + 1] <= threads)
		level++;
	return level;
}

static struct obmm_pace_size *size_of(struct obmm_pace *pace, uint64_t rows, bool ready)
{
	unsigned int bits = 63 - (unsigned int)__builtin_clzll(rows | 1);
	unsigned int size = bits > FIRST_BITS ? bits - FIRST_BITS : 0;

	if (size >= OBMM_PACE_SIZES)
		size = OBMM_PACE_SIZES - 1;
	return ready ? &pace->ready[size] : &pace->woken[size];
}

static uint32_t ps_at(const struct obmm_pace_size *size, unsigned int level)
{
	return __atomic_load_n(&size->ps[level], __ATOMIC_RELAXED);
}

/*
 * From the best level so far to one that is faster, if that is known.  What was measured when nothing else went on may
 * promise too much: with each gather there it becomes what it is, and another level is next.
 */
static unsigned int best_known(const struct obmm_pace_size *size, unsigned int level, unsigned int top)
{
	unsigned int best = level;
	uint64_t least = (uint64_t)ps_at(size, level) * 1000;

	for (unsigned int other = 0; least && other <= top; other++) {
		/* worth a change: the clock is not that exact */
		uint64_t with = (uint64_t)ps_at(size, other) * 1030;

		if (with && with < least) {
			best = other;
			least = (uint64_t)ps_at(size, other) * 1000;
		}
	}
	return best;
}

/* The sizes next to this one that something is known of say between what it lies; otherwise the work does. */
static unsigned int first_level(struct obmm_pace *pace, const struct obmm_pace_size *size, uint64_t rows, bool ready,
				uint32_t row_ns)
{
	unsigned int guess = level_below(rows * row_ns / (ready ? SHARE_NS : WOKEN_SHARE_NS) + 1);
	const struct obmm_pace_size *all, *near;

	if (!pace)
		return guess;
	all = ready ? pace->ready : pace->woken;
	for (near = size; near >= all; near--) {
		uint32_t known = __atomic_load_n(&near->level, __ATOMIC_RELAXED);

		if (known && near == size)
			return known - 1;
		if (known) {
			guess = guess < known - 1 ? known - 1 : guess;
			break;
		}
	}
	for (near = size + 1; near < all + OBMM_PACE_SIZES; near++) {
		uint32_t known = __atomic_load_n(&near->level, __ATOMIC_RELAXED);

		if (known)
			return guess > known - 1 ? known - 1 : guess;
	}
	return guess;
}

unsigned int obmm_pace_choose(struct obmm_pace *pace, uint64_t rows, bool ready, unsigned int most, uint32_t row_ns,
			      bool tries)
{
	struct obmm_pace_size *size = pace ? size_of(pace, rows, ready) : NULL;
	unsigned int top = level_below(most ? most : 1), level = first_level(pace, size, rows, ready, row_ns), tried;
	uint32_t calls;

	level = level < top ? level : top;
	if (!size)
		return threads_of[level];
	level = best_known(size, level, top);
	__atomic_store_n(&size->level, level + 1, __ATOMIC_RELAXED);
	if (!tries)
		return threads_of[level];
	calls = __atomic_fetch_add(&size->calls, 1, __ATOMIC_RELAXED);
	if (!ps_at(size, level) || calls % TRY_EVERY != TRY_EVERY - 1)
		return threads_of[level];
	/* upwards and downwards in turn */
	tried = calls / TRY_EVERY % 2 && level ? level - 1 : level < top ? level + 1 : level;
	return threads_of[ps_at(size, tried) / TOO_SLOW < ps_at(size, level) ? tried : level];
}

void obmm_pace_begin(struct obmm_pace *pace, uint64_t rows, bool ready, unsigned int threads)
{
	__atomic_store_n(&size_of(pace, rows, ready)->level, level_below(threads) + 1, __ATOMIC_RELAXED);
}

void obmm_pace_learn(struct obmm_pace *pace, uint64_t rows, bool ready, unsigned int threads, uint64_t nanoseconds)
{
	unsigned int level = level_below(threads);
	struct obmm_pace_size *size;
	uint64_t ps, before;

	if (!pace || !rows || threads_of[level] != threads)
		return;
	size = size_of(pace, rows, ready);
	ps = nanoseconds < UINT64_MAX / 1000 ? nanoseconds * 1000 / rows : UINT32_MAX;
	before = ps_at(size, level);
	/* a thread that lost its CPU says nothing about the number of threads, and must not drive gathers to a worse one */
	if (before && ps > before + before / 4)
		ps = before + before / 4;
	if (before)
		ps = (before * (WEIGHT - 1) + ps) / WEIGHT;
	ps = ps < 1 ? 1 : ps > UINT32_MAX ? UINT32_MAX : ps;
	__atomic_store_n(&size->ps[level], (uint32_t)ps, __ATOMIC_RELAXED);
}
