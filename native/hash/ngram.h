/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Row numbers of n-gram tables (Engram specification 2 and 3).
 *
 * Both functions turn a flat batch of token ids into one row number per column,
 * out[token][column].  They allocate nothing, keep no state and may run in any
 * number of threads.  A plan is read-only after it was filled; the caller
 * guarantees what the fields' comments say.
 */
#ifndef OBMM_NGRAM_H
#define OBMM_NGRAM_H

#include "../abi/lp64.h"

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define OBMM_NGRAM_MAX_ORDER 8

/* The tables behind a row of columns, one entry per column. */
struct obmm_ngram_columns {
	uint64_t count;
	const uint64_t *modulus;    /* rows of the table, 1 .. 2^63 - 1 */
	const uint64_t *reciprocal; /* floor((2^64 - 1) / modulus) */
	const double *inverse;	    /* see obmm_ngram_inverse(); NULL selects the integer path */
	const uint64_t *offset;	    /* added to the remainder: flat ids; zeros: local ids */
};

/* Algorithm A, XOR of products. */
struct obmm_engram {
	uint32_t order;	     /* largest n-gram length, 2 .. OBMM_NGRAM_MAX_ORDER */
	uint32_t layers;     /* columns come layer-major, order-major, head-minor */
	uint32_t heads;	     /* columns per layer and order */
	int64_t pad;	     /* compressed id of the pad token */
	uint64_t vocabulary; /* token ids are 0 .. vocabulary - 1 */
	const int32_t *map;  /* [vocabulary]: compressed id, or -1 where the token is dead; NULL: identity */
	const uint64_t *multiplier; /* [layers][order] */
	struct obmm_ngram_columns columns;
};

/* Algorithm B, polynomial. */
struct obmm_poly {
	uint32_t order;
	uint64_t vocabulary;
	int64_t eos;		     /* token id that ends a sequence; -1: none */
	const uint64_t *coefficient; /* [order][columns]: V^j mod modulus; 0 where j >= the column's order */
	struct obmm_ngram_columns columns;
};

/* Token ids of several requests, one after the other. */
struct obmm_ngram_batch {
	const void *tokens;
	uint32_t token_bytes;	/* 4 or 8: signed ids */
	uint64_t requests;
	const int64_t *starts;	/* [requests + 1], rising; starts[0] is 0 */
	const int64_t *history; /* [requests][order - 1], newest first, negative: unknown; NULL: all unknown */
	const uint8_t *dead;	/* one byte per token, non-zero: dead; NULL: none */
};

/*
 * Fill out[starts[requests]][columns].  Returns 0, or -1 at the first id that is
 * not below the vocabulary; what out holds then is undefined.  Marked tokens are
 * never looked at: engines put place-holders far outside the vocabulary there.
 *
 * Engram: a dead token (marked, mapped to -1, or negative) hashes as the pad id
 * and hides everything older.  Polynomial: a dead token gets -1 in every column
 * and hides everything older, as an EOS does for the tokens after it.
 */
int obmm_engram_hash(const struct obmm_engram *plan, const struct obmm_ngram_batch *batch, int64_t *out);
int obmm_poly_hash(const struct obmm_poly *plan, const struct obmm_ngram_batch *batch, int64_t *out);

/*
 * 1 / modulus, rounded so far down that the quotient it gives is never too
 * large and at most one too small.  0 when no such number exists (modulus below
 * 2^15): the plan must then leave `inverse` NULL.
 */
double obmm_ngram_inverse(uint64_t modulus);

/* "scalar" or "avx512": what the two functions above run on this machine. */
const char *obmm_ngram_kernel(void);

#ifdef __cplusplus
}
#endif

#endif
