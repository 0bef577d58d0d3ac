/* SPDX-License-Identifier: Apache-2.0 */
/* Hot rows: whole, of the right version, and never one that could not be read. */
#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <string.h>

#include "../engine/engine.h"
#include "../access/order.h"
#include "test_copy.h"

enum { ROWS = 600, ROW = 264, PAGE = 4096, COUNT = 500, BYTES = (ROWS * 300 + 8 * PAGE) / PAGE * PAGE };

static uint8_t *base, *out;
static uint64_t *header; /* the content version */
static int64_t ids[COUNT];
static struct obmm_table table;
static struct obmm_request request;
static struct obmm_outcome outcome;

static uint8_t byte_of(uint64_t row, uint64_t version, size_t i)
{
	return (uint8_t)((row + 1) * 131 + version * 29 + i * 7 + 1);
}

static void fill(uint8_t *to, uint64_t row, uint64_t version)
{
	for (size_t i = 0; i < ROW; i++)
		to[i] = byte_of(row, version, i);
}

static bool is_row(const uint8_t *bytes, uint64_t row, uint64_t version)
{
	for (size_t i = 0; i < ROW; i++) {
		if (bytes[i] != byte_of(row, version, i))
			return false;
	}
	return true;
}

/* ---- the cache itself ---- */

static void put(struct obmm_hot *hot, uint64_t row, uint64_t version)
{
	uint8_t bytes[ROW];

	fill(bytes, row, version);
	obmm_hot_put(hot, row, version, bytes);
}

/* Not there, or right. */
static bool get(struct obmm_hot *hot, uint64_t row, uint64_t version)
{
	uint8_t bytes[ROW];

	if (!obmm_hot_get(hot, row, version, bytes))
		return false;
	CHECK(is_row(bytes, row, version));
	return true;
}

static void sizes_that_cannot_be_are_refused(void)
{
	struct obmm_hot *hot;

	CHECK(obmm_hot_create(0, 64, &hot) == -EINVAL);
	CHECK(obmm_hot_create(1, 0, &hot) == -EINVAL);
	CHECK(obmm_hot_create(1, OBMM_HOT_MOST_BYTES + 1, &hot) == -EINVAL);
	CHECK(obmm_hot_create(UINT64_MAX, OBMM_HOT_MOST_BYTES, &hot) == -ENOMEM);
	obmm_hot_free(NULL);
	CHECK(!obmm_hot_create(100, OBMM_HOT_MOST_BYTES, &hot));
	CHECK(obmm_hot_rows(hot) >= 100 && obmm_hot_bytes(hot) > 100 * OBMM_HOT_MOST_BYTES);
	obmm_hot_free(hot);
}

static void a_row_is_found_under_its_version_only(void)
{
	struct obmm_hot *hot;

	CHECK(!obmm_hot_create(64, ROW, &hot));
	CHECK(!get(hot, 0, 0) && !get(hot, 7, 2));
	put(hot, 7, 2);
	CHECK(get(hot, 7, 2) && !get(hot, 7, 4) && !get(hot, 7, 0) && !get(hot, 8, 2));
	put(hot, 7, 4);
	CHECK(get(hot, 7, 4) && !get(hot, 7, 2));
	put(hot, 7, 2); /* a gather that was slow */
	CHECK(get(hot, 7, 4) && !get(hot, 7, 2));
	obmm_hot_free(hot);
}

static void clock_keeps_what_is_read(void)
{
	struct obmm_hot *hot;
	int kept = 0;

	CHECK(!obmm_hot_create(8, ROW, &hot)); /* one set */
	CHECK(obmm_hot_rows(hot) == 8);
	for (uint64_t row = 0; row < 8; row++)
		put(hot, row, 2);
	for (uint64_t row = 100; row < 200; row++) {
		for (uint64_t often = 2; often < 5; often++)
			CHECK(get(hot, often, 2));
		put(hot, row, 2);
		CHECK(get(hot, row, 2));
	}
	for (uint64_t row = 0; row < 200; row++)
		kept += get(hot, row, 2);
	CHECK(kept == 8);
	obmm_hot_free(hot);
}

enum { THREADS = 4, TURNS = 30000 };

static void *get_and_put(void *arg)
{
	struct obmm_hot *hot = arg;
	uint64_t state = (uintptr_t)&state | 1;

	for (int i = 0; i < TURNS; i++) {
		uint64_t row, version;

		state = state * 6364136223846793005u + 1442695040888963407u;
		row = (state >> 40) % 40;
		version = 2 + 2 * ((uint64_t)i * 8 / TURNS) + 2 * (state >> 62 & 1);
		if (!get(hot, row, version))
			put(hot, row, version);
	}
	return NULL;
}

static void no_thread_ever_sees_a_torn_row(void)
{
	pthread_t threads[THREADS];
	struct obmm_hot *hot;

	CHECK(!obmm_hot_create(24, ROW, &hot));
	for (int i = 0; i < THREADS; i++)
		CHECK(!pthread_create(&threads[i], NULL, get_and_put, hot));
	for (int i = 0; i < THREADS; i++)
		CHECK(!pthread_join(threads[i], NULL));
	obmm_hot_free(hot);
}

/* ---- gathers ---- */

static uint8_t *place_of(uint64_t row)
{
	if (!table.rows_per_segment)
		return base + row * table.row_stride;
	return base + row / table.rows_per_segment * table.segment_bytes + row % table.rows_per_segment * table.row_stride;
}

static void publish(uint64_t version)
{
	__atomic_store_n(header, version - 1, __ATOMIC_RELEASE);
	obmm_order_full();
	for (uint64_t row = 0; row < ROWS; row++)
		fill(place_of(row), row, version);
	__atomic_store_n(header, version, __ATOMIC_RELEASE);
}

static void lock_table(void)
{
	CHECK(!mprotect(base, BYTES, PROT_NONE));
}

static void unlock_table(void)
{
	CHECK(!mprotect(base, BYTES, PROT_READ | PROT_WRITE));
}

static void set_layout(int layout)
{
	table = (struct obmm_table){ .base = base, .rows = ROWS, .row_bytes = ROW, .version = header };
	table.row_stride = layout == 1 ? 280 : ROW;
	table.rows_per_segment = layout == 2 ? 50 : 0;
	table.segment_bytes = layout == 2 ? 50 * ROW + 64 : 0;
	obmm_tuning_default(&table.tuning, ROW, 0);
}

static int gather(void)
{
	memset(&outcome, 0, sizeof(outcome));
	memset(out, 0xdd, COUNT * ROW);
	CHECK(!obmm_gather_check(&request, &outcome));
	outcome.status = obmm_gather_range(&request, 0, request.count, NULL, &outcome);
	obmm_gather_finish(&request, &outcome);
	return outcome.status;
}

static void expect_rows(uint64_t version)
{
	for (uint64_t i = 0; i < request.count; i++) {
		if (ids[i] >= 0)
			CHECK(is_row(out + i * ROW, (uint64_t)ids[i], version));
		for (size_t b = 0; b < ROW && ids[i] < 0; b++)
			CHECK(!out[i * ROW + b]);
	}
}

static void make_request(uint64_t count)
{
	request = (struct obmm_request){
		.table = &table,
		.ids = ids,
		.count = count,
		.id_bytes = 8,
		.out = out,
		.out_stride = ROW,
		.invalid = OBMM_INVALID_ZERO,
		.high = UINT64_MAX,
	};
	for (uint64_t i = 0; i < COUNT; i++)
		ids[i] = i % 9 == 4 ? -1 : (int64_t)(i * 7 % ROWS);
	CHECK(!obmm_hot_create(4096, ROW, &request.hot));
}

static void what_was_read_once_needs_no_memory_any_more(void)
{
	for (int layout = 0; layout < 3; layout++) {
		for (int nc = 0; nc < 2; nc++) {
			struct obmm_totals totals = { .ids = 0 };
			uint64_t zero;

			set_layout(layout);
			table.flags = nc ? OBMM_TABLE_NC : 0;
			table.totals = &totals;
			publish(2);
			make_request(COUNT);
			CHECK(!gather());
			expect_rows(2);
			zero = outcome.rows_zero;
			CHECK(zero == 56 && outcome.rows_read == COUNT - zero && !outcome.rows_hot);
			lock_table();
			CHECK(!gather());
			unlock_table();
			expect_rows(2);
			CHECK(outcome.rows_hot == COUNT - zero && !outcome.rows_read && outcome.rows_zero == zero);
			CHECK(totals.rows_hot == COUNT - zero && totals.rows_missed == COUNT - zero);
			obmm_hot_free(request.hot);
		}
	}
}

static void another_publication_finds_nothing_of_the_one_before(void)
{
	set_layout(0);
	publish(2);
	make_request(COUNT);
	CHECK(!gather());
	for (uint64_t version = 4; version < 10; version += 2) {
		publish(version);
		CHECK(!gather());
		CHECK(!outcome.rows_hot && outcome.version == version);
		expect_rows(version);
		CHECK(!gather() && !outcome.rows_read);
		expect_rows(version);
	}
	obmm_hot_free(request.hot);
}

static void what_is_published_during_the_gather_is_not_kept(void)
{
	set_layout(0);
	publish(2);
	make_request(200);
	for (int i = 0; i < 200; i++)
		ids[i] = i;
	/* the first rows are written where the version stands, when they have been kept and more are to come */
	request.out = (uint8_t *)header;
	outcome = (struct obmm_outcome){ .rows_read = 0 };
	CHECK(obmm_gather_range(&request, 0, 200, NULL, &outcome) == -ESTALE);
	*header = 2;
	request.out = out;
	lock_table();
	request.count = 100;
	CHECK(!gather() && outcome.rows_hot == 100);
	request.ids = ids + 199;
	request.count = 1;
	CHECK(gather() == -EFAULT);
	unlock_table();
	obmm_hot_free(request.hot);
}

static void a_batch_that_would_flush_it_goes_by(void)
{
	struct obmm_hot *hot;

	set_layout(0);
	publish(2);
	make_request(COUNT);
	hot = request.hot;
	CHECK(!obmm_hot_create(COUNT - 10, ROW, &request.hot));
	CHECK(!gather());
	CHECK(!gather() && !outcome.rows_hot);
	expect_rows(2);
	table.version = NULL; /* without one it is unknown what is kept */
	obmm_hot_free(request.hot);
	request.hot = hot;
	CHECK(!gather());
	CHECK(!gather() && !outcome.rows_hot);
	obmm_hot_free(hot);
}

static void a_row_that_failed_is_not_kept_and_one_that_is_kept_does_not_fail(void)
{
	uint8_t marks[COUNT];
	struct obmm_failures failures = { .rows = marks };

	set_layout(0);
	publish(2);
	make_request(40);
	request.failures = &failures;
	for (int i = 0; i < 40; i++)
		ids[i] = i; /* two and a half pages */
	request.count = 16;
	CHECK(!gather()); /* rows 0 to 15, of which 15 reaches into the second page, are kept */
	request.count = 40;
	CHECK(!mprotect(base, 2 * PAGE, PROT_NONE));
	CHECK(gather() == -EFAULT && failures.failed == 16 && outcome.rows_hot == 16);
	for (int i = 0; i < 40; i++)
		CHECK(marks[i] == (i > 15 && i < 32));
	unlock_table();
	CHECK(!gather() && outcome.rows_hot >= 16 && outcome.rows_read >= 16);
	expect_rows(2);
	obmm_hot_free(request.hot);
}

#if !defined(__SANITIZE_THREAD__)
/* A sequence lock's readers look at what is being written: a race by design. */
enum { READERS = 3, PUBLICATIONS = 400 };

static struct obmm_engine *engine;
static _Atomic bool published_all;
static _Atomic uint64_t good, found;

static void *gather_meanwhile(void *arg)
{
	struct obmm_request mine = request;
	struct obmm_outcome result;

	mine.out = arg;
	while (!atomic_load(&published_all)) {
		if (obmm_engine_gather(engine, &mine, 2, &result) < 0) {
			CHECK(result.status == -ESTALE);
			continue;
		}
		for (uint64_t i = 0; i < mine.count; i++)
			CHECK(ids[i] < 0 || is_row(mine.out + i * ROW, (uint64_t)ids[i], result.version));
		atomic_fetch_add(&good, 1);
		atomic_fetch_add(&found, result.rows_hot);
	}
	return NULL;
}

static void gathers_during_publications_are_of_one_or_refused(void)
{
	pthread_t readers[READERS];
	static uint8_t outs[READERS][COUNT * ROW];

	set_layout(0);
	publish(2);
	make_request(COUNT);
	CHECK(!obmm_engine_create(3, 0, NULL, 0, &engine));
	for (int i = 0; i < READERS; i++)
		CHECK(!pthread_create(&readers[i], NULL, gather_meanwhile, outs[i]));
	for (uint64_t n = 0; n < PUBLICATIONS; n++) {
		uint64_t seen = atomic_load(&good);

		publish(4 + 2 * n);
		for (int patience = 0; n % 8 == 0 && atomic_load(&good) < seen + 8 && patience < 100000; patience++)
			usleep(10);
	}
	atomic_store(&published_all, true);
	for (int i = 0; i < READERS; i++)
		CHECK(!pthread_join(readers[i], NULL));
	CHECK(good && found);
	obmm_engine_free(engine);
	obmm_hot_free(request.hot);
}
#endif

int main(void)
{
	int slots[2];

	base = mmap(NULL, BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	out = mmap(NULL, COUNT * ROW, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	header = mmap(NULL, COUNT * ROW, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	CHECK(base != MAP_FAILED && out != MAP_FAILED && header != MAP_FAILED);
	slots[0] = obmm_guard_add(base, BYTES, 4);
	slots[1] = obmm_guard_add(header, COUNT * ROW, 5);
	sizes_that_cannot_be_are_refused();
	a_row_is_found_under_its_version_only();
	clock_keeps_what_is_read();
	no_thread_ever_sees_a_torn_row();
	what_was_read_once_needs_no_memory_any_more();
	another_publication_finds_nothing_of_the_one_before();
	what_is_published_during_the_gather_is_not_kept();
	a_batch_that_would_flush_it_goes_by();
	a_row_that_failed_is_not_kept_and_one_that_is_kept_does_not_fail();
#if !defined(__SANITIZE_THREAD__)
	gathers_during_publications_are_of_one_or_refused();
#endif
	CHECK(!obmm_guard_remove(slots[0]) && !obmm_guard_remove(slots[1]));
	puts("test_copy_hot: ok");
	return 0;
}
