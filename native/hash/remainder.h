/* SPDX-License-Identifier: Apache-2.0 */
/* Exact remainders by table sizes that are known beforehand, without a division. */
#ifndef OBMM_HASH_REMAINDER_H
#define OBMM_HASH_REMAINDER_H

#include <stdint.h>
#include <string.h>

#define ALWAYS_INLINE static inline __attribute__((always_inline))

typedef unsigned __int128 u128;

/*
 * With r = floor((2^64 - 1) / m) and k = (2^64 - 1) mod m,
 * x/m - x*r/2^64 = x * (k + 1) / (m * 2^64) <= x/2^64 < 1:
 * the estimate floor(x * r / 2^64) is the quotient or one less, for every x.
 */
ALWAYS_INLINE uint64_t remainder_integer(uint64_t x, uint64_t modulus, uint64_t reciprocal)
{
	uint64_t estimate = (uint64_t)(((u128)x * reciprocal) >> 64);
	uint64_t left = x - estimate * modulus;

	return left >= modulus ? left - modulus : left;
}

/* Eight at once; compiled for AVX-512, each line of remainder_lanes() is one instruction. */
#define LANES 8

typedef uint64_t u64_lanes __attribute__((vector_size(8 * LANES)));
typedef double f64_lanes __attribute__((vector_size(8 * LANES)));

/*
 * Through a double: the quotient is estimated by x * inverse, which is never too
 * large and at most one too small (see obmm_ngram_inverse()).
 */
ALWAYS_INLINE void remainder_lanes(const u64_lanes *x, const uint64_t *modulus, const double *inverse, u64_lanes *out)
{
	u64_lanes m, less, one_less;
	f64_lanes i;

	memcpy(&m, modulus, sizeof(m));
	memcpy(&i, inverse, sizeof(i));
	less = *x - __builtin_convertvector(__builtin_convertvector(*x, f64_lanes) * i, u64_lanes) * m;
	one_less = less - m;
	/* the unsigned minimum: what went below zero is huge */
	*out = less ^ ((less ^ one_less) & (u64_lanes)(one_less < less));
}

ALWAYS_INLINE uint64_t remainder_double(uint64_t x, uint64_t modulus, double inverse)
{
	uint64_t less = x - (uint64_t)((double)x * inverse) * modulus;
	uint64_t one_less = less - modulus;

	return one_less < less ? one_less : less;
}

#endif
