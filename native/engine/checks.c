/* SPDX-License-Identifier: Apache-2.0 */
/* What was read, and is asked about in memory before it is done. */
#include <errno.h>

#include "engine_internal.h"

bool engine_check_is_due(const struct obmm_engine *engine)
{
	return atomic_load_explicit(&engine->n_unchecked, memory_order_relaxed) &&
	       (!atomic_load(&engine->unread) || __atomic_load_n(&engine->check_wanted, __ATOMIC_RELAXED));
}

bool engine_check_want(struct obmm_engine *engine)
{
	return engine->unchecked && !__atomic_exchange_n(&engine->check_wanted, true, __ATOMIC_RELAXED);
}

void engine_check_later(struct obmm_engine *engine, struct engine_job *job)
{
	atomic_store_explicit(&job->state, JOB_READ, memory_order_relaxed);
	job->next = engine->unchecked;
	engine->unchecked = job;
	atomic_fetch_add(&engine->n_unchecked, 1);
	if (job->waiters)
		__atomic_store_n(&engine->check_wanted, true, __ATOMIC_RELAXED);
}

/* Mutex held.  Take the unchecked jobs that ask the same memory as the first one; without `recheck`, all of them. */
static struct engine_job *take(struct obmm_engine *engine, const struct obmm_recheck *recheck)
{
	struct engine_job **link = &engine->unchecked, *taken = NULL;

	while (*link) {
		struct engine_job *job = *link;

		if (recheck && job->recheck != recheck) {
			link = &job->next;
			continue;
		}
		*link = job->next;
		job->next = taken;
		taken = job;
		atomic_fetch_sub(&engine->n_unchecked, 1);
	}
	if (!engine->unchecked)
		__atomic_store_n(&engine->check_wanted, false, __ATOMIC_RELAXED);
	return taken;
}

static void finish_all(struct obmm_engine *engine, struct engine_job *job, int result, uint64_t version,
		       const struct obmm_fault *fault)
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
		engine_job_finish(engine, job);
		job = next;
	}
}

void engine_check_read(struct obmm_engine *engine)
{
	for (;;) {
		struct engine_job *jobs = NULL;
		struct obmm_fault fault = { 0 };
		uint64_t version = 0;
		int result;

		pthread_mutex_lock(&engine->mutex);
		if (engine->unchecked)
			jobs = take(engine, engine->unchecked->recheck);
		pthread_mutex_unlock(&engine->mutex);
		if (!jobs)
			return;
		result = obmm_recheck_run(jobs->recheck, &version, &fault);
		finish_all(engine, jobs, result, version, &fault);
	}
}

void engine_cancel_unchecked(struct obmm_engine *engine)
{
	struct engine_job *jobs;

	pthread_mutex_lock(&engine->mutex);
	jobs = take(engine, NULL);
	pthread_mutex_unlock(&engine->mutex);
	finish_all(engine, jobs, -ECANCELED, 0, NULL);
}
