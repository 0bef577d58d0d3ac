/* SPDX-License-Identifier: Apache-2.0 */
#include "summed_kernels.h"

#include <string.h>

#include "../access/nc.h"
#include "../hash/crc32c.h"

#if defined(__x86_64__)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#include <sys/auxv.h>
#endif

/*
 * How far ahead lines are asked for, found by trying: without it a copy that sums is slower than memcpy, with it faster.
 * Behind the end of a block the request is for lines that are not needed, or for addresses without memory, which does no harm.
 */
enum { LINE = OBMM_SUMMED_LINE, AHEAD_STREAM = 4096, AHEAD = 1024 };

static inline __attribute__((always_inline)) void prefetch(const uint8_t *src, const uint8_t *dst, unsigned int sides)
{
	if (sides & OBMM_SIDE_DST_STREAM) {
		__builtin_prefetch(src + AHEAD_STREAM, 0, 3);
	} else {
		__builtin_prefetch(src + AHEAD, 0, 3);
		__builtin_prefetch(dst + AHEAD, 1, 3);
	}
}

/* The sum of the accumulators, which hold the rest of the division: their bytes, as if they had stood there. */
static uint32_t sum_of(const void *accumulators, size_t length)
{
	return ~obmm_crc32c(~0u, accumulators, length);
}

/* ---- on every CPU: copied piece by piece, each summed while it is in the first-level cache ---- */

static int is_always_there(void)
{
	return 1;
}

static uint32_t lines_plain(uint8_t *dst, const uint8_t *src, size_t lines, uint32_t raw, unsigned int sides)
{
	enum { PIECE = 64 };

	for (size_t piece; lines; lines -= piece, dst += piece * LINE, src += piece * LINE) {
		piece = lines < PIECE ? lines : PIECE;
		/* what lies in the mapping is read once; the sum is of the copy, or of the local source */
		if (sides & OBMM_SIDE_SRC_MAPPED) {
			obmm_nc_read(dst, src, piece * LINE);
			raw = ~obmm_crc32c(~raw, dst, piece * LINE);
		} else {
			raw = ~obmm_crc32c(~raw, src, piece * LINE);
			obmm_nc_write(dst, src, piece * LINE);
		}
	}
	return raw;
}

#if defined(__x86_64__)

/* ---- four accumulators of 16 bytes ---- */

static int has_pclmul(void)
{
	return __builtin_cpu_supports("sse4.2") && __builtin_cpu_supports("pclmul");
}

#define PCLMUL __attribute__((target("sse4.2,pclmul")))

PCLMUL static inline __m128i load_128(const uint8_t *src, unsigned int sides)
{
	return sides & OBMM_SIDE_SRC_MAPPED ? _mm_stream_load_si128((__m128i *)src) :
					      _mm_loadu_si128((const __m128i *)src);
}

PCLMUL static inline void store_128(uint8_t *dst, __m128i value, unsigned int sides)
{
	if (sides & OBMM_SIDE_DST_STREAM)
		_mm_stream_si128((__m128i *)dst, value);
	else
		_mm_storeu_si128((__m128i *)dst, value);
}

PCLMUL static inline __attribute__((always_inline)) uint32_t copy_128(uint8_t *dst, const uint8_t *src, size_t lines,
								      uint32_t raw, unsigned int sides)
{
	const __m128i k = _mm_set_epi64x((long long)OBMM_FOLD_512_HIGH, (long long)OBMM_FOLD_512_LOW);
	__m128i sum[4];

	for (int i = 0; i < 4; i++) {
		sum[i] = load_128(src + 16 * i, sides);
		store_128(dst + 16 * i, sum[i], sides);
	}
	sum[0] = _mm_xor_si128(sum[0], _mm_cvtsi32_si128((int)raw));
	while (--lines) {
		dst += LINE;
		src += LINE;
		prefetch(src, dst, sides);
		for (int i = 0; i < 4; i++) {
			__m128i next = load_128(src + 16 * i, sides);
			__m128i low = _mm_clmulepi64_si128(sum[i], k, 0x00);
			__m128i high = _mm_clmulepi64_si128(sum[i], k, 0x11);

			store_128(dst + 16 * i, next, sides);
			sum[i] = _mm_xor_si128(_mm_xor_si128(low, high), next);
		}
	}
	return sum_of(sum, sizeof(sum));
}

/* The compiler makes one loop of each: no test inside. */
PCLMUL static uint32_t lines_pclmul(uint8_t *dst, const uint8_t *src, size_t lines, uint32_t raw, unsigned int sides)
{
	switch (sides) {
	case OBMM_SIDE_SRC_MAPPED:
		return copy_128(dst, src, lines, raw, OBMM_SIDE_SRC_MAPPED);
	case OBMM_SIDE_SRC_MAPPED | OBMM_SIDE_DST_STREAM:
		return copy_128(dst, src, lines, raw, OBMM_SIDE_SRC_MAPPED | OBMM_SIDE_DST_STREAM);
	case OBMM_SIDE_DST_STREAM:
		return copy_128(dst, src, lines, raw, OBMM_SIDE_DST_STREAM);
	default:
		return copy_128(dst, src, lines, raw, 0);
	}
}

/* ---- four accumulators of a line ---- */

static int has_vpclmul(void)
{
	return has_pclmul() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("vpclmulqdq");
}

#define VPCLMUL __attribute__((target("avx512f,vpclmulqdq")))

VPCLMUL static inline __m512i load_512(const uint8_t *src, unsigned int sides)
{
	return sides & OBMM_SIDE_SRC_MAPPED ? _mm512_stream_load_si512((void *)src) : _mm512_loadu_si512(src);
}

VPCLMUL static inline void store_512(uint8_t *dst, __m512i value, unsigned int sides)
{
	if (sides & OBMM_SIDE_DST_STREAM)
		_mm512_stream_si512((void *)dst, value);
	else
		_mm512_storeu_si512(dst, value);
}

VPCLMUL static inline __attribute__((always_inline)) uint32_t copy_512(uint8_t *dst, const uint8_t *src, size_t rounds,
								       uint32_t raw, unsigned int sides)
{
	const __m512i k = _mm512_set_epi64((long long)OBMM_FOLD_2048_HIGH, (long long)OBMM_FOLD_2048_LOW,
					   (long long)OBMM_FOLD_2048_HIGH, (long long)OBMM_FOLD_2048_LOW,
					   (long long)OBMM_FOLD_2048_HIGH, (long long)OBMM_FOLD_2048_LOW,
					   (long long)OBMM_FOLD_2048_HIGH, (long long)OBMM_FOLD_2048_LOW);
	__m512i sum[4];

	for (int i = 0; i < 4; i++) {
		sum[i] = load_512(src + LINE * i, sides);
		store_512(dst + LINE * i, sum[i], sides);
	}
	sum[0] = _mm512_xor_si512(sum[0], _mm512_zextsi128_si512(_mm_cvtsi32_si128((int)raw)));
	while (--rounds) {
		dst += 4 * LINE;
		src += 4 * LINE;
		for (int i = 0; i < 4; i++) {
			__m512i next;

			prefetch(src + LINE * i, dst + LINE * i, sides);
			next = load_512(src + LINE * i, sides);
			store_512(dst + LINE * i, next, sides);
			sum[i] = _mm512_ternarylogic_epi64(_mm512_clmulepi64_epi128(sum[i], k, 0x00),
							   _mm512_clmulepi64_epi128(sum[i], k, 0x11), next, 0x96);
		}
	}
	return sum_of(sum, sizeof(sum));
}

VPCLMUL static uint32_t lines_vpclmul(uint8_t *dst, const uint8_t *src, size_t lines, uint32_t raw, unsigned int sides)
{
	size_t rounds = lines / 4, whole = rounds * 4 * LINE;

	if (rounds) {
		switch (sides) {
		case OBMM_SIDE_SRC_MAPPED:
			raw = copy_512(dst, src, rounds, raw, OBMM_SIDE_SRC_MAPPED);
			break;
		case OBMM_SIDE_SRC_MAPPED | OBMM_SIDE_DST_STREAM:
			raw = copy_512(dst, src, rounds, raw, OBMM_SIDE_SRC_MAPPED | OBMM_SIDE_DST_STREAM);
			break;
		case OBMM_SIDE_DST_STREAM:
			raw = copy_512(dst, src, rounds, raw, OBMM_SIDE_DST_STREAM);
			break;
		default:
			raw = copy_512(dst, src, rounds, raw, 0);
		}
	}
	return lines % 4 ? lines_pclmul(dst + whole, src + whole, lines % 4, raw, sides) : raw;
}

const struct obmm_summed_kernel obmm_summed_kernels[] = {
	{ "vpclmul", has_vpclmul, lines_vpclmul },
	{ "pclmul", has_pclmul, lines_pclmul },
	{ "plain", is_always_there, lines_plain },
};

#elif defined(__aarch64__)

#define HWCAP_PMULL_BIT (1 << 4)
#define HWCAP_CRC32_BIT (1 << 7)

static int has_pmull(void)
{
	return (getauxval(AT_HWCAP) & (HWCAP_PMULL_BIT | HWCAP_CRC32_BIT)) == (HWCAP_PMULL_BIT | HWCAP_CRC32_BIT);
}

#define PMULL __attribute__((target("+crypto")))

PMULL static inline uint64x2_t fold_512(uint64x2_t sum, uint64x2_t next)
{
	poly128_t low = vmull_p64((poly64_t)vgetq_lane_u64(sum, 0), (poly64_t)OBMM_FOLD_512_LOW);
	poly128_t high = vmull_p64((poly64_t)vgetq_lane_u64(sum, 1), (poly64_t)OBMM_FOLD_512_HIGH);

	return veorq_u64(veorq_u64(vreinterpretq_u64_p128(low), vreinterpretq_u64_p128(high)), next);
}

PMULL static uint32_t lines_pmull(uint8_t *dst, const uint8_t *src, size_t lines, uint32_t raw, unsigned int sides)
{
	uint8x16x4_t line = vld1q_u8_x4(src);
	uint64x2_t sum[4];

	vst1q_u8_x4(dst, line);
	for (int i = 0; i < 4; i++)
		sum[i] = vreinterpretq_u64_u8(line.val[i]);
	sum[0] = veorq_u64(sum[0], vsetq_lane_u64(raw, vdupq_n_u64(0), 0));
	while (--lines) {
		dst += LINE;
		src += LINE;
		prefetch(src, dst, sides);
		line = vld1q_u8_x4(src);
		vst1q_u8_x4(dst, line);
		for (int i = 0; i < 4; i++)
			sum[i] = fold_512(sum[i], vreinterpretq_u64_u8(line.val[i]));
	}
	return sum_of(sum, sizeof(sum));
}

const struct obmm_summed_kernel obmm_summed_kernels[] = {
	{ "pmull", has_pmull, lines_pmull },
	{ "plain", is_always_there, lines_plain },
};

#endif
