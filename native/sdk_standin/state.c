/* SPDX-License-Identifier: Apache-2.0 */
#include "state.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#define MAGIC 0x6e692d646e617473ULL /* "stand-in" */

static int fill(struct standin_state *state, const char *fabric, const char *nodes, uint64_t unit)
{
	int rc;

	if (strlen(fabric) >= sizeof(state->fabric) || !unit)
		return -EINVAL;
	strcpy(state->fabric, fabric);
	state->unit = unit;
	while (*nodes) {
		size_t length = strcspn(nodes, ",");

		if (!length || length >= sizeof(state->nodes[0]) || state->node_count == STANDIN_NODES)
			return -EINVAL;
		memcpy(state->nodes[state->node_count++], nodes, length);
		nodes += length + (nodes[length] == ',');
	}
	rc = standin_mutex_init(&state->lock);
	state->bytes = sizeof(*state);
	if (!rc && state->node_count)
		state->magic = MAGIC;
	return state->node_count ? rc : -EINVAL;
}

int standin_state_create(const char *folder, const char *fabric, const char *nodes, uint64_t unit)
{
	void *made;
	int rc = standin_file_create(folder, sizeof(struct standin_state), offsetof(struct standin_state, records), &made);

	if (rc)
		return rc;
	rc = fill(made, fabric, nodes, unit);
	standin_state_close(made);
	if (rc)
		standin_file_remove(folder);
	return rc;
}

#define ENDS(text) (memchr(text, 0, sizeof(text)) != NULL)

static int sound_record(const struct standin_state *state, const struct standin_record *record)
{
	if (record->kind == STANDIN_FREE)
		return 1;
	for (uint32_t node = 0; node < STANDIN_NODES; node++)
		if (record->on[node].imported > record->count)
			return 0;
	return record->count <= STANDIN_UNITS && record->provider < state->node_count && ENDS(record->name);
}

/*
 * Numbers that are used as places, and texts that end: a file that something
 * else wrote into must not lead anybody out of it.  Others may change it
 * meanwhile, but within these bounds.
 */
static int sound(const struct standin_state *state)
{
	int good = state->unit && state->node_count && state->node_count <= STANDIN_NODES &&
		   state->records_end <= STANDIN_RECORDS && state->fault_count <= STANDIN_FAULTS && ENDS(state->fabric);

	for (uint32_t i = 0; good && i < state->node_count; i++)
		good = ENDS(state->nodes[i]);
	for (uint32_t i = 0; good && i < STANDIN_PROCESSES; i++)
		good = !state->processes[i].used || state->processes[i].node < state->node_count;
	for (uint32_t i = 0; good && i < STANDIN_REGIONS; i++) {
		const struct standin_region *region = &state->regions[i];

		good = !region->used || (region->node < state->node_count && region->count <= STANDIN_NODES && ENDS(region->name));
		for (uint32_t host = 0; good && region->used && host < region->count; host++)
			good = region->hosts[host] < state->node_count;
	}
	for (uint32_t i = 0; good && i < state->records_end; i++)
		good = sound_record(state, &state->records[i]);
	return good;
}

int standin_state_open(const char *folder, struct standin_state **out)
{
	void *opened;
	int rc = standin_file_open(folder, sizeof(**out), &opened);

	if (rc)
		return rc;
	*out = opened;
	if ((*out)->magic == MAGIC && (*out)->bytes == sizeof(**out) && sound(*out))
		return 0;
	standin_state_close(*out);
	return -EPROTO;
}

void standin_state_close(struct standin_state *state)
{
	munmap(state, sizeof(*state));
}

int standin_cluster_open(const char *folder, struct standin_cluster **out)
{
	struct standin_cluster *cluster = calloc(1, sizeof(*cluster));
	int rc = cluster ? standin_state_open(folder, &cluster->state) : -ENOMEM;

	if (rc)
		free(cluster);
	else
		*out = cluster;
	return rc;
}

void standin_cluster_close(struct standin_cluster *cluster)
{
	fabric_leave(cluster);
	standin_state_close(cluster->state);
	free(cluster);
}

void standin_lock(struct standin_state *state)
{
	standin_mutex_lock(&state->lock);
}

void standin_unlock(struct standin_state *state)
{
	pthread_mutex_unlock(&state->lock);
}

int standin_in(const struct standin_set *set, uint32_t process)
{
	return set->words[process / 64] >> process % 64 & 1;
}

void standin_put(struct standin_set *set, uint32_t process)
{
	set->words[process / 64] |= 1ULL << process % 64;
}

void standin_drop(struct standin_set *set, uint32_t process)
{
	set->words[process / 64] &= ~(1ULL << process % 64);
}

uint32_t standin_members(const struct standin_set *set)
{
	uint32_t count = 0;

	for (unsigned int i = 0; i < STANDIN_PROCESSES / 64; i++)
		count += __builtin_popcountll(set->words[i]);
	return count;
}

uint32_t standin_node(const struct standin_state *state, const char *name)
{
	if (!*name)
		return 0;
	for (uint32_t node = 0; node < state->node_count; node++)
		if (!strcmp(state->nodes[node], name))
			return node;
	return STANDIN_NOBODY;
}
