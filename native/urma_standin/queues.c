/* SPDX-License-Identifier: Apache-2.0 */
/* Event channels, completion queues, send and receive queues (URMA specification 6.2). */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "standin.h"

enum { DELETE_PATIENCE_NS = 1000000000, LOOK_AGAIN_US = 1000 };

/* --- event channels --- */

urma_jfce_t *urma_create_jfce(urma_context_t *context)
{
	struct jfce *jfce;

	if (!context || !urma_started())
		return urma_refuse(EINVAL);
	jfce = calloc(1, sizeof(*jfce));
	if (!jfce)
		return urma_refuse(ENOMEM);
	jfce->public.fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
	if (jfce->public.fd < 0) {
		free(jfce);
		return NULL;
	}
	jfce->public.urma_ctx = context;
	pthread_mutex_init(&jfce->lock, NULL);
	urma_hold((struct context *)context);
	return &jfce->public;
}

int urma_delete_jfce(urma_jfce_t *public)
{
	struct jfce *jfce = (struct jfce *)public;

	if (!jfce || !urma_started())
		return URMA_EINVAL;
	if (__atomic_load_n(&jfce->users, __ATOMIC_SEQ_CST))
		return URMA_FAIL;
	close(jfce->public.fd);
	urma_drop((struct context *)jfce->public.urma_ctx);
	pthread_mutex_destroy(&jfce->lock);
	free(jfce);
	return URMA_OK;
}

/* --- completion queues --- */

static uint32_t new_id(struct urma_state *state)
{
	uint32_t id;

	urma_lock(state);
	id = ++state->next_id[urma_here.process->node];
	urma_unlock(state);
	return id;
}

static void name(urma_jetty_id_t *id, uint32_t number)
{
	urma_eid_of(urma_here.process->node, &id->eid);
	id->uasid = urma_here.process->uasid;
	id->id = number;
}

urma_jfc_t *urma_create_jfc(urma_context_t *context, urma_jfc_cfg_t *cfg)
{
	struct urma_state *state = urma_started();
	struct jfc *jfc;

	if (!context || !cfg || !state || !cfg->depth || cfg->depth > URMA_MAX_JFC_DEPTH)
		return urma_refuse(EINVAL);
	jfc = calloc(1, sizeof(*jfc));
	if (!jfc)
		return urma_refuse(ENOMEM);
	pthread_mutex_init(&jfc->lock, NULL);
	jfc->cfg = *cfg;
	jfc->holders = 1;
	jfc->event_ns = UINT64_MAX;
	jfc->public.urma_ctx = context;
	name(&jfc->public.jfc_id, new_id(state));
	urma_hold((struct context *)context);
	jfc->jfce = (struct jfce *)cfg->jfce;
	if (jfc->jfce) {
		__atomic_add_fetch(&jfc->jfce->users, 1, __ATOMIC_SEQ_CST);
		pthread_mutex_lock(&jfc->jfce->lock);
		jfc->next = jfc->jfce->first;
		jfc->jfce->first = jfc;
		pthread_mutex_unlock(&jfc->jfce->lock);
	}
	return &jfc->public;
}

static uint32_t unacked(struct jfc *jfc)
{
	uint32_t n;

	pthread_mutex_lock(&jfc->lock);
	n = jfc->unacked;
	pthread_mutex_unlock(&jfc->lock);
	return n;
}

int urma_delete_jfc(urma_jfc_t *public)
{
	struct jfc *jfc = (struct jfc *)public, **at;
	const uint64_t deadline = urma_now_ns() + DELETE_PATIENCE_NS;

	if (!jfc || !urma_started())
		return URMA_EINVAL;
	while (unacked(jfc)) { /* the real one waits for ever (section 3) */
		if (jfc->cfg.flag & URMA_JFC_NON_BLOCKING || urma_now_ns() >= deadline)
			return URMA_EAGAIN;
		usleep(LOOK_AGAIN_US);
	}
	if (jfc->jfce) {
		pthread_mutex_lock(&jfc->jfce->lock);
		for (at = &jfc->jfce->first; *at && *at != jfc; at = &(*at)->next)
			;
		if (*at)
			*at = jfc->next;
		pthread_mutex_unlock(&jfc->jfce->lock);
		__atomic_sub_fetch(&jfc->jfce->users, 1, __ATOMIC_SEQ_CST);
	}
	pthread_mutex_lock(&jfc->lock);
	jfc->deleted = 1; /* its queues may outlive it: the core lets it go first */
	pthread_mutex_unlock(&jfc->lock);
	urma_drop((struct context *)public->urma_ctx);
	urma_jfc_put(jfc);
	return URMA_OK;
}

/* --- send queues --- */

/* Whether a mode may have an order_type; the default is written back (section 5). */
static int order_allowed(uint32_t mode, uint32_t *flag, uint32_t shift)
{
	const uint32_t order = *flag >> shift & 0xff;
	const uint32_t usual = mode == URMA_TM_RM ? 2 : mode == URMA_TM_RC ? 3 : 4;
	const uint32_t allowed = mode == URMA_TM_RM ? 1u << 0 | 1u << 2 :
				 mode == URMA_TM_RC ? 1u << 0 | 1u << 1 | 1u << 3 | 1u << 4 :
						      1u << 0 | 1u << 4;

	if (order > 4 || !(allowed >> order & 1))
		return 0;
	if (!order)
		*flag |= usual << shift;
	return 1;
}

static int mode_known(uint32_t mode)
{
	return mode == URMA_TM_RM || mode == URMA_TM_RC || mode == URMA_TM_UM;
}

static int send_fits(urma_jfs_cfg_t *cfg, uint32_t *flag)
{
	return mode_known(cfg->trans_mode) && order_allowed(cfg->trans_mode, flag, URMA_JFS_ORDER_SHIFT) && cfg->depth &&
	       cfg->depth <= URMA_MAX_JFS_DEPTH && cfg->max_sge <= URMA_MAX_SGE && cfg->max_rsge <= 1 && !cfg->max_inline_data;
}

static void queue_init(struct queue *queue, struct jfc *jfc, struct context *context, const urma_jfs_cfg_t *cfg, uint32_t id)
{
	pthread_mutex_init(&queue->lock, NULL);
	queue->jfc = jfc;
	queue->context = context;
	queue->id = id;
	queue->depth = cfg->depth;
	queue->max_sge = cfg->max_sge ? cfg->max_sge : 1;
	queue->state = URMA_READY;
	__atomic_add_fetch(&jfc->holders, 1, __ATOMIC_SEQ_CST);
	urma_hold(context);
}

static void queue_end(struct queue *queue)
{
	pthread_mutex_lock(&queue->lock); /* the poster has left */
	pthread_mutex_unlock(&queue->lock);
	urma_forget_queue(queue);
	urma_jfc_put(queue->jfc);
	urma_drop(queue->context);
	pthread_mutex_destroy(&queue->lock);
	free(queue->unhandled);
}

urma_jfs_t *urma_create_jfs(urma_context_t *context, urma_jfs_cfg_t *cfg)
{
	struct urma_state *state = urma_started();
	struct jfs *jfs;

	if (!context || !cfg || !cfg->jfc || !state || !send_fits(cfg, &cfg->flag))
		return urma_refuse(EINVAL);
	jfs = calloc(1, sizeof(*jfs));
	if (!jfs)
		return urma_refuse(ENOMEM);
	jfs->public.urma_ctx = context;
	name(&jfs->public.jfs_id, new_id(state));
	queue_init(&jfs->queue, (struct jfc *)cfg->jfc, (struct context *)context, cfg, jfs->public.jfs_id.id);
	return &jfs->public;
}

int urma_modify_jfs(urma_jfs_t *jfs, urma_jfs_attr_t *attr)
{
	if (!jfs || !attr || !urma_started())
		return URMA_EINVAL;
	if (!(attr->mask & 1))
		return URMA_EINVAL;
	urma_modify(&((struct jfs *)jfs)->queue, attr->state);
	return URMA_OK;
}

int urma_flush_jfs(urma_jfs_t *jfs, int count, urma_cr_t *cr)
{
	return jfs && cr && urma_started() ? urma_flush(&((struct jfs *)jfs)->queue, count, cr) : -EINVAL;
}

int urma_delete_jfs(urma_jfs_t *jfs)
{
	if (!jfs || !urma_started())
		return URMA_EINVAL;
	queue_end(&((struct jfs *)jfs)->queue);
	free(jfs);
	return URMA_OK;
}

/* --- receive queues and jettys: what requests name as their target --- */

static int announce(struct urma_state *state, uint32_t id, uint32_t policy, uint32_t token)
{
	int found = URMA_NOBODY;

	urma_lock(state);
	for (int pass = 0; pass < 2 && found == URMA_NOBODY; pass++) {
		for (int i = 0; i < URMA_TARGETS && found == URMA_NOBODY; i++)
			if (!state->targets[i].owner)
				found = i;
		if (found == URMA_NOBODY)
			urma_sweep(state);
	}
	if (found != URMA_NOBODY) {
		state->targets[found] = (struct urma_target){ urma_here.number + 1, id, policy, token };
		if ((uint32_t)found >= state->targets_end)
			state->targets_end = (uint32_t)found + 1;
	}
	urma_unlock(state);
	return found;
}

static void withdraw(struct urma_state *state, int target)
{
	urma_lock(state);
	state->targets[target].owner = 0;
	urma_unlock(state);
}

urma_jfr_t *urma_create_jfr(urma_context_t *context, urma_jfr_cfg_t *cfg)
{
	struct urma_state *state = urma_started();
	struct jfr *jfr;

	if (!context || !cfg || !cfg->jfc || !state || !mode_known(cfg->trans_mode) || !cfg->depth ||
	    cfg->depth > URMA_MAX_JFR_DEPTH || cfg->max_sge > URMA_MAX_READ_SGE)
		return urma_refuse(EINVAL);
	jfr = calloc(1, sizeof(*jfr));
	if (!jfr)
		return urma_refuse(ENOMEM);
	if (!(cfg->flag >> URMA_JFR_ORDER_SHIFT & 0xff))
		cfg->flag |= (cfg->trans_mode == URMA_TM_RM ? 2u : cfg->trans_mode == URMA_TM_RC ? 3u : 4u) << URMA_JFR_ORDER_SHIFT;
	jfr->public.urma_ctx = context;
	jfr->context = (struct context *)context;
	jfr->trans_mode = cfg->trans_mode;
	jfr->order = cfg->flag >> URMA_JFR_ORDER_SHIFT & 0xff;
	name(&jfr->public.jfr_id, new_id(state));
	jfr->target = announce(state, jfr->public.jfr_id.id, cfg->flag & URMA_IMPORT_POLICY, cfg->token.token);
	if (jfr->target == URMA_NOBODY) {
		free(jfr);
		return urma_refuse(ENOMEM);
	}
	urma_hold(jfr->context);
	return &jfr->public;
}

int urma_delete_jfr(urma_jfr_t *public)
{
	struct urma_state *state = urma_started();
	struct jfr *jfr = (struct jfr *)public;

	if (!jfr || !state)
		return URMA_EINVAL;
	withdraw(state, jfr->target);
	urma_drop(jfr->context);
	free(jfr);
	return URMA_OK;
}

urma_jetty_t *urma_create_jetty(urma_context_t *context, urma_jetty_cfg_t *cfg)
{
	struct urma_state *state = urma_started();
	const struct urma_target *target;
	struct jetty *jetty;
	struct jfr *jfr;

	if (!context || !cfg || !cfg->jfs_cfg.jfc || !cfg->jfr || !state || !(cfg->flag & URMA_JETTY_SHARE_JFR))
		return urma_refuse(EINVAL);
	jfr = (struct jfr *)cfg->jfr;
	if (!send_fits(&cfg->jfs_cfg, &cfg->jfs_cfg.flag) || cfg->jfs_cfg.trans_mode != jfr->trans_mode ||
	    (cfg->jfs_cfg.flag >> URMA_JFS_ORDER_SHIFT & 0xff) != jfr->order)
		return urma_refuse(EINVAL);
	jetty = calloc(1, sizeof(*jetty));
	if (!jetty)
		return urma_refuse(ENOMEM);
	jetty->public.urma_ctx = context;
	name(&jetty->public.jetty_id, new_id(state));
	target = &state->targets[jfr->target];
	jetty->target = announce(state, jetty->public.jetty_id.id, target->policy, target->token);
	if (jetty->target == URMA_NOBODY) {
		free(jetty);
		return urma_refuse(ENOMEM);
	}
	queue_init(&jetty->queue, (struct jfc *)cfg->jfs_cfg.jfc, (struct context *)context, &cfg->jfs_cfg,
		   jetty->public.jetty_id.id);
	return &jetty->public;
}

int urma_modify_jetty(urma_jetty_t *jetty, urma_jetty_attr_t *attr)
{
	if (!jetty || !attr || !urma_started() || !(attr->mask & 2))
		return URMA_EINVAL;
	urma_modify(&((struct jetty *)jetty)->queue, attr->state);
	return URMA_OK;
}

int urma_flush_jetty(urma_jetty_t *jetty, int count, urma_cr_t *cr)
{
	return jetty && cr && urma_started() ? urma_flush(&((struct jetty *)jetty)->queue, count, cr) : -EINVAL;
}

int urma_delete_jetty(urma_jetty_t *public)
{
	struct urma_state *state = urma_started();
	struct jetty *jetty = (struct jetty *)public;

	if (!jetty || !state)
		return URMA_EINVAL;
	withdraw(state, jetty->target);
	queue_end(&jetty->queue);
	free(jetty);
	return URMA_OK;
}

/* --- posting to them --- */

int urma_post_jfs_wr(urma_jfs_t *jfs, urma_jfs_wr_t *wr, urma_jfs_wr_t **bad)
{
	return jfs && wr && bad && urma_started() ? urma_post(&((struct jfs *)jfs)->queue, wr, bad) : URMA_EINVAL;
}

int urma_post_jetty_send_wr(urma_jetty_t *jetty, urma_jfs_wr_t *wr, urma_jfs_wr_t **bad)
{
	return jetty && wr && bad && urma_started() ? urma_post(&((struct jetty *)jetty)->queue, wr, bad) : URMA_EINVAL;
}

static int one(urma_jfs_t *jfs, uint32_t opcode, urma_target_jetty_t *target, urma_sge_t *dst, urma_sge_t *src,
	       uint32_t flag, uint64_t ctx)
{
	urma_jfs_wr_t *bad, wr = { .opcode = opcode, .flag = flag, .tjetty = target, .user_ctx = ctx };

	wr.rw.src = (urma_sg_t){ src, 1 };
	wr.rw.dst = (urma_sg_t){ dst, 1 };
	return urma_post(&((struct jfs *)jfs)->queue, &wr, &bad);
}

int urma_read(urma_jfs_t *jfs, urma_target_jetty_t *target, urma_target_seg_t *dst_seg, urma_target_seg_t *src_seg,
	      uint64_t dst, uint64_t src, uint32_t len, uint32_t flag, uint64_t ctx)
{
	urma_sge_t to = { dst, len, dst_seg, NULL }, from = { src, len, src_seg, NULL };

	if (!jfs || !target || !dst_seg || !src_seg || !urma_started())
		return URMA_EINVAL;
	return one(jfs, URMA_OPC_READ, target, &to, &from, flag, ctx);
}

int urma_write(urma_jfs_t *jfs, urma_target_jetty_t *target, urma_target_seg_t *dst_seg, urma_target_seg_t *src_seg,
	       uint64_t dst, uint64_t src, uint32_t len, uint32_t flag, uint64_t ctx)
{
	urma_sge_t to = { dst, len, dst_seg, NULL }, from = { src, len, src_seg, NULL };

	if (!jfs || !target || !dst_seg || !urma_started())
		return URMA_EINVAL;
	return one(jfs, URMA_OPC_WRITE, target, &to, &from, flag, ctx);
}
