/* SPDX-License-Identifier: Apache-2.0 */
/* The ways through the shares of a gather: as given, in address order, and past the caches. */
#include <string.h>

#include "../access/nc.h"
#include "../access/order.h"
#include "gather_job.h"
#include "places.h"
#include "sort.h"

enum { MIN_AHEAD = 4 };

/* ---- addresses ---- */

/*
 * The addresses of places [from, from + n).  Ids are looked at a second time
 * here: one that was changed since the check reads as zero, never elsewhere.
 */
static void resolve(const struct obmm_request *request, uint64_t from, size_t n, const uint8_t **src)
{
	const struct obmm_table *table = request->table;

	if (obmm_ids_are_rows(request) && !table->rows_per_segment && request->id_bytes == 8) {
		const int64_t *ids = (const int64_t *)request->ids + from;

		for (size_t i = 0; i < n; i++)
			src[i] = (uint64_t)ids[i] < table->rows ? table->base + (uint64_t)ids[i] * table->row_stride : NULL;
	} else if (obmm_ids_are_rows(request) && !table->rows_per_segment) {
		const int32_t *ids = (const int32_t *)request->ids + from;

		for (size_t i = 0; i < n; i++)
			src[i] = ids[i] >= 0 && (uint64_t)ids[i] < table->rows ?
					 table->base + (uint64_t)ids[i] * table->row_stride :
					 NULL;
	} else {
		for (size_t i = 0; i < n; i++) {
			int64_t row = obmm_row_at(request, from + i);

			src[i] = row < 0 ? NULL : obmm_row_address(table, (uint64_t)row);
		}
	}
}

/* ---- the three ways through a share ---- */

static size_t count_null(const uint8_t *const *src, size_t n)
{
	size_t nulls = 0;

	for (size_t i = 0; i < n; i++)
		nulls += !src[i];
	return nulls;
}

static struct obmm_batch batch_for(const struct obmm_gather_job *job)
{
	const struct obmm_table *table = job->request->table;

	return (struct obmm_batch){
		.out_stride = job->request->out_stride,
		.row_bytes = table->row_bytes,
		.ahead = job->ahead,
		.aligned = !(((uintptr_t)table->base | table->row_stride | table->segment_bytes) & (OBMM_LINE - 1)),
	};
}

/* Addresses past the end, for the prefetch: the last one again. */
static void pad(const uint8_t **src, size_t have, size_t want)
{
	for (; have < want; have++)
		src[have] = src[have - 1];
}

static int in_order(struct obmm_gather_job *job)
{
	const struct obmm_request *request = job->request;
	const uint8_t *src[OBMM_BLOCK + OBMM_MAX_AHEAD];
	struct obmm_batch batch = batch_for(job);
	uint64_t at = job->from, resolved = at;
	size_t have = 0;

	batch.src = src;
	while (at < job->to) {
		size_t room = OBMM_BLOCK + job->ahead - have;
		size_t more = job->to - resolved < room ? (size_t)(job->to - resolved) : room;

		resolve(request, resolved, more, src + have);
		resolved += more;
		have += more;
		batch.n = job->to - at < OBMM_BLOCK ? (size_t)(job->to - at) : OBMM_BLOCK;
		pad(src, have, batch.n + job->ahead);
		batch.out = request->out + at * request->out_stride;
		job->kernel(&batch);
		job->rows_zero += count_null(src, batch.n);
		at += batch.n;
		have -= batch.n < have ? batch.n : have;
		memmove(src, src + batch.n, have * sizeof(src[0]));
	}
	return 0;
}

/*
 * Small shares, one after the other: the next one is taken while this one is copied, so that its first rows are asked
 * for in time.  The first rows of the first were not asked for.
 */
static int in_order_ahead(struct obmm_gather_job *job)
{
	const struct obmm_request *request = job->request;
	const uint8_t *src[2 * OBMM_SHARE_ROWS + OBMM_MAX_AHEAD];
	struct obmm_batch batch = batch_for(job);
	size_t n = (size_t)(job->to - job->from);

	batch.src = src;
	resolve(request, job->from, n, src);
	for (size_t i = 0; i < n && i < job->ahead; i++) {
		for (size_t at = 0; src[i] && at < batch.row_bytes; at += OBMM_LINE)
			__builtin_prefetch(src[i] + at, 0, 2);
	}
	for (;;) {
		size_t next = 0;

		if (obmm_take_share(job)) {
			next = (size_t)(job->next_to - job->next_from);
			resolve(request, job->next_from, next, src + n);
		}
		/* no farther than the next share: what lies behind it is not known, and its own rows would not be asked for */
		batch.ahead = job->ahead < n ? job->ahead : n;
		pad(src, n + next, n + batch.ahead);
		batch.n = n;
		batch.out = request->out + job->from * request->out_stride;
		job->kernel(&batch);
		job->rows_zero += count_null(src, n);
		if (!obmm_next_share(job))
			return 0;
		if (next)
			memmove(src, src + n, next * sizeof(src[0]));
		n = (size_t)(job->to - job->from);
		if (!next)
			resolve(request, job->from, n, src);
	}
}

/* Row number and place within the tile, for every row that is read; the others are zeroed now. */
static size_t make_keys(struct obmm_gather_job *job, uint64_t from, size_t n)
{
	const struct obmm_request *request = job->request;
	const struct obmm_table *table = request->table;
	uint64_t *keys = job->scratch->keys[0];
	size_t used = 0;

	if (obmm_ids_are_rows(request) && request->id_bytes == 8 && request->invalid == OBMM_INVALID_ERROR) {
		const int64_t *ids = (const int64_t *)request->ids + from;
		bool raced = false;

		for (size_t i = 0; i < n; i++) {
			raced |= (uint64_t)ids[i] >= table->rows;
			keys[i] = (uint64_t)ids[i] << 32 | i;
		}
		if (!raced)
			return n;
	}
	for (size_t i = 0; i < n; i++) {
		int64_t row = obmm_row_at(request, from + i);

		if (row < 0)
			memset(request->out + (from + i) * request->out_stride, 0, table->row_bytes);
		else
			keys[used++] = (uint64_t)row << 32 | i;
	}
	job->rows_zero += n - used;
	return used;
}

static unsigned int bits_of(uint64_t value)
{
	return value ? 64 - (unsigned int)__builtin_clzll(value) : 0;
}

/*
 * How many low bits of the row number do not matter: what counts is that the
 * page tables of neighbours stay in the cache, and 2 MiB of rows share one.
 */
static unsigned int blur(const struct obmm_table *table)
{
	uint64_t near = (2 << 20) / table->row_stride;

	return near < 2 ? 0 : bits_of(near) - 1;
}

static int in_address_order(struct obmm_gather_job *job)
{
	const struct obmm_request *request = job->request;
	const struct obmm_table *table = request->table;
	const uint8_t *src[OBMM_BLOCK + OBMM_MAX_AHEAD];
	uint8_t *dst[OBMM_BLOCK];
	struct obmm_batch batch = batch_for(job);

	batch.src = src;
	batch.dst = dst;
	for (uint64_t tile = job->from; tile < job->to; tile += OBMM_TILE_ROWS) {
		size_t n = job->to - tile < OBMM_TILE_ROWS ? (size_t)(job->to - tile) : OBMM_TILE_ROWS;
		uint8_t *out = request->out + tile * request->out_stride;
		uint64_t *keys;

		n = make_keys(job, tile, n);
		keys = obmm_sort(job->scratch, n, blur(table), bits_of(table->rows - 1));
		for (size_t at = 0; at < n; at += batch.n) {
			size_t have = n - at < OBMM_BLOCK + job->ahead ? n - at : OBMM_BLOCK + job->ahead;

			batch.n = n - at < OBMM_BLOCK ? n - at : OBMM_BLOCK;
			for (size_t i = 0; i < have; i++)
				src[i] = obmm_row_address(table, keys[at + i] >> 32);
			for (size_t i = 0; i < batch.n; i++)
				dst[i] = out + (uint32_t)keys[at + i] * request->out_stride;
			pad(src, have, batch.n + job->ahead);
			job->kernel(&batch);
		}
	}
	return 0;
}

/* Non-cacheable: each line once and wide; a repeated row is copied from the output. */
static int uncached(struct obmm_gather_job *job)
{
	const struct obmm_request *request = job->request;
	const struct obmm_table *table = request->table;

	for (uint64_t tile = job->from; tile < job->to; tile += OBMM_TILE_ROWS) {
		size_t n = job->to - tile < OBMM_TILE_ROWS ? (size_t)(job->to - tile) : OBMM_TILE_ROWS;
		uint8_t *out = request->out + tile * request->out_stride, *previous = NULL;
		uint64_t *keys;

		n = make_keys(job, tile, n);
		keys = obmm_sort(job->scratch, n, 0, bits_of(table->rows - 1));
		for (size_t i = 0; i < n; i++) {
			uint8_t *dst = out + (uint32_t)keys[i] * request->out_stride;

			if (previous && keys[i] >> 32 == keys[i - 1] >> 32) {
				memcpy(dst, previous, table->row_bytes);
				job->rows_read--;
			} else {
				obmm_nc_read(dst, obmm_row_address(table, keys[i] >> 32), table->row_bytes);
			}
			previous = dst;
		}
	}
	return 0;
}

static int uncached_in_order(struct obmm_gather_job *job)
{
	const struct obmm_request *request = job->request;
	const struct obmm_table *table = request->table;

	for (uint64_t i = job->from; i < job->to; i++) {
		uint8_t *dst = request->out + i * request->out_stride;
		int64_t row = obmm_row_at(request, i);

		if (row < 0) {
			memset(dst, 0, table->row_bytes);
			job->rows_zero++;
		} else {
			obmm_nc_read(dst, obmm_row_address(table, (uint64_t)row), table->row_bytes);
		}
	}
	return 0;
}

static size_t ahead_of(const struct obmm_table *table)
{
	size_t ahead = table->tuning.prefetch_bytes / table->row_bytes;

	if (!table->tuning.prefetch_bytes)
		return 0;
	return ahead < MIN_AHEAD ? MIN_AHEAD : ahead > OBMM_MAX_AHEAD ? OBMM_MAX_AHEAD : ahead;
}

bool obmm_is_ordered(const struct obmm_request *request)
{
	const struct obmm_table *table = request->table;

	return request->count >= table->tuning.order_rows && table->row_bytes >= table->tuning.order_row &&
	       table->rows <= UINT32_MAX;
}

/* How the rows of this request are copied, on this thread; sets what the way needs. */
static int (*way_of(struct obmm_gather_job *job))(struct obmm_gather_job *job)
{
	const struct obmm_request *request = job->request;
	const struct obmm_table *table = request->table;
	const struct obmm_kernels *set = obmm_kernels();
	bool packed = request->out_stride == table->row_bytes;
	bool lines = !((uintptr_t)request->out & (OBMM_LINE - 1)) &&
		     (packed || !((request->out_stride | table->row_bytes) & (OBMM_LINE - 1)));
	bool alone = !job->shares || job->shares->n_lanes == 1;
	uint64_t size = request->count * table->row_bytes;
	bool large = lines && (size >= table->tuning.stream_bytes || (alone && size >= table->tuning.stream_alone));
	bool ordered = job->scratch && obmm_is_ordered(request);

	job->ahead = table->flags & OBMM_TABLE_NC ? 0 : ahead_of(table);
	if (obmm_is_hot(request))
		return obmm_gather_hot;
	if (table->flags & OBMM_TABLE_NC)
		return ordered ? uncached : uncached_in_order;
	/* Plain stores to rows all over the result cost more than the order gains. */
	if (ordered && large) {
		job->kernel = set->scatter;
		return in_address_order;
	}
	job->kernel = large && table->row_bytes >= table->tuning.stream_row ? set->stream : set->plain;
	return job->shares && job->shares->size <= OBMM_SHARE_ROWS ? in_order_ahead : in_order;
}

int obmm_copy_shares(struct obmm_gather_job *job)
{
	int (*way)(struct obmm_gather_job *job) = way_of(job);
	int result;

	if (job->request->table->flags & OBMM_TABLE_NC)
		obmm_order_load();
	do
		result = way(job);
	while (!result && way != in_order_ahead && obmm_next_share(job));
	return result;
}

/* How many rows a thread of so many takes at a time. */
static uint64_t share_rows(const struct obmm_request *request, unsigned int threads)
{
	uint64_t count = request->count, size;

	if (request->work)
		return request->work->chunk;
	/* a list costs one trip: the fewer, the better */
	if (request->table->fetch)
		return count / threads + 1 < OBMM_FETCH_ROWS ? count / threads + 1 : OBMM_FETCH_ROWS;
	if (obmm_is_ordered(request)) {
		/* sorting wants large pieces; two for each thread, so that one that comes late is not waited for */
		size = count / (2 * (uint64_t)threads) + 1;
		return threads == 1 || size > OBMM_TILE_ROWS ? OBMM_TILE_ROWS : size;
	}
	/* One thread shares with no other; what it was told meanwhile (abandoned, a check wanted) it sees in between. */
	if (threads == 1)
		return 1024;
	/* three for each thread: fewer would leave some without work at the end */
	size = (count / (3 * (uint64_t)threads) + 7) & ~7ull;
	return size < 8 ? 8 : size > OBMM_SHARE_ROWS ? OBMM_SHARE_ROWS : size;
}

void obmm_shares_make(struct obmm_shares *shares, const struct obmm_request *request, unsigned int threads)
{
	uint64_t size = share_rows(request, threads), at = 0, part;
	uint32_t n = threads < OBMM_LANES ? threads : OBMM_LANES;

	/* whole shares in every lane but the last, and no more in one than it takes for all of them */
	part = ((request->count + n - 1) / n + size - 1) / size * size;
	for (uint32_t lane = 0; lane < n; lane++) {
		uint64_t end = lane + 1 == n || request->count - at < part ? request->count : at + part;

		__atomic_store_n(&shares->lanes[lane].next, at, __ATOMIC_RELAXED);
		shares->lanes[lane].end = end;
		shares->lanes[lane].rows_read = shares->lanes[lane].rows_zero = shares->lanes[lane].rows_hot = 0;
		shares->lanes[lane].version = 0;
		at = end;
	}
	shares->size = size;
	shares->n_lanes = n;
	__atomic_store_n(&shares->stop, 0, __ATOMIC_RELAXED);
	__atomic_store_n(&shares->empty, !request->count, __ATOMIC_RELAXED);
}
