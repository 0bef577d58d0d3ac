/* SPDX-License-Identifier: Apache-2.0 */
/* Gathers handed to workers that spin: all of them come, or are not waited for. */
#include <pthread.h>
#include <sched.h>
#include <unistd.h>

#include "../engine/engine_internal.h"
#include "test.h"

#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
enum { GATHERS = 100 };
#else
enum { GATHERS = 600 };
#endif
enum { ROWS = 500, ROW = 72, COUNT = 1536, WORKERS = 6, CALLERS = 3 };

static uint8_t region[ROWS * ROW], outs[CALLERS][COUNT * ROW] __attribute__((aligned(64)));
static int64_t ids[COUNT];
static uint64_t version = 8;
static struct obmm_table table;
static _Atomic bool over;

/* As if there were CPUs for all of them: what is tried here must not depend on how many this machine has. */
static void make_room(struct obmm_engine *engine)
{
	atomic_store(&engine->team.limit, WORKERS);
	atomic_store(&engine->team.room, WORKERS);
}

static struct obmm_engine *start(unsigned int workers)
{
	struct obmm_engine *engine;

	CHECK(!obmm_guard_install());
	for (int i = 0; i < ROWS * ROW; i++)
		region[i] = (uint8_t)(i * 7 + i / ROW);
	for (int i = 0; i < COUNT; i++)
		ids[i] = (int64_t)i * 31 % ROWS;
	table = (struct obmm_table){ .base = region, .rows = ROWS, .row_stride = ROW, .row_bytes = ROW, .version = &version };
	obmm_tuning_default(&table.tuning, ROW, 0);
	CHECK(!obmm_engine_create(workers, 0, NULL, 0, &engine));
	return engine;
}

static struct obmm_request request_into(uint8_t *out, uint64_t count)
{
	return (struct obmm_request){ .table = &table, .ids = ids, .count = count, .id_bytes = 8, .out = out,
				      .out_stride = ROW, .high = UINT64_MAX };
}

static bool is_right(const uint8_t *out, uint64_t count)
{
	for (uint64_t i = 0; i < count; i++) {
		if (memcmp(out + i * ROW, region + ids[i] * ROW, ROW))
			return false;
	}
	return true;
}

/* ---- shares ---- */

TEST(every_lane_has_its_part)
{
	obmm_engine_drop(&(struct obmm_engine *){ start(0) });
	for (unsigned int threads = 2; threads <= OBMM_LANES; threads++) {
		for (uint64_t count = threads; count < 3000; count += 7) {
			struct obmm_request request = request_into(outs[0], count);
			struct obmm_shares shares;
			uint64_t at = 0, most;

			obmm_shares_make(&shares, &request, threads);
			most = (count + threads - 1) / threads + shares.size - 1;
			for (uint32_t lane = 0; lane < shares.n_lanes; lane++) {
				CHECK_EQ(shares.lanes[lane].next, at);
				CHECK(shares.lanes[lane].end - at <= most);
				at = shares.lanes[lane].end;
			}
			CHECK_EQ(at, count);
		}
	}
}

TEST(one_thread_alone_writes_past_the_caches_when_it_is_told_to)
{
	struct obmm_engine *engine = start(0);
	struct obmm_request request = request_into(outs[0], COUNT);
	struct obmm_outcome outcome;

	table.tuning.stream_bytes = UINT32_MAX;
	table.tuning.stream_alone = 0;
	memset(outs[0], 0, sizeof(outs[0]));
	CHECK_EQ(obmm_engine_gather(engine, &request, 1, &outcome), COUNT);
	CHECK(is_right(outs[0], COUNT));
	obmm_engine_free(engine);
}

/* ---- everybody comes ---- */

struct meeting {
	struct obmm_work work;
	_Atomic unsigned int here;
};

/* Stays until all are there, or for a while: who does not come is not waited for by the engine either. */
static int meet(struct obmm_work *work, uint64_t from, uint64_t to)
{
	struct meeting *meeting = (struct meeting *)work;

	atomic_fetch_add(&meeting->here, (unsigned int)(to - from));
	for (int i = 0; i < 50 && atomic_load(&meeting->here) < WORKERS + 1; i++)
		usleep(100);
	return 0;
}

/* Two are there for certain. */
static int meet_another(struct obmm_work *work, uint64_t from, uint64_t to)
{
	struct meeting *meeting = (struct meeting *)work;

	atomic_fetch_add(&meeting->here, (unsigned int)(to - from));
	while (atomic_load(&meeting->here) < 2)
		usleep(100);
	return 0;
}

static unsigned int open_hands(const struct obmm_engine *engine)
{
	unsigned int open = 0;

	for (unsigned int i = 0; i < engine->threads; i++)
		open += engine_hand_is_open(&engine->workers[i]);
	return open;
}

TEST(all_come_whether_handed_to_or_from_the_line)
{
	struct obmm_engine *engine = start(WORKERS);

	for (int round = 0; round < 50; round++) {
		struct meeting meeting = { { meet, 1 }, 0 };
		struct obmm_request request = { .table = &table, .count = WORKERS + 1, .work = &meeting.work };
		struct obmm_outcome outcome;

		make_room(engine);
		obmm_engine_expect(engine, 500000);
		for (int i = 0; i < 100 && open_hands(engine) < (unsigned int)round % (WORKERS + 1); i++)
			sched_yield();
		CHECK_EQ(obmm_engine_gather(engine, &request, WORKERS + 1, &outcome), 0);
		CHECK_EQ(atomic_load(&meeting.here), WORKERS + 1);
		CHECK(outcome.threads >= 1 && outcome.threads <= WORKERS + 1);
	}
	obmm_engine_free(engine);
}

struct call {
	struct obmm_engine *engine;
	struct meeting meeting;
	struct obmm_outcome outcome;
};

static void *gather_with_another(void *arg)
{
	struct call *call = arg;
	struct obmm_request request = { .table = &table, .count = 2, .work = &call->meeting.work };

	CHECK_EQ(obmm_engine_gather(call->engine, &request, 2, &call->outcome), 0);
	return NULL;
}

TEST(who_was_handed_a_gather_takes_part_and_the_line_stays_empty)
{
	struct call call = { start(1), { { meet_another, 1 }, 0 }, { 0 } };
	pthread_t caller;

	while (!atomic_load(&call.engine->team.sleeping))
		usleep(500);
	/* the worker sleeps, and this thread plays it */
	CHECK(engine_hand_open(&call.engine->workers[0]));
	CHECK(!pthread_create(&caller, NULL, gather_with_another, &call));
	while (!engine_hand_run(&call.engine->workers[0]))
		usleep(100);
	CHECK(!pthread_join(caller, NULL));
	CHECK_EQ(atomic_load(&call.meeting.here), 2);
	CHECK_EQ(call.outcome.threads, 2);
	CHECK_EQ(atomic_load(&call.engine->line.tail), 0);
	CHECK(!atomic_load(&call.engine->giving));
	obmm_engine_free(call.engine);
}

/* ---- nobody comes ---- */

TEST(a_worker_that_does_not_come_is_not_waited_for)
{
	struct obmm_engine *engine = start(1);
	struct obmm_request request = request_into(outs[0], COUNT);
	struct obmm_outcome outcome;

	while (!atomic_load(&engine->team.sleeping))
		usleep(500);
	/* as a caller may see it that looks just before the worker goes to sleep */
	CHECK(engine_hand_open(&engine->workers[0]));
	CHECK_EQ(obmm_engine_gather(engine, &request, 2, &outcome), COUNT);
	CHECK(is_right(outs[0], COUNT));
	CHECK_EQ(outcome.threads, 1);
	CHECK(!atomic_load(&engine->giving));
	/* nothing was left with it */
	CHECK(!engine_hand_is_open(&engine->workers[0]) && engine_hand_open(&engine->workers[0]));
	CHECK(engine_hand_close(&engine->workers[0]) && !engine_hand_run(&engine->workers[0]));
	obmm_engine_free(engine);
}

TEST(a_second_caller_finds_no_hands_and_gathers_all_the_same)
{
	struct obmm_engine *engine = start(1);
	struct obmm_request request = request_into(outs[0], COUNT);
	struct obmm_outcome outcome;

	while (!atomic_load(&engine->team.sleeping))
		usleep(500);
	CHECK(engine_hand_open(&engine->workers[0]));
	atomic_store(&engine->giving, true); /* as if somebody had them */
	CHECK_EQ(obmm_engine_gather(engine, &request, 2, &outcome), COUNT);
	CHECK(is_right(outs[0], COUNT) && engine_hand_is_open(&engine->workers[0]));
	CHECK(atomic_load(&engine->giving) && engine_hand_close(&engine->workers[0]));
	obmm_engine_free(engine);
}

/* ---- everything at once ---- */

static struct obmm_engine *shared;

static void *gather_often(void *arg)
{
	unsigned int seed = (unsigned int)(uintptr_t)arg;
	uint8_t *out = outs[(uintptr_t)arg];

	for (int round = 0; round < GATHERS; round++) {
		struct obmm_request request = request_into(out, 1 + (uint64_t)rand_r(&seed) % COUNT);
		struct obmm_outcome outcome;

		make_room(shared);
		if (rand_r(&seed) % 4)
			obmm_engine_expect(shared, rand_r(&seed) % 400000);
		if (!(rand_r(&seed) % 8))
			usleep((useconds_t)(rand_r(&seed) % 200));
		memset(out, 0, request.count * ROW);
		CHECK_EQ(obmm_engine_gather(shared, &request, (unsigned int)rand_r(&seed) % (WORKERS + 2), &outcome),
			 (int64_t)request.count);
		CHECK_EQ(outcome.rows_read, request.count);
		CHECK_EQ(outcome.version, 8);
		CHECK(outcome.threads >= 1 && outcome.threads <= WORKERS + 1);
		CHECK(is_right(out, request.count));
	}
	return NULL;
}

static void *submit_often(void *arg)
{
	static uint8_t out[COUNT * ROW];
	struct obmm_request request = request_into(out, COUNT);

	(void)arg;
	while (!atomic_load(&over)) {
		struct obmm_outcome outcome;
		uint64_t ticket;
		unsigned int bad;

		CHECK(!obmm_engine_submit(shared, &request, 1, 3, &outcome, &ticket, &bad));
		CHECK(!obmm_ticket_collect(shared, ticket, -1) && is_right(out, COUNT));
	}
	return NULL;
}

TEST(callers_and_tickets_do_not_disturb_each_other)
{
	pthread_t threads[CALLERS], other;

	shared = start(WORKERS);
	atomic_store(&over, false);
	CHECK(!pthread_create(&other, NULL, submit_often, NULL));
	for (uintptr_t i = 0; i < CALLERS; i++)
		CHECK(!pthread_create(&threads[i], NULL, gather_often, (void *)i));
	for (int i = 0; i < CALLERS; i++)
		CHECK(!pthread_join(threads[i], NULL));
	atomic_store(&over, true);
	CHECK(!pthread_join(other, NULL));
	CHECK(!obmm_engine_in_use(shared) && !atomic_load(&shared->giving));
	obmm_engine_free(shared);
}
