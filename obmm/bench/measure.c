/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The clock's inner loops of the reference benchmark: loads one at a time, flags between two
 * nodes; the content of a memory, and the comparison of what was read with it.  The content of
 * every benchmark memory: the 64-bit word at byte 8 * i is i * FACTOR.
 */
#define _GNU_SOURCE
#include <sched.h>
#include <stdint.h>
#include <string.h>
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

/* Nanoseconds of one of n loads at random lines, each address dependent on the load before. */
double bench_chase(const uint8_t *base, uint64_t lines, uint64_t n, uint64_t seed)
{
	volatile uint64_t nothing = 0;
	uint64_t mask = nothing, state = seed, loaded = 0, began;

	began = now_ns();
	for (uint64_t i = 0; i < n; i++) {
		state ^= state << 13;
		state ^= state >> 7;
		state ^= state << 17;
		loaded = *(const volatile uint64_t *)(base + (uint64_t)((unsigned __int128)state * lines >> 64) * 64 +
						      (loaded & mask));
		state += loaded & mask;
	}
	return (double)(now_ns() - began) / (double)n;
}

/* n loads of width 4, 8 or 64 bytes, each address dependent on the load before; 1 or 8 words of values[] each: what was read. */
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

		uint64_t seen[8] = { 0 };

		if (width == 4) {
			seen[0] = *(const volatile uint32_t *)at;
		} else {
			for (uint64_t word = 0; word < width / 8; word++)
				seen[word] = *(const volatile uint64_t *)(at + 8 * word);
		}
		last = seen[0];
		loads_done();
		ns[i] = now_ns() - began;
		memcpy(values, seen, width < 8 ? 8 : width);
		values += width < 8 ? 1 : width / 8;
	}
}

/* words[i] of the content from 64-bit word `first` on. */
void bench_fill(uint64_t *words, uint64_t first, uint64_t n)
{
	for (uint64_t i = 0; i < n; i++)
		words[i] = (first + i) * FACTOR;
}

/* How many of n words are not the content from word `first` on, flipped: all bits the other way round. */
uint64_t bench_wrong_words(const uint64_t *words, uint64_t first, uint64_t n, uint64_t flipped)
{
	uint64_t wrong = 0, flip = flipped ? ~(uint64_t)0 : 0;

	for (uint64_t i = 0; i < n; i++)
		wrong += words[i] != (((first + i) * FACTOR) ^ flip);
	return wrong;
}

static inline uint64_t word_at(const uint8_t *at)
{
	uint64_t word;

	memcpy(&word, at, sizeof word);
	return word;
}

static inline uint32_t half_at(const uint8_t *at)
{
	uint32_t half;

	memcpy(&half, at, sizeof half);
	return half;
}

/* Whether nbytes (whole 4 bytes) differ from the content at byte `from` (whole 4 bytes) of the memory. */
static int row_differs(const uint8_t *row, uint64_t from, uint64_t nbytes)
{
	uint64_t differ = 0, word = from >> 3;

	if (from & 4) {
		differ |= half_at(row) ^ (uint32_t)((word * FACTOR) >> 32);
		row += 4;
		nbytes -= 4;
		word++;
	}
	uint64_t whole = nbytes >> 3;

	for (uint64_t i = 0; i < whole; i++)
		differ |= word_at(row + 8 * i) ^ ((word + i) * FACTOR);
	if (nbytes & 4)
		differ |= half_at(row + 8 * whole) ^ (uint32_t)((word + whole) * FACTOR);
	return differ != 0;
}

/* How many of the rows [tables][count] in out are not the content at bases[t] + id * stride; row_bytes: whole 4 bytes. */
uint64_t bench_wrong_rows(const uint8_t *out, const int64_t *ids, const uint64_t *bases, uint64_t tables,
			  uint64_t count, uint64_t row_bytes, uint64_t stride)
{
	uint64_t wrong = 0;

	for (uint64_t table = 0; table < tables; table++) {
		for (uint64_t i = 0; i < count; i++, ids++, out += row_bytes)
			wrong += row_differs(out, bases[table] + (uint64_t)*ids * stride, row_bytes);
	}
	return wrong;
}

/* Wait until *flag is n.  0, or -1 after patience_ns. */
int bench_await(const volatile uint64_t *flag, uint64_t n, uint64_t patience_ns)
{
	uint64_t spins = 0, limit = now_ns() + patience_ns;

	while (__atomic_load_n(flag, __ATOMIC_ACQUIRE) != n) {
		if (++spins % 256 == 0) {
			if (now_ns() > limit)
				return -1;
			sched_yield();
		}
	}
	return 0;
}

/* Wake the threads that wait for it. */
void bench_tell(volatile uint64_t *flag, uint64_t n)
{
	__atomic_store_n(flag, n, __ATOMIC_RELEASE);
}

/* One side of a ping-pong: answer n flags.  0, or -1 when the other side is silent for patience_ns. */
int bench_echo(const volatile uint64_t *ping, volatile uint64_t *pong, uint64_t n, uint64_t patience_ns)
{
	for (uint64_t i = 1; i <= n; i++) {
		if (bench_await(ping, i, patience_ns))
			return -1;
		bench_tell(pong, i);
	}
	return 0;
}

/* The other side: nanoseconds of n round trips. */
int bench_ping(volatile uint64_t *ping, const volatile uint64_t *pong, uint64_t n, uint64_t patience_ns, uint64_t *ns)
{
	for (uint64_t i = 1; i <= n; i++) {
		uint64_t began = now_ns();

		bench_tell(ping, i);
		if (bench_await(pong, i, patience_ns))
			return -1;
		ns[i - 1] = now_ns() - began;
	}
	return 0;
}
