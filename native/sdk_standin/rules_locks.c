/* SPDX-License-Identifier: Apache-2.0 */
/* Locks of objects with flags exactly 0x1 (SDK specification 7.6).  They never wait. */
#include "standin.h"
#include "state.h"

static int held(const struct standin_record *record)
{
	for (uint32_t i = 0; i < STANDIN_PROCESSES; i++)
		if (record->holds[i])
			return 1;
	return 0;
}

int standin_locks_turn(struct standin_turn *turn)
{
	struct standin_record *record = standin_find(turn->cluster->state, turn->request->name);
	uint8_t *mine;

	if (!record)
		return UBSM_ERR_NOT_FOUND;
	if (standin_busy(record))
		return UBSM_ERR_BUSY;
	mine = &record->holds[turn->process];
	if (turn->request->op == STANDIN_UNLOCK) {
		if (!*mine)
			return UBSM_ERR_NOT_FOUND;
		--*mine;
		record->writing = record->writing && held(record);
		return UBSM_OK;
	}
	if (held(record) && (record->writing || turn->request->op == STANDIN_WRITE_LOCK))
		return *mine ? UBSM_ERR_LOCK_ALREADY_LOCKED : UBSM_ERR_DLOCK;
	if (*mine == UINT8_MAX)
		return UBSM_ERR_DLOCK;
	++*mine;
	record->writing = turn->request->op == STANDIN_WRITE_LOCK;
	return UBSM_OK;
}
