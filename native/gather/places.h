/* SPDX-License-Identifier: Apache-2.0 */
/* From the ids of a request to rows, from rows to addresses, and to the version of what lies there. */
#ifndef OBMM_PLACES_H
#define OBMM_PLACES_H

#include <stdbool.h>

#include "gather.h"

static inline int64_t obmm_id_at(const struct obmm_request *request, uint64_t i)
{
	return request->id_bytes == 4 ? ((const int32_t *)request->ids)[i] : ((const int64_t *)request->ids)[i];
}

static inline bool obmm_ids_are_rows(const struct obmm_request *request)
{
	return !request->head_offsets && !request->column_mask && !request->low && request->high >= request->table->rows;
}

/* Is the id in its table (or its column's head)? */
static inline bool obmm_id_is_known(const struct obmm_request *request, int64_t id, uint64_t column)
{
	uint64_t limit = request->table->rows;

	if (request->head_offsets)
		limit = (uint64_t)(request->head_offsets[column + 1] - request->head_offsets[column]);
	return (uint64_t)id < limit;
}

/* The row to read for place i, or -1 for a row of zero bytes. */
static inline int64_t obmm_row_at(const struct obmm_request *request, uint64_t i)
{
	int64_t id = obmm_id_at(request, i);
	uint64_t column = request->columns ? i % request->columns : 0;

	if (!obmm_id_is_known(request, id, column) || (request->column_mask && !request->column_mask[column]))
		return -1;
	if (request->head_offsets)
		id += request->head_offsets[column];
	return (uint64_t)id >= request->low && (uint64_t)id < request->high ? id : -1;
}

static inline const uint8_t *obmm_row_address(const struct obmm_table *table, uint64_t row)
{
	if (!table->rows_per_segment)
		return table->base + row * table->row_stride;
	return table->base + row / table->rows_per_segment * table->segment_bytes +
	       row % table->rows_per_segment * table->row_stride;
}

/* The content version now; 0 where there is none. */
static inline uint64_t obmm_read_version(const struct obmm_table *table)
{
	return table->version ? __atomic_load_n(table->version, __ATOMIC_ACQUIRE) : 0;
}

#endif
