/* SPDX-License-Identifier: Apache-2.0 */
#include "nc.h"

#include <stdint.h>
#include <string.h>

#if defined(__x86_64__)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

enum { LINE = 64 };

/* The largest naturally aligned access at this address within length bytes. */
static size_t step_at(uintptr_t address, size_t length)
{
	size_t step = 8;

	while (step > length || (address & (step - 1)))
		step >>= 1;
	return step;
}

static void read_ragged(uint8_t *dst, const uint8_t *src, size_t length)
{
	while (length) {
		size_t step = step_at((uintptr_t)src, length);
		uint64_t value;

		switch (step) {
		case 8:
			value = *(const volatile uint64_t *)src;
			break;
		case 4:
			value = *(const volatile uint32_t *)src;
			break;
		case 2:
			value = *(const volatile uint16_t *)src;
			break;
		default:
			value = *(const volatile uint8_t *)src;
		}
		memcpy(dst, &value, step);
		dst += step;
		src += step;
		length -= step;
	}
}

static void write_ragged(uint8_t *dst, const uint8_t *src, size_t length)
{
	while (length) {
		size_t step = step_at((uintptr_t)dst, length);
		uint64_t value = 0;

		memcpy(&value, src, step);
		switch (step) {
		case 8:
			*(volatile uint64_t *)dst = value;
			break;
		case 4:
			*(volatile uint32_t *)dst = (uint32_t)value;
			break;
		case 2:
			*(volatile uint16_t *)dst = (uint16_t)value;
			break;
		default:
			*(volatile uint8_t *)dst = (uint8_t)value;
		}
		dst += step;
		src += step;
		length -= step;
	}
}

#if defined(__x86_64__)
__attribute__((target("avx512f"))) static void read_lines_avx512(uint8_t *dst, const uint8_t *src, size_t lines)
{
	for (; lines; lines--, dst += LINE, src += LINE)
		_mm512_storeu_si512(dst, _mm512_stream_load_si512((void *)src));
}

__attribute__((target("avx512f"))) static void write_lines_avx512(uint8_t *dst, const uint8_t *src, size_t lines)
{
	for (; lines; lines--, dst += LINE, src += LINE)
		_mm512_stream_si512((void *)dst, _mm512_loadu_si512(src));
}

__attribute__((target("avx2"))) static void read_lines_avx2(uint8_t *dst, const uint8_t *src, size_t lines)
{
	for (; lines; lines--, dst += LINE, src += LINE) {
		__m256i low = _mm256_stream_load_si256((const __m256i *)src);
		__m256i high = _mm256_stream_load_si256((const __m256i *)(src + 32));

		_mm256_storeu_si256((__m256i *)dst, low);
		_mm256_storeu_si256((__m256i *)(dst + 32), high);
	}
}

__attribute__((target("sse4.1"))) static void read_lines_sse41(uint8_t *dst, const uint8_t *src, size_t lines)
{
	for (; lines; lines--, dst += LINE, src += LINE) {
		for (int i = 0; i < LINE; i += 16)
			_mm_storeu_si128((__m128i *)(dst + i), _mm_stream_load_si128((__m128i *)(src + i)));
	}
}

/* SSE2: every x86-64 has it; four stores fill one write-combining buffer. */
static void write_lines_sse2(uint8_t *dst, const uint8_t *src, size_t lines)
{
	for (; lines; lines--, dst += LINE, src += LINE) {
		for (int i = 0; i < LINE; i += 16)
			_mm_stream_si128((__m128i *)(dst + i), _mm_loadu_si128((const __m128i *)(src + i)));
	}
}

static void read_lines(uint8_t *dst, const uint8_t *src, size_t lines)
{
	if (__builtin_cpu_supports("avx512f"))
		read_lines_avx512(dst, src, lines);
	else if (__builtin_cpu_supports("avx2"))
		read_lines_avx2(dst, src, lines);
	else if (__builtin_cpu_supports("sse4.1"))
		read_lines_sse41(dst, src, lines);
	else
		read_ragged(dst, src, lines * LINE);
}

static void write_lines(uint8_t *dst, const uint8_t *src, size_t lines)
{
	if (__builtin_cpu_supports("avx512f"))
		write_lines_avx512(dst, src, lines);
	else
		write_lines_sse2(dst, src, lines);
}
#elif defined(__aarch64__)
static void read_lines(uint8_t *dst, const uint8_t *src, size_t lines)
{
	for (; lines; lines--, dst += LINE, src += LINE)
		vst1q_u8_x4(dst, vld1q_u8_x4(src));
}

static void write_lines(uint8_t *dst, const uint8_t *src, size_t lines)
{
	for (; lines; lines--, dst += LINE, src += LINE)
		vst1q_u8_x4(dst, vld1q_u8_x4(src));
}
#endif

static size_t to_next_line(const void *address, size_t length)
{
	size_t ahead = -(uintptr_t)address & (LINE - 1);

	return ahead < length ? ahead : length;
}

void obmm_nc_read(void *dst, const void *src, size_t length)
{
	size_t head = to_next_line(src, length);
	size_t body = (length - head) & ~(size_t)(LINE - 1);

	read_ragged(dst, src, head);
	read_lines((uint8_t *)dst + head, (const uint8_t *)src + head, body / LINE);
	read_ragged((uint8_t *)dst + head + body, (const uint8_t *)src + head + body, length - head - body);
}

void obmm_nc_write(void *dst, const void *src, size_t length)
{
	size_t head = to_next_line(dst, length);
	size_t body = (length - head) & ~(size_t)(LINE - 1);

	write_ragged(dst, src, head);
	write_lines((uint8_t *)dst + head, (const uint8_t *)src + head, body / LINE);
	write_ragged((uint8_t *)dst + head + body, (const uint8_t *)src + head + body, length - head - body);
}
