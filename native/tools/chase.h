/* SPDX-License-Identifier: Apache-2.0 */
/* Load latency: each load's address comes from the load before it. */
#ifndef OBMM_CHASE_H
#define OBMM_CHASE_H

#include <stddef.h>

#define CHASE_LINE 64
/* loads per sample: the clock's own cost disappears */
#define CHASE_BATCH 256
#define CHASE_SAMPLES 4096

struct chase_result {
	/* nanoseconds per load over the samples */
	double p50, p99;
};

/* Write one random cycle through all lines of [base, base + length). */
void chase_build(void *base, size_t length);

/* Follow it, CHASE_SAMPLES times CHASE_BATCH loads. */
struct chase_result chase_run(const void *base);

#endif
