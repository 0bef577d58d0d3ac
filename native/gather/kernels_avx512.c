/* SPDX-License-Identifier: Apache-2.0 */
#if defined(__x86_64__)
#pragma GCC target("avx512f,avx512bw,avx512vl,avx512dq,bmi2")
#include <immintrin.h>

#include "kernels.h"

static bool supported(void)
{
	return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
	       __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq") &&
	       __builtin_cpu_supports("bmi2");
}

#define ALWAYS static inline __attribute__((always_inline))

/* The low n bits, n <= 64. */
ALWAYS __mmask64 low_mask(size_t n)
{
	return n >= 64 ? ~0ull : _bzhi_u64(~0ull, (unsigned int)n);
}

/* Row bytes from i on, as many as there are; bytes past the row are never touched. */
ALWAYS __m512i load_part(const uint8_t *src, __mmask64 mask)
{
	return src ? _mm512_maskz_loadu_epi8(mask, src) : _mm512_setzero_si512();
}

/*
 * The first bytes of a row at place `lead` of a line.  Through the stack, not
 * by a masked load from src - lead: that touches the line before the row, which
 * was not prefetched.
 */
ALWAYS __m512i load_lead(const uint8_t *src, size_t lead, size_t bytes)
{
	uint8_t line[2 * OBMM_LINE] __attribute__((aligned(OBMM_LINE)));

	_mm512_store_si512(line, _mm512_setzero_si512());
	_mm512_storeu_si512(line + lead, load_part(src, low_mask(bytes)));
	return _mm512_load_si512(line);
}

ALWAYS void prefetch_row(const uint8_t *src, size_t bytes, bool aligned)
{
	for (size_t i = 0; i < bytes; i += OBMM_LINE)
		_mm_prefetch(src + i, _MM_HINT_T1);
	if (!aligned)
		_mm_prefetch(src + bytes - 1, _MM_HINT_T1);
}

ALWAYS void copy_plain(uint8_t *dst, const uint8_t *src, const uint8_t *next, size_t bytes, bool aligned)
{
	size_t whole = bytes & ~(size_t)(OBMM_LINE - 1);
	__mmask64 tail = low_mask(bytes - whole);

	if (__builtin_expect(!src, 0)) {
		for (size_t i = 0; i < whole; i += OBMM_LINE)
			_mm512_storeu_si512(dst + i, _mm512_setzero_si512());
		_mm512_mask_storeu_epi8(dst + whole, tail, _mm512_setzero_si512());
		return;
	}
	for (size_t i = 0; i < whole; i += OBMM_LINE) {
		if (next)
			_mm_prefetch(next + i, _MM_HINT_T1);
		_mm512_storeu_si512(dst + i, _mm512_loadu_si512(src + i));
	}
	if (tail) {
		if (next)
			_mm_prefetch(next + whole, _MM_HINT_T1);
		_mm512_mask_storeu_epi8(dst + whole, tail, _mm512_maskz_loadu_epi8(tail, src + whole));
	}
	if (next && !aligned)
		_mm_prefetch(next + bytes - 1, _MM_HINT_T1);
}

ALWAYS void plain_loop(const struct obmm_batch *batch, size_t bytes, bool aligned)
{
	const uint8_t *const *src = batch->src;
	size_t n = batch->n, ahead = batch->ahead, stride = batch->out_stride;
	uint8_t *out = batch->out;

	if (batch->dst) {
		for (size_t i = 0; i < n; i++)
			copy_plain(batch->dst[i], src[i], ahead ? src[i + ahead] : NULL, bytes, aligned);
	} else if (ahead) {
		for (size_t i = 0; i < n; i++, out += stride)
			copy_plain(out, src[i], src[i + ahead], bytes, aligned);
	} else {
		for (size_t i = 0; i < n; i++, out += stride)
			copy_plain(out, src[i], NULL, bytes, aligned);
	}
}

static void plain(const struct obmm_batch *batch)
{
	if (batch->row_bytes == 64 && batch->aligned)
		plain_loop(batch, 64, true);
	else if (batch->row_bytes == 128 && batch->aligned)
		plain_loop(batch, 128, true);
	else if (batch->row_bytes == 256 && batch->aligned)
		plain_loop(batch, 256, true);
	else if (batch->aligned)
		plain_loop(batch, batch->row_bytes, true);
	else
		plain_loop(batch, batch->row_bytes, false);
}

/* Rows that begin and end at lines of the output. */
ALWAYS void stream_lines(const struct obmm_batch *batch)
{
	for (size_t i = 0; i < batch->n; i++) {
		const uint8_t *src = batch->src[i];
		uint8_t *dst = obmm_batch_dst(batch, i);

		if (batch->ahead)
			prefetch_row(batch->src[i + batch->ahead], batch->row_bytes, batch->aligned);
		if (__builtin_expect(!src, 0)) {
			for (size_t o = 0; o < batch->row_bytes; o += OBMM_LINE)
				_mm512_stream_si512((void *)(dst + o), _mm512_setzero_si512());
			continue;
		}
		for (size_t o = 0; o < batch->row_bytes; o += OBMM_LINE)
			_mm512_stream_si512((void *)(dst + o), _mm512_loadu_si512(src + o));
	}
}

/*
 * Packed rows of any size: a line that two rows share is put together in
 * `carry` and written once; only the batch's first and last part of a line are
 * written by a masked store.
 */
ALWAYS void stream_packed(const struct obmm_batch *batch)
{
	size_t bytes = batch->row_bytes;
	uint8_t *line = (uint8_t *)((uintptr_t)batch->out & ~(uintptr_t)(OBMM_LINE - 1));
	size_t filled = (size_t)(batch->out - line); /* bytes of the line that come before */
	__mmask64 foreign = low_mask(filled);	     /* ... and are not ours to write */
	__m512i carry = _mm512_setzero_si512();

	for (size_t i = 0; i < batch->n; i++) {
		const uint8_t *src = batch->src[i];
		size_t done = 0;

		if (batch->ahead)
			prefetch_row(batch->src[i + batch->ahead], bytes, batch->aligned);
		if (filled) {
			carry = _mm512_or_si512(carry, load_lead(src, filled, bytes));
			if (filled + bytes < OBMM_LINE) {
				filled += bytes;
				continue;
			}
			if (foreign)
				_mm512_mask_storeu_epi8(line, ~foreign, carry);
			else
				_mm512_stream_si512((void *)line, carry);
			foreign = 0;
			line += OBMM_LINE;
			done = OBMM_LINE - filled;
		}
		for (; done + OBMM_LINE <= bytes; done += OBMM_LINE, line += OBMM_LINE)
			_mm512_stream_si512((void *)line, src ? _mm512_loadu_si512(src + done) : _mm512_setzero_si512());
		filled = bytes - done;
		carry = load_part(src ? src + done : NULL, low_mask(filled));
	}
	if (filled)
		_mm512_mask_storeu_epi8(line, low_mask(filled) & ~foreign, carry);
}

static void stream(const struct obmm_batch *batch)
{
	if (!(((uintptr_t)batch->out | batch->out_stride | batch->row_bytes) & (OBMM_LINE - 1)))
		stream_lines(batch);
	else
		stream_packed(batch);
	_mm_sfence();
}

ALWAYS void scatter_row(uint8_t *dst, const uint8_t *src, size_t bytes)
{
	size_t lead = (uintptr_t)dst & (OBMM_LINE - 1), done = 0;

	if (lead) {
		/* masked at the line's start, so that no store crosses a line */
		_mm512_mask_storeu_epi8(dst - lead, low_mask(bytes) << lead, load_lead(src, lead, bytes));
		done = OBMM_LINE - lead;
	}
	for (; done + OBMM_LINE <= bytes; done += OBMM_LINE)
		_mm512_stream_si512((void *)(dst + done), src ? _mm512_loadu_si512(src + done) : _mm512_setzero_si512());
	if (done < bytes) {
		__mmask64 part = low_mask(bytes - done);

		_mm512_mask_storeu_epi8(dst + done, part, load_part(src ? src + done : NULL, part));
	}
}

static void scatter(const struct obmm_batch *batch)
{
	if (!batch->dst || ((uintptr_t)batch->out | batch->out_stride | batch->row_bytes) & (OBMM_LINE - 1)) {
		for (size_t i = 0; i < batch->n; i++) {
			if (batch->ahead)
				prefetch_row(batch->src[i + batch->ahead], batch->row_bytes, batch->aligned);
			scatter_row(obmm_batch_dst(batch, i), batch->src[i], batch->row_bytes);
		}
	} else {
		stream_lines(batch);
	}
	_mm_sfence();
}

static bool in_range32(const int32_t *ids, size_t n, uint64_t rows)
{
	uint32_t limit = rows > INT32_MAX ? (uint32_t)INT32_MAX + 1 : (uint32_t)rows;
	uint32_t bad = 0;

	for (size_t i = 0; i < n; i++)
		bad |= (uint32_t)ids[i] >= limit;
	return !bad;
}

static bool in_range64(const int64_t *ids, size_t n, uint64_t rows)
{
	uint64_t bad = 0;

	for (size_t i = 0; i < n; i++)
		bad |= (uint64_t)ids[i] >= rows;
	return !bad;
}

const struct obmm_kernels obmm_kernels_avx512 = {
	.name = "avx512",
	.supported = supported,
	.plain = plain,
	.stream = stream,
	.scatter = scatter,
	.in_range32 = in_range32,
	.in_range64 = in_range64,
};
#endif
