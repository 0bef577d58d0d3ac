/* SPDX-License-Identifier: Apache-2.0 */
/* What follows a submitted gather: called once for each ticket, with its last word, before anybody sees the end. */
#include <errno.h>
#include <stdatomic.h>
#include <string.h>

#include "../engine/engine.h"
#include "test_copy.h"

enum { ROWS = 1024, ROW = 264, COUNT = 3000, JOBS = 16 };
#define SECOND 1000000000ll

static uint8_t *region;
static int region_fd;
static struct obmm_table table;
static int64_t ids[COUNT];
static uint8_t out[JOBS][COUNT][ROW];

struct told {
	struct obmm_engine *engine;
	uint64_t *ticket;
	_Atomic int calls;
	_Atomic int status;
	_Atomic uint64_t rows;
	_Atomic int seen_done;
	_Atomic int hold;
};

static void note(void *context, const struct obmm_outcome *outcome)
{
	struct told *told = context;

	/* takes the engine's lock, and must not find the end */
	if (told->ticket)
		atomic_fetch_add(&told->seen_done, obmm_ticket_wait(told->engine, *told->ticket, 0) != -ETIMEDOUT);
	atomic_fetch_add(&told->seen_done, outcome->ready != 0);
	atomic_store(&told->status, outcome->status);
	atomic_store(&told->rows, outcome->rows_read);
	atomic_fetch_add(&told->calls, 1);
	while (atomic_load(&told->hold))
		usleep(100);
}

static struct obmm_request request_for(struct told *told, int job, uint64_t count)
{
	return (struct obmm_request){ .table = &table,
				      .ids = ids,
				      .count = count,
				      .id_bytes = 8,
				      .out = &out[job][0][0],
				      .out_stride = ROW,
				      .high = UINT64_MAX,
				      .then = { note, told } };
}

static struct obmm_engine *start(unsigned int workers)
{
	struct obmm_engine *engine;

	CHECK(!obmm_engine_create(workers, 0, NULL, 0, &engine));
	return engine;
}

static void each_ticket_is_told_once_before_it_is_done(void)
{
	struct obmm_engine *engine = start(3);
	struct obmm_request requests[JOBS];
	struct obmm_outcome outcomes[JOBS];
	struct told told[JOBS];
	uint64_t tickets[JOBS];
	unsigned int bad;

	for (int round = 0; round < 50; round++) {
		memset(told, 0, sizeof(told));
		for (int i = 0; i < JOBS; i++) {
			requests[i] = request_for(&told[i], i, i == 3 ? 0 : (uint64_t)(i + 1) * 180);
			told[i].engine = engine;
		}
		CHECK(!obmm_engine_submit(engine, requests, JOBS, 0, outcomes, tickets, &bad));
		for (int i = 0; i < JOBS; i++) {
			CHECK(!obmm_ticket_collect(engine, tickets[i], -1));
			CHECK(told[i].calls == 1 && told[i].status == 0 && told[i].rows == requests[i].count);
			CHECK(!told[i].seen_done && outcomes[i].ready == 1);
		}
	}
	obmm_engine_free(engine);
}

static void the_end_is_unseen_while_it_is_told(void)
{
	struct obmm_engine *engine = start(2);
	struct told told = { .engine = engine, .hold = 1 };
	struct obmm_request request = request_for(&told, 0, 500);
	struct obmm_outcome outcome;
	uint64_t ticket;
	unsigned int bad;

	CHECK(!obmm_engine_submit(engine, &request, 1, 0, &outcome, &ticket, &bad));
	while (!atomic_load(&told.calls))
		usleep(100);
	CHECK(obmm_ticket_collect(engine, ticket, 0) == -ETIMEDOUT);
	CHECK(obmm_ticket_wait(engine, ticket, 2000000) == -ETIMEDOUT);
	CHECK(obmm_ticket_release(engine, ticket) == -EBUSY);
	/* too late to end it in another way, and it is not told twice */
	CHECK(!obmm_ticket_abandon(engine, ticket));
	atomic_store(&told.hold, 0);
	CHECK(!obmm_ticket_collect(engine, ticket, -1));
	CHECK(told.calls == 1 && outcome.status == 0);
	obmm_engine_free(engine);
}

static void a_fault_is_told(void)
{
	struct obmm_engine *engine = start(2);
	struct told told = { .engine = engine };
	struct obmm_request request = request_for(&told, 0, 600);
	struct obmm_outcome outcome;
	struct obmm_table holed = table;
	uint64_t ticket;
	unsigned int bad;
	int fd, slot;

	holed.base = map_memfd((size_t)ROWS * ROW, &fd);
	slot = obmm_guard_add(holed.base, (size_t)ROWS * ROW, 7);
	CHECK(!ftruncate(fd, 0));
	request.table = &holed;
	CHECK(!obmm_engine_submit(engine, &request, 1, 0, &outcome, &ticket, &bad));
	CHECK(!obmm_ticket_collect(engine, ticket, -1));
	CHECK(told.calls == 1 && told.status == -EFAULT);
	obmm_engine_free(engine);
	CHECK(!obmm_guard_remove(slot));
	munmap((void *)holed.base, (size_t)ROWS * ROW);
	close(fd);
}

static void what_is_abandoned_or_stopped_is_told_too(void)
{
	for (int round = 0; round < 20; round++) {
		struct obmm_engine *engine = start(1);
		struct obmm_request requests[JOBS];
		struct obmm_outcome outcomes[JOBS];
		struct told told[JOBS];
		uint64_t tickets[JOBS];
		unsigned int bad;

		memset(told, 0, sizeof(told));
		for (int i = 0; i < JOBS; i++) {
			requests[i] = request_for(&told[i], i, COUNT);
			told[i].engine = engine;
		}
		CHECK(!obmm_engine_submit(engine, requests, JOBS, 0, outcomes, tickets, &bad));
		CHECK(!obmm_ticket_abandon(engine, tickets[JOBS - 1]));
		CHECK(!obmm_engine_stop(engine, 60 * SECOND));
		for (int i = 0; i < JOBS; i++) {
			CHECK(!obmm_ticket_collect(engine, tickets[i], -1));
			CHECK(told[i].calls == 1 && told[i].status == outcomes[i].status);
			CHECK(outcomes[i].status == 0 || outcomes[i].status == -ECANCELED);
		}
		obmm_engine_free(engine);
	}
}

static void a_gather_that_its_caller_waits_in_is_not_told(void)
{
	struct obmm_engine *engine = start(2);
	struct told told = { .engine = engine };
	struct obmm_request request = request_for(&told, 0, COUNT);
	struct obmm_outcome outcome;

	for (unsigned int threads = 1; threads <= 3; threads++)
		CHECK(obmm_engine_gather(engine, &request, threads, &outcome) == COUNT);
	CHECK(told.calls == 0);
	obmm_engine_free(engine);
}

int main(void)
{
	region = map_memfd((size_t)ROWS * ROW, &region_fd);
	table = (struct obmm_table){ .base = region, .rows = ROWS, .row_stride = ROW, .row_bytes = ROW };
	obmm_tuning_default(&table.tuning, ROW, 0);
	for (int i = 0; i < COUNT; i++)
		ids[i] = (int64_t)((uint64_t)i * 2654435761u >> 5) % ROWS;
	CHECK(!obmm_guard_install());
	each_ticket_is_told_once_before_it_is_done();
	the_end_is_unseen_while_it_is_told();
	a_fault_is_told();
	what_is_abandoned_or_stopped_is_told_too();
	a_gather_that_its_caller_waits_in_is_not_told();
	munmap(region, (size_t)ROWS * ROW);
	puts("test_completion: ok");
	return 0;
}
