/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Copy whole lines and fold them into a CRC-32C without carries (reflected, as
 * the crc32c instructions of both processors have it).
 *
 * A fold over D bits multiplies the low half of an accumulator by x^(D + 32)
 * and the high half by x^(D - 32), both modulo the polynomial; the constants
 * are those powers, bit-reflected and shifted left by one.
 */
#ifndef OBMM_SUMMED_KERNELS_H
#define OBMM_SUMMED_KERNELS_H

#include <stddef.h>
#include <stdint.h>

enum { OBMM_SUMMED_LINE = 64 };

/* how a kernel's two sides are accessed */
enum obmm_summed_side {
	OBMM_SIDE_SRC_MAPPED = 1, /* src is aligned to a line and lies in the mapping */
	OBMM_SIDE_DST_STREAM = 2, /* dst is aligned to a line and written past the caches */
};

/* `raw` is the sum before the final inversion, in and out.  lines > 0. */
typedef uint32_t obmm_summed_lines(uint8_t *dst, const uint8_t *src, size_t lines, uint32_t raw, unsigned int sides);

struct obmm_summed_kernel {
	const char *name;
	int (*is_supported)(void);
	obmm_summed_lines *lines;
};

/* Best first, ended by one that every CPU has. */
extern const struct obmm_summed_kernel obmm_summed_kernels[] __attribute__((visibility("hidden")));

#define OBMM_FOLD_512_LOW 0x740eef02ull
#define OBMM_FOLD_512_HIGH 0x9e4addf8ull
#define OBMM_FOLD_2048_LOW 0xdcb17aa4ull
#define OBMM_FOLD_2048_HIGH 0xb9e02b86ull

#endif
