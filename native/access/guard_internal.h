/* SPDX-License-Identifier: Apache-2.0 */
#ifndef OBMM_GUARD_INTERNAL_H
#define OBMM_GUARD_INTERNAL_H

#include <signal.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <ucontext.h>

#include "guard.h"

#pragma GCC visibility push(hidden)

/* guard_call.c: see there. */
int obmm_guard_call(uintptr_t *sp, int (*fn)(void *arg), void *arg);
void obmm_guard_land(ucontext_t *context, uintptr_t sp);
/* The program counter of a signal's context, and going on elsewhere. */
uintptr_t obmm_guard_pc(const ucontext_t *context);
void obmm_guard_go(ucontext_t *context, uintptr_t pc);

/* guard_ranges.c: fills id, offset and address; async-signal-safe. */
bool obmm_guard_find(uintptr_t address, struct obmm_fault *fault);

/*
 * Initial-exec: the handler must not enter the dynamic linker, which may
 * allocate on a thread's first access to a library's thread-local variable.
 */
#define OBMM_GUARD_TLS _Thread_local __attribute__((tls_model("initial-exec")))

/* guard_chain.c: install the handlers if that has not happened yet. */
int obmm_guard_arm(void);

/* guard_chain.c: hand a stranger's signal to the handler that was there when level `level` was installed. */
void obmm_guard_pass_on(int level, int signo, siginfo_t *info, void *context);

/* guard_chain.c: its lock must not be held by a thread that a fork leaves behind. */
void obmm_guard_chain_prefork(void);
void obmm_guard_chain_postfork(void);

/* guard.c: every signal comes here first, from the entry of `level`. */
void obmm_guard_on_fault(int level, int signo, siginfo_t *info, void *context);

/* How much may still be done in this thread before somebody looks; 0 in a new thread. */
extern OBMM_GUARD_TLS uint32_t obmm_guard_credit;

/* Before each guarded access.  A longer one is worth more than one look. */
static inline void obmm_guard_ready(size_t length)
{
	size_t price = 1 + (length >> 12);

	if (__builtin_expect(obmm_guard_credit >= price, 1))
		obmm_guard_credit -= (uint32_t)price;
	else
		obmm_guard_look();
}

#pragma GCC visibility pop

#endif
