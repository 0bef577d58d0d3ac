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

static double sample(const char *base, uint64_t *offset)
{
	uint64_t begin = nanoseconds();

	for (int i = 0; i < CHASE_BATCH; i++)
		*offset = *(const volatile uint64_t *)(base + *offset);
	return (double)(nanoseconds() - begin) / CHASE_BATCH;
}

void chase_compare(const void *const bases[2], struct chase_result results[2])
{
	static double samples[2][CHASE_SAMPLES];
	uint64_t offsets[2] = { 0, 0 };

	for (int turn = 0; turn < CHASE_SAMPLES; turn += CHASE_TURN)
		for (int which = 0; which < 2; which++)
			for (int i = turn; i < turn + CHASE_TURN; i++)
				samples[which][i] = sample(bases[which], &offsets[which]);
	for (int which = 0; which < 2; which++) {
		qsort(samples[which], CHASE_SAMPLES, sizeof(double), ascending);
		results[which].p50 = samples[which][CHASE_SAMPLES / 2];
		results[which].p99 = samples[which][CHASE_SAMPLES * 99 / 100];
	}
}
