/* SPDX-License-Identifier: Apache-2.0 */
/* What a mapping is like, measured: the input of the planner. */
#ifndef OBMM_PROBE_H
#define OBMM_PROBE_H

#include <stddef.h>
#include <stdint.h>

#include "gather.h"

/*
 * Nanoseconds of one load that has to wait for the one before, at random lines
 * of [base, base + length): `loads` of them on this thread, whatever the memory
 * holds.  Guarded; entered through the gates.  0 or a negative errno.
 */
int obmm_probe_latency(const struct obmm_table *table, uint64_t length, uint64_t loads, uint64_t seed,
		       double *nanoseconds, struct obmm_fault *fault);

/*
 * Nanoseconds per row of `rounds` gathers of `count` random rows into `out`, the
 * fastest of them; `ids` is room for count numbers.  threads as in
 * obmm_engine_gather().
 */
struct obmm_engine;
int obmm_probe_gather(struct obmm_engine *engine, const struct obmm_table *table, int64_t *ids, uint8_t *out,
		      uint64_t count, unsigned int rounds, unsigned int threads, uint64_t seed, double *nanoseconds,
		      struct obmm_outcome *outcome);

#endif
