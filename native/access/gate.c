/* SPDX-License-Identifier: Apache-2.0 */
#include "gate.h"

#include <errno.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "../core/clock.h"
#include "../core/futex.h"

#define SHUT 0x80000000u

int obmm_gate_enter(struct obmm_gate *gate)
{
	uint32_t seen = __atomic_load_n(&gate->state, __ATOMIC_RELAXED);

	do {
		if (seen & SHUT)
			return -EBADF;
	} while (!__atomic_compare_exchange_n(&gate->state, &seen, seen + 1, 1, __ATOMIC_ACQUIRE,
					      __ATOMIC_RELAXED));
	return 0;
}

void obmm_gate_leave(struct obmm_gate *gate)
{
	uint32_t left = __atomic_sub_fetch(&gate->state, 1, __ATOMIC_RELEASE);

	if (left == SHUT)
		syscall(SYS_futex, &gate->state, OBMM_FUTEX_WAKE | OBMM_FUTEX_PRIVATE, INT32_MAX, NULL, NULL, 0);
}

uint32_t obmm_gate_inside(const struct obmm_gate *gate)
{
	return __atomic_load_n(&gate->state, __ATOMIC_RELAXED) & ~SHUT;
}

void obmm_gate_reopen(struct obmm_gate *gate)
{
	__atomic_and_fetch(&gate->state, ~SHUT, __ATOMIC_RELEASE);
}

static int64_t now_ms(void)
{
	return (int64_t)(obmm_now_ns() / 1000000);
}

int obmm_gate_shut(struct obmm_gate *gate, int64_t timeout_ms)
{
	int64_t deadline = timeout_ms < 0 ? 0 : now_ms() + timeout_ms;
	uint32_t seen = __atomic_or_fetch(&gate->state, SHUT, __ATOMIC_ACQUIRE);

	while (seen != SHUT) {
		struct timespec left, *wait = NULL;

		if (timeout_ms >= 0) {
			int64_t ms = deadline - now_ms();

			if (ms <= 0) {
				obmm_gate_reopen(gate);
				return -ETIMEDOUT;
			}
			left = (struct timespec){ .tv_sec = ms / 1000, .tv_nsec = ms % 1000 * 1000000 };
			wait = &left;
		}
		syscall(SYS_futex, &gate->state, OBMM_FUTEX_WAIT | OBMM_FUTEX_PRIVATE, seen, wait, NULL, 0);
		seen = __atomic_load_n(&gate->state, __ATOMIC_ACQUIRE);
	}
	return 0;
}

int obmm_gated_copy_from(struct obmm_gate *gate, void *dst, uint64_t address, size_t length, int nc,
			 struct obmm_fault *fault)
{
	const void *src = (const void *)(uintptr_t)address;
	int result = obmm_gate_enter(gate);

	if (result)
		return result;
	result = nc ? obmm_copy_nc_from(dst, src, length, fault) : obmm_copy_from(dst, src, length, fault);
	obmm_gate_leave(gate);
	return result;
}

int obmm_gated_copy_to(struct obmm_gate *gate, uint64_t address, const void *src, size_t length, int nc,
		       struct obmm_fault *fault)
{
	void *dst = (void *)(uintptr_t)address;
	int result = obmm_gate_enter(gate);

	if (result)
		return result;
	result = nc ? obmm_copy_nc_to(dst, src, length, fault) : obmm_copy_to(dst, src, length, fault);
	obmm_gate_leave(gate);
	return result;
}

struct obmm_loaded obmm_gated_load(struct obmm_gate *gate, uint64_t address, unsigned int width,
				   struct obmm_fault *fault)
{
	struct obmm_loaded loaded = { .result = obmm_gate_enter(gate) };

	if (loaded.result)
		return loaded;
	loaded.result = obmm_load((const void *)(uintptr_t)address, width, &loaded.value, fault);
	obmm_gate_leave(gate);
	return loaded;
}

int obmm_gated_store(struct obmm_gate *gate, uint64_t address, unsigned int width, uint64_t value,
		     struct obmm_fault *fault)
{
	int result = obmm_gate_enter(gate);

	if (result)
		return result;
	result = obmm_store((void *)(uintptr_t)address, width, value, fault);
	obmm_gate_leave(gate);
	return result;
}
