/* SPDX-License-Identifier: Apache-2.0 */
/* Workers that were told to be ready, and everything at once. */
#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <string.h>
#include <time.h>

#include "../core/clock.h"
#include "../engine/engine.h"
#include "../engine/pace.h"
#include "test_copy.h"

#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
enum { ROUNDS = 60 };
#else
enum { ROUNDS = 400 };
#endif
enum { ROWS = 2048, ROW = 264, COUNT = 6144, WORKERS = 6, CALLERS = 5 };
#define SECOND 1000000000ll

static uint8_t *region, *holed_region;
static int holed_fd;
static struct obmm_table table, holed;
static struct obmm_pace pace;
static int64_t ids[COUNT];

static uint64_t word_of(int64_t row, size_t i)
{
	return (uint64_t)(row + 1) * 0x9e3779b97f4a7c15ull + i;
}

static int is_right(const uint8_t *out, uint64_t count)
{
	for (uint64_t i = 0; i < count; i++) {
		for (size_t w = 0; w < ROW / 8; w += 8) {
			if (((const uint64_t *)(out + i * ROW))[w] != word_of(ids[i], w))
				return 0;
		}
	}
	return 1;
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

static struct obmm_engine *start(unsigned int workers)
{
	struct obmm_engine *engine;

	CHECK(!obmm_engine_create(workers, 0, NULL, 0, &engine));
	return engine;
}

static uint8_t *buffer(void)
{
	uint8_t *out = aligned_alloc(64, (size_t)COUNT * ROW);

	CHECK(out);
	memset(out, 0, (size_t)COUNT * ROW);
	return out;
}

static void an_expectation_ends_by_itself(void)
{
	struct obmm_engine *engine = start(WORKERS);
	uint64_t in_vain, before, began = obmm_now_ns();
	unsigned int told = 0;

	for (int i = 0; i < 20; i++) {
		unsigned int now_told = obmm_engine_expect(engine, 3600 * SECOND);

		CHECK(now_told <= WORKERS);
		told = told > now_told ? told : now_told;
		usleep(1000);
	}
	usleep(20000);
	before = obmm_engine_spun_ns(engine, &in_vain);
	usleep(50000);
	CHECK(obmm_engine_spun_ns(engine, &in_vain) == before && in_vain <= before);
	/* each of 20 was half a millisecond at most, for as many as were told */
	CHECK(before <= (uint64_t)(told + 1) * (obmm_now_ns() - began));
	CHECK(!obmm_engine_expect(engine, 0) && !obmm_engine_expect(engine, -5));
	obmm_engine_free(engine);
}

static void gathers_are_right_whether_expected_or_not(void)
{
	struct obmm_engine *engine = start(WORKERS);
	uint8_t *out = buffer();
	unsigned int seed = 1;

	for (int round = 0; round < ROUNDS; round++) {
		uint64_t count = (uint64_t)(rand_r(&seed) % COUNT);
		struct obmm_request request = request_for(out, count);
		struct obmm_outcome outcome;

		if (round % 3)
			obmm_engine_expect(engine, rand_r(&seed) % 400000);
		if (round % 5 == 0)
			usleep((useconds_t)(rand_r(&seed) % 300));
		memset(out, 0, count * ROW);
		CHECK(obmm_engine_gather(engine, &request, (unsigned int)round % 9, &outcome) == (int64_t)count);
		CHECK(outcome.rows_read == count && is_right(out, count));
		CHECK(outcome.threads >= 1 && outcome.threads <= WORKERS + 1);
	}
	CHECK(!obmm_engine_in_use(engine));
	obmm_engine_free(engine);
	free(out);
}

/* ---- no worker takes work from the line ---- */

static _Atomic int stuck, let_go;

static void get_stuck(void *context, const struct obmm_outcome *outcome)
{
	(void)context;
	(void)outcome;
	atomic_fetch_add(&stuck, 1);
	while (!atomic_load(&let_go))
		usleep(500);
}

static void a_line_that_is_not_worked_off_takes_any_number_of_gathers(void)
{
	struct obmm_engine *engine = start(2);
	uint8_t *out = buffer();
	struct obmm_request first[3], request = request_for(out + 300 * ROW, 100);
	struct obmm_outcome outcomes[3], outcome;
	uint64_t tickets[3], ticket;
	unsigned int bad;

	atomic_store(&stuck, 0);
	atomic_store(&let_go, 0);
	for (int i = 0; i < 3; i++) {
		first[i] = request_for(out + i * 100 * ROW, 100);
		first[i].then.call = i < 2 ? get_stuck : NULL;
	}
	CHECK(!obmm_engine_submit(engine, first, 2, 1, outcomes, tickets, &bad));
	while (atomic_load(&stuck) < 2)
		usleep(500);
	/* stays at the head of the line */
	CHECK(!obmm_engine_submit(engine, &first[2], 1, 1, &outcomes[2], &tickets[2], &bad));
	for (int i = 0; i < 3000; i++) {
		CHECK(!obmm_engine_submit(engine, &request, 1, 1, &outcome, &ticket, &bad));
		CHECK(!obmm_ticket_abandon(engine, ticket));
		CHECK(!obmm_ticket_collect(engine, ticket, 0) && outcome.status == -ECANCELED);
	}
	atomic_store(&let_go, 1);
	for (int i = 0; i < 3; i++)
		CHECK(!obmm_ticket_collect(engine, tickets[i], 60 * SECOND) && !outcomes[i].status);
	CHECK(is_right(out, 100) && is_right(first[2].out, 100));
	obmm_engine_free(engine);
	free(out);
}

/* ---- everything at once ---- */

static struct obmm_engine *shared;
static _Atomic int told;

static void tell(void *context, const struct obmm_outcome *outcome)
{
	(void)outcome;
	atomic_fetch_add((_Atomic int *)context, 1);
	atomic_fetch_add(&told, 1);
}

/* As a prefetcher: expect, submit several, look, wait with a deadline, abandon some. */
static void one_step(uint8_t *out, unsigned int *seed)
{
	enum { JOBS = 4 };
	struct obmm_request requests[JOBS];
	struct obmm_outcome outcomes[JOBS];
	uint64_t tickets[JOBS];
	_Atomic int calls[JOBS];
	unsigned int bad;
	int result;

	obmm_engine_expect(shared, 200000);
	for (int i = 0; i < JOBS; i++) {
		atomic_store(&calls[i], 0);
		requests[i] = request_for(out + (size_t)i * (COUNT / JOBS) * ROW, (uint64_t)(rand_r(seed) % (COUNT / JOBS)));
		requests[i].then = (struct obmm_completion){ tell, (void *)&calls[i] };
	}
	do
		result = obmm_engine_submit(shared, requests, JOBS, (unsigned int)rand_r(seed) % 4, outcomes, tickets, &bad);
	while (result == -EAGAIN);
	CHECK(!result);
	for (int i = 0; i < JOBS; i++) {
		if (rand_r(seed) % 4 == 0)
			CHECK(!obmm_ticket_abandon(shared, tickets[i]));
		while ((result = obmm_ticket_collect(shared, tickets[i], rand_r(seed) % 3 ? 1000 * (rand_r(seed) % 500) : 0)))
			CHECK(result == -ETIMEDOUT);
		CHECK(atomic_load(&calls[i]) == 1);
		CHECK(outcomes[i].status == 0 || outcomes[i].status == -ECANCELED);
		CHECK(outcomes[i].status || is_right(requests[i].out, requests[i].count));
	}
}

/* A peer that died: some rows fault. */
static void one_fault(uint8_t *out, unsigned int *seed)
{
	static __thread uint8_t marks[COUNT];
	struct obmm_failures failures = { .rows = marks };
	uint64_t count = (uint64_t)(rand_r(seed) % 64) + 1;
	struct obmm_request request = request_for(out, count);
	struct obmm_outcome outcome;

	request.table = &holed;
	request.failures = rand_r(seed) % 2 ? &failures : NULL;
	CHECK(obmm_engine_gather(shared, &request, (unsigned int)rand_r(seed) % 5, &outcome) == -EFAULT);
	if (!request.failures || !failures.failed)
		return;
	for (uint64_t i = 0; i < count; i++) {
		uint64_t word = *(const uint64_t *)(out + i * ROW);

		CHECK(marks[i] == (ids[i] >= ROWS / 2) && word == (marks[i] ? 0 : word_of(ids[i], 0)));
	}
}

static void *storm(void *arg)
{
	unsigned int seed = (unsigned int)(uintptr_t)arg;
	uint8_t *out = buffer();

	for (int round = 0; round < ROUNDS / 2; round++) {
		struct obmm_request request = request_for(out, (uint64_t)(rand_r(&seed) % COUNT));
		struct obmm_outcome outcome;

		switch (rand_r(&seed) % 4) {
		case 0:
			one_step(out, &seed);
			break;
		case 1:
			one_fault(out, &seed);
			break;
		default:
			if (rand_r(&seed) % 2)
				obmm_engine_expect(shared, rand_r(&seed) % 300000);
			CHECK(obmm_engine_gather(shared, &request, (unsigned int)rand_r(&seed) % 4, &outcome) ==
			      (int64_t)request.count);
			CHECK(is_right(out, request.count));
		}
	}
	free(out);
	return NULL;
}

static void steps_faults_and_callers_do_not_disturb_each_other(void)
{
	pthread_t threads[CALLERS];

	shared = start(WORKERS);
	for (uintptr_t i = 0; i < CALLERS; i++)
		CHECK(!pthread_create(&threads[i], NULL, storm, (void *)(i + 1)));
	for (int i = 0; i < CALLERS; i++)
		CHECK(!pthread_join(threads[i], NULL));
	CHECK(!obmm_engine_in_use(shared) && atomic_load(&told));
	obmm_engine_free(shared);
}

static void *expect_for_ever(void *arg)
{
	while (!atomic_load((_Atomic int *)arg))
		obmm_engine_expect(shared, 100000);
	return NULL;
}

static void an_engine_stops_while_gathers_are_expected(void)
{
	for (int round = 0; round < 20; round++) {
		_Atomic int end = 0;
		pthread_t thread;

		shared = start(WORKERS);
		CHECK(!pthread_create(&thread, NULL, expect_for_ever, (void *)&end));
		usleep(1000);
		CHECK(!obmm_engine_stop(shared, 60 * SECOND));
		CHECK(!obmm_engine_expect(shared, 100000));
		atomic_store(&end, 1);
		CHECK(!pthread_join(thread, NULL));
		obmm_engine_free(shared);
	}
}

int main(void)
{
	int fd, slot;

	region = map_memfd((size_t)ROWS * ROW, &fd);
	holed_region = map_memfd((size_t)ROWS * ROW, &holed_fd);
	for (int64_t row = 0; row < ROWS; row++) {
		for (size_t i = 0; i < ROW / 8; i++)
			((uint64_t *)(region + row * ROW))[i] = word_of(row, i);
	}
	memcpy(holed_region, region, (size_t)ROWS * ROW);
	table = (struct obmm_table){ .base = region, .rows = ROWS, .row_stride = ROW, .row_bytes = ROW, .pace = &pace };
	obmm_tuning_default(&table.tuning, ROW, 0);
	holed = table;
	holed.base = holed_region;
	for (int i = 0; i < COUNT; i++)
		ids[i] = (int64_t)((uint64_t)i * 2654435761u >> 5) % ROWS;
	ids[0] = ROWS - 1; /* every gather from the cut memory faults */
	slot = obmm_guard_add(holed_region, (size_t)ROWS * ROW, 3);
	CHECK(slot >= 0 && !ftruncate(holed_fd, (ROWS / 2 * ROW + 4095) & ~4095));
	for (int i = 1; i < COUNT; i++) {
		/* the page in between has rows of both halves */
		if (ids[i] >= ROWS / 2 && ids[i] < ROWS / 2 + 32)
			ids[i] = 1;
	}
	an_expectation_ends_by_itself();
	gathers_are_right_whether_expected_or_not();
	a_line_that_is_not_worked_off_takes_any_number_of_gathers();
	steps_faults_and_callers_do_not_disturb_each_other();
	an_engine_stops_while_gathers_are_expected();
	CHECK(!obmm_guard_remove(slot));
	puts("test_team: ok");
	return 0;
}
