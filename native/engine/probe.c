/* SPDX-License-Identifier: Apache-2.0 */
#include "probe.h"

#include <errno.h>
#include <time.h>

#include "../core/clock.h"
#include "engine.h"

enum { READY_NS = 400000 };

struct chase {
	const uint8_t *base;
	uint64_t lines;
	uint64_t loads;
	uint64_t seed;
	double nanoseconds;
};

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
	uint64_t mask = nothing, state = chase->seed | 1, loaded = 0, started = obmm_now_ns();

	for (uint64_t i = 0; i < chase->loads; i++) {
		uint64_t line = below(next_random(&state), chase->lines);

		loaded = *(const volatile uint64_t *)(chase->base + line * 64 + (loaded & mask));
		state += loaded & mask;
	}
	chase->nanoseconds = (double)(obmm_now_ns() - started) / (double)chase->loads;
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

		/* workers that are to help are there first: what is measured is a team that was told to be ready */
		uint64_t ready = threads == 1 || !obmm_engine_expect(engine, READY_NS) ? 0 : obmm_now_ns() + READY_NS / 2;

		do {
			for (uint64_t i = 0; i < count; i++)
				ids[i] = (int64_t)below(next_random(&state), table->rows);
		} while (obmm_now_ns() < ready);
		result = obmm_engine_gather(engine, &request, threads, outcome);
		if (result < 0)
			return (int)result;
		best = outcome->nanoseconds < best ? outcome->nanoseconds : best;
	}
	*nanoseconds = (double)best / (double)count;
	return 0;
}

/* ---- hand-over ---- */

enum { PATIENCE_NS = 2000000 };

/* One part for each thread: each thread says when it came, and stays until all have. */
struct arrivals {
	struct obmm_work work;
	uint64_t began, first, all;
	unsigned int threads, here;
};

static int arrive(struct obmm_work *work, uint64_t from, uint64_t to)
{
	struct arrivals *arrivals = (struct arrivals *)work;
	unsigned int here = __atomic_add_fetch(&arrivals->here, (unsigned int)(to - from), __ATOMIC_ACQ_REL);
	uint64_t now = obmm_now_ns();

	if (here == 2)
		__atomic_store_n(&arrivals->first, now - arrivals->began, __ATOMIC_RELAXED);
	if (here == arrivals->threads)
		__atomic_store_n(&arrivals->all, now - arrivals->began, __ATOMIC_RELAXED);
	while (__atomic_load_n(&arrivals->here, __ATOMIC_ACQUIRE) < arrivals->threads &&
	       obmm_now_ns() - arrivals->began < PATIENCE_NS)
		;
	return 0;
}

int obmm_probe_handover(struct obmm_engine *engine, unsigned int threads, unsigned int rounds, uint64_t pause_ns,
			uint64_t lead_ns, uint64_t *first, uint64_t *all)
{
	const struct obmm_table nothing = { .tuning = { .order_rows = UINT32_MAX } };

	for (unsigned int round = 0; round < rounds; round++) {
		struct arrivals arrivals = { .work = { arrive, 1 }, .first = UINT64_MAX, .all = UINT64_MAX, .threads = threads };
		struct obmm_request request = { .table = &nothing, .count = threads, .work = &arrivals.work };
		const struct timespec pause = { .tv_nsec = (long)pause_ns };
		struct obmm_outcome outcome;
		int64_t result;
		uint64_t told;

		nanosleep(&pause, NULL);
		if (lead_ns)
			obmm_engine_expect(engine, (int64_t)(2 * lead_ns));
		for (told = obmm_now_ns(); obmm_now_ns() - told < lead_ns;)
			;
		arrivals.began = obmm_now_ns();
		result = obmm_engine_gather(engine, &request, threads, &outcome);
		if (result < 0)
			return (int)result;
		first[round] = arrivals.first;
		all[round] = arrivals.all;
	}
	return 0;
}
