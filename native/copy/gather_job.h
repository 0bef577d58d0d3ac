/* SPDX-License-Identifier: Apache-2.0 */
/* A range of a gather on one thread: what its ways of copying share. */
#ifndef OBMM_GATHER_JOB_H
#define OBMM_GATHER_JOB_H

#include "gather.h"
#include "kernels.h"

enum { OBMM_BLOCK = 256, OBMM_MAX_AHEAD = 64 };

struct obmm_gather_job {
	const struct obmm_request *request;
	uint64_t from, to;
	struct obmm_scratch *scratch;
	uint64_t rows_read, rows_zero, rows_hot;
	uint64_t version;
	size_t ahead;
	int (*copy)(struct obmm_gather_job *job);
	void (*kernel)(const struct obmm_batch *batch);
};

#pragma GCC visibility push(hidden)

/* gather_hot.c.  Whether the request's rows are looked for in its cache; a larger one would only flush it. */
bool obmm_is_hot(const struct obmm_request *request);
int obmm_gather_hot(struct obmm_gather_job *job);

/* failures.c.  The range has faulted: the next run goes row by row. */
void obmm_spoil_rows_only(struct obmm_gather_job *job);
void obmm_failures_reset(const struct obmm_request *request);
/* Turn what failed into the status of a gather that has ended. */
void obmm_failures_judge(struct obmm_failures *failures, struct obmm_outcome *outcome);

#pragma GCC visibility pop

#endif
