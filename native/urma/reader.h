/* SPDX-License-Identifier: Apache-2.0 */
/* Rows of tables in an imported segment, for gathers (../gather/gather.h): read by lists into a landing, then copied. */
#ifndef OBMM_URMA_READER_H
#define OBMM_URMA_READER_H

#include "../abi/lp64.h"

#include "../gather/gather.h"
#include "path.h"

#ifdef __cplusplus
extern "C" {
#endif

/*
 * `way` says how to read; its offsets, lengths and n are filled here.
 * `version`: where in the remote segment the content version lies; ~0: nowhere.
 */
struct obmm_urma_reader {
	struct obmm_fetch fetch; /* for struct obmm_table */
	struct obmm_urma_path *path;
	struct obmm_urma_batch way;
	uint64_t version;
	struct obmm_urma_outcome last; /* of the failed transfer that its error came from */
	int32_t result;
	void *lock;
};

/* The reader's own parts; the caller fills path, way and version.  0 or a negative errno. */
int obmm_urma_reader_init(struct obmm_urma_reader *reader);
void obmm_urma_reader_end(struct obmm_urma_reader *reader);
/* From now on over another queue: waits for a gather under way. */
void obmm_urma_reader_switch(struct obmm_urma_reader *reader, struct obmm_urma_path *path,
			     const struct obmm_urma_batch *way);

#ifdef __cplusplus
}
#endif

#endif
