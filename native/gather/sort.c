/* SPDX-License-Identifier: Apache-2.0 */
#include "sort.h"

#include <string.h>

enum { BITS = 11, BUCKETS = 1 << BITS };

uint64_t *obmm_sort(struct obmm_scratch *scratch, size_t n, unsigned int low, unsigned int high)
{
	unsigned int passes = high > low ? (high - low + BITS - 1) / BITS : 0;
	uint64_t *from = scratch->keys[0], *to = scratch->keys[1];

	if (passes > 3)
		passes = 3;
	memset(scratch->histogram, 0, passes * sizeof(scratch->histogram[0]));
	for (size_t i = 0; i < n; i++) {
		for (unsigned int pass = 0; pass < passes; pass++)
			scratch->histogram[pass][(from[i] >> (32 + low + pass * BITS)) & (BUCKETS - 1)]++;
	}
	for (unsigned int pass = 0; pass < passes; pass++) {
		uint32_t *histogram = scratch->histogram[pass], sum = 0;
		unsigned int shift = 32 + low + pass * BITS;
		uint64_t *swap;

		for (int b = 0; b < BUCKETS; b++) {
			uint32_t here = histogram[b];

			histogram[b] = sum;
			sum += here;
		}
		for (size_t i = 0; i < n; i++)
			to[histogram[(from[i] >> shift) & (BUCKETS - 1)]++] = from[i];
		swap = from;
		from = to;
		to = swap;
	}
	return from;
}
