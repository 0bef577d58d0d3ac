/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "fixup.h"
#include "guard_internal.h"

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#define forget_abandoned_frames() __asan_handle_no_return()
#else
#define forget_abandoned_frames() ((void)0)
#endif

enum { SIGNALS = 2, MAX_DISPLACED = 32 };

static const int guarded_signals[SIGNALS] = { SIGBUS, SIGSEGV };

/*
 * For each signal, the handlers that were there when we installed ours: the
 * original one and those that displaced us since.  Only ever appended to, and
 * read by the handler up to depth[].
 */
static struct sigaction displaced[SIGNALS][MAX_DISPLACED];
static _Atomic int depth[SIGNALS];
static pthread_mutex_t install_mutex = PTHREAD_MUTEX_INITIALIZER;

/* The innermost guarded call of this thread. */
struct frame {
	uintptr_t sp;
	struct obmm_fault fault;
	struct frame *outer;
};

/*
 * Initial-exec: the handler must not enter the dynamic linker, which may
 * allocate on a thread's first access to a library's thread-local variable.
 */
#define THREAD_LOCAL static _Thread_local __attribute__((tls_model("initial-exec")))

THREAD_LOCAL struct frame *volatile current;
/* For accesses with a fixup, which have no frame. */
THREAD_LOCAL struct obmm_fault last_fault;
/*
 * How often a fault came back to us from a handler that it was handed to is
 * written into its own context: uc_link points so far into this array.  The
 * kernel sets it to NULL for each signal, so nothing is left over when a handler
 * leaves by a jump and never returns to us.
 */
static char returned[MAX_DISPLACED + 1];

/* Raised by this thread's own access, rather than sent or only announced? */
static bool is_access_fault(int signo, const siginfo_t *info)
{
	if (info->si_code <= 0 || info->si_code == SI_KERNEL)
		return false;
	return signo != SIGBUS || info->si_code != BUS_MCEERR_AO;
}

/* What the kernel would have done with the signal had nobody handled it. */
static void default_action(int signo, siginfo_t *info, bool ignored)
{
	struct sigaction action = { .sa_handler = SIG_DFL };

	if (ignored && info->si_code <= 0)
		return;
	sigaction(signo, &action, NULL);
	/*
	 * A faulting instruction runs again when we return and meets the default
	 * action with its own address and context.  A signal that was sent does
	 * not come again by itself.
	 */
	if (info->si_code <= 0 || info->si_code == BUS_MCEERR_AO)
		syscall(SYS_rt_tgsigqueueinfo, getpid(), (pid_t)syscall(SYS_gettid), signo, info);
}

/*
 * Hand the signal to the handler that was there before, with the mask it asked
 * for.  If that handler passes it back to us (it displaced us and chains to
 * what it found), the next older one gets it.
 */
static void pass_on(int index, int signo, siginfo_t *info, void *context)
{
	ucontext_t *frame = context;
	struct ucontext_t *link = frame->uc_link;
	size_t times = (uintptr_t)link - (uintptr_t)returned;
	int level = atomic_load_explicit(&depth[index], memory_order_acquire) - 1;
	struct sigaction *slot, previous;
	sigset_t block, saved;

	if (times > MAX_DISPLACED)
		times = 0; /* straight from the kernel */
	slot = &displaced[index][times < (size_t)level ? (size_t)level - times : 0];
	previous = *slot;
	if (previous.sa_handler == SIG_DFL || previous.sa_handler == SIG_IGN) {
		default_action(signo, info, previous.sa_handler == SIG_IGN);
		return;
	}
	block = previous.sa_mask;
	if (!(previous.sa_flags & SA_NODEFER))
		sigaddset(&block, signo);
	if (previous.sa_flags & (int)SA_RESETHAND)
		slot->sa_handler = SIG_DFL;
	pthread_sigmask(SIG_BLOCK, &block, &saved);
	if (times < MAX_DISPLACED)
		frame->uc_link = (struct ucontext_t *)&returned[times + 1];
	if (previous.sa_flags & SA_SIGINFO)
		previous.sa_sigaction(signo, info, context);
	else
		previous.sa_handler(signo);
	frame->uc_link = link;
	pthread_sigmask(SIG_SETMASK, &saved, NULL);
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

static void on_fault(int signo, siginfo_t *info, void *context)
{
	int saved_errno = errno;

	if (!recover(signo, info, context))
		pass_on(signo == SIGBUS ? 0 : 1, signo, info, context);
	errno = saved_errno;
}

static bool is_ours(const struct sigaction *action)
{
	return (action->sa_flags & SA_SIGINFO) && action->sa_sigaction == on_fault;
}

static int install_one(int index)
{
	/* NODEFER: a stranger's handler that we call may fault on guarded memory itself. */
	struct sigaction ours = { .sa_sigaction = on_fault, .sa_flags = SA_SIGINFO | SA_NODEFER | SA_ONSTACK };
	struct sigaction found;
	int level = atomic_load_explicit(&depth[index], memory_order_relaxed);

	if (sigaction(guarded_signals[index], NULL, &found))
		return -errno;
	if (is_ours(&found))
		return 0;
	if (level == MAX_DISPLACED)
		return -ENOSPC;
	/* Stand ready before the first fault can come. */
	displaced[index][level] = found;
	atomic_store_explicit(&depth[index], level + 1, memory_order_release);
	if (sigaction(guarded_signals[index], &ours, NULL))
		return -errno;
	return 0;
}

int obmm_guard_install(void)
{
	int result = 0;

	pthread_mutex_lock(&install_mutex);
	for (int i = 0; i < SIGNALS && !result; i++)
		result = install_one(i);
	pthread_mutex_unlock(&install_mutex);
	return result;
}

int obmm_guard_arm(void)
{
	if (atomic_load_explicit(&depth[SIGNALS - 1], memory_order_acquire))
		return 0;
	return obmm_guard_install();
}

int obmm_guard_check(void)
{
	int lost = 0;

	for (int i = 0; i < SIGNALS; i++) {
		struct sigaction found;

		if (sigaction(guarded_signals[i], NULL, &found) || !is_ours(&found))
			lost |= 1 << i;
	}
	return lost;
}

int obmm_guard_run(int (*fn)(void *arg), void *arg, struct obmm_fault *fault)
{
	struct frame frame;
	int result;

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
