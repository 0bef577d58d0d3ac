/* SPDX-License-Identifier: Apache-2.0 */
/* The monotonic clock as one number: what deadlines and durations are counted in. */
#ifndef OBMM_CLOCK_H
#define OBMM_CLOCK_H

#include "../abi/lp64.h"

#include <stdint.h>
#include <time.h>

#ifdef __cplusplus
extern "C" {
#endif

static inline uint64_t obmm_now_ns(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

#ifdef __cplusplus
}
#endif

#endif
