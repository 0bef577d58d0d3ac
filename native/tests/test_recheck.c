/* SPDX-License-Identifier: Apache-2.0 */
/* Gathers that ask memory for the content version before they are done. */
#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "../abi/obmm_abi.h"
#include "../engine/engine.h"
#include "../access/recheck.h"
#include "test.h"

enum { ROWS = 64, ROW = 64, JOBS = 8 };
#define SECOND 1000000000ll

/* A host with caches: `version` is what they hold, and UPDATE_RANGE brings `published` into it. */
struct host {
	struct obmm_sys sys;
	uint64_t version;
	uint64_t published;
	uint64_t attached;
	int answer;
	atomic_int calls;
	struct obmm_gate gate;
	struct obmm_recheck *recheck;
	uint8_t rows[ROWS * ROW];
	struct obmm_table table;
	int64_t ids[ROWS];
	struct obmm_engine *engine;
	struct obmm_request requests[JOBS];
	struct obmm_outcome outcomes[JOBS];
	uint64_t tickets[JOBS];
	uint8_t out[JOBS][ROWS * ROW];
};

static int update_range(struct obmm_sys *sys, int fd, unsigned long request, void *arg)
{
	struct host *host = (struct host *)sys;
	const struct obmm_cmd_update_range *range = arg;

	CHECK_EQ(fd, 5);
	CHECK_EQ(request, OBMM_SHMDEV_UPDATE_RANGE);
	CHECK_EQ(range->start, 0x200000);
	CHECK_EQ(range->end, 0x400000);
	CHECK_EQ(range->mem_state, OBMM_SHM_MEM_NORMAL | OBMM_SHM_MEM_READONLY);
	CHECK_EQ(range->cache_ops, OBMM_SHM_CACHE_INVAL);
	atomic_fetch_add(&host->calls, 1);
	if (host->answer) {
		errno = host->answer;
		return -1;
	}
	__atomic_store_n(&host->version, host->published, __ATOMIC_RELEASE);
	return 0;
}

static struct host *open_host(void)
{
	struct host *host = calloc(1, sizeof(*host));
	struct obmm_header_place place;

	REQUIRE(host);
	REQUIRE(!obmm_guard_install());
	host->sys.ioctl = update_range;
	host->version = host->published = host->attached = 2;
	place = (struct obmm_header_place){ 5, 0x200000, 0x400000, &host->version, &host->gate };
	host->recheck = obmm_recheck_create(&host->sys, &place);
	REQUIRE(host->recheck);
	obmm_recheck_resume(host->recheck, 1);
	host->table = (struct obmm_table){
		.base = host->rows, .rows = ROWS, .row_stride = ROW, .row_bytes = ROW, .version = &host->version,
		.cached = &host->attached
	};
	obmm_tuning_default(&host->table.tuning, ROW, 0);
	REQUIRE(!obmm_engine_create(2, 0, NULL, 0, &host->engine));
	for (int i = 0; i < ROWS; i++)
		host->ids[i] = i;
	for (int i = 0; i < JOBS; i++)
		host->requests[i] = (struct obmm_request){ .table = &host->table,
							   .ids = host->ids,
							   .count = ROWS,
							   .id_bytes = 8,
							   .out = host->out[i],
							   .out_stride = ROW,
							   .recheck = host->recheck,
							   .high = UINT64_MAX };
	return host;
}

static void close_host(struct host *host)
{
	obmm_engine_free(host->engine);
	obmm_recheck_free(host->recheck);
	free(host);
}

static void submit(struct host *host, unsigned int n)
{
	unsigned int bad;

	REQUIRE(!obmm_engine_submit(host->engine, host->requests, n, 0, host->outcomes, host->tickets, &bad));
}

TEST(gather_is_done_when_memory_has_answered_its_version)
{
	struct host *host = open_host();

	submit(host, 1);
	CHECK_EQ(obmm_ticket_collect(host->engine, host->tickets[0], -1), 0);
	CHECK_EQ(host->outcomes[0].status, 0);
	CHECK_EQ(host->outcomes[0].version, 2);
	CHECK_EQ(host->outcomes[0].ready, 3);
	CHECK_EQ(atomic_load(&host->calls), 1);
	CHECK_EQ(obmm_ticket_collect(host->engine, host->tickets[0], -1), -ESTALE);
	CHECK_EQ(obmm_engine_in_use(host->engine), 0);
	close_host(host);
}

TEST(publication_that_only_memory_shows_makes_the_gather_stale)
{
	struct host *host = open_host();

	host->published = 4;
	submit(host, 1);
	CHECK_EQ(obmm_ticket_collect(host->engine, host->tickets[0], -1), 0);
	CHECK_EQ(host->outcomes[0].status, -ESTALE);
	CHECK_EQ(host->outcomes[0].version, 4);
	CHECK_EQ(host->outcomes[0].ready, 0);
	close_host(host);
}

TEST(publication_that_is_shown_while_others_gather_makes_them_stale_too)
{
	struct host *host = open_host();

	host->published = 4;
	submit(host, JOBS);
	for (int i = 0; i < JOBS; i++) {
		CHECK_EQ(obmm_ticket_collect(host->engine, host->tickets[i], -1), 0);
		CHECK_EQ(host->outcomes[i].status, -ESTALE);
		CHECK_EQ(host->outcomes[i].ready, 0);
	}
	close_host(host);
}

TEST(one_answer_serves_all_gathers_that_were_not_waited_for)
{
	struct host *host = open_host();

	submit(host, JOBS);
	for (int i = 0; i < JOBS; i++) {
		while (!__atomic_load_n(&host->outcomes[i].ready, __ATOMIC_ACQUIRE))
			sched_yield();
	}
	CHECK_EQ(atomic_load(&host->calls), 1);
	for (int i = 0; i < JOBS; i++) {
		CHECK_EQ(obmm_ticket_collect(host->engine, host->tickets[i], 0), 0);
		CHECK_EQ(host->outcomes[i].status, 0);
	}
	close_host(host);
}

TEST(waiters_and_workers_finish_every_gather_of_many_steps)
{
	struct host *host = open_host();

	for (int step = 0; step < 300; step++) {
		submit(host, JOBS);
		for (int i = 0; i < JOBS; i++) {
			CHECK_EQ(obmm_ticket_collect(host->engine, host->tickets[i], 20 * SECOND), 0);
			CHECK_EQ(host->outcomes[i].status, 0);
		}
	}
	CHECK_EQ(obmm_engine_in_use(host->engine), 0);
	close_host(host);
}

TEST(refused_update_range_is_the_gathers_error)
{
	struct host *host = open_host();

	host->answer = EIO;
	submit(host, 1);
	CHECK_EQ(obmm_ticket_collect(host->engine, host->tickets[0], -1), 0);
	CHECK_EQ(host->outcomes[0].status, -EIO);
	close_host(host);
}

TEST(right_other_than_r_is_not_touched)
{
	struct host *host = open_host();
	uint64_t version;

	obmm_recheck_hold(host->recheck);
	obmm_recheck_resume(host->recheck, 0);
	CHECK_EQ(obmm_recheck_run(host->recheck, &version, NULL), -EPERM);
	CHECK_EQ(atomic_load(&host->calls), 0);
	close_host(host);
}

TEST(header_that_is_gone_is_a_fault_with_its_place)
{
	struct host *host = open_host();
	uint64_t *gone = mmap(NULL, 4096, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	struct obmm_header_place place = { 5, 0x200000, 0x400000, gone, &host->gate };
	int slot;

	REQUIRE(gone != MAP_FAILED);
	slot = obmm_guard_add(gone, 4096, 7);
	REQUIRE(slot >= 0);
	obmm_recheck_free(host->recheck);
	host->recheck = host->requests[0].recheck = obmm_recheck_create(&host->sys, &place);
	REQUIRE(host->recheck);
	obmm_recheck_resume(host->recheck, 1);
	submit(host, 1);
	CHECK_EQ(obmm_ticket_collect(host->engine, host->tickets[0], -1), 0);
	CHECK_EQ(host->outcomes[0].status, -EFAULT);
	CHECK_EQ(host->outcomes[0].fault.signo, SIGSEGV);
	CHECK_EQ(host->outcomes[0].fault.address, (uintptr_t)gone);
	close_host(host);
	obmm_guard_remove(slot);
	munmap(gone, 4096);
}

TEST(closed_mapping_is_not_touched)
{
	struct host *host = open_host();
	uint64_t version;

	CHECK_EQ(obmm_gate_shut(&host->gate, -1), 0);
	CHECK_EQ(obmm_recheck_run(host->recheck, &version, NULL), -EBADF);
	CHECK_EQ(atomic_load(&host->calls), 0);
	close_host(host);
}

TEST(held_recheck_waits_and_the_waiter_keeps_its_deadline)
{
	struct host *host = open_host();

	obmm_recheck_hold(host->recheck);
	submit(host, 1);
	CHECK_EQ(obmm_ticket_collect(host->engine, host->tickets[0], 2000000), -ETIMEDOUT);
	CHECK_EQ(obmm_ticket_release(host->engine, host->tickets[0]), -EBUSY);
	CHECK_EQ(atomic_load(&host->calls), 0);
	obmm_recheck_resume(host->recheck, 1);
	CHECK_EQ(obmm_ticket_collect(host->engine, host->tickets[0], -1), 0);
	CHECK_EQ(host->outcomes[0].status, 0);
	close_host(host);
}

TEST(stopping_leaves_no_gather_unfinished)
{
	for (int round = 0; round < 50; round++) {
		struct host *host = open_host();

		submit(host, JOBS);
		CHECK_EQ(obmm_engine_stop(host->engine, -1), 0);
		for (int i = 0; i < JOBS; i++) {
			CHECK_EQ(obmm_ticket_collect(host->engine, host->tickets[i], 0), 0);
			CHECK(host->outcomes[i].status == 0 || host->outcomes[i].status == -ECANCELED);
		}
		close_host(host);
	}
}

/* A gather that takes seconds, all of it on one worker, until it is abandoned. */
enum { LONG_COUNT = 4 << 20, LONG_ROW = 4096 };

static struct obmm_request long_request(struct obmm_table *table)
{
	static uint8_t row[LONG_ROW], out[LONG_ROW] __attribute__((aligned(64)));
	int32_t *ids = calloc(LONG_COUNT, sizeof(*ids));

	REQUIRE(ids);
	*table = (struct obmm_table){ .base = row, .rows = 1, .row_bytes = LONG_ROW };
	obmm_tuning_default(&table->tuning, LONG_ROW, 0);
	table->tuning.order_rows = UINT32_MAX;
	/* every row from the same place to the same place */
	return (struct obmm_request){
		.table = table, .ids = ids, .count = LONG_COUNT, .id_bytes = 4, .out = out, .high = UINT64_MAX
	};
}

TEST(looking_is_enough_to_have_a_gather_checked_while_others_are_read)
{
	struct host *host = open_host();
	struct obmm_table table;
	struct obmm_request request = long_request(&table);
	struct obmm_outcome outcome;
	uint64_t ticket;
	unsigned int bad;

	REQUIRE(!obmm_engine_submit(host->engine, &request, 1, 1, &outcome, &ticket, &bad));
	submit(host, 1);
	while (obmm_ticket_collect(host->engine, host->tickets[0], 0) == -ETIMEDOUT)
		sched_yield();
	CHECK_EQ(host->outcomes[0].status, 0);
	CHECK_EQ(obmm_ticket_wait(host->engine, ticket, 0), -ETIMEDOUT);
	obmm_ticket_abandon(host->engine, ticket);
	CHECK_EQ(obmm_ticket_collect(host->engine, ticket, -1), 0);
	close_host(host);
	free((void *)request.ids);
}

TEST(gather_that_a_caller_outlasts_is_checked_without_being_asked_for)
{
	struct host *host = open_host();
	struct obmm_table table;
	struct obmm_request request = long_request(&table);
	struct timespec pause = { .tv_nsec = 20000 };
	struct obmm_outcome outcome;

	request.count = 4096;
	for (int round = 0; round < 60; round++) {
		int looks = 0;

		submit(host, 1);
		CHECK_EQ(obmm_engine_gather(host->engine, &request, 2, &outcome), request.count);
		/* seconds of looks at a word, and no call that would wake anybody */
		while (!__atomic_load_n(&host->outcomes[0].ready, __ATOMIC_ACQUIRE) && ++looks < 100000)
			nanosleep(&pause, NULL);
		REQUIRE(host->outcomes[0].ready == 3);
		CHECK_EQ(obmm_ticket_collect(host->engine, host->tickets[0], -1), 0);
	}
	close_host(host);
	free((void *)request.ids);
}

TEST(who_sees_that_a_gather_is_ready_collects_it_at_once)
{
	struct host *host = open_host();

	for (int i = 0; i < JOBS; i++)
		host->requests[i].recheck = NULL;
	for (int round = 0; round < 3000; round++) {
		submit(host, JOBS);
		for (int i = 0; i < JOBS; i++) {
			while (!__atomic_load_n(&host->outcomes[i].ready, __ATOMIC_ACQUIRE))
				;
			REQUIRE(!obmm_ticket_collect(host->engine, host->tickets[i], 0));
		}
	}
	close_host(host);
}

TEST(forked_child_may_free_a_recheck_that_a_thread_of_its_parent_waits_for)
{
	struct host *host = open_host();
	int status = -1;
	pid_t child;

	obmm_recheck_hold(host->recheck);
	submit(host, 1);
	CHECK_EQ(obmm_ticket_collect(host->engine, host->tickets[0], 50000000), -ETIMEDOUT);
	child = fork();
	if (!child) {
		alarm(10);
		obmm_recheck_free(host->recheck);
		_exit(0);
	}
	CHECK_EQ(waitpid(child, &status, 0), child);
	CHECK_EQ(status, 0);
	obmm_recheck_resume(host->recheck, 1);
	CHECK_EQ(obmm_ticket_collect(host->engine, host->tickets[0], -1), 0);
	close_host(host);
}

/* ---- everything at once ---- */

struct client {
	struct host *host;
	unsigned int seed;
	unsigned int ended[3]; /* gathers that were good, that failed in a way they may, that were abandoned */
	struct obmm_request requests[JOBS];
	struct obmm_outcome outcomes[JOBS];
	uint64_t tickets[JOBS];
	uint8_t out[JOBS][ROWS * ROW];
};

static void collect_somehow(struct client *client, int i)
{
	struct obmm_engine *engine = client->host->engine;
	struct obmm_outcome *outcome = &client->outcomes[i];
	bool abandoned = !(rand_r(&client->seed) % 4);
	int result;

	if (abandoned)
		CHECK_EQ(obmm_ticket_abandon(engine, client->tickets[i]), 0);
	switch (rand_r(&client->seed) % 3) {
	case 0:
		result = obmm_ticket_collect(engine, client->tickets[i], 20 * SECOND);
		break;
	case 1:
		while ((result = obmm_ticket_collect(engine, client->tickets[i], 0)) == -ETIMEDOUT)
			sched_yield();
		break;
	default:
		while ((result = obmm_ticket_release(engine, client->tickets[i])) == -EBUSY)
			sched_yield();
	}
	CHECK_EQ(result, 0);
	CHECK_EQ(outcome->ready, outcome->status ? 0 : 3);
	if (!outcome->status)
		CHECK(!memcmp(client->out[i], client->host->rows, sizeof(client->host->rows)));
	else if (outcome->status != -EPERM && outcome->status != -ESTALE)
		CHECK_EQ(outcome->status, -ECANCELED);
	client->ended[!outcome->status ? 0 : outcome->status != -ECANCELED ? 1 : 2]++;
}

/* Until the engine is stopped. */
static void *submit_and_collect(void *arg)
{
	struct client *client = arg;
	struct host *host = client->host;
	unsigned int n, first, bad;

	for (int i = 0; i < JOBS; i++) {
		client->requests[i] = host->requests[i];
		client->requests[i].out = client->out[i];
		if (i % 4 == 3)
			client->requests[i].recheck = NULL;
	}
	for (;;) {
		int result;

		n = 1 + (unsigned int)rand_r(&client->seed) % JOBS;
		result = obmm_engine_submit(host->engine, client->requests, n, 0, client->outcomes, client->tickets, &bad);
		if (result) {
			CHECK_EQ(result, -ESHUTDOWN);
			return NULL;
		}
		first = (unsigned int)rand_r(&client->seed);
		for (unsigned int i = 0; i < n; i++)
			collect_somehow(client, (int)((i + first) % n));
	}
}

static atomic_bool holders_end;

static void *hold_and_resume(void *arg)
{
	struct host *host = arg;
	unsigned int seed = 7;

	while (!atomic_load(&holders_end)) {
		obmm_recheck_hold(host->recheck);
		sched_yield();
		obmm_recheck_resume(host->recheck, rand_r(&seed) % 8 != 0);
		sched_yield();
	}
	return NULL;
}

TEST(every_gather_ends_once_whatever_happens_around_it)
{
	enum { CLIENTS = 3, ROUNDS = 4 };
	struct timespec a_while = { .tv_nsec = 100000000 };
	struct client *clients = calloc(CLIENTS, sizeof(*clients));
	unsigned int ended[3] = { 0 };

	REQUIRE(clients);
	for (int round = 0; round < ROUNDS; round++) {
		struct host *host = open_host();
		pthread_t threads[CLIENTS], holder;

		for (size_t i = 0; i < sizeof(host->rows); i++)
			host->rows[i] = (uint8_t)(i * 2654435761u >> 13);
		atomic_store(&holders_end, false);
		REQUIRE(!pthread_create(&holder, NULL, hold_and_resume, host));
		for (int i = 0; i < CLIENTS; i++) {
			clients[i].host = host;
			clients[i].seed = (unsigned int)(round * CLIENTS + i + 1);
			REQUIRE(!pthread_create(&threads[i], NULL, submit_and_collect, &clients[i]));
		}
		nanosleep(&a_while, NULL);
		CHECK_EQ(obmm_engine_stop(host->engine, 20 * SECOND), 0);
		for (int i = 0; i < CLIENTS; i++)
			pthread_join(threads[i], NULL);
		atomic_store(&holders_end, true);
		pthread_join(holder, NULL);
		CHECK_EQ(obmm_engine_in_use(host->engine), 0);
		close_host(host);
	}
	for (int i = 0; i < CLIENTS; i++) {
		for (int kind = 0; kind < 3; kind++)
			ended[kind] += clients[i].ended[kind];
	}
	CHECK(ended[0] && ended[1] && ended[2]);
	free(clients);
}

TEST(gather_on_its_callers_thread_waits_for_no_others_check)
{
	enum { HELD = 3 }; /* more than there are workers */
	struct host *host = open_host();
	struct obmm_recheck *rechecks[HELD];
	struct obmm_header_place place = { 5, 0x200000, 0x400000, &host->version, &host->gate };
	struct obmm_table table;
	struct obmm_request request = long_request(&table);
	struct obmm_outcome outcome;

	request.count = 4096;
	for (int i = 0; i < HELD; i++) {
		rechecks[i] = obmm_recheck_create(&host->sys, &place);
		REQUIRE(rechecks[i]);
		host->requests[i].recheck = rechecks[i];
	}
	submit(host, HELD);
	for (int i = 0; i < HELD; i++)
		CHECK_EQ(obmm_ticket_collect(host->engine, host->tickets[i], 5000000), -ETIMEDOUT);
	alarm(20); /* it hung here */
	CHECK_EQ(obmm_engine_gather(host->engine, &request, 2, &outcome), request.count);
	alarm(0);
	for (int i = 0; i < HELD; i++)
		obmm_recheck_resume(rechecks[i], 1);
	for (int i = 0; i < HELD; i++) {
		CHECK_EQ(obmm_ticket_collect(host->engine, host->tickets[i], -1), 0);
		CHECK_EQ(host->outcomes[i].status, 0);
		obmm_recheck_free(rechecks[i]);
	}
	close_host(host);
	free((void *)request.ids);
}

struct beside {
	struct obmm_engine *engine;
	struct obmm_request request;
	struct obmm_outcome outcome;
	atomic_bool done;
};

static void *gather_with_a_helper(void *arg)
{
	struct beside *beside = arg;

	CHECK_EQ(obmm_engine_gather(beside->engine, &beside->request, 2, &beside->outcome), beside->request.count);
	atomic_store(&beside->done, true);
	return NULL;
}

TEST(worker_that_goes_to_check_is_not_waited_for_by_the_gather_that_it_helped)
{
	struct host *host = open_host();
	struct obmm_recheck *other;
	struct obmm_header_place place = { 5, 0x200000, 0x400000, &host->version, &host->gate };
	struct obmm_table table, table_beside;
	struct obmm_request request = long_request(&table);
	struct beside beside = { .engine = host->engine, .request = long_request(&table_beside) };
	struct timespec until_it_helps = { .tv_nsec = 5000000 };
	struct obmm_outcome outcome;
	uint64_t ticket;
	unsigned int bad;
	pthread_t thread;

	other = obmm_recheck_create(&host->sys, &place);
	REQUIRE(other);
	host->requests[1].recheck = other;
	obmm_recheck_hold(host->recheck);
	/* one worker is busy, the other reads two gathers that are not waited for yet, and then helps */
	REQUIRE(!obmm_engine_submit(host->engine, &request, 1, 1, &outcome, &ticket, &bad));
	submit(host, 2);
	beside.request.count = 1 << 18;
	REQUIRE(!pthread_create(&thread, NULL, gather_with_a_helper, &beside));
	alarm(30); /* it hung here */
	while (obmm_engine_in_use(host->engine) < 4)
		sched_yield();
	nanosleep(&until_it_helps, NULL); /* which nothing shows */
	while (!atomic_load(&beside.done)) {
		for (int i = 0; i < 2; i++)
			CHECK_EQ(obmm_ticket_wait(host->engine, host->tickets[i], 1000000), -ETIMEDOUT);
	}
	alarm(0);
	pthread_join(thread, NULL);
	obmm_recheck_resume(host->recheck, 1);
	obmm_recheck_resume(other, 1);
	obmm_ticket_abandon(host->engine, ticket);
	CHECK_EQ(obmm_ticket_collect(host->engine, ticket, -1), 0);
	for (int i = 0; i < 2; i++) {
		CHECK_EQ(obmm_ticket_collect(host->engine, host->tickets[i], -1), 0);
		CHECK_EQ(host->outcomes[i].status, 0);
	}
	obmm_recheck_free(other);
	close_host(host);
	free((void *)request.ids);
	free((void *)beside.request.ids);
}
