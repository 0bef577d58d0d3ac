/* SPDX-License-Identifier: Apache-2.0 */
#ifndef OBMM_GUARD_INTERNAL_H
#define OBMM_GUARD_INTERNAL_H

#include <stdbool.h>
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

/* guard.c: install the handlers if that has not happened yet. */
int obmm_guard_arm(void);

#pragma GCC visibility pop

#endif
