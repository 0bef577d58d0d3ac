// SPDX-License-Identifier: Apache-2.0
#include "ngram.h"

#include "remainder.h"

double obmm_ngram_inverse(uint64_t modulus)
{
	/*
	 * Three roundings (x, 1/m, the product) cost at most 2^-51 of the
	 * quotient; 2^-50 down outweighs them, and together they stay below
	 * one while the quotient is below 2^49.
	 */
	if (modulus < (1u << 15))
		return 0.0;
	return 1.0 / (double)modulus * (1.0 - 0x1p-50);
}

/* The next LANES columns to do of `end`, or the last ones again where fewer are left: no scalar rest. */
ALWAYS_INLINE uint64_t lanes_at(uint64_t done, uint64_t end)
{
	return done + LANES <= end ? done : end - LANES;
}

ALWAYS_INLINE void finish_lanes(const struct obmm_ngram_columns *columns, uint64_t first, u64_lanes *x, int64_t *out)
{
	u64_lanes offset;

	memcpy(&offset, columns->offset + first, sizeof(offset));
	remainder_lanes(x, columns->modulus + first, columns->inverse + first, x);
	*x += offset;
	memcpy(out, x, sizeof(*x));
}

ALWAYS_INLINE int64_t finish(const struct obmm_ngram_columns *columns, uint64_t column, uint64_t x)
{
	return (int64_t)(remainder_integer(x, columns->modulus[column], columns->reciprocal[column]) +
			 columns->offset[column]);
}

/* The columns of one order: out[c] = x mod modulus[first + c] + offset[first + c]. */
ALWAYS_INLINE void engram_emit(const struct obmm_ngram_columns *columns, uint64_t first, uint64_t count, uint64_t x,
			       int64_t *out, int wide)
{
	if (wide && count >= LANES) {
		for (uint64_t done = 0; done < count; done += LANES) {
			uint64_t c = lanes_at(done, count);
			u64_lanes lanes = x - (u64_lanes){};

			finish_lanes(columns, first + c, &lanes, out + c);
		}
		return;
	}
	for (uint64_t c = 0; c < count; c++)
		out[c] = finish(columns, first + c, x);
}

ALWAYS_INLINE int64_t token_at(const struct obmm_ngram_batch *batch, int64_t t)
{
	if (batch->token_bytes == 4)
		return ((const int32_t *)batch->tokens)[t];
	return ((const int64_t *)batch->tokens)[t];
}

/* The compressed id, -1 for a dead token, -2 for an id outside the vocabulary. */
ALWAYS_INLINE int64_t compress(const struct obmm_engram *plan, int64_t token)
{
	if (token < 0)
		return -1;
	if ((uint64_t)token >= plan->vocabulary)
		return -2;
	return plan->map ? plan->map[token] : token;
}

/* window[0] is the newest id. A dead id leaves nothing but pads: a look past it finds no ids. */
ALWAYS_INLINE void engram_push(int64_t *window, uint32_t order, int64_t id, int64_t pad)
{
	if (id < 0) {
		for (uint32_t s = 0; s < order; s++)
			window[s] = pad;
		return;
	}
	for (uint32_t s = order - 1; s > 0; s--)
		window[s] = window[s - 1];
	window[0] = id;
}

ALWAYS_INLINE int engram_run(const struct obmm_engram *plan, const struct obmm_ngram_batch *batch, int64_t *out,
			     int wide)
{
	const uint32_t order = plan->order, heads = plan->heads;
	int64_t window[OBMM_NGRAM_MAX_ORDER];

	for (uint64_t r = 0; r < batch->requests; r++) {
		for (uint32_t s = 0; s < order; s++)
			window[s] = plan->pad;
		for (uint32_t s = order - 1; batch->history && s-- > 0;) {
			int64_t id = compress(plan, batch->history[r * (order - 1) + s]);

			if (id == -2)
				return -1;
			engram_push(window, order, id, plan->pad);
		}
		for (int64_t t = batch->starts[r]; t < batch->starts[r + 1]; t++) {
			int64_t id = batch->dead && batch->dead[t] ? -1 : compress(plan, token_at(batch, t));
			int64_t *row = out + (uint64_t)t * plan->columns.count;
			uint64_t column = 0;

			if (id == -2)
				return -1;
			engram_push(window, order, id, plan->pad);
			for (uint32_t l = 0; l < plan->layers; l++) {
				const uint64_t *multiplier = plan->multiplier + (uint64_t)l * order;
				uint64_t x = (uint64_t)window[0] * multiplier[0];

				for (uint32_t n = 1; n < order; n++, column += heads) {
					x ^= (uint64_t)window[n] * multiplier[n];
					engram_emit(&plan->columns, column, heads, x, row + column, wide);
				}
			}
		}
	}
	return 0;
}

/* window holds 0 where there is nothing to add: before the start, behind an EOS, behind a dead token. */
ALWAYS_INLINE void poly_push(int64_t *window, uint32_t order, int64_t id, int64_t eos)
{
	int hidden = window[0] == eos;

	for (uint32_t s = order - 1; s > 0; s--)
		window[s] = hidden ? 0 : window[s - 1];
	window[0] = id;
	if (id >= 0)
		return;
	for (uint32_t s = 0; s < order; s++)
		window[s] = 0;
}

ALWAYS_INLINE void poly_emit(const struct obmm_poly *plan, const int64_t *window, int64_t *out, int wide)
{
	const struct obmm_ngram_columns *columns = &plan->columns;

	if (wide && columns->count >= LANES) {
		for (uint64_t done = 0; done < columns->count; done += LANES) {
			uint64_t c = lanes_at(done, columns->count);
			u64_lanes sum = {}, coefficient;

			for (uint32_t j = 0; j < plan->order; j++) {
				memcpy(&coefficient, plan->coefficient + j * columns->count + c, sizeof(coefficient));
				sum += (uint64_t)window[j] * coefficient;
			}
			finish_lanes(columns, c, &sum, out + c);
		}
		return;
	}
	for (uint64_t c = 0; c < columns->count; c++) {
		uint64_t sum = 0;

		for (uint32_t j = 0; j < plan->order; j++)
			sum += (uint64_t)window[j] * plan->coefficient[j * columns->count + c];
		out[c] = finish(columns, c, sum);
	}
}

ALWAYS_INLINE int poly_run(const struct obmm_poly *plan, const struct obmm_ngram_batch *batch, int64_t *out, int wide)
{
	const uint32_t order = plan->order;
	const uint64_t count = plan->columns.count;
	int64_t window[OBMM_NGRAM_MAX_ORDER];

	for (uint64_t r = 0; r < batch->requests; r++) {
		for (uint32_t s = 0; s < order; s++)
			window[s] = 0;
		for (uint32_t s = order - 1; batch->history && s-- > 0;) {
			int64_t id = batch->history[r * (order - 1) + s];

			if (id >= 0 && (uint64_t)id >= plan->vocabulary)
				return -1;
			poly_push(window, order, id, plan->eos);
		}
		for (int64_t t = batch->starts[r]; t < batch->starts[r + 1]; t++) {
			int64_t id = batch->dead && batch->dead[t] ? -1 : token_at(batch, t);
			int64_t *row = out + (uint64_t)t * count;

			if (id >= 0 && (uint64_t)id >= plan->vocabulary)
				return -1;
			poly_push(window, order, id, plan->eos);
			if (id < 0) {
				for (uint64_t c = 0; c < count; c++)
					row[c] = -1;
				continue;
			}
			poly_emit(plan, window, row, wide);
		}
	}
	return 0;
}

static int engram_scalar(const struct obmm_engram *plan, const struct obmm_ngram_batch *batch, int64_t *out)
{
	return engram_run(plan, batch, out, 0);
}

static int poly_scalar(const struct obmm_poly *plan, const struct obmm_ngram_batch *batch, int64_t *out)
{
	return poly_run(plan, batch, out, 0);
}

#if defined(__x86_64__)
#define AVX512 __attribute__((target("avx512f,avx512dq,avx512vl,prefer-vector-width=512")))

AVX512 static int engram_avx512(const struct obmm_engram *plan, const struct obmm_ngram_batch *batch, int64_t *out)
{
	return engram_run(plan, batch, out, 1);
}

AVX512 static int poly_avx512(const struct obmm_poly *plan, const struct obmm_ngram_batch *batch, int64_t *out)
{
	return poly_run(plan, batch, out, 1);
}

static int has_avx512(void)
{
	return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq") &&
	       __builtin_cpu_supports("avx512vl");
}
#else
#define engram_avx512 engram_scalar
#define poly_avx512 poly_scalar

static int has_avx512(void)
{
	return 0;
}
#endif

int obmm_engram_hash(const struct obmm_engram *plan, const struct obmm_ngram_batch *batch, int64_t *out)
{
	if (plan->columns.inverse && has_avx512())
		return engram_avx512(plan, batch, out);
	return engram_scalar(plan, batch, out);
}

int obmm_poly_hash(const struct obmm_poly *plan, const struct obmm_ngram_batch *batch, int64_t *out)
{
	if (plan->columns.inverse && has_avx512())
		return poly_avx512(plan, batch, out);
	return poly_scalar(plan, batch, out);
}

const char *obmm_ngram_kernel(void)
{
	return has_avx512() ? "avx512" : "scalar";
}
