/* SPDX-License-Identifier: Apache-2.0 */
#include "blake2b.h"

#include <errno.h>
#include <string.h>

enum { WORDS = 16, ROUNDS = 12, BLOCK = OBMM_BLAKE2B_BLOCK };

static const uint64_t start[8] = {
	0x6a09e667f3bcc908ull, 0xbb67ae8584caa73bull, 0x3c6ef372fe94f82bull, 0xa54ff53a5f1d36f1ull,
	0x510e527fade682d1ull, 0x9b05688c2b3e6c1full, 0x1f83d9abfb41bd6bull, 0x5be0cd19137e2179ull,
};

/* The order of the words of a block, round by round; the last two rounds are the first two again. */
static const uint8_t order[ROUNDS][WORDS] = {
	{ 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15 }, { 14, 10, 4, 8, 9, 15, 13, 6, 1, 12, 0, 2, 11, 7, 5, 3 },
	{ 11, 8, 12, 0, 5, 2, 15, 13, 10, 14, 3, 6, 7, 1, 9, 4 }, { 7, 9, 3, 1, 13, 12, 11, 14, 2, 6, 5, 10, 4, 0, 15, 8 },
	{ 9, 0, 5, 7, 2, 4, 10, 15, 14, 1, 11, 12, 6, 8, 3, 13 }, { 2, 12, 6, 10, 0, 11, 8, 3, 4, 13, 7, 5, 15, 14, 1, 9 },
	{ 12, 5, 1, 15, 14, 13, 4, 10, 0, 7, 6, 3, 9, 2, 8, 11 }, { 13, 11, 7, 14, 12, 1, 3, 9, 5, 0, 15, 4, 8, 6, 2, 10 },
	{ 6, 15, 14, 9, 11, 3, 0, 8, 12, 2, 13, 7, 1, 4, 10, 5 }, { 10, 2, 8, 4, 7, 6, 1, 5, 15, 11, 9, 14, 3, 12, 13, 0 },
	{ 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15 }, { 14, 10, 4, 8, 9, 15, 13, 6, 1, 12, 0, 2, 11, 7, 5, 3 },
};

static inline uint64_t turn(uint64_t value, int right)
{
	return value >> right | value << (64 - right);
}

static inline __attribute__((always_inline)) void mix(uint64_t *v, int a, int b, int c, int d, uint64_t x, uint64_t y)
{
	v[a] += v[b] + x;
	v[d] = turn(v[d] ^ v[a], 32);
	v[c] += v[d];
	v[b] = turn(v[b] ^ v[c], 24);
	v[a] += v[b] + y;
	v[d] = turn(v[d] ^ v[a], 16);
	v[c] += v[d];
	v[b] = turn(v[b] ^ v[c], 63);
}

/* `counted`: bytes up to the end of this block. */
static void compress(uint64_t *state, const uint8_t *block, uint64_t counted, int is_last)
{
	uint64_t m[WORDS], v[WORDS];

	memcpy(m, block, sizeof(m)); /* little-endian on every processor that is built for */
	memcpy(v, state, 8 * sizeof(*v));
	memcpy(v + 8, start, 8 * sizeof(*v));
	v[12] ^= counted;
	v[14] ^= is_last ? ~0ull : 0;
	for (int round = 0; round < ROUNDS; round++) {
		const uint8_t *s = order[round];

		mix(v, 0, 4, 8, 12, m[s[0]], m[s[1]]);
		mix(v, 1, 5, 9, 13, m[s[2]], m[s[3]]);
		mix(v, 2, 6, 10, 14, m[s[4]], m[s[5]]);
		mix(v, 3, 7, 11, 15, m[s[6]], m[s[7]]);
		mix(v, 0, 5, 10, 15, m[s[8]], m[s[9]]);
		mix(v, 1, 6, 11, 12, m[s[10]], m[s[11]]);
		mix(v, 2, 7, 8, 13, m[s[12]], m[s[13]]);
		mix(v, 3, 4, 9, 14, m[s[14]], m[s[15]]);
	}
	for (int i = 0; i < 8; i++)
		state[i] ^= v[i] ^ v[i + 8];
}

int obmm_blake2b_key(struct obmm_blake2b_key *key, const uint8_t *bytes, size_t length)
{
	if (!length || length > OBMM_BLAKE2B_KEY)
		return -EINVAL;
	memset(key->block, 0, sizeof(key->block));
	memcpy(key->block, bytes, length);
	memcpy(key->begun, start, sizeof(start));
	key->begun[0] ^= OBMM_BLAKE2B_DIGEST | length << 8 | 1 << 16 | 1 << 24; /* sequential: fanout and depth are 1 */
	memcpy(key->keyed, key->begun, sizeof(key->keyed));
	compress(key->keyed, key->block, BLOCK, 0);
	return 0;
}

static void digest(const struct obmm_blake2b_key *key, const uint8_t *data, size_t length, uint8_t *out)
{
	uint64_t state[8], counted = BLOCK;
	uint8_t last[BLOCK] = { 0 };

	if (!length) {
		memcpy(state, key->begun, sizeof(state));
		compress(state, key->block, counted, 1);
	} else {
		memcpy(state, key->keyed, sizeof(state));
		for (; length > BLOCK; data += BLOCK, length -= BLOCK)
			compress(state, data, counted += BLOCK, 0);
		memcpy(last, data, length);
		compress(state, last, counted + length, 1);
	}
	memcpy(out, state, OBMM_BLAKE2B_DIGEST);
}

void obmm_blake2b_many(const struct obmm_blake2b_key *key, const uint8_t *data, const uint32_t *lengths, size_t count,
		       uint8_t *digests)
{
	for (size_t i = 0; i < count; i++) {
		digest(key, data, lengths[i], digests + i * OBMM_BLAKE2B_DIGEST);
		data += lengths[i];
	}
}
