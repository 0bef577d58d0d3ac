/* SPDX-License-Identifier: Apache-2.0 */
/* One process of the storm: threads that share an arena and open nodes, and stumble over each other. */
#include "storm.h"

#include <fcntl.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <unistd.h>

char *arena;
atomic_int nodes[NODES];
struct mapped mapped[MAPPED_KEPT];

static _Thread_local sigjmp_buf back;
static _Thread_local volatile sig_atomic_t armed;

uint64_t roll(struct dice *dice)
{
	uint64_t z = dice->state += 0x9e3779b97f4a7c15;

	z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
	z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
	return z ^ (z >> 31);
}

void *place(struct dice *dice, size_t *length)
{
	uint64_t unit = below(dice, 3) ? CHUNK : PAGE;
	uint64_t units = ARENA / unit, at = below(dice, units);
	uint64_t most = units - at < 4 ? units - at : 4;
	struct mapped *known = &mapped[below(dice, MAPPED_KEPT)];

	if (below(dice, 2) && known->at) { /* all of a mapping, or a part */
		*length = known->length;
		at = *length > unit ? below(dice, *length / unit) : 0;
		if (below(dice, 2) || !at)
			return known->at;
		*length -= at * unit;
		return known->at + at * unit;
	}
	*length = (1 + below(dice, most)) * unit;
	if (!below(dice, 64))
		*length = PICK(dice, 0, 1, PAGE - 1, ARENA, 1ULL << 40, ~0ULL, ~0ULL - PAGE + 1);
	if (!below(dice, 64))
		return (void *)PICK(dice, 0, 1, PAGE, 0x7ffffffff000, 0xffff800000000000, ~0ULL << 12);
	return arena + at * unit + (below(dice, 64) ? 0 : 8);
}

int node(struct dice *dice)
{
	return atomic_load(&nodes[below(dice, 16) ? CONTROLS + below(dice, NODES - CONTROLS) : below(dice, NODES)]);
}

int control(struct dice *dice)
{
	return atomic_load(&nodes[below(dice, 16) ? below(dice, CONTROLS) : below(dice, NODES)]);
}

void keep(struct dice *dice, int fd)
{
	int old;

	if (fd < 0)
		return;
	old = atomic_exchange(&nodes[CONTROLS + below(dice, NODES - CONTROLS)], fd);
	if (old >= 0)
		close(old);
}

static void cut_short(int signal)
{
	(void)signal;
	if (!armed)
		_exit(3); /* the library's own memory: the supervisor starts another worker */
	siglongjmp(back, 1);
}

bool touching(void (*body)(void *), void *argument)
{
	bool whole = false;

	if (!sigsetjmp(back, 1)) {
		armed = 1;
		body(argument);
		whole = true;
	} else {
		atomic_fetch_add(&board->faults, 1);
	}
	armed = 0;
	return whole;
}

struct thread {
	int worker;
	struct dice dice;
};

static void *run(void *argument)
{
	struct thread *own = argument;
	struct dice *dice = &own->dice;
	uint64_t what;

	while (!atomic_load(&board->over)) {
		what = below(dice, 100);
		if (what < 45)
			driver_call(dice);
		else if (what < 75)
			memory_call(dice);
		else if (what < 97)
			foreign_call(dice);
		else
			root_call(dice);
		atomic_fetch_add(&board->calls[own->worker], 1);
	}
	return NULL;
}

void work(int index, uint64_t seed)
{
	/* private memory: what is left for the guest must not run out, or its OOM killer reports */
	const struct rlimit data = { 12 << 20, 12 << 20 }, files = { 128, 128 };
	static struct thread threads[THREADS];
	struct sigaction action = { .sa_handler = cut_short, .sa_flags = SA_NODEFER };
	pthread_attr_t attributes;
	pthread_t thread;

	prctl(PR_SET_PDEATHSIG, SIGKILL);
	setpgid(0, 0);
	sigaction(SIGSEGV, &action, NULL);
	sigaction(SIGBUS, &action, NULL);
	signal(SIGPIPE, SIG_IGN);
	signal(SIGCHLD, SIG_IGN);
	signal(SIGIO, SIG_IGN);
	arena = mmap(NULL, ARENA + CHUNK, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	arena = (char *)(((uintptr_t)arena + CHUNK - 1) & ~(uintptr_t)(CHUNK - 1));
	for (int i = 0; i < NODES; i++)
		atomic_store(&nodes[i], i < CONTROLS ? open(OBMM_DEV_PATH, O_RDWR) : -1);
	pthread_attr_init(&attributes);
	pthread_attr_setstacksize(&attributes, 256 << 10);
	for (int i = 0; i < THREADS; i++) {
		threads[i] = (struct thread){ index, { seed + 1000003ULL * (uint64_t)i } };
		if (i && pthread_create(&thread, &attributes, run, &threads[i]))
			_exit(2);
	}
	setrlimit(RLIMIT_DATA, &data);
	setrlimit(RLIMIT_NOFILE, &files);
	run(&threads[0]);
	_exit(0);
}
