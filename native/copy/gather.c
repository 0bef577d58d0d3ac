/* SPDX-License-Identifier: Apache-2.0 */
#include "gather.h"

#include <errno.h>
#include <string.h>

#include "gather_job.h"
#include "nc.h"
#include "order.h"
#include "places.h"
#include "sort.h"

enum { MIN_AHEAD = 4 };

void obmm_tuning_default(struct obmm_tuning *tuning, uint32_t row_bytes, uint32_t flags)
{
	tuning->prefetch_bytes = flags & OBMM_TABLE_NC ? 0 : 32 << 10;
	tuning->stream_bytes = 4 << 20;
	tuning->stream_row = 64;
	/* NC: every line is a trip over the fabric, so repeats are worth finding early */
	tuning->order_rows = flags & OBMM_TABLE_NC ? 256 : 8000;
	tuning->order_row = flags & OBMM_TABLE_NC ? 0 : flags & OBMM_TABLE_HUGE ? 512 : 256;
	tuning->thread_rows = row_bytes >= 1024 ? 1000 : 1000 * 1024 / (row_bytes + 64);
}

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

static int refuse(const struct obmm_request *request, struct obmm_outcome *outcome)
{
	for (uint64_t i = 0; i < request->count; i++) {
		if (obmm_id_is_known(request, obmm_id_at(request, i), request->columns ? i % request->columns : 0))
			continue;
		outcome->bad_index = (int64_t)i;
		outcome->bad_id = obmm_id_at(request, i);
		return -ERANGE;
	}
	return 0;
}

int obmm_gather_check(const struct obmm_request *request, struct obmm_outcome *outcome)
{
	outcome->bad_index = -1;
	if (request->failures)
		obmm_failures_reset(request);
	if (request->invalid == OBMM_INVALID_ZERO)
		return 0;
	if (!request->head_offsets) {
		bool good = request->id_bytes == 4 ?
				    obmm_kernels()->in_range32(request->ids, request->count, request->table->rows) :
				    obmm_kernels()->in_range64(request->ids, request->count, request->table->rows);

		if (good)
			return 0;
	}
	return refuse(request, outcome);
}

/* ---- the three ways through a range ---- */

static size_t count_null(const uint8_t *const *src, size_t n)
{
	size_t nulls = 0;

	for (size_t i = 0; i < n; i++)
		nulls += !src[i];
	return nulls;
}

static struct obmm_batch batch_for(const struct obmm_gather_job *job, const uint8_t *const *src)
{
	const struct obmm_table *table = job->request->table;

	return (struct obmm_batch){
		.src = src,
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
	struct obmm_batch batch = batch_for(job, src);
	uint64_t at = job->from, resolved = at;
	size_t have = 0;

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
	struct obmm_batch batch = batch_for(job, src);

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

static bool is_ordered(const struct obmm_request *request)
{
	const struct obmm_table *table = request->table;

	return request->count >= table->tuning.order_rows && table->row_bytes >= table->tuning.order_row &&
	       table->rows <= UINT32_MAX;
}

static int copy_rows(struct obmm_gather_job *job)
{
	const struct obmm_request *request = job->request;
	const struct obmm_table *table = request->table;
	const struct obmm_kernels *set = obmm_kernels();
	bool packed = request->out_stride == table->row_bytes;
	bool lines = !((uintptr_t)request->out & (OBMM_LINE - 1)) &&
		     (packed || !((request->out_stride | table->row_bytes) & (OBMM_LINE - 1)));
	bool large = lines && request->count * table->row_bytes >= table->tuning.stream_bytes;
	bool ordered = job->scratch && is_ordered(request);

	if (obmm_is_hot(request)) {
		job->ahead = table->flags & OBMM_TABLE_NC ? 0 : ahead_of(table);
		return obmm_gather_hot(job);
	}
	if (table->flags & OBMM_TABLE_NC) {
		obmm_order_load();
		return ordered ? uncached(job) : uncached_in_order(job);
	}
	job->ahead = ahead_of(table);
	/* Plain stores to rows all over the result cost more than the order gains. */
	if (ordered && large) {
		job->kernel = set->scatter;
		return in_address_order(job);
	}
	job->kernel = large && table->row_bytes >= table->tuning.stream_row ? set->stream : set->plain;
	return in_order(job);
}

static bool is_ahead_of_caches(const struct obmm_table *table, uint64_t version)
{
	uint64_t cached = table->cached ? __atomic_load_n(table->cached, __ATOMIC_RELAXED) : 0;

	return cached && cached != version;
}

/* A row is of one generation when the sequence lock was even and the same around the copy. */
static int run(void *arg)
{
	struct obmm_gather_job *job = arg;
	const struct obmm_table *table = job->request->table;
	int result;

	job->version = obmm_read_version(table);
	if (job->version & 1 || is_ahead_of_caches(table, job->version))
		return -ESTALE;
	if (table->version)
		obmm_order_load();
	result = job->copy(job);
	if (table->version)
		obmm_order_load();
	return obmm_read_version(table) == job->version ? result : -ESTALE;
}

static uint32_t enter_gates(const struct obmm_table *table)
{
	uint32_t entered = 0;

	while (entered < table->n_gates && !obmm_gate_enter(table->gates[entered]))
		entered++;
	return entered;
}

int obmm_gather_range(const struct obmm_request *request, uint64_t from, uint64_t to, struct obmm_scratch *scratch,
		      struct obmm_outcome *outcome)
{
	const struct obmm_table *table = request->table;
	struct obmm_gather_job job = {
		.request = request, .from = from, .to = to, .scratch = scratch, .rows_read = to - from, .copy = copy_rows
	};
	uint32_t entered = enter_gates(table);
	int result = -EBADF;

	if (entered == table->n_gates)
		result = obmm_guard_run(run, &job, &outcome->fault);
	if (result == -EFAULT && request->failures) {
		obmm_spoil_rows_only(&job);
		result = obmm_guard_run(run, &job, &outcome->fault);
	}
	while (entered)
		obmm_gate_leave(table->gates[--entered]);
	outcome->version = job.version;
	if (!result) {
		outcome->rows_read += job.rows_read - job.rows_zero - job.rows_hot;
		outcome->rows_zero += job.rows_zero;
		outcome->rows_hot += job.rows_hot;
	}
	return result;
}

uint64_t obmm_gather_chunk(const struct obmm_request *request, unsigned int threads)
{
	uint64_t share = request->count / threads + 1;

	/* Sorting wants large pieces, balance small ones. */
	if (is_ordered(request))
		return share < OBMM_TILE_ROWS ? share : OBMM_TILE_ROWS;
	/* One thread has nobody to share with; what it was told meanwhile (abandoned, a check wanted) it sees in between. */
	if (threads == 1)
		return share < 1024 ? share : 1024;
	share = (share / 8 + 63) & ~63ull;
	return share < 64 ? 64 : share > 4096 ? 4096 : share;
}

static void add(uint64_t *total, uint64_t n)
{
	if (n)
		__atomic_fetch_add(total, n, __ATOMIC_RELAXED);
}

void obmm_gather_finish(const struct obmm_request *request, struct obmm_outcome *outcome)
{
	struct obmm_totals *totals = request->table->totals;

	if (request->failures)
		obmm_failures_judge(request->failures, outcome);
	if (!totals)
		return;
	switch (outcome->status) {
	case 0:
		add(&totals->gathers, 1);
		add(&totals->ids, request->count);
		add(&totals->rows_read, outcome->rows_read);
		add(&totals->rows_zero, outcome->rows_zero);
		add(&totals->rows_hot, outcome->rows_hot);
		add(&totals->rows_missed, obmm_is_hot(request) ? outcome->rows_read : 0);
		add(&totals->nanoseconds, outcome->nanoseconds);
		break;
	case -ERANGE:
		add(&totals->refused, 1);
		break;
	case -EFAULT:
		add(&totals->faults, 1);
		break;
	case -ESTALE:
		add(&totals->stale, 1);
		break;
	default:
		add(&totals->cancelled, 1);
	}
}
