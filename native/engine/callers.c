/* SPDX-License-Identifier: Apache-2.0 */
/* Gathers on the caller's thread, with workers that help. */
#include <errno.h>
#include <sched.h>

#include "engine_internal.h"
#include "pace.h"

enum { GUARD_NS = 20000, WORTH_WAKING_NS = 100000 };

/*
 * Looking whether the guard is in front costs as much as ten small rows: gathers
 * that follow each other within GUARD_NS do not look again.
 */
void engine_look_at_guard(struct obmm_engine *engine, uint64_t now)
{
	if (now - atomic_load_explicit(&engine->guard_seen_ns, memory_order_relaxed) < GUARD_NS)
		return;
	obmm_guard_look();
	atomic_store_explicit(&engine->guard_seen_ns, now, memory_order_relaxed);
}

static unsigned int planned_threads(const struct obmm_request *request, unsigned int available, bool ready, bool tries)
{
	const struct obmm_table *table = request->table;
	unsigned int most = table->tuning.most_threads;

	return obmm_pace_choose(table->pace, request->count, ready, most && most < available ? most : available,
				table->tuning.row_ns, tries);
}

/* Waking more workers than spin costs the caller a system call: what those that do are done with in less has no use for it. */
static unsigned int without_waking(const struct obmm_request *request, unsigned int threads, unsigned int there)
{
	uint64_t work = request->count * request->table->tuning.row_ns;

	return there && there + 1 < threads && work / (there + 1) < WORTH_WAKING_NS ? there + 1 : threads;
}

unsigned int engine_useful_threads(const struct obmm_request *request, unsigned int wanted, unsigned int available)
{
	if (!wanted)
		return planned_threads(request, available, true, false);
	return wanted < available ? wanted : available;
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
	outcome->nanoseconds = obmm_now_ns() - started;
	obmm_gather_finish(request, outcome);
}

/* Until the others have copied what they took; false when that takes long. */
static bool wait_for_others(struct engine_job *job)
{
	uint64_t began = 0, now = 0;

	while (GATE_ACTIVE(atomic_load(&job->gate)) > 1) {
		for (int i = 0; i < 4; i++)
			engine_relax();
		now = obmm_now_ns();
		began = began ? began : now;
		if (now - began > ENGINE_SLEEP_NS)
			return false;
		if (now - began > ENGINE_LOOK_NS)
			sched_yield(); /* one of them may want this CPU */
	}
	return true;
}

static void gather_together(struct obmm_engine *engine, const struct obmm_request *request, unsigned int threads,
			    struct obmm_scratch *scratch, uint64_t started, struct obmm_outcome *outcome)
{
	struct engine_job *job;
	struct engine_hands hands = { .n = 0 };
	bool near = threads <= request->table->tuning.near_cpus;

	pthread_mutex_lock(&engine->mutex);
	if (!engine->free_jobs || engine->stopping) {
		pthread_mutex_unlock(&engine->mutex);
		gather_alone(request, scratch, started, outcome);
		return;
	}
	job = engine_take_job(engine, request, outcome, threads);
	job->started_ns = started;
	if (near && request->table->tuning.node)
		atomic_store_explicit(&job->node, request->table->tuning.node, memory_order_relaxed);
	else
		engine_hands_give(engine, job, threads - 1, &hands);
	atomic_store_explicit(&job->most, threads - hands.n, memory_order_relaxed);
	engine_open_job(engine, job, 1);
	pthread_mutex_unlock(&engine->mutex);
	if (hands.n == threads - 1)
		engine_team_has_enough(engine);
	/* workers that spin and are not needed have to see that they are too many */
	if (hands.n < threads - 1 || hands.n < atomic_load(&engine->team.ready))
		engine_team_call_to_help(engine, threads - 1);
	if (engine_job_run_first(engine, job, scratch, &hands, wait_for_others)) {
		engine_job_end_own(engine, job);
		pthread_mutex_lock(&engine->mutex);
	} else {
		engine_job_leave(engine, job);
		pthread_mutex_lock(&engine->mutex);
		job->waiters++;
		while (atomic_load(&job->state) != JOB_DONE)
			pthread_cond_wait(&job->ended, &engine->mutex);
		job->waiters--;
	}
	engine_give_job(engine, job);
	pthread_mutex_unlock(&engine->mutex);
	engine_team_has_gathered(engine, outcome);
	/* this may have been the last gather that checks wait for, or one that far workers left alone, and what is behind it */
	if (engine_check_is_due(engine) || (request->table->tuning.node && engine_line_waits(engine)))
		engine_team_call(engine, 1);
}

int64_t obmm_engine_gather(struct obmm_engine *engine, const struct obmm_request *request, unsigned int threads,
			   struct obmm_outcome *outcome)
{
	const struct obmm_table *table = request->table;
	bool inherited = engine_is_inherited(engine), planned = !threads, ready = false;
	unsigned int there = 0;
	unsigned int helpers = inherited ? 0 : engine->threads;
	uint64_t started = obmm_now_ns();
	struct obmm_thread_times *times = engine_times(engine, 0);
	struct obmm_scratch *scratch;

	outcome->rows_read = 0;
	outcome->rows_zero = 0;
	outcome->rows_hot = 0;
	if (atomic_load_explicit(&engine->stopping, memory_order_relaxed))
		return outcome->status = -ESHUTDOWN;
	engine_look_at_guard(engine, started);
	outcome->status = obmm_gather_check(request, outcome);
	if (outcome->status) {
		obmm_gather_finish(request, outcome);
		return outcome->status;
	}
	if (helpers && request->count) {
		unsigned int useful = planned ? engine_useful_threads(request, 0, helpers + 1) : threads;

		there = engine_team_begins(engine, started, useful);
		ready = there > 0;
		if (planned)
			threads = without_waking(request, planned_threads(request, helpers + 1, ready, true), there);
	}
	threads = threads > helpers + 1 ? helpers + 1 : threads;
	scratch = request->count >= table->tuning.order_rows ? borrow_scratch(engine) : NULL;
	if (threads > 1 && request->count)
		gather_together(engine, request, threads, scratch, started, outcome);
	else
		gather_alone(request, scratch, started, outcome);
	if (times) {
		engine_note(&times->awake, started);
		engine_note(&times->spun, there);
		engine_note(&times->room, atomic_load_explicit(&engine->team.room, memory_order_relaxed));
		engine_note(&times->ended, started + outcome->nanoseconds);
	}
	return_scratch(engine, scratch);
	if (helpers && threads <= 1)
		engine_team_was_not_needed(engine, started + outcome->nanoseconds);
	/* a team that was half there says nothing about one that is */
	if (planned && !outcome->status && (!ready || 2 * there + 1 >= threads))
		obmm_pace_learn(table->pace, request->count, ready, threads ? threads : 1, outcome->nanoseconds);
	return outcome->status ? outcome->status : (int64_t)outcome->rows_read;
}

int64_t obmm_engine_call(const struct obmm_call *call)
{
	return obmm_engine_gather(call->engine, call->request, 0, call->outcome);
}
