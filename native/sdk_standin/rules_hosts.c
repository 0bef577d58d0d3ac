/* SPDX-License-Identifier: Apache-2.0 */
/* Hosts, their memory and named groups of them (SDK specification 6.1, 6.3, 8).  Every node is every other's neighbour. */
#include <string.h>

#include "standin.h"
#include "state.h"

#define REGIONS_PER_NODE 256 /* 4.1 */

static struct standin_region *find(const struct standin_state *state, uint32_t node, const char *name)
{
	for (uint32_t i = 0; i < STANDIN_REGIONS; i++) {
		const struct standin_region *region = &state->regions[i];

		if (region->used && region->node == node && !strcmp(region->name, name))
			return (struct standin_region *)region;
	}
	return NULL;
}

int standin_choose(const struct standin_state *state, uint32_t node, const char *name, struct standin_choice *choice)
{
	const struct standin_region *region;

	*choice = (struct standin_choice){ 0 };
	if (!strcmp(name, "default")) {
		choice->nodes = (1u << state->node_count) - 1;
		choice->providers[choice->count++] = node;
		for (uint32_t other = 0; other < state->node_count; other++)
			if (other != node)
				choice->providers[choice->count++] = other;
		return UBSM_OK;
	}
	region = find(state, node, name);
	if (!region)
		return UBSM_ERR_NOT_FOUND;
	for (uint32_t i = 0; i < region->count; i++) {
		choice->nodes |= 1u << region->hosts[i];
		if (region->affinity[i])
			choice->providers[choice->count++] = region->hosts[i];
	}
	return UBSM_OK;
}

static int groups(struct standin_turn *turn)
{
	const struct standin_state *state = turn->cluster->state;
	const uint32_t node = standin_caller(turn)->node;
	ubsmem_region_attributes_t *group;
	ubsmem_regions_t *out;

	turn->engine = 3;
	if (state->node_count < 2)
		return UBSM_ERR_UBSE;
	out = standin_room(turn, sizeof(*out));
	if (!out)
		return UBSM_ERR_MALLOC_FAIL;
	out->num = 1;
	group = &out->region[0];
	strcpy(group->hosts[group->host_num++].host_name, state->nodes[node]); /* this node first */
	for (uint32_t other = 0; other < state->node_count; other++)
		if (other != node)
			strcpy(group->hosts[group->host_num++].host_name, state->nodes[other]);
	return UBSM_OK;
}

static int create(struct standin_turn *turn)
{
	struct standin_state *state = turn->cluster->state;
	const uint32_t node = standin_caller(turn)->node;
	const ubsmem_region_attributes_t *wanted = turn->payload;
	struct standin_region *room = NULL;
	uint32_t taken = 0;

	if (turn->request->size != sizeof(*wanted) || wanted->host_num < 0 || wanted->host_num > STANDIN_NODES ||
	    strlen(turn->request->region) > UBSM_MAX_NAME)
		return UBSM_ERR_PARAM_INVALID;
	if (find(state, node, turn->request->region))
		return UBSM_ERR_ALREADY_EXIST;
	for (uint32_t i = 0; i < STANDIN_REGIONS; i++) {
		if (!state->regions[i].used)
			room = &state->regions[i];
		else
			taken += state->regions[i].node == node;
	}
	if (!room || taken >= REGIONS_PER_NODE)
		return UBSM_CHECK_RESOURCE_ERROR;
	*room = (struct standin_region){ .node = node };
	strcpy(room->name, turn->request->region);
	for (int i = 0; i < wanted->host_num; i++) {
		const char *name = wanted->hosts[i].host_name;
		uint32_t host = *name && memchr(name, 0, 64) ? standin_node(state, name) : STANDIN_NOBODY;

		if (host == STANDIN_NOBODY)
			return UBSM_CHECK_RESOURCE_ERROR;
		room->hosts[room->count] = host;
		room->affinity[room->count++] = wanted->hosts[i].affinity;
	}
	room->used = 1;
	return UBSM_OK;
}

static int lookup(struct standin_turn *turn)
{
	const struct standin_region *region =
		find(turn->cluster->state, standin_caller(turn)->node, turn->request->region);
	ubsmem_region_desc_t *out;

	if (!region)
		return UBSM_ERR_NOT_FOUND;
	out = standin_room(turn, sizeof(*out));
	if (!out)
		return UBSM_ERR_MALLOC_FAIL;
	strcpy(out->region_name, region->name);
	out->region_attr.host_num = region->count;
	for (uint32_t i = 0; i < region->count; i++) {
		strcpy(out->region_attr.hosts[i].host_name, turn->cluster->state->nodes[region->hosts[i]]);
		out->region_attr.hosts[i].affinity = region->affinity[i];
	}
	return UBSM_OK;
}

static int destroy(struct standin_turn *turn)
{
	struct standin_region *region = find(turn->cluster->state, standin_caller(turn)->node, turn->request->region);

	if (!region)
		return UBSM_ERR_NOT_FOUND;
	region->used = 0;
	return UBSM_OK;
}

static uint64_t lent(const struct standin_state *state, uint32_t node)
{
	uint64_t units = 0;

	for (uint32_t i = 0; i < state->records_end; i++)
		if (state->records[i].kind != STANDIN_FREE && state->records[i].provider == node)
			units += state->records[i].count;
	return units * state->unit;
}

static uint64_t borrowed(const struct standin_state *state, uint32_t node)
{
	uint64_t units = 0;

	for (uint32_t i = 0; i < state->records_end; i++)
		if (state->records[i].kind == STANDIN_LEASED && state->records[i].provider != node &&
		    state->records[i].on[node].there)
			units += state->records[i].count;
	return units * state->unit;
}

static int cluster(struct standin_turn *turn)
{
	struct standin_state *state = turn->cluster->state;
	ubsmem_cluster_info_t *out = standin_room(turn, sizeof(*out));

	if (!out)
		return UBSM_ERR_MALLOC_FAIL;
	turn->engine = 1 + state->node_count;
	for (uint32_t node = 0; node < state->node_count; node++) {
		ubsmem_host_info_t *host = &out->host[out->host_num];
		uint64_t total, used;

		strcpy(host->host_name, state->nodes[node]);
		for (uint32_t numa = 0; numa < 32; numa++) {
			ubsmem_numa_mem_t *memory = &host->numa[host->numa_num];

			if (fabric_pool(turn->cluster, node, numa, &total, &used))
				continue;
			*memory = (ubsmem_numa_mem_t){
				.slot_id = node + 1,
				.numa_id = numa,
				.mem_lend_ratio = 100,
				.mem_total = total,
				.mem_free = total > used ? total - used : 0,
			};
			if (!host->numa_num++) {
				memory->mem_borrow = borrowed(state, node);
				memory->mem_lend = lent(state, node);
			}
		}
		if (host->numa_num) /* else its statistics failed: left out (6.3) */
			out->host_num++;
	}
	return UBSM_OK;
}

static int slot(struct standin_turn *turn)
{
	uint32_t *out = standin_room(turn, sizeof(*out));

	if (!out)
		return UBSM_ERR_MALLOC_FAIL;
	turn->engine = 1;
	*out = standin_caller(turn)->node + 1;
	return UBSM_OK;
}

int standin_hosts_turn(struct standin_turn *turn)
{
	switch (turn->request->op) {
	case STANDIN_GROUPS:
		return groups(turn);
	case STANDIN_REGION_CREATE:
		return create(turn);
	case STANDIN_REGION_LOOKUP:
		return lookup(turn);
	case STANDIN_REGION_DESTROY:
		return destroy(turn);
	case STANDIN_CLUSTER:
		return cluster(turn);
	default:
		return slot(turn);
	}
}
