/* SPDX-License-Identifier: Apache-2.0 */
#include "guard.h"

#include <errno.h>

#include "fixup.h"
#include "guard_internal.h"

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#define forget_abandoned_frames() __asan_handle_no_return()
#else
#define forget_abandoned_frames() ((void)0)
#endif

/* The innermost guarded call of this thread. */
struct frame {
	uintptr_t sp;
	struct obmm_fault fault;
	struct frame *outer;
};

static OBMM_GUARD_TLS struct frame *volatile current;
/* For accesses with a fixup, which have no frame. */
static OBMM_GUARD_TLS struct obmm_fault last_fault;

/* Raised by this thread's own access, rather than sent or only announced? */
static bool is_access_fault(int signo, const siginfo_t *info)
{
	if (info->si_code <= 0 || info->si_code == SI_KERNEL)
		return false;
	return signo != SIGBUS || info->si_code != BUS_MCEERR_AO;
}

const struct obmm_fault *obmm_last_fault(void)
{
	return &last_fault;
}

/* Is it ours?  Then the context goes on at a landing. */
static bool recover(int signo, const siginfo_t *info, ucontext_t *context)
{
	uintptr_t landing = obmm_fixup_find(obmm_guard_pc(context));
	struct frame *frame = current;
	struct obmm_fault *fault;

	if ((!landing && !frame) || !is_access_fault(signo, info))
		return false;
	fault = landing ? &last_fault : &frame->fault;
	if (!obmm_guard_find((uintptr_t)info->si_addr, fault))
		return false;
	fault->signo = signo;
	fault->code = info->si_code;
	if (landing)
		obmm_guard_go(context, landing);
	else
		obmm_guard_land(context, frame->sp);
	return true;
}

void obmm_guard_on_fault(int level, int signo, siginfo_t *info, void *context)
{
	int saved_errno = errno;

	if (!recover(signo, info, context))
		obmm_guard_pass_on(level, signo, info, context);
	errno = saved_errno;
}

int obmm_guard_run(int (*fn)(void *arg), void *arg, struct obmm_fault *fault)
{
	struct frame frame;
	int result;

	obmm_guard_ready(0);
	frame.fault.signo = 0;
	frame.outer = current;
	current = &frame;
	result = obmm_guard_call(&frame.sp, fn, arg);
	current = frame.outer;
	if (__builtin_expect(frame.fault.signo != 0, 0)) {
		forget_abandoned_frames();
		if (fault)
			*fault = frame.fault;
	}
	return result;
}
