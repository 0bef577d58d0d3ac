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
 * Handlers that were installed after ours and signals that a thread has blocked
 * would keep a fault from us.  Each thread's guarded calls look every
 * OBMM_GUARD_CREDIT calls at the latest, the first one at once, and mend it.
 *
 * Any number of threads may be inside at once.  Nothing here allocates after
 * obmm_guard_add() returned, and the handler takes no lock.
 */
#ifndef OBMM_GUARD_H
#define OBMM_GUARD_H

#include "../abi/lp64.h"

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

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

/* Whether the address lies in a registered range. */
int obmm_guard_covers(const void *address);

/* Ranges registered now. */
int obmm_guard_count(void);

/*
 * Bit 0: SIGBUS, bit 1: SIGSEGV goes to a handler that was installed after
 * ours, so that a fault would not reach us.  0: all is well.  Two system calls.
 */
int obmm_guard_check(void);

/*
 * Install the handlers, or put them back on top of whatever displaced them;
 * the displacing handler becomes the one that strangers' faults go to.
 * 0 or a negative errno (-ENOSPC: by too many different ones).
 */
int obmm_guard_install(void);

/*
 * As if SIG_DFL, or SIG_IGN if `ignored`, had been installed for the signal and
 * we had been put back on top of it; but a fault of another thread finds our
 * handler at every moment.  0, -EAGAIN before the first range was added, -EINVAL
 * for a signal that is not guarded, -ENOSPC as obmm_guard_install().
 */
int obmm_guard_displace(int signo, int ignored);

/*
 * Make sure, now, that a fault of this thread reaches us: both signals are
 * unblocked and our handlers in front.  Three system calls.  Nothing happens
 * before the first range was added.
 */
void obmm_guard_look(void);

/* This thread's next guarded call looks: its signal mask was changed. */
void obmm_guard_distrust(void);

enum { OBMM_GUARD_CREDIT = 256 };

/*
 * Call fn(arg).  Returns what it returns, or -EFAULT with *fault filled (may
 * be NULL) when it faulted inside a registered range; then fn has not
 * finished: it must hold no lock and own no memory, and its stack frames are
 * gone.
 * Calls nest; a fault ends the innermost.
 */
int obmm_guard_run(int (*fn)(void *arg), void *arg, struct obmm_fault *fault);

#ifdef __cplusplus
}
#endif

#endif
