/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Accesses that may fault at a known place in the code.  Each is one asm block
 * with an entry in the section obmm_fixups: from where, to where, and the
 * label to go on at after a fault.  They cost nothing when nothing faults, where
 * obmm_guard_run() costs two calls; the compiler knows what the label means, so
 * no register or stack frame has to be saved.
 *
 * After a fault obmm_last_fault() says what happened.
 */
#ifndef OBMM_FIXUP_H
#define OBMM_FIXUP_H

#include <stddef.h>
#include <stdint.h>

#include "guard.h"

#pragma GCC visibility push(hidden)

struct obmm_fixup {
	int32_t from, to, landing; /* relative to the member itself */
};

/* The landing for a fault at pc, or 0. */
uintptr_t obmm_fixup_find(uintptr_t pc);

/* The fault that sent this thread to a landing last. */
const struct obmm_fault *obmm_last_fault(void);

/* In a sanitizer's build accesses stay where it sees them. */
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define OBMM_FIXUPS 0
#else
#define OBMM_FIXUPS 1
#endif

/*
 * Lengths that obmm_fixup_copy() takes.  Longer copies gain nothing over a
 * guarded memcpy, which knows better how to do them.
 */
static inline int obmm_fixup_can_copy(size_t length)
{
	enum { LONGEST = 16 << 10 };
#if defined(__x86_64__)
	return length - 32 <= LONGEST - 32 && __builtin_cpu_supports("avx2");
#else
	return length - 64 <= LONGEST - 64;
#endif
}

/* Copy; 0 or -EFAULT. */
int obmm_fixup_copy(void *dst, const void *src, size_t length);

/* One naturally aligned access of 1, 2, 4 or 8 bytes; 0 or -EFAULT. */
int obmm_fixup_load(const void *src, unsigned int width, uint64_t *value);
int obmm_fixup_store(void *dst, unsigned int width, uint64_t value);

#pragma GCC visibility pop

#endif
