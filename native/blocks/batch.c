/* SPDX-License-Identifier: Apache-2.0 */
#include "batch.h"

#include <errno.h>
#include <stddef.h>
#include <string.h>
#include <unistd.h>

#include "../access/nc.h"
#include "../access/order.h"
#include "../core/clock.h"
#include "../hash/crc32c.h"
#include "overlap.h"
#include "summed.h"

enum {
	STREAM_BYTES = 2 << 20, /* batches of at least this size are written past the caches */
	THREAD_BYTES = 1 << 20, /* what is worth one more thread */
};

struct transfer {
	const struct obmm_block_batch *batch;
	const struct obmm_block_place *place;
	const uint64_t *addresses;
	const uint32_t *sizes;
	uint8_t *slot;
};

static uint32_t crc_of(const struct obmm_slot_header *header)
{
	return obmm_crc32c(0, header, offsetof(struct obmm_slot_header, header_crc));
}

static struct obmm_slot_header header_of(const struct transfer *transfer, uint16_t state, uint32_t crc)
{
	struct obmm_slot_header header = {
		.magic = OBMM_SLOT_MAGIC,
		.version = OBMM_SLOT_VERSION,
		.state = state,
		.generation = transfer->place->generation,
		.length = transfer->place->length,
		.crc = crc,
		.incarnation = transfer->batch->area->incarnation,
		.fingerprint = transfer->batch->area->fingerprint,
	};

	memcpy(header.hash, transfer->place->hash, sizeof(header.hash));
	header.header_crc = crc_of(&header);
	return header;
}

static unsigned int summed_flags(const struct obmm_block_batch *batch)
{
	return batch->past_caches ? OBMM_SUMMED_PAST_CACHES : 0;
}

/* ---- one block, inside the guard ---- */

static int read_slot(void *arg)
{
	const struct transfer *transfer = arg;
	const uint8_t *from = transfer->slot + sizeof(struct obmm_slot_header);
	struct obmm_slot_header before, after, expected;
	uint32_t crc = 0;

	obmm_order_load();
	obmm_nc_read(&before, transfer->slot, sizeof(before));
	expected = header_of(transfer, OBMM_SLOT_READY, before.crc);
	if (memcmp(&before, &expected, sizeof(before)))
		return OBMM_BLOCK_REUSED;
	obmm_order_load();
	for (uint32_t i = 0; i < transfer->batch->pieces; i++) {
		crc = obmm_summed_read((void *)(uintptr_t)transfer->addresses[i], from, transfer->sizes[i], crc,
				       summed_flags(transfer->batch));
		from += transfer->sizes[i];
	}
	obmm_order_full();
	obmm_nc_read(&after, transfer->slot, sizeof(after));
	if (memcmp(&before, &after, sizeof(before)))
		return OBMM_BLOCK_TORN;
	return crc == before.crc ? OBMM_BLOCK_DONE : OBMM_BLOCK_CORRUPT;
}

static int write_slot(void *arg)
{
	const struct transfer *transfer = arg;
	uint8_t *to = transfer->slot + sizeof(struct obmm_slot_header);
	struct obmm_slot_header header = header_of(transfer, OBMM_SLOT_WRITING, 0);
	uint32_t crc = 0;

	obmm_nc_write(transfer->slot, &header, sizeof(header));
	obmm_order_full();
	for (uint32_t i = 0; i < transfer->batch->pieces; i++) {
		crc = obmm_summed_write(to, (const void *)(uintptr_t)transfer->addresses[i], transfer->sizes[i], crc,
					summed_flags(transfer->batch));
		to += transfer->sizes[i];
	}
	obmm_order_full();
	header = header_of(transfer, OBMM_SLOT_READY, crc);
	obmm_nc_write(transfer->slot, &header, sizeof(header));
	obmm_order_full();
	return OBMM_BLOCK_DONE;
}

/* ---- one block ---- */

static bool is_in_area(const struct obmm_block_area *area, uint64_t address)
{
	uint64_t base = (uint64_t)(uintptr_t)area->base;

	return address >= base && address - base < area->stride * area->slots;
}

static int8_t touch_slot(struct obmm_block_batch *batch, struct transfer *transfer)
{
	const struct obmm_block_area *area = batch->area;
	uint32_t slot = transfer->place->slot;
	struct obmm_fault fault = { .id = 0 };
	int result = obmm_slot_enter(area, slot, batch->to_write), left;

	if (result)
		return result == -EBUSY ? OBMM_BLOCK_REUSED : OBMM_BLOCK_RIGHT;
	result = obmm_guard_run(batch->to_write ? write_slot : read_slot, transfer, &fault);
	left = obmm_slot_leave(area, slot, batch->to_write);
	if (result == -EFAULT) {
		if (!__atomic_fetch_add(&batch->faults, 1, __ATOMIC_RELAXED))
			batch->fault = fault;
		return is_in_area(area, fault.address) ? OBMM_BLOCK_FAULT : OBMM_BLOCK_BUFFER;
	}
	/* what was not written back is nowhere */
	return left && batch->to_write ? OBMM_BLOCK_RIGHT : (int8_t)result;
}

static bool is_late(const struct obmm_block_batch *batch)
{
	return batch->deadline_ns && obmm_now_ns() >= batch->deadline_ns;
}

static int8_t run_one(struct obmm_block_batch *batch, uint64_t i)
{
	const struct obmm_block_area *area = batch->area;
	struct transfer transfer = {
		.batch = batch,
		.place = &batch->places[i],
		.addresses = batch->addresses + i * batch->pieces,
		.sizes = batch->sizes + i * batch->pieces,
	};
	uint64_t total = 0;
	int8_t status;

	if (!transfer.place->generation || transfer.place->slot >= area->slots)
		return OBMM_BLOCK_UNKNOWN;
	for (uint32_t piece = 0; piece < batch->pieces; piece++)
		total += transfer.sizes[piece];
	if (!total || total != transfer.place->length || total > area->capacity)
		return OBMM_BLOCK_LENGTH;
	if (is_late(batch))
		return OBMM_BLOCK_LATE;
	if (obmm_gate_enter(area->gate))
		return OBMM_BLOCK_CLOSED;
	transfer.slot = area->base + transfer.place->slot * area->stride;
	status = touch_slot(batch, &transfer);
	obmm_gate_leave(area->gate);
	if (status == OBMM_BLOCK_DONE)
		__atomic_fetch_add(&batch->bytes, total, __ATOMIC_RELAXED);
	return status;
}

/* ---- for the engine ---- */

static struct obmm_block_batch *batch_of(struct obmm_work *work)
{
	return (struct obmm_block_batch *)((char *)work - offsetof(struct obmm_block_batch, work));
}

static int run_some(struct obmm_work *work, uint64_t from, uint64_t to)
{
	struct obmm_block_batch *batch = batch_of(work);

	for (uint64_t i = from; i < to; i++)
		__atomic_store_n(&batch->status[i], run_one(batch, i), __ATOMIC_RELAXED);
	return 0;
}

static void ring(void *context, const struct obmm_outcome *outcome)
{
	const struct obmm_block_batch *batch = context;
	uint64_t one = 1;

	(void)outcome;
	/* a full counter is readable already, which is enough */
	if (batch->bell >= 0 && write(batch->bell, &one, sizeof(one)) < 0)
		return;
}

int obmm_batch_prepare(struct obmm_block_batch *batch)
{
	uint64_t pieces = (uint64_t)batch->count * batch->pieces, total = 0;

	if (!batch->count || !batch->pieces || pieces > 1u << 24)
		return -EINVAL;
	for (uint64_t i = 0; i < pieces; i++)
		total += batch->sizes[i];
	if (!batch->to_write) {
		int result = obmm_ranges_overlap(batch->addresses, batch->sizes, pieces);

		if (result)
			return result > 0 ? -EFAULT : result;
	}
	memset(batch->status, OBMM_BLOCK_PENDING, batch->count);
	batch->bytes = 0;
	batch->faults = 0;
	batch->past_caches = total >= STREAM_BYTES;
	batch->threads = (unsigned int)(1 + total / THREAD_BYTES > OBMM_MAX_THREADS ? OBMM_MAX_THREADS :
										      1 + total / THREAD_BYTES);
	batch->work = (struct obmm_work){ .run = run_some, .chunk = 1 };
	batch->table = (struct obmm_table){ .tuning = { .order_rows = UINT32_MAX } };
	batch->request = (struct obmm_request){ .table = &batch->table,
						.count = batch->count,
						.work = &batch->work,
						.then = { .call = ring, .context = batch } };
	return 0;
}

int obmm_batch_run(struct obmm_engine *engine, struct obmm_block_batch *batch)
{
	int64_t result = obmm_engine_gather(engine, &batch->request, batch->threads, &batch->outcome);

	return result < 0 ? (int)result : 0;
}

int obmm_batch_submit(struct obmm_engine *engine, struct obmm_block_batch *batch, uint64_t *ticket)
{
	unsigned int bad;

	return obmm_engine_submit(engine, &batch->request, 1, batch->threads, &batch->outcome, ticket, &bad);
}
