/* SPDX-License-Identifier: Apache-2.0 */
/* Posting lists, and what a queue is after an error (URMA specification 7.2, 7.5, 11.1 U8 to U11). */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "standin.h"

#define STRIKES(action) (1u << (action))

static const uint32_t on_request = STRIKES(URMA_STATUS) | STRIKES(URMA_DROP) | STRIKES(URMA_DELAY) | STRIKES(URMA_LATE) |
				   STRIKES(URMA_EARLY) | STRIKES(URMA_POLL) | STRIKES(URMA_DUPLICATE) |
				   STRIKES(URMA_SWAP) | STRIKES(URMA_KILL);

/* --- a queue that died --- */

static void die(struct queue *queue, int mute)
{
	queue->state = URMA_ERROR;
	queue->mute |= mute;
}

static void mark(struct queue *queue)
{
	if (queue->marked || queue->mute)
		return;
	queue->marked = 1;
	urma_complete(queue, URMA_CR_WR_FLUSH_ERR_DONE, NULL, 0, queue->posted, 0);
}

static void keep_unhandled(struct queue *queue, uint64_t user_ctx)
{
	if (!queue->unhandled)
		queue->unhandled = calloc(queue->depth, sizeof(*queue->unhandled));
	if (queue->unhandled && queue->unhandled_count < queue->depth)
		queue->unhandled[queue->unhandled_count++] = user_ctx;
}

/* A request that reached a queue in error. */
static void sink(struct queue *queue, urma_jfs_wr_t *wr, uint64_t sequence)
{
	if (queue->mute)
		return;
	if (queue->marked)
		keep_unhandled(queue, wr->user_ctx);
	else if (wr->flag & URMA_WR_COMPLETE)
		urma_complete(queue, URMA_CR_WR_FLUSH_ERR, wr, 0, sequence, 0);
}

void urma_modify(struct queue *queue, uint32_t state)
{
	pthread_mutex_lock(&queue->lock);
	if (state == URMA_READY) {
		queue->state = URMA_READY;
		queue->mute = queue->marked = queue->marker_polled = 0;
		queue->unhandled_count = 0;
		queue->freed = queue->posted;
	} else if (state == URMA_ERROR) {
		die(queue, 0);
		mark(queue);
	}
	pthread_mutex_unlock(&queue->lock);
}

int urma_flush(struct queue *queue, int count, urma_cr_t *cr)
{
	int n = 0;

	if (count <= 0 || (uint32_t)count > queue->depth)
		return -EINVAL;
	pthread_mutex_lock(&queue->lock);
	while (__atomic_load_n(&queue->marker_polled, __ATOMIC_ACQUIRE) && n < count && (uint32_t)n < queue->unhandled_count) {
		cr[n].status = URMA_CR_WR_UNHANDLED;
		cr[n].opcode = 0xFF;
		cr[n].user_ctx = queue->unhandled[n];
		cr[n].local_id = queue->id;
		n++;
	}
	if (n) {
		queue->unhandled_count -= (uint32_t)n;
		memmove(queue->unhandled, queue->unhandled + n, queue->unhandled_count * sizeof(*queue->unhandled));
		__atomic_add_fetch(&queue->freed, (uint64_t)n, __ATOMIC_SEQ_CST);
	}
	pthread_mutex_unlock(&queue->lock);
	return n;
}

/* --- one request --- */

/* What a post refuses at once: 0, or 22 (7.6, U11). */
static int malformed(const struct queue *queue, const urma_jfs_wr_t *wr)
{
	const urma_sg_t *local, *remote;
	const uint32_t most = wr->opcode == URMA_OPC_READ && queue->max_sge > URMA_MAX_READ_SGE ? URMA_MAX_READ_SGE :
												  queue->max_sge;

	if (wr->opcode != URMA_OPC_READ && wr->opcode != URMA_OPC_WRITE)
		return URMA_EINVAL;
	local = urma_local(wr);
	remote = wr->opcode == URMA_OPC_READ ? &wr->rw.src : &wr->rw.dst;
	if (!local->sge || !local->num_sge || local->num_sge > most || !remote->sge || remote->num_sge != 1 ||
	    !remote->sge->tseg || !wr->tjetty || !((struct segment *)remote->sge->tseg)->imported)
		return URMA_EINVAL;
	for (uint32_t i = 0; i < local->num_sge; i++)
		if (!local->sge[i].tseg)
			return URMA_EINVAL;
	return 0;
}

static void succeed(struct queue *queue, const urma_jfs_wr_t *wr, uint64_t sequence, uint64_t visible_ns)
{
	if (wr->flag & URMA_WR_COMP_ORDER && visible_ns < queue->late_until)
		visible_ns = queue->late_until;
	if (wr->flag & URMA_WR_COMPLETE)
		urma_complete(queue, URMA_CR_SUCCESS, wr, (uint32_t)urma_length(wr), sequence, visible_ns);
}

static void refuse(struct queue *queue, const urma_jfs_wr_t *wr, uint64_t sequence, uint32_t status)
{
	const int answered = status != URMA_CR_REM_ACCESS_ABORT_ERR || !urma_here.silent;

	die(queue, !answered);
	if (answered)
		urma_complete(queue, status, wr, 0, sequence,
			      status == URMA_CR_ACK_TIMEOUT_ERR ? urma_now_ns() + urma_here.timeout_ns : 0);
}

/* --- a list --- */

/* Carries the collected requests out, and lets their records be seen. */
static void carry_out(struct queue *queue, struct urma_run *run)
{
	uint32_t from = 0;

	while (from < run->count && queue->state != URMA_ERROR) {
		memmove(run->wrs, run->wrs + from, (run->count - from) * sizeof(run->wrs[0]));
		memmove(run->sequences, run->sequences + from, (run->count - from) * sizeof(run->sequences[0]));
		run->count -= from;
		urma_run(run);
		for (uint32_t i = 0; i < run->done; i++)
			succeed(queue, run->wrs[i], run->sequences[i], 0);
		from = run->done;
		if (run->status) {
			refuse(queue, run->wrs[from], run->sequences[from], run->status);
			from++;
		}
	}
	for (; from < run->count; from++)
		sink(queue, run->wrs[from], run->sequences[from]);
	run->count = run->pieces = 0;
}

static int joins(const struct urma_run *run, const urma_jfs_wr_t *wr)
{
	return !run->count ||
	       (run->wrs[0]->opcode == wr->opcode && run->wrs[0]->tjetty == wr->tjetty &&
		urma_remote(run->wrs[0])->tseg == urma_remote(wr)->tseg && run->count < URMA_MAX_PIECES &&
		run->pieces + urma_local(wr)->num_sge <= URMA_MAX_PIECES);
}

static void carry_out_one(struct queue *queue, urma_jfs_wr_t *wr, uint64_t sequence, uint64_t visible_ns)
{
	struct urma_run run = { .wrs = { wr }, .count = 1 };

	urma_run(&run);
	if (run.done)
		succeed(queue, wr, sequence, visible_ns);
	else
		refuse(queue, wr, sequence, run.status);
}

static void strike(struct queue *queue, const struct urma_rule *rule, urma_jfs_wr_t *wr, uint64_t sequence)
{
	const uint64_t later = urma_now_ns() + (uint64_t)rule->value * 1000u;

	if ((rule->action == URMA_DELAY || rule->action == URMA_LATE) && later > queue->late_until)
		queue->late_until = later;
	switch (rule->action) {
	case URMA_STATUS:
		refuse(queue, wr, sequence, rule->value);
		break;
	case URMA_DROP:
		die(queue, 1);
		break;
	case URMA_DELAY:
		carry_out_one(queue, wr, sequence, later);
		break;
	case URMA_LATE:
		urma_add_late(queue, wr, later);
		succeed(queue, wr, sequence, later);
		break;
	case URMA_EARLY:
		urma_add_late(queue, wr, 0);
		succeed(queue, wr, sequence, 0);
		break;
	case URMA_POLL:
		carry_out_one(queue, wr, sequence, 0);
		queue->jfc->broken = 1;
		break;
	case URMA_DUPLICATE:
		carry_out_one(queue, wr, sequence, 0);
		succeed(queue, wr, sequence, 0);
		break;
	case URMA_SWAP: {
		struct urma_run run = { .wrs = { wr }, .count = 1 };

		urma_run(&run);
		if (run.done && wr->flag & URMA_WR_COMPLETE)
			urma_complete_swapped(queue, wr, (uint32_t)urma_length(wr), sequence);
		else if (!run.done)
			refuse(queue, wr, sequence, run.status);
		break;
	}
	case URMA_KILL:
		urma_kill_owner(wr);
		carry_out_one(queue, wr, sequence, 0);
		break;
	default:
		break;
	}
}

static int take(struct queue *queue, struct urma_run *run, urma_jfs_wr_t *wr)
{
	const struct urma_rule *rule;
	uint32_t status;
	uint64_t sequence;
	int rc = malformed(queue, wr);

	if (rc)
		return rc;
	if (queue->posted - __atomic_load_n(&queue->freed, __ATOMIC_ACQUIRE) >= queue->depth)
		return URMA_ENOMEM;
	sequence = ++queue->posted;
	urma_count(&urma_here.counts.requests, 1);
	status = urma_check_local(wr);
	rule = urma_fault(on_request, queue->id);
	if (status || rule || !joins(run, wr))
		carry_out(queue, run);
	if (queue->state == URMA_ERROR) {
		sink(queue, wr, sequence);
	} else if (status) {
		refuse(queue, wr, sequence, status);
	} else if (rule) {
		strike(queue, rule, wr, sequence);
	} else {
		run->wrs[run->count] = wr;
		run->sequences[run->count++] = sequence;
		run->pieces += urma_local(wr)->num_sge;
	}
	return 0;
}

int urma_post(struct queue *queue, urma_jfs_wr_t *wr, urma_jfs_wr_t **bad)
{
	struct urma_run run = { .count = 0 };
	const struct urma_rule *rule = urma_fault(STRIKES(URMA_LIST), queue->id);
	uint32_t most = rule ? rule->value : UINT32_MAX, taken = 0;
	int rc = 0;

	urma_count(&urma_here.counts.posts, 1);
	pthread_mutex_lock(&queue->lock);
	urma_run_early(queue);
	for (; wr && !rc; wr = rc ? wr : wr->next) {
		rc = taken++ < most ? take(queue, &run, wr) : URMA_ENOMEM;
		if (rc)
			*bad = wr;
	}
	carry_out(queue, &run);
	if (queue->state == URMA_ERROR)
		mark(queue);
	pthread_mutex_unlock(&queue->lock);
	return rc;
}
