/* SPDX-License-Identifier: Apache-2.0 */
/* Leases: objects without a name that one process borrows (SDK specification 9). */
#include <string.h>

#include "standin.h"
#include "state.h"

static int lend(struct standin_turn *turn, uint32_t provider)
{
	const struct standin_request *request = turn->request;
	const struct standin_process *caller = standin_caller(turn);
	struct standin_record *record;
	int code;

	/* a remote NUMA node cannot appear on this machine (S11) */
	if (request->arg[2] & UBSM_FLAG_MALLOC_WITH_NUMA)
		return UBSM_ERR_UBSE;
	code = standin_make(turn->cluster, request->arg[0], request->arg[2], provider, &record);
	if (code)
		return code;
	record->number = ++turn->cluster->state->leases;
	record->mode = 0600;
	record->uid = caller->uid;
	record->gid = caller->gid;
	record->nodes = UINT32_MAX;
	code = standin_attach(turn->cluster, record, turn->process, 3);
	if (code) {
		standin_free(turn->cluster, record);
		return code;
	}
	record->kind = STANDIN_LEASED;
	return standin_units_body(turn, record);
}

static int lease(struct standin_turn *turn)
{
	struct standin_choice choice;
	int code = standin_choose(turn->cluster->state, standin_caller(turn)->node, turn->request->region, &choice);

	if (code)
		return code;
	turn->engine = strcmp(turn->request->region, "default") ? 2 : 5;
	if (!choice.count)
		return UBSM_ERR_PARAM_INVALID;
	/* what a host has itself it need not borrow */
	for (uint32_t i = 0; i < choice.count; i++)
		if (choice.providers[i] != standin_caller(turn)->node)
			return lend(turn, choice.providers[i]);
	return lend(turn, choice.providers[0]);
}

static int lease_at(struct standin_turn *turn)
{
	const ubs_mem_location_t *place = turn->payload;

	turn->engine = 1;
	if (turn->request->size != sizeof(*place) || place->slot_id < 1 || place->slot_id > turn->cluster->state->node_count)
		return UBSM_ERR_UBSE;
	return lend(turn, place->slot_id - 1);
}

static int lease_free(struct standin_turn *turn)
{
	struct standin_record *record = standin_find_lease(turn->cluster->state, turn->request->arg[0]);
	struct standin_attachment *on = record ? &record->on[standin_caller(turn)->node] : NULL;
	int code;

	turn->engine = 2;
	if (!on || !standin_in(&on->users, turn->process))
		return UBSM_ERR_NOT_FOUND;
	if (standin_units_open(turn->cluster, record))
		return UBSM_ERR_UBSE; /* still its borrower's, all of it, who may free it again */
	code = standin_detach(turn->cluster, record, turn->process);
	return code ? code : standin_free(turn->cluster, record) ? UBSM_ERR_UBSE : UBSM_OK;
}

/* After a reconnection: the numbers of the leases that the process still has (5). */
static int still_used(struct standin_turn *turn)
{
	const uint64_t *numbers = turn->payload;
	const uint32_t count = turn->request->size / sizeof(*numbers);

	for (uint32_t i = 0; i < turn->cluster->state->records_end; i++) {
		struct standin_record *record = &turn->cluster->state->records[i];
		uint32_t at = 0;

		if (record->kind != STANDIN_LEASED)
			continue;
		while (at < count && numbers[at] != record->number)
			at++;
		if (at == count)
			standin_release(record, turn->process, standin_caller(turn)->node);
	}
	standin_sweep(turn->cluster);
	return UBSM_OK;
}

int standin_leases_turn(struct standin_turn *turn)
{
	switch (turn->request->op) {
	case STANDIN_LEASE:
		return lease(turn);
	case STANDIN_LEASE_AT:
		return lease_at(turn);
	case STANDIN_LEASE_FREE:
		return lease_free(turn);
	default:
		return still_used(turn);
	}
}
