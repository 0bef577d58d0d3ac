/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A storm of calls on the simulator module: what any program with an open node
 * may do, and what root may do to the module, all at once.  Nothing here checks
 * answers; the kernel has to survive, every call has to end, and afterwards
 * everything can be removed.
 */
#ifndef STORM_H
#define STORM_H

#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "../../../native/abi/obmm_abi.h"

#define WORKERS 4
#define THREADS 3
#define CONTROLS 3
#define NODES 20 /* open files of a worker, shared by its threads without a lock */
#define CHUNK OBMM_BASIC_GRANULARITY
#define PAGE 4096UL
#define ARENA (48UL << 20)
#define DEBUG_FOLDER "/sys/kernel/debug/obmm_sim/"

/* What has to succeed now and then, or there was no storm. */
enum deed { EXPORTED, IMPORTED, REMOVED, OPENED, MAPPED, OWNED, TOUCHED, CUT, DEEDS };

/* Between all processes. */
struct board {
	atomic_ulong calls[WORKERS];
	atomic_ulong faults; /* SIGSEGV and SIGBUS that were caught */
	atomic_ulong done[DEEDS];
	_Atomic(pid_t) pids[WORKERS];
	atomic_bool over;
};

extern struct board *board;

static inline void did(enum deed deed, bool really)
{
	if (really)
		atomic_fetch_add(&board->done[deed], 1);
}

/* One thread's own random numbers. */
struct dice {
	uint64_t state;
};

uint64_t roll(struct dice *dice);
static inline uint64_t below(struct dice *dice, uint64_t limit)
{
	return roll(dice) % limit;
}
/* One of a list of numbers. */
#define PICK(dice, ...)                                                                  \
	((const uint64_t[]){ __VA_ARGS__ }[below(                                        \
		dice, sizeof((const uint64_t[]){ __VA_ARGS__ }) / sizeof(uint64_t))])

/* A worker: an arena of addresses that everything is mapped into, and open nodes. */
extern char *arena;
extern atomic_int nodes[NODES];

/* Where something was mapped a while ago, and through which node. */
struct mapped {
	_Atomic(char *) at;
	atomic_size_t length;
	atomic_int fd;
};

#define MAPPED_KEPT 8
extern struct mapped mapped[MAPPED_KEPT];

/* A place in the arena, now and then elsewhere, and bytes that fit behind it. */
void *place(struct dice *dice, size_t *length);
int node(struct dice *dice);
/* Most often the command node, which the first CONTROLS places of the table are for. */
int control(struct dice *dice);
void keep(struct dice *dice, int fd);
/* Run `body`, which touches memory: false when a signal cut it short. */
bool touching(void (*body)(void *), void *argument);

/* Groups of calls; each makes one. */
void driver_call(struct dice *dice);  /* driver.c: commands, mmap, ownership */
void memory_call(struct dice *dice);  /* memory.c: what a kernel does to mappings */
void foreign_call(struct dice *dice); /* foreign.c: other ways to the same memory and files */
void root_call(struct dice *dice);    /* root.c: debug files, sysfs, other nodes */

/* worker.c: never returns */
_Noreturn void work(int index, uint64_t seed);

/* races.c */
bool races(void);

/* root.c */
void write_text(const char *path, const char *format, ...) __attribute__((format(printf, 2, 3)));

#endif
