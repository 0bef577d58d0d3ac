/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The line: a ring of job numbers with the serial numbers that they had.  The
 * first entry is joined or, when its job needs no more threads, taken out.  A job that
 * needs threads again is put in again, so one may be in line twice; the serial
 * number tells an entry whose job has ended.
 */
#include "engine_internal.h"

static _Atomic uint64_t *place_of(struct engine_line *line, uint64_t at)
{
	return &line->entries[at % ENGINE_LINE];
}

static bool step(struct engine_line *line, uint64_t head)
{
	return atomic_compare_exchange_strong(&line->head, &head, head + 1);
}

/*
 * The line has not been looked at for very long: all workers wait for memory, and
 * the first job's caller waits with them.  Its entry goes to the end, others
 * whose jobs have ended go.
 */
static void make_room(struct obmm_engine *engine)
{
	struct engine_line *line = &engine->line;
	uint64_t tail = atomic_load_explicit(&line->tail, memory_order_relaxed);

	for (uint64_t head; tail - (head = atomic_load(&line->head)) >= ENGINE_LINE;) {
		uint64_t entry = atomic_load(place_of(line, head));
		struct engine_job *job = &engine->jobs[entry % OBMM_TICKETS];
		uint64_t gate = atomic_load(&job->gate);

		if (!step(line, head) || GATE_SERIAL(gate) != (uint32_t)(entry >> 32) || !(gate & GATE_OPEN))
			continue;
		atomic_store(place_of(line, tail), entry);
		atomic_store(&line->tail, ++tail);
	}
}

void engine_line_put(struct obmm_engine *engine, const struct engine_job *job)
{
	struct engine_line *line = &engine->line;
	uint64_t tail;

	make_room(engine);
	tail = atomic_load_explicit(&line->tail, memory_order_relaxed);
	atomic_store_explicit(place_of(line, tail), job->serial << 32 | (uint64_t)(job - engine->jobs),
			      memory_order_relaxed);
	atomic_store_explicit(&line->tail, tail + 1, memory_order_release);
}

/* The first job in line that lets somebody in, with its entry's serial number; those before it are taken out. */
static struct engine_job *first(struct obmm_engine *engine, uint32_t *serial)
{
	struct engine_line *line = &engine->line;

	for (;;) {
		uint64_t head = atomic_load(&line->head), entry;
		struct engine_job *job;

		if (head >= atomic_load_explicit(&line->tail, memory_order_acquire))
			return NULL;
		entry = atomic_load_explicit(place_of(line, head), memory_order_relaxed);
		job = &engine->jobs[entry % OBMM_TICKETS];
		*serial = (uint32_t)(entry >> 32);
		if (engine_job_is_open(job, *serial))
			return job;
		step(line, head);
	}
}

struct engine_job *engine_line_join(struct obmm_engine *engine)
{
	struct engine_job *job;
	uint32_t serial;

	do {
		job = first(engine, &serial);
		if (job && engine_job_is_far(job))
			return NULL; /* its caller is at work, and others are nearer */
	} while (job && !engine_job_join(job, serial));
	return job;
}

bool engine_line_waits(struct obmm_engine *engine)
{
	uint32_t serial;

	return first(engine, &serial) != NULL;
}
