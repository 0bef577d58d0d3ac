/* SPDX-License-Identifier: Apache-2.0 */
/* Blocks: what a slot gives back, and everything that must be a miss. */
#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <unistd.h>

#include "../blocks/batch.h"
#include "../blocks/summed.h"
#include "../hash/crc32c.h"
#include "test.h"

enum { SLOTS = 8, CAPACITY = 9000, STRIDE = 12288, ID = 5 };

struct shelf {
	int fd;
	uint8_t *base;
	int guard;
	struct obmm_gate gate;
	struct obmm_block_area area;
	struct obmm_engine *engine;
};

static uint64_t seed = 1;

static uint32_t any(uint32_t below)
{
	seed = seed * 6364136223846793005ull + 1442695040888963407ull;
	return (uint32_t)(seed >> 33) % below;
}

static void open_shelf(struct shelf *shelf)
{
	memset(shelf, 0, sizeof(*shelf));
	shelf->fd = memfd_create("obmm-test", MFD_CLOEXEC);
	REQUIRE(shelf->fd >= 0 && !ftruncate(shelf->fd, SLOTS * STRIDE));
	shelf->base = mmap(NULL, SLOTS * STRIDE, PROT_READ | PROT_WRITE, MAP_SHARED, shelf->fd, 0);
	REQUIRE(shelf->base != MAP_FAILED);
	shelf->guard = obmm_guard_add(shelf->base, SLOTS * STRIDE, ID);
	REQUIRE(shelf->guard >= 0);
	shelf->area = (struct obmm_block_area){ .base = shelf->base,
						.stride = STRIDE,
						.slots = SLOTS,
						.capacity = CAPACITY,
						.incarnation = 11,
						.fingerprint = 12,
						.gate = &shelf->gate,
						.fd = -1 };
	REQUIRE(!obmm_engine_create(2, 0, NULL, 0, &shelf->engine));
}

static void close_shelf(struct shelf *shelf)
{
	obmm_engine_free(shelf->engine);
	obmm_guard_remove(shelf->guard);
	munmap(shelf->base, SLOTS * STRIDE);
	close(shelf->fd);
}

static struct obmm_block_place place_of(uint32_t slot, uint64_t generation, uint32_t length)
{
	struct obmm_block_place place = { .generation = generation, .slot = slot, .length = length };

	memset(place.hash, (int)(slot + 16 * generation), sizeof(place.hash));
	return place;
}

/* One block of one piece; its status. */
static int8_t move(struct shelf *shelf, const struct obmm_block_place *place, void *memory, int to_write)
{
	uint64_t address = (uintptr_t)memory;
	int8_t status;
	struct obmm_block_batch batch = { .area = &shelf->area,
					  .places = place,
					  .addresses = &address,
					  .sizes = &place->length,
					  .status = &status,
					  .count = 1,
					  .pieces = 1,
					  .to_write = to_write,
					  .bell = -1 };

	CHECK_EQ(obmm_batch_prepare(&batch), 0);
	CHECK_EQ(obmm_batch_run(shelf->engine, &batch), 0);
	return status;
}

TEST(summed_copies_are_copies_with_their_sum)
{
	static const char *const isas[] = { "vpclmul", "pclmul", "pmull", "plain" };
	enum { LONGEST = 3000, ROOM = 3264 };
	uint8_t *source = aligned_alloc(64, ROOM + 64), *target = aligned_alloc(64, ROOM + 64);

	for (int i = 0; i < ROOM; i++)
		source[i] = (uint8_t)any(256);
	for (unsigned int isa = 0; isa < 4; isa++) {
		if (obmm_summed_use(isas[isa]))
			continue;
		CHECK_STR(obmm_summed_isa(), isas[isa]);
		for (int round = 0; round < 400; round++) {
			uint32_t length = any(LONGEST), from = any(70), to = any(70), flags = any(2);
			uint32_t expected = obmm_crc32c(9, source + from, length);

			memset(target, 0x55, ROOM);
			CHECK_EQ(obmm_summed_read(target + to, source + from, length, 9, flags), expected);
			CHECK(!memcmp(target + to, source + from, length) && target[to + length] == 0x55);
			memset(target, 0x55, ROOM);
			CHECK_EQ(obmm_summed_write(target + to, source + from, length, 9, flags), expected);
			CHECK(!memcmp(target + to, source + from, length) && target[to + length] == 0x55);
			CHECK(!to || target[to - 1] == 0x55);
		}
	}
	obmm_summed_use(NULL);
	CHECK_EQ(obmm_summed_use("mmx"), -ENOTSUP);
	free(source);
	free(target);
}

TEST(what_was_written_is_read_from_pieces_of_any_size)
{
	enum { PIECES = 3 };
	static const uint32_t sizes[SLOTS * PIECES] = { 4096, 4096, 808, 1, 2,	3,   100, 1000, 63,  64, 64, 64,
							65,   4000, 1,	 9, 17, 170, 8,	  8,	8984, 1, 1,  8998 };
	struct obmm_block_place places[SLOTS];
	uint64_t from[SLOTS * PIECES], to[SLOTS * PIECES];
	uint8_t *source = malloc(SLOTS * PIECES * CAPACITY), *target = calloc(SLOTS * PIECES, CAPACITY);
	int8_t status[SLOTS];
	struct shelf shelf;

	open_shelf(&shelf);
	for (int i = 0; i < SLOTS * PIECES * CAPACITY; i++)
		source[i] = (uint8_t)any(256);
	for (unsigned int i = 0; i < SLOTS; i++) {
		uint32_t total = 0;

		for (unsigned int piece = 0; piece < PIECES; piece++) {
			unsigned int at = i * PIECES + piece;

			from[at] = (uintptr_t)source + at * CAPACITY;
			to[at] = (uintptr_t)target + at * CAPACITY;
			total += sizes[at];
		}
		places[i] = place_of(SLOTS - 1 - i, 100 + i, total);
	}
	for (int to_write = 1; to_write >= 0; to_write--) {
		struct obmm_block_batch batch = { .area = &shelf.area,
						  .places = places,
						  .addresses = to_write ? from : to,
						  .sizes = sizes,
						  .status = status,
						  .count = SLOTS,
						  .pieces = PIECES,
						  .to_write = to_write,
						  .bell = -1 };

		CHECK_EQ(obmm_batch_prepare(&batch), 0);
		CHECK_EQ(obmm_batch_run(shelf.engine, &batch), 0);
		for (int i = 0; i < SLOTS; i++)
			CHECK_EQ(status[i], OBMM_BLOCK_DONE);
	}
	for (int i = 0; i < SLOTS * PIECES; i++)
		CHECK(!memcmp((void *)(uintptr_t)from[i], (void *)(uintptr_t)to[i], sizes[i]));
	close_shelf(&shelf);
	free(source);
	free(target);
}

TEST(every_other_header_is_a_miss)
{
	uint8_t bytes[CAPACITY] = { 1, 2, 3 }, out[CAPACITY];
	struct obmm_block_place good = place_of(3, 77, 5000), other;
	uint8_t *header;
	struct shelf shelf;

	open_shelf(&shelf);
	header = shelf.base + 3 * STRIDE;
	CHECK_EQ(move(&shelf, &good, out, 0), OBMM_BLOCK_REUSED); /* never written */
	CHECK_EQ(move(&shelf, &good, bytes, 1), OBMM_BLOCK_DONE);
	CHECK_EQ(move(&shelf, &good, out, 0), OBMM_BLOCK_DONE);
	other = good, other.generation++;
	CHECK_EQ(move(&shelf, &other, out, 0), OBMM_BLOCK_REUSED);
	other = good, other.hash[15] ^= 1;
	CHECK_EQ(move(&shelf, &other, out, 0), OBMM_BLOCK_REUSED);
	other = good, other.length--;
	CHECK_EQ(move(&shelf, &other, out, 0), OBMM_BLOCK_REUSED);
	other = good, other.generation = 0;
	CHECK_EQ(move(&shelf, &other, out, 0), OBMM_BLOCK_UNKNOWN);
	other = good, other.slot = SLOTS;
	CHECK_EQ(move(&shelf, &other, out, 0), OBMM_BLOCK_UNKNOWN);
	other = good, other.length = CAPACITY + 1;
	CHECK_EQ(move(&shelf, &other, out, 0), OBMM_BLOCK_LENGTH);
	shelf.area.incarnation++;
	CHECK_EQ(move(&shelf, &good, out, 0), OBMM_BLOCK_REUSED);
	shelf.area.incarnation--;
	shelf.area.fingerprint++;
	CHECK_EQ(move(&shelf, &good, out, 0), OBMM_BLOCK_REUSED);
	shelf.area.fingerprint--;
	/* each bit of the header, and bytes of the block */
	for (int bit = 0; bit < 512; bit++) {
		header[bit / 8] ^= 1 << bit % 8;
		CHECK(move(&shelf, &good, out, 0) != OBMM_BLOCK_DONE);
		header[bit / 8] ^= 1 << bit % 8;
	}
	for (int i = 0; i < 5000; i += 37) {
		header[64 + i] ^= 0x10;
		CHECK_EQ(move(&shelf, &good, out, 0), OBMM_BLOCK_CORRUPT);
		header[64 + i] ^= 0x10;
	}
	CHECK_EQ(move(&shelf, &good, out, 0), OBMM_BLOCK_DONE);
	CHECK_EQ(obmm_slots_clear(&shelf.area, &good.slot, 1), 0);
	CHECK_EQ(move(&shelf, &good, out, 0), OBMM_BLOCK_REUSED);
	close_shelf(&shelf);
}

TEST(random_headers_are_misses)
{
	uint8_t bytes[512] = { 9 }, out[512];
	struct obmm_block_place good = place_of(0, 3, 512);
	struct shelf shelf;
	/* under a sanitizer each takes ten times as long */
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
	enum { ROUNDS = 20000 };
#else
	enum { ROUNDS = 1000000 };
#endif

	open_shelf(&shelf);
	CHECK_EQ(move(&shelf, &good, bytes, 1), OBMM_BLOCK_DONE);
	for (int round = 0; round < ROUNDS; round++) {
		struct obmm_slot_header kept = *(struct obmm_slot_header *)shelf.base;
		uint32_t *words = (uint32_t *)shelf.base;
		int changes = 1 + (int)any(16);
		int8_t status;

		while (changes--)
			words[any(16)] ^= any(2) ? 1u << any(32) : any(UINT32_MAX);
		status = move(&shelf, &good, out, 0);
		if (status == OBMM_BLOCK_DONE)
			CHECK(!memcmp(shelf.base, &kept, sizeof(kept)) && !memcmp(out, bytes, sizeof(out)));
		memcpy(shelf.base, &kept, sizeof(kept));
	}
	close_shelf(&shelf);
}

TEST(overlapping_destinations_are_refused)
{
	uint8_t out[4096];
	struct obmm_block_place places[3] = { place_of(0, 1, 100), place_of(1, 2, 100), place_of(2, 3, 100) };
	uint64_t addresses[3] = { (uintptr_t)out + 1000, (uintptr_t)out, (uintptr_t)out + 99 };
	uint32_t sizes[3] = { 100, 100, 100 };
	int8_t status[3] = { 0 };
	struct shelf shelf;
	struct obmm_block_batch batch = { .area = &shelf.area, .places = places, .addresses = addresses, .sizes = sizes,
					  .status = status, .count = 3, .pieces = 1, .bell = -1 };

	open_shelf(&shelf);
	CHECK_EQ(obmm_batch_prepare(&batch), -EFAULT);
	addresses[2]++;
	CHECK_EQ(obmm_batch_prepare(&batch), 0);
	CHECK_EQ(status[2], OBMM_BLOCK_PENDING);
	addresses[0] = UINT64_MAX - 50;
	CHECK_EQ(obmm_batch_prepare(&batch), -EFAULT);
	batch.count = 0;
	CHECK_EQ(obmm_batch_prepare(&batch), -EINVAL);
	close_shelf(&shelf);
}

TEST(memory_that_is_gone_costs_its_blocks_only)
{
	uint8_t bytes[CAPACITY] = { 4 }, *gone;
	struct obmm_block_place places[SLOTS];
	uint64_t addresses[SLOTS];
	uint32_t sizes[SLOTS];
	int8_t status[SLOTS];
	struct shelf shelf;
	struct obmm_block_batch batch = { .area = &shelf.area, .places = places, .addresses = addresses, .sizes = sizes,
					  .status = status, .count = SLOTS, .pieces = 1, .bell = -1 };

	open_shelf(&shelf);
	for (uint32_t i = 0; i < SLOTS; i++) {
		places[i] = place_of(i, 1 + i, CAPACITY);
		sizes[i] = CAPACITY;
		addresses[i] = (uintptr_t)malloc(CAPACITY);
		CHECK_EQ(move(&shelf, &places[i], bytes, 1), OBMM_BLOCK_DONE);
	}
	REQUIRE(!ftruncate(shelf.fd, 5 * STRIDE));
	CHECK_EQ(obmm_batch_prepare(&batch), 0);
	CHECK_EQ(obmm_batch_run(shelf.engine, &batch), 0);
	for (uint32_t i = 0; i < SLOTS; i++)
		CHECK_EQ(status[i], i < 5 ? OBMM_BLOCK_DONE : OBMM_BLOCK_FAULT);
	CHECK_EQ(batch.faults, 3);
	CHECK_EQ(batch.fault.id, ID);
	CHECK_EQ(batch.bytes, 5 * CAPACITY);
	CHECK_EQ(move(&shelf, &places[6], bytes, 1), OBMM_BLOCK_FAULT);
	/* the caller's memory can be gone as well, where it is known to the guard */
	gone = mmap(NULL, 12288, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	int slot = obmm_guard_add(gone, 12288, 99);
	CHECK_EQ(move(&shelf, &places[1], gone, 0), OBMM_BLOCK_BUFFER);
	obmm_guard_remove(slot);
	munmap(gone, 12288);
	CHECK_EQ(obmm_gate_shut(&shelf.gate, -1), 0);
	CHECK_EQ(move(&shelf, &places[1], bytes, 0), OBMM_BLOCK_CLOSED);
	for (uint32_t i = 0; i < SLOTS; i++)
		free((void *)(uintptr_t)addresses[i]);
	close_shelf(&shelf);
}

TEST(a_submitted_batch_rings_and_a_late_one_touches_nothing)
{
	uint8_t bytes[2][CAPACITY] = { { 4 }, { 5 } };
	struct obmm_block_place places[2] = { place_of(1, 8, CAPACITY), place_of(2, 9, CAPACITY) };
	uint64_t addresses[2] = { (uintptr_t)bytes[0], (uintptr_t)bytes[1] }, ticket, count = 0;
	uint32_t sizes[2] = { CAPACITY, CAPACITY };
	int8_t status[2];
	struct shelf shelf;
	struct obmm_block_batch batch = { .area = &shelf.area, .places = places, .addresses = addresses, .sizes = sizes,
					  .status = status, .count = 2, .pieces = 1, .to_write = 1 };

	open_shelf(&shelf);
	batch.bell = eventfd(0, EFD_CLOEXEC);
	CHECK_EQ(obmm_batch_prepare(&batch), 0);
	CHECK_EQ(obmm_batch_submit(shelf.engine, &batch, &ticket), 0);
	CHECK_EQ(read(batch.bell, &count, 8), 8); /* blocks until it rang */
	CHECK_EQ(count, 1);
	CHECK_EQ(obmm_ticket_collect(shelf.engine, ticket, -1), 0);
	CHECK_EQ(status[0] | status[1], 0);
	batch.to_write = 0;
	batch.deadline_ns = 1;
	CHECK_EQ(obmm_batch_prepare(&batch), 0);
	CHECK_EQ(obmm_batch_run(shelf.engine, &batch), 0);
	CHECK_EQ(status[0], OBMM_BLOCK_LATE);
	CHECK_EQ(status[1], OBMM_BLOCK_LATE);
	close(batch.bell);
	close_shelf(&shelf);
}

/* ---- a writer that reuses the slot under readers, through a mapping of its own as another node's would be ---- */

struct reuse {
	struct shelf *shelf;
	uint8_t *elsewhere;
	_Atomic int stop;
};

static void *reuse_slot(void *arg)
{
	struct reuse *reuse = arg;
	struct shelf *shelf = reuse->shelf;
	struct obmm_block_area area = shelf->area;
	uint8_t bytes[CAPACITY];

	area.base = reuse->elsewhere;
	for (uint64_t generation = 2; !atomic_load(&reuse->stop); generation++) {
		struct obmm_block_place place = place_of(0, generation, CAPACITY);
		uint64_t address = (uintptr_t)bytes;
		int8_t status;
		struct obmm_block_batch batch = { .area = &area, .places = &place, .addresses = &address,
						  .sizes = &place.length, .status = &status, .count = 1, .pieces = 1,
						  .to_write = 1, .bell = -1 };

		memset(bytes, (int)generation, sizeof(bytes));
		CHECK_EQ(obmm_batch_prepare(&batch), 0);
		CHECK_EQ(obmm_batch_run(shelf->engine, &batch), 0);
		CHECK_EQ(status, OBMM_BLOCK_DONE);
	}
	return NULL;
}

TEST(a_slot_that_is_reused_meanwhile_never_gives_other_bytes)
{
	uint8_t out[CAPACITY];
	struct shelf shelf;
	struct reuse reuse = { .shelf = &shelf };
	unsigned int hits = 0, misses = 0;
	pthread_t writer;
	int guard;

	open_shelf(&shelf);
	reuse.elsewhere = mmap(NULL, SLOTS * STRIDE, PROT_READ | PROT_WRITE, MAP_SHARED, shelf.fd, 0);
	guard = obmm_guard_add(reuse.elsewhere, SLOTS * STRIDE, ID);
	REQUIRE(!pthread_create(&writer, NULL, reuse_slot, &reuse));
	while (hits < 200 || misses < 200) {
		/* what a directory would say now: the generation that is being, or was just, written */
		uint64_t now = __atomic_load_n((uint64_t *)(shelf.base + 8), __ATOMIC_RELAXED);
		struct obmm_block_place place = place_of(0, now, CAPACITY);
		int8_t status;

		if (!now)
			continue;
		status = move(&shelf, &place, out, 0);
		hits += status == OBMM_BLOCK_DONE;
		misses += status != OBMM_BLOCK_DONE;
		for (int i = 0; status == OBMM_BLOCK_DONE && i < CAPACITY; i++)
			REQUIRE(out[i] == (uint8_t)now);
	}
	atomic_store(&reuse.stop, 1);
	pthread_join(writer, NULL);
	obmm_guard_remove(guard);
	munmap(reuse.elsewhere, SLOTS * STRIDE);
	close_shelf(&shelf);
}
