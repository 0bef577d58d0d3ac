/* SPDX-License-Identifier: Apache-2.0 */
#if defined(__aarch64__)
#include <stdbool.h>
#include <stdint.h>

static bool supported(void)
{
	return true;
}

/* Pairs of 16 bytes: two loads and two stores a line. */
static inline void line_copy(uint8_t *dst, const uint8_t *src)
{
	__asm__ volatile("ldp q0, q1, [%1]\n\t"
			 "ldp q2, q3, [%1, #32]\n\t"
			 "stp q0, q1, [%0]\n\t"
			 "stp q2, q3, [%0, #32]"
			 :
			 : "r"(dst), "r"(src)
			 : "v0", "v1", "v2", "v3", "memory");
}

/* STNP: the hint that the data will not be read soon. */
static inline void line_stream(uint8_t *dst, const uint8_t *src)
{
	__asm__ volatile("ldp q0, q1, [%1]\n\t"
			 "ldp q2, q3, [%1, #32]\n\t"
			 "stnp q0, q1, [%0]\n\t"
			 "stnp q2, q3, [%0, #32]"
			 :
			 : "r"(dst), "r"(src)
			 : "v0", "v1", "v2", "v3", "memory");
}

/* A non-temporal pair may be seen out of order by another core. */
static inline void stream_fence(void)
{
	__asm__ volatile("dmb ishst" ::: "memory");
}

#define SET obmm_kernels_neon
#define SET_NAME "neon"
#define SET_SUPPORTED supported
#include "kernels_lines.h"
#endif
