/* SPDX-License-Identifier: Apache-2.0 */
#include "overlap.h"

#include <errno.h>
#include <stdlib.h>

struct range {
	uint64_t from;
	uint64_t to;
};

static int by_address(const void *left, const void *right)
{
	const struct range *a = left, *b = right;

	return a->from < b->from ? -1 : a->from > b->from;
}

static int is_ascending(const uint64_t *addresses, const uint32_t *sizes, uint64_t count)
{
	uint64_t end = 0;

	for (uint64_t i = 0; i < count; i++) {
		if (!sizes[i])
			continue;
		if (addresses[i] < end || addresses[i] + sizes[i] < addresses[i])
			return 0;
		end = addresses[i] + sizes[i];
	}
	return 1;
}

int obmm_ranges_overlap(const uint64_t *addresses, const uint32_t *sizes, uint64_t count)
{
	struct range *ranges;
	uint64_t used = 0;
	int found = 0;

	if (is_ascending(addresses, sizes, count))
		return 0;
	ranges = calloc(count, sizeof(*ranges));
	if (!ranges)
		return -ENOMEM;
	for (uint64_t i = 0; i < count; i++) {
		if (addresses[i] + sizes[i] < addresses[i])
			found = 1; /* around the end of memory */
		if (sizes[i])
			ranges[used++] = (struct range){ addresses[i], addresses[i] + sizes[i] };
	}
	qsort(ranges, used, sizeof(*ranges), by_address);
	for (uint64_t i = 1; i < used && !found; i++)
		found = ranges[i].from < ranges[i - 1].to;
	free(ranges);
	return found;
}
