/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Gathers that nobody announced, but that follow each other at once: workers stay
 * awake for the next one.  A guess is as long as a few of the gaps between the
 * gathers were, and counts from the end of a gather.  What wrong guesses cost all
 * workers together is bounded by a budget, which grows a little with time, and
 * with every gather that a guess was or would have been right about: who gathers
 * without end is waited for again soon after an accident, and rows of a few
 * gathers are waited for no more often than they are worth.
 *
 * Here is also when an expectation ends: nothing is left to gather, or the gather
 * that was announced has all the threads that it is good for.
 */
#include "engine_internal.h"
#include "room.h"

enum {
	SOON_NS = 100000,     /* gathers so near to each other are likely to go on */
	SHORT_NS = 15000,     /* ... and waited for so long at least */
	WAKING_NS = 300000,   /* until all that are woken are there */
	WASTE = 800,	      /* guesses may cost one part in so many of a CPU in vain ... */
	RIGHT_NS = 25000,     /* ... and so much for each one that was right: a wrong one costs some hundred thousand */
	DEBT_NS = 400000,     /* no more is remembered of what they cost too much */
	STREAK = 3,
};

/* What guesses may cost: more as time goes by, and for one that is right. */
static void pay(struct engine_team *team, uint64_t now, uint64_t right_ns)
{
	int64_t budget = atomic_load_explicit(&team->budget_ns, memory_order_relaxed);
	uint64_t paid = atomic_exchange_explicit(&team->paid_ns, now, memory_order_relaxed);
	uint64_t more = (now > paid ? now - paid : 0) / WASTE + right_ns;

	if (budget < -DEBT_NS)
		atomic_compare_exchange_strong(&team->budget_ns, &budget, -DEBT_NS);
	if (budget < ENGINE_GUESS_NS)
		atomic_fetch_add_explicit(&team->budget_ns, more < ENGINE_GUESS_NS ? (int64_t)more : ENGINE_GUESS_NS,
					  memory_order_relaxed);
}

void engine_team_has_gathered(struct obmm_engine *engine, const struct obmm_outcome *outcome)
{
	struct engine_team *team = &engine->team;
	uint64_t before = atomic_load_explicit(&team->took_ns, memory_order_relaxed), took = outcome->nanoseconds;

	/* at once as long as a longer one, though not as one whose caller lost its CPU */
	if (before && took > 2 * before)
		took = 2 * before;
	if (took < before)
		took = (3 * before + took) / 4;
	atomic_store_explicit(&team->took_ns, took < ENGINE_EXPECT_NS ? took : ENGINE_EXPECT_NS, memory_order_relaxed);
}

/* How long the next gather would be waited for, if it comes as the ones before: some gaps' time. */
static uint64_t patience(struct engine_team *team)
{
	uint64_t gap = 4 * atomic_load_explicit(&team->gap_ns, memory_order_relaxed);

	return gap < SHORT_NS ? SHORT_NS : gap > SOON_NS ? SOON_NS : gap;
}

/* The same, and 0 when gathers do not come one right after the other, or wrong guesses have cost what they may. */
static uint64_t guess(struct engine_team *team)
{
	if (atomic_load_explicit(&team->streak, memory_order_relaxed) < STREAK ||
	    atomic_load_explicit(&team->budget_ns, memory_order_relaxed) <= 0)
		return 0;
	return patience(team);
}

void engine_team_done(struct obmm_engine *engine, uint64_t now)
{
	struct engine_team *team = &engine->team;
	uint64_t spin_ns = guess(team);

	atomic_store_explicit(&team->done_ns, now, memory_order_relaxed);
	if (atomic_load_explicit(&team->rows, memory_order_relaxed))
		return;
	/* those that are being woken for gathers like this one go on waking others: it may have been too short for them */
	if (!spin_ns)
		atomic_store_explicit(&team->wanted, 0, memory_order_relaxed);
	atomic_store_explicit(&team->guessed, spin_ns > 0, memory_order_relaxed);
	atomic_store_explicit(&team->expected_ns, spin_ns ? now + spin_ns : 0, memory_order_relaxed);
}

void engine_team_has_enough(struct obmm_engine *engine)
{
	struct engine_team *team = &engine->team;

	if (!atomic_load_explicit(&team->expected_ns, memory_order_relaxed) ||
	    atomic_load_explicit(&team->guessed, memory_order_relaxed) || atomic_load(&engine->unread) > 1 ||
	    atomic_load_explicit(&team->rows, memory_order_relaxed) || guess(team))
		return;
	atomic_store_explicit(&team->expected_ns, 0, memory_order_relaxed);
}

void engine_team_was_not_needed(struct obmm_engine *engine, uint64_t now)
{
	struct engine_team *team = &engine->team;

	atomic_store_explicit(&team->done_ns, now, memory_order_relaxed);
	if (!atomic_load_explicit(&team->expected_ns, memory_order_relaxed) ||
	    atomic_load_explicit(&team->guessed, memory_order_relaxed) || atomic_load(&engine->unread) ||
	    atomic_load_explicit(&team->rows, memory_order_relaxed))
		return;
	atomic_store_explicit(&team->wanted, 0, memory_order_relaxed);
	atomic_store_explicit(&team->expected_ns, 0, memory_order_relaxed);
}

/*
 * The guess that another gather follows counts from the end of this one (engine_team_done()).  Until then who is done
 * with its part stays awake, for as long as gathers took so far and half as long again.
 */
static void last_through(struct engine_team *team, uint64_t now, uint64_t spin_ns)
{
	uint64_t took = atomic_load_explicit(&team->took_ns, memory_order_relaxed);

	atomic_store_explicit(&team->guessed, true, memory_order_relaxed);
	atomic_store_explicit(&team->expected_ns, now + took + took / 2 + spin_ns, memory_order_relaxed);
}

unsigned int engine_team_begins(struct obmm_engine *engine, uint64_t now, unsigned int threads)
{
	struct engine_team *team = &engine->team;
	uint64_t gap = now - atomic_load_explicit(&team->done_ns, memory_order_relaxed);
	unsigned int streak = atomic_load_explicit(&team->streak, memory_order_relaxed), room, there;
	uint64_t right_ns = streak == STREAK && gap <= patience(team) ? RIGHT_NS : 0, spin_ns;
	bool expected;

	obmm_room_use(now);
	if (gap > SOON_NS) {
		streak = 0;
	} else {
		uint64_t before = atomic_load_explicit(&team->gap_ns, memory_order_relaxed);

		atomic_store_explicit(&team->gap_ns, (3 * before + gap) / 4, memory_order_relaxed);
		streak += streak < STREAK;
	}
	atomic_store_explicit(&team->streak, streak, memory_order_relaxed);
	pay(team, now, right_ns);
	there = atomic_load_explicit(&team->ready, memory_order_relaxed);
	expected = now < atomic_load_explicit(&team->expected_ns, memory_order_relaxed) &&
		   !atomic_load_explicit(&team->guessed, memory_order_relaxed);
	spin_ns = guess(team);
	if (expected || !spin_ns)
		return there;
	room = engine_team_room(team, now);
	room = room < threads - 1 ? room : threads - 1;
	if (there < room) {
		/* not there yet when this one is over, so for a while after it */
		engine_team_expect(engine, now, WAKING_NS, true, room);
	} else {
		/* one less each time: a gather that tries fewer threads sends no worker to sleep */
		unsigned int wanted = atomic_load_explicit(&team->wanted, memory_order_relaxed);

		atomic_store_explicit(&team->wanted, wanted > room ? wanted - 1 : room, memory_order_relaxed);
		if (room)
			last_through(team, now, spin_ns);
	}
	return there;
}
