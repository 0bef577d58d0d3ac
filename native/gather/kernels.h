/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The copy loops of the gather, one set per instruction set.  They see
 * addresses only: row numbers, layouts and bounds were dealt with before.
 */
#ifndef OBMM_KERNELS_H
#define OBMM_KERNELS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { OBMM_LINE = 64 };

struct obmm_batch {
	/* n + ahead addresses; NULL is a row of zero bytes */
	const uint8_t *const *src;
	/* where each row goes, or NULL: out, out + out_stride, ... */
	uint8_t *const *dst;
	uint8_t *out;
	size_t out_stride;
	size_t row_bytes;
	size_t n;
	/* rows between a prefetch and its copy; 0: no prefetch */
	size_t ahead;
	/* every row begins at a line: it spans no more lines than its size says */
	bool aligned;
};

struct obmm_kernels {
	const char *name;
	bool (*supported)(void);
	/* Plain stores, any alignment; prefetch spread over the copy. */
	void (*plain)(const struct obmm_batch *batch);
	/*
	 * Stores past the caches, prefetch in bursts.  Rows packed (out_stride ==
	 * row_bytes, dst == NULL) or each at a line of its own; out begins anywhere.
	 */
	void (*stream)(const struct obmm_batch *batch);
	/* Rows to dst[]: whole lines past the caches, first and last part by plain stores. */
	void (*scatter)(const struct obmm_batch *batch);
	/* Are all ids in [0, rows)? */
	bool (*in_range32)(const int32_t *ids, size_t n, uint64_t rows);
	bool (*in_range64)(const int64_t *ids, size_t n, uint64_t rows);
};

#pragma GCC visibility push(hidden)

#if defined(__x86_64__)
extern const struct obmm_kernels obmm_kernels_avx512, obmm_kernels_avx2;
#elif defined(__aarch64__)
extern const struct obmm_kernels obmm_kernels_neon;
#endif
extern const struct obmm_kernels obmm_kernels_generic;

/* The best of this CPU, or what obmm_gather_use() said. */
const struct obmm_kernels *obmm_kernels(void);

#pragma GCC visibility pop

static inline uint8_t *obmm_batch_dst(const struct obmm_batch *batch, size_t i)
{
	return batch->dst ? batch->dst[i] : batch->out + i * batch->out_stride;
}

#endif
