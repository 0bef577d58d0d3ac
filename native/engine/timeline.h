/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which thread did what and when in a gather on its caller's thread: the profile
 * behind a benchmark's figure.  Nothing is noted unless somebody has asked; that
 * costs one load for each note.
 */
#ifndef OBMM_TIMELINE_H
#define OBMM_TIMELINE_H

#include "../abi/lp64.h"

#include <stdint.h>

#include "engine.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Nanoseconds of CLOCK_MONOTONIC; 0: it did not happen. */
struct obmm_thread_times {
	uint64_t awake; /* a worker has seen that there is something; the caller: has been called */
	uint64_t came;	/* it may take shares; the caller: has told the others */
	uint64_t last;	/* it has copied its last row */
	uint64_t ended; /* the caller: all threads have stopped copying */
	uint64_t rows;	/* how many it has copied */
	uint64_t spun;	/* 1: it was awake before the call; the caller: how many spin by its count */
	uint64_t room;	/* the caller: how many may */
	uint64_t unused;
};
struct obmm_timeline {
	struct obmm_thread_times threads[OBMM_MAX_THREADS + 1]; /* the caller's, then worker i in i + 1 */
} __attribute__((aligned(64)));

/*
 * `rounds` gathers of `count` random rows, one right after the other, or, with
 * lead_ns, each announced so long before.  Into times[rounds * threads of the
 * engine plus 1]: relative to the call, which is `awake` of each round's first
 * (as it was).  What is 0 did not happen.
 */
int obmm_probe_timeline(struct obmm_engine *engine, const struct obmm_table *table, int64_t *ids, uint8_t *out,
			uint64_t count, unsigned int rounds, unsigned int threads, uint64_t lead_ns, uint64_t seed,
			struct obmm_thread_times *times);

#ifdef __cplusplus
}
#endif

#endif
