/* SPDX-License-Identifier: Apache-2.0 */
#define OBMM_NGRAM_MAX_ORDER ...

struct obmm_ngram_columns {
	uint64_t count;
	const uint64_t *modulus;
	const uint64_t *reciprocal;
	const double *inverse;
	const uint64_t *offset;
};

struct obmm_engram {
	uint32_t order;
	uint32_t layers;
	uint32_t heads;
	int64_t pad;
	uint64_t vocabulary;
	const int32_t *map;
	const uint64_t *multiplier;
	struct obmm_ngram_columns columns;
};

struct obmm_poly {
	uint32_t order;
	uint64_t vocabulary;
	int64_t eos;
	const uint64_t *coefficient;
	struct obmm_ngram_columns columns;
};

struct obmm_ngram_batch {
	const void *tokens;
	uint32_t token_bytes;
	uint64_t requests;
	const int64_t *starts;
	const int64_t *history;
	const uint8_t *dead;
};

int obmm_engram_hash(const struct obmm_engram *plan, const struct obmm_ngram_batch *batch, int64_t *out);
int obmm_poly_hash(const struct obmm_poly *plan, const struct obmm_ngram_batch *batch, int64_t *out);

double obmm_ngram_inverse(uint64_t modulus);

const char *obmm_ngram_kernel(void);

/* hash/crc32c.h */
uint32_t obmm_crc32c(uint32_t crc, const void *data, size_t length);

/* hash/blake2b.h */
#define OBMM_BLAKE2B_DIGEST ...

struct obmm_blake2b_key {
	...;
};

int obmm_blake2b_key(struct obmm_blake2b_key *key, const uint8_t *bytes, size_t length);
void obmm_blake2b_many(const struct obmm_blake2b_key *key, const uint8_t *data, const uint32_t *lengths, size_t count,
		       uint8_t *digests);
