/* SPDX-License-Identifier: Apache-2.0 */
/* One thread's part of a gather: what its ways of copying share. */
#ifndef OBMM_GATHER_JOB_H
#define OBMM_GATHER_JOB_H

#include "gather.h"
#include "kernels.h"

enum { OBMM_BLOCK = 256, OBMM_MAX_AHEAD = 64, OBMM_FETCH_ROWS = 4096 };

struct obmm_gather_job {
	const struct obmm_request *request;
	struct obmm_scratch *scratch;
	struct obmm_shares *shares; /* or NULL: [from, to) is all */
	unsigned int lane; /* where it takes shares */
	const bool *leave;
	uint64_t from, to;			  /* the share at hand */
	uint64_t next_from, next_to;		  /* the one that was taken already, if not empty */
	uint64_t rows_read, rows_zero, rows_hot;  /* of the share at hand */
	uint64_t sum_read, sum_zero, sum_hot;	  /* of those before it */
	uint64_t version;
	bool versioned; /* `version` was read */
	bool copying;	/* a fault is one of rows */
	size_t ahead;
	int (*copy)(struct obmm_gather_job *job);
	void (*kernel)(const struct obmm_batch *batch);
};

#pragma GCC visibility push(hidden)

/* shares.c.  Take a share ahead of time, into next_from and next_to; false when there is none for this thread. */
bool obmm_take_share(struct obmm_gather_job *job);
/* The share at hand is done; go on with the next one.  False when there is none for this thread. */
bool obmm_next_share(struct obmm_gather_job *job);

/* ways.c.  Whether the rows are read in address order. */
bool obmm_is_ordered(const struct obmm_request *request);
/* Copy the share at hand and all that can be had after it. */
int obmm_copy_shares(struct obmm_gather_job *job);

/* fetch.c.  The same for a table that has struct obmm_fetch. */
int obmm_fetch_shares(struct obmm_gather_job *job, struct obmm_fault *fault);

/* gather_hot.c.  Whether the request's rows are looked for in its cache; a larger one would only flush it. */
bool obmm_is_hot(const struct obmm_request *request);
int obmm_gather_hot(struct obmm_gather_job *job);

/* failures.c.  The share at hand has faulted: the next run goes through it row by row. */
void obmm_spoil_rows_only(struct obmm_gather_job *job);
void obmm_failures_reset(const struct obmm_request *request);
/* Turn what failed into the status of a gather that has ended. */
void obmm_failures_judge(struct obmm_failures *failures, struct obmm_outcome *outcome);

#pragma GCC visibility pop

#endif
