/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The slots of a store, mapped here.
 *
 * On a non-cacheable mapping all may load and store.  On a cacheable one
 * a slot is whole granules, and a process takes the right before it touches it (driver
 * specification 16): a reader R with everything cached dropped, a writer W, and
 * both give it back when they leave.  Threads of one process share the
 * mapping's rights, so that they are counted here.
 */
#ifndef OBMM_AREA_H
#define OBMM_AREA_H

#include "../abi/lp64.h"

#include <stdint.h>

#include "../access/gate.h"
#include "../core/sys.h"
#include "slot.h"

#ifdef __cplusplus
extern "C" {
#endif

struct obmm_slot_use;

/* Immutable while batches run. */
struct obmm_block_area {
	uint8_t *base; /* of slot 0, aligned to a line */
	uint64_t stride; /* from slot to slot: a multiple of a line, of the granule where rights are taken */
	uint32_t slots;
	uint32_t capacity; /* most bytes of a block; header and capacity fit into a stride */
	uint64_t incarnation;
	uint64_t fingerprint;
	struct obmm_gate *gate; /* the mapping's, entered while slots are touched */
	/* Cacheable: who asks for rights, through which descriptor; use NULL: non-cacheable. */
	struct obmm_slot_use *use;
	struct obmm_sys *sys;
	int32_t fd;
};

/* NULL without memory. */
struct obmm_slot_use *obmm_slot_use_create(uint32_t slots);
void obmm_slot_use_free(struct obmm_slot_use *use);

/*
 * Take the right to read or write a slot: 0, -EBUSY (this process writes it: no
 * reader will find what it looks for), or the driver's answer.
 */
int obmm_slot_enter(const struct obmm_block_area *area, uint32_t slot, int to_write);
/* Give it back; a writer's lines are written back then.  0 or the driver's answer. */
int obmm_slot_leave(const struct obmm_block_area *area, uint32_t slot, int to_write);

/*
 * Make slots free for all readers: state and generation become 0, so that no
 * reader finds there what it was told.  For the owner, before it grants a slot
 * again.  0 or the first error; the others are done all the same.
 */
int obmm_slots_clear(const struct obmm_block_area *area, const uint32_t *slots, uint32_t count);

#ifdef __cplusplus
}
#endif

#endif
