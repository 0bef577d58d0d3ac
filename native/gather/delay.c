/* SPDX-License-Identifier: Apache-2.0 */
#include <time.h>

#include "../core/clock.h"
#include "gather.h"

/* A sleep may end so much later than asked for: the rest is waited for awake. */
#define OVERSLEPT_NS 80000

void obmm_delay_wait(uint64_t began_ns, uint64_t ns)
{
	const uint64_t until = began_ns + ns;

	if (until > obmm_now_ns() + OVERSLEPT_NS) {
		const uint64_t wake = until - OVERSLEPT_NS;
		const struct timespec at = { (time_t)(wake / 1000000000u), (long)(wake % 1000000000u) };

		clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &at, NULL);
	}
	while (obmm_now_ns() < until)
		;
}
