/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <limits.h>
#include <linux/futex.h>
#include <signal.h>
#include <stddef.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "state.h"

/* One keeper per process: the kernel walks its list when it ends, for whatever reason. */
static struct {
	pthread_t thread;
	struct robust_list_head head;
	struct urma_process *process;
	uint32_t state; /* a futex: 0 none, 1 starting, 2 there, 3 to end */
} keeper;

static void change(uint32_t to)
{
	__atomic_store_n(&keeper.state, to, __ATOMIC_SEQ_CST);
	syscall(SYS_futex, &keeper.state, FUTEX_WAKE_PRIVATE, INT_MAX, NULL, NULL, 0);
}

static void wait_while(uint32_t is)
{
	while (__atomic_load_n(&keeper.state, __ATOMIC_SEQ_CST) == is)
		syscall(SYS_futex, &keeper.state, FUTEX_WAIT_PRIVATE, is, NULL, NULL, 0);
}

static void *keep(void *unused)
{
	struct urma_process *process = keeper.process;

	(void)unused;
	process->robust_next = (uintptr_t)&keeper.head.list;
	keeper.head.list.next = (struct robust_list *)&process->robust_next;
	keeper.head.futex_offset = offsetof(struct urma_process, life) - offsetof(struct urma_process, robust_next);
	keeper.head.list_op_pending = NULL;
	syscall(SYS_set_robust_list, &keeper.head, sizeof(keeper.head));
	__atomic_store_n(&process->life, (uint32_t)syscall(SYS_gettid), __ATOMIC_SEQ_CST);
	change(2);
	wait_while(2);
	keeper.head.list.next = &keeper.head.list;
	__atomic_store_n(&process->life, 0, __ATOMIC_SEQ_CST);
	return NULL;
}

int urma_live(struct urma_process *process)
{
	sigset_t all, before;
	int rc;

	keeper.process = process;
	keeper.state = 1;
	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &before); /* signals are for the program's own threads */
	rc = -pthread_create(&keeper.thread, NULL, keep, NULL);
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	if (rc) {
		keeper.state = 0;
		return rc;
	}
	wait_while(1);
	return 0;
}

void urma_die(struct urma_process *process)
{
	if (keeper.state != 2 || keeper.process != process)
		return;
	change(3);
	pthread_join(keeper.thread, NULL);
	keeper.state = 0;
}

void urma_life_forked(void)
{
	keeper.state = 0;
	keeper.process = NULL;
}

int urma_lives(const struct urma_process *process)
{
	const uint32_t life = __atomic_load_n(&process->life, __ATOMIC_SEQ_CST);

	return process->uasid && life && !(life & FUTEX_OWNER_DIED);
}
