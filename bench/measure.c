/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The clock's inner loops of the reference benchmark: loads one at a time, flags between two
 * nodes, and the comparison of what was read with what must be there.  The content of
 * every benchmark memory: the 64-bit word at byte 8 * i is i * FACTOR.
 */
#define _GNU_SOURCE
#include <sched.h>
#include <stdint.h>
#include <time.h>

#define FACTOR 0x9E3779B97F4A7C15u

static inline uint64_t now_ns(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

/* The loads before are done. */
static inline void loads_done(void)
{
#if defined(__x86_64__)
	__asm__ volatile("lfence" ::: "memory");
#elif defined(__aarch64__)
	__asm__ volatile("dsb ld" ::: "memory");
#else
	__atomic_thread_fence(__ATOMIC_SEQ_CST);
#endif
}

/* A load of every page: page faults are the mapping's cost, not the memory's. */
void bench_touch(const uint8_t *base, uint64_t nbytes)
{
	for (uint64_t at = 0; at < nbytes; at += 4096)
		(void)*(const volatile uint8_t *)(base + at);
}

/* n empty measurements. */
void bench_timer(uint64_t n, uint64_t *ns)
{
	for (uint64_t i = 0; i < n; i++) {
		loads_done();
		uint64_t began = now_ns();

		loads_done();
		ns[i] = now_ns() - began;
	}
}

/* n loads of width 4, 8 or 64 bytes, each address dependent on the load before; values[i] is what was read (64 bytes: xor). */
void bench_loads(const uint8_t *base, const uint64_t *offsets, uint64_t n, uint64_t width, uint64_t *ns,
		 uint64_t *values)
{
	/* Always 0, which the compiler and the CPU do not know. */
	volatile uint64_t nothing = 0;
	uint64_t mask = nothing, last = 0;

	for (uint64_t i = 0; i < n; i++) {
		const volatile uint8_t *at = base + offsets[i] + (last & mask);

		loads_done();
		uint64_t began = now_ns();

		if (width == 4) {
			last = *(const volatile uint32_t *)at;
		} else {
			last = 0;
			for (uint64_t byte = 0; byte < width; byte += 8)
				last ^= *(const volatile uint64_t *)(at + byte);
		}
		loads_done();
		ns[i] = now_ns() - began;
		values[i] = last;
	}
}

/* How many of the rows [tables][count] in out are not the content at bases[t] + id * stride; row_bytes: whole 4 bytes. */
uint64_t bench_wrong_rows(const uint8_t *out, const int64_t *ids, const uint64_t *bases, uint64_t tables,
			  uint64_t count, uint64_t row_bytes, uint64_t stride)
{
	uint64_t wrong = 0;

	for (uint64_t i = 0; i < tables * count; i++) {
		uint64_t from = bases[i / count] + (uint64_t)ids[i] * stride, differ = 0;
		const uint32_t *row = (const uint32_t *)(out + i * row_bytes);

		for (uint64_t byte = 0; byte < row_bytes; byte += 4) {
			uint64_t word = ((from + byte) >> 3) * FACTOR;

			differ |= row[byte >> 2] ^ (uint32_t)(word >> (((from + byte) & 4) * 8));
		}
		wrong += differ != 0;
	}
	return wrong;
}

/* One side of a ping-pong: answer n flags.  0, or -1 when the other side is silent for patience_ns. */
int bench_echo(const volatile uint64_t *ping, volatile uint64_t *pong, uint64_t n, uint64_t patience_ns)
{
	for (uint64_t i = 1; i <= n; i++) {
		uint64_t spins = 0, limit = now_ns() + patience_ns;

		while (__atomic_load_n(ping, __ATOMIC_ACQUIRE) != i) {
			if (++spins % 256 == 0) {
				if (now_ns() > limit)
					return -1;
				sched_yield();
			}
		}
		__atomic_store_n(pong, i, __ATOMIC_RELEASE);
	}
	return 0;
}

/* The other side: nanoseconds of n round trips. */
int bench_ping(volatile uint64_t *ping, const volatile uint64_t *pong, uint64_t n, uint64_t patience_ns, uint64_t *ns)
{
	for (uint64_t i = 1; i <= n; i++) {
		uint64_t began = now_ns(), spins = 0;

		__atomic_store_n(ping, i, __ATOMIC_RELEASE);
		while (__atomic_load_n(pong, __ATOMIC_ACQUIRE) != i) {
			if (++spins % 256 == 0) {
				if (now_ns() > began + patience_ns)
					return -1;
				sched_yield();
			}
		}
		ns[i - 1] = now_ns() - began;
	}
	return 0;
}
