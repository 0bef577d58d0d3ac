/* SPDX-License-Identifier: Apache-2.0 */
#include "stream_gather.h"

#include <errno.h>
#include <stdatomic.h>
#include <string.h>
#include <time.h>

#include "../core/clock.h"

enum {
	EXPECTED_NS = 300000,
	PIECE_BYTES = 512 << 10, /* a copy of so much is worth its call */
	MOST_PIECES = 8,
};

static void failed(struct obmm_stream_gather *gather, int64_t status)
{
	int64_t none = 0;

	memset(gather->rows, 0, gather->rows_bytes);
	gather->failed++;
	if (atomic_load(&gather->first) == 0) {
		gather->failure = gather->outcome; /* before the status: who sees that reads this */
		atomic_compare_exchange_strong(&gather->first, &none, status);
	}
}

static void begin(struct obmm_stream_gather *gather)
{
	gather->began_ns = obmm_now_ns();
	gather->runs++;
}

static void end(struct obmm_stream_gather *gather, int64_t status)
{
	if (status)
		failed(gather, status);
	gather->status = status;
	gather->ended_ns = obmm_now_ns();
	gather->ended++;
}

/* Row numbers of this table's columns, from the tokens that are there now. */
static int64_t hash(const struct obmm_stream_gather *gather)
{
	const struct obmm_stream_hash *hash = gather->hash;
	uint64_t tokens = hash->tokens_bytes / sizeof(int64_t);
	int code = hash->engram ? obmm_engram_hash(hash->engram, &hash->batch, hash->rows) :
				  obmm_poly_hash(hash->poly, &hash->batch, hash->rows);

	if (code)
		return -EDOM;
	for (uint64_t i = 0; i < tokens; i++)
		memcpy((int64_t *)gather->ids + i * hash->columns, hash->rows + i * hash->width + hash->first,
		       hash->columns * sizeof(int64_t));
	return 0;
}

static int64_t gather_in_time(struct obmm_stream_gather *gather)
{
	struct obmm_stream_deadline *timed = gather->deadline;
	struct obmm_engine *engine = gather->engine;
	unsigned int bad = 0;
	uint64_t ticket;
	int code;

	if (timed->ticket && obmm_ticket_release(engine, timed->ticket) == -EBUSY)
		return -ETIMEDOUT;
	timed->ticket = 0;
	memcpy(timed->ids, gather->ids, gather->ids_bytes);
	memset(&timed->outcome, 0, sizeof(timed->outcome));
	code = obmm_engine_submit(engine, &timed->request, 1, 0, &timed->outcome, &ticket, &bad);
	if (!code) {
		code = obmm_ticket_collect(engine, ticket, timed->nanoseconds);
		if (code == -ETIMEDOUT) {
			timed->ticket = ticket;
			obmm_ticket_abandon(engine, ticket);
			return code;
		}
	}
	gather->outcome = timed->outcome;
	code = code ? code : timed->outcome.status;
	if (!code)
		memcpy(gather->rows, timed->rows, gather->rows_bytes);
	return code;
}

uint64_t obmm_stream_gather_take_late(struct obmm_stream_gather *gather)
{
	uint64_t ticket = gather->deadline ? gather->deadline->ticket : 0;

	if (ticket)
		gather->deadline->ticket = 0;
	return ticket;
}

void obmm_stream_gather_run(void *argument)
{
	struct obmm_stream_gather *gather = argument;
	int64_t status = 0;

	begin(gather);
	memset(&gather->outcome, 0, sizeof(gather->outcome));
	if (gather->shut)
		status = -ESHUTDOWN;
	else if (gather->hash)
		status = hash(gather);
	if (!status && gather->deadline) {
		status = gather_in_time(gather);
	} else if (!status) {
		int64_t rows = obmm_engine_gather(gather->engine, &gather->request, 0, &gather->outcome);

		if (rows < 0)
			status = rows;
	}
	if (!status)
		gather->version = (int64_t)gather->outcome.version;
	end(gather, status);
}

/* Rows [from, to) of one run, of the version that the first piece was of. */
static int64_t gather_piece(struct obmm_stream_gather *gather, uint64_t from, uint64_t to)
{
	struct obmm_request piece = obmm_request_part(&gather->request, from, to - from);
	int64_t rows;

	memset(&gather->outcome, 0, sizeof(gather->outcome));
	rows = obmm_engine_gather(gather->engine, &piece, 0, &gather->outcome);
	if (rows < 0) {
		gather->outcome.bad_index += gather->outcome.bad_index < 0 ? 0 : (int64_t)from;
		return rows;
	}
	if (from && gather->outcome.version != (uint64_t)gather->version)
		return -ESTALE;
	gather->version = (int64_t)gather->outcome.version;
	return 0;
}

int64_t obmm_stream_gather_send(struct obmm_stream_gather *gather, uint64_t stream, int *refused)
{
	struct obmm_accelerator *to = gather->accelerator;
	uint64_t count = gather->request.count, stride = gather->request.out_stride;
	uint64_t pieces = gather->rows_bytes / PIECE_BYTES, size, at = 0;
	int64_t status = gather->shut ? -ESHUTDOWN : 0;

	pieces = pieces < 1 || gather->request.columns ? 1 : pieces > MOST_PIECES ? MOST_PIECES : pieces;
	size = (count + pieces - 1) / pieces;
	*refused = obmm_accelerator_knows(to, stream);
	if (!*refused && to->capturing(to, stream) > 0)
		*refused = -EBUSY; /* it would gather once, now, and replay those rows for ever */
	if (*refused)
		return *refused;
	begin(gather);
	if (!status && gather->hash)
		status = hash(gather);
	obmm_engine_begin_row(gather->engine, EXPECTED_NS);
	while (!status && !*refused && at < count) {
		uint64_t next = count - at < size ? count : at + size;

		status = gather_piece(gather, at, next);
		if (!status)
			*refused = to->to_device(to, gather->device_rows + at * stride, gather->rows + at * stride,
						 (next - at) * stride, stream);
		at = next;
	}
	obmm_engine_end_row(gather->engine);
	end(gather, status); /* zeros: copies of pieces before that are still under way may take some of them already */
	if (status && !*refused)
		*refused = to->to_device(to, gather->device_rows, gather->rows, gather->rows_bytes, stream);
	return *refused ? *refused : status;
}

void obmm_stream_gather_times(struct obmm_stream_gather *gather, uint64_t *began_ns, uint64_t *ended_ns)
{
	*began_ns = gather->began_ns;
	*ended_ns = gather->ended_ns;
}

static int queue(struct obmm_stream_gather *gather, uint64_t stream)
{
	struct obmm_accelerator *to = gather->accelerator;
	int code = to->host(to, stream, obmm_stream_gather_run, gather);

	return code ? code : to->to_device(to, gather->device_rows, gather->rows, gather->rows_bytes, stream);
}

/* Whether all of it can be queued; before any of it is. */
static int look(struct obmm_stream_gather *gather, uint64_t first, uint64_t second, uint64_t stream)
{
	struct obmm_accelerator *to = gather->accelerator;
	int code = obmm_accelerator_knows(to, stream);

	if (!code && first)
		code = to->owns(to, first);
	if (!code && second)
		code = to->owns(to, second);
	if (!code)
		obmm_engine_expect(gather->engine, EXPECTED_NS); /* not under capture, the run comes at once */
	return code;
}

int obmm_stream_gather_enqueue_tokens(struct obmm_stream_gather *gather, uint64_t device_tokens,
				      uint64_t device_history, uint64_t stream)
{
	struct obmm_accelerator *to = gather->accelerator;
	struct obmm_stream_hash *hash = gather->hash;
	int code = look(gather, device_tokens, device_history, stream);

	if (!code && device_tokens)
		code = to->to_host(to, (void *)hash->batch.tokens, device_tokens, hash->tokens_bytes, stream);
	if (!code && device_history)
		code = to->to_host(to, (void *)hash->batch.history, device_history, hash->history_bytes, stream);
	return code ? code : queue(gather, stream);
}

int obmm_stream_gather_enqueue(struct obmm_stream_gather *gather, uint64_t device_ids, uint64_t stream)
{
	struct obmm_accelerator *to = gather->accelerator;
	int code = look(gather, device_ids, 0, stream);

	if (!code && device_ids)
		code = to->to_host(to, gather->ids, device_ids, gather->ids_bytes, stream);
	return code ? code : queue(gather, stream);
}

uint64_t obmm_stream_gather_runs(struct obmm_stream_gather *gather)
{
	return gather->runs;
}

uint64_t obmm_stream_gather_failed(struct obmm_stream_gather *gather)
{
	return gather->failed;
}

int64_t obmm_stream_gather_status(struct obmm_stream_gather *gather)
{
	return gather->status;
}

int64_t obmm_stream_gather_take(struct obmm_stream_gather *gather)
{
	return atomic_exchange(&gather->first, 0);
}

int obmm_stream_gather_shut(struct obmm_stream_gather *gather, int64_t timeout_ns)
{
	const struct timespec nap = { .tv_nsec = 100000 };

	gather->shut = 1;
	for (int64_t waited = 0; gather->ended != gather->runs; waited += nap.tv_nsec) {
		if (timeout_ns >= 0 && waited >= timeout_ns)
			return -ETIMEDOUT;
		nanosleep(&nap, NULL); /* a host function runs: it ends when its loads come back */
	}
	return 0;
}
