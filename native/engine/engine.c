/* SPDX-License-Identifier: Apache-2.0 */
#include "engine_internal.h"

#include <errno.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

enum { ENGINE_ALIGNMENT = _Alignof(struct obmm_engine) };

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

bool engine_is_inherited(const struct obmm_engine *engine)
{
	return engine->forks != atomic_load_explicit(&process_forks, memory_order_relaxed);
}

void engine_relax(void)
{
#if defined(__x86_64__)
	__builtin_ia32_pause();
#elif defined(__aarch64__)
	__asm__ volatile("yield");
#endif
}

/* ---- workers ---- */

/*
 * Woken on the CPU of a busy caller, an ordinary thread would take its place: submitting returns at once.  A real-time
 * or idle class that the process was given is its own affair.
 */
static void yield_to_callers(void)
{
	struct sched_param priority;
	int class;

	if (!pthread_getschedparam(pthread_self(), &class, &priority) && class == SCHED_OTHER)
		pthread_setschedparam(pthread_self(), SCHED_BATCH, &priority);
}

void engine_worker_note_awake(const struct engine_worker *worker)
{
	struct obmm_thread_times *times = engine_times(worker->engine, worker->index + 1);

	if (times) {
		engine_note(&times->awake, worker->seen_ns);
		engine_note(&times->spun, worker->spun);
	}
}

static void *work(void *arg)
{
	struct engine_worker *worker = arg;
	struct obmm_engine *engine = worker->engine;
	char name[16];

	snprintf(name, sizeof(name), "obmm-gather-%u", worker->index % 1000);
	pthread_setname_np(pthread_self(), name);
	yield_to_callers();
	for (;;) {
		/* before anything is looked at: what is put there later changes the word */
		uint32_t seen = engine_team_word(engine);
		struct engine_job *job;

		if (atomic_load(&engine->stopping))
			break;
		if (engine_hand_run(worker))
			continue;
		if (engine_check_is_due(engine)) {
			engine_check_read(engine);
		} else if ((job = engine_line_join(engine))) {
			engine_worker_note_awake(worker);
			engine_team_call_more(engine);
			engine_job_run(worker, job);
		} else {
			engine_team_wait(worker, seen);
		}
	}
	pthread_mutex_lock(&engine->mutex);
	engine->running--;
	pthread_cond_broadcast(&engine->exited);
	pthread_mutex_unlock(&engine->mutex);
	return NULL;
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
	return (engine->threads + ENGINE_CALLER_SCRATCHES) * sizeof(struct obmm_scratch);
}

static void free_engine(struct obmm_engine *engine)
{
	if (engine->scratches)
		munmap(engine->scratches, scratch_bytes(engine));
	free(atomic_load(&engine->times));
	free(engine->workers);
	free(engine);
}

static void init_conds(struct obmm_engine *engine)
{
	pthread_condattr_t monotonic;

	pthread_condattr_init(&monotonic);
	pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
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
	engine = aligned_alloc(ENGINE_ALIGNMENT, sizeof(*engine));
	if (!engine)
		return -ENOMEM;
	memset(engine, 0, sizeof(*engine));
	engine->threads = threads;
	engine->spin_ns = spin_ns;
	engine->workers = aligned_alloc(ENGINE_ALIGNMENT, (threads + 1) * sizeof(*engine->workers));
	engine->scratches = mmap(NULL, scratch_bytes(engine), PROT_READ | PROT_WRITE,
				 MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	if (engine->scratches == MAP_FAILED)
		engine->scratches = NULL;
	if (engine->workers)
		memset(engine->workers, 0, (threads + 1) * sizeof(*engine->workers));
	if (!engine->workers || !engine->scratches) {
		free_engine(engine);
		return -ENOMEM;
	}
	madvise(engine->scratches, scratch_bytes(engine), MADV_HUGEPAGE);
	pthread_once(&fork_once, watch_forks);
	engine->forks = atomic_load_explicit(&process_forks, memory_order_relaxed);
	init_conds(engine);
	engine_team_init(engine);
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

struct timespec engine_deadline_after(int64_t timeout_ns)
{
	uint64_t at = obmm_now_ns() + (uint64_t)timeout_ns;

	return (struct timespec){ .tv_sec = (time_t)(at / 1000000000u), .tv_nsec = (long)(at % 1000000000u) };
}

int engine_wait_on(struct obmm_engine *engine, pthread_cond_t *cond, const struct timespec *deadline)
{
	return deadline ? pthread_cond_timedwait(cond, &engine->mutex, deadline) :
			  pthread_cond_wait(cond, &engine->mutex);
}

static void abandon_all(struct obmm_engine *engine)
{
	uint64_t serials[OBMM_TICKETS];

	pthread_mutex_lock(&engine->mutex);
	atomic_store(&engine->stopping, true);
	for (int i = 0; i < OBMM_TICKETS; i++) {
		struct engine_job *job = &engine->jobs[i];

		serials[i] = job->serial;
		if (job->serial & 1 && atomic_load(&job->state) == JOB_QUEUED)
			__atomic_store_n(&job->shares.stop, 1, __ATOMIC_RELAXED);
	}
	pthread_mutex_unlock(&engine->mutex);
	for (int i = 0; i < OBMM_TICKETS; i++) {
		if (serials[i] & 1)
			engine_job_abandon(engine, &engine->jobs[i], (uint32_t)serials[i]);
	}
	engine_cancel_unchecked(engine);
}

int obmm_engine_stop(struct obmm_engine *engine, int64_t timeout_ns)
{
	struct timespec deadline = engine_deadline_after(timeout_ns < 0 ? 0 : timeout_ns);
	bool join;

	if (engine_is_inherited(engine))
		return 0;
	abandon_all(engine);
	engine_team_call_all(engine);
	pthread_mutex_lock(&engine->mutex);
	while (engine->running) {
		if (engine_wait_on(engine, &engine->exited, timeout_ns < 0 ? NULL : &deadline) == ETIMEDOUT) {
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
	if (!engine_is_inherited(engine)) {
		if (obmm_engine_stop(engine, 1000000000))
			return;
		for (int i = 0; i < OBMM_TICKETS; i++)
			pthread_cond_destroy(&engine->jobs[i].ended);
		pthread_cond_destroy(&engine->exited);
		pthread_mutex_destroy(&engine->mutex);
	}
	free_engine(engine);
}

void obmm_engine_drop(struct obmm_engine **engine)
{
	if (*engine)
		obmm_engine_free(*engine);
	*engine = NULL;
}

unsigned int obmm_engine_threads(const struct obmm_engine *engine)
{
	return engine_is_inherited(engine) ? 0 : engine->threads;
}

unsigned int obmm_engine_pinned(const struct obmm_engine *engine)
{
	return engine->pinned;
}

unsigned int obmm_engine_in_use(struct obmm_engine *engine)
{
	unsigned int in_use;

	if (engine_is_inherited(engine))
		return 0;
	pthread_mutex_lock(&engine->mutex);
	in_use = engine->in_use;
	pthread_mutex_unlock(&engine->mutex);
	return in_use;
}
