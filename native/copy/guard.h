/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Guarded access: code that touches another node's memory and gets an error
 * instead of a dead process.
 *
 * A load from a node that died is a SIGBUS, one from a range without the
 * right is a SIGSEGV (driver specification 9.9, 17).  A fault is ours when it
 * is raised by the access itself, inside obmm_guard_run(), at an address
 * inside a registered range.  Everything else goes to the handler that was
 * there before, as if we were not.
 *
 * Any number of threads may be inside at once.  Nothing here allocates after
 * obmm_guard_add() returned, and the handler takes no lock.
 */
#ifndef OBMM_GUARD_H
#define OBMM_GUARD_H

#include <stddef.h>
#include <stdint.h>

struct obmm_fault {
	uint64_t id;	  /* the range's id, as given to obmm_guard_add() */
	uint64_t offset;  /* of the faulting byte, from the range's base */
	uint64_t address; /* base + offset */
	int32_t signo;	  /* SIGBUS or SIGSEGV */
	int32_t code;	  /* si_code: BUS_ADRERR, SEGV_ACCERR, ... */
};

/*
 * Register [base, base + length) under the caller's id, and install the
 * handlers if they are not.  Where ranges overlap, a fault is attributed to any
 * of them.  Returns a slot >= 0, -EINVAL (empty or wrapping range) or -ENOMEM.
 */
int obmm_guard_add(const void *base, size_t length, uint64_t id);

/* Forget a slot.  -EINVAL if it is not in use. */
int obmm_guard_remove(int slot);

/* Ranges registered now. */
int obmm_guard_count(void);

/*
 * Bit 0: SIGBUS, bit 1: SIGSEGV goes to a handler that was installed after
 * ours, so that a fault would not reach us.  0: all is well.  Two system
 * calls: ask at map and at gather, not at every load.
 */
int obmm_guard_check(void);

/*
 * Install the handlers, or put them back on top of whatever displaced them;
 * the displacing handler becomes the one that strangers' faults go to.
 * 0 or a negative errno (-ENOSPC: displaced too often).
 */
int obmm_guard_install(void);

/*
 * Call fn(arg).  Returns what it returns, or -EFAULT with *fault filled (may
 * be NULL) when it faulted inside a registered range; then fn has not
 * finished: it must hold no lock and own no memory, and its stack frames are
 * gone.
 * Calls nest; a fault ends the innermost.
 */
int obmm_guard_run(int (*fn)(void *arg), void *arg, struct obmm_fault *fault);

#endif
