/* SPDX-License-Identifier: Apache-2.0 */
#include "bell.h"

#include <errno.h>
#include <stddef.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "futex.h"

uint32_t obmm_bell_count(const uint32_t *bell)
{
	return __atomic_load_n(bell, __ATOMIC_ACQUIRE);
}

void obmm_bell_ring(uint32_t *bell)
{
	__atomic_add_fetch(bell, 1, __ATOMIC_RELEASE);
	syscall(SYS_futex, bell, OBMM_FUTEX_WAKE, INT32_MAX, NULL, NULL, 0);
}

int obmm_bell_wait(const uint32_t *bell, uint32_t seen, int64_t timeout_ns)
{
	struct timespec left = { .tv_sec = timeout_ns / 1000000000, .tv_nsec = timeout_ns % 1000000000 };

	if (obmm_bell_count(bell) != seen)
		return 0;
	if (timeout_ns <= 0)
		return -ETIMEDOUT;
	if (syscall(SYS_futex, bell, OBMM_FUTEX_WAIT, seen, &left, NULL, 0) && errno == ETIMEDOUT)
		return -ETIMEDOUT;
	return 0;
}
