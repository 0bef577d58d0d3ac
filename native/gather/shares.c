/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A thread's part of a gather: gates, guard and content version around as many
 * shares as it gets.  They cost what several rows do, so they are gone through
 * once, not for every share.
 */
#include <errno.h>

#include "gather_job.h"
#include "../access/order.h"
#include "../core/clock.h"
#include "places.h"

static bool take_of(struct obmm_gather_job *job, struct obmm_lane *lane)
{
	uint64_t size = job->shares->size, from;

	/* looked at first: what is over must not be written to by all */
	if (__atomic_load_n(&lane->next, __ATOMIC_RELAXED) >= lane->end)
		return false;
	from = __atomic_fetch_add(&lane->next, size, __ATOMIC_RELAXED);
	if (from >= lane->end)
		return false;
	job->next_from = from;
	job->next_to = lane->end - from < size ? lane->end : from + size;
	return true;
}

bool obmm_take_share(struct obmm_gather_job *job)
{
	struct obmm_shares *shares = job->shares;

	if (!shares || __atomic_load_n(&shares->stop, __ATOMIC_RELAXED) ||
	    __atomic_load_n(&shares->empty, __ATOMIC_RELAXED) ||
	    (job->leave && __atomic_load_n(job->leave, __ATOMIC_RELAXED)))
		return false;
	for (uint32_t i = 0; i < shares->n_lanes; i++) {
		if (take_of(job, &shares->lanes[job->lane]))
			return true;
		job->lane = job->lane + 1 < shares->n_lanes ? job->lane + 1 : 0;
	}
	__atomic_store_n(&shares->empty, 1, __ATOMIC_RELAXED);
	return false;
}

static void begin_share(struct obmm_gather_job *job)
{
	job->from = job->next_from;
	job->to = job->next_to;
	job->next_from = job->next_to = 0;
	job->rows_read = job->to - job->from;
	job->rows_zero = 0;
	job->rows_hot = 0;
}

bool obmm_next_share(struct obmm_gather_job *job)
{
	job->sum_read += job->rows_read - job->rows_zero - job->rows_hot;
	job->sum_zero += job->rows_zero;
	job->sum_hot += job->rows_hot;
	if (job->next_from == job->next_to && !obmm_take_share(job))
		return false;
	begin_share(job);
	return true;
}

static bool is_ahead_of_caches(const struct obmm_table *table, uint64_t version)
{
	uint64_t cached = table->cached ? __atomic_load_n(table->cached, __ATOMIC_RELAXED) : 0;

	return cached && cached != version;
}

/*
 * A row is of one generation when the sequence lock was even and the same
 * around the copy.  After a fault the run goes on: the shares before it are
 * good if the version is still theirs.
 */
static int run(void *arg)
{
	struct obmm_gather_job *job = arg;
	const struct obmm_table *table = job->request->table;
	uint64_t version;
	int result;

	job->copying = false;
	version = obmm_read_version(table);
	if (!job->versioned)
		job->version = version;
	job->versioned = true;
	if (version != job->version || version & 1 || is_ahead_of_caches(table, version))
		return -ESTALE;
	if (table->version)
		obmm_order_load();
	job->copying = true;
	result = job->copy(job);
	if (!result && job->copy != obmm_copy_shares) {
		job->copy = obmm_copy_shares;
		if (obmm_next_share(job))
			result = job->copy(job);
	}
	job->copying = false;
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

static int guarded(struct obmm_gather_job *job, struct obmm_outcome *outcome)
{
	const struct obmm_request *request = job->request;
	const struct obmm_table *table = request->table;
	const uint64_t began = table->delay ? obmm_now_ns() : 0;
	uint32_t entered = enter_gates(table);
	int result = -EBADF;

	job->copy = obmm_copy_shares;
	if (entered == table->n_gates)
		result = table->fetch ? obmm_fetch_shares(job, &outcome->fault) :
					obmm_guard_run(run, job, &outcome->fault);
	/* row by row through the share that has faulted; what faults there is not tried again */
	while (result == -EFAULT && request->failures && job->copying && job->copy == obmm_copy_shares) {
		obmm_spoil_rows_only(job);
		result = obmm_guard_run(run, job, &outcome->fault);
	}
	while (entered)
		obmm_gate_leave(table->gates[--entered]);
	outcome->version = job->version;
	if (!result) {
		outcome->rows_read += job->sum_read;
		outcome->rows_zero += job->sum_zero;
		outcome->rows_hot += job->sum_hot;
		if (table->delay && job->sum_read)
			obmm_delay_wait(began, table->delay->call_ns + job->sum_read * table->delay->row_ps / 1000);
	}
	return result;
}

int obmm_gather_range(const struct obmm_request *request, uint64_t from, uint64_t to, struct obmm_scratch *scratch,
		      struct obmm_outcome *outcome)
{
	struct obmm_gather_job job = { .request = request, .scratch = scratch, .next_from = from, .next_to = to };

	if (request->work)
		return request->work->run(request->work, from, to);
	begin_share(&job);
	return guarded(&job, outcome);
}

/* Guarded by itself. */
static int work(struct obmm_gather_job *job)
{
	struct obmm_work *work = job->request->work;
	int result;

	do
		result = work->run(work, job->from, job->to);
	while (!result && obmm_next_share(job));
	return result;
}

int obmm_gather_shares(const struct obmm_request *request, struct obmm_shares *shares, unsigned int lane,
		       const bool *leave, struct obmm_scratch *scratch, struct obmm_outcome *outcome)
{
	struct obmm_gather_job job = { .request = request,
				       .scratch = scratch,
				       .shares = shares,
				       .lane = lane % shares->n_lanes,
				       .leave = leave };

	if (!obmm_take_share(&job))
		return 1;
	begin_share(&job);
	if (request->work)
		return work(&job);
	return guarded(&job, outcome);
}

int obmm_shares_add(struct obmm_shares *shares, unsigned int lane, const struct obmm_outcome *part)
{
	struct obmm_lane *at = &shares->lanes[lane % shares->n_lanes];
	uint64_t unknown = 0;

	__atomic_fetch_add(&at->rows_read, part->rows_read, __ATOMIC_RELAXED);
	if (part->rows_zero)
		__atomic_fetch_add(&at->rows_zero, part->rows_zero, __ATOMIC_RELAXED);
	if (part->rows_hot)
		__atomic_fetch_add(&at->rows_hot, part->rows_hot, __ATOMIC_RELAXED);
	if (__atomic_compare_exchange_n(&at->version, &unknown, part->version + 1, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED))
		return 0;
	return unknown == part->version + 1 ? 0 : -ESTALE;
}

int obmm_shares_sum(const struct obmm_shares *shares, struct obmm_outcome *outcome)
{
	uint64_t first = 0;
	int result = 0;

	outcome->rows_read = outcome->rows_zero = outcome->rows_hot = 0;
	for (uint32_t i = 0; i < shares->n_lanes; i++) {
		const struct obmm_lane *lane = &shares->lanes[i];
		uint64_t version = __atomic_load_n(&lane->version, __ATOMIC_RELAXED);

		outcome->rows_read += __atomic_load_n(&lane->rows_read, __ATOMIC_RELAXED);
		outcome->rows_zero += __atomic_load_n(&lane->rows_zero, __ATOMIC_RELAXED);
		outcome->rows_hot += __atomic_load_n(&lane->rows_hot, __ATOMIC_RELAXED);
		first = first ? first : version;
		if (version && version != first)
			result = -ESTALE;
	}
	outcome->version = first ? first - 1 : 0;
	return result;
}
