/* SPDX-License-Identifier: Apache-2.0 */
/* The worker threads and tickets: shared gathers, deadlines, faults, forks, ends. */
#include <dirent.h>
#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>

#include "../core/clock.h"
#include "../engine/engine.h"
#include "../access/gate.h"
#include "test_copy.h"

#if defined(__SANITIZE_THREAD__)
enum { COUNT = 6000 };
#else
enum { COUNT = 20000 };
#endif
enum { ROWS = 4096, ROW = 256, WORKERS = 4 };
#define SECOND 1000000000ll

static uint8_t *region;
static struct obmm_table table;
static int64_t ids[COUNT];

static uint64_t word_of(int64_t row, size_t i)
{
	return (uint64_t)(row + 1) * 0x9e3779b97f4a7c15ull + i;
}

static void make_region(void)
{
	int fd;

	region = map_memfd((size_t)ROWS * ROW, &fd);
	close(fd);
	for (int64_t row = 0; row < ROWS; row++) {
		for (size_t i = 0; i < ROW / 8; i++)
			((uint64_t *)(region + row * ROW))[i] = word_of(row, i);
	}
	table = (struct obmm_table){ .base = region, .rows = ROWS, .row_stride = ROW, .row_bytes = ROW };
	obmm_tuning_default(&table.tuning, ROW, 0);
	for (int i = 0; i < COUNT; i++)
		ids[i] = (int64_t)((uint64_t)i * 2654435761u >> 5) % ROWS;
}

static struct obmm_request request_for(uint8_t *out, uint64_t count)
{
	return (struct obmm_request){ .table = &table,
				      .ids = ids,
				      .count = count,
				      .id_bytes = 8,
				      .out = out,
				      .out_stride = ROW,
				      .high = UINT64_MAX };
}

static int is_right(const uint8_t *out, uint64_t count)
{
	for (uint64_t i = 0; i < count; i++) {
		for (size_t w = 0; w < ROW / 8; w++) {
			if (((const uint64_t *)(out + i * ROW))[w] != word_of(ids[i], w))
				return 0;
		}
	}
	return 1;
}

static uint8_t *buffer(void)
{
	uint8_t *memory = aligned_alloc(64, (size_t)COUNT * ROW);

	CHECK(memory);
	memset(memory, 0, (size_t)COUNT * ROW);
	return memory;
}

static struct obmm_engine *start(unsigned int workers, uint64_t spin_ns)
{
	struct obmm_engine *engine;

	CHECK(!obmm_engine_create(workers, spin_ns, NULL, 0, &engine));
	CHECK(obmm_engine_threads(engine) == workers);
	return engine;
}

#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
static const _Atomic int allocations; /* the sanitizers have the allocator */
#else
/* Every allocation of the process, whichever thread makes it. */
static _Atomic int allocations;

extern void *__libc_malloc(size_t size);
extern void *__libc_calloc(size_t n, size_t size);
extern void *__libc_realloc(void *old, size_t size);

void *malloc(size_t size)
{
	atomic_fetch_add(&allocations, 1);
	return __libc_malloc(size);
}

void *calloc(size_t n, size_t size)
{
	atomic_fetch_add(&allocations, 1);
	return __libc_calloc(n, size);
}

void *realloc(void *old, size_t size)
{
	atomic_fetch_add(&allocations, 1);
	return __libc_realloc(old, size);
}
#endif

static void a_gather_allocates_nothing(void)
{
	struct obmm_engine *engine = start(WORKERS, 0);
	uint8_t *out = buffer();
	struct obmm_request request = request_for(out, COUNT);
	struct obmm_outcome outcome;
	uint64_t ticket;
	unsigned int bad;
	int before = allocations;
	uint64_t until = obmm_now_ns() + 600000000; /* longer than the engine looks away from what its control groups allow */

	do {
		for (unsigned int threads = 1; threads <= WORKERS; threads++) {
			CHECK(obmm_engine_gather(engine, &request, threads, &outcome) == COUNT);
			CHECK(!obmm_engine_submit(engine, &request, 1, threads, &outcome, &ticket, &bad));
			CHECK(!obmm_ticket_wait(engine, ticket, -1) && !obmm_ticket_release(engine, ticket));
		}
	} while (obmm_now_ns() < until);
	CHECK(allocations == before);
	obmm_engine_free(engine);
	free(out);
}

static void shared_gathers_are_right(void)
{
	uint8_t *out = buffer();

	for (unsigned int workers = 0; workers <= WORKERS; workers += 2) {
		struct obmm_engine *engine = start(workers, workers == 4 ? 20000 : 0);

		for (unsigned int threads = 0; threads <= 5; threads++) {
			struct obmm_request request = request_for(out, COUNT);
			struct obmm_outcome outcome;

			memset(out, 0, (size_t)COUNT * ROW);
			CHECK(obmm_engine_gather(engine, &request, threads, &outcome) == COUNT);
			CHECK(outcome.status == 0 && outcome.rows_read == COUNT && is_right(out, COUNT));
			CHECK(outcome.threads >= 1 && outcome.threads <= (int)workers + 1);
		}
		CHECK(obmm_engine_in_use(engine) == 0);
		obmm_engine_free(engine);
	}
	free(out);
}

static void tickets_end_in_any_order_of_waiting(void)
{
	enum { JOBS = 12 };
	struct obmm_engine *engine = start(WORKERS, 0);
	struct obmm_request requests[JOBS];
	struct obmm_outcome outcomes[JOBS];
	uint64_t tickets[JOBS];
	unsigned int bad;

	for (unsigned int i = 0; i < JOBS; i++)
		requests[i] = request_for(buffer(), i == 5 ? 0 : 100 * (i + 1));
	CHECK(!obmm_engine_submit(engine, requests, JOBS, 0, outcomes, tickets, &bad));
	CHECK(obmm_engine_in_use(engine) == JOBS);
	for (int i = JOBS - 1; i >= 0; i--) {
		CHECK(!obmm_ticket_wait(engine, tickets[i], i & 1 ? 20 * SECOND : -1));
		CHECK(outcomes[i].status == 0 && outcomes[i].rows_read == requests[i].count);
		CHECK(is_right(requests[i].out, requests[i].count));
		CHECK(!obmm_ticket_release(engine, tickets[i]));
		CHECK(obmm_ticket_wait(engine, tickets[i], 0) == -ESTALE);
		CHECK(obmm_ticket_release(engine, tickets[i]) == -ESTALE);
		free(requests[i].out);
	}
	CHECK(obmm_engine_in_use(engine) == 0);
	obmm_engine_free(engine);
}

static void a_bad_id_queues_nothing(void)
{
	struct obmm_engine *engine = start(1, 0);
	uint8_t *out = buffer();
	int64_t wrong[2] = { 3, ROWS };
	struct obmm_request requests[2] = { request_for(out, 10), request_for(out, 2) };
	struct obmm_outcome outcomes[2];
	uint64_t tickets[2];
	unsigned int bad = 9;

	requests[1].ids = wrong;
	CHECK(obmm_engine_submit(engine, requests, 2, 0, outcomes, tickets, &bad) == -ERANGE);
	CHECK(bad == 1 && outcomes[1].bad_index == 1 && outcomes[1].bad_id == ROWS);
	CHECK(obmm_engine_in_use(engine) == 0 && out[0] == 0);
	CHECK(obmm_engine_gather(engine, &requests[1], 1, outcomes) == -ERANGE);
	obmm_engine_free(engine);
	free(out);
}

static void a_displaced_guard_is_put_back_in_front(void)
{
	struct obmm_engine *engine = start(1, 0);
	uint8_t *out = buffer();
	struct obmm_request request = request_for(out, 10);
	struct obmm_outcome outcome;
	struct sigaction other = { .sa_handler = SIG_DFL };
	struct obmm_totals totals = { 0 };

	table.totals = &totals;
	CHECK(!sigaction(SIGBUS, &other, NULL));
	CHECK(obmm_guard_check() == 1);
	/* a fresh engine looks at its first gather */
	CHECK(obmm_engine_gather(engine, &request, 1, &outcome) == 10);
	CHECK(obmm_guard_check() == 0);
	CHECK(totals.gathers == 1 && totals.ids == 10 && totals.rows_read == 10 && totals.cancelled == 0);
	table.totals = NULL;
	obmm_engine_free(engine);
	free(out);
}

static void tickets_run_out_with_an_answer(void)
{
	struct obmm_engine *engine = start(1, 0);
	struct obmm_request request = request_for(NULL, 0);
	struct obmm_outcome outcomes[OBMM_TICKETS];
	uint64_t tickets[OBMM_TICKETS], extra;
	unsigned int bad;

	for (int i = 0; i < OBMM_TICKETS; i++)
		CHECK(!obmm_engine_submit(engine, &request, 1, 0, &outcomes[i], &tickets[i], &bad));
	CHECK(obmm_engine_submit(engine, &request, 1, 0, outcomes, &extra, &bad) == -EAGAIN);
	for (int i = 0; i < OBMM_TICKETS; i++)
		CHECK(!obmm_ticket_wait(engine, tickets[i], -1) && !obmm_ticket_release(engine, tickets[i]));
	CHECK(!obmm_engine_submit(engine, &request, 1, 0, outcomes, &extra, &bad));
	obmm_engine_free(engine);
}

static void faults_in_workers_end_the_gather_only(void)
{
	struct obmm_engine *engine = start(WORKERS, 0);
	uint8_t *out = buffer();
	struct obmm_table holed = table;
	struct obmm_request requests[4];
	struct obmm_outcome outcomes[4];
	uint64_t tickets[4];
	unsigned int bad;
	int fd, slot;

	holed.base = map_memfd((size_t)ROWS * ROW, &fd);
	slot = obmm_guard_add(holed.base, (size_t)ROWS * ROW, 21);
	CHECK(!ftruncate(fd, ROWS / 2 * ROW));
	for (int round = 0; round < 20; round++) {
		for (int i = 0; i < 4; i++) {
			requests[i] = request_for(out + i * (COUNT / 4) * ROW, COUNT / 4);
			requests[i].table = &holed;
		}
		CHECK(!obmm_engine_submit(engine, requests, 4, 0, outcomes, tickets, &bad));
		for (int i = 0; i < 4; i++) {
			CHECK(!obmm_ticket_wait(engine, tickets[i], -1));
			CHECK(outcomes[i].status == -EFAULT && outcomes[i].fault.id == 21);
			CHECK(outcomes[i].fault.signo == SIGBUS && outcomes[i].fault.offset >= ROWS / 2 * ROW);
			CHECK(!obmm_ticket_release(engine, tickets[i]));
		}
		CHECK(obmm_engine_gather(engine, requests, 4, outcomes) == -EFAULT);
	}
	requests[0] = request_for(out, COUNT);
	CHECK(obmm_engine_gather(engine, requests, 4, outcomes) == COUNT && is_right(out, COUNT));
	CHECK(!obmm_guard_remove(slot));
	munmap((void *)holed.base, (size_t)ROWS * ROW);
	close(fd);
	obmm_engine_free(engine);
	free(out);
}

/* Keep the only worker busy: a gather that is large beside the calls around it. */
static void an_abandoned_ticket_ends_cancelled(void)
{
	enum { BUSY = 8 };
	struct obmm_engine *engine = start(1, 0);
	uint8_t *out = buffer();
	struct obmm_request requests[BUSY + 1];
	struct obmm_outcome outcomes[BUSY + 1];
	uint64_t tickets[BUSY + 1];
	unsigned int bad;
	int result;

	for (int i = 0; i <= BUSY; i++)
		requests[i] = request_for(out, COUNT);
	CHECK(!obmm_engine_submit(engine, requests, BUSY + 1, 0, outcomes, tickets, &bad));
	CHECK(!obmm_ticket_abandon(engine, tickets[BUSY]));
	CHECK(!obmm_ticket_wait(engine, tickets[BUSY], 20 * SECOND));
	CHECK(outcomes[BUSY].status == -ECANCELED || outcomes[BUSY].status == 0);
	/* a deadline that cannot be met, unless the worker was faster */
	result = obmm_ticket_wait(engine, tickets[BUSY - 1], 1);
	CHECK(result == -ETIMEDOUT || result == 0);
	for (int i = 0; i < BUSY; i++) {
		CHECK(!obmm_ticket_abandon(engine, tickets[i]));
		CHECK(!obmm_ticket_wait(engine, tickets[i], -1));
		CHECK(outcomes[i].status == -ECANCELED || outcomes[i].status == 0);
		CHECK(!obmm_ticket_release(engine, tickets[i]));
	}
	CHECK(!obmm_ticket_release(engine, tickets[BUSY]));
	CHECK(obmm_ticket_abandon(engine, tickets[0]) == -ESTALE);
	obmm_engine_free(engine);
	free(out);
}

static void destroying_ends_what_is_queued(void)
{
	enum { JOBS = 40 };
	static struct obmm_request requests[JOBS];
	static struct obmm_outcome outcomes[JOBS];
	static uint64_t tickets[JOBS];
	uint8_t *out = buffer();
	unsigned int bad;

	for (int round = 0; round < 10; round++) {
		struct obmm_engine *engine = start(2, 0);

		for (int i = 0; i < JOBS; i++)
			requests[i] = request_for(out + i * (COUNT / JOBS) * ROW, COUNT / JOBS);
		CHECK(!obmm_engine_submit(engine, requests, JOBS, 0, outcomes, tickets, &bad));
		CHECK(!obmm_engine_stop(engine, 60 * SECOND));
		for (int i = 0; i < JOBS; i++)
			CHECK(outcomes[i].status == 0 || outcomes[i].status == -ECANCELED);
		for (int i = 0; i < JOBS; i++)
			CHECK(!obmm_ticket_wait(engine, tickets[i], -1) && !obmm_ticket_release(engine, tickets[i]));
		CHECK(obmm_engine_submit(engine, requests, 1, 0, outcomes, tickets, &bad) == -ESHUTDOWN);
		CHECK(obmm_engine_gather(engine, requests, 1, outcomes) == -ESHUTDOWN);
		CHECK(!obmm_engine_stop(engine, 0));
		obmm_engine_free(engine);
	}
	free(out);
}

static void a_republished_table_is_noticed_and_a_closed_one_refused(void)
{
	struct obmm_engine *engine = start(2, 0);
	uint8_t *out = buffer();
	struct obmm_table published = table;
	struct obmm_gate gate = { 0 };
	struct obmm_gate *gates[] = { &gate };
	uint64_t version = 6;
	struct obmm_request request = request_for(out, COUNT);
	struct obmm_outcome outcome;

	published.version = &version;
	published.gates = gates;
	published.n_gates = 1;
	request.table = &published;
	for (unsigned int threads = 1; threads <= 3; threads += 2) {
		CHECK(obmm_engine_gather(engine, &request, threads, &outcome) == COUNT && outcome.version == 6);
		version = 7;
		CHECK(obmm_engine_gather(engine, &request, threads, &outcome) == -ESTALE && outcome.version == 7);
		version = 6;
		CHECK(!obmm_gate_shut(&gate, -1));
		CHECK(obmm_engine_gather(engine, &request, threads, &outcome) == -EBADF);
		obmm_gate_reopen(&gate);
		CHECK(obmm_gate_inside(&gate) == 0);
	}
	obmm_engine_free(engine);
	free(out);
}

#if !defined(__SANITIZE_THREAD__) /* a sequence lock is a race by design: the reader looks afterwards */
/* A writer that flips the version all the time: what passes the check is of one generation. */
struct republished {
	uint64_t version;
	uint64_t rows[ROWS / 8][ROW / 8];
};

static struct republished *shelf;
static _Atomic int publishing;

static void *publish(void *arg)
{
	(void)arg;
	for (uint64_t version = 2; atomic_load(&publishing); version += 2) {
		__atomic_store_n(&shelf->version, version - 1, __ATOMIC_SEQ_CST);
		for (int row = 0; row < ROWS / 8; row++)
			__atomic_store_n(&shelf->rows[row][3], version, __ATOMIC_RELEASE);
		__atomic_store_n(&shelf->version, version, __ATOMIC_SEQ_CST);
		for (int i = 0; i < 300; i++)
			sched_yield();
	}
	return NULL;
}

static void rows_of_two_generations_never_pass(void)
{
	struct obmm_engine *engine = start(2, 0);
	uint8_t *out = buffer();
	struct obmm_table published = { .rows = ROWS / 8, .row_stride = ROW, .row_bytes = ROW };
	struct obmm_request request = request_for(out, 400);
	int64_t some[400];
	pthread_t writer;
	int passed = 0, refused = 0;
	const time_t until = time(NULL) + 60; /* a writer that lost its CPU half-way refuses very many */

	shelf = calloc(1, sizeof(*shelf));
	CHECK(shelf);
	obmm_tuning_default(&published.tuning, ROW, 0);
	published.base = (const uint8_t *)shelf->rows;
	published.version = &shelf->version;
	request.table = &published;
	request.ids = some;
	for (int i = 0; i < 400; i++)
		some[i] = ids[i] % (ROWS / 8);
	atomic_store(&publishing, 1);
	CHECK(!pthread_create(&writer, NULL, publish, NULL));
	for (int round = 0; time(NULL) < until && (passed < 200 || refused < 20); round++) {
		struct obmm_outcome outcome;

		if (obmm_engine_gather(engine, &request, 1 + (unsigned int)round % 3, &outcome) < 0) {
			CHECK(outcome.status == -ESTALE);
			refused++;
			continue;
		}
		passed++;
		for (int i = 0; i < 400; i++)
			CHECK(((const uint64_t *)(out + i * ROW))[3] == outcome.version);
	}
	atomic_store(&publishing, 0);
	CHECK(!pthread_join(writer, NULL));
	CHECK(passed && refused);
	free(shelf);
	obmm_engine_free(engine);
	free(out);
}
#endif

static struct obmm_engine *inherited;

static void in_the_child(void)
{
	uint8_t *out = buffer();
	struct obmm_request request = request_for(out, COUNT);
	struct obmm_outcome outcome;
	uint64_t ticket = 0;
	unsigned int bad;

	CHECK(obmm_engine_gather(inherited, &request, 4, &outcome) == COUNT && outcome.threads == 1 && is_right(out, COUNT));
	CHECK(obmm_engine_threads(inherited) == 0);
	CHECK(obmm_engine_submit(inherited, &request, 1, 0, &outcome, &ticket, &bad) == -EOWNERDEAD);
	CHECK(obmm_ticket_wait(inherited, ticket, -1) == -EOWNERDEAD);
	obmm_engine_free(inherited);
	_exit(5);
}

static void a_forked_child_does_not_wait_for_the_parents_threads(void)
{
	int status;

	inherited = start(WORKERS, 0);
	status = in_child(in_the_child);
	CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 5);
	obmm_engine_free(inherited);
}

static struct obmm_engine *crowded;

static void *caller(void *arg)
{
	uint8_t *out = buffer();
	unsigned int seed = (unsigned int)(uintptr_t)arg, bad;

	for (int round = 0; round < 12; round++) {
		struct obmm_request request = request_for(out, (uint64_t)(rand_r(&seed) % COUNT));
		struct obmm_outcome outcome;
		uint64_t ticket;

		memset(out, 0, (size_t)COUNT * ROW);
		if (round & 1) {
			CHECK(obmm_engine_gather(crowded, &request, 3, &outcome) == (int64_t)request.count);
		} else {
			CHECK(!obmm_engine_submit(crowded, &request, 1, 0, &outcome, &ticket, &bad));
			CHECK(!obmm_ticket_wait(crowded, ticket, -1) && !outcome.status);
			CHECK(!obmm_ticket_release(crowded, ticket));
		}
		CHECK(is_right(out, request.count));
	}
	free(out);
	return NULL;
}

static void many_callers_share_the_workers(void)
{
	pthread_t threads[16];

	crowded = start(WORKERS, 5000);
	for (uintptr_t i = 0; i < 16; i++)
		CHECK(!pthread_create(&threads[i], NULL, caller, (void *)(i + 1)));
	for (int i = 0; i < 16; i++)
		CHECK(!pthread_join(threads[i], NULL));
	CHECK(obmm_engine_in_use(crowded) == 0);
	obmm_engine_free(crowded);
}

/* How many threads of that name this process has in that class. */
static unsigned int threads_in_class(const char *prefix, int class)
{
	DIR *tasks = opendir("/proc/self/task");
	unsigned int found = 0;
	struct dirent *task;

	CHECK(tasks);
	while ((task = readdir(tasks))) {
		char path[300], name[32] = "";
		FILE *file;

		snprintf(path, sizeof(path), "/proc/self/task/%s/comm", task->d_name);
		file = fopen(path, "r");
		if (!file)
			continue;
		if (fgets(name, sizeof(name), file) && !strncmp(name, prefix, strlen(prefix)))
			found += sched_getscheduler(atoi(task->d_name)) == class;
		fclose(file);
	}
	closedir(tasks);
	return found;
}

static void *start_in_idle_class(void *arg)
{
	CHECK(!pthread_setschedparam(pthread_self(), SCHED_IDLE, &(struct sched_param){ .sched_priority = 0 }));
	*(struct obmm_engine **)arg = start(WORKERS, 0);
	return NULL;
}

static void wait_for_class(int class)
{
	struct timespec pause = { .tv_nsec = 2000000 };

	/* the workers choose it themselves, first thing; an idle one may have to wait for a CPU */
	for (int looks = 0; threads_in_class("obmm-gather", class) < WORKERS && looks < 15000; looks++)
		nanosleep(&pause, NULL);
	CHECK(threads_in_class("obmm-gather", class) == WORKERS);
}

static void workers_yield_to_callers_but_stay_in_a_class_that_they_were_given(void)
{
	struct obmm_engine *engine = start(WORKERS, 0);
	pthread_t thread;

	wait_for_class(SCHED_BATCH);
	obmm_engine_free(engine);
	CHECK(!pthread_create(&thread, NULL, start_in_idle_class, &engine));
	CHECK(!pthread_join(thread, NULL));
	wait_for_class(SCHED_IDLE);
	obmm_engine_free(engine);
}

int main(void)
{
	make_region();
	CHECK(!obmm_guard_install());
	a_forked_child_does_not_wait_for_the_parents_threads();
	workers_yield_to_callers_but_stay_in_a_class_that_they_were_given();
	a_gather_allocates_nothing();
	shared_gathers_are_right();
	tickets_end_in_any_order_of_waiting();
	a_bad_id_queues_nothing();
	a_displaced_guard_is_put_back_in_front();
	tickets_run_out_with_an_answer();
	faults_in_workers_end_the_gather_only();
	an_abandoned_ticket_ends_cancelled();
	destroying_ends_what_is_queued();
	many_callers_share_the_workers();
	a_republished_table_is_noticed_and_a_closed_one_refused();
#if !defined(__SANITIZE_THREAD__)
	rows_of_two_generations_never_pass();
#endif
	munmap(region, (size_t)ROWS * ROW);
	puts("test_copy_engine: ok");
	return 0;
}
