/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Lists of one-sided reads and writes over one send queue (URMA specification
 * 7, 10): all bounds are checked before the first post, one request of each
 * list is signalled, every wait has a deadline.  After an error or a deadline
 * the queue is dead: what it still does to local memory is unspecified until
 * the library has deleted it.
 *
 * Threads may share a path; their batches go one after the other.
 */
#ifndef OBMM_URMA_PATH_H
#define OBMM_URMA_PATH_H

#include "../abi/lp64.h"

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

struct obmm_urma_path;

/*
 * post and poll: addresses of urma_post_jetty_send_wr (or _jfs_wr) and
 * urma_poll_jfc.  list_max <= depth, of the queue.  0 or a negative errno.
 */
int obmm_urma_path_create(uint64_t post, uint64_t poll, void *queue, void *jfc, uint32_t depth, uint32_t list_max,
			  struct obmm_urma_path **path);
void obmm_urma_path_free(struct obmm_urma_path *path);
int obmm_urma_path_is_dead(const struct obmm_urma_path *path);
/* Nothing more is posted: 0, or -EBUSY while a batch is under way and does not end within timeout_ns. */
int obmm_urma_path_kill(struct obmm_urma_path *path, int64_t timeout_ns);

struct obmm_urma_batch {
	void *target;	      /* imported jetty or jfr */
	void *remote_segment; /* imported */
	uint64_t remote;      /* its address there */
	uint64_t remote_bytes;
	void *local_segment; /* registered */
	uint64_t local;	     /* where the pieces lie, one behind the other */
	uint64_t local_bytes;
	const uint64_t *offsets; /* n, into the remote segment */
	const uint32_t *lengths; /* n, or NULL: all have `length` */
	uint32_t length;
	uint32_t opcode;
	uint64_t n;
	int64_t timeout_ns; /* of the whole batch */
};

struct obmm_urma_outcome {
	uint64_t index; /* of the piece that was refused or failed; n: not known */
	uint32_t status; /* of a completion */
	int32_t code;	 /* of a post */
	uint64_t lists, foreign, nanoseconds;
};

/*
 * 0, or
 *   -ERANGE     piece `index` is not inside the remote segment; nothing was posted
 *   -ENOSPC     the pieces need more than local_bytes; nothing was posted
 *   -ESHUTDOWN  the queue is dead already; nothing was posted
 *   -EIO        piece `index` failed with `status`
 *   -EPROTO     the post was refused with `code` at piece `index`
 *   -EPIPE      the completion queue is dead
 *   -ETIMEDOUT  no completion in time
 */
int obmm_urma_transfer(struct obmm_urma_path *path, const struct obmm_urma_batch *batch,
		       struct obmm_urma_outcome *outcome);

#ifdef __cplusplus
}
#endif

#endif
