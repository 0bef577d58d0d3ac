/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Many blocks between the slots of a store and the caller's memory, in one
 * call: by the caller's thread and the gather engine's, each a block at a time.
 *
 * A block is one or several pieces of memory, one behind the other.  Each block
 * has a status of its own; none of them is ever an error of the whole batch.
 */
#ifndef OBMM_BATCH_H
#define OBMM_BATCH_H

#include "../abi/lp64.h"

#include <stdint.h>

#include "../engine/engine.h"
#include "../gather/gather.h"
#include "area.h"

#ifdef __cplusplus
extern "C" {
#endif

enum obmm_block_status {
	OBMM_BLOCK_PENDING = -1, /* not started: abandoned, closed, too late */
	OBMM_BLOCK_DONE = 0,
	OBMM_BLOCK_UNKNOWN = 1, /* of no slot */
	OBMM_BLOCK_LENGTH = 2,	/* the pieces do not add up to the block, or to more than a slot takes */
	OBMM_BLOCK_REUSED = 3,	/* the header says something else */
	OBMM_BLOCK_TORN = 4,	/* the header changed under the copy */
	OBMM_BLOCK_CORRUPT = 5, /* the sum does not fit */
	OBMM_BLOCK_FAULT = 6,	/* the memory did not answer */
	OBMM_BLOCK_RIGHT = 7,	/* the driver gave no right to the slot */
	OBMM_BLOCK_CLOSED = 8,	/* the mapping was closed */
	OBMM_BLOCK_LATE = 9,	/* the deadline passed before its turn */
	OBMM_BLOCK_BUFFER = 10, /* the caller's memory did not answer */
};

/* One batch; the caller's until it has ended.  The first part is filled by who makes it. */
struct obmm_block_batch {
	const struct obmm_block_area *area;
	const struct obmm_block_place *places; /* count */
	const uint64_t *addresses;	       /* count * pieces */
	const uint32_t *sizes;		       /* count * pieces */
	int8_t *status;			       /* count */
	uint32_t count;
	uint32_t pieces;
	int32_t to_write; /* caller's memory -> slots */
	int32_t bell;	  /* an eventfd to ring at the end, or -1 */
	uint64_t deadline_ns; /* on CLOCK_MONOTONIC; 0: none */
	/* what happened, complete at the end */
	uint64_t bytes;
	uint32_t faults;
	struct obmm_fault fault; /* of the first */
	/* for the engine; obmm_batch_prepare() fills them */
	struct obmm_work work;
	struct obmm_table table;
	struct obmm_request request;
	struct obmm_outcome outcome;
	unsigned int threads;
	int32_t past_caches;
};

/*
 * Before anything else: the statuses are set to PENDING, what the engine needs
 * is filled.  0, -EINVAL (nothing or too much to do), -EFAULT when two pieces
 * that a batch would fill overlap: one block's bytes would be another's.
 */
int obmm_batch_prepare(struct obmm_block_batch *batch);

/* Run on this thread, with helpers where that pays.  0 or the engine's refusal: nothing was touched. */
int obmm_batch_run(struct obmm_engine *engine, struct obmm_block_batch *batch);

/* Run in the background: a ticket of the engine (engine.h).  0 or the engine's refusal. */
int obmm_batch_submit(struct obmm_engine *engine, struct obmm_block_batch *batch, uint64_t *ticket);

#ifdef __cplusplus
}
#endif

#endif
