/* SPDX-License-Identifier: Apache-2.0 */
/* Named shared objects (SDK specification 6.2, 7). */
#include <stdlib.h>
#include <string.h>

#include "standin.h"
#include "state.h"

/* The engine takes letters, digits and . : - _ (6). */
static int bad_characters(const char *name)
{
	static const char GOOD[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789.:-_";

	return !*name || name[strspn(name, GOOD)];
}

static int resolve(struct standin_turn *turn)
{
	struct standin_choice choice;

	turn->engine = strcmp(turn->request->region, "default") ? 0 : 3;
	return standin_choose(turn->cluster->state, standin_caller(turn)->node, turn->request->region, &choice);
}

static int make(struct standin_turn *turn, uint32_t provider, uint32_t nodes)
{
	const struct standin_request *request = turn->request;
	const struct standin_process *caller = standin_caller(turn);
	struct standin_record *record = standin_find(turn->cluster->state, request->name);
	int code;

	if (record)
		return standin_busy(record) ? UBSM_ERR_BUSY : UBSM_ERR_ALREADY_EXIST;
	if (strlen(request->name) > UBSM_MAX_NAME || bad_characters(request->name))
		return UBSM_ERR_UBSE;
	code = standin_make(turn->cluster, request->arg[0], request->arg[2], provider, &record);
	if (code)
		return code;
	strcpy(record->name, request->name);
	record->mode = request->arg[1];
	record->uid = caller->uid;
	record->gid = caller->gid;
	record->nodes = nodes;
	record->kind = STANDIN_OBJECT;
	return UBSM_OK;
}

static int create(struct standin_turn *turn)
{
	struct standin_choice choice;
	int code = standin_choose(turn->cluster->state, standin_caller(turn)->node, turn->request->region, &choice);

	turn->engine = 1;
	if (code)
		return code;
	return choice.count ? make(turn, choice.providers[0], choice.nodes) : UBSM_ERR_UBSE;
}

static int create_at(struct standin_turn *turn)
{
	const ubs_mem_provider_t *provider = turn->payload;
	uint32_t host;

	turn->engine = 2;
	if (turn->request->size != sizeof(*provider) || !provider->host_name[0] ||
	    !memchr(provider->host_name, 0, sizeof(provider->host_name)))
		return UBSM_ERR_PARAM_INVALID;
	host = standin_node(turn->cluster->state, provider->host_name);
	return host == STANDIN_NOBODY ? UBSM_ERR_NOT_FOUND : make(turn, host, UINT32_MAX);
}

/* The object that a request names, or the code that says why not. */
static struct standin_record *named(struct standin_turn *turn, int *code)
{
	struct standin_record *record = standin_find(turn->cluster->state, turn->request->name);

	*code = !record ? UBSM_ERR_NOT_FOUND : standin_busy(record) ? UBSM_ERR_BUSY : UBSM_OK;
	return *code ? NULL : record;
}

static int map(struct standin_turn *turn)
{
	int code;
	struct standin_record *record = named(turn, &code);

	if (!record)
		return code;
	turn->engine = record->on[standin_caller(turn)->node].there ? 0 : 2;
	code = standin_attach(turn->cluster, record, turn->process, turn->request->arg[0]);
	return code ? code : standin_units_body(turn, record);
}

static int unmap(struct standin_turn *turn)
{
	int code;
	struct standin_record *record = named(turn, &code);

	if (!record)
		return code;
	turn->engine = standin_members(&record->on[standin_caller(turn)->node].users) == 1;
	return standin_detach(turn->cluster, record, turn->process);
}

static int delete(struct standin_turn *turn)
{
	const struct standin_process *caller = standin_caller(turn);
	int code;
	struct standin_record *record = named(turn, &code);

	turn->engine = 2;
	if (!record)
		return code;
	if (caller->uid != record->uid || caller->gid != record->gid)
		return UBSM_ERR_NOPERM;
	return standin_attached(record) ? UBSM_ERR_IN_USING : standin_free(turn->cluster, record);
}

static int list(struct standin_turn *turn)
{
	const struct standin_state *state = turn->cluster->state;
	const size_t length = strlen(turn->request->name);
	uint32_t objects = 0, matching = 0;
	ubsmem_shmem_desc_t *out;

	turn->engine = 1;
	for (uint32_t i = 0; i < state->records_end; i++)
		objects += state->records[i].kind == STANDIN_OBJECT;
	if (!objects)
		return UBSM_ERR_NOT_FOUND;
	out = standin_room(turn, objects * sizeof(*out));
	if (!out)
		return UBSM_ERR_MALLOC_FAIL;
	for (uint32_t i = 0; i < state->records_end; i++) {
		const struct standin_record *record = &state->records[i];

		if (record->kind != STANDIN_OBJECT || strncmp(record->name, turn->request->name, length))
			continue;
		strcpy(out[matching].name, record->name);
		out[matching++].size = record->size;
	}
	turn->size = matching * sizeof(*out);
	return UBSM_OK;
}

static int lookup(struct standin_turn *turn)
{
	const struct standin_record *record = standin_find(turn->cluster->state, turn->request->name);
	const struct standin_attachment *on = record ? &record->on[standin_caller(turn)->node] : NULL;
	ubsmem_shmem_info_t *out;

	turn->engine = 2;
	if (!on || !on->there)
		return UBSM_ERR_NOT_FOUND;
	out = standin_room(turn, sizeof(*out));
	if (!out)
		return UBSM_ERR_MALLOC_FAIL;
	strcpy(out->name, record->name);
	out->size = record->size;
	out->mem_num = record->count;
	out->mem_unit_size = turn->cluster->state->unit;
	memcpy(out->mem_id_list, on->mem_ids, record->count * sizeof(uint64_t));
	return UBSM_OK;
}

/* After a reconnection: the names of the objects that the process still maps.  Others it has no more (5). */
static int still_used(struct standin_turn *turn)
{
	const char(*names)[48] = turn->payload;
	const uint32_t count = turn->request->size / sizeof(*names);

	for (uint32_t i = 0; i < turn->cluster->state->records_end; i++) {
		struct standin_record *record = &turn->cluster->state->records[i];
		uint32_t at = 0;

		if (record->kind != STANDIN_OBJECT)
			continue;
		while (at < count && strncmp(names[at], record->name, sizeof(*names)))
			at++;
		if (at == count)
			standin_release(record, turn->process, standin_caller(turn)->node);
	}
	standin_sweep(turn->cluster);
	return UBSM_OK;
}

int standin_objects_turn(struct standin_turn *turn)
{
	switch (turn->request->op) {
	case STANDIN_RESOLVE:
		return resolve(turn);
	case STANDIN_CREATE:
		return create(turn);
	case STANDIN_CREATE_AT:
		return create_at(turn);
	case STANDIN_MAP:
		return map(turn);
	case STANDIN_UNMAP:
		return unmap(turn);
	case STANDIN_DELETE:
		return delete(turn);
	case STANDIN_LIST:
		return list(turn);
	case STANDIN_LOOKUP:
		return lookup(turn);
	case STANDIN_STILL_OBJECTS:
		return still_used(turn);
	default:
		return UBSM_ERR_BUFF;
	}
}
