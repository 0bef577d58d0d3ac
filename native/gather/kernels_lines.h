/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The kernels for instruction sets without masked stores, over three
 * primitives that the including file defines:
 *
 *   line_copy(dst, src)    64 bytes, any alignment
 *   line_stream(dst, src)  64 bytes past the caches, dst at a line
 *   stream_fence()         after the last line_stream
 *
 * and SET_NAME, SET_SUPPORTED, SET.
 */
#include <string.h>

#include "kernels.h"

#define ALWAYS static inline __attribute__((always_inline))

static const uint8_t zero_line[OBMM_LINE] __attribute__((aligned(OBMM_LINE)));

/* Fewer than 64 bytes, without touching a byte more: two moves that overlap. */
ALWAYS void copy_part(uint8_t *dst, const uint8_t *src, size_t n)
{
	if (n >= 32) {
		memcpy(dst, src, 32);
		memcpy(dst + n - 32, src + n - 32, 32);
	} else if (n >= 16) {
		memcpy(dst, src, 16);
		memcpy(dst + n - 16, src + n - 16, 16);
	} else if (n >= 8) {
		memcpy(dst, src, 8);
		memcpy(dst + n - 8, src + n - 8, 8);
	} else if (n >= 4) {
		memcpy(dst, src, 4);
		memcpy(dst + n - 4, src + n - 4, 4);
	} else {
		for (size_t i = 0; i < n; i++)
			dst[i] = src[i];
	}
}

ALWAYS void copy_part_or_zero(uint8_t *dst, const uint8_t *src, size_t n)
{
	copy_part(dst, src ? src : zero_line, n);
}

ALWAYS void prefetch_row(const uint8_t *src, size_t bytes, bool aligned)
{
	for (size_t i = 0; i < bytes; i += OBMM_LINE)
		__builtin_prefetch(src + i, 0, 2);
	if (!aligned)
		__builtin_prefetch(src + bytes - 1, 0, 2);
}

ALWAYS void copy_plain(uint8_t *dst, const uint8_t *src, const uint8_t *next, size_t bytes, bool aligned)
{
	size_t i = 0;

	if (__builtin_expect(!src, 0)) {
		memset(dst, 0, bytes);
		return;
	}
	for (; i + OBMM_LINE <= bytes; i += OBMM_LINE) {
		if (next)
			__builtin_prefetch(next + i, 0, 2);
		line_copy(dst + i, src + i);
	}
	if (i < bytes) {
		if (next)
			__builtin_prefetch(next + i, 0, 2);
		copy_part(dst + i, src + i, bytes - i);
	}
	if (next && !aligned)
		__builtin_prefetch(next + bytes - 1, 0, 2);
}

ALWAYS void plain_loop(const struct obmm_batch *batch, size_t bytes)
{
	for (size_t i = 0; i < batch->n; i++)
		copy_plain(obmm_batch_dst(batch, i), batch->src[i], batch->ahead ? batch->src[i + batch->ahead] : NULL,
			   bytes, batch->aligned);
}

static void plain(const struct obmm_batch *batch)
{
	if (batch->row_bytes == 64)
		plain_loop(batch, 64);
	else if (batch->row_bytes == 128)
		plain_loop(batch, 128);
	else if (batch->row_bytes == 256)
		plain_loop(batch, 256);
	else
		plain_loop(batch, batch->row_bytes);
}

ALWAYS void stream_whole(uint8_t *dst, const uint8_t *src, size_t bytes)
{
	for (size_t i = 0; i < bytes; i += OBMM_LINE)
		line_stream(dst + i, src ? src + i : zero_line);
}

/* Packed rows: a line that two rows share is put together in `shared` and written once. */
static void stream_packed(const struct obmm_batch *batch)
{
	uint8_t shared[OBMM_LINE] __attribute__((aligned(OBMM_LINE)));
	size_t bytes = batch->row_bytes;
	uint8_t *line = (uint8_t *)((uintptr_t)batch->out & ~(uintptr_t)(OBMM_LINE - 1));
	size_t filled = (size_t)(batch->out - line);
	size_t foreign = filled; /* leading bytes of the line that are not ours to write */

	for (size_t i = 0; i < batch->n; i++) {
		const uint8_t *src = batch->src[i];
		size_t done = 0;

		if (batch->ahead)
			prefetch_row(batch->src[i + batch->ahead], bytes, batch->aligned);
		if (filled) {
			size_t room = OBMM_LINE - filled, part = bytes < room ? bytes : room;

			copy_part_or_zero(shared + filled, src, part);
			filled += part;
			if (filled < OBMM_LINE)
				continue;
			if (foreign)
				copy_part(line + foreign, shared + foreign, OBMM_LINE - foreign);
			else
				line_stream(line, shared);
			foreign = 0;
			line += OBMM_LINE;
			done = part;
		}
		filled = (bytes - done) & (OBMM_LINE - 1);
		stream_whole(line, src ? src + done : NULL, bytes - done - filled);
		line += bytes - done - filled;
		copy_part_or_zero(shared, src ? src + (bytes - filled) : NULL, filled);
	}
	if (filled > foreign)
		copy_part(line + foreign, shared + foreign, filled - foreign);
}

static void stream(const struct obmm_batch *batch)
{
	if (((uintptr_t)batch->out | batch->out_stride | batch->row_bytes) & (OBMM_LINE - 1)) {
		stream_packed(batch);
	} else {
		for (size_t i = 0; i < batch->n; i++) {
			if (batch->ahead)
				prefetch_row(batch->src[i + batch->ahead], batch->row_bytes, batch->aligned);
			stream_whole(obmm_batch_dst(batch, i), batch->src[i], batch->row_bytes);
		}
	}
	stream_fence();
}

static void scatter(const struct obmm_batch *batch)
{
	size_t bytes = batch->row_bytes;

	for (size_t i = 0; i < batch->n; i++) {
		const uint8_t *src = batch->src[i];
		uint8_t *dst = obmm_batch_dst(batch, i);
		size_t lead = -(uintptr_t)dst & (OBMM_LINE - 1), whole;

		if (batch->ahead)
			prefetch_row(batch->src[i + batch->ahead], bytes, batch->aligned);
		lead = lead < bytes ? lead : bytes;
		whole = (bytes - lead) & ~(size_t)(OBMM_LINE - 1);
		copy_part_or_zero(dst, src, lead);
		stream_whole(dst + lead, src ? src + lead : NULL, whole);
		copy_part_or_zero(dst + lead + whole, src ? src + lead + whole : NULL, bytes - lead - whole);
	}
	stream_fence();
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

const struct obmm_kernels SET = {
	.name = SET_NAME,
	.supported = SET_SUPPORTED,
	.plain = plain,
	.stream = stream,
	.scatter = scatter,
	.in_range32 = in_range32,
	.in_range64 = in_range64,
};
