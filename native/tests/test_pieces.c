/* SPDX-License-Identifier: Apache-2.0 */
/* Several gathers on the caller's thread, and FP8 rows as bfloat16. */
#include <errno.h>

#include "../access/guard.h"
#include "../engine/engine.h"
#include "../gather/fp8.h"
#include "test.h"

enum { ROWS = 500, ROW = 16, COUNT = ENGINE_PIECE_ROWS + 1000 };

static uint8_t region[ROWS * ROW], out[2][(size_t)COUNT * ROW];
static int64_t ids[COUNT];
static uint64_t version = 8;
static struct obmm_table table;
static struct obmm_request requests[2];
static struct obmm_outcome outcomes[2];

static struct obmm_engine *started(void)
{
	struct obmm_engine *engine;

	CHECK(!obmm_guard_install());
	for (int i = 0; i < ROWS * ROW; i++)
		region[i] = (uint8_t)(i * 7 + 1);
	for (int i = 0; i < COUNT; i++)
		ids[i] = (int64_t)i * 31 % ROWS;
	table = (struct obmm_table){ .base = region, .rows = ROWS, .row_stride = ROW, .row_bytes = ROW, .version = &version };
	obmm_tuning_default(&table.tuning, ROW, 0);
	for (int i = 0; i < 2; i++)
		requests[i] = (struct obmm_request){ .table = &table,
						     .ids = ids,
						     .count = COUNT,
						     .id_bytes = 8,
						     .invalid = OBMM_INVALID_ZERO,
						     .out = out[i],
						     .out_stride = ROW,
						     .high = UINT64_MAX };
	CHECK(!obmm_engine_create(2, 0, NULL, 0, &engine));
	return engine;
}

TEST(all_rows_of_all_gathers_come_in_pieces)
{
	struct obmm_engine *engine = started();
	unsigned int bad;

	ids[ENGINE_PIECE_ROWS + 3] = -1;
	CHECK_EQ(obmm_engine_gather_all(engine, requests, 2, UINT64_MAX, outcomes, &bad), 0);
	for (int i = 0; i < 2; i++) {
		CHECK_EQ(outcomes[i].rows_zero, 1);
		CHECK_EQ(outcomes[i].version, 8);
		for (int row = 0; row < COUNT; row++) {
			static const uint8_t zeros[ROW];
			const uint8_t *right = ids[row] < 0 ? zeros : region + ids[row] * ROW;

			CHECK(!memcmp(out[i] + (size_t)row * ROW, right, ROW));
		}
	}
	obmm_engine_free(engine);
}

TEST(behind_the_deadline_no_further_piece_is_begun)
{
	struct obmm_engine *engine = started();
	unsigned int bad = 9;

	memset(out, 0, sizeof(out));
	CHECK_EQ(obmm_engine_gather_all(engine, requests, 2, 0, outcomes, &bad), -ETIMEDOUT);
	CHECK_EQ(bad, 0);
	CHECK(out[0][0] != 0); /* the first piece is always read: a short gather asks no clock */
	CHECK_EQ(out[0][(size_t)ENGINE_PIECE_ROWS * ROW], 0);
	obmm_engine_free(engine);
}

TEST(an_error_says_of_which_gather_and_where)
{
	struct obmm_engine *engine = started();
	unsigned int bad = 9;

	requests[1].invalid = OBMM_INVALID_ERROR;
	ids[ENGINE_PIECE_ROWS + 5] = ROWS;
	CHECK_EQ(obmm_engine_gather_all(engine, requests, 2, UINT64_MAX, outcomes, &bad), -ERANGE);
	CHECK_EQ(bad, 1);
	CHECK_EQ(outcomes[1].bad_index, ENGINE_PIECE_ROWS + 5);
	CHECK_EQ(outcomes[1].bad_id, ROWS);
	obmm_engine_free(engine);
}

TEST(gathers_of_two_publications_are_stale)
{
	struct obmm_engine *engine = started();
	struct obmm_table other = table;
	uint64_t later = 10;
	unsigned int bad = 9;

	other.version = &later;
	requests[1].table = &other;
	CHECK_EQ(obmm_engine_gather_all(engine, requests, 2, UINT64_MAX, outcomes, &bad), -ESTALE);
	CHECK_EQ(bad, 1);
	obmm_engine_free(engine);
}

TEST(columns_keep_their_place_in_every_piece)
{
	struct obmm_engine *engine = started();
	static const uint8_t mask[3] = { 1, 0, 1 };
	unsigned int bad;

	requests[0].columns = 3;
	requests[0].column_mask = mask;
	CHECK_EQ(obmm_engine_gather_all(engine, requests, 1, UINT64_MAX, outcomes, &bad), 0);
	for (int row = 0; row < COUNT; row++) {
		int read = memcmp(out[0] + (size_t)row * ROW, region + ids[row] * ROW, ROW) == 0;

		CHECK_EQ(read, row % 3 != 1);
	}
	obmm_engine_free(engine);
}

TEST(fp8_rows_are_looked_up_by_scale_and_value)
{
	static uint16_t products[256 * 256];
	uint8_t rows[2][64 + 2];
	uint16_t found[2][64];

	for (int i = 0; i < 256 * 256; i++)
		products[i] = (uint16_t)(i * 40503u);
	for (int row = 0; row < 2; row++) {
		for (int i = 0; i < 66; i++)
			rows[row][i] = (uint8_t)(row * 131 + i * 57);
	}
	obmm_fp8_rows(rows[0], 2, 64, products, found[0]);
	for (int row = 0; row < 2; row++) {
		for (int i = 0; i < 64; i++)
			CHECK_EQ(found[row][i], products[rows[row][64 + i / 32] * 256 + rows[row][i]]);
	}
}
