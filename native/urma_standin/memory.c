/* SPDX-License-Identifier: Apache-2.0 */
/* Token ids, segments, imports (URMA specification 6.3). */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "standin.h"

static struct segment *registered; /* urma_here.lock guards it */

const struct segment *urma_registered(const urma_target_seg_t *seg)
{
	const struct segment *found;

	pthread_mutex_lock(&urma_here.lock);
	for (found = registered; found && &found->public != seg; found = found->next)
		;
	pthread_mutex_unlock(&urma_here.lock);
	return found;
}

urma_token_id_t *urma_alloc_token_id(urma_context_t *context)
{
	struct urma_state *state = urma_started();
	struct token_id *token_id;

	if (!context || !state)
		return urma_refuse(EINVAL);
	token_id = calloc(1, sizeof(*token_id));
	if (!token_id)
		return urma_refuse(ENOMEM);
	urma_lock(state);
	token_id->public.token_id = urma_new_token_id(state);
	urma_unlock(state);
	if (!token_id->public.token_id) {
		free(token_id);
		return urma_refuse(ENOMEM);
	}
	token_id->context = (struct context *)context;
	token_id->public.urma_ctx = context;
	urma_hold(token_id->context);
	return &token_id->public;
}

int urma_free_token_id(urma_token_id_t *public)
{
	struct token_id *token_id = (struct token_id *)public;

	if (!token_id || !urma_started() || __atomic_load_n(&public->ref, __ATOMIC_SEQ_CST))
		return URMA_EINVAL;
	urma_drop(token_id->context);
	free(token_id);
	return URMA_OK;
}

/* A place in the state, or URMA_NOBODY.  With its lock. */
static int place_for(struct urma_state *state)
{
	for (int pass = 0; pass < 2; pass++) {
		for (uint32_t i = 0; i < URMA_SEGMENTS; i++)
			if (!state->segments[i].owner && !state->segments[i].leaving) {
				state->segments_end = i < state->segments_end ? state->segments_end : i + 1;
				return (int)i;
			}
		urma_sweep(state);
	}
	return URMA_NOBODY;
}

static void describe(struct segment *segment, const urma_seg_cfg_t *cfg, urma_context_t *context)
{
	urma_target_seg_t *public = &segment->public;
	urma_eid_t eid;

	urma_eid_of(urma_here.process->node, &eid);
	memcpy(public->seg.ubva.eid, eid.raw, sizeof(eid.raw));
	public->seg.ubva.uasid = urma_here.process->uasid;
	public->seg.ubva.va = cfg->va;
	public->seg.len = cfg->len;
	public->seg.attr = (cfg->flag & 0x1fff) | (cfg->token_id ? 1u << 13 : 0);
	public->user_ctx = cfg->user_ctx;
	public->urma_ctx = context;
	segment->context = (struct context *)context;
	segment->token = cfg->token_value.token;
}

static int publish(struct urma_state *state, struct segment *segment, const urma_seg_cfg_t *cfg)
{
	int place;

	urma_lock(state);
	place = place_for(state);
	if (place != URMA_NOBODY) {
		state->segments[place] = (struct urma_segment){
			.owner = urma_here.number + 1,
			.token_id = segment->public.seg.token_id,
			.token = segment->token,
			.policy = cfg->flag & URMA_SEG_POLICY,
			.access = cfg->flag >> URMA_SEG_ACCESS_SHIFT & URMA_SEG_ACCESS,
			.va = cfg->va,
			.len = cfg->len,
			.generation = ++state->generation,
		};
		segment->place = (uint32_t)place;
		segment->public.handle = state->generation;
	}
	urma_unlock(state);
	return place == URMA_NOBODY ? -ENOMEM : 0;
}

urma_target_seg_t *urma_register_seg(urma_context_t *context, urma_seg_cfg_t *cfg)
{
	static const uint32_t valid = 1u << 0 | 1u << 1 | 1u << 2 | 1u << 6 | 1u << 14;
	struct urma_state *state = urma_started();
	struct segment *segment;
	uint32_t access;

	if (!context || !cfg || !state || !cfg->va || !cfg->token_id != !(cfg->flag & URMA_SEG_TOKEN_ID_VALID))
		return urma_refuse(EINVAL);
	access = cfg->flag >> URMA_SEG_ACCESS_SHIFT & URMA_SEG_ACCESS;
	if (access > 15 || !(valid >> access & 1) || cfg->len > UINT64_MAX - cfg->va)
		return urma_refuse(EINVAL);
	segment = calloc(1, sizeof(*segment));
	if (!segment)
		return urma_refuse(ENOMEM);
	describe(segment, cfg, context);
	segment->public.token_id = cfg->token_id;
	if (!cfg->token_id) {
		segment->public.token_id = urma_alloc_token_id(context);
		segment->own = (struct token_id *)segment->public.token_id;
	}
	if (segment->public.token_id)
		segment->public.seg.token_id = segment->public.token_id->token_id;
	if (!segment->public.token_id || publish(state, segment, cfg)) {
		if (segment->own)
			urma_free_token_id(&segment->own->public);
		free(segment);
		return urma_refuse(ENOMEM);
	}
	__atomic_add_fetch(&segment->public.token_id->ref, 1, __ATOMIC_SEQ_CST);
	urma_hold(segment->context);
	pthread_mutex_lock(&urma_here.lock);
	segment->next = registered;
	registered = segment;
	pthread_mutex_unlock(&urma_here.lock);
	return &segment->public;
}

int urma_unregister_seg(urma_target_seg_t *seg)
{
	struct urma_state *state = urma_started();
	struct segment *segment = (struct segment *)urma_registered(seg), **at;

	if (!seg || !state || !segment)
		return URMA_EINVAL;
	urma_lock(state);
	state->segments[segment->place].leaving = 1; /* no copy begins any more */
	urma_unlock(state);
	urma_wait_unpinned(state, segment->place);
	urma_lock(state);
	state->segments[segment->place].owner = state->segments[segment->place].leaving = 0;
	urma_unlock(state);
	pthread_mutex_lock(&urma_here.lock);
	for (at = &registered; *at && *at != segment; at = &(*at)->next)
		;
	if (*at)
		*at = segment->next;
	pthread_mutex_unlock(&urma_here.lock);
	__atomic_sub_fetch(&segment->public.token_id->ref, 1, __ATOMIC_SEQ_CST);
	if (segment->own)
		urma_free_token_id(&segment->own->public);
	urma_drop(segment->context);
	free(segment);
	return URMA_OK;
}

/* --- what others registered: no request is sent (6.3) --- */

urma_target_seg_t *urma_import_seg(urma_context_t *context, urma_seg_t *seg, urma_token_t *token, uint64_t addr,
				   uint32_t flag)
{
	struct segment *segment;

	(void)addr;
	(void)flag;
	if (!context || !seg || !urma_started() || (seg->attr & URMA_SEG_POLICY && !token))
		return urma_refuse(EINVAL);
	if (urma_fault(1u << URMA_IMPORT, 0))
		return NULL;
	segment = calloc(1, sizeof(*segment));
	if (!segment)
		return urma_refuse(ENOMEM);
	segment->public.seg = *seg;
	segment->public.urma_ctx = context;
	segment->context = (struct context *)context;
	segment->token = token ? token->token : 0;
	segment->imported = 1;
	urma_hold(segment->context);
	return &segment->public;
}

int urma_unimport_seg(urma_target_seg_t *seg)
{
	struct segment *segment = (struct segment *)seg;

	if (!segment || !urma_started() || !segment->imported)
		return URMA_EINVAL;
	urma_drop(segment->context);
	free(segment);
	return URMA_OK;
}

static urma_target_jetty_t *import_target(urma_context_t *context, const urma_jetty_id_t *id, const urma_token_t *token)
{
	struct target *target;

	if (urma_fault(1u << URMA_IMPORT, 0))
		return NULL;
	target = calloc(1, sizeof(*target));
	if (!target)
		return urma_refuse(ENOMEM);
	target->public.urma_ctx = context;
	target->public.id = *id;
	target->context = (struct context *)context;
	target->token = token ? token->token : 0;
	urma_hold(target->context);
	return &target->public;
}

static int unimport(urma_target_jetty_t *public)
{
	struct target *target = (struct target *)public;

	if (!target || !urma_started())
		return URMA_EINVAL;
	urma_drop(target->context);
	free(target);
	return URMA_OK;
}

urma_target_jetty_t *urma_import_jfr(urma_context_t *context, urma_rjfr_t *rjfr, urma_token_t *token)
{
	if (!context || !rjfr || !urma_started() || (rjfr->flag & URMA_IMPORT_POLICY && !token) ||
	    rjfr->trans_mode != URMA_TM_RM)
		return urma_refuse(EINVAL);
	return import_target(context, &rjfr->jfr_id, token);
}

int urma_unimport_jfr(urma_target_jetty_t *target)
{
	return unimport(target);
}

urma_target_jetty_t *urma_import_jetty(urma_context_t *context, urma_rjetty_t *rjetty, urma_token_t *token)
{
	uint32_t order;

	if (!context || !rjetty || !urma_started() || rjetty->trans_mode != URMA_TM_RM)
		return urma_refuse(EINVAL);
	order = rjetty->flag >> URMA_IMPORT_ORDER_SHIFT & 0xff;
	if ((order != 0 && order != 2) || rjetty->tp_type > URMA_CTP)
		return NULL; /* without a reason, as the real one */
	return import_target(context, &rjetty->jetty_id, token);
}

int urma_unimport_jetty(urma_target_jetty_t *target)
{
	return unimport(target);
}
