/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>

#include "engine_internal.h"

enum { WAIT_NS = 50000 };

static uint64_t ticket_of(const struct obmm_engine *engine, const struct engine_job *job)
{
	return job->serial * OBMM_TICKETS + (uint64_t)(job - engine->jobs);
}

/* Mutex held; NULL for a ticket that was given back. */
static struct engine_job *job_of(struct obmm_engine *engine, uint64_t ticket)
{
	struct engine_job *job = &engine->jobs[ticket % OBMM_TICKETS];

	return job->serial == ticket / OBMM_TICKETS && job->serial & 1 ? job : NULL;
}

int obmm_engine_submit(struct obmm_engine *engine, const struct obmm_request *requests, unsigned int n,
		       unsigned int threads, struct obmm_outcome *outcomes, uint64_t *tickets, unsigned int *bad)
{
	unsigned int wanted = 0;

	if (engine_is_inherited(engine))
		return -EOWNERDEAD;
	engine_look_at_guard(engine, obmm_now_ns());
	for (unsigned int i = 0; i < n; i++) {
		outcomes[i].status = obmm_gather_check(&requests[i], &outcomes[i]);
		if (outcomes[i].status) {
			obmm_gather_finish(&requests[i], &outcomes[i]);
			*bad = i;
			return outcomes[i].status;
		}
	}
	pthread_mutex_lock(&engine->mutex);
	if (OBMM_TICKETS - engine->in_use < n || !engine->threads || engine->stopping) {
		int result = engine->stopping ? -ESHUTDOWN : -EAGAIN;

		pthread_mutex_unlock(&engine->mutex);
		return result;
	}
	for (unsigned int i = 0; i < n; i++) {
		unsigned int useful = engine_useful_threads(&requests[i], threads, engine->threads);
		struct engine_job *job = engine_take_job(engine, &requests[i], &outcomes[i], useful);

		tickets[i] = ticket_of(engine, job);
		job->ticketed = true;
		job->recheck = requests[i].count ? requests[i].recheck : NULL;
		engine_open_job(engine, job, 0);
		wanted += requests[i].count ? useful : 0;
	}
	pthread_mutex_unlock(&engine->mutex);
	for (unsigned int i = 0; i < n; i++) {
		if (!requests[i].count)
			engine_job_abandon(engine, &engine->jobs[tickets[i] % OBMM_TICKETS],
					   (uint32_t)(tickets[i] / OBMM_TICKETS));
	}
	if (wanted)
		engine_team_call(engine, wanted);
	return 0;
}

/* A worker that is about to end spares us the sleep, if it has a CPU to end on. */
static void spin_for_end(const struct obmm_engine *engine, struct engine_job *job)
{
	uint64_t until = obmm_now_ns() + (engine_team_has_room(engine) ? WAIT_NS : engine->spin_ns);

	while (atomic_load_explicit(&job->state, memory_order_acquire) == JOB_QUEUED && obmm_now_ns() < until)
		engine_relax();
}

/* Mutex held. */
static int wait_for_end(struct obmm_engine *engine, uint64_t ticket, int64_t timeout_ns)
{
	struct timespec deadline = { .tv_sec = 0 };
	bool late = !timeout_ns;

	if (timeout_ns > 0)
		deadline = engine_deadline_after(timeout_ns);
	for (;;) {
		struct engine_job *job = job_of(engine, ticket);
		int state;

		if (!job)
			return -ESTALE;
		state = atomic_load(&job->state);
		if (state == JOB_DONE)
			return 0;
		/* who only looks wants it too: otherwise it would never be checked beside a gather that hangs */
		if (state == JOB_READ && engine_check_want(engine))
			engine_team_call(engine, 1);
		if (late)
			return -ETIMEDOUT;
		job->waiters++;
		late = engine_wait_on(engine, &job->ended, timeout_ns < 0 ? NULL : &deadline) == ETIMEDOUT;
		job->waiters--;
	}
}

int obmm_ticket_wait(struct obmm_engine *engine, uint64_t ticket, int64_t timeout_ns)
{
	int result;

	if (engine_is_inherited(engine))
		return -EOWNERDEAD;
	if (timeout_ns)
		spin_for_end(engine, &engine->jobs[ticket % OBMM_TICKETS]);
	pthread_mutex_lock(&engine->mutex);
	result = wait_for_end(engine, ticket, timeout_ns);
	pthread_mutex_unlock(&engine->mutex);
	return result;
}

int obmm_ticket_collect(struct obmm_engine *engine, uint64_t ticket, int64_t timeout_ns)
{
	struct engine_job *job = &engine->jobs[ticket % OBMM_TICKETS];
	int result;

	if (engine_is_inherited(engine))
		return -EOWNERDEAD;
	if (!timeout_ns && atomic_load_explicit(&job->state, memory_order_relaxed) == JOB_QUEUED)
		return -ETIMEDOUT;
	if (timeout_ns)
		spin_for_end(engine, job);
	pthread_mutex_lock(&engine->mutex);
	result = wait_for_end(engine, ticket, timeout_ns);
	if (!result)
		engine_give_job(engine, job);
	pthread_mutex_unlock(&engine->mutex);
	return result;
}

int obmm_ticket_abandon(struct obmm_engine *engine, uint64_t ticket)
{
	struct engine_job *job;
	bool queued;

	if (engine_is_inherited(engine))
		return -EOWNERDEAD;
	pthread_mutex_lock(&engine->mutex);
	job = job_of(engine, ticket);
	queued = job && atomic_load(&job->state) == JOB_QUEUED;
	if (queued)
		__atomic_store_n(&job->shares.stop, 1, __ATOMIC_RELAXED);
	pthread_mutex_unlock(&engine->mutex);
	if (queued)
		engine_job_abandon(engine, job, (uint32_t)(ticket / OBMM_TICKETS));
	if (engine_check_is_due(engine))
		engine_team_call(engine, 1);
	return job ? 0 : -ESTALE;
}

int obmm_ticket_release(struct obmm_engine *engine, uint64_t ticket)
{
	struct engine_job *job;
	int result = 0;

	if (engine_is_inherited(engine))
		return -EOWNERDEAD;
	pthread_mutex_lock(&engine->mutex);
	job = job_of(engine, ticket);
	if (!job)
		result = -ESTALE;
	else if (atomic_load(&job->state) != JOB_DONE)
		result = -EBUSY;
	else
		engine_give_job(engine, job);
	pthread_mutex_unlock(&engine->mutex);
	return result;
}
