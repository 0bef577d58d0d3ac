/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A gather inside a device's stream: ids to pinned memory, a host function that
 * gathers, rows to the device.  Three entries that a stream under capture takes,
 * so that a graph replays them with new ids and no interpreter.
 *
 * A fault, an id outside of the table, a token outside of the vocabulary (-EDOM), or a table that is being published gives
 * zeros for all rows and a status word in host memory; never another step's bytes.
 */
#ifndef OBMM_STREAM_GATHER_H
#define OBMM_STREAM_GATHER_H

#include "../engine/engine.h"
#include "../hash/ngram.h"
#include "accelerator.h"

/* Token ids in place of row numbers: hashed by the host function before it gathers. */
struct obmm_stream_hash {
	const struct obmm_engram *engram; /* or NULL: then */
	const struct obmm_poly *poly;
	struct obmm_ngram_batch batch; /* its tokens and history are pinned, 64 bits each */
	int64_t *rows;		       /* [tokens][width], of all layers that the plan has */
	uint64_t width;
	uint64_t first, columns; /* those of this table */
	uint64_t tokens_bytes, history_bytes;
};

/*
 * A deadline: workers gather into memory of their own, so that one that comes
 * back late writes nothing that anybody reads.  Until it has, every run is late.
 */
struct obmm_stream_deadline {
	int64_t nanoseconds;
	struct obmm_request request; /* of the ids and rows here */
	struct obmm_outcome outcome;
	void *ids;
	uint8_t *rows;
	uint64_t ticket; /* of a gather that was given up and has not come back; 0: none */
};

struct obmm_stream_gather {
	struct obmm_accelerator *accelerator;
	struct obmm_engine *engine;
	struct obmm_request request; /* ids and out are the pinned memory below */
	struct obmm_outcome outcome;
	void *ids;		     /* pinned */
	uint8_t *rows;		     /* pinned, count * row_bytes */
	uint64_t ids_bytes, rows_bytes;
	uint64_t device_rows;
	struct obmm_stream_hash *hash; /* or NULL */
	struct obmm_stream_deadline *deadline; /* or NULL */
	int64_t version; /* the content version of the last rows */
	/* Counted by the host function; read by anybody. */
	_Atomic uint64_t runs;	  /* started */
	_Atomic uint64_t ended;	  /* ended */
	_Atomic uint64_t failed;  /* those of them with zeros in place of rows */
	/* When the last run began and ended, CLOCK_MONOTONIC: what comes before and after is the device's. */
	_Atomic uint64_t began_ns, ended_ns;
	_Atomic int64_t status;	  /* of the last run: 0 or a negative errno */
	_Atomic int64_t first;	  /* of the first failed run since it was taken */
	struct obmm_outcome failure; /* its outcome */
	_Atomic int shut;	  /* memory goes away: every later run gives zeros and -ESHUTDOWN */
};

/*
 * Queue it.  device_ids: where ids come from, 0: they are in `ids` when the host
 * function runs.  0 or a negative errno of the accelerator.
 */
int obmm_stream_gather_enqueue(struct obmm_stream_gather *gather, uint64_t device_ids, uint64_t stream);

/* The same with token ids and their history (0: none, or what is in pinned memory then). */
int obmm_stream_gather_enqueue_tokens(struct obmm_stream_gather *gather, uint64_t device_tokens,
				      uint64_t device_history, uint64_t stream);

/*
 * A run on this thread, with ids that are in `ids` now: rows are sent through
 * the stream piece by piece while others are gathered.  No other run is under
 * way or queued.  0, what the gather ended with (zeros are sent then), or a
 * negative errno of the accelerator, with *refused set.
 */
int64_t obmm_stream_gather_send(struct obmm_stream_gather *gather, uint64_t stream, int *refused);

/* When the last run began and ended. */
void obmm_stream_gather_times(struct obmm_stream_gather *gather, uint64_t *began_ns, uint64_t *ended_ns);

/* How many runs have begun, how many of those that ended gave zeros, and what the last one ended with. */
uint64_t obmm_stream_gather_runs(struct obmm_stream_gather *gather);
uint64_t obmm_stream_gather_failed(struct obmm_stream_gather *gather);
int64_t obmm_stream_gather_status(struct obmm_stream_gather *gather);

/* The ticket of a gather that was given up and is not given back, which becomes the caller's; 0: there is none.  After shut. */
uint64_t obmm_stream_gather_take_late(struct obmm_stream_gather *gather);

/* The host function, for who has no stream. */
void obmm_stream_gather_run(void *gather);

/* The status of the first failed run since the last call, or 0. */
int64_t obmm_stream_gather_take(struct obmm_stream_gather *gather);

/*
 * No gather is made any more: replays that still come give zeros.  Waits until
 * none runs, timeout_ns at most: 0 or -ETIMEDOUT.
 */
int obmm_stream_gather_shut(struct obmm_stream_gather *gather, int64_t timeout_ns);

#endif
