/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The limit of many cores: the rows of a gather by an OpenMP team that is awake,
 * each thread its part, with nothing around it; what such a team costs that does
 * nothing; and what it costs to take pieces of work from one counter or from
 * counters on lines of their own.  Nanoseconds.
 */
#include <omp.h>
#include <time.h>

#include "reference.c"

static uint64_t now(void)
{
	struct timespec time;

	clock_gettime(CLOCK_MONOTONIC, &time);
	return (uint64_t)time.tv_sec * 1000000000u + (uint64_t)time.tv_nsec;
}

uint64_t ref_team_gather(uint8_t *out, const uint8_t *table, const int64_t *ids, uint64_t n, uint64_t row_bytes,
			 uint64_t stride, int past_caches, int threads)
{
	uint64_t began = now();

#pragma omp parallel num_threads(threads)
	{
		uint64_t part = (n + (uint64_t)threads - 1) / (uint64_t)threads;
		uint64_t from = part * (uint64_t)omp_get_thread_num(), to = from + part < n ? from + part : n;

		if (from < to)
			ref_in_order(out + from * row_bytes, table, ids + from, to - from, row_bytes, stride, past_caches);
	}
	return now() - began;
}

uint64_t ref_team_nothing(int threads)
{
	uint64_t began = now();
	static volatile int nothing;

#pragma omp parallel num_threads(threads)
	(void)nothing;
	return now() - began;
}

/* `pieces` of them by all threads together: counters[0] of all, or counters[8 * i] of thread i. */
uint64_t ref_team_claims(uint64_t *counters, uint64_t pieces, int own, int threads)
{
	uint64_t began = now();

#pragma omp parallel num_threads(threads)
	{
		uint64_t *counter = counters + (own ? 8 * omp_get_thread_num() : 0);

		for (uint64_t i = 0; i < pieces / (uint64_t)threads; i++)
			__atomic_fetch_add(counter, 1, __ATOMIC_RELAXED);
	}
	return now() - began;
}
