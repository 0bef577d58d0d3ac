/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A job is handed to a worker that spins by a word on a line of the worker's
 * own.  Through the line of jobs and a job's gate all workers write to the same
 * two words, one after the other: with fifteen of them that takes longer than
 * the rows of a small gather.
 *
 * A worker opens its hand while it spins.  One caller at a time puts a job
 * there, and takes back what was not taken before its gather ends: who does not
 * come is not waited for, and a word that is found later is never one of a job
 * that has ended.
 */
#include <sched.h>
#include <time.h>

#include "engine_internal.h"

enum {
	HAND_CLOSED,
	HAND_OPEN,
	HAND_TAKEN, /* the worker is at what it was handed */
	HAND_FULL,  /* and above: the serial number (32 bits), the job (8 at 16), the lane (14 at 2) */
	HAND_STATE = 3,
	MOST_NAP_NS = 10000000,
};

static uint64_t full(const struct obmm_engine *engine, const struct engine_job *job, unsigned int lane)
{
	return job->serial << 32 | (uint64_t)(job - engine->jobs) << 16 | (uint64_t)lane << 2 | HAND_FULL;
}

/* ---- workers ---- */

bool engine_hand_open(struct engine_worker *worker)
{
	uint64_t closed = HAND_CLOSED;

	return atomic_compare_exchange_strong(&worker->hand, &closed, HAND_OPEN);
}

bool engine_hand_is_open(const struct engine_worker *worker)
{
	return atomic_load_explicit(&worker->hand, memory_order_relaxed) == HAND_OPEN;
}

bool engine_hand_close(struct engine_worker *worker)
{
	uint64_t open = HAND_OPEN;

	/* taken back meanwhile, it is closed */
	return atomic_compare_exchange_strong(&worker->hand, &open, HAND_CLOSED) || open == HAND_CLOSED;
}

bool engine_hand_run(struct engine_worker *worker)
{
	uint64_t hand = atomic_load_explicit(&worker->hand, memory_order_relaxed);

	if ((hand & HAND_STATE) != HAND_FULL || !atomic_compare_exchange_strong(&worker->hand, &hand, HAND_TAKEN))
		return false;
	engine_worker_note_awake(worker);
	engine_job_help(worker, &worker->engine->jobs[hand >> 16 & 0xff], (unsigned int)(hand >> 2 & 0x3fff));
	atomic_store_explicit(&worker->hand, HAND_CLOSED, memory_order_release);
	return true;
}

/* ---- callers ---- */

void engine_hands_give(struct obmm_engine *engine, struct engine_job *job, unsigned int most, struct engine_hands *hands)
{
	hands->n = 0;
	if (atomic_load_explicit(&engine->giving, memory_order_relaxed) ||
	    atomic_exchange_explicit(&engine->giving, true, memory_order_acquire))
		return;
	for (unsigned int i = 0; i < engine->threads && hands->n < most; i++) {
		struct engine_worker *worker = &engine->workers[i];

		if (atomic_load_explicit(&worker->hand, memory_order_relaxed) != HAND_OPEN)
			continue;
		hands->workers[hands->n++] = (uint8_t)i;
		/* If it was closed in between, this is taken when the worker comes by, or taken back.  Lane 0 is the caller's. */
		atomic_store_explicit(&worker->hand, full(engine, job, hands->n), memory_order_release);
	}
	if (!hands->n)
		atomic_store_explicit(&engine->giving, false, memory_order_release);
}

static void be_patient(uint64_t *began)
{
	uint64_t now = obmm_now_ns(), nap;

	*began = *began ? *began : now;
	nap = (now - *began) / 8;
	nap = nap < MOST_NAP_NS ? nap : MOST_NAP_NS;
	if (now - *began > ENGINE_SLEEP_NS)
		nanosleep(&(struct timespec){ .tv_nsec = (long)nap }, NULL);
	else if (now - *began > ENGINE_LOOK_NS)
		sched_yield(); /* one of them may want this CPU */
	else
		engine_relax();
}

unsigned int engine_hands_await(struct obmm_engine *engine, const struct engine_job *job, struct engine_hands *hands)
{
	unsigned int came = 0;
	uint64_t began = 0;

	for (unsigned int i = 0; i < hands->n; i++) {
		struct engine_worker *worker = &engine->workers[hands->workers[i]];
		uint64_t given = full(engine, job, i + 1), hand = atomic_load_explicit(&worker->hand, memory_order_acquire);

		if (hand == given && atomic_compare_exchange_strong(&worker->hand, &hand, HAND_CLOSED))
			continue;
		while (hand == HAND_TAKEN) {
			be_patient(&began);
			hand = atomic_load_explicit(&worker->hand, memory_order_acquire);
		}
		came++;
	}
	if (hands->n)
		atomic_store_explicit(&engine->giving, false, memory_order_release);
	hands->n = 0;
	return came;
}
