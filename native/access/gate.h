/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A gate counts who is inside a mapping, so that the thread that unmaps it can shut
 * the gate, wait until the last one is out, and be sure that no thread touches
 * the addresses again, which the next mmap may hand out for other memory.
 *
 * The obmm_gated_* calls are those of copy.h with the gate entered around
 * them: one call from an interpreter, no lock.
 */
#ifndef OBMM_GATE_H
#define OBMM_GATE_H

#include "../abi/lp64.h"

#include <stddef.h>
#include <stdint.h>

#include "copy.h"

#ifdef __cplusplus
extern "C" {
#endif

struct obmm_gate {
	uint32_t state; /* bit 31: shut; below: how many are inside */
};

/* 0, or -EBADF when the gate is shut. */
int obmm_gate_enter(struct obmm_gate *gate);
void obmm_gate_leave(struct obmm_gate *gate);

/* How many are inside. */
uint32_t obmm_gate_inside(const struct obmm_gate *gate);

/*
 * Shut the gate and wait until it is empty, at most timeout_ms (negative:
 * for ever).  0, or -ETIMEDOUT: then it is open again.
 */
int obmm_gate_shut(struct obmm_gate *gate, int64_t timeout_ms);

/* Open it again after a close that was given up. */
void obmm_gate_reopen(struct obmm_gate *gate);

/* nc: the mapping is non-cacheable.  fault may be NULL. */
int obmm_gated_copy_from(struct obmm_gate *gate, void *dst, uint64_t address, size_t length, int nc,
			 struct obmm_fault *fault);
int obmm_gated_copy_to(struct obmm_gate *gate, uint64_t address, const void *src, size_t length, int nc,
		       struct obmm_fault *fault);

/*
 * Scalars by address and by value: nothing to allocate on the caller's side.
 * fault may be NULL.
 */
struct obmm_loaded {
	uint64_t value;
	int64_t result; /* 0 or a negative errno */
};

struct obmm_loaded obmm_gated_load(struct obmm_gate *gate, uint64_t address, unsigned int width,
				   struct obmm_fault *fault);
int obmm_gated_store(struct obmm_gate *gate, uint64_t address, unsigned int width, uint64_t value,
		     struct obmm_fault *fault);

#ifdef __cplusplus
}
#endif

#endif
