/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the cluster answers: the same rules whether a daemon runs them or, in
 * the in-process mode, the calling process itself (SDK specification 16.2).
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "standin.h"
#include "state.h"

struct standin_process *standin_caller(const struct standin_turn *turn)
{
	return &turn->cluster->state->processes[turn->process];
}

void *standin_room(struct standin_turn *turn, size_t size)
{
	turn->body = calloc(1, size ? size : 1);
	turn->size = turn->body ? size : 0;
	return turn->body;
}

int standin_units_body(struct standin_turn *turn, const struct standin_record *record)
{
	uint32_t node = standin_caller(turn)->node;
	const struct standin_attachment *on = &record->on[node];
	struct standin_units *units = standin_room(turn, sizeof(*units) + record->count * sizeof(uint64_t));

	if (!units)
		return UBSM_ERR_MALLOC_FAIL;
	units->size = record->size;
	units->unit = turn->cluster->state->unit;
	units->lease = record->number;
	units->count = record->count;
	/* the exporter of a 0x8 object maps it cacheable (7.3) */
	units->flags = node == record->provider ? record->flags & ~UBSM_FLAG_ONLY_IMPORT_NONCACHE : record->flags;
	units->open_mode = on->open_mode;
	memcpy(units->mem_ids, on->mem_ids, record->count * sizeof(uint64_t));
	return UBSM_OK;
}

static void take_fault(struct standin_state *state, uint32_t op, struct standin_fault *out)
{
	for (uint32_t i = 0; i < state->fault_count; i++) {
		struct standin_fault *fault = &state->faults[i];

		if (fault->op != op)
			continue;
		*out = *fault;
		if (!--fault->times) {
			state->fault_count--;
			memmove(fault, fault + 1, (state->fault_count - i) * sizeof(*fault));
		}
		return;
	}
}

static int run(struct standin_turn *turn)
{
	switch (turn->request->op) {
	case STANDIN_GROUPS:
	case STANDIN_REGION_CREATE:
	case STANDIN_REGION_LOOKUP:
	case STANDIN_REGION_DESTROY:
	case STANDIN_CLUSTER:
	case STANDIN_SLOT:
		return standin_hosts_turn(turn);
	case STANDIN_WRITE_LOCK:
	case STANDIN_READ_LOCK:
	case STANDIN_UNLOCK:
		return standin_locks_turn(turn);
	case STANDIN_LEASE:
	case STANDIN_LEASE_AT:
	case STANDIN_LEASE_FREE:
	case STANDIN_STILL_LEASES:
		return standin_leases_turn(turn);
	default:
		return standin_objects_turn(turn);
	}
}

int standin_answer(struct standin_turn *turn)
{
	struct standin_state *state = turn->cluster->state;
	struct standin_fault fault = { 0 };
	struct timespec delay;
	int code;

	standin_lock(state);
	take_fault(state, turn->request->op, &fault);
	standin_unlock(state);
	turn->lost = fault.lost;
	delay = (struct timespec){ fault.delay_ms / 1000, fault.delay_ms % 1000 * 1000000L };
	/* even a sleep of no time takes some */
	while (fault.delay_ms && nanosleep(&delay, &delay) && errno == EINTR)
		;
	if (fault.code)
		return fault.code;
	standin_lock(state);
	standin_sweep(turn->cluster);
	code = run(turn);
	standin_unlock(state);
	return code;
}
