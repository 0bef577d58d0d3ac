/* SPDX-License-Identifier: Apache-2.0 */
/* What comes before a gather's first row, and after its last one. */
#include "gather.h"

#include <errno.h>

#include "gather_job.h"
#include "places.h"

void obmm_tuning_default(struct obmm_tuning *tuning, uint32_t row_bytes, uint32_t flags)
{
	tuning->prefetch_bytes = flags & OBMM_TABLE_NC ? 0 : 32 << 10;
	tuning->stream_bytes = 4 << 20;
	tuning->stream_alone = UINT32_MAX;
	tuning->stream_row = 64;
	/* NC: every line is a trip over the fabric, so repeats are worth finding early */
	tuning->order_rows = flags & OBMM_TABLE_NC ? 256 : 8000;
	tuning->order_row = flags & OBMM_TABLE_NC ? 0 : flags & OBMM_TABLE_HUGE ? 512 : 256;
	tuning->row_ns = 20 + row_bytes / 6;
	tuning->most_threads = 0;
	tuning->node = 0;
	tuning->near_cpus = 0;
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

struct check {
	const struct obmm_request *request;
	struct obmm_outcome *outcome;
};

/* The ids are the caller's, and may lie in another node's memory. */
static int check_ids(void *arg)
{
	struct check *check = arg;
	const struct obmm_request *request = check->request;

	if (!request->head_offsets) {
		bool good = request->id_bytes == 4 ?
				    obmm_kernels()->in_range32(request->ids, request->count, request->table->rows) :
				    obmm_kernels()->in_range64(request->ids, request->count, request->table->rows);

		if (good)
			return 0;
	}
	return refuse(request, check->outcome);
}

static uint64_t table_bytes(const struct obmm_table *table)
{
	uint64_t last = table->rows - 1, segment = 0;

	if (table->rows_per_segment) {
		segment = last / table->rows_per_segment;
		last %= table->rows_per_segment;
	}
	return segment * table->segment_bytes + last * table->row_stride + table->row_bytes;
}

static bool overlap(const void *one, uint64_t size, const void *other, uint64_t length)
{
	uintptr_t a = (uintptr_t)one, b = (uintptr_t)other;

	return a < b + length && b < a + size;
}

static bool writes_what_it_reads(const struct obmm_request *request)
{
	const struct obmm_table *table = request->table;
	uint64_t size;

	if (!request->count)
		return false;
	size = (request->count - 1) * request->out_stride + table->row_bytes;
	if (overlap(request->out, size, request->ids, request->count * request->id_bytes))
		return true;
	return table->rows && !table->fetch && overlap(request->out, size, table->base, table_bytes(table));
}

int obmm_gather_check(const struct obmm_request *request, struct obmm_outcome *outcome)
{
	struct check check = { .request = request, .outcome = outcome };

	outcome->bad_index = -1;
	if (request->failures)
		obmm_failures_reset(request);
	if (request->work)
		return 0;
	if (writes_what_it_reads(request))
		return -EINVAL;
	if (request->invalid == OBMM_INVALID_ZERO)
		return 0;
	return obmm_guard_run(check_ids, &check, &outcome->fault);
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
