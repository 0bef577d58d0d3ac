/* SPDX-License-Identifier: Apache-2.0 */
#include "path.h"

#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "../core/clock.h"
#include "wire.h"

enum { SPINS = 2000, POLLS_PER_CLOCK = 256 };

struct obmm_urma_path {
	int (*post)(void *queue, struct urma_request *list, struct urma_request **bad);
	int (*poll)(void *jfc, int count, struct urma_record *record);
	void *queue, *jfc;
	uint32_t list_max;
	int dead;
	uint64_t next_ctx; /* every request has its own: completions of an earlier batch may still arrive (P4) */
	pthread_mutex_t lock;
	struct urma_request *requests;
	struct urma_piece *remote, *local;
};

int obmm_urma_path_create(uint64_t post, uint64_t poll, void *queue, void *jfc, uint32_t depth, uint32_t list_max,
			  struct obmm_urma_path **out)
{
	struct obmm_urma_path *path;

	if (!post || !poll || !list_max || list_max > depth)
		return -EINVAL;
	path = calloc(1, sizeof(*path));
	if (!path)
		return -ENOMEM;
	path->requests = calloc(list_max, sizeof(*path->requests));
	path->remote = calloc(list_max, sizeof(*path->remote));
	path->local = calloc(list_max, sizeof(*path->local));
	if (!path->requests || !path->remote || !path->local) {
		obmm_urma_path_free(path);
		return -ENOMEM;
	}
	memcpy(&path->post, &post, sizeof(path->post));
	memcpy(&path->poll, &poll, sizeof(path->poll));
	path->queue = queue;
	path->jfc = jfc;
	path->list_max = list_max;
	path->next_ctx = 1;
	pthread_mutex_init(&path->lock, NULL);
	return *out = path, 0;
}

void obmm_urma_path_free(struct obmm_urma_path *path)
{
	if (!path)
		return;
	free(path->requests);
	free(path->remote);
	free(path->local);
	free(path);
}

int obmm_urma_path_is_dead(const struct obmm_urma_path *path)
{
	return __atomic_load_n(&path->dead, __ATOMIC_ACQUIRE);
}

static int lock_within(pthread_mutex_t *lock, uint64_t timeout_ns)
{
#ifdef __GLIBC__
	const clockid_t clock = CLOCK_MONOTONIC;
#else /* musl waits by the wall clock alone */
	const clockid_t clock = CLOCK_REALTIME;
#endif
	struct timespec deadline;
	uint64_t until;

	clock_gettime(clock, &deadline);
	until = (uint64_t)deadline.tv_sec * 1000000000u + (uint64_t)deadline.tv_nsec + timeout_ns;
	deadline = (struct timespec){ (time_t)(until / 1000000000u), (long)(until % 1000000000u) };
#ifdef __GLIBC__
	return pthread_mutex_clocklock(lock, clock, &deadline);
#else
	return pthread_mutex_timedlock(lock, &deadline);
#endif
}

int obmm_urma_path_kill(struct obmm_urma_path *path, int64_t timeout_ns)
{
	__atomic_store_n(&path->dead, 1, __ATOMIC_RELEASE);
	if (lock_within(&path->lock, (uint64_t)timeout_ns))
		return -EBUSY;
	pthread_mutex_unlock(&path->lock);
	return 0;
}

static uint32_t length_of(const struct obmm_urma_batch *batch, uint64_t i)
{
	return batch->lengths ? __atomic_load_n(&batch->lengths[i], __ATOMIC_RELAXED) : batch->length;
}

/* The hardware's bound is not a fence between segments (7.6): nothing outside is ever asked for. */
static int check(const struct obmm_urma_batch *batch, struct obmm_urma_outcome *outcome)
{
	uint64_t room = batch->local_bytes;

	for (uint64_t i = 0; i < batch->n; i++) {
		const uint32_t length = length_of(batch, i);

		outcome->index = i;
		if (batch->offsets[i] > batch->remote_bytes || length > batch->remote_bytes - batch->offsets[i])
			return -ERANGE;
		if (length > room)
			return -ENOSPC;
		room -= length;
	}
	outcome->index = batch->n;
	return 0;
}

/*
 * Pieces [from, from + n) as a list; the last one is signalled, behind all others (7.4).  Moves *local to where the next
 * list's local pieces begin.  The numbers are the caller's memory, which another thread may have written since they were
 * checked: each is read once more, and that value is what is checked and posted.
 */
static int lay_out(struct obmm_urma_path *path, const struct obmm_urma_batch *batch, uint64_t from, uint32_t n,
		   uint64_t *local, uint64_t *index)
{
	for (uint32_t i = 0; i < n; i++) {
		struct urma_request *request = &path->requests[i];
		const uint64_t offset = __atomic_load_n(&batch->offsets[from + i], __ATOMIC_RELAXED);
		const uint32_t length = length_of(batch, from + i);

		*index = from + i;
		if (offset > batch->remote_bytes || length > batch->remote_bytes - offset)
			return -ERANGE;
		if (length > batch->local + batch->local_bytes - *local)
			return -ENOSPC;
		path->remote[i] = (struct urma_piece){ batch->remote + offset, length, batch->remote_segment, NULL };
		path->local[i] = (struct urma_piece){ *local, length, batch->local_segment, NULL };
		*local += length;
		request->opcode = batch->opcode;
		request->flag = i + 1 < n ? 0 : OBMM_URMA_COMPLETE | OBMM_URMA_COMP_ORDER;
		request->target = batch->target;
		request->user_ctx = path->next_ctx + i;
		request->src = (struct urma_pieces){ batch->opcode == OBMM_URMA_READ ? &path->remote[i] : &path->local[i], 1 };
		request->dst = (struct urma_pieces){ batch->opcode == OBMM_URMA_READ ? &path->local[i] : &path->remote[i], 1 };
		request->next = i + 1 < n ? request + 1 : NULL;
	}
	*index = batch->n;
	return 0;
}

/* The end of a list of n requests, the first of which is piece `from`. */
static int await(struct obmm_urma_path *path, uint64_t from, uint32_t n, uint64_t deadline,
		 struct obmm_urma_outcome *outcome)
{
	const uint64_t first = path->next_ctx;

	for (uint64_t tries = 0;; tries++) {
		struct urma_record record;
		const int got = path->poll(path->jfc, 1, &record);

		if (got < 0)
			return -EPIPE;
		if (got) {
			const uint64_t at = record.user_ctx - first;
			const int marker = record.status == OBMM_URMA_SUSPEND_DONE || record.status == OBMM_URMA_FLUSH_DONE;

			if (!marker && !record.status && at == n - 1)
				return 0;
			if (marker || (record.status && at < n)) {
				outcome->status = record.status;
				if (!marker)
					outcome->index = from + at;
				return -EIO;
			}
			outcome->foreign++;
		}
		if (tries % POLLS_PER_CLOCK == POLLS_PER_CLOCK - 1 && obmm_now_ns() >= deadline)
			return -ETIMEDOUT;
		if (!got && tries > SPINS)
			sched_yield();
	}
}

static int run(struct obmm_urma_path *path, const struct obmm_urma_batch *batch, uint64_t deadline,
	       struct obmm_urma_outcome *outcome)
{
	uint64_t local = batch->local;
	int rc = 0;

	for (uint64_t from = 0; from < batch->n && !rc;) {
		struct urma_request *bad = NULL;
		const uint32_t n = batch->n - from < path->list_max ? (uint32_t)(batch->n - from) : path->list_max;

		if (obmm_urma_path_is_dead(path)) {
			outcome->index = from;
			return -ESHUTDOWN;
		}
		rc = lay_out(path, batch, from, n, &local, &outcome->index);
		if (rc)
			return rc;
		outcome->code = path->post(path->queue, path->requests, &bad);
		if (outcome->code) {
			/* what was taken before is unsignalled and never reported (L4) */
			outcome->index = bad ? from + (uint64_t)(bad - path->requests) : from;
			rc = -EPROTO;
		} else {
			outcome->lists++;
			rc = await(path, from, n, deadline, outcome);
		}
		path->next_ctx += n;
		from += n;
	}
	return rc;
}

int obmm_urma_transfer(struct obmm_urma_path *path, const struct obmm_urma_batch *batch,
		       struct obmm_urma_outcome *outcome)
{
	uint64_t started;
	int rc;

	memset(outcome, 0, sizeof(*outcome));
	rc = check(batch, outcome);
	if (rc || !batch->n)
		return rc;
	started = obmm_now_ns();
	pthread_mutex_lock(&path->lock);
	rc = run(path, batch, started + (uint64_t)batch->timeout_ns, outcome);
	if (rc && rc != -ERANGE && rc != -ENOSPC) /* those two: all that was posted has come back */
		__atomic_store_n(&path->dead, 1, __ATOMIC_RELEASE);
	pthread_mutex_unlock(&path->lock);
	outcome->nanoseconds = obmm_now_ns() - started;
	return rc;
}
