/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the processes of a stand-in know of each other, in one file that all of
 * them map (URMA specification 11.1, U4).  Who holds the lock may change
 * anything; what says so is changed without it.  What a process that was killed
 * leaves is dead by its word of life, and swept when somebody needs room.
 */
#ifndef URMA_STANDIN_STATE_H
#define URMA_STANDIN_STATE_H

#include <pthread.h>

#include "../standin/shared.h"
#include "faults.h"
#include "urma.h"

enum {
	URMA_NODES = 16,
	URMA_PROCESSES = 256,
	URMA_SEGMENTS = 4096,
	URMA_TARGETS = 4096,
	URMA_PINS = 256,
	URMA_NOBODY = -1,
	URMA_TABLES = 0xFFFFF, /* token id = table number x 256 */
	URMA_TABLE_BLOCK = 4096,
};

struct urma_process {
	/*
	 * The word is a robust futex of a thread that lives as long as the
	 * process: the kernel itself marks it when that ends, before the pid is
	 * free, so a look needs no system call.
	 */
	uint64_t robust_next; /* an address in that process */
	uint32_t life;
	int32_t pid;
	uint64_t started;
	uint32_t node;
	uint32_t uasid; /* 0: the slot is free */
};

struct urma_segment {
	uint32_t owner; /* process + 1; 0: free */
	uint32_t leaving;
	uint32_t token_id, token, policy, access;
	uint64_t va, len;
	uint64_t generation;
};

/* A jetty or jfr that requests can name. */
struct urma_target {
	uint32_t owner; /* process + 1 */
	uint32_t id, policy, token;
};

/* A copy in progress. */
struct urma_pin {
	uint32_t process; /* + 1 */
	uint32_t segment; /* + 1 */
};

struct urma_state {
	uint64_t magic, bytes;
	pthread_mutex_t lock;
	uint32_t node_count;
	char nodes[URMA_NODES][64];
	uint32_t unreachable[URMA_NODES];
	uint32_t next_id[URMA_NODES];
	uint32_t next_uasid;
	uint32_t next_table;
	uint64_t tables_used[URMA_TABLES / URMA_TABLE_BLOCK + 1]; /* seconds when a block of numbers was last begun */
	uint64_t generation;
	uint32_t unpinned; /* a futex: copies that ended */
	uint32_t waiting;  /* for that */
	uint32_t segments_end, targets_end; /* none is in use from here on */
	uint32_t rule_count;
	struct urma_rule rules[URMA_RULES];
	struct urma_process processes[URMA_PROCESSES];
	struct urma_pin pins[URMA_PINS];
	struct urma_segment segments[URMA_SEGMENTS];
	struct urma_target targets[URMA_TARGETS];
};

/* 0 or a negative errno. */
int urma_state_create(const char *folder, const char *nodes);
int urma_state_open(const char *folder, struct urma_state **out);
void urma_state_close(struct urma_state *state);

void urma_lock(struct urma_state *state);
void urma_unlock(struct urma_state *state);

/* By name; "" is the first; URMA_NOBODY for another. */
int urma_node(const struct urma_state *state, const char *name);
/* By EID: fd00:: and the node's number. */
int urma_node_of(const struct urma_state *state, const uint8_t *eid);
void urma_eid_of(uint32_t node, urma_eid_t *eid);

/* Whether the process of a slot still runs. */
int urma_lives(const struct urma_process *process);
/* The living process of a uasid on a node, or URMA_NOBODY. */
int urma_process_of(const struct urma_state *state, uint32_t node, uint32_t uasid);
/* What dead processes left is free again.  With the lock. */
void urma_sweep(struct urma_state *state);
/* All that a process has is gone.  With the lock. */
void urma_forget(struct urma_state *state, uint32_t process);

/* A token id unused for an hour, or 0.  With the lock. */
uint32_t urma_new_token_id(struct urma_state *state);

/*
 * The copy of a segment begins: its pin, or URMA_NOBODY when all are taken.
 * With the lock.  It ends without.
 */
int urma_pin(struct urma_state *state, uint32_t process, uint32_t segment);
void urma_unpin(struct urma_state *state, int pin);
/* All copies of it have ended; a copier that was killed is not waited for.  Without the lock, once it is leaving. */
void urma_wait_unpinned(struct urma_state *state, uint32_t segment);

uint64_t urma_now_ns(void);

/* --- life.c: this process's word --- */

/* Start the thread that holds it.  0 or a negative errno. */
int urma_live(struct urma_process *process);
/* End it: to all other processes this one is dead. */
void urma_die(struct urma_process *process);
/* In a forked child: the thread is the parent's. */
void urma_life_forked(void);

#endif
