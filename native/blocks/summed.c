/* SPDX-License-Identifier: Apache-2.0 */
#include "summed.h"

#include <errno.h>
#include <string.h>

#include "../access/nc.h"
#include "../hash/crc32c.h"
#include "summed_kernels.h"

enum { LINE = OBMM_SUMMED_LINE };

static const struct obmm_summed_kernel *chosen;

static const struct obmm_summed_kernel *kernel(void)
{
	const struct obmm_summed_kernel *found = __atomic_load_n(&chosen, __ATOMIC_RELAXED);

	if (__builtin_expect(found != NULL, 1))
		return found;
	found = obmm_summed_kernels;
	while (!found->is_supported())
		found++;
	__atomic_store_n(&chosen, found, __ATOMIC_RELAXED);
	return found;
}

static int is_line(const void *address)
{
	return !((uintptr_t)address & (LINE - 1));
}

static size_t to_next_line(const void *mapped, size_t length)
{
	size_t ahead = -(uintptr_t)mapped & (LINE - 1);

	return ahead < length ? ahead : length;
}

uint32_t obmm_summed_read(void *dst, const void *src, size_t length, uint32_t crc, unsigned int flags)
{
	uint8_t *to = dst;
	const uint8_t *from = src;
	size_t head = to_next_line(from, length), lines = (length - head) / LINE;
	size_t tail = length - head - lines * LINE;
	unsigned int sides = OBMM_SIDE_SRC_MAPPED;

	if (head) {
		obmm_nc_read(to, from, head);
		crc = obmm_crc32c(crc, to, head);
	}
	if (lines) {
		if (flags & OBMM_SUMMED_PAST_CACHES && is_line(to + head))
			sides |= OBMM_SIDE_DST_STREAM;
		crc = ~kernel()->lines(to + head, from + head, lines, ~crc, sides);
	}
	if (tail) {
		obmm_nc_read(to + length - tail, from + length - tail, tail);
		crc = obmm_crc32c(crc, to + length - tail, tail);
	}
	return crc;
}

uint32_t obmm_summed_write(void *dst, const void *src, size_t length, uint32_t crc, unsigned int flags)
{
	uint8_t *to = dst;
	const uint8_t *from = src;
	size_t head = to_next_line(to, length), lines = (length - head) / LINE;
	size_t tail = length - head - lines * LINE;

	/* The source may change under us: what is summed is what is stored, hence the copy of the ends. */
	uint8_t end[LINE];

	if (head) {
		memcpy(end, from, head);
		crc = obmm_crc32c(crc, end, head);
		obmm_nc_write(to, end, head);
	}
	if (lines)
		crc = ~kernel()->lines(to + head, from + head, lines, ~crc,
				       flags & OBMM_SUMMED_PAST_CACHES ? OBMM_SIDE_DST_STREAM : 0);
	if (tail) {
		memcpy(end, from + length - tail, tail);
		crc = obmm_crc32c(crc, end, tail);
		obmm_nc_write(to + length - tail, end, tail);
	}
	return crc;
}

const char *obmm_summed_isa(void)
{
	return kernel()->name;
}

int obmm_summed_use(const char *isa)
{
	const struct obmm_summed_kernel *each = obmm_summed_kernels;

	if (!isa) {
		__atomic_store_n(&chosen, NULL, __ATOMIC_RELAXED);
		return 0;
	}
	for (;; each++) {
		if (!strcmp(each->name, isa)) {
			if (!each->is_supported())
				return -ENOTSUP;
			__atomic_store_n(&chosen, each, __ATOMIC_RELAXED);
			return 0;
		}
		if (!strcmp(each->name, "plain"))
			return -ENOTSUP;
	}
}
