/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the fake device has beside the table of accelerator.h, for tests: graphs,
 * calls that are refused, and how much of what was made is left.
 */
#ifndef OBMM_FAKE_DEVICE_H
#define OBMM_FAKE_DEVICE_H

#include "accelerator.h"

/* What was made and not ended; the default stream does not count. */
struct obmm_fake_counts {
	uint64_t memories, streams, events;
};
void obmm_fake_left(struct obmm_accelerator *accelerator, struct obmm_fake_counts *counts);

/* After `others` more that succeed, the next that is made (memory, stream, event) is refused with -ENOMEM; once. */
void obmm_fake_refuse(struct obmm_accelerator *accelerator, unsigned int others);

/*
 * A capture as CUDA has it: what is queued in the stream, and in streams that
 * are made to wait for an event of it, becomes part of a graph and does not run.
 * Waiting for an event from before the capture, synchronizing, and asking for
 * its events are refused, and spoil it.  end(): -EINVAL when it was spoiled.
 */
struct obmm_fake_graph;
int obmm_fake_capture(struct obmm_accelerator *accelerator, uint64_t stream);
int obmm_fake_end_capture(struct obmm_accelerator *accelerator, uint64_t stream, struct obmm_fake_graph **graph);
int obmm_fake_replay(struct obmm_accelerator *accelerator, struct obmm_fake_graph *graph, uint64_t stream);
void obmm_fake_forget(struct obmm_fake_graph *graph);

#endif
