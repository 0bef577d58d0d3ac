/* SPDX-License-Identifier: Apache-2.0 */
/* What a mapping is like, measured: the input of the planner. */
#ifndef OBMM_PROBE_H
#define OBMM_PROBE_H

#include "../abi/lp64.h"

#include <stddef.h>
#include <stdint.h>

#include "../gather/gather.h"

#ifdef __cplusplus
extern "C" {
#endif

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
 * obmm_engine_gather(); more than one are told to be ready.
 */
struct obmm_engine;
int obmm_probe_gather(struct obmm_engine *engine, const struct obmm_table *table, int64_t *ids, uint8_t *out,
		      uint64_t count, unsigned int rounds, unsigned int threads, uint64_t seed, double *nanoseconds,
		      struct obmm_outcome *outcome);

/*
 * How long a hand-over takes: in each of `rounds`, nanoseconds from the call
 * until the first other thread is at work, and until `threads` are, in
 * first[] and all[] (UINT64_MAX: not within two milliseconds).  The team is told
 * lead_ns before, or not at all if that is 0; pause_ns of sleep come before that.
 */
int obmm_probe_handover(struct obmm_engine *engine, unsigned int threads, unsigned int rounds, uint64_t pause_ns,
			uint64_t lead_ns, uint64_t *first, uint64_t *all);

#ifdef __cplusplus
}
#endif

#endif
