/* SPDX-License-Identifier: Apache-2.0 */
/* Objects and leases as regions of the nodes: whole units of one provider, which other nodes import (7, 12.1). */
#include <fcntl.h>
#include <string.h>

#include "standin.h"
#include "state.h"

struct standin_record *standin_find(struct standin_state *state, const char *name)
{
	for (uint32_t i = 0; i < state->records_end; i++)
		if (state->records[i].kind == STANDIN_OBJECT && !strcmp(state->records[i].name, name))
			return &state->records[i];
	return NULL;
}

struct standin_record *standin_find_lease(struct standin_state *state, uint64_t number)
{
	for (uint32_t i = 0; i < state->records_end; i++)
		if (state->records[i].kind == STANDIN_LEASED && state->records[i].number == number)
			return &state->records[i];
	return NULL;
}

int standin_busy(const struct standin_record *record)
{
	for (uint32_t node = 0; node < STANDIN_NODES; node++)
		if (record->on[node].there && standin_members(&record->on[node].leaving))
			return 1;
	return 0;
}

int standin_attached(const struct standin_record *record)
{
	for (uint32_t node = 0; node < STANDIN_NODES; node++)
		if (record->on[node].there)
			return 1;
	return 0;
}

static int unused(struct standin_state *state, struct standin_record **out)
{
	for (uint32_t i = 0; i < state->records_end; i++) {
		if (state->records[i].kind == STANDIN_FREE) {
			*out = &state->records[i];
			return UBSM_OK;
		}
	}
	if (state->records_end == STANDIN_RECORDS)
		return UBSM_ERR_UBSE;
	*out = &state->records[state->records_end];
	if (standin_room_for(*out, sizeof(**out)))
		return UBSM_ERR_RECORD;
	state->records_end++;
	return UBSM_OK;
}

int standin_make(struct standin_cluster *cluster, uint64_t size, uint32_t flags, uint32_t provider,
		 struct standin_record **out)
{
	const uint64_t count = size / cluster->state->unit + !!(size % cluster->state->unit);
	struct standin_record *record;
	int code = count > STANDIN_UNITS ? UBSM_ERR_UBSE : unused(cluster->state, &record);

	if (code)
		return code;
	record->kind = STANDIN_MAKING;
	record->count = 0;
	record->number = 0;
	record->name[0] = '\0';
	record->size = size;
	record->flags = flags;
	record->provider = provider;
	record->writing = 0;
	memset(record->holds, 0, sizeof(record->holds));
	while (record->count < count) {
		if (fabric_export(cluster, provider, &record->exports[record->count])) {
			standin_free(cluster, record);
			return UBSM_ERR_UBSE;
		}
		record->count++;
	}
	*out = record;
	return UBSM_OK;
}

int standin_units_open(struct standin_cluster *cluster, const struct standin_record *record)
{
	for (uint32_t i = 0; i < record->count; i++)
		if (fabric_busy(cluster, record->provider, record->exports[i].mem_id))
			return 1;
	return 0;
}

int standin_free(struct standin_cluster *cluster, struct standin_record *record)
{
	if (standin_units_open(cluster, record))
		return UBSM_ERR_IN_USING;
	while (record->count) {
		if (fabric_unexport(cluster, record->provider, record->exports[record->count - 1].mem_id))
			return UBSM_ERR_UBSE;
		record->count--;
	}
	record->kind = STANDIN_FREE;
	return UBSM_OK;
}

/* 7.2: owner, else group, else other bits; root has no override. */
static int open_mode(const struct standin_record *record, const struct standin_process *process, int prot,
		     uint32_t *mode)
{
	int shift = process->uid == record->uid ? 6 : process->gid == record->gid ? 3 : 0;
	int bits = record->mode >> shift & 7;

	if (bits == 1) { /* a quirk of the original */
		*mode = O_RDWR;
		return UBSM_OK;
	}
	if (!(bits & 4) || (prot & 2 && !(bits & 2)))
		return UBSM_ERR_NOPERM;
	*mode = bits & 2 ? O_RDWR : O_RDONLY;
	return UBSM_OK;
}

static int withdraw(struct standin_cluster *cluster, struct standin_record *record, uint32_t node)
{
	struct standin_attachment *on = &record->on[node];

	for (uint32_t i = 0; i < on->imported; i++)
		if (fabric_busy(cluster, node, on->mem_ids[i]))
			return UBSM_ERR_UBSE;
	while (on->imported) {
		uint32_t last = on->imported - 1;

		if (fabric_unimport(cluster, node, on->mem_ids[last], on->windows[last]))
			return UBSM_ERR_UBSE;
		on->imported--;
	}
	return UBSM_OK;
}

/* The units' ids on a node; imports them unless it is the exporter. */
static int reach(struct standin_cluster *cluster, struct standin_record *record, uint32_t node)
{
	struct standin_attachment *on = &record->on[node];
	int noncacheable = record->flags & (UBSM_FLAG_NONCACHE | UBSM_FLAG_ONLY_IMPORT_NONCACHE);

	for (uint32_t i = 0; i < record->count; i++) {
		if (node == record->provider) {
			on->mem_ids[i] = record->exports[i].mem_id;
		} else if (fabric_import(cluster, node, record->provider, &record->exports[i], noncacheable, &on->mem_ids[i],
					 &on->windows[i])) {
			withdraw(cluster, record, node);
			return UBSM_ERR_UBSE;
		} else {
			on->imported = i + 1;
		}
	}
	return UBSM_OK;
}

int standin_attach(struct standin_cluster *cluster, struct standin_record *record, uint32_t process, int prot)
{
	const struct standin_process *caller = &cluster->state->processes[process];
	struct standin_attachment *on = &record->on[caller->node];
	int code;

	if (on->there) {
		if (standin_in(&on->users, process))
			return UBSM_ERR_ALREADY_EXIST;
		standin_put(&on->users, process);
		return UBSM_OK;
	}
	if (!(record->nodes >> caller->node & 1))
		return UBSM_ERR_UBSE;
	code = open_mode(record, caller, prot, &on->open_mode);
	if (!code)
		code = reach(cluster, record, caller->node);
	if (code)
		return code;
	/* the engine does this at each attach; it is why other users' opens fail later, so an error is one here, too */
	for (uint32_t i = 0; i < record->count; i++) {
		if (fabric_give(cluster, caller->node, on->mem_ids[i], record->mode, record->uid, record->gid)) {
			withdraw(cluster, record, caller->node);
			return UBSM_ERR_UBSE;
		}
	}
	memset(&on->users, 0, sizeof(on->users));
	memset(&on->leaving, 0, sizeof(on->leaving));
	standin_put(&on->users, process);
	on->there = 1;
	return UBSM_OK;
}

int standin_detach(struct standin_cluster *cluster, struct standin_record *record, uint32_t process)
{
	uint32_t node = cluster->state->processes[process].node;
	struct standin_attachment *on = &record->on[node];

	if (!on->there || !standin_in(&on->users, process))
		return UBSM_ERR_NOT_FOUND;
	if (standin_members(&on->users) == 1) {
		int code = withdraw(cluster, record, node);

		if (code)
			return code;
		on->there = 0;
	}
	standin_drop(&on->users, process);
	standin_drop(&on->leaving, process);
	return UBSM_OK;
}

void standin_undo(struct standin_cluster *cluster, struct standin_record *record, uint32_t node)
{
	if (!record->on[node].there)
		withdraw(cluster, record, node);
}
