// SPDX-License-Identifier: Apache-2.0
/* Both kernels of native/hash against the division they avoid and against each other. */
#include <errno.h>

#include "../hash/blake2b.h"
#include "../hash/ngram.h"
#include "../hash/remainder.h"
#include "test.h"

static uint64_t state = 88172645463325252u;

static uint64_t random64(void)
{
	state ^= state << 13;
	state ^= state >> 7;
	state ^= state << 17;
	return state;
}

static void check_remainder(uint64_t x, uint64_t modulus)
{
	double inverse = obmm_ngram_inverse(modulus);

	CHECK_EQ(remainder_integer(x, modulus, UINT64_MAX / modulus), x % modulus);
	CHECK((inverse == 0.0) == (modulus < 1u << 15));
	if (inverse != 0.0)
		CHECK_EQ(remainder_double(x, modulus, inverse), x % modulus);
}

TEST(both_remainders_equal_the_division)
{
	static const uint64_t moduli[] = { 1,
					   2,
					   3,
					   (1u << 15) - 1,
					   1u << 15,
					   (1u << 15) + 1,
					   16000057,
					   UINT32_MAX,
					   1ull << 32,
					   (1ull << 53) + 1,
					   INT64_MAX,
					   (uint64_t)INT64_MAX - 24 };

	for (size_t i = 0; i < sizeof(moduli) / sizeof(moduli[0]); i++) {
		uint64_t m = moduli[i], whole = UINT64_MAX / m * m;
		const uint64_t xs[] = { 0,	   1,	      m - 1,	 m,	 m + 1, 2 * m - 1, 2 * m, whole - 1,
					whole, UINT64_MAX, INT64_MAX, 1ull << 63 };

		for (size_t j = 0; j < sizeof(xs) / sizeof(xs[0]); j++)
			check_remainder(xs[j], m);
	}
	for (int i = 0; i < 1000000; i++) {
		uint64_t m = (random64() >> 1) >> random64() % 62;
		uint64_t x = random64() >> random64() % 3;

		if (!m)
			continue;
		check_remainder(x, m);
		check_remainder(x / m * m, m);
		check_remainder(x / m * m - 1, m);
	}
}

enum { LAYERS = 2, ORDER = 4, HEADS = 9, COLUMNS = LAYERS * (ORDER - 1) * HEADS, TOKENS = 500, VOCABULARY = 5000 };

TEST(the_wide_and_the_scalar_kernel_agree)
{
	static uint64_t modulus[COLUMNS], reciprocal[COLUMNS], offset[COLUMNS], multiplier[LAYERS * ORDER];
	static uint64_t coefficient[ORDER * COLUMNS];
	static double inverse[COLUMNS];
	static int64_t tokens[TOKENS], history[2 * (ORDER - 1)], scalar[TOKENS * COLUMNS], wide[TOKENS * COLUMNS];
	static const int64_t starts[] = { 0, 123, TOKENS };
	struct obmm_ngram_columns columns = { COLUMNS, modulus, reciprocal, inverse, offset };
	struct obmm_engram engram = { ORDER, LAYERS, HEADS, 2, VOCABULARY, NULL, multiplier, columns };
	struct obmm_poly poly = { ORDER, VOCABULARY, 7, coefficient, columns };
	struct obmm_ngram_batch batch = { tokens, 8, 2, starts, history, NULL };

	for (int c = 0; c < COLUMNS; c++) {
		modulus[c] = (1u << 15) + random64() % (1u << 30);
		reciprocal[c] = UINT64_MAX / modulus[c];
		inverse[c] = obmm_ngram_inverse(modulus[c]);
		offset[c] = random64() >> 8;
		for (int j = 0; j < ORDER; j++)
			coefficient[j * COLUMNS + c] = random64() % modulus[c];
	}
	for (int i = 0; i < LAYERS * ORDER; i++)
		multiplier[i] = random64() >> 14 | 1;
	for (int t = 0; t < TOKENS; t++)
		tokens[t] = (int64_t)(random64() % (VOCABULARY + 100)) - 100;
	for (int i = 0; i < 2 * (ORDER - 1); i++)
		history[i] = (int64_t)(random64() % VOCABULARY);
	CHECK(obmm_engram_hash(&engram, &batch, wide) == 0);
	engram.columns.inverse = NULL;
	CHECK(obmm_engram_hash(&engram, &batch, scalar) == 0);
	CHECK(!memcmp(scalar, wide, sizeof(wide)));
	CHECK(obmm_poly_hash(&poly, &batch, wide) == 0);
	poly.columns.inverse = NULL;
	CHECK(obmm_poly_hash(&poly, &batch, scalar) == 0);
	CHECK(!memcmp(scalar, wide, sizeof(wide)));

	tokens[TOKENS - 1] = VOCABULARY;
	CHECK(obmm_engram_hash(&engram, &batch, scalar) == -1);
	CHECK(obmm_poly_hash(&poly, &batch, scalar) == -1);
	tokens[TOKENS - 1] = 0;
	history[0] = VOCABULARY;
	CHECK(obmm_engram_hash(&engram, &batch, scalar) == -1);
	CHECK(obmm_poly_hash(&poly, &batch, scalar) == -1);
}

TEST(blake2b_of_many_is_that_of_each)
{
	static const uint32_t lengths[] = { 0, 1, 128, 129, 300 };
	static const char *const expected[] = { "3daf97bce7888fd59773c66bf647459c", "cb0f7736a53974236661585b8842dd8c",
						"45d43af02414a146c8803c3f7da3554d", "aab5517a7ade99ce990a81aa3d3ea27d",
						"707bfdf5c9eb4115916f1c839e168d5d" };
	uint8_t bytes[OBMM_BLAKE2B_KEY], data[1 + 128 + 129 + 300], digests[5 * OBMM_BLAKE2B_DIGEST];
	struct obmm_blake2b_key key;
	size_t at = 0;

	for (int i = 0; i < OBMM_BLAKE2B_KEY; i++)
		bytes[i] = (uint8_t)i;
	for (int message = 0; message < 5; message++)
		for (uint32_t i = 0; i < lengths[message]; i++)
			data[at++] = (uint8_t)(i % 251);
	CHECK_EQ(obmm_blake2b_key(&key, bytes, 0), -EINVAL);
	CHECK_EQ(obmm_blake2b_key(&key, bytes, OBMM_BLAKE2B_KEY + 1), -EINVAL);
	CHECK_EQ(obmm_blake2b_key(&key, bytes, 32), 0);
	obmm_blake2b_many(&key, data, lengths, 5, digests);
	for (int message = 0; message < 5; message++) {
		char shown[2 * OBMM_BLAKE2B_DIGEST + 1];

		for (int i = 0; i < OBMM_BLAKE2B_DIGEST; i++)
			snprintf(shown + 2 * i, 3, "%02x", digests[message * OBMM_BLAKE2B_DIGEST + i]);
		CHECK_STR(shown, expected[message]);
	}
}
