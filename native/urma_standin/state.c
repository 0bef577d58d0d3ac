/* SPDX-License-Identifier: Apache-2.0 */
#include "state.h"

#include <errno.h>
#include <limits.h>
#include <linux/futex.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define MAGIC 0x616d72752d6f6273ULL /* "sbo-urma" */

static int fill(struct urma_state *state, const char *nodes)
{
	int rc;

	while (*nodes) {
		const size_t length = strcspn(nodes, ",");

		if (!length || length >= sizeof(state->nodes[0]) || state->node_count == URMA_NODES)
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

int urma_state_create(const char *folder, const char *nodes)
{
	void *made;
	int rc = standin_file_create(folder, sizeof(struct urma_state), sizeof(struct urma_state), &made);

	if (rc)
		return rc;
	rc = fill(made, nodes);
	urma_state_close(made);
	if (rc)
		standin_file_remove(folder);
	return rc;
}

/* Numbers that are used as places, and texts that end: a file that something else wrote into must not lead a reader out of it. */
static int sound(const struct urma_state *state)
{
	int good = state->magic == MAGIC && state->bytes == sizeof(*state) && state->node_count &&
		   state->node_count <= URMA_NODES && state->rule_count <= URMA_RULES &&
		   state->segments_end <= URMA_SEGMENTS && state->targets_end <= URMA_TARGETS;

	for (uint32_t i = 0; good && i < state->node_count; i++)
		good = memchr(state->nodes[i], 0, sizeof(state->nodes[i])) != NULL;
	for (uint32_t i = 0; good && i < state->rule_count; i++)
		good = memchr(state->rules[i].node, 0, sizeof(state->rules[i].node)) != NULL;
	for (uint32_t i = 0; good && i < URMA_PROCESSES; i++)
		good = !state->processes[i].uasid || state->processes[i].node < state->node_count;
	for (uint32_t i = 0; good && i < URMA_SEGMENTS; i++)
		good = state->segments[i].owner <= URMA_PROCESSES;
	for (uint32_t i = 0; good && i < URMA_TARGETS; i++)
		good = state->targets[i].owner <= URMA_PROCESSES;
	return good;
}

int urma_state_open(const char *folder, struct urma_state **out)
{
	void *opened;
	int rc = standin_file_open(folder, sizeof(**out), &opened);

	if (rc)
		return rc;
	*out = opened;
	if (sound(*out))
		return 0;
	urma_state_close(*out);
	return -EPROTO;
}

void urma_state_close(struct urma_state *state)
{
	munmap(state, sizeof(*state));
}

void urma_lock(struct urma_state *state)
{
	standin_mutex_lock(&state->lock);
}

void urma_unlock(struct urma_state *state)
{
	pthread_mutex_unlock(&state->lock);
}

int urma_node(const struct urma_state *state, const char *name)
{
	if (!*name)
		return 0;
	for (uint32_t node = 0; node < state->node_count; node++)
		if (!strcmp(state->nodes[node], name))
			return (int)node;
	return URMA_NOBODY;
}

void urma_eid_of(uint32_t node, urma_eid_t *eid)
{
	memset(eid, 0, sizeof(*eid));
	eid->raw[0] = 0xfd;
	eid->raw[14] = (uint8_t)((node + 1) >> 8);
	eid->raw[15] = (uint8_t)(node + 1);
}

int urma_node_of(const struct urma_state *state, const uint8_t *eid)
{
	for (uint32_t node = 0; node < state->node_count; node++) {
		urma_eid_t own;

		urma_eid_of(node, &own);
		if (!memcmp(own.raw, eid, sizeof(own.raw)))
			return (int)node;
	}
	return URMA_NOBODY;
}

int urma_process_of(const struct urma_state *state, uint32_t node, uint32_t uasid)
{
	for (int i = 0; uasid && i < URMA_PROCESSES; i++) {
		const struct urma_process *process = &state->processes[i];

		if (process->uasid == uasid && process->node == node)
			return urma_lives(process) ? i : URMA_NOBODY;
	}
	return URMA_NOBODY;
}

void urma_forget(struct urma_state *state, uint32_t process)
{
	for (uint32_t i = 0; i < URMA_SEGMENTS; i++)
		if (state->segments[i].owner == process + 1)
			state->segments[i].owner = 0;
	for (uint32_t i = 0; i < URMA_TARGETS; i++)
		if (state->targets[i].owner == process + 1)
			state->targets[i].owner = 0;
	for (uint32_t i = 0; i < URMA_PINS; i++)
		if (state->pins[i].process == process + 1)
			urma_unpin(state, (int)i);
	memset(&state->processes[process], 0, sizeof(state->processes[process]));
}

void urma_sweep(struct urma_state *state)
{
	for (uint32_t i = 0; i < URMA_PROCESSES; i++)
		if (state->processes[i].uasid && !urma_lives(&state->processes[i]))
			urma_forget(state, i);
}

static uint64_t seconds(void)
{
	return urma_now_ns() / 1000000000u + 1;
}

uint32_t urma_new_token_id(struct urma_state *state)
{
	const uint32_t table = state->next_table % URMA_TABLES + 1;
	uint64_t *used = &state->tables_used[table / URMA_TABLE_BLOCK];

	if (table % URMA_TABLE_BLOCK == 0 || table == 1) {
		if (*used && seconds() - *used < 3600)
			return 0;
		*used = seconds();
	}
	state->next_table++;
	return table << 8;
}

int urma_pin(struct urma_state *state, uint32_t process, uint32_t segment)
{
	for (int i = 0; i < URMA_PINS; i++) {
		struct urma_pin *pin = &state->pins[i];

		if (__atomic_load_n(&pin->process, __ATOMIC_SEQ_CST))
			continue;
		pin->segment = segment + 1;
		__atomic_store_n(&pin->process, process + 1, __ATOMIC_SEQ_CST);
		return i;
	}
	return URMA_NOBODY;
}

void urma_unpin(struct urma_state *state, int pin)
{
	__atomic_store_n(&state->pins[pin].process, 0, __ATOMIC_SEQ_CST);
	__atomic_add_fetch(&state->unpinned, 1, __ATOMIC_SEQ_CST);
	if (__atomic_load_n(&state->waiting, __ATOMIC_SEQ_CST))
		syscall(SYS_futex, &state->unpinned, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
}

static int pinned(struct urma_state *state, uint32_t segment)
{
	int found = 0;

	for (uint32_t i = 0; i < URMA_PINS; i++) {
		struct urma_pin *pin = &state->pins[i];
		const uint32_t process = __atomic_load_n(&pin->process, __ATOMIC_SEQ_CST);

		if (!process || process > URMA_PROCESSES || pin->segment != segment + 1)
			continue;
		if (urma_lives(&state->processes[process - 1]))
			found = 1;
		else
			__atomic_store_n(&pin->process, 0, __ATOMIC_SEQ_CST);
	}
	return found;
}

void urma_wait_unpinned(struct urma_state *state, uint32_t segment)
{
	const struct timespec look_again = { .tv_nsec = 50000000 }; /* the death of a copier wakes no waiter */

	__atomic_add_fetch(&state->waiting, 1, __ATOMIC_SEQ_CST);
	for (;;) {
		const uint32_t seen = __atomic_load_n(&state->unpinned, __ATOMIC_SEQ_CST);

		if (!pinned(state, segment))
			break;
		syscall(SYS_futex, &state->unpinned, FUTEX_WAIT, seen, &look_again, NULL, 0);
	}
	__atomic_sub_fetch(&state->waiting, 1, __ATOMIC_SEQ_CST);
}

uint64_t urma_now_ns(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}
