/* SPDX-License-Identifier: Apache-2.0 */
/* How long workers stay awake for gathers that nobody announced, and for one that has begun. */
#include <unistd.h>

#include "../engine/engine_internal.h"
#include "test.h"

enum { WORKERS = 2, GAP_NS = 5000, TOOK_NS = 100000, SHORTEST_NS = 15000, LONGEST_NS = 100000, MOST_NS = 500000 };

static struct obmm_engine *start(void)
{
	struct obmm_engine *engine;

	CHECK(!obmm_engine_create(WORKERS, 0, NULL, 0, &engine));
	atomic_store(&engine->team.limit, WORKERS);
	atomic_store(&engine->team.room, WORKERS);
	return engine;
}

/* As if gathers had followed each other, with all workers awake. */
static uint64_t in_a_row(struct obmm_engine *engine, uint64_t gap_ns)
{
	uint64_t now = obmm_now_ns();

	atomic_store(&engine->team.streak, 3);
	atomic_store(&engine->team.gap_ns, gap_ns);
	atomic_store(&engine->team.took_ns, TOOK_NS);
	atomic_store(&engine->team.done_ns, now - gap_ns);
	atomic_store(&engine->team.paid_ns, now);
	atomic_store(&engine->team.ready, WORKERS);
	return now;
}

static void end(struct obmm_engine *engine)
{
	atomic_store(&engine->team.ready, 0);
	atomic_store(&engine->team.expected_ns, 0);
	obmm_engine_free(engine);
}

TEST(a_guess_counts_from_the_end_of_a_gather)
{
	struct obmm_engine *engine = start();
	uint64_t now = in_a_row(engine, GAP_NS), until;

	CHECK(engine_team_begins(engine, now, WORKERS + 1) == WORKERS);
	until = atomic_load(&engine->team.expected_ns);
	CHECK(until >= now + TOOK_NS + SHORTEST_NS && until <= now + 2 * TOOK_NS + LONGEST_NS);
	/* longer than a gap, but not longer than a few */
	engine_team_done(engine, now + TOOK_NS);
	until = atomic_load(&engine->team.expected_ns);
	CHECK(until >= now + TOOK_NS + SHORTEST_NS && until <= now + TOOK_NS + SHORTEST_NS + 4 * GAP_NS);
	end(engine);
}

TEST(a_submission_without_rows_wakes_nobody)
{
	struct obmm_engine *engine = start();
	struct obmm_request requests[2] = { { .id_bytes = 8 }, { .id_bytes = 8 } };
	static struct obmm_table table;
	struct obmm_outcome outcomes[2];
	uint64_t tickets[2];
	unsigned int bad;
	uint32_t word;

	for (int i = 0; i < 2; i++) {
		requests[i].table = &table;
		requests[i].high = UINT64_MAX;
	}
	word = engine_team_word(engine);
	CHECK(!obmm_engine_submit(engine, requests, 2, 3, outcomes, tickets, &bad));
	for (int i = 0; i < 2; i++)
		CHECK(!obmm_ticket_collect(engine, tickets[i], 0) && !outcomes[i].status);
	CHECK(engine_team_word(engine) == word);
	end(engine);
}

TEST(no_guess_outlasts_the_longest_gap)
{
	struct obmm_engine *engine = start();
	uint64_t now = in_a_row(engine, LONGEST_NS - 1);

	engine_team_done(engine, now);
	CHECK(atomic_load(&engine->team.expected_ns) == now + LONGEST_NS);
	/* a pause ends the row */
	CHECK(engine_team_begins(engine, now + 2 * LONGEST_NS, WORKERS + 1) == WORKERS);
	engine_team_done(engine, now + 2 * LONGEST_NS + TOOK_NS);
	CHECK(!atomic_load(&engine->team.expected_ns));
	end(engine);
}

TEST(what_guesses_have_cost_too_much_are_not_made)
{
	struct obmm_engine *engine = start();
	uint64_t now = in_a_row(engine, GAP_NS);

	atomic_store(&engine->team.budget_ns, -1000000);
	CHECK(engine_team_begins(engine, now, WORKERS + 1) == WORKERS);
	CHECK(!atomic_load(&engine->team.expected_ns));
	engine_team_done(engine, now + TOOK_NS);
	CHECK(!atomic_load(&engine->team.expected_ns));
	end(engine);
}

/* ---- what guesses cost ---- */

enum { MANY = 15, MS = 1000000 };

/* An engine as if of many workers that are all awake; none exists, and time is what the test says. */
static struct obmm_engine *many_awake(void)
{
	struct obmm_engine *engine;

	CHECK(!obmm_engine_create(0, 0, NULL, 0, &engine));
	atomic_store(&engine->team.limit, MANY);
	atomic_store(&engine->team.room, MANY);
	atomic_store(&engine->team.ready, MANY);
	return engine;
}

/* One gather -> when it has ended. */
static uint64_t one(struct obmm_engine *engine, uint64_t now)
{
	engine_team_begins(engine, now, MANY + 1);
	engine_team_done(engine, now + 40000);
	return now + 40000;
}

static uint64_t guessed_for(struct obmm_engine *engine, uint64_t now)
{
	uint64_t until = atomic_load(&engine->team.expected_ns);

	return until > now ? until - now : 0;
}

/* Nothing follows: all spin until the guess is over. -> what that costs */
static uint64_t in_vain(struct obmm_engine *engine, uint64_t now)
{
	uint64_t cost = MANY * guessed_for(engine, now);

	atomic_fetch_sub(&engine->team.budget_ns, (int64_t)cost);
	return cost;
}

TEST(rows_of_a_few_gathers_cost_less_than_a_hundredth_of_a_cpu_in_vain)
{
	struct obmm_engine *engine = many_awake();
	uint64_t now = obmm_now_ns(), cost = 0;
	enum { STEPS = 2000, SETTLED = 200 };

	for (int step = 0; step < STEPS; step++) {
		uint64_t began = now;

		for (int i = 0; i < 6; i++)
			now = one(engine, now + GAP_NS);
		cost += in_vain(engine, now) * (step >= SETTLED);
		now = began + 10 * MS;
	}
	CHECK(cost && cost < (uint64_t)(STEPS - SETTLED) * 10 * MS / 100);
	obmm_engine_free(engine);
}

TEST(who_gathers_without_end_is_waited_for_again_soon)
{
	struct obmm_engine *engine = many_awake();
	uint64_t now = obmm_now_ns();
	int guesses = 0;

	/* an accident that costs much more than any budget */
	atomic_store(&engine->team.budget_ns, -1000 * MS);
	for (int i = 0; i < 24; i++)
		now = one(engine, now + GAP_NS);
	CHECK(guessed_for(engine, now));
	/* ... and every now and then a gap is too long */
	for (int i = 0; i < 1000; i++) {
		now = one(engine, now + GAP_NS);
		guesses += guessed_for(engine, now) > 0;
		if (i % 40 == 0) {
			in_vain(engine, now);
			now += 60000;
		}
	}
	CHECK(guesses > 950);
	obmm_engine_free(engine);
}

static uint64_t learned_from(struct obmm_engine *engine, uint64_t nanoseconds)
{
	struct obmm_outcome outcome = { .nanoseconds = nanoseconds, .threads = WORKERS };

	engine_team_has_gathered(engine, &outcome);
	return atomic_load(&engine->team.took_ns);
}

TEST(gathers_are_as_long_as_the_longer_ones)
{
	struct obmm_engine *engine = start();

	CHECK(learned_from(engine, 40000) == 40000);
	CHECK(learned_from(engine, 60000) == 60000);
	CHECK(learned_from(engine, 20000) == 50000);
	/* its caller had lost its CPU */
	CHECK(learned_from(engine, 9000000) == 100000);
	for (int i = 0; i < 10; i++)
		CHECK(learned_from(engine, 9000000) <= MOST_NS);
	end(engine);
}

/* ---- CPUs that others want ---- */

TEST(what_stops_all_at_once_is_one_loss_and_what_goes_on_is_not)
{
	struct engine_team team = { .ready = 15, .room = 15, .limit = 15 };
	uint64_t now = 1000000000;

	for (uint64_t i = 0; i < 15; i++)
		engine_team_judge(&team, now + i % 3, 50000, true);
	CHECK(atomic_load(&team.room) == 7);
	/* again and again: another team */
	for (int i = 0; i < 6; i++) {
		now += 1000000;
		for (int j = 0; j < 15; j++)
			engine_team_judge(&team, now, 50000, true);
	}
	CHECK(!atomic_load(&team.room));
}

TEST(a_loss_now_and_then_costs_no_room)
{
	struct engine_team team = { .ready = 15, .room = 15, .limit = 15 };
	uint64_t now = 1000000000;

	for (int i = 0; i < 1000; i++) {
		engine_team_judge(&team, now += 250000, 40000, i % 10 == 0);
		CHECK(atomic_load(&team.room) == 15);
	}
}

/* ---- announced, and begun ---- */

static struct obmm_engine *watched;
static pthread_t main_thread;
static _Atomic uint64_t still_expected;
static _Atomic bool worker_came;

enum { NOT_YET = 1, ALONE = 2 };

/* The caller looks once the worker has begun, if it does, and before that ends: the gather has not ended by itself. */
static int look(struct obmm_work *work, uint64_t from, uint64_t to)
{
	uint64_t began = obmm_now_ns();

	(void)work;
	(void)from;
	(void)to;
	if (!pthread_equal(pthread_self(), main_thread)) {
		atomic_store(&worker_came, true);
		while (atomic_load(&still_expected) == NOT_YET)
			sched_yield();
		return 0;
	}
	while (!atomic_load(&worker_came) && obmm_now_ns() - began < MOST_NS)
		sched_yield();
	atomic_store(&still_expected, atomic_load(&worker_came) ? atomic_load(&watched->team.expected_ns) : ALONE);
	return 0;
}

static bool a_hand_is_open(void)
{
	return engine_hand_is_open(&watched->workers[0]) || engine_hand_is_open(&watched->workers[1]);
}

TEST(nobody_spins_for_a_gather_that_has_all_its_threads)
{
	const struct obmm_table nothing = { .tuning = { .order_rows = UINT32_MAX } };
	struct obmm_work work = { look, 1 };
	struct obmm_request request = { .table = &nothing, .count = 2, .work = &work };
	struct obmm_outcome outcome = { .threads = 0 };
	bool seen = false;

	watched = start();
	main_thread = pthread_self();
	/* until a worker is handed it: this machine's CPUs may have others to run */
	for (int tries = 0; tries < 20000 && !seen; tries++) {
		/* other processes gather beside this test */
		atomic_store(&watched->team.limit, WORKERS);
		atomic_store(&watched->team.room, WORKERS);
		atomic_store(&watched->team.streak, 0); /* each stands alone */
		atomic_store(&worker_came, false);
		atomic_store(&still_expected, NOT_YET);
		obmm_engine_expect(watched, MOST_NS);
		if (!a_hand_is_open()) {
			usleep(100);
			continue;
		}
		CHECK(obmm_engine_gather(watched, &request, 2, &outcome) == 0);
		seen = !atomic_load(&still_expected);
	}
	CHECK(seen);
	obmm_engine_free(watched);
}
