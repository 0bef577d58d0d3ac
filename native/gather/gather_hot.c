/* SPDX-License-Identifier: Apache-2.0 */
/* The way through a range past the hot rows of its table. */
#include <assert.h>
#include <errno.h>
#include <string.h>

#include "gather_job.h"
#include "../access/nc.h"
#include "../access/order.h"
#include "places.h"

enum { BOUNCE = 32 << 10 };
static_assert((int)BOUNCE >= (int)OBMM_HOT_MOST_BYTES, "room for a row");

/* What a block did not find. */
struct misses {
	const uint8_t *src[OBMM_BLOCK + OBMM_MAX_AHEAD];
	uint64_t rows[OBMM_BLOCK];
	uint64_t places[OBMM_BLOCK];
	size_t n;
};

bool obmm_is_hot(const struct obmm_request *request)
{
	return request->hot && request->table->version && request->count <= obmm_hot_rows(request->hot);
}

static void add_miss(const struct obmm_gather_job *job, struct misses *misses, uint64_t place, uint64_t row)
{
	const uint8_t *src = obmm_row_address(job->request->table, row);

	/* no row before the first ones asks for their lines */
	for (size_t i = 0; misses->n < job->ahead && i < job->request->table->row_bytes; i += OBMM_LINE)
		__builtin_prefetch(src + i);
	misses->src[misses->n] = src;
	misses->rows[misses->n] = row;
	misses->places[misses->n++] = place;
}

static void take_hits(struct obmm_gather_job *job, uint64_t from, size_t n, struct misses *misses)
{
	const struct obmm_request *request = job->request;
	int64_t rows[OBMM_BLOCK];

	for (size_t i = 0; i < n; i++) {
		rows[i] = obmm_row_at(request, from + i);
		if (rows[i] >= 0)
			obmm_hot_expect_get(request->hot, (uint64_t)rows[i]);
	}
	misses->n = 0;
	for (size_t i = 0; i < n; i++) {
		uint8_t *dst = request->out + (from + i) * request->out_stride;

		if (rows[i] < 0) {
			memset(dst, 0, request->table->row_bytes);
			job->rows_zero++;
		} else if (obmm_hot_get(request->hot, (uint64_t)rows[i], job->version, dst)) {
			job->rows_hot++;
		} else {
			add_miss(job, misses, from + i, (uint64_t)rows[i]);
		}
	}
}

static void read_rows(const struct obmm_gather_job *job, const uint8_t *const *src, size_t n, uint8_t *to)
{
	const struct obmm_table *table = job->request->table;
	struct obmm_batch batch = {
		.src = src,
		.out = to,
		.out_stride = table->row_bytes,
		.row_bytes = table->row_bytes,
		.n = n,
		.ahead = job->ahead,
	};

	if (!(table->flags & OBMM_TABLE_NC)) {
		obmm_kernels()->plain(&batch);
		return;
	}
	for (size_t i = 0; i < n; i++)
		obmm_nc_read(to + i * table->row_bytes, src[i], table->row_bytes);
}

/*
 * By way of private memory: the output is the caller's, who may
 * write there after a deadline, and what is kept must be what was read.  It is
 * kept when the content version is still the same.
 */
static int read_misses(struct obmm_gather_job *job, struct misses *misses)
{
	const struct obmm_request *request = job->request;
	size_t bytes = request->table->row_bytes, part;
	uint8_t bounce[BOUNCE] __attribute__((aligned(OBMM_LINE)));

	/* addresses past the end, for the prefetch */
	for (size_t i = 0; misses->n && i < job->ahead; i++)
		misses->src[misses->n + i] = misses->src[misses->n - 1];
	for (size_t at = 0; at < misses->n; at += part) {
		part = misses->n - at < BOUNCE / bytes ? misses->n - at : BOUNCE / bytes;
		for (size_t i = 0; i < part; i++)
			obmm_hot_expect_put(request->hot, misses->rows[at + i]);
		read_rows(job, misses->src + at, part, bounce);
		obmm_order_load();
		if (obmm_read_version(request->table) != job->version)
			return -ESTALE;
		for (size_t i = 0; i < part; i++) {
			const uint8_t *row = bounce + i * bytes;

			obmm_hot_put(request->hot, misses->rows[at + i], job->version, row);
			memcpy(request->out + misses->places[at + i] * request->out_stride, row, bytes);
		}
	}
	return 0;
}

int obmm_gather_hot(struct obmm_gather_job *job)
{
	struct misses misses;
	int result = 0;
	size_t n;

	for (uint64_t at = job->from; at < job->to && !result; at += n) {
		n = job->to - at < OBMM_BLOCK ? (size_t)(job->to - at) : OBMM_BLOCK;
		take_hits(job, at, n, &misses);
		result = read_misses(job, &misses);
	}
	return result;
}
