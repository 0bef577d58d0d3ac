/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the engine's files share: jobs.c runs gathers and ends them, tickets.c
 * submits them and waits, callers.c has those that are not submitted, engine.c
 * the worker threads.
 */
#ifndef OBMM_ENGINE_INTERNAL_H
#define OBMM_ENGINE_INTERNAL_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>

#include "engine.h"
#include "recheck.h"

enum { ENGINE_CALLER_SCRATCHES = 4 };

enum engine_job_state {
	JOB_FREE,
	JOB_QUEUED, /* waiting, or being gathered */
	JOB_READ,   /* gathered; whether the owner published meanwhile is not known yet */
	JOB_DONE,   /* the outcome is complete */
};

struct engine_job {
	const struct obmm_request *request;
	struct obmm_outcome *outcome;
	struct obmm_recheck *recheck; /* to be asked before it is done, or NULL */
	_Atomic int state;
	_Atomic bool abandoned;
	_Atomic int error;
	_Atomic uint64_t cursor;
	_Atomic uint64_t rows_read;
	_Atomic uint64_t rows_zero;
	_Atomic uint64_t rows_hot;
	_Atomic uint64_t version; /* of the first chunk, plus 1; 0: none yet */
	uint64_t chunk;
	uint64_t started_ns;
	struct obmm_fault fault; /* by whoever set error */
	/* under the engine's mutex: */
	unsigned int active;	 /* threads inside engine_run_chunk() */
	unsigned int joined;	 /* threads that ever were, but those that left for a check */
	unsigned int most;	 /* of them allowed */
	unsigned int waiters;	 /* threads that sleep until it is done */
	uint64_t serial;	 /* upper part of the ticket; odd while in use */
	struct engine_job *next; /* in the queue, the unchecked list or the free list */
	bool queued;
	pthread_cond_t ended;
};

struct engine_worker {
	struct obmm_engine *engine;
	pthread_t thread;
	struct obmm_scratch *scratch;
	unsigned int index;
};

struct obmm_engine {
	pthread_mutex_t mutex;
	pthread_cond_t work;
	pthread_cond_t exited;
	struct engine_job jobs[OBMM_TICKETS];
	struct engine_job *free_jobs;
	struct engine_job *head, *tail;	  /* the queue */
	struct engine_job *unchecked;	  /* those in JOB_READ that nobody checks yet */
	unsigned int unread;		  /* jobs in JOB_QUEUED */
	unsigned int in_use;
	unsigned int sleeping;
	unsigned int running; /* worker threads that have not ended */
	bool joined;
	_Atomic bool stopping;
	_Atomic bool check_wanted;	/* somebody waits for a job in `unchecked` */
	_Atomic uint64_t submissions;	/* what spinning workers watch */
	_Atomic uint64_t guard_seen_ns; /* when the guard was last found in front */
	uint64_t spin_ns;
	unsigned int threads;
	unsigned int pinned;
	unsigned int forks; /* of the process, when the engine was made */
	struct engine_worker *workers;
	struct obmm_scratch *scratches; /* the workers', then the callers' */
	_Atomic bool scratch_taken[ENGINE_CALLER_SCRATCHES];
};

/* ---- engine.c ---- */

uint64_t engine_now_ns(void);
void engine_relax(void);
/* Whether this process is a child that has the engine's memory and not its threads. */
bool engine_is_inherited(const struct obmm_engine *engine);
/* Mutex held.  Tell two workers; each tells two more when there is more than it can do. */
void engine_wake(struct obmm_engine *engine);
/* Mutex held.  pthread_cond_wait without a deadline; ETIMEDOUT or 0. */
int engine_wait_on(struct obmm_engine *engine, pthread_cond_t *cond, const struct timespec *deadline);
struct timespec engine_deadline_after(int64_t timeout_ns);

/* ---- callers.c ---- */

/* Whether obmm_guard_check() says that the guard is gone; asked every now and then. */
bool engine_guard_is_lost(struct obmm_engine *engine, uint64_t now);
unsigned int engine_useful_threads(const struct obmm_request *request, unsigned int wanted, unsigned int available);

/* ---- jobs.c ---- */

/* Gather a chunk of the job; false when none is left.  scratch may be NULL. */
bool engine_run_chunk(struct engine_job *job, struct obmm_scratch *scratch);

/* All with the mutex held. */
struct engine_job *engine_take_job(struct obmm_engine *engine, const struct obmm_request *request,
				   struct obmm_outcome *outcome, unsigned int threads);
void engine_give_job(struct obmm_engine *engine, struct engine_job *job);
void engine_enqueue(struct obmm_engine *engine, struct engine_job *job);
/* The first queued job that wants one more thread, or NULL. */
struct engine_job *engine_next_job(struct obmm_engine *engine);
/* The last thread to leave an exhausted job ends it; one that is not exhausted goes on with whoever comes. */
void engine_leave(struct obmm_engine *engine, struct engine_job *job);
/* A job that nobody runs ends at once, any other when its threads leave. */
void engine_abandon(struct obmm_engine *engine, struct engine_job *job);
/* For threads that are no workers, after engine_leave(): theirs may have been the last gather that checks wait for. */
void engine_call_checker(struct obmm_engine *engine);
/* Ask memory for the content version of what was read, without the mutex meanwhile. */
void engine_check_read(struct obmm_engine *engine);
/* Nobody will check any more: what is unchecked ends cancelled. */
void engine_cancel_unchecked(struct obmm_engine *engine);

#endif
