/* SPDX-License-Identifier: Apache-2.0 */
/* Rows of FP8 with block scales as bfloat16, on the CPU (Engram specification 4.7). */
#ifndef OBMM_FP8_H
#define OBMM_FP8_H

#include "../abi/lp64.h"

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/*
 * n rows of dim values and dim / 32 scales, one byte each, side by side -> dim
 * bfloat16 numbers each.  products[scale][value], 256 x 256, says what becomes of
 * a pair: for the bits of another implementation, let that one fill them.
 * dim is a multiple of 32; nothing overlaps.
 */
void obmm_fp8_rows(const uint8_t *rows, uint64_t n, uint32_t dim, const uint16_t *products, uint16_t *out);

#ifdef __cplusplus
}
#endif
#endif
