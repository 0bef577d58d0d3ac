/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>

#include "engine_internal.h"

/* ---- gathering ---- */

bool engine_run_chunk(struct engine_job *job, struct obmm_scratch *scratch)
{
	const struct obmm_request *request = job->request;
	struct obmm_outcome part = { .rows_read = 0 };
	uint64_t from, to;
	int result, none = 0;
	uint64_t unknown = 0;

	if (atomic_load_explicit(&job->abandoned, memory_order_relaxed) ||
	    atomic_load_explicit(&job->error, memory_order_relaxed))
		return false;
	from = atomic_fetch_add_explicit(&job->cursor, job->chunk, memory_order_relaxed);
	if (from >= request->count)
		return false;
	to = request->count - from < job->chunk ? request->count : from + job->chunk;
	result = obmm_gather_range(request, from, to, scratch, &part);
	atomic_fetch_add_explicit(&job->rows_read, part.rows_read, memory_order_relaxed);
	atomic_fetch_add_explicit(&job->rows_zero, part.rows_zero, memory_order_relaxed);
	atomic_fetch_add_explicit(&job->rows_hot, part.rows_hot, memory_order_relaxed);
	if (!atomic_compare_exchange_strong(&job->version, &unknown, part.version + 1) &&
	    unknown != part.version + 1 && !result)
		result = -ESTALE;
	if (result && atomic_compare_exchange_strong(&job->error, &none, result))
		job->fault = part.fault;
	return true;
}

/* ---- the queue ---- */

static bool is_exhausted(const struct engine_job *job)
{
	return atomic_load_explicit(&job->cursor, memory_order_relaxed) >= job->request->count ||
	       atomic_load_explicit(&job->abandoned, memory_order_relaxed) ||
	       atomic_load_explicit(&job->error, memory_order_relaxed);
}

static void unqueue(struct obmm_engine *engine, struct engine_job *job)
{
	struct engine_job **link = &engine->head, *before = NULL;

	if (!job->queued)
		return;
	while (*link != job) {
		before = *link;
		link = &before->next;
	}
	*link = job->next;
	if (engine->tail == job)
		engine->tail = before;
	job->queued = false;
}

void engine_enqueue(struct obmm_engine *engine, struct engine_job *job)
{
	job->next = NULL;
	job->queued = true;
	if (engine->tail)
		engine->tail->next = job;
	else
		engine->head = job;
	engine->tail = job;
}

struct engine_job *engine_next_job(struct obmm_engine *engine)
{
	struct engine_job *job = engine->head;

	while (job && (job->joined >= job->most || is_exhausted(job)))
		job = job->next;
	return job;
}

struct engine_job *engine_take_job(struct obmm_engine *engine, const struct obmm_request *request,
				   struct obmm_outcome *outcome, unsigned int threads)
{
	struct engine_job *job = engine->free_jobs;

	engine->free_jobs = job->next;
	engine->in_use++;
	engine->unread++;
	job->request = request;
	job->outcome = outcome;
	job->recheck = NULL;
	job->chunk = obmm_gather_chunk(request, threads);
	job->most = threads;
	job->active = 0;
	job->joined = 0;
	job->serial++;
	job->started_ns = engine_now_ns();
	atomic_store(&job->abandoned, false);
	atomic_store(&job->error, 0);
	atomic_store(&job->cursor, 0);
	atomic_store(&job->rows_read, 0);
	atomic_store(&job->rows_zero, 0);
	atomic_store(&job->rows_hot, 0);
	atomic_store(&job->version, 0);
	atomic_store(&job->state, JOB_QUEUED);
	outcome->status = -EINPROGRESS;
	outcome->ready = 0;
	return job;
}

void engine_give_job(struct obmm_engine *engine, struct engine_job *job)
{
	job->serial++;
	atomic_store(&job->state, JOB_FREE);
	job->next = engine->free_jobs;
	engine->free_jobs = job;
	engine->in_use--;
}

/* ---- ends ---- */

static void write_outcome(struct engine_job *job)
{
	struct obmm_outcome *outcome = job->outcome;
	bool complete = atomic_load(&job->cursor) >= job->request->count;
	int error = atomic_load(&job->error);

	outcome->rows_read = atomic_load(&job->rows_read);
	outcome->rows_zero = atomic_load(&job->rows_zero);
	outcome->rows_hot = atomic_load(&job->rows_hot);
	outcome->nanoseconds = engine_now_ns() - job->started_ns;
	outcome->threads = (int32_t)job->joined;
	outcome->version = atomic_load(&job->version) ? atomic_load(&job->version) - 1 : 0;
	if (error)
		outcome->fault = job->fault;
	outcome->status = error ? error : complete ? 0 : -ECANCELED;
}

static void finish(struct engine_job *job)
{
	obmm_gather_finish(job->request, job->outcome);
	atomic_store_explicit(&job->state, JOB_DONE, memory_order_release);
	/* last: who sees it collects the ticket without waiting */
	if (!job->outcome->status)
		__atomic_store_n(&job->outcome->ready, job->outcome->version + 1, __ATOMIC_RELEASE);
	pthread_cond_broadcast(&job->ended);
}

void engine_leave(struct obmm_engine *engine, struct engine_job *job)
{
	job->active--;
	if (!is_exhausted(job)) {
		job->joined--; /* it comes back, or another one comes */
		engine_wake(engine);
		return;
	}
	if (job->active)
		return;
	unqueue(engine, job);
	engine->unread--;
	write_outcome(job);
	if (!job->recheck || job->outcome->status) {
		finish(job);
		return;
	}
	atomic_store_explicit(&job->state, JOB_READ, memory_order_relaxed);
	job->next = engine->unchecked;
	engine->unchecked = job;
	if (job->waiters)
		atomic_store_explicit(&engine->check_wanted, true, memory_order_relaxed);
	if (engine->stopping)
		engine_cancel_unchecked(engine);
}

void engine_abandon(struct obmm_engine *engine, struct engine_job *job)
{
	atomic_store(&job->abandoned, true);
	if (!job->active) {
		job->active = 1;
		engine_leave(engine, job);
	}
}

/* ---- what was read, checked ---- */

/* Take the unchecked jobs that ask the same memory as the first one. */
static struct engine_job *take_companions(struct obmm_engine *engine)
{
	const struct obmm_recheck *recheck = engine->unchecked->recheck;
	struct engine_job **link = &engine->unchecked, *taken = NULL;

	while (*link) {
		struct engine_job *job = *link;

		if (job->recheck != recheck) {
			link = &job->next;
			continue;
		}
		*link = job->next;
		job->next = taken;
		taken = job;
	}
	if (!engine->unchecked)
		atomic_store_explicit(&engine->check_wanted, false, memory_order_relaxed);
	return taken;
}

static void finish_all(struct engine_job *job, int result, uint64_t version, const struct obmm_fault *fault)
{
	while (job) {
		struct engine_job *next = job->next;

		if (!result && version != job->outcome->version)
			job->outcome->status = -ESTALE;
		else
			job->outcome->status = result;
		if (result == -EFAULT)
			job->outcome->fault = *fault;
		if (!result)
			job->outcome->version = version;
		finish(job);
		job = next;
	}
}

void engine_call_checker(struct obmm_engine *engine)
{
	if (engine->unchecked && !engine->unread)
		engine_wake(engine);
}

void engine_check_read(struct obmm_engine *engine)
{
	while (engine->unchecked) {
		struct engine_job *jobs = take_companions(engine);
		struct obmm_fault fault = { 0 };
		uint64_t version = 0;
		int result;

		pthread_mutex_unlock(&engine->mutex);
		result = obmm_recheck_run(jobs->recheck, &version, &fault);
		pthread_mutex_lock(&engine->mutex);
		finish_all(jobs, result, version, &fault);
	}
}

void engine_cancel_unchecked(struct obmm_engine *engine)
{
	struct engine_job *jobs = engine->unchecked;

	engine->unchecked = NULL;
	atomic_store_explicit(&engine->check_wanted, false, memory_order_relaxed);
	finish_all(jobs, -ECANCELED, 0, NULL);
}
