/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Staying in front, and passing on what is not ours.
 *
 * Each time that our handler is installed over somebody else's it gets an entry
 * point of its own, a *level*, and remembers whom it displaced.  A handler that
 * saved what it found (level n), and chains to it, restores it, or raises the
 * signal again after restoring it, comes back at level n and from there reaches
 * the handler that was there before that level.  So every stranger's signal goes to each
 * older handler once, and no handler sees it twice, whichever way it chains.
 */
#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "guard_internal.h"

enum { SIGNALS = 2, MAX_LEVELS = 64 };

static const int guarded_signals[SIGNALS] = { SIGBUS, SIGSEGV };

/* Whom each level displaced.  Only ever appended to, and read by the handler up to depth[]. */
static struct sigaction displaced[SIGNALS][MAX_LEVELS];
static _Atomic int depth[SIGNALS];
static pthread_mutex_t install_mutex = PTHREAD_MUTEX_INITIALIZER;

OBMM_GUARD_TLS uint32_t obmm_guard_credit;

#define EIGHT(do, n) do(0##n##0) do(0##n##1) do(0##n##2) do(0##n##3) do(0##n##4) do(0##n##5) do(0##n##6) do(0##n##7)
#define EACH_LEVEL(do) EIGHT(do, 0) EIGHT(do, 1) EIGHT(do, 2) EIGHT(do, 3) EIGHT(do, 4) EIGHT(do, 5) EIGHT(do, 6) EIGHT(do, 7)
#define ENTRY(n)                                                          \
	static void entry_##n(int signo, siginfo_t *info, void *context)  \
	{                                                                 \
		obmm_guard_on_fault(n, signo, info, context);             \
	}
#define NAME(n) entry_##n,

EACH_LEVEL(ENTRY)

static void (*const entries[MAX_LEVELS])(int, siginfo_t *, void *) = { EACH_LEVEL(NAME) };

/* What the kernel does with the signal when it is not handled. */
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

/* With the mask that the older handler asked for. */
void obmm_guard_pass_on(int level, int signo, siginfo_t *info, void *context)
{
	struct sigaction *slot = &displaced[signo == SIGBUS ? 0 : 1][level], previous = *slot;
	sigset_t block, saved;

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
	if (previous.sa_flags & SA_SIGINFO)
		previous.sa_sigaction(signo, info, context);
	else
		previous.sa_handler(signo);
	pthread_sigmask(SIG_SETMASK, &saved, NULL);
}

static bool is_ours(const struct sigaction *action)
{
	for (int level = 0; (action->sa_flags & SA_SIGINFO) && level < MAX_LEVELS; level++) {
		if (action->sa_sigaction == entries[level])
			return true;
	}
	return false;
}

/* A new level; when there is none left, the newest that displaced the same handler before. */
static int level_for(int index, const struct sigaction *found)
{
	int level = atomic_load_explicit(&depth[index], memory_order_relaxed);

	if (level < MAX_LEVELS) {
		/* Stand ready before the first fault can come. */
		displaced[index][level] = *found;
		atomic_store_explicit(&depth[index], level + 1, memory_order_release);
		return level;
	}
	while (--level >= 0 && displaced[index][level].sa_sigaction != found->sa_sigaction)
		;
	return level;
}

/* Mutex held. */
static int install_over(int index, const struct sigaction *found)
{
	/* NODEFER: a stranger's handler that we call may fault on guarded memory itself. */
	struct sigaction ours = { .sa_flags = SA_SIGINFO | SA_NODEFER | SA_ONSTACK };
	int level = level_for(index, found);

	if (level < 0)
		return -ENOSPC;
	ours.sa_sigaction = entries[level];
	return sigaction(guarded_signals[index], &ours, NULL) ? -errno : 0;
}

static int install_one(int index)
{
	struct sigaction found;

	if (sigaction(guarded_signals[index], NULL, &found))
		return -errno;
	return is_ours(&found) ? 0 : install_over(index, &found);
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

static bool is_armed(void)
{
	return atomic_load_explicit(&depth[SIGNALS - 1], memory_order_acquire);
}

int obmm_guard_arm(void)
{
	return is_armed() ? 0 : obmm_guard_install();
}

int obmm_guard_displace(int signo, int ignored)
{
	struct sigaction wanted = { .sa_handler = ignored ? SIG_IGN : SIG_DFL };
	int index = signo == SIGBUS ? 0 : 1, result;

	if (signo != guarded_signals[index])
		return -EINVAL;
	if (!is_armed())
		return -EAGAIN;
	pthread_mutex_lock(&install_mutex);
	result = install_over(index, &wanted);
	pthread_mutex_unlock(&install_mutex);
	return result;
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

void obmm_guard_look(void)
{
	sigset_t guarded;

	if (!is_armed())
		return;
	sigemptyset(&guarded);
	for (int i = 0; i < SIGNALS; i++)
		sigaddset(&guarded, guarded_signals[i]);
	pthread_sigmask(SIG_UNBLOCK, &guarded, NULL);
	if (obmm_guard_check())
		obmm_guard_install();
	obmm_guard_credit = OBMM_GUARD_CREDIT;
}

void obmm_guard_distrust(void)
{
	obmm_guard_credit = 0;
}

void obmm_guard_chain_prefork(void)
{
	pthread_mutex_lock(&install_mutex);
}

void obmm_guard_chain_postfork(void)
{
	pthread_mutex_unlock(&install_mutex);
}
