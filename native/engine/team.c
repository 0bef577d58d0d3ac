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
	YIELD_NS = 20000,     /* between two looks whether somebody else wants the CPU */
	LOST_NS = 25000,      /* between two readings of the clock: the CPU was taken */
	LOSS_NS = 200000,     /* one loss in so much spinning is a tick, or a neighbour outside of a guest */
	CROWD_NS = 150000,    /* that many more losses than that, for each of a few that spin, are somebody else's threads */
	GROW_NS = 10000000,   /* without trouble: more may spin again */
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
	atomic_store(&team->budget_ns, ENGINE_GUESS_NS);
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

void engine_team_judge(struct engine_team *team, uint64_t now, uint64_t spun_ns, bool lost)
{
	unsigned int ready = atomic_load_explicit(&team->ready, memory_order_relaxed);
	unsigned int room = atomic_load_explicit(&team->room, memory_order_relaxed);
	int64_t score = atomic_load_explicit(&team->crowd_ns, memory_order_relaxed);

	if (!lost && score <= 0)
		return;
	/* what stops all of them at once (an interrupt to all CPUs, a pause of the guest) was one loss, and has been judged */
	if (lost && now < atomic_load_explicit(&team->grown_ns, memory_order_relaxed) + LOSS_NS)
		return;
	score += (lost ? LOSS_NS : 0) - (spun_ns < LOSS_NS ? (int64_t)spun_ns : LOSS_NS);
	if (score > (int64_t)CROWD_NS * (1 + (ready < 4 ? ready : 4))) {
		atomic_store_explicit(&team->grown_ns, now, memory_order_relaxed);
		atomic_store_explicit(&team->room, room / 2, memory_order_relaxed);
		score = 0;
	}
	atomic_store_explicit(&team->crowd_ns, score, memory_order_relaxed);
}

unsigned int engine_team_room(struct engine_team *team, uint64_t now)
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
	engine_team_judge(team, now, now - began, lost);
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

void engine_team_expect(struct obmm_engine *engine, uint64_t now, uint64_t within_ns, bool guessed, unsigned int room)
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
	room = engine_team_room(&engine->team, now);
	if (room && within_ns > 0)
		engine_team_expect(engine, now, within_ns < ENGINE_EXPECT_NS ? (uint64_t)within_ns : ENGINE_EXPECT_NS, false, room);
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
