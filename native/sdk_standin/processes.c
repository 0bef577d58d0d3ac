/* SPDX-License-Identifier: Apache-2.0 */
/* Who uses the cluster, and what they leave behind (SDK specification 5, 7.1). */
#include <string.h>

#include "standin.h"
#include "state.h"

uint32_t standin_enter(struct standin_cluster *cluster, int32_t pid, uint32_t uid, uint32_t gid, uint32_t node, int stay)
{
	struct standin_state *state = cluster->state;
	const uint64_t since = standin_started(pid);
	uint32_t found = STANDIN_NOBODY;

	for (uint32_t i = 0; i < STANDIN_PROCESSES; i++) {
		struct standin_process *process = &state->processes[i];

		if (process->used && process->pid == pid && process->started == since) {
			found = i;
			break;
		}
		if (!process->used && found == STANDIN_NOBODY)
			found = i;
	}
	if (found == STANDIN_NOBODY)
		return found;
	if (state->processes[found].used && !stay)
		standin_leave(cluster, found, state->processes[found].session);
	if (!++state->sessions)
		state->sessions = 1;
	state->processes[found] = (struct standin_process){
		.used = 1,
		.pid = pid,
		.started = since,
		.node = node,
		.uid = uid,
		.gid = gid,
		.session = state->sessions,
	};
	return found;
}

void standin_release(struct standin_record *record, uint32_t process, uint32_t node)
{
	struct standin_attachment *on = &record->on[node];

	if (on->there && standin_in(&on->users, process))
		standin_put(&on->leaving, process);
}

static void unlock_all(struct standin_record *record, uint32_t process)
{
	record->holds[process] = 0;
	for (uint32_t i = 0; i < STANDIN_PROCESSES; i++)
		if (record->holds[i])
			return;
	record->writing = 0;
}

void standin_leave(struct standin_cluster *cluster, uint32_t process, uint32_t session)
{
	struct standin_state *state = cluster->state;
	struct standin_process *gone = &state->processes[process];

	if (!gone->used || gone->session != session)
		return;
	gone->session = 0;
	for (uint32_t i = 0; i < state->records_end; i++) {
		if (state->records[i].kind == STANDIN_FREE)
			continue;
		unlock_all(&state->records[i], process);
		standin_release(&state->records[i], process, gone->node);
	}
	standin_sweep(cluster);
}

void standin_bury(struct standin_cluster *cluster)
{
	struct standin_state *state = cluster->state;

	for (uint32_t i = 0; i < STANDIN_PROCESSES; i++) {
		struct standin_process *process = &state->processes[i];

		if (process->used && process->session && standin_started(process->pid) != process->started)
			standin_leave(cluster, i, process->session);
	}
}

static int sweep_record(struct standin_cluster *cluster, struct standin_record *record)
{
	int left = 0;

	for (uint32_t node = 0; node < cluster->state->node_count; node++) {
		struct standin_attachment *on = &record->on[node];

		standin_undo(cluster, record, node);
		for (uint32_t i = 0; on->there && i < STANDIN_PROCESSES; i++)
			if (standin_in(&on->leaving, i) && standin_detach(cluster, record, i))
				left = 1;
	}
	/* a lease goes with its borrower */
	if (record->kind == STANDIN_MAKING || (record->kind == STANDIN_LEASED && !standin_attached(record)))
		left |= standin_free(cluster, record) != UBSM_OK;
	return left;
}

/* Its number is free again. */
static int forgotten(const struct standin_state *state, uint32_t process)
{
	if (state->processes[process].session)
		return 0;
	for (uint32_t i = 0; i < state->records_end; i++)
		if (state->records[i].kind != STANDIN_FREE &&
		    standin_in(&state->records[i].on[state->processes[process].node].users, process))
			return 0;
	return 1;
}

int standin_sweep(struct standin_cluster *cluster)
{
	struct standin_state *state = cluster->state;
	int left = 0;

	for (uint32_t i = 0; i < state->records_end; i++)
		if (state->records[i].kind != STANDIN_FREE)
			left |= sweep_record(cluster, &state->records[i]);
	for (uint32_t i = 0; i < STANDIN_PROCESSES; i++)
		if (state->processes[i].used && forgotten(state, i))
			state->processes[i].used = 0;
	return left;
}
