/* SPDX-License-Identifier: Apache-2.0 */
/* The row gather: every byte of every row, for every kernel, layout, size and mode. */
#include <errno.h>
#include <string.h>

#include "../gather/gather.h"
#include "test_copy.h"

enum { COUNT = 331, ROWS = 96, SPARE = 64 };

static const char *const isas[] = { "generic", "avx2", "avx512", "neon" };
static struct obmm_scratch scratch;
static uint8_t *out_area;
static int64_t ids64[COUNT];
static int32_t ids32[COUNT];

static uint8_t byte_of(uint64_t row, size_t i)
{
	return (uint8_t)((row + 1) * 131 + i * 7 + (i >> 6) + 1);
}

/* A table whose last byte is the last byte of a page, with an inaccessible page behind and before. */
struct table_memory {
	uint8_t *area;
	size_t area_bytes;
	struct obmm_table table;
};

static void make_table(struct table_memory *memory, uint32_t row_bytes, uint64_t stride, uint64_t rps)
{
	struct obmm_table *table = &memory->table;
	uint64_t segment = rps * stride + (rps ? 192 : 0);
	uint64_t last = rps ? (ROWS - 1) / rps * segment + (ROWS - 1) % rps * stride : (ROWS - 1) * stride;
	size_t bytes = last + row_bytes, pages = (bytes + 4095) & ~(size_t)4095;

	memory->area_bytes = pages + 8192;
	memory->area = mmap(NULL, memory->area_bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	CHECK(memory->area != MAP_FAILED);
	CHECK(!mprotect(memory->area + 4096, pages, PROT_READ | PROT_WRITE));
	memset(table, 0, sizeof(*table));
	table->base = memory->area + 4096 + pages - bytes;
	table->rows = ROWS;
	table->row_stride = stride;
	table->row_bytes = row_bytes;
	table->rows_per_segment = rps;
	table->segment_bytes = rps ? segment : 0;
	obmm_tuning_default(&table->tuning, row_bytes, 0);
	memset(memory->area + 4096, 0xee, pages);
	for (uint64_t row = 0; row < ROWS; row++) {
		uint8_t *at = (uint8_t *)table->base + (rps ? row / rps * segment + row % rps * stride : row * stride);

		for (size_t i = 0; i < row_bytes; i++)
			at[i] = byte_of(row, i);
	}
	CHECK(!mprotect(memory->area + 4096, pages, PROT_READ));
}

static void expect(const struct obmm_request *request, const int64_t *rows)
{
	const struct obmm_table *table = request->table;

	for (uint64_t i = 0; i < request->count; i++) {
		const uint8_t *row = request->out + i * request->out_stride;

		for (size_t b = 0; b < table->row_bytes; b++)
			CHECK(row[b] == (rows[i] < 0 ? 0 : byte_of((uint64_t)rows[i], b)));
		for (size_t b = table->row_bytes; b < request->out_stride && i + 1 < request->count; b++)
			CHECK(row[b] == 0xdd);
	}
	for (int b = 1; b <= SPARE; b++)
		CHECK(request->out[-b] == 0xdd);
	for (int b = 0; b < SPARE; b++)
		CHECK(request->out[(request->count - 1) * request->out_stride + table->row_bytes + (size_t)b] == 0xdd);
}

static uint64_t total_reads;

static void gather(struct obmm_request *request, const int64_t *rows, struct obmm_scratch *with)
{
	struct obmm_outcome outcome = { .rows_read = 0 };
	uint64_t cut = request->count / 3;

	memset(request->out - SPARE, 0xdd, (request->count - 1) * request->out_stride + request->table->row_bytes + 2 * SPARE);
	CHECK(!obmm_gather_check(request, &outcome) && outcome.bad_index == -1);
	/* in two parts, as two threads would */
	CHECK(!obmm_gather_range(request, 0, cut, with, &outcome));
	CHECK(!obmm_gather_range(request, cut, request->count, with, &outcome));
	expect(request, rows);
	total_reads = outcome.rows_read;
}

/* All ways through one table: plain, streamed, in address order, uncached; both widths of ids. */
static void all_modes(struct obmm_table *table, size_t misaligned, uint64_t out_stride)
{
	struct obmm_request request = { .table = table, .count = COUNT, .out_stride = out_stride, .high = UINT64_MAX };

	request.out = out_area + SPARE + misaligned;
	for (int mode = 0; mode < 5; mode++) {
		table->tuning.stream_bytes = mode == 1 || mode == 2 ? 0 : UINT32_MAX;
		table->tuning.stream_row = 0;
		table->tuning.order_rows = mode == 2 || mode == 4 ? 1 : UINT32_MAX;
		table->tuning.order_row = 0;
		table->flags = mode >= 3 ? OBMM_TABLE_NC : 0;
		for (request.id_bytes = 4; request.id_bytes <= 8; request.id_bytes += 4) {
			request.ids = request.id_bytes == 4 ? (const void *)ids32 : ids64;
			gather(&request, ids64, &scratch);
		}
	}
	table->flags = 0;
}

static void random_ids(void)
{
	for (int i = 0; i < COUNT; i++) {
		ids64[i] = (i * 2654435761u >> 7) % ROWS;
		ids32[i] = (int32_t)ids64[i];
	}
	ids64[3] = ids32[3] = 0;
	ids64[COUNT - 1] = ids32[COUNT - 1] = ROWS - 1;
	ids64[COUNT - 2] = ids32[COUNT - 2] = ROWS - 1;
}

static void every_size_layout_and_alignment(void)
{
#if defined(__SANITIZE_THREAD__)
	/* one thread only: nothing for it to find here */
	static const uint32_t sizes[] = { 100, 1364 };
#else
	static const uint32_t sizes[] = { 1, 7, 32, 63, 64, 65, 100, 128, 200, 256, 264, 288, 320, 512, 1364, 4096 };
#endif
	static const size_t misaligned[] = { 0, 16, 1 };

	random_ids();
	for (size_t s = 0; s < sizeof(sizes) / sizeof(sizes[0]); s++) {
		struct table_memory packed, strided, slots;

		make_table(&packed, sizes[s], sizes[s], 0);
		make_table(&strided, sizes[s], sizes[s] + 24, 0);
		make_table(&slots, sizes[s], (sizes[s] + 7) & ~7u, 10);
		for (size_t m = 0; m < sizeof(misaligned) / sizeof(misaligned[0]); m++) {
			all_modes(&packed.table, misaligned[m], sizes[s]);
			all_modes(&strided.table, misaligned[m], sizes[s] + 5);
			all_modes(&slots.table, misaligned[m], (sizes[s] + 63) & ~63u);
		}
		munmap(packed.area, packed.area_bytes);
		munmap(strided.area, strided.area_bytes);
		munmap(slots.area, slots.area_bytes);
	}
}

static void an_id_outside_refuses_before_anything_is_read(void)
{
	struct table_memory memory;
	struct obmm_outcome outcome;
	struct obmm_request request = { .count = COUNT, .id_bytes = 8, .ids = ids64, .high = UINT64_MAX };
	static const int64_t wrong[] = { -1, ROWS, INT64_MIN, INT64_MAX };

	make_table(&memory, 64, 64, 0);
	request.table = &memory.table;
	for (int w = 0; w < 4; w++) {
		random_ids();
		ids64[COUNT - 5] = wrong[w];
		CHECK(obmm_gather_check(&request, &outcome) == -ERANGE);
		CHECK(outcome.bad_index == COUNT - 5 && outcome.bad_id == wrong[w]);
	}
	random_ids();
	ids32[2] = -1;
	request.ids = ids32;
	request.id_bytes = 4;
	CHECK(obmm_gather_check(&request, &outcome) == -ERANGE && outcome.bad_index == 2 && outcome.bad_id == -1);
	ids32[2] = ROWS;
	CHECK(obmm_gather_check(&request, &outcome) == -ERANGE && outcome.bad_id == ROWS);
	munmap(memory.area, memory.area_bytes);
}

static void an_id_outside_gives_a_zero_row_on_request(void)
{
	struct table_memory memory;
	int64_t rows[COUNT];
	struct obmm_request request = { .count = COUNT, .id_bytes = 8, .ids = ids64, .high = UINT64_MAX };

	request.invalid = OBMM_INVALID_ZERO;
	make_table(&memory, 100, 104, 0);
	request.table = &memory.table;
	request.out = out_area + SPARE;
	request.out_stride = 100;
	random_ids();
	for (int i = 0; i < COUNT; i++) {
		if (i % 3 == 1)
			ids64[i] = i & 1 ? -1 - i : ROWS + i;
		rows[i] = i % 3 == 1 ? -1 : ids64[i];
	}
	for (int mode = 0; mode < 4; mode++) {
		memory.table.tuning.stream_bytes = mode & 1 ? 0 : UINT32_MAX;
		memory.table.tuning.stream_row = 0;
		memory.table.tuning.order_rows = mode & 2 ? 1 : UINT32_MAX;
		memory.table.tuning.order_row = 0;
		gather(&request, rows, &scratch);
		CHECK(total_reads == COUNT - COUNT / 3);
	}
	munmap(memory.area, memory.area_bytes);
}

static void local_ids_masks_and_ranges_select_rows(void)
{
	enum { COLUMNS = 4, PLACES = COUNT / COLUMNS * COLUMNS };
	static const int64_t offsets[COLUMNS + 1] = { 0, 11, 24, 41, 60 };
	static const uint8_t mask[COLUMNS] = { 1, 0, 1, 1 };
	struct table_memory memory;
	int64_t rows[COUNT];
	struct obmm_outcome outcome;
	struct obmm_request request = {
		.count = PLACES,
		.id_bytes = 8,
		.ids = ids64,
		.head_offsets = offsets,
		.columns = COLUMNS,
		.high = UINT64_MAX,
	};

	make_table(&memory, 64, 64, 0);
	request.table = &memory.table;
	request.out = out_area + SPARE;
	request.out_stride = 64;
	for (int i = 0; i < PLACES; i++) {
		int c = i % COLUMNS;

		ids64[i] = (i * 2654435761u >> 9) % (uint64_t)(offsets[c + 1] - offsets[c]);
		rows[i] = ids64[i] + offsets[c];
	}
	gather(&request, rows, NULL);
	CHECK(total_reads == PLACES);
	request.low = 20;
	request.high = 50;
	request.column_mask = mask;
	for (int i = 0; i < PLACES; i++) {
		if (rows[i] < 20 || rows[i] >= 50 || i % COLUMNS == 1)
			rows[i] = -1;
	}
	gather(&request, rows, NULL);
	CHECK(total_reads < PLACES && total_reads > 0);
	/* local: the head's size is the bound, not the table's */
	ids64[5] = 13;
	CHECK(obmm_gather_check(&request, &outcome) == -ERANGE && outcome.bad_index == 5);
	munmap(memory.area, memory.area_bytes);
}

static void an_output_right_behind_a_short_last_segment_is_taken(void)
{
	enum { PER_SEGMENT = 10, BYTES = 64, SEGMENT = 4096 };
	static uint8_t area[ROWS / PER_SEGMENT * SEGMENT + PER_SEGMENT * BYTES];
	struct obmm_table table = { .base = area, .rows = ROWS, .row_stride = BYTES, .row_bytes = BYTES,
				    .rows_per_segment = PER_SEGMENT, .segment_bytes = SEGMENT };
	uint8_t *end = area + ROWS / PER_SEGMENT * SEGMENT + ROWS % PER_SEGMENT * BYTES;
	struct obmm_request request = { .table = &table, .count = 1, .id_bytes = 8, .ids = ids64, .out_stride = BYTES,
					.high = UINT64_MAX };
	struct obmm_outcome outcome;

	random_ids();
	request.out = end;
	CHECK(!obmm_gather_check(&request, &outcome));
	request.out = end - 1;
	CHECK(obmm_gather_check(&request, &outcome) == -EINVAL);
}

static void nc_reads_a_repeated_row_once(void)
{
	struct table_memory memory;
	struct obmm_request request = { .count = COUNT, .id_bytes = 8, .ids = ids64, .high = UINT64_MAX };

	make_table(&memory, 264, 264, 0);
	request.table = &memory.table;
	request.out = out_area + SPARE;
	request.out_stride = 264;
	memory.table.flags = OBMM_TABLE_NC;
	obmm_tuning_default(&memory.table.tuning, 264, OBMM_TABLE_NC);
	random_ids();
	gather(&request, ids64, &scratch);
	CHECK(total_reads <= 2 * ROWS); /* per part of the gather */
	gather(&request, ids64, NULL);
	CHECK(total_reads == COUNT);
	munmap(memory.area, memory.area_bytes);
}

static void a_fault_says_where_and_leaves_the_rest_usable(void)
{
	struct obmm_table table = { .rows = 64, .row_stride = 1024, .row_bytes = 1000 };
	struct obmm_outcome outcome = { .rows_read = 0 };
	struct obmm_request request = { .table = &table, .count = 64, .id_bytes = 8, .ids = ids64, .out_stride = 1000 };
	int fd, slot;
	uint8_t *base = map_memfd(65536, &fd);

	slot = obmm_guard_add(base, 65536, 9);
	table.base = base;
	request.out = out_area;
	request.high = UINT64_MAX;
	for (int i = 0; i < 64; i++)
		ids64[i] = 63 - i;
	CHECK(!ftruncate(fd, 4096));
	for (int mode = 0; mode < 3; mode++) {
		obmm_tuning_default(&table.tuning, 1000, 0);
		table.tuning.stream_bytes = mode == 1 ? 0 : UINT32_MAX;
		table.flags = mode == 2 ? OBMM_TABLE_NC : 0;
		CHECK(obmm_gather_range(&request, 0, 64, NULL, &outcome) == -EFAULT);
		CHECK(outcome.fault.id == 9 && outcome.fault.signo == 7);
		CHECK(outcome.fault.offset >= 63 * 1024 && outcome.fault.offset < 64 * 1024);
	}
	CHECK(!obmm_gather_range(&request, 60, 64, NULL, &outcome));
	CHECK(!obmm_guard_remove(slot));
	munmap(base, 65536);
	close(fd);
}

int main(void)
{
	int used = 0;

	out_area = mmap(NULL, 8 << 20, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	CHECK(out_area != MAP_FAILED);
	for (int i = 0; i < 4; i++) {
		if (obmm_gather_use(isas[i]))
			continue;
		used++;
		printf("test_copy_gather: %s\n", obmm_gather_isa());
		every_size_layout_and_alignment();
		an_id_outside_refuses_before_anything_is_read();
		an_id_outside_gives_a_zero_row_on_request();
		local_ids_masks_and_ranges_select_rows();
		an_output_right_behind_a_short_last_segment_is_taken();
		nc_reads_a_repeated_row_once();
		a_fault_says_where_and_leaves_the_rest_usable();
	}
	CHECK(used >= 2 && obmm_gather_use("abacus") == -ENOTSUP);
	CHECK(!obmm_gather_use(NULL));
	puts("test_copy_gather: ok");
	return 0;
}
