/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The second run through a range that has faulted: row by row, each behind a
 * guard of its own.  A gather that does not fault never comes here, so asking
 * for failures costs it nothing.
 */
#include <errno.h>
#include <string.h>

#include "gather_job.h"
#include "../access/nc.h"
#include "places.h"

struct row {
	const uint8_t *src;
	uint8_t *dst;
	size_t bytes;
	bool nc;
};

void obmm_failures_reset(const struct obmm_request *request)
{
	struct obmm_failures *failures = request->failures;

	memset(failures->rows, 0, request->count);
	memset(&failures->first, 0, sizeof(failures->first));
	memset(failures->spoiled, -1, sizeof(failures->spoiled));
	__atomic_store_n(&failures->failed, 0, __ATOMIC_RELAXED);
	__atomic_store_n(&failures->faults, 0, __ATOMIC_RELAXED);
}

void obmm_failures_judge(struct obmm_failures *failures, struct obmm_outcome *outcome)
{
	if (outcome->status) {
		failures->failed = 0;
	} else if (failures->failed) {
		outcome->status = -EFAULT;
		outcome->fault = failures->first;
	}
}

static int copy_row(void *arg)
{
	const struct row *row = arg;
	struct obmm_batch batch = { .src = &row->src, .out = row->dst, .row_bytes = row->bytes, .n = 1 };

	if (row->nc)
		obmm_nc_read(row->dst, row->src, row->bytes);
	else
		obmm_kernels()->plain(&batch);
	return 0;
}

static bool is_spoiled(const struct obmm_failures *failures, int64_t number)
{
	uint64_t faults = __atomic_load_n(&failures->faults, __ATOMIC_RELAXED);

	for (uint64_t i = 0; i < faults && i < OBMM_MOST_FAULTS; i++) {
		if (__atomic_load_n(&failures->spoiled[i], __ATOMIC_RELAXED) == number)
			return true;
	}
	return false;
}

/* All threads of a gather together may meet OBMM_MOST_FAULTS. */
static bool is_given_up(const struct obmm_failures *failures)
{
	return __atomic_load_n(&failures->faults, __ATOMIC_RELAXED) >= OBMM_MOST_FAULTS;
}

/* Whether the row could be read; otherwise it is spoiled from now on. */
static bool try_row(struct obmm_failures *failures, struct row *row, int64_t number)
{
	struct obmm_fault fault;
	uint64_t before;

	if (is_spoiled(failures, number))
		return false;
	if (!obmm_guard_run(copy_row, row, &fault))
		return true;
	before = __atomic_fetch_add(&failures->faults, 1, __ATOMIC_RELAXED);
	if (!before)
		failures->first = fault;
	if (before < OBMM_MOST_FAULTS)
		__atomic_store_n(&failures->spoiled[before], number, __ATOMIC_RELAXED);
	return false;
}

static int row_by_row(struct obmm_gather_job *job)
{
	const struct obmm_request *request = job->request;
	const struct obmm_table *table = request->table;
	struct row row = { .bytes = table->row_bytes, .nc = table->flags & OBMM_TABLE_NC };
	bool hot = obmm_is_hot(request);
	uint64_t failed = 0;

	for (uint64_t i = job->from; i < job->to; i++) {
		int64_t number = obmm_row_at(request, i);

		row.dst = request->out + i * request->out_stride;
		if (number < 0) {
			memset(row.dst, 0, row.bytes);
			job->rows_zero++;
			continue;
		}
		if (hot && obmm_hot_get(request->hot, (uint64_t)number, job->version, row.dst)) {
			job->rows_hot++;
			continue;
		}
		row.src = obmm_row_address(table, (uint64_t)number);
		if (try_row(request->failures, &row, number))
			continue;
		if (is_given_up(request->failures))
			return -EFAULT;
		memset(row.dst, 0, row.bytes);
		request->failures->rows[i] = 1;
		failed++;
	}
	job->rows_read -= failed;
	__atomic_fetch_add(&request->failures->failed, failed, __ATOMIC_RELAXED);
	return 0;
}

void obmm_spoil_rows_only(struct obmm_gather_job *job)
{
	job->rows_read = job->to - job->from;
	job->rows_zero = 0;
	job->rows_hot = 0;
	job->copy = row_by_row;
}
