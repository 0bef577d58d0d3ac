/* SPDX-License-Identifier: Apache-2.0 */
/* Any CPU of the architecture: what the compiler makes of 64-byte moves. */
#include <stdbool.h>
#include <stdint.h>

struct line {
	uint8_t bytes[64];
} __attribute__((may_alias));

static bool supported(void)
{
	return true;
}

static inline void line_copy(uint8_t *dst, const uint8_t *src)
{
	*(struct line *)dst = *(const struct line *)src;
}

static inline void line_stream(uint8_t *dst, const uint8_t *src)
{
	*(struct line *)dst = *(const struct line *)src;
}

static inline void stream_fence(void)
{
}

#define SET obmm_kernels_generic
#define SET_NAME "generic"
#define SET_SUPPORTED supported
#include "kernels_lines.h"
