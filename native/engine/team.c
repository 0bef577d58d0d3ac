/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Workers without work.  They sleep on a futex; waking one costs a system call
 * here and tens of microseconds there, more in a guest.  So they are woken when
 * a gather is expected, each wakes two more, and they spin until it comes, for
 * some hundred microseconds at most.
 *
 * Two teams that spin on the same CPUs ruin each other.  A worker that was kept
 * from its CPU while it spun, or that yielded and did not come back at once,
 * knows that the CPU has something better to do: it sleeps.  When many do, more
 * than ticks and a guest's neighbours explain, fewer spin from then on, until
 * that was good for a while.
 */
#include <sched.h>
#include <stddef.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "../core/futex.h"
#include "engine_internal.h"
#include "room.h"

enum {
	MOST_NS = 500000,     /* a gather that does not come for so long is not waited for awake */
	YIELD_NS = 20000,     /* between two looks whether somebody else wants the CPU */
	LOST_NS = 25000,      /* between two readings of the clock: the CPU was taken */
	LOSS_NS = 200000,     /* one loss in so much spinning is a tick, or a neighbour outside of a guest */
	CROWD_NS = 150000,    /* that many more losses than that, for each of a few that spin, are somebody else's threads */
	GROW_NS = 10000000,   /* without trouble: more may spin again */
	SOON_NS = 100000,     /* gathers so near to each other are likely to go on */
	SHORT_NS = 15000,     /* ... and waited for so long at least */
	WAKING_NS = 300000,   /* until all that are woken are there */
	CREDIT_NS = 5000000,  /* what may be saved of it */
	WASTE = 200,	      /* guesses may cost one part in so many of a CPU in vain ... */
	WORTH = 16,	      /* ... and one in so many of what the gathers took that they were made for */
	STREAK = 3,
	PAUSES = 4,
};

static long futex(const uint32_t *word, int operation, uint32_t value)
{
	return syscall(SYS_futex, word, operation | OBMM_FUTEX_PRIVATE, value, NULL, NULL, 0);
}

static void set_limit(struct obmm_engine *engine)
{
	unsigned int free = obmm_room_free();

	atomic_store(&engine->team.limit, free < engine->threads ? free : engine->threads);
}

void engine_team_init(struct obmm_engine *engine)
{
	struct engine_team *team = &engine->team;

	obmm_room_refresh(obmm_now_ns());
	set_limit(engine);
	atomic_store(&team->room, atomic_load(&team->limit));
	atomic_store(&team->budget_ns, CREDIT_NS);
	atomic_store(&team->paid_ns, obmm_now_ns());
}

uint32_t engine_team_word(const struct obmm_engine *engine)
{
	return __atomic_load_n(&engine->team.word, __ATOMIC_SEQ_CST);
}

static void wake(struct engine_team *team, unsigned int n)
{
	if (atomic_load(&team->sleeping))
		futex(&team->word, OBMM_FUTEX_WAKE, n < 2 ? 1 : 2);
}

/* How many workers spin; counted up to `most`. */
static unsigned int spinning(const struct obmm_engine *engine, unsigned int most)
{
	unsigned int found = 0;

	for (unsigned int i = 0; i < engine->threads && found < most; i++)
		found += atomic_load(&engine->workers[i].spinning);
	return found;
}

void engine_team_call(struct obmm_engine *engine, unsigned int wanted)
{
	unsigned int there;

	/* a thread about to sleep looks at the word again, so one that has stopped spinning is not missed */
	__atomic_fetch_add(&engine->team.word, 1, __ATOMIC_SEQ_CST);
	there = spinning(engine, wanted);
	if (wanted > there)
		wake(&engine->team, wanted - there);
}

void engine_team_call_to_help(struct obmm_engine *engine, unsigned int wanted)
{
	unsigned int there;

	__atomic_fetch_add(&engine->team.word, 1, __ATOMIC_SEQ_CST);
	there = atomic_load(&engine->team.ready);
	if (wanted > there)
		wake(&engine->team, wanted - there);
}

void engine_team_call_more(struct obmm_engine *engine)
{
	if (atomic_load(&engine->team.sleeping) && engine_line_waits(engine) && !spinning(engine, 1))
		wake(&engine->team, 2);
}

void engine_team_call_all(struct obmm_engine *engine)
{
	__atomic_fetch_add(&engine->team.word, 1, __ATOMIC_SEQ_CST);
	futex(&engine->team.word, OBMM_FUTEX_WAKE, INT32_MAX);
}

/* A gather is expected: of those that should be awake for it, up to n more are woken, and wake others. */
static void gather_round(struct engine_team *team, unsigned int threads, unsigned int n)
{
	unsigned int sleeping = atomic_load(&team->sleeping), wanted = atomic_load(&team->wanted);
	unsigned int awake = threads > sleeping ? threads - sleeping : 0;

	/* after the expectation has ended, no wake-ups: threads that come too late would wake each other for ever */
	if (wanted > awake && obmm_now_ns() < atomic_load_explicit(&team->expected_ns, memory_order_relaxed))
		wake(team, wanted - awake < n ? wanted - awake : n);
}

/* ---- how many may spin ---- */

/* A worker has spun for so long, and perhaps lost its CPU then.  One that lost it sleeps, whatever the others do. */
static void judge(struct engine_team *team, uint64_t now, uint64_t spun_ns, bool lost)
{
	unsigned int ready = atomic_load_explicit(&team->ready, memory_order_relaxed);
	unsigned int room = atomic_load_explicit(&team->room, memory_order_relaxed);
	int64_t score = atomic_load_explicit(&team->crowd_ns, memory_order_relaxed);

	if (!lost && score <= 0)
		return;
	score += (lost ? LOSS_NS : 0) - (spun_ns < LOSS_NS ? (int64_t)spun_ns : LOSS_NS);
	if (score > (int64_t)CROWD_NS * (1 + (ready < 4 ? ready : 4))) {
		atomic_store_explicit(&team->grown_ns, now, memory_order_relaxed);
		atomic_store_explicit(&team->room, room / 2, memory_order_relaxed);
		score = 0;
	}
	atomic_store_explicit(&team->crowd_ns, score, memory_order_relaxed);
}

static unsigned int room_now(struct engine_team *team, uint64_t now)
{
	unsigned int room = atomic_load_explicit(&team->room, memory_order_relaxed);
	unsigned int limit = atomic_load_explicit(&team->limit, memory_order_relaxed);
	uint64_t calm = now - atomic_load_explicit(&team->grown_ns, memory_order_relaxed);

	if (room < limit && calm > GROW_NS) {
		for (; calm > GROW_NS && room < limit; calm -= GROW_NS)
			room = room ? 2 * room : 1;
		atomic_store_explicit(&team->grown_ns, now, memory_order_relaxed);
	}
	if (room > limit)
		room = limit;
	atomic_store_explicit(&team->room, room, memory_order_relaxed);
	return room;
}

bool engine_team_has_room(const struct obmm_engine *engine)
{
	return atomic_load_explicit(&engine->team.room, memory_order_relaxed) > 0;
}

/* ---- workers ---- */

/* For counters that one thread writes and others read. */
static void add(_Atomic uint64_t *counter, uint64_t n)
{
	atomic_store_explicit(counter, atomic_load_explicit(counter, memory_order_relaxed) + n, memory_order_relaxed);
}

/* Whether there was something to look at in time. */
static bool spin(struct engine_worker *worker, uint32_t seen)
{
	struct engine_team *team = &worker->engine->team;
	uint64_t began = obmm_now_ns(), now = began, yielded = began, least_ns = worker->engine->spin_ns;
	bool found, lost = false;

	if (!engine_hand_open(worker))
		return true;
	atomic_store(&worker->spinning, true);
	while (!(found = !engine_hand_is_open(worker) || __atomic_load_n(&team->word, __ATOMIC_RELAXED) != seen) &&
	       (now < atomic_load_explicit(&team->expected_ns, memory_order_relaxed) || now - began < least_ns)) {
		uint64_t before = now;

		for (int i = 0; i < PAUSES && engine_hand_is_open(worker); i++)
			engine_relax();
		now = obmm_now_ns();
		if (now - before <= LOST_NS && now - yielded > YIELD_NS) {
			sched_yield();
			yielded = now = obmm_now_ns();
		}
		lost = now - before > LOST_NS;
		if (lost)
			break;
	}
	atomic_store(&worker->spinning, false);
	found |= !engine_hand_close(worker);
	judge(team, now, now - began, lost);
	add(&worker->spun_ns, now - began);
	if (!found) {
		add(&worker->idle_ns, now - began);
		if (atomic_load_explicit(&team->guessed, memory_order_relaxed))
			atomic_fetch_sub_explicit(&team->budget_ns, (int64_t)(now - began), memory_order_relaxed);
	}
	return found;
}

/* One of those that are awake for what is expected: it may spin until it sleeps the next time, jobs in between or not. */
static bool may_spin(struct engine_worker *worker, uint64_t now)
{
	struct engine_team *team = &worker->engine->team;
	unsigned int room = atomic_load_explicit(&team->room, memory_order_relaxed);
	unsigned int wanted = atomic_load_explicit(&team->wanted, memory_order_relaxed);

	/* a guess is for as many as the gathers before could use: others would spin through them, and use its budget up */
	if (atomic_load_explicit(&team->guessed, memory_order_relaxed) && wanted < room)
		room = wanted;
	if (!worker->engine->spin_ns && now >= atomic_load_explicit(&team->expected_ns, memory_order_relaxed))
		return false;
	if (worker->counted)
		return atomic_load_explicit(&team->ready, memory_order_relaxed) <= room;
	worker->counted = atomic_fetch_add(&team->ready, 1) < room;
	if (!worker->counted)
		atomic_fetch_sub(&team->ready, 1);
	return worker->counted;
}

static void note_seen(struct engine_worker *worker)
{
	if (engine_times(worker->engine, 0))
		worker->seen_ns = obmm_now_ns();
}

void engine_team_wait(struct engine_worker *worker, uint32_t seen)
{
	struct obmm_engine *engine = worker->engine;
	struct engine_team *team = &engine->team;
	uint64_t now = obmm_now_ns();

	worker->spun = may_spin(worker, now) && spin(worker, seen);
	if (worker->spun) {
		note_seen(worker);
		return;
	}
	if (worker->counted)
		atomic_fetch_sub(&team->ready, 1);
	worker->counted = false;
	if (obmm_room_refresh(now))
		set_limit(engine);
	atomic_fetch_add(&team->sleeping, 1);
	/* the word is looked at by the kernel once more */
	futex(&team->word, OBMM_FUTEX_WAIT, seen);
	atomic_fetch_sub(&team->sleeping, 1);
	note_seen(worker);
	gather_round(team, engine->threads, 2);
}

/* ---- those who have work, or will ---- */

static void expect(struct obmm_engine *engine, uint64_t now, uint64_t within_ns, bool guessed, unsigned int room)
{
	struct engine_team *team = &engine->team;

	atomic_store_explicit(&team->guessed, guessed, memory_order_relaxed);
	atomic_store(&team->expected_ns, now + within_ns);
	atomic_store(&team->wanted, room);
	/* those on their way to sleep look again */
	__atomic_fetch_add(&team->word, 1, __ATOMIC_SEQ_CST);
	/* one: each costs the caller a system call's time, and an interrupt of another CPU */
	gather_round(team, engine->threads, 1);
}

unsigned int obmm_engine_expect(struct obmm_engine *engine, int64_t within_ns)
{
	uint64_t now = obmm_now_ns();
	unsigned int room;

	if (engine_is_inherited(engine) || atomic_load_explicit(&engine->stopping, memory_order_relaxed))
		return 0;
	obmm_room_use(now);
	room = room_now(&engine->team, now);
	if (room && within_ns > 0)
		expect(engine, now, within_ns < MOST_NS ? (uint64_t)within_ns : MOST_NS, false, room);
	return within_ns > 0 ? room : 0;
}

void obmm_engine_begin_row(struct obmm_engine *engine, int64_t within_ns)
{
	atomic_fetch_add(&engine->team.rows, 1);
	obmm_engine_expect(engine, within_ns);
}

void obmm_engine_end_row(struct obmm_engine *engine)
{
	if (atomic_fetch_sub(&engine->team.rows, 1) == 1 && !atomic_load(&engine->unread))
		engine_team_done(engine, obmm_now_ns());
}

/* What guesses may cost: more as time goes by, and as threads spend time on gathers. */
static void pay(struct engine_team *team, uint64_t now, uint64_t gathered_ns)
{
	int64_t budget = atomic_load_explicit(&team->budget_ns, memory_order_relaxed);
	uint64_t paid = atomic_exchange_explicit(&team->paid_ns, now, memory_order_relaxed);
	uint64_t more = (now > paid ? now - paid : 0) / WASTE + gathered_ns / WORTH;

	if (budget < CREDIT_NS)
		atomic_fetch_add_explicit(&team->budget_ns, more < CREDIT_NS ? (int64_t)more : CREDIT_NS,
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
	atomic_store_explicit(&team->took_ns, took < MOST_NS ? took : MOST_NS, memory_order_relaxed);
	pay(team, obmm_now_ns(), outcome->nanoseconds * (uint64_t)outcome->threads);
}

/*
 * How long workers should spin for a gather that was not announced, as gathers come one right after the other: some
 * gaps' time; 0 when they do not, or when wrong guesses have cost what they may.
 */
static uint64_t guess(struct engine_team *team)
{
	uint64_t gap = 4 * atomic_load_explicit(&team->gap_ns, memory_order_relaxed);

	if (atomic_load_explicit(&team->streak, memory_order_relaxed) < STREAK ||
	    atomic_load_explicit(&team->budget_ns, memory_order_relaxed) <= 0)
		return 0;
	return gap < SHORT_NS ? SHORT_NS : gap > SOON_NS ? SOON_NS : gap;
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
	uint64_t spin_ns;
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
	pay(team, now, 0);
	there = atomic_load_explicit(&team->ready, memory_order_relaxed);
	expected = now < atomic_load_explicit(&team->expected_ns, memory_order_relaxed) &&
		   !atomic_load_explicit(&team->guessed, memory_order_relaxed);
	spin_ns = guess(team);
	if (expected || !spin_ns)
		return there;
	room = room_now(team, now);
	room = room < threads - 1 ? room : threads - 1;
	if (there < room) {
		/* not there yet when this one is over, so for a while after it */
		expect(engine, now, WAKING_NS, true, room);
	} else {
		/* one less each time: a gather that tries fewer threads sends no worker to sleep */
		unsigned int wanted = atomic_load_explicit(&team->wanted, memory_order_relaxed);

		atomic_store_explicit(&team->wanted, wanted > room ? wanted - 1 : room, memory_order_relaxed);
		if (room)
			last_through(team, now, spin_ns);
	}
	return there;
}

uint64_t obmm_engine_spun_ns(const struct obmm_engine *engine, uint64_t *in_vain)
{
	uint64_t spun = 0;

	*in_vain = 0;
	for (unsigned int i = 0; i < engine->threads; i++) {
		spun += atomic_load_explicit(&engine->workers[i].spun_ns, memory_order_relaxed);
		*in_vain += atomic_load_explicit(&engine->workers[i].idle_ns, memory_order_relaxed);
	}
	return spun;
}
