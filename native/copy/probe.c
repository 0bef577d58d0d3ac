/* SPDX-License-Identifier: Apache-2.0 */
#include "probe.h"

#include <errno.h>
#include <time.h>

#include "engine.h"

struct chase {
	const uint8_t *base;
	uint64_t lines;
	uint64_t loads;
	uint64_t seed;
	double nanoseconds;
};

static uint64_t now_ns(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

static uint64_t next_random(uint64_t *state)
{
	*state ^= *state << 13;
	*state ^= *state >> 7;
	*state ^= *state << 17;
	return *state;
}

/* Uniform in [0, n) without a division. */
static uint64_t below(uint64_t random, uint64_t n)
{
	return (uint64_t)((unsigned __int128)random * n >> 64);
}

static int do_chase(void *arg)
{
	struct chase *chase = arg;
	/* Always 0, which the compiler and the CPU do not know: each address depends on the load before. */
	volatile uint64_t nothing = 0;
	uint64_t mask = nothing, state = chase->seed | 1, loaded = 0, started = now_ns();

	for (uint64_t i = 0; i < chase->loads; i++) {
		uint64_t line = below(next_random(&state), chase->lines);

		loaded = *(const volatile uint64_t *)(chase->base + line * 64 + (loaded & mask));
		state += loaded & mask;
	}
	chase->nanoseconds = (double)(now_ns() - started) / (double)chase->loads;
	return 0;
}

int obmm_probe_latency(const struct obmm_table *table, uint64_t length, uint64_t loads, uint64_t seed,
		       double *nanoseconds, struct obmm_fault *fault)
{
	uintptr_t first = ((uintptr_t)table->base + 63) & ~(uintptr_t)63;
	uint64_t usable = (uintptr_t)table->base + length > first ? (uintptr_t)table->base + length - first : 0;
	struct chase chase = { .base = (const uint8_t *)first, .lines = usable / 64, .loads = loads, .seed = seed };
	uint32_t entered = 0;
	int result = -EBADF;

	if (!chase.lines || !loads)
		return -EINVAL;
	while (entered < table->n_gates && !obmm_gate_enter(table->gates[entered]))
		entered++;
	if (entered == table->n_gates)
		result = obmm_guard_run(do_chase, &chase, fault);
	while (entered)
		obmm_gate_leave(table->gates[--entered]);
	*nanoseconds = chase.nanoseconds;
	return result;
}

int obmm_probe_gather(struct obmm_engine *engine, const struct obmm_table *table, int64_t *ids, uint8_t *out,
		      uint64_t count, unsigned int rounds, unsigned int threads, uint64_t seed, double *nanoseconds,
		      struct obmm_outcome *outcome)
{
	struct obmm_request request = {
		.table = table,
		.ids = ids,
		.count = count,
		.id_bytes = 8,
		.out = out,
		.out_stride = table->row_bytes,
		.high = UINT64_MAX,
	};
	uint64_t state = seed | 1, best = UINT64_MAX;

	if (!count || !rounds)
		return -EINVAL;
	for (unsigned int round = 0; round < rounds; round++) {
		int64_t result;

		for (uint64_t i = 0; i < count; i++)
			ids[i] = (int64_t)below(next_random(&state), table->rows);
		result = obmm_engine_gather(engine, &request, threads, outcome);
		if (result < 0)
			return (int)result;
		best = outcome->nanoseconds < best ? outcome->nanoseconds : best;
	}
	*nanoseconds = (double)best / (double)count;
	return 0;
}
