/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the benchmarks compare with, in C so that no interpreter is in the way:
 * the loop everybody writes first, the limit set by a sequential copy, and the
 * same 1,364-byte reads with and without a guard.
 */
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#if defined(__x86_64__)
#include <emmintrin.h>
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
