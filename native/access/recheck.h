/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A look at the content version in memory itself.  On a cacheable import the
 * host's caches hide a new publication (driver specification 16): the granule
 * with the header is invalidated, then its version is loaded anew (Engram
 * specification 5.3, 10-17).
 *
 * Native threads run it without an interpreter.  A thread that changes the rights of
 * the granule holds it meanwhile, so that no run brings back a right that was
 * given up.
 */
#ifndef OBMM_RECHECK_H
#define OBMM_RECHECK_H

#include "../abi/lp64.h"

#include <stdint.h>

#include "../core/sys.h"
#include "gate.h"

#ifdef __cplusplus
extern "C" {
#endif

struct obmm_recheck;

/* Where the header is mapped. */
struct obmm_header_place {
	int fd;
	uint64_t start, end;	 /* the granule, user addresses */
	const uint64_t *version; /* in it */
	struct obmm_gate *gate;	 /* of the mapping */
};

/* As if held; resume it first.  NULL without memory. */
struct obmm_recheck *obmm_recheck_create(struct obmm_sys *sys, const struct obmm_header_place *place);
/* Call it when no thread runs it any more. */
void obmm_recheck_free(struct obmm_recheck *recheck);

/* Wait for a run that is under way; the next ones wait for resume. */
void obmm_recheck_hold(struct obmm_recheck *recheck);
/* readonly: the granule's right is R.  With W, unwritten lines would be lost; with N, nothing can be loaded. */
void obmm_recheck_resume(struct obmm_recheck *recheck, int readonly);

/*
 * 0 and the version, or -EPERM (the right is not R), -EBADF (the mapping was
 * closed), -EFAULT (the load, with *fault), or what UPDATE_RANGE answered.
 */
int obmm_recheck_run(struct obmm_recheck *recheck, uint64_t *version, struct obmm_fault *fault);

#ifdef __cplusplus
}
#endif

#endif
