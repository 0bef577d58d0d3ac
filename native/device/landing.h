/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Rows on their way to a device: pinned host memory, the device memory that a
 * layer's rows are read from, and an event.  The thread that ended a gather
 * queues the copy; a reader of the rows makes its stream wait.  No interpreter
 * runs in between.
 *
 * All copies to one place go through one stream, in the order in which they
 * are queued, and a gather that was overtaken queues none: of all landings with
 * one zone, only the one armed last may copy.
 */
#ifndef OBMM_LANDING_H
#define OBMM_LANDING_H

#include "../gather/gather.h"
#include "accelerator.h"

/* One place in device memory, and whose turn it is to write there. */
struct obmm_zone;
int obmm_zone_create(struct obmm_lane *lane, uint64_t device, struct obmm_zone **zone);
void obmm_zone_free(struct obmm_zone *zone);

/* One staging buffer of that place. */
struct obmm_landing;
int obmm_landing_create(struct obmm_zone *zone, const void *host, struct obmm_landing **landing);
/* Waits until its copy has left the buffer.  Zones and lanes live as long as their landings. */
void obmm_landing_free(struct obmm_landing *landing);

/*
 * bytes > 0: the next gather into this buffer belongs to the place: when it ends
 * well, so many bytes are copied, unless another landing was armed meanwhile.
 * 0: it does not (yet).
 */
void obmm_landing_arm(struct obmm_landing *landing, uint64_t bytes);

/* A gather's completion (gather.h). */
void obmm_landing_arrived(void *landing, const struct obmm_outcome *outcome);

/* Copy now, whatever was armed before.  0 or a negative errno. */
int obmm_landing_copy(struct obmm_landing *landing, uint64_t bytes);

/* Whether its copy is in the stream. */
int obmm_landing_queued(struct obmm_landing *landing);

/* Once the copy is queued: make `stream` wait for it.  0 or a negative errno; -EAGAIN: it is not. */
int obmm_landing_join(struct obmm_landing *landing, uint64_t stream);

/* 0: the copy has left the staging buffer; -EBUSY: not yet. */
int obmm_landing_done(struct obmm_landing *landing);

/* What is in `stream` now reads device memory: later copies through `copies` wait for that, by way of `event`. */
int obmm_read_by(struct obmm_accelerator *accelerator, uint64_t event, uint64_t stream, uint64_t copies);

#endif
