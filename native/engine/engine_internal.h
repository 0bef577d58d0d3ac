/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the engine's files share.  A gather that several threads may take part
 * in is a job.  line.c says which job is next, hands.c gives one to workers
 * that spin, jobs.c lets threads in and out and ends jobs, checks.c asks memory about what was read, team.c has the
 * workers that wait, guesses.c says for how long, tickets.c what is submitted, callers.c what is not.
 *
 * Threads come and go without the mutex: on the way of a small gather it would
 * cost more than the rows.
 */
#ifndef OBMM_ENGINE_INTERNAL_H
#define OBMM_ENGINE_INTERNAL_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>

#include "engine.h"
#include "timeline.h"
#include "../access/recheck.h"
#include "../core/clock.h"

enum {
	ENGINE_CALLER_SCRATCHES = 4,
	ENGINE_LINE = 1024,
	ENGINE_LOOK_NS = 20000,	  /* that long the last shares of others are waited for without giving the CPU away */
	ENGINE_SLEEP_NS = 300000, /* ... and without sleeping */
	ENGINE_EXPECT_NS = 500000, /* a gather that does not come for so long is not waited for awake */
	ENGINE_GUESS_NS = 5000000, /* what may be saved of what guesses may cost */
};

enum engine_job_state {
	JOB_FREE,
	JOB_QUEUED, /* waiting, or being gathered */
	JOB_READ,   /* gathered; whether the owner published meanwhile is not known yet */
	JOB_ENDED,  /* the outcome is complete, and is being told (struct obmm_completion) */
	JOB_DONE,   /* all threads may see it */
};

/*
 * Who may come in and who is in, in one word: the ticket's serial number (32
 * bits), whether it is open (1), how many ever joined but those that left early
 * (15), and how many are in (16).  A thread with an old serial number
 * finds another one and goes.
 */
#define GATE_ONE_ACTIVE 1ull
#define GATE_ONE_JOINED (1ull << 16)
#define GATE_OPEN (1ull << 31)
#define GATE_ACTIVE(gate) ((unsigned int)((gate) & 0xffff))
#define GATE_JOINED(gate) ((unsigned int)((gate) >> 16 & 0x7fff))
#define GATE_SERIAL(gate) ((uint32_t)((gate) >> 32))

struct engine_job {
	_Atomic uint64_t gate __attribute__((aligned(64)));
	struct obmm_shares shares;
	/* Read by who passes by, so that they may be those of the job before or after. */
	_Atomic unsigned int most __attribute__((aligned(64))); /* threads */
	_Atomic uint32_t node;	   /* plus 1: only workers there take part; 0: all */
	_Atomic int state;
	/* Added to by every thread that leaves. */
	_Atomic int error __attribute__((aligned(64)));
	struct obmm_fault fault; /* by the thread that set error */
	/* Constant while the job is in use. */
	const struct obmm_request *request __attribute__((aligned(64)));
	struct obmm_outcome *outcome;
	struct obmm_recheck *recheck; /* to be asked before it is done, or NULL */
	uint64_t started_ns;
	unsigned int handed; /* workers that it was handed to, and that came; by its caller */
	bool ticketed;	     /* submitted, not gathered by its caller */
	/* under the engine's mutex: */
	unsigned int waiters;	 /* threads that sleep until it is done */
	uint64_t serial;	 /* upper part of the ticket; odd while in use */
	struct engine_job *next; /* in the unchecked list or the free list */
	pthread_cond_t ended;
};

struct engine_worker {
	/* On a line of its own: what all workers wrote to would be what a hand-over takes. */
	_Atomic uint64_t hand __attribute__((aligned(64))); /* hands.c */
	_Atomic bool spinning;
	_Atomic uint64_t spun_ns; /* so far */
	_Atomic uint64_t idle_ns; /* the part of it that no gather followed */
	bool counted;		  /* in the team's `ready` */
	bool spun;		  /* it did not sleep before what it does now, */
	uint64_t seen_ns;	  /* ... which it saw then; for timeline.h */
	struct obmm_engine *engine;
	pthread_t thread;
	struct obmm_scratch *scratch;
	unsigned int index;
};

/* Jobs in the order in which they were submitted.  Put in under the mutex, looked at and taken out by anybody. */
struct engine_line {
	_Atomic uint64_t head __attribute__((aligned(64)));
	_Atomic uint64_t tail __attribute__((aligned(64)));
	_Atomic uint64_t entries[ENGINE_LINE];
};

/* The workers that have nothing to do. */
struct engine_team {
	uint32_t word __attribute__((aligned(64))); /* changes when there is something to look at; a futex */
	_Atomic uint64_t expected_ns;		    /* until then a gather may come any moment */
	/* Changed when workers go to sleep or wake up. */
	_Atomic unsigned int ready __attribute__((aligned(64))); /* workers that spin, or did before the gather that they are in */
	_Atomic unsigned int sleeping;
	_Atomic unsigned int wanted; /* workers that should be awake for what is expected */
	_Atomic unsigned int room;   /* workers that may be ready at once: what is left of the limit when CPUs are busy */
	_Atomic unsigned int limit;
	_Atomic uint64_t grown_ns; /* when room was changed last */
	_Atomic int64_t crowd_ns;  /* losses of CPUs while spinning, less what spinning there was; raced for */
	/* Changed by callers: whether gathers follow each other without being announced; guesses, raced for. */
	_Atomic uint64_t done_ns __attribute__((aligned(64)));
	_Atomic unsigned int streak; /* gathers that came soon after the one before */
	_Atomic uint64_t gap_ns;     /* between them, as a rule */
	_Atomic uint64_t took_ns;    /* the longer ones of them, by several threads */
	_Atomic uint64_t paid_ns;    /* when budget_ns grew last */
	_Atomic bool guessed;	     /* expected_ns is a guess */
	_Atomic unsigned int rows;   /* of gathers that go on (obmm_engine_begin_row()) */
	_Atomic int64_t budget_ns __attribute__((aligned(64))); /* what wrong guesses may still cost all workers together */
};

struct obmm_engine {
	pthread_mutex_t mutex;
	pthread_cond_t exited;
	struct engine_job jobs[OBMM_TICKETS];
	struct engine_line line;
	struct engine_team team;
	struct engine_job *free_jobs;
	struct engine_job *unchecked; /* those in JOB_READ whose check has not begun */
	_Atomic unsigned int n_unchecked;
	_Atomic unsigned int unread; /* jobs in JOB_QUEUED */
	bool check_wanted;	     /* somebody waits for a job in `unchecked`; atomic builtins */
	unsigned int in_use;
	unsigned int running; /* worker threads that have not ended */
	bool joined;
	_Atomic bool stopping;
	_Atomic uint64_t guard_seen_ns; /* when the guard was last looked at */
	uint64_t spin_ns;
	unsigned int threads;
	unsigned int pinned;
	unsigned int forks; /* of the process, when the engine was made */
	_Atomic(struct obmm_timeline *) timeline; /* NULL unless a benchmark watches */
	_Atomic(struct obmm_timeline *) times;	  /* ... which was made for the first one */
	struct engine_worker *workers;
	struct obmm_scratch *scratches; /* the workers', then the callers' */
	_Atomic bool scratch_taken[ENGINE_CALLER_SCRATCHES];
	_Atomic bool giving; /* a caller has workers' hands, hands.c */
};

/* What a caller has handed out. */
struct engine_hands {
	unsigned int n;
	uint8_t workers[OBMM_MAX_THREADS];
};

/* ---- engine.c ---- */

void engine_relax(void);
/* For timeline.h: the worker begins a job. */
void engine_worker_note_awake(const struct engine_worker *worker);
/* Whether this process is a child that has the engine's memory and not its threads. */
bool engine_is_inherited(const struct obmm_engine *engine);
/* Mutex held.  pthread_cond_wait without a deadline; ETIMEDOUT or 0. */
int engine_wait_on(struct obmm_engine *engine, pthread_cond_t *cond, const struct timespec *deadline);
struct timespec engine_deadline_after(int64_t timeout_ns);

/* What a thread does now (timeline.h): who is 0 for a caller, a worker's index plus 1. */
static inline struct obmm_thread_times *engine_times(struct obmm_engine *engine, unsigned int who)
{
	struct obmm_timeline *timeline = atomic_load_explicit(&engine->timeline, memory_order_relaxed);

	return timeline ? &timeline->threads[who] : NULL;
}

static inline void engine_note(uint64_t *at, uint64_t value)
{
	__atomic_store_n(at, value, __ATOMIC_RELAXED);
}

/* ---- line.c ---- */

/* Mutex held. */
void engine_line_put(struct obmm_engine *engine, const struct engine_job *job);
/* Join the first job in line that wants one more thread; NULL: there is none. */
struct engine_job *engine_line_join(struct obmm_engine *engine);
/* Whether there is one. */
bool engine_line_waits(struct obmm_engine *engine);

/* ---- hands.c ---- */

/* By a worker: a caller may hand it a job from now on.  False: one has. */
bool engine_hand_open(struct engine_worker *worker);
/* Nothing was handed to it since then. */
bool engine_hand_is_open(const struct engine_worker *worker);
/* From now on none will be.  False: one was. */
bool engine_hand_close(struct engine_worker *worker);
/* Gather what was handed to it; false when nothing is. */
bool engine_hand_run(struct engine_worker *worker);

/* By a caller that has opened a job, or is about to: hand it to up to `most` workers that spin. */
void engine_hands_give(struct obmm_engine *engine, struct engine_job *job, unsigned int most, struct engine_hands *hands);
/* Take it back from those that did not come, wait for those that did: how many did. */
unsigned int engine_hands_await(struct obmm_engine *engine, const struct engine_job *job, struct engine_hands *hands);

/* ---- team.c ---- */

void engine_team_init(struct obmm_engine *engine);
/* What a worker does when it has found nothing to do since the word was `seen`. */
void engine_team_wait(struct engine_worker *worker, uint32_t seen);
uint32_t engine_team_word(const struct obmm_engine *engine);
/* There is something to look at for `wanted` workers: those that spin see it, of the others at most two are woken. */
void engine_team_call(struct obmm_engine *engine, unsigned int wanted);
/* The same for a job that its caller works at: workers that are ready, but kept elsewhere, are not replaced. */
void engine_team_call_to_help(struct obmm_engine *engine, unsigned int wanted);
/* By a worker that has joined a job: others may be needed for what waits in line. */
void engine_team_call_more(struct obmm_engine *engine);
/* There is something that all workers must look at. */
void engine_team_call_all(struct obmm_engine *engine);
/* Workers may spin for a gather until now + within_ns, `room` of them; the first of those that sleep is woken. */
void engine_team_expect(struct obmm_engine *engine, uint64_t now, uint64_t within_ns, bool guessed, unsigned int room);
/* How many may spin now: more of them after a time without trouble. */
unsigned int engine_team_room(struct engine_team *team, uint64_t now);
/* A worker has spun for so long, and perhaps lost its CPU then.  One that lost it sleeps, whatever the others do. */
void engine_team_judge(struct engine_team *team, uint64_t now, uint64_t spun_ns, bool lost);
/* For a thread that waits for others: is a CPU likely to be free for them meanwhile? */
bool engine_team_has_room(const struct obmm_engine *engine);

/* ---- guesses.c ---- */

/*
 * A gather begins that was not submitted and that so many threads are good for: how many workers spin, to be with it at
 * once?  If too few do, and if gathers come one right after the other, others are woken for the next ones.
 */
unsigned int engine_team_begins(struct obmm_engine *engine, uint64_t now, unsigned int threads);
/* The gather that was announced has all the threads it is good for, or no share left: nobody else spins for it any more. */
void engine_team_has_enough(struct obmm_engine *engine);
/* Several threads have gathered: for how long. */
void engine_team_has_gathered(struct obmm_engine *engine, const struct obmm_outcome *outcome);
/* It has ended, on its caller's thread. */
void engine_team_was_not_needed(struct obmm_engine *engine, uint64_t now);
/* Nothing is left to gather: workers stop spinning, unless the next gather is likely to come at once. */
void engine_team_done(struct obmm_engine *engine, uint64_t now);

/* ---- callers.c ---- */

/* obmm_guard_look(), every now and then. */
void engine_look_at_guard(struct obmm_engine *engine, uint64_t now);
/* Threads for a request that does not say: what its table has learned, `available` at most. */
unsigned int engine_useful_threads(const struct obmm_request *request, unsigned int wanted, unsigned int available);

/* ---- jobs.c ---- */

bool engine_job_is_exhausted(const struct engine_job *job);
/* Would engine_job_join() let a thread in? */
bool engine_job_is_open(const struct engine_job *job, uint32_t serial);
/* Its rows lie near other CPUs than the one that we run on, and enough of those there are. */
bool engine_job_is_far(const struct engine_job *job);
/* Come in; false when the job is another one by now, needs no more threads, or has nothing left. */
bool engine_job_join(struct engine_job *job, uint32_t serial);
/*
 * Gather as much of a joined job as this thread gets, and leave it.  The last one to leave an exhausted job ends it;
 * one that is not exhausted goes on with the next thread.
 */
void engine_job_run(struct engine_worker *worker, struct engine_job *job);
/* The same without joining and leaving: its caller waits for this worker (hands.c). */
void engine_job_help(struct engine_worker *worker, struct engine_job *job, unsigned int lane);

/* For its caller: the part that comes before leaving; whether it has become the only one in and has shut the job. */
bool engine_job_run_first(struct obmm_engine *engine, struct engine_job *job, struct obmm_scratch *scratch,
			  struct engine_hands *hands, bool (*wait)(struct engine_job *job));
void engine_job_leave(struct obmm_engine *engine, struct engine_job *job);
/* The caller's job, shut by engine_job_run_first(): write its outcome. */
void engine_job_end_own(struct obmm_engine *engine, struct engine_job *job);

/* Mutex held. */
struct engine_job *engine_take_job(struct obmm_engine *engine, const struct obmm_request *request,
				   struct obmm_outcome *outcome, unsigned int threads);
void engine_give_job(struct obmm_engine *engine, struct engine_job *job);
/* Open a job that was taken; `inside` threads are in it already. */
void engine_open_job(struct obmm_engine *engine, struct engine_job *job, unsigned int inside);

/* Mutex not held, here and below.  No more shares are taken; an empty job ends at once. */
void engine_job_abandon(struct obmm_engine *engine, struct engine_job *job, uint32_t serial);
/* The outcome is complete: tell, and let all threads see it. */
void engine_job_finish(struct obmm_engine *engine, struct engine_job *job);

/* ---- checks.c ---- */

/* Checks wait until all is read, or somebody waits: one answer of memory is good for everything read before it. */
bool engine_check_is_due(const struct obmm_engine *engine);
/* Mutex held: the job is read, and waits to be checked. */
void engine_check_later(struct obmm_engine *engine, struct engine_job *job);
/* Ask memory for the content version of what was read. */
void engine_check_read(struct obmm_engine *engine);
/* Mutex held: somebody wants to know; does a worker have to be called? */
bool engine_check_want(struct obmm_engine *engine);
/* No more checks will follow: what is unchecked ends cancelled. */
void engine_cancel_unchecked(struct obmm_engine *engine);

#endif
