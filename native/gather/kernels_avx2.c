/* SPDX-License-Identifier: Apache-2.0 */
#if defined(__x86_64__)
#pragma GCC target("avx2")
#include <immintrin.h>
#include <stdbool.h>
#include <stdint.h>

static bool supported(void)
{
	return __builtin_cpu_supports("avx2");
}

static inline void line_copy(uint8_t *dst, const uint8_t *src)
{
	__m256i low = _mm256_loadu_si256((const __m256i *)src);
	__m256i high = _mm256_loadu_si256((const __m256i *)(src + 32));

	_mm256_storeu_si256((__m256i *)dst, low);
	_mm256_storeu_si256((__m256i *)(dst + 32), high);
}

static inline void line_stream(uint8_t *dst, const uint8_t *src)
{
	__m256i low = _mm256_loadu_si256((const __m256i *)src);
	__m256i high = _mm256_loadu_si256((const __m256i *)(src + 32));

	_mm256_stream_si256((__m256i *)dst, low);
	_mm256_stream_si256((__m256i *)(dst + 32), high);
}

static inline void stream_fence(void)
{
	_mm_sfence();
}

#define SET obmm_kernels_avx2
#define SET_NAME "avx2"
#define SET_SUPPORTED supported
#include "kernels_lines.h"
#endif
