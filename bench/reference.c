/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the benchmarks compare with, in C so that no interpreter is in the way:
 * the loop that is written first, the limit set by a sequential copy, the limit of
 * one core that gathers, and the same 1,364-byte reads with and without a guard.
 */
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#if defined(__x86_64__)
#include <immintrin.h>
#endif

void ref_nothing(const void *a, const void *b, uint64_t n)
{
	(void)a;
	(void)b;
	(void)n;
}

/* The naive gather. */
void ref_gather(uint8_t *out, const uint8_t *table, const int64_t *ids, uint64_t n, uint64_t row_bytes, uint64_t stride)
{
	for (uint64_t i = 0; i < n; i++)
		memcpy(out + i * row_bytes, table + (uint64_t)ids[i] * stride, row_bytes);
}

/* As many bytes from one place, stored past the caches when they do not fit them: the limit. */
void ref_sequential(uint8_t *out, const uint8_t *from, uint64_t bytes)
{
#if defined(__x86_64__)
	if (bytes >= 4 << 20 && !((uintptr_t)out & 15)) {
		for (uint64_t i = 0; i + 64 <= bytes; i += 64) {
			for (int part = 0; part < 64; part += 16)
				_mm_stream_si128((__m128i *)(out + i + part),
						 _mm_loadu_si128((const __m128i *)(from + i + part)));
		}
		_mm_sfence();
		return;
	}
#endif
	memcpy(out, from, bytes);
}

typedef int copy_fn(void *dst, const void *src, size_t length, void *fault);

static int plain_copy(void *dst, const void *src, size_t length, void *fault)
{
	(void)fault;
	memcpy(dst, src, length);
	return 0;
}

/* n reads at the given offsets, through `copy` or (NULL) through a plain memcpy behind the same kind of call. */
int ref_reads(copy_fn *copy, uint8_t *out, const uint8_t *table, const int64_t *offsets, uint64_t n, uint64_t length)
{
	copy_fn *volatile chosen = copy ? copy : plain_copy;
	int result = 0;

	for (uint64_t i = 0; i < n; i++)
		result |= chosen(out, table + offsets[i], length, NULL);
	return result;
}

typedef int load_fn(const void *src, unsigned int width, uint64_t *value, void *fault);

int ref_loads(load_fn *load, const uint8_t *table, const int64_t *offsets, uint64_t n)
{
	uint64_t value, sum = 0;
	int result = 0;

	for (uint64_t i = 0; i < n; i++) {
		result |= load(table + offsets[i], 8, &value, NULL);
		sum += value;
	}
	return result ? result : (int)(sum & 1);
}

/* ---- the limit of one core: the same design, with nothing around it ---- */

static inline void copy_row(uint8_t *restrict out, const uint8_t *restrict row, const uint8_t *next, uint64_t bytes)
{
	uint64_t i = 0;

	for (; i + 64 <= bytes; i += 64) {
		__builtin_prefetch(next + i, 0, 2);
		memcpy(out + i, row + i, 64);
	}
	__builtin_prefetch(next + i, 0, 2);
	memcpy(out + i, row + i, bytes - i);
	__builtin_prefetch(next + bytes - 1, 0, 2);
}

static inline void stream_row(uint8_t *restrict out, const uint8_t *restrict row, const uint8_t *next, uint64_t bytes)
{
	uint64_t lead = -(uintptr_t)out & 63, i;

	for (i = 0; i < bytes; i += 64)
		__builtin_prefetch(next + i, 0, 2);
	__builtin_prefetch(next + bytes - 1, 0, 2);
	lead = lead < bytes ? lead : bytes;
	memcpy(out, row, lead);
	for (i = lead; i + 64 <= bytes; i += 64) {
#if defined(__AVX512F__)
		_mm512_stream_si512((__m512i *)(out + i), _mm512_loadu_si512(row + i));
#elif defined(__x86_64__)
		for (int part = 0; part < 64; part += 16)
			_mm_stream_si128((__m128i *)(out + i + part), _mm_loadu_si128((const __m128i *)(row + i + part)));
#else
		memcpy(out + i, row + i, 64);
#endif
	}
	memcpy(out + i, row + i, bytes - i);
}

/* Plain stores and prefetch spread over the copy, or stores past the caches and prefetch in a burst; 32 KiB ahead. */
void ref_in_order(uint8_t *out, const uint8_t *table, const int64_t *ids, uint64_t n, uint64_t row_bytes, uint64_t stride,
		  int past_caches)
{
	uint64_t ahead = 32768 / row_bytes < 4 ? 4 : 32768 / row_bytes > 64 ? 64 : 32768 / row_bytes;

	for (uint64_t i = 0; i < n; i++) {
		const uint8_t *row = table + (uint64_t)ids[i] * stride;
		const uint8_t *next = table + (uint64_t)ids[i + ahead < n ? i + ahead : n - 1] * stride;

		if (past_caches)
			stream_row(out + i * row_bytes, row, next, row_bytes);
		else
			copy_row(out + i * row_bytes, row, next, row_bytes);
	}
#if defined(__x86_64__)
	_mm_sfence();
#endif
}

/* Rows by the 2 MiB that they lie in, each to its place past the caches.  keys: room for 2 n; rows below 2^32. */
void ref_by_address(uint8_t *out, const uint8_t *table, const int64_t *ids, uint64_t n, uint64_t row_bytes, uint64_t stride,
		    uint64_t *keys)
{
	uint64_t ahead = 32768 / row_bytes < 4 ? 4 : 32768 / row_bytes > 64 ? 64 : 32768 / row_bytes;
	uint64_t *from = keys, *to = keys + n, near = (2 << 20) / stride;
	static _Thread_local uint32_t buckets[2048];
	unsigned int low = 0;

	while (near >> (low + 1))
		low++;
	for (uint64_t i = 0; i < n; i++)
		from[i] = (uint64_t)ids[i] << 32 | i;
	for (unsigned int pass = 0; pass < 2; pass++) {
		unsigned int shift = 32 + low + 11 * pass;
		uint32_t sum = 0;
		uint64_t *swap = from;

		memset(buckets, 0, sizeof(buckets));
		for (uint64_t i = 0; i < n; i++)
			buckets[from[i] >> shift & 2047]++;
		for (int b = 0; b < 2048; b++) {
			uint32_t here = buckets[b];

			buckets[b] = sum;
			sum += here;
		}
		for (uint64_t i = 0; i < n; i++)
			to[buckets[from[i] >> shift & 2047]++] = from[i];
		from = to;
		to = swap;
	}
	for (uint64_t i = 0; i < n; i++)
		stream_row(out + (uint32_t)from[i] * row_bytes, table + (from[i] >> 32) * stride,
			   table + (from[i + ahead < n ? i + ahead : n - 1] >> 32) * stride, row_bytes);
#if defined(__x86_64__)
	_mm_sfence();
#endif
}
