/* SPDX-License-Identifier: Apache-2.0 */
/* Jobs: threads come in, gather, and leave; the last one ends it. */
#include <errno.h>

#include "engine_internal.h"
#include "nodes.h"

/* ---- in and out ---- */

bool engine_job_is_exhausted(const struct engine_job *job)
{
	return __atomic_load_n(&job->shares.empty, __ATOMIC_RELAXED) ||
	       __atomic_load_n(&job->shares.stop, __ATOMIC_RELAXED);
}

static bool lets_in(const struct engine_job *job, uint64_t gate, uint32_t serial)
{
	return GATE_SERIAL(gate) == serial && gate & GATE_OPEN &&
	       GATE_JOINED(gate) < atomic_load_explicit(&job->most, memory_order_relaxed) &&
	       !engine_job_is_exhausted(job);
}

bool engine_job_is_open(const struct engine_job *job, uint32_t serial)
{
	return lets_in(job, atomic_load(&job->gate), serial);
}

bool engine_job_is_far(const struct engine_job *job)
{
	uint32_t node = atomic_load_explicit(&job->node, memory_order_relaxed);

	return node && node != obmm_node_here() + 1;
}

bool engine_job_join(struct engine_job *job, uint32_t serial)
{
	uint64_t gate = atomic_load(&job->gate);

	do {
		if (!lets_in(job, gate, serial))
			return false;
	} while (!atomic_compare_exchange_weak(&job->gate, &gate, gate + GATE_ONE_JOINED + GATE_ONE_ACTIVE));
	return true;
}

/* The thread that succeeds ends the job: it is empty, and closed to others. */
static bool shut(struct engine_job *job, uint32_t serial, unsigned int inside)
{
	uint64_t gate = atomic_load(&job->gate);

	do {
		if (GATE_SERIAL(gate) != serial || !(gate & GATE_OPEN) || GATE_ACTIVE(gate) != inside)
			return false;
	} while (!atomic_compare_exchange_weak(&job->gate, &gate, gate & ~GATE_OPEN));
	return true;
}

/* ---- ends ---- */

static void write_outcome(const struct engine_job *job)
{
	struct obmm_outcome *outcome = job->outcome;
	int error = atomic_load(&job->error), mixed = obmm_shares_sum(&job->shares, outcome);
	bool complete = __atomic_load_n(&job->shares.empty, __ATOMIC_RELAXED);

	outcome->nanoseconds = obmm_now_ns() - job->started_ns;
	outcome->threads = (int32_t)(GATE_JOINED(atomic_load(&job->gate)) + job->handed);
	if (error)
		outcome->fault = job->fault;
	outcome->status = error ? error : mixed ? mixed : complete ? 0 : -ECANCELED;
}

void engine_job_finish(struct obmm_engine *engine, struct engine_job *job)
{
	const struct obmm_completion *then = &job->request->then;
	struct obmm_outcome *outcome = job->outcome;

	obmm_gather_finish(job->request, outcome);
	if (job->ticketed && then->call) {
		atomic_store_explicit(&job->state, JOB_ENDED, memory_order_relaxed);
		then->call(then->context, outcome);
	}
	/* under the mutex: a thread that sees the end may give ticket and outcome back as soon as it has the mutex */
	pthread_mutex_lock(&engine->mutex);
	atomic_store_explicit(&job->state, JOB_DONE, memory_order_release);
	/* last: who sees it collects the ticket without waiting */
	if (!outcome->status)
		__atomic_store_n(&outcome->ready, outcome->version + 1, __ATOMIC_RELEASE);
	if (job->waiters)
		pthread_cond_broadcast(&job->ended);
	pthread_mutex_unlock(&engine->mutex);
}

static void is_read(struct obmm_engine *engine)
{
	if (atomic_fetch_sub(&engine->unread, 1) == 1)
		engine_team_done(engine, obmm_now_ns());
}

static void end(struct obmm_engine *engine, struct engine_job *job)
{
	write_outcome(job);
	if (!job->recheck || job->outcome->status) {
		is_read(engine);
		engine_job_finish(engine, job);
		return;
	}
	pthread_mutex_lock(&engine->mutex);
	engine_check_later(engine, job);
	pthread_mutex_unlock(&engine->mutex);
	is_read(engine);
	if (atomic_load(&engine->stopping))
		engine_cancel_unchecked(engine);
}

void engine_job_end_own(struct obmm_engine *engine, struct engine_job *job)
{
	write_outcome(job);
	is_read(engine);
	obmm_gather_finish(job->request, job->outcome);
}

void engine_job_abandon(struct obmm_engine *engine, struct engine_job *job, uint32_t serial)
{
	if (shut(job, serial, 0))
		end(engine, job);
}

/* ---- gathering ---- */

static void gather(struct engine_job *job, unsigned int lane, const bool *leave, struct obmm_scratch *scratch,
		   struct obmm_thread_times *times)
{
	struct obmm_outcome part = { .rows_read = 0 };
	int result, added, none = 0;

	if (times)
		engine_note(&times->came, obmm_now_ns());
	result = obmm_gather_shares(job->request, &job->shares, lane, leave, scratch, &part);
	if (times) {
		engine_note(&times->last, obmm_now_ns());
		engine_note(&times->rows, part.rows_read);
	}
	if (result > 0)
		return;
	added = obmm_shares_add(&job->shares, lane, &part);
	result = result ? result : added;
	if (result && atomic_compare_exchange_strong(&job->error, &none, result))
		job->fault = part.fault;
	if (result)
		__atomic_store_n(&job->shares.stop, 1, __ATOMIC_RELAXED);
}

void engine_job_leave(struct obmm_engine *engine, struct engine_job *job)
{
	uint32_t serial = (uint32_t)job->serial;
	bool early = !engine_job_is_exhausted(job);
	uint64_t gone = early ? GATE_ONE_ACTIVE + GATE_ONE_JOINED : GATE_ONE_ACTIVE;
	uint64_t gate = atomic_fetch_sub(&job->gate, gone) - gone;

	/* from here on it may be another job */
	if (!GATE_ACTIVE(gate) && engine_job_is_exhausted(job) && shut(job, serial, 0)) {
		end(engine, job);
		return;
	}
	if (!early)
		return;
	pthread_mutex_lock(&engine->mutex);
	if ((uint32_t)job->serial == serial) {
		engine_line_put(engine, job); /* we come back, or another one comes */
		pthread_mutex_unlock(&engine->mutex);
		engine_team_call(engine, 1);
		return;
	}
	pthread_mutex_unlock(&engine->mutex);
}

void engine_job_help(struct engine_worker *worker, struct engine_job *job, unsigned int lane)
{
	struct obmm_engine *engine = worker->engine;

	gather(job, lane, &engine->check_wanted, worker->scratch, engine_times(engine, worker->index + 1));
	if (engine_job_is_exhausted(job))
		engine_team_has_enough(engine);
}

void engine_job_run(struct engine_worker *worker, struct engine_job *job)
{
	/* the first lane is the caller's */
	engine_job_help(worker, job, worker->index + 1);
	engine_job_leave(worker->engine, job);
}

bool engine_job_run_first(struct obmm_engine *engine, struct engine_job *job, struct obmm_scratch *scratch,
			  struct engine_hands *hands, bool (*wait)(struct engine_job *job))
{
	gather(job, 0, NULL, scratch, engine_times(engine, 0));
	job->handed = engine_hands_await(engine, job, hands);
	while (wait(job)) {
		if (shut(job, (uint32_t)job->serial, 1))
			return true;
	}
	return false;
}

/* ---- taken and given back, with the mutex held ---- */

struct engine_job *engine_take_job(struct obmm_engine *engine, const struct obmm_request *request,
				   struct obmm_outcome *outcome, unsigned int threads)
{
	struct engine_job *job = engine->free_jobs;

	engine->free_jobs = job->next;
	engine->in_use++;
	job->request = request;
	job->outcome = outcome;
	job->recheck = NULL;
	job->ticketed = false;
	job->serial++;
	job->started_ns = obmm_now_ns();
	obmm_shares_make(&job->shares, request, threads);
	atomic_store_explicit(&job->most, threads, memory_order_relaxed);
	atomic_store_explicit(&job->node, 0, memory_order_relaxed);
	atomic_store_explicit(&job->error, 0, memory_order_relaxed);
	job->handed = 0;
	atomic_store_explicit(&job->state, JOB_QUEUED, memory_order_relaxed);
	outcome->status = -EINPROGRESS;
	outcome->ready = 0;
	return job;
}

void engine_open_job(struct obmm_engine *engine, struct engine_job *job, unsigned int inside)
{
	atomic_fetch_add(&engine->unread, 1);
	atomic_store(&job->gate,
		     job->serial << 32 | GATE_OPEN | inside * (GATE_ONE_JOINED + GATE_ONE_ACTIVE));
	if (job->request->count && inside < atomic_load_explicit(&job->most, memory_order_relaxed))
		engine_line_put(engine, job);
}

void engine_give_job(struct obmm_engine *engine, struct engine_job *job)
{
	job->serial++;
	atomic_store(&job->state, JOB_FREE);
	job->next = engine->free_jobs;
	engine->free_jobs = job;
	engine->in_use--;
}
