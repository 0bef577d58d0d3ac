/* SPDX-License-Identifier: Apache-2.0 */
/* Completion queues: what is in them, and who waits for it (URMA specification 7.3, 11.1 U10). */
#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "standin.h"

/* The record of URMA_SWAP that waits for another queue's. */
static struct {
	pthread_mutex_t lock;
	struct queue *queue;
	struct record record;
} swapped = { .lock = PTHREAD_MUTEX_INITIALIZER };

/* --- records --- */

static int grow(struct jfc *jfc)
{
	const uint32_t room = jfc->room ? jfc->room * 2 : 64;
	struct record *ring = calloc(room, sizeof(*ring));

	if (!ring)
		return -ENOMEM;
	for (uint32_t i = 0; i < jfc->count; i++)
		ring[i] = jfc->ring[(jfc->first + i) % jfc->room];
	free(jfc->ring);
	jfc->ring = ring;
	jfc->room = room;
	jfc->first = 0;
	return 0;
}

static void tell(struct jfc *jfc, uint64_t visible_ns)
{
	const uint64_t one = 1;

	if (!jfc->armed || !jfc->jfce)
		return;
	jfc->armed = 0;
	jfc->event_ns = visible_ns;
	/* a full counter is readable, which is all that it has to be */
	if (write(jfc->jfce->public.fd, &one, sizeof(one)) < 0)
		return;
}

static void put(struct jfc *jfc, const struct record *record)
{
	pthread_mutex_lock(&jfc->lock);
	if (!jfc->deleted && !jfc->broken) {
		/* nothing checks what is in flight against the depth: an overrun is the end of the queue (L8) */
		if (jfc->count == jfc->cfg.depth || (jfc->count == jfc->room && grow(jfc))) {
			jfc->broken = 1;
		} else {
			jfc->ring[(jfc->first + jfc->count++) % jfc->room] = *record;
			tell(jfc, record->visible_ns);
		}
	}
	pthread_mutex_unlock(&jfc->lock);
}

static struct record record_of(struct queue *queue, uint32_t status, const urma_jfs_wr_t *wr, uint32_t length,
			       uint64_t sequence, uint64_t visible_ns)
{
	struct record record = { .queue = queue, .sequence = sequence, .visible_ns = visible_ns };

	record.cr.status = status;
	record.cr.user_ctx = wr ? wr->user_ctx : 0;
	record.cr.completion_len = length;
	record.cr.local_id = queue->id;
	record.cr.flag = status == URMA_CR_WR_FLUSH_ERR_DONE ? 1u << 3 : 1u << 1;
	return record;
}

void urma_complete(struct queue *queue, uint32_t status, const urma_jfs_wr_t *wr, uint32_t length, uint64_t sequence,
		   uint64_t visible_ns)
{
	struct record record = record_of(queue, status, wr, length, sequence, visible_ns);

	pthread_mutex_lock(&swapped.lock);
	if (swapped.queue && swapped.queue != queue) {
		put(queue->jfc, &swapped.record);
		put(swapped.queue->jfc, &record);
		swapped.queue = NULL;
	} else {
		put(queue->jfc, &record);
	}
	pthread_mutex_unlock(&swapped.lock);
}

void urma_complete_swapped(struct queue *queue, const urma_jfs_wr_t *wr, uint32_t length, uint64_t sequence)
{
	pthread_mutex_lock(&swapped.lock);
	swapped.queue = queue;
	swapped.record = record_of(queue, URMA_CR_SUCCESS, wr, length, sequence, 0);
	pthread_mutex_unlock(&swapped.lock);
}

/* --- late data --- */

void urma_add_late(struct queue *queue, const urma_jfs_wr_t *wr, uint64_t due_ns)
{
	struct late *late = calloc(1, sizeof(*late)), **last;
	const urma_sg_t *local = urma_local(wr);

	if (!late)
		return;
	late->queue = queue;
	late->due_ns = due_ns;
	late->wr = *wr;
	late->remote = *urma_remote(wr);
	memcpy(late->local, local->sge, local->num_sge * sizeof(*local->sge));
	late->wr.rw.src = (urma_sg_t){ wr->opcode == URMA_OPC_READ ? &late->remote : late->local, wr->rw.src.num_sge };
	late->wr.rw.dst = (urma_sg_t){ wr->opcode == URMA_OPC_READ ? late->local : &late->remote, wr->rw.dst.num_sge };
	pthread_mutex_lock(&queue->jfc->lock);
	for (last = &queue->jfc->late; *last; last = &(*last)->next)
		;
	*last = late;
	pthread_mutex_unlock(&queue->jfc->lock);
}

static void move_now(struct late *late)
{
	struct urma_run run = { .wrs = { &late->wr }, .count = 1 };

	urma_run(&run); /* its record was told already */
	free(late);
}

/* With the lock of the jfc: those of `queue` (NULL: any) that are due at `now`, or that wait to be overtaken. */
static void run_late(struct jfc *jfc, const struct queue *queue, uint64_t now, int early)
{
	struct late **at = &jfc->late;

	while (*at) {
		struct late *late = *at;

		if ((queue && late->queue != queue) || (late->due_ns ? late->due_ns > now : !early)) {
			at = &late->next;
			continue;
		}
		*at = late->next;
		move_now(late);
	}
}

void urma_run_early(struct queue *queue)
{
	pthread_mutex_lock(&queue->jfc->lock);
	if (queue->jfc->late)
		run_late(queue->jfc, queue, urma_now_ns(), 1);
	pthread_mutex_unlock(&queue->jfc->lock);
}

void urma_forget_queue(struct queue *queue)
{
	struct jfc *jfc = queue->jfc;
	struct late **at;

	pthread_mutex_lock(&swapped.lock);
	if (swapped.queue == queue)
		swapped.queue = NULL;
	pthread_mutex_unlock(&swapped.lock);
	pthread_mutex_lock(&jfc->lock);
	for (at = &jfc->late; *at;) {
		struct late *late = *at;

		if (late->queue == queue) {
			*at = late->next;
			free(late);
		} else {
			at = &late->next;
		}
	}
	for (uint32_t i = 0; i < jfc->count; i++) {
		struct record *record = &jfc->ring[(jfc->first + i) % jfc->room];

		if (record->queue == queue)
			record->queue = NULL;
	}
	pthread_mutex_unlock(&jfc->lock);
}

/* --- polling --- */

static void take(struct record *record, urma_cr_t *cr)
{
	struct queue *queue = record->queue;

	/* the library does not clear records (P2) */
	cr->status = record->cr.status;
	cr->user_ctx = record->cr.user_ctx;
	cr->flag = record->cr.flag;
	cr->completion_len = record->cr.completion_len;
	cr->local_id = record->cr.local_id;
	if (!queue)
		return;
	if (record->sequence > __atomic_load_n(&queue->freed, __ATOMIC_RELAXED))
		__atomic_store_n(&queue->freed, record->sequence, __ATOMIC_RELEASE);
	if (record->cr.status == URMA_CR_WR_FLUSH_ERR_DONE)
		__atomic_store_n(&queue->marker_polled, 1, __ATOMIC_RELEASE);
}

int urma_poll_jfc(urma_jfc_t *public, int count, urma_cr_t *cr)
{
	struct jfc *jfc = (struct jfc *)public;
	uint64_t now;
	int n = 0;

	if (!jfc || !cr || count < 0 || !urma_started())
		return -1;
	urma_count(&urma_here.counts.polls, 1);
	pthread_mutex_lock(&jfc->lock);
	now = jfc->late || (jfc->count && jfc->ring[jfc->first].visible_ns) ? urma_now_ns() : 0;
	if (jfc->late)
		run_late(jfc, NULL, now, 0);
	while (!jfc->broken && n < count && jfc->count && jfc->ring[jfc->first].visible_ns <= now) {
		take(&jfc->ring[jfc->first], &cr[n++]);
		jfc->first = (jfc->first + 1) % jfc->room;
		jfc->count--;
	}
	if (!n && jfc->late)
		run_late(jfc, NULL, now, 1);
	if (jfc->broken)
		n = -1; /* records that were taken already are lost (P3) */
	pthread_mutex_unlock(&jfc->lock);
	return n;
}

/* --- waiting --- */

int urma_rearm_jfc(urma_jfc_t *public, bool solicited)
{
	struct jfc *jfc = (struct jfc *)public;

	(void)solicited;
	if (!jfc || !urma_started())
		return URMA_EINVAL;
	pthread_mutex_lock(&jfc->lock);
	jfc->armed = 1; /* records that are there already do not wake (P5) */
	pthread_mutex_unlock(&jfc->lock);
	return URMA_OK;
}

/* With the lock of the jfce: who is ready now -> jfcs; *next is when the next one will be. */
static uint32_t collect(struct jfce *jfce, uint32_t count, urma_jfc_t **out, uint64_t now, uint64_t *next)
{
	uint32_t n = 0;

	*next = UINT64_MAX;
	for (struct jfc *jfc = jfce->first; jfc; jfc = jfc->next) {
		pthread_mutex_lock(&jfc->lock);
		if (jfc->event_ns != UINT64_MAX) {
			if (n < count && jfc->event_ns <= now) {
				out[n++] = &jfc->public;
				jfc->event_ns = UINT64_MAX;
				jfc->unacked++;
			} else if (jfc->event_ns < *next) {
				*next = jfc->event_ns;
			}
		}
		pthread_mutex_unlock(&jfc->lock);
	}
	return n;
}

int urma_wait_jfc(urma_jfce_t *public, uint32_t count, int timeout_ms, urma_jfc_t **out)
{
	struct jfce *jfce = (struct jfce *)public;
	uint64_t deadline, now = urma_now_ns();

	if (!jfce || !out || !count || !urma_started())
		return -1;
	deadline = timeout_ms < 0 ? UINT64_MAX : now + (uint64_t)timeout_ms * 1000000u;
	for (;;) {
		struct pollfd ready = { .fd = jfce->public.fd, .events = POLLIN };
		uint64_t next, until, counter;
		uint32_t n;

		pthread_mutex_lock(&jfce->lock);
		n = collect(jfce, count, out, now, &next);
		pthread_mutex_unlock(&jfce->lock);
		if (n || now >= deadline)
			return (int)n;
		until = next < deadline ? next : deadline;
		if (poll(&ready, 1, until == UINT64_MAX ? -1 : (int)((until - now + 999999) / 1000000)) < 0 && errno != EINTR)
			return -1;
		if (ready.revents & POLLIN && read(jfce->public.fd, &counter, sizeof(counter)) < 0 && errno != EAGAIN)
			return -1;
		now = urma_now_ns();
	}
}

void urma_ack_jfc(urma_jfc_t **jfcs, uint32_t *events, uint32_t count)
{
	if (!jfcs || !events || !urma_started())
		return;
	for (uint32_t i = 0; i < count; i++) {
		struct jfc *jfc = (struct jfc *)jfcs[i];

		pthread_mutex_lock(&jfc->lock);
		jfc->unacked -= events[i] < jfc->unacked ? events[i] : jfc->unacked;
		pthread_mutex_unlock(&jfc->lock);
	}
}

void urma_jfc_put(struct jfc *jfc)
{
	if (__atomic_sub_fetch(&jfc->holders, 1, __ATOMIC_ACQ_REL))
		return;
	while (jfc->late) {
		struct late *late = jfc->late;

		jfc->late = late->next;
		free(late);
	}
	pthread_mutex_destroy(&jfc->lock);
	free(jfc->ring);
	free(jfc);
}
