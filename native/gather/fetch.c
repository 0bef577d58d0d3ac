/* SPDX-License-Identifier: Apache-2.0 */
/* The way through shares of a table whose rows no load reaches.  No memory of a peer is touched here: nothing to guard. */
#include <errno.h>
#include <string.h>

#include "gather_job.h"
#include "places.h"

static int fetch_rows(struct obmm_gather_job *job, struct obmm_fault *fault)
{
	const struct obmm_request *request = job->request;
	const struct obmm_table *table = request->table;
	uint64_t offsets[OBMM_FETCH_ROWS];
	uint8_t *out[OBMM_FETCH_ROWS];
	int result = 0;

	for (uint64_t at = job->from; at < job->to && !result;) {
		size_t n = 0;

		for (; at < job->to && n < OBMM_FETCH_ROWS; at++) {
			uint8_t *place = request->out + at * request->out_stride;
			const int64_t row = obmm_row_at(request, at);

			if (row < 0) {
				memset(place, 0, table->row_bytes);
				job->rows_zero++;
			} else {
				offsets[n] = (uint64_t)(uintptr_t)obmm_row_address(table, (uint64_t)row);
				out[n++] = place;
			}
		}
		result = n ? table->fetch->rows(table->fetch->context, offsets, out, n, table->row_bytes, fault) : 0;
	}
	return result;
}

int obmm_fetch_shares(struct obmm_gather_job *job, struct obmm_fault *fault)
{
	const struct obmm_fetch *how = job->request->table->fetch;
	uint64_t after = 0;
	int result = how->version(how->context, &job->version, fault);

	if (!result && job->version & 1)
		return -ESTALE;
	do
		result = result ? result : fetch_rows(job, fault);
	while (!result && obmm_next_share(job));
	if (!result)
		result = how->version(how->context, &after, fault);
	return result ? result : after == job->version ? 0 : -ESTALE;
}
