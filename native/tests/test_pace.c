/* SPDX-License-Identifier: Apache-2.0 */
/* How many threads a gather gets: what was learned, what is guessed, and how a wrong plan is left. */
#include <string.h>

#include "../engine/pace.h"
#include "test_copy.h"

enum { ROWS = 1536 };

/* What a gather takes in this test, with 6 threads best. */
static uint64_t takes(unsigned int threads)
{
	int64_t off = (int64_t)threads - 6;

	return 50000 + (uint64_t)(off * off) * 2000;
}

static void without_knowledge_the_work_decides(void)
{
	CHECK(obmm_pace_choose(NULL, 10, true, 16, 50, true) == 1);
	CHECK(obmm_pace_choose(NULL, 100000, true, 16, 200, true) == 16);
	CHECK(obmm_pace_choose(NULL, 1536, false, 16, 50, true) == 1);
	CHECK(obmm_pace_choose(NULL, 1536, true, 16, 200, true) > 4);
	CHECK(obmm_pace_choose(NULL, 1u << 30, false, 1, 200, true) == 1);
}

static void a_wrong_plan_is_left_step_by_step(void)
{
	for (unsigned int start = 1; start <= 64; start = start ? start * 4 : 1) {
		struct obmm_pace pace = { 0 };
		unsigned int right = 0;

		obmm_pace_begin(&pace, ROWS, true, start);
		for (int call = 0; call < 64 * 40; call++) {
			unsigned int threads = obmm_pace_choose(&pace, ROWS, true, 64, 100, true);

			CHECK(threads >= 1 && threads <= 64);
			obmm_pace_learn(&pace, ROWS, true, threads, takes(threads));
			right = threads == 6 ? right + 1 : right;
		}
		/* some of the calls try a neighbour */
		CHECK(obmm_pace_choose(&pace, ROWS, true, 64, 100, false) == 6);
		CHECK(right > 300);
	}
}

static void what_becomes_slower_is_noticed(void)
{
	struct obmm_pace pace = { 0 };

	for (int call = 0; call < 64 * 20; call++) {
		unsigned int threads = obmm_pace_choose(&pace, ROWS, true, 16, 100, true);

		obmm_pace_learn(&pace, ROWS, true, threads, 160000 / threads);
	}
	CHECK(obmm_pace_choose(&pace, ROWS, true, 16, 100, false) == 16);
	/* the other CPUs have become busy */
	for (int call = 0; call < 64 * 40; call++) {
		unsigned int threads = obmm_pace_choose(&pace, ROWS, true, 16, 100, true);

		obmm_pace_learn(&pace, ROWS, true, threads, 100000 + 50000 * threads);
	}
	CHECK(obmm_pace_choose(&pace, ROWS, true, 16, 100, false) == 1);
}

static void a_team_that_must_be_woken_is_learned_apart(void)
{
	struct obmm_pace pace = { 0 };

	obmm_pace_begin(&pace, ROWS, true, 8);
	obmm_pace_begin(&pace, ROWS, false, 1);
	CHECK(obmm_pace_choose(&pace, ROWS, true, 16, 100, false) == 8);
	CHECK(obmm_pace_choose(&pace, ROWS, false, 16, 100, false) == 1);
	/* no more than there are */
	CHECK(obmm_pace_choose(&pace, ROWS, true, 4, 100, false) == 4);
}

static void a_thread_that_lost_its_cpu_does_not_change_the_plan(void)
{
	struct obmm_pace pace = { 0 };

	for (int call = 0; call < 8; call++) {
		obmm_pace_learn(&pace, ROWS, true, 8, 60000);
		obmm_pace_learn(&pace, ROWS, true, 12, 50000);
	}
	obmm_pace_begin(&pace, ROWS, true, 12);
	obmm_pace_learn(&pace, ROWS, true, 12, 4000000);
	CHECK(obmm_pace_choose(&pace, ROWS, true, 16, 100, false) == 12);
	/* but what goes on does */
	for (int call = 0; call < 8; call++)
		obmm_pace_learn(&pace, ROWS, true, 12, 4000000);
	CHECK(obmm_pace_choose(&pace, ROWS, true, 16, 100, false) == 8);
}

static void sizes_in_between_are_guessed_from_their_neighbours(void)
{
	struct obmm_pace pace = { 0 };

	obmm_pace_begin(&pace, 384, true, 3);
	obmm_pace_begin(&pace, 6144, true, 8);
	for (uint64_t rows = 512; rows < 4096; rows *= 2) {
		unsigned int threads = obmm_pace_choose(&pace, rows, true, 64, 100, false);

		CHECK(threads >= 3 && threads <= 8);
	}
}

static void nothing_is_learned_from_numbers_that_are_not_told_apart_or_nonsense(void)
{
	struct obmm_pace pace = { 0 }, empty = { 0 };

	obmm_pace_learn(&pace, ROWS, true, 7, 1);
	obmm_pace_learn(&pace, 0, true, 1, 1);
	CHECK(!memcmp(&pace, &empty, sizeof(pace)));
	obmm_pace_learn(NULL, ROWS, true, 1, 1);
	obmm_pace_learn(&pace, UINT64_MAX, false, 1, UINT64_MAX);
	CHECK(obmm_pace_choose(&pace, UINT64_MAX, false, 1000, UINT32_MAX, true) >= 1);
}

int main(void)
{
	without_knowledge_the_work_decides();
	a_wrong_plan_is_left_step_by_step();
	what_becomes_slower_is_noticed();
	a_team_that_must_be_woken_is_learned_apart();
	a_thread_that_lost_its_cpu_does_not_change_the_plan();
	sizes_in_between_are_guessed_from_their_neighbours();
	nothing_is_learned_from_numbers_that_are_not_told_apart_or_nonsense();
	puts("test_pace: ok");
	return 0;
}
