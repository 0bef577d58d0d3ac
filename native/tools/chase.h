/* SPDX-License-Identifier: Apache-2.0 */
/* Load latency: each load's address comes from the load before it. */
#ifndef OBMM_CHASE_H
#define OBMM_CHASE_H

#include <stddef.h>

#define CHASE_LINE 64
/* loads per sample: the clock's own cost disappears */
#define CHASE_BATCH 256
#define CHASE_SAMPLES 4096
/* samples of one cycle before it is the other's turn */
#define CHASE_TURN 64

struct chase_result {
	/* nanoseconds per load over the samples */
	double p50, p99;
};

/* Write one random cycle through all lines of [base, base + length). */
void chase_build(void *base, size_t length);

/*
 * Follow both cycles, CHASE_SAMPLES times CHASE_BATCH loads each, by turns, so
 * that whatever else the machine does meets both.
 */
void chase_compare(const void *const bases[2], struct chase_result results[2]);

#endif
