/* SPDX-License-Identifier: Apache-2.0 */
#ifndef OBMM_HASH_REMAINDER_H
#define OBMM_HASH_REMAINDER_H

#include <stdint.h>

#define ALWAYS_INLINE static inline __attribute__((always_inline))

typedef unsigned __int128 u128;

/*
 * The exact remainder without a division.  With r = floor((2^64 - 1) / m) and
 * k = (2^64 - 1) mod m, x/m - x*r/2^64 = x * (k + 1) / (m * 2^64) <= x/2^64 < 1:
 * the estimate floor(x * r / 2^64) is the quotient or one less, for every x.
 */
ALWAYS_INLINE uint64_t remainder_integer(uint64_t x, uint64_t modulus, uint64_t reciprocal)
{
	uint64_t estimate = (uint64_t)(((u128)x * reciprocal) >> 64);
	uint64_t left = x - estimate * modulus;

	return left >= modulus ? left - modulus : left;
}

/*
 * The same through a double, which eight lanes of AVX-512 do at once; the
 * unsigned minimum is the conditional subtraction without a branch.
 */
ALWAYS_INLINE uint64_t remainder_double(uint64_t x, uint64_t modulus, double inverse)
{
	uint64_t estimate = (uint64_t)((double)x * inverse);
	uint64_t left = x - estimate * modulus;
	uint64_t less = left - modulus;

	return less < left ? less : left;
}

#endif
