/* SPDX-License-Identifier: Apache-2.0 */
#include "timeline.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "engine_internal.h"

/* The engine's for good: a worker that saw the last call late still writes there. */
static struct obmm_timeline *timeline_of(struct obmm_engine *engine)
{
	struct obmm_timeline *timeline = atomic_load(&engine->times), *none = NULL;

	if (timeline)
		return timeline;
	timeline = aligned_alloc(_Alignof(struct obmm_timeline), sizeof(*timeline));
	if (!timeline)
		return NULL;
	memset(timeline, 0, sizeof(*timeline));
	if (atomic_compare_exchange_strong(&engine->times, &none, timeline))
		return timeline;
	free(timeline);
	return none;
}

static uint64_t next_random(uint64_t *state)
{
	*state ^= *state << 13;
	*state ^= *state >> 7;
	*state ^= *state << 17;
	return *state;
}

static uint64_t take(uint64_t *at)
{
	return __atomic_exchange_n(at, 0, __ATOMIC_RELAXED);
}

/* Unsigned numbers that are before the call stay far away from all that are after it. */
static uint64_t since(uint64_t at, uint64_t began)
{
	return !at ? 0 : at > began ? at - began : 1;
}

static void collect(struct obmm_timeline *timeline, unsigned int threads, struct obmm_thread_times *times)
{
	uint64_t began = __atomic_load_n(&timeline->threads[0].awake, __ATOMIC_RELAXED);

	for (unsigned int i = 0; i < threads; i++) {
		struct obmm_thread_times *from = &timeline->threads[i];

		times[i] = (struct obmm_thread_times){
			.awake = since(take(&from->awake), i ? began : 0),
			.came = since(take(&from->came), began),
			.last = since(take(&from->last), began),
			.ended = since(take(&from->ended), began),
			.rows = take(&from->rows),
			.spun = take(&from->spun),
			.room = take(&from->room),
		};
	}
}

int obmm_probe_timeline(struct obmm_engine *engine, const struct obmm_table *table, int64_t *ids, uint8_t *out,
			uint64_t count, unsigned int rounds, unsigned int threads, uint64_t lead_ns, uint64_t seed,
			struct obmm_thread_times *times)
{
	struct obmm_request request = { .table = table, .ids = ids, .count = count, .id_bytes = 8, .out = out,
					.out_stride = table->row_bytes, .high = UINT64_MAX };
	struct obmm_timeline *timeline = timeline_of(engine);
	uint64_t state = seed | 1;
	int64_t result = 0;

	if (!timeline)
		return -ENOMEM;
	atomic_store(&engine->timeline, timeline);
	for (unsigned int round = 0; round < rounds && result >= 0; round++) {
		struct obmm_outcome outcome;
		uint64_t until;

		if (lead_ns)
			obmm_engine_expect(engine, (int64_t)(2 * lead_ns));
		until = obmm_now_ns() + lead_ns;
		for (uint64_t i = 0; i < count; i++)
			ids[i] = (int64_t)((unsigned __int128)next_random(&state) * table->rows >> 64);
		while (lead_ns && obmm_now_ns() < until)
			engine_relax();
		result = obmm_engine_gather(engine, &request, threads, &outcome);
		collect(timeline, engine->threads + 1, times + (size_t)round * (engine->threads + 1));
	}
	atomic_store(&engine->timeline, NULL);
	return result < 0 ? (int)result : 0;
}
