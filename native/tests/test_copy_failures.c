/* SPDX-License-Identifier: Apache-2.0 */
/* Rows that cannot be read: with struct obmm_failures they spoil themselves only. */
#include <errno.h>
#include <signal.h>
#include <stdbool.h>
#include <string.h>

#include "../engine/engine.h"
#include "test_copy.h"

enum { ROWS = 400, ROW = 520, PAGE = 4096, COUNT = 3000, BYTES = (ROWS * ROW + PAGE - 1) / PAGE * PAGE };
enum { BAD_PAGE = 7, HEADER_BYTES = PAGE };

static const char *const isas[] = { "generic", "avx2", "avx512", "neon" };
static struct obmm_scratch scratch;
static uint8_t *base, *out;
static int64_t ids64[COUNT];
static int32_t ids32[COUNT];
static uint8_t marks[COUNT];
static struct obmm_failures failures = { .rows = marks };
static struct obmm_table table;
static struct obmm_request request;

static uint8_t byte_of(int64_t row, size_t i)
{
	return (uint8_t)((uint64_t)(row + 1) * 131 + i * 7 + 1);
}

/* Does the row lie on the page that cannot be read? */
static bool is_bad(int64_t row)
{
	return row >= 0 && row * ROW < (BAD_PAGE + 1) * PAGE && (row + 1) * ROW > BAD_PAGE * PAGE;
}

static void expect_only_the_bad_rows_to_be_lost(const struct obmm_outcome *outcome)
{
	uint64_t bad = 0, zero = 0;

	for (uint64_t i = 0; i < request.count; i++) {
		bool failed = is_bad(ids64[i]);

		CHECK(marks[i] == failed);
		for (size_t b = 0; b < ROW; b++)
			CHECK(out[i * ROW + b] == (failed || ids64[i] < 0 ? 0 : byte_of(ids64[i], b)));
		bad += failed;
		zero += ids64[i] < 0;
	}
	CHECK(bad && failures.failed == bad);
	CHECK(failures.first.id == 4 && failures.first.signo == SIGSEGV);
	CHECK(failures.first.offset >= BAD_PAGE * PAGE && failures.first.offset < (BAD_PAGE + 1) * PAGE);
	CHECK(outcome->rows_read == COUNT - bad - zero && outcome->rows_zero == zero);
}

/* As the whole of it, or as two threads would. */
static void gather(struct obmm_scratch *with, uint64_t cut)
{
	struct obmm_outcome outcome = { .rows_read = 0 };

	memset(out, 0xdd, COUNT * ROW);
	memset(marks, 0xdd, COUNT);
	CHECK(!obmm_gather_check(&request, &outcome));
	CHECK(!obmm_gather_range(&request, 0, cut, with, &outcome));
	CHECK(!obmm_gather_range(&request, cut, COUNT, with, &outcome));
	outcome.status = 0;
	obmm_gather_finish(&request, &outcome);
	CHECK(outcome.status == -EFAULT && outcome.fault.id == 4);
	expect_only_the_bad_rows_to_be_lost(&outcome);
}

/* Plain, streamed, in address order, uncached, uncached and de-duplicated. */
static void set_mode(int mode)
{
	obmm_tuning_default(&table.tuning, ROW, 0);
	table.tuning.stream_bytes = mode == 1 || mode == 2 ? 0 : UINT32_MAX;
	table.tuning.order_rows = mode == 2 || mode == 4 ? 1 : UINT32_MAX;
	table.tuning.order_row = 0;
	table.flags = mode >= 3 ? OBMM_TABLE_NC : 0;
}

static void draw_ids(void)
{
	for (int i = 0; i < COUNT; i++) {
		ids64[i] = i % 11 == 5 ? -1 : (int64_t)((uint64_t)i * 2654435761u >> 7) % ROWS;
		ids32[i] = (int32_t)ids64[i];
	}
}

static void a_row_on_a_lost_page_is_zero_and_marked_in_every_mode(void)
{
	for (int mode = 0; mode < 5; mode++) {
		set_mode(mode);
		for (request.id_bytes = 4; request.id_bytes <= 8; request.id_bytes += 4) {
			request.ids = request.id_bytes == 4 ? (const void *)ids32 : ids64;
			gather(&scratch, COUNT / 3);
			gather(NULL, 0);
		}
	}
	request.id_bytes = 8;
}

static void without_failures_the_first_fault_ends_the_gather(void)
{
	struct obmm_outcome outcome = { .rows_read = 0 };
	struct obmm_request plain = request;

	plain.failures = NULL;
	for (int mode = 0; mode < 5; mode++) {
		set_mode(mode);
		CHECK(!obmm_gather_check(&plain, &outcome));
		CHECK(obmm_gather_range(&plain, 0, COUNT, &scratch, &outcome) == -EFAULT);
	}
}

static void a_gather_without_a_fault_has_none(void)
{
	struct obmm_outcome outcome = { .rows_read = 0 };
	struct obmm_request good = request;

	set_mode(0);
	good.count = 1;
	while (is_bad(*(const int64_t *)good.ids) || *(const int64_t *)good.ids < 0)
		good.ids = (const int64_t *)good.ids + 1;
	CHECK(!obmm_gather_check(&good, &outcome));
	outcome.status = obmm_gather_range(&good, 0, 1, &scratch, &outcome);
	obmm_gather_finish(&good, &outcome);
	CHECK(!outcome.status && !failures.failed && !failures.faults && !marks[0]);
}

static void threads_share_the_map(void)
{
	struct obmm_engine *engine;
	struct obmm_outcome outcome;
	struct obmm_totals totals = { .gathers = 0 };
	uint64_t ticket;
	unsigned int bad;

	CHECK(!obmm_engine_create(3, 0, NULL, 0, &engine));
	table.totals = &totals;
	for (int mode = 0; mode < 5; mode++) {
		set_mode(mode);
		for (int round = 0; round < 10; round++) {
			memset(marks, 0xdd, COUNT);
			CHECK(obmm_engine_gather(engine, &request, 4, &outcome) == -EFAULT);
			expect_only_the_bad_rows_to_be_lost(&outcome);
			memset(out, 0xdd, COUNT * ROW);
			CHECK(!obmm_engine_submit(engine, &request, 1, 3, &outcome, &ticket, &bad));
			CHECK(!obmm_ticket_wait(engine, ticket, -1));
			CHECK(outcome.status == -EFAULT && outcome.fault.id == 4);
			expect_only_the_bad_rows_to_be_lost(&outcome);
			CHECK(!obmm_ticket_release(engine, ticket));
		}
	}
	CHECK(totals.faults == 100 && !totals.gathers);
	table.totals = NULL;
	obmm_engine_free(engine);
}

static void behind_a_dead_peer_the_gather_is_given_up(void)
{
	struct obmm_engine *engine;
	struct obmm_outcome outcome;

	CHECK(!obmm_engine_create(3, 0, NULL, 0, &engine));
	CHECK(!mprotect(base, BYTES, PROT_NONE));
	for (int mode = 0; mode < 5; mode++) {
		set_mode(mode);
		for (unsigned int threads = 1; threads <= 4; threads += 3) {
			CHECK(obmm_engine_gather(engine, &request, threads, &outcome) == -EFAULT);
			CHECK(!failures.failed && outcome.fault.id == 4);
			/* the threads that were on their way meet one more each */
			CHECK(failures.faults >= OBMM_MOST_FAULTS && failures.faults < OBMM_MOST_FAULTS + threads);
		}
	}
	CHECK(!mprotect(base, BYTES, PROT_READ));
	CHECK(!mprotect(base + BAD_PAGE * PAGE, PAGE, PROT_NONE));
	obmm_engine_free(engine);
}

static void without_a_content_version_nothing_is_known_of_any_row(void)
{
	struct obmm_outcome outcome;
	struct obmm_engine *engine;
	int fd, slot;
	uint8_t *header = map_memfd(HEADER_BYTES, &fd);

	CHECK(!obmm_engine_create(3, 0, NULL, 0, &engine));
	slot = obmm_guard_add(header, HEADER_BYTES, 5);
	set_mode(0);
	table.version = (const uint64_t *)header;
	CHECK(obmm_engine_gather(engine, &request, 4, &outcome) == -EFAULT);
	expect_only_the_bad_rows_to_be_lost(&outcome);
	CHECK(!ftruncate(fd, 0));
	CHECK(obmm_engine_gather(engine, &request, 4, &outcome) == -EFAULT);
	CHECK(!failures.failed && outcome.fault.id == 5);
	table.version = NULL;
	CHECK(!obmm_guard_remove(slot));
	munmap(header, HEADER_BYTES);
	close(fd);
	obmm_engine_free(engine);
}

int main(void)
{
	int slot;

	base = mmap(NULL, BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	out = mmap(NULL, COUNT * ROW, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	CHECK(base != MAP_FAILED && out != MAP_FAILED);
	for (int64_t row = 0; row < ROWS; row++) {
		for (size_t i = 0; i < ROW; i++)
			base[row * ROW + (int64_t)i] = byte_of(row, i);
	}
	slot = obmm_guard_add(base, BYTES, 4);
	CHECK(slot >= 0);
	CHECK(!mprotect(base + BAD_PAGE * PAGE, PAGE, PROT_NONE));
	table = (struct obmm_table){ .base = base, .rows = ROWS, .row_stride = ROW, .row_bytes = ROW };
	request = (struct obmm_request){
		.table = &table,
		.ids = ids64,
		.count = COUNT,
		.id_bytes = 8,
		.out = out,
		.out_stride = ROW,
		.invalid = OBMM_INVALID_ZERO,
		.high = UINT64_MAX,
		.failures = &failures,
	};
	draw_ids();
	for (int i = 0; i < 4; i++) {
		if (obmm_gather_use(isas[i]))
			continue;
		a_row_on_a_lost_page_is_zero_and_marked_in_every_mode();
		without_failures_the_first_fault_ends_the_gather();
		a_gather_without_a_fault_has_none();
		threads_share_the_map();
		behind_a_dead_peer_the_gather_is_given_up();
		without_a_content_version_nothing_is_known_of_any_row();
	}
	CHECK(!obmm_guard_remove(slot));
	puts("test_copy_failures: ok");
	return 0;
}
