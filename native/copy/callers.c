/* SPDX-License-Identifier: Apache-2.0 */
/* Gathers on the caller's thread, with workers that help. */
#include <errno.h>

#include "engine_internal.h"

enum { GUARD_NS = 20000 };

unsigned int engine_useful_threads(const struct obmm_request *request, unsigned int wanted, unsigned int available)
{
	uint64_t useful = wanted;

	if (!useful)
		useful = request->count / ((uint64_t)request->table->tuning.thread_rows + 1) + 1;
	return useful > available ? available : (unsigned int)useful;
}

/*
 * The guard's two system calls cost as much as ten small rows: between gathers
 * that follow each other within GUARD_NS they are not made again.
 */
bool engine_guard_is_lost(struct obmm_engine *engine, uint64_t now)
{
	if (now - atomic_load_explicit(&engine->guard_seen_ns, memory_order_relaxed) < GUARD_NS)
		return false;
	if (obmm_guard_check())
		return true;
	atomic_store_explicit(&engine->guard_seen_ns, now, memory_order_relaxed);
	return false;
}

/* NULL when more callers than that are at work: theirs are gathered as given. */
static struct obmm_scratch *borrow_scratch(struct obmm_engine *engine)
{
	for (int i = 0; i < ENGINE_CALLER_SCRATCHES; i++) {
		if (!atomic_exchange_explicit(&engine->scratch_taken[i], true, memory_order_acquire))
			return &engine->scratches[engine->threads + (unsigned int)i];
	}
	return NULL;
}

static void return_scratch(struct obmm_engine *engine, struct obmm_scratch *scratch)
{
	if (scratch)
		atomic_store_explicit(&engine->scratch_taken[scratch - engine->scratches - engine->threads], false,
				      memory_order_release);
}

static void gather_alone(const struct obmm_request *request, struct obmm_scratch *scratch, uint64_t started,
			 struct obmm_outcome *outcome)
{
	outcome->status = obmm_gather_range(request, 0, request->count, scratch, outcome);
	outcome->threads = 1;
	outcome->nanoseconds = engine_now_ns() - started;
	obmm_gather_finish(request, outcome);
}

static void gather_together(struct obmm_engine *engine, const struct obmm_request *request, unsigned int threads,
			    struct obmm_scratch *scratch, uint64_t started, struct obmm_outcome *outcome)
{
	struct engine_job *job;

	pthread_mutex_lock(&engine->mutex);
	if (!engine->free_jobs || engine->stopping) {
		pthread_mutex_unlock(&engine->mutex);
		gather_alone(request, scratch, started, outcome);
		return;
	}
	job = engine_take_job(engine, request, outcome, threads);
	job->active = 1;
	job->joined = 1;
	engine_enqueue(engine, job);
	engine_wake(engine);
	pthread_mutex_unlock(&engine->mutex);
	while (engine_run_chunk(job, scratch))
		;
	pthread_mutex_lock(&engine->mutex);
	engine_leave(engine, job);
	engine_call_checker(engine);
	while (atomic_load(&job->state) != JOB_DONE)
		pthread_cond_wait(&job->ended, &engine->mutex);
	engine_give_job(engine, job);
	pthread_mutex_unlock(&engine->mutex);
}

int64_t obmm_engine_gather(struct obmm_engine *engine, const struct obmm_request *request, unsigned int threads,
			   struct obmm_outcome *outcome)
{
	unsigned int helpers = engine_is_inherited(engine) ? 0 : engine->threads;
	uint64_t started = engine_now_ns();
	struct obmm_scratch *scratch;

	outcome->rows_read = 0;
	outcome->rows_zero = 0;
	outcome->rows_hot = 0;
	if (atomic_load_explicit(&engine->stopping, memory_order_relaxed))
		return outcome->status = -ESHUTDOWN;
	outcome->status = engine_guard_is_lost(engine, started) ? -EUNATCH : obmm_gather_check(request, outcome);
	if (outcome->status == -ERANGE)
		obmm_gather_finish(request, outcome);
	if (outcome->status)
		return outcome->status;
	threads = engine_useful_threads(request, threads, helpers + 1);
	scratch = request->count >= request->table->tuning.order_rows ? borrow_scratch(engine) : NULL;
	if (threads > 1 && request->count)
		gather_together(engine, request, threads, scratch, started, outcome);
	else
		gather_alone(request, scratch, started, outcome);
	return_scratch(engine, scratch);
	return outcome->status ? outcome->status : (int64_t)outcome->rows_read;
}

int64_t obmm_engine_call(const struct obmm_call *call)
{
	return obmm_engine_gather(call->engine, call->request, 0, call->outcome);
}
