/* SPDX-License-Identifier: Apache-2.0 */
#include "fp8.h"

#include <stddef.h>

enum { BLOCK = 32, VALUES = 256 };

void obmm_fp8_rows(const uint8_t *rows, uint64_t n, uint32_t dim, const uint16_t *products, uint16_t *out)
{
	uint32_t blocks = dim / BLOCK;

	for (uint64_t row = 0; row < n; row++) {
		const uint8_t *scales = rows + dim;

		for (uint32_t block = 0; block < blocks; block++) {
			/* 512 bytes, near in the cache: few exponents are in use at a time */
			const uint16_t *product = products + (size_t)scales[block] * VALUES;

			for (int i = 0; i < BLOCK; i++)
				out[i] = product[rows[i]];
			rows += BLOCK;
			out += BLOCK;
		}
		rows += blocks;
	}
}
