/* SPDX-License-Identifier: Apache-2.0 */
#include "chase.h"

#include <stdint.h>
#include <stdlib.h>
#include <time.h>

static uint64_t *line_of(void *base, size_t index)
{
	return (uint64_t *)((char *)base + index * CHASE_LINE);
}

void chase_build(void *base, size_t length)
{
	size_t lines = length / CHASE_LINE;
	uint64_t random = 0x9e3779b97f4a7c15;

	for (size_t i = 0; i < lines; i++)
		*line_of(base, i) = i * CHASE_LINE;
	/* Sattolo's shuffle: a permutation that is one cycle */
	for (size_t i = lines - 1; i > 0; i--) {
		uint64_t *here = line_of(base, i), *other, swapped = *here;

		random ^= random << 13;
		random ^= random >> 7;
		random ^= random << 17;
		other = line_of(base, random % i);
		*here = *other;
		*other = swapped;
	}
}

static uint64_t nanoseconds(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (uint64_t)now.tv_sec * 1000000000 + (uint64_t)now.tv_nsec;
}

static int ascending(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;

	return (x > y) - (x < y);
}

struct chase_result chase_run(const void *base)
{
	static double samples[CHASE_SAMPLES];
	uint64_t offset = 0;

	for (int sample = 0; sample < CHASE_SAMPLES; sample++) {
		uint64_t begin = nanoseconds();

		for (int i = 0; i < CHASE_BATCH; i++)
			offset = *(const volatile uint64_t *)((const char *)base + offset);
		samples[sample] = (double)(nanoseconds() - begin) / CHASE_BATCH;
	}
	qsort(samples, CHASE_SAMPLES, sizeof(samples[0]), ascending);
	return (struct chase_result){
		.p50 = samples[CHASE_SAMPLES / 2],
		.p99 = samples[CHASE_SAMPLES * 99 / 100],
	};
}
