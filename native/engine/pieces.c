/* SPDX-License-Identifier: Apache-2.0 */
/* Several gathers on the caller's thread, with an eye on the clock. */
#include <errno.h>

#include "engine_internal.h"

static uint64_t piece_rows(const struct obmm_request *request)
{
	/* a column is an id's place in the request, modulo their number */
	return request->columns ? ENGINE_PIECE_ROWS - ENGINE_PIECE_ROWS % request->columns : ENGINE_PIECE_ROWS;
}

static void add(struct obmm_outcome *whole, const struct obmm_outcome *part, uint64_t at)
{
	whole->status = part->status;
	whole->fault = part->fault;
	whole->bad_index = part->bad_index < 0 ? -1 : part->bad_index + (int64_t)at;
	whole->bad_id = part->bad_id;
	whole->version = part->version;
	whole->threads = part->threads;
	whole->rows_read += part->rows_read;
	whole->rows_zero += part->rows_zero;
	whole->rows_hot += part->rows_hot;
	whole->nanoseconds += part->nanoseconds;
}

int obmm_engine_gather_all(struct obmm_engine *engine, const struct obmm_request *requests, unsigned int n,
			   uint64_t deadline_ns, struct obmm_outcome *outcomes, unsigned int *bad)
{
	uint64_t version = 0;
	bool begun = false;

	for (unsigned int i = 0; i < n; i++)
		outcomes[i] = (struct obmm_outcome){.bad_index = -1};
	for (unsigned int i = 0; i < n; i++) {
		uint64_t rows = piece_rows(&requests[i]);

		for (uint64_t at = 0; at < requests[i].count; at += rows) {
			uint64_t left = requests[i].count - at;
			struct obmm_request piece = obmm_request_part(&requests[i], at, left < rows ? left : rows);
			struct obmm_outcome outcome = {.bad_index = -1};

			*bad = i;
			if (begun && obmm_now_ns() >= deadline_ns)
				return outcomes[i].status = -ETIMEDOUT;
			(void)obmm_engine_gather(engine, &piece, 0, &outcome);
			if (!outcome.status && begun && outcome.version != version)
				outcome.status = -ESTALE; /* each piece is of one publication, and they are of two */
			add(&outcomes[i], &outcome, at);
			if (outcome.status)
				return outcome.status;
			version = outcome.version;
			begun = true;
		}
	}
	return 0;
}
