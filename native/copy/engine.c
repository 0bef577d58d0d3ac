/* SPDX-License-Identifier: Apache-2.0 */
#include "engine.h"

#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

enum { CALLER_SCRATCHES = 4, GUARD_NS = 20000 };

enum job_state { JOB_FREE, JOB_QUEUED, JOB_DONE };

struct job {
	const struct obmm_request *request;
	struct obmm_outcome *outcome;
	_Atomic int state;
	_Atomic bool abandoned;
	_Atomic int error;
	_Atomic uint64_t cursor;
	_Atomic uint64_t rows_read;
	_Atomic uint64_t rows_zero;
	_Atomic uint64_t version; /* of the first chunk, plus 1; 0: none yet */
	uint64_t chunk;
	uint64_t started_ns;
	struct obmm_fault fault; /* by whoever set error */
	/* under the engine's mutex: */
	unsigned int active;	 /* threads inside run_chunks() */
	unsigned int joined;	 /* threads that ever were */
	unsigned int most;	 /* of them allowed */
	uint64_t serial;	 /* upper part of the ticket; odd while in use */
	struct job *next;	 /* in the queue or the free list */
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
	struct job jobs[OBMM_TICKETS];
	struct job *free_jobs;
	struct job *head, *tail;
	unsigned int in_use;
	unsigned int sleeping;
	unsigned int running; /* worker threads that have not ended */
	bool joined;
	_Atomic bool stopping;
	_Atomic uint64_t submissions; /* what spinning workers watch */
	_Atomic uint64_t guard_seen_ns; /* when the guard was last found in front */
	uint64_t spin_ns;
	unsigned int threads;
	unsigned int pinned;
	unsigned int forks; /* of the process, when the engine was made */
	struct engine_worker *workers;
	struct obmm_scratch *scratches; /* the workers', then the callers' */
	_Atomic bool scratch_taken[CALLER_SCRATCHES];
};

static _Atomic unsigned int process_forks;
static pthread_once_t fork_once = PTHREAD_ONCE_INIT;

static void count_fork(void)
{
	atomic_fetch_add_explicit(&process_forks, 1, memory_order_relaxed);
}

static void watch_forks(void)
{
	pthread_atfork(NULL, NULL, count_fork);
}

static bool is_inherited(const struct obmm_engine *engine)
{
	return engine->forks != atomic_load_explicit(&process_forks, memory_order_relaxed);
}

static uint64_t now_ns(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

static inline void relax(void)
{
#if defined(__x86_64__)
	__builtin_ia32_pause();
#elif defined(__aarch64__)
	__asm__ volatile("yield");
#endif
}

/* ---- running a job ---- */

static void run_chunks(struct job *job, struct obmm_scratch *scratch)
{
	const struct obmm_request *request = job->request;

	for (;;) {
		struct obmm_outcome part = { .rows_read = 0 };
		uint64_t from, to;
		int result, none = 0;
		uint64_t unknown = 0;

		if (atomic_load_explicit(&job->abandoned, memory_order_relaxed) ||
		    atomic_load_explicit(&job->error, memory_order_relaxed))
			return;
		from = atomic_fetch_add_explicit(&job->cursor, job->chunk, memory_order_relaxed);
		if (from >= request->count)
			return;
		to = request->count - from < job->chunk ? request->count : from + job->chunk;
		result = obmm_gather_range(request, from, to, scratch, &part);
		atomic_fetch_add_explicit(&job->rows_read, part.rows_read, memory_order_relaxed);
		atomic_fetch_add_explicit(&job->rows_zero, part.rows_zero, memory_order_relaxed);
		if (!atomic_compare_exchange_strong(&job->version, &unknown, part.version + 1) &&
		    unknown != part.version + 1 && !result)
			result = -ESTALE;
		if (result && atomic_compare_exchange_strong(&job->error, &none, result))
			job->fault = part.fault;
	}
}

static bool is_exhausted(const struct job *job)
{
	return atomic_load_explicit(&job->cursor, memory_order_relaxed) >= job->request->count ||
	       atomic_load_explicit(&job->abandoned, memory_order_relaxed) ||
	       atomic_load_explicit(&job->error, memory_order_relaxed);
}

static void unqueue(struct obmm_engine *engine, struct job *job)
{
	struct job **link = &engine->head, *before = NULL;

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

static void enqueue(struct obmm_engine *engine, struct job *job)
{
	job->next = NULL;
	job->queued = true;
	if (engine->tail)
		engine->tail->next = job;
	else
		engine->head = job;
	engine->tail = job;
}

static void write_outcome(struct job *job, bool complete)
{
	struct obmm_outcome *outcome = job->outcome;
	int error = atomic_load(&job->error);

	outcome->rows_read = atomic_load(&job->rows_read);
	outcome->rows_zero = atomic_load(&job->rows_zero);
	outcome->nanoseconds = now_ns() - job->started_ns;
	outcome->threads = (int32_t)job->joined;
	outcome->version = atomic_load(&job->version) ? atomic_load(&job->version) - 1 : 0;
	if (error)
		outcome->fault = job->fault;
	outcome->status = error ? error : complete ? 0 : -ECANCELED;
	obmm_gather_finish(job->request, outcome);
}

/* Mutex held.  The last thread to leave an exhausted job ends it. */
static void leave(struct obmm_engine *engine, struct job *job)
{
	job->active--;
	if (!is_exhausted(job) || job->active)
		return;
	unqueue(engine, job);
	write_outcome(job, atomic_load(&job->cursor) >= job->request->count);
	atomic_store_explicit(&job->state, JOB_DONE, memory_order_release);
	pthread_cond_broadcast(&job->ended);
}

/* Mutex held.  A job that nobody runs ends at once, any other when its threads leave. */
static void abandon(struct obmm_engine *engine, struct job *job)
{
	atomic_store(&job->abandoned, true);
	if (!job->active) {
		job->active = 1;
		leave(engine, job);
	}
}

/* Mutex held. */
static struct job *next_job(struct obmm_engine *engine)
{
	struct job *job = engine->head;

	while (job && (job->joined >= job->most || is_exhausted(job)))
		job = job->next;
	return job;
}

/* ---- workers ---- */

static void spin_for_work(struct obmm_engine *engine, uint64_t seen)
{
	uint64_t until = now_ns() + engine->spin_ns;

	while (atomic_load_explicit(&engine->submissions, memory_order_relaxed) == seen && now_ns() < until)
		relax();
}

static void *work(void *arg)
{
	struct engine_worker *worker = arg;
	struct obmm_engine *engine = worker->engine;
	char name[16];

	snprintf(name, sizeof(name), "obmm-gather-%u", worker->index % 1000);
	pthread_setname_np(pthread_self(), name);
	pthread_mutex_lock(&engine->mutex);
	while (!engine->stopping) {
		struct job *job = next_job(engine);

		if (!job && engine->spin_ns) {
			uint64_t seen = atomic_load_explicit(&engine->submissions, memory_order_relaxed);

			pthread_mutex_unlock(&engine->mutex);
			spin_for_work(engine, seen);
			pthread_mutex_lock(&engine->mutex);
			job = next_job(engine);
		}
		if (!job) {
			if (engine->stopping)
				break;
			engine->sleeping++;
			pthread_cond_wait(&engine->work, &engine->mutex);
			engine->sleeping--;
			continue;
		}
		job->active++;
		job->joined++;
		pthread_mutex_unlock(&engine->mutex);
		run_chunks(job, worker->scratch);
		pthread_mutex_lock(&engine->mutex);
		leave(engine, job);
	}
	engine->running--;
	pthread_cond_broadcast(&engine->exited);
	pthread_mutex_unlock(&engine->mutex);
	return NULL;
}

/* Mutex held. */
static void wake(struct obmm_engine *engine, unsigned int helpers)
{
	atomic_fetch_add_explicit(&engine->submissions, 1, memory_order_relaxed);
	if (helpers >= engine->sleeping) {
		if (engine->sleeping)
			pthread_cond_broadcast(&engine->work);
		return;
	}
	while (helpers--)
		pthread_cond_signal(&engine->work);
}

static int start_worker(struct obmm_engine *engine, unsigned int i, const int *cpus, unsigned int n_cpus)
{
	struct engine_worker *worker = &engine->workers[i];
	sigset_t blocked, saved;
	int result;

	worker->engine = engine;
	worker->index = i;
	worker->scratch = &engine->scratches[i];
	/* The process's signals belong to its own threads; a fault stays with the thread that made it. */
	sigfillset(&blocked);
	sigdelset(&blocked, SIGBUS);
	sigdelset(&blocked, SIGSEGV);
	sigdelset(&blocked, SIGFPE);
	sigdelset(&blocked, SIGILL);
	sigdelset(&blocked, SIGTRAP);
	sigdelset(&blocked, SIGABRT);
	pthread_sigmask(SIG_SETMASK, &blocked, &saved);
	result = pthread_create(&worker->thread, NULL, work, worker);
	pthread_sigmask(SIG_SETMASK, &saved, NULL);
	if (!result && n_cpus) {
		cpu_set_t set;

		CPU_ZERO(&set);
		CPU_SET((size_t)cpus[i % n_cpus], &set);
		engine->pinned += !pthread_setaffinity_np(worker->thread, sizeof(set), &set);
	}
	return -result;
}

static size_t scratch_bytes(const struct obmm_engine *engine)
{
	return (engine->threads + CALLER_SCRATCHES) * sizeof(struct obmm_scratch);
}

static void free_engine(struct obmm_engine *engine)
{
	if (engine->scratches)
		munmap(engine->scratches, scratch_bytes(engine));
	free(engine->workers);
	free(engine);
}

static void init_conds(struct obmm_engine *engine)
{
	pthread_condattr_t monotonic;

	pthread_condattr_init(&monotonic);
	pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
	pthread_cond_init(&engine->work, &monotonic);
	pthread_cond_init(&engine->exited, &monotonic);
	for (int i = 0; i < OBMM_TICKETS; i++)
		pthread_cond_init(&engine->jobs[i].ended, &monotonic);
	pthread_condattr_destroy(&monotonic);
	pthread_mutex_init(&engine->mutex, NULL);
}

int obmm_engine_create(unsigned int threads, uint64_t spin_ns, const int *cpus, unsigned int n_cpus,
		       struct obmm_engine **out)
{
	struct obmm_engine *engine;
	int result = 0;

	if (threads > OBMM_MAX_THREADS)
		return -EINVAL;
	for (unsigned int i = 0; i < n_cpus; i++) {
		if (cpus[i] < 0 || cpus[i] >= CPU_SETSIZE)
			return -EINVAL;
	}
	engine = calloc(1, sizeof(*engine));
	if (!engine)
		return -ENOMEM;
	engine->threads = threads;
	engine->spin_ns = spin_ns;
	engine->workers = calloc(threads + 1, sizeof(*engine->workers));
	engine->scratches = mmap(NULL, scratch_bytes(engine), PROT_READ | PROT_WRITE,
				 MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	if (engine->scratches == MAP_FAILED)
		engine->scratches = NULL;
	if (!engine->workers || !engine->scratches) {
		free_engine(engine);
		return -ENOMEM;
	}
	madvise(engine->scratches, scratch_bytes(engine), MADV_HUGEPAGE);
	pthread_once(&fork_once, watch_forks);
	engine->forks = atomic_load_explicit(&process_forks, memory_order_relaxed);
	init_conds(engine);
	for (int i = OBMM_TICKETS - 1; i >= 0; i--) {
		engine->jobs[i].next = engine->free_jobs;
		engine->free_jobs = &engine->jobs[i];
	}
	for (unsigned int i = 0; i < threads && !result; i++) {
		engine->running++;
		result = start_worker(engine, i, cpus, n_cpus);
		engine->running -= result != 0;
	}
	if (result) {
		engine->threads = engine->running;
		obmm_engine_free(engine);
		return result;
	}
	*out = engine;
	return 0;
}

static struct timespec deadline_after(int64_t timeout_ns)
{
	uint64_t at = now_ns() + (uint64_t)timeout_ns;

	return (struct timespec){ .tv_sec = (time_t)(at / 1000000000u), .tv_nsec = (long)(at % 1000000000u) };
}

/* pthread_cond_wait with the timeout's three meanings; ETIMEDOUT or 0.  Mutex held. */
static int wait_on(pthread_cond_t *cond, pthread_mutex_t *mutex, const struct timespec *deadline)
{
	return deadline ? pthread_cond_timedwait(cond, mutex, deadline) : pthread_cond_wait(cond, mutex);
}

int obmm_engine_stop(struct obmm_engine *engine, int64_t timeout_ns)
{
	struct timespec deadline = deadline_after(timeout_ns < 0 ? 0 : timeout_ns);
	bool join;

	if (is_inherited(engine))
		return 0;
	pthread_mutex_lock(&engine->mutex);
	atomic_store(&engine->stopping, true);
	for (struct job *job = engine->head, *next; job; job = next) {
		next = job->next;
		abandon(engine, job);
	}
	wake(engine, OBMM_MAX_THREADS);
	while (engine->running) {
		if (wait_on(&engine->exited, &engine->mutex, timeout_ns < 0 ? NULL : &deadline) == ETIMEDOUT) {
			pthread_mutex_unlock(&engine->mutex);
			return -ETIMEDOUT;
		}
	}
	join = !engine->joined;
	engine->joined = true;
	pthread_mutex_unlock(&engine->mutex);
	for (unsigned int i = 0; join && i < engine->threads; i++)
		pthread_join(engine->workers[i].thread, NULL);
	return 0;
}

void obmm_engine_free(struct obmm_engine *engine)
{
	if (!is_inherited(engine)) {
		if (obmm_engine_stop(engine, 1000000000))
			return;
		for (int i = 0; i < OBMM_TICKETS; i++)
			pthread_cond_destroy(&engine->jobs[i].ended);
		pthread_cond_destroy(&engine->work);
		pthread_cond_destroy(&engine->exited);
		pthread_mutex_destroy(&engine->mutex);
	}
	free_engine(engine);
}

unsigned int obmm_engine_threads(const struct obmm_engine *engine)
{
	return is_inherited(engine) ? 0 : engine->threads;
}

unsigned int obmm_engine_pinned(const struct obmm_engine *engine)
{
	return engine->pinned;
}

unsigned int obmm_engine_in_use(struct obmm_engine *engine)
{
	unsigned int in_use;

	if (is_inherited(engine))
		return 0;
	pthread_mutex_lock(&engine->mutex);
	in_use = engine->in_use;
	pthread_mutex_unlock(&engine->mutex);
	return in_use;
}

/* ---- gathers ---- */

/* Mutex held, a free job exists. */
static struct job *take_job(struct obmm_engine *engine, const struct obmm_request *request,
			    struct obmm_outcome *outcome, unsigned int threads)
{
	struct job *job = engine->free_jobs;

	engine->free_jobs = job->next;
	engine->in_use++;
	job->request = request;
	job->outcome = outcome;
	job->chunk = obmm_gather_chunk(request, threads);
	job->most = threads;
	job->active = 0;
	job->joined = 0;
	job->serial++;
	job->started_ns = now_ns();
	atomic_store(&job->abandoned, false);
	atomic_store(&job->error, 0);
	atomic_store(&job->cursor, 0);
	atomic_store(&job->rows_read, 0);
	atomic_store(&job->rows_zero, 0);
	atomic_store(&job->version, 0);
	atomic_store(&job->state, JOB_QUEUED);
	outcome->status = -EINPROGRESS;
	return job;
}

/* Mutex held. */
static void give_job(struct obmm_engine *engine, struct job *job)
{
	job->serial++;
	atomic_store(&job->state, JOB_FREE);
	job->next = engine->free_jobs;
	engine->free_jobs = job;
	engine->in_use--;
}

static unsigned int useful_threads(const struct obmm_request *request, unsigned int wanted, unsigned int available)
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
static bool guard_lost(struct obmm_engine *engine, uint64_t now)
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
	for (int i = 0; i < CALLER_SCRATCHES; i++) {
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
	outcome->nanoseconds = now_ns() - started;
	obmm_gather_finish(request, outcome);
}

static void gather_together(struct obmm_engine *engine, const struct obmm_request *request, unsigned int threads,
			    struct obmm_scratch *scratch, uint64_t started, struct obmm_outcome *outcome)
{
	struct job *job;

	pthread_mutex_lock(&engine->mutex);
	if (!engine->free_jobs || engine->stopping) {
		pthread_mutex_unlock(&engine->mutex);
		gather_alone(request, scratch, started, outcome);
		return;
	}
	job = take_job(engine, request, outcome, threads);
	job->active = 1;
	job->joined = 1;
	enqueue(engine, job);
	wake(engine, threads - 1);
	pthread_mutex_unlock(&engine->mutex);
	run_chunks(job, scratch);
	pthread_mutex_lock(&engine->mutex);
	leave(engine, job);
	while (atomic_load(&job->state) != JOB_DONE)
		pthread_cond_wait(&job->ended, &engine->mutex);
	give_job(engine, job);
	pthread_mutex_unlock(&engine->mutex);
}

int64_t obmm_engine_gather(struct obmm_engine *engine, const struct obmm_request *request, unsigned int threads,
			   struct obmm_outcome *outcome)
{
	unsigned int helpers = is_inherited(engine) ? 0 : engine->threads;
	uint64_t started = now_ns();
	struct obmm_scratch *scratch;

	outcome->rows_read = 0;
	outcome->rows_zero = 0;
	if (atomic_load_explicit(&engine->stopping, memory_order_relaxed))
		return outcome->status = -ESHUTDOWN;
	outcome->status = guard_lost(engine, started) ? -EUNATCH : obmm_gather_check(request, outcome);
	if (outcome->status == -ERANGE)
		obmm_gather_finish(request, outcome);
	if (outcome->status)
		return outcome->status;
	threads = useful_threads(request, threads, helpers + 1);
	scratch = request->count >= request->table->tuning.order_rows ? borrow_scratch(engine) : NULL;
	if (threads > 1)
		gather_together(engine, request, threads, scratch, started, outcome);
	else
		gather_alone(request, scratch, started, outcome);
	return_scratch(engine, scratch);
	return outcome->status ? outcome->status : (int64_t)outcome->rows_read;
}

/* ---- tickets ---- */

static uint64_t ticket_of(const struct obmm_engine *engine, const struct job *job)
{
	return job->serial * OBMM_TICKETS + (uint64_t)(job - engine->jobs);
}

/* Mutex held; NULL for a ticket that was given back. */
static struct job *job_of(struct obmm_engine *engine, uint64_t ticket)
{
	struct job *job = &engine->jobs[ticket % OBMM_TICKETS];

	return job->serial == ticket / OBMM_TICKETS && job->serial & 1 ? job : NULL;
}

int obmm_engine_submit(struct obmm_engine *engine, const struct obmm_request *requests, unsigned int n,
		       unsigned int threads, struct obmm_outcome *outcomes, uint64_t *tickets, unsigned int *bad)
{
	unsigned int helpers = 0;

	if (is_inherited(engine))
		return -EOWNERDEAD;
	if (guard_lost(engine, now_ns()))
		return -EUNATCH;
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
		unsigned int useful = useful_threads(&requests[i], threads, engine->threads);
		struct job *job = take_job(engine, &requests[i], &outcomes[i], useful);

		tickets[i] = ticket_of(engine, job);
		if (requests[i].count) {
			enqueue(engine, job);
			helpers += useful;
		} else {
			job->active = 1;
			leave(engine, job);
		}
	}
	wake(engine, helpers);
	pthread_mutex_unlock(&engine->mutex);
	return 0;
}

/* A worker that is about to end spares us the sleep. */
static void spin_for_end(struct obmm_engine *engine, struct job *job)
{
	uint64_t until = now_ns() + engine->spin_ns;

	while (atomic_load_explicit(&job->state, memory_order_acquire) == JOB_QUEUED && now_ns() < until)
		relax();
}

int obmm_ticket_wait(struct obmm_engine *engine, uint64_t ticket, int64_t timeout_ns)
{
	struct timespec deadline = deadline_after(timeout_ns < 0 ? 0 : timeout_ns);
	struct job *job = &engine->jobs[ticket % OBMM_TICKETS];
	bool late = !timeout_ns;
	int result;

	if (is_inherited(engine))
		return -EOWNERDEAD;
	if (timeout_ns && engine->spin_ns)
		spin_for_end(engine, job);
	pthread_mutex_lock(&engine->mutex);
	for (;;) {
		if (!job_of(engine, ticket))
			result = -ESTALE;
		else if (atomic_load(&job->state) == JOB_DONE)
			result = 0;
		else if (late)
			result = -ETIMEDOUT;
		else {
			late = wait_on(&job->ended, &engine->mutex, timeout_ns < 0 ? NULL : &deadline) == ETIMEDOUT;
			continue;
		}
		break;
	}
	pthread_mutex_unlock(&engine->mutex);
	return result;
}

int obmm_ticket_abandon(struct obmm_engine *engine, uint64_t ticket)
{
	struct job *job;

	if (is_inherited(engine))
		return -EOWNERDEAD;
	pthread_mutex_lock(&engine->mutex);
	job = job_of(engine, ticket);
	if (job && atomic_load(&job->state) == JOB_QUEUED)
		abandon(engine, job);
	pthread_mutex_unlock(&engine->mutex);
	return job ? 0 : -ESTALE;
}

int obmm_ticket_release(struct obmm_engine *engine, uint64_t ticket)
{
	struct job *job;
	int result = 0;

	if (is_inherited(engine))
		return -EOWNERDEAD;
	pthread_mutex_lock(&engine->mutex);
	job = job_of(engine, ticket);
	if (!job)
		result = -ESTALE;
	else if (atomic_load(&job->state) != JOB_DONE)
		result = -EBUSY;
	else
		give_job(engine, job);
	pthread_mutex_unlock(&engine->mutex);
	return result;
}
