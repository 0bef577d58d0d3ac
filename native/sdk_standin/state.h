/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the daemons of all nodes know together, in one file that every process
 * of a stand-in maps and locks (SDK specification 16.2).  A daemon that ends
 * leaves it behind for the next, as the real one does in /dev/shm (5).
 *
 * Who holds the lock may change anything.  Every change is made in an order in
 * which a process that is killed half way leaves something that sweep() knows.
 */
#ifndef STANDIN_STATE_H
#define STANDIN_STATE_H

#include <pthread.h>
#include <stddef.h>
#include <stdint.h>

#include "../core/sys.h"
#include "../standin/shared.h"
#include "../core/topology.h"

#define STANDIN_NODES 16
#define STANDIN_UNITS 1024 /* per object; the engine's limit (4.1) */
#define STANDIN_RECORDS 2048
#define STANDIN_PROCESSES 512
#define STANDIN_REGIONS 1024
#define STANDIN_FAULTS 64
#define STANDIN_EVENTS 64
#define STANDIN_LISTENERS 256
#define STANDIN_NOBODY UINT32_MAX

/* A set of processes, by their numbers. */
struct standin_set {
	uint64_t words[STANDIN_PROCESSES / 64];
};

struct standin_process {
	uint32_t used;
	int32_t pid;
	uint64_t started; /* tells it from a later process of the same pid */
	uint32_t node, uid, gid;
	uint32_t session; /* which of its connections is the present one; 0 for none */
};

struct standin_export {
	uint64_t mem_id, uba;
	uint32_t tokenid, reserved;
};

/* An object or lease on one node. */
struct standin_attachment {
	uint32_t there;
	uint32_t open_mode;
	uint32_t imported; /* units, the first ones */
	uint32_t reserved;
	struct standin_set users;
	struct standin_set leaving; /* those of them that are gone; the clean-up has not succeeded yet */
	uint64_t mem_ids[STANDIN_UNITS];
	uint64_t windows[STANDIN_UNITS];
};

enum standin_kind {
	STANDIN_FREE = 0,
	STANDIN_MAKING, /* seen only after its maker was killed */
	STANDIN_OBJECT,
	STANDIN_LEASED,
};

struct standin_record {
	uint32_t kind;
	uint32_t count; /* units that exist */
	char name[48];
	uint64_t number; /* of a lease */
	uint64_t size;
	uint32_t flags, provider;
	uint32_t uid, gid, mode;
	uint32_t nodes; /* that may attach it: a bit each */
	uint32_t writing;
	uint8_t holds[STANDIN_PROCESSES]; /* of the lock */
	struct standin_export exports[STANDIN_UNITS];
	struct standin_attachment on[STANDIN_NODES];
};

struct standin_region {
	uint32_t used, node;
	char name[48];
	uint32_t count;
	uint8_t hosts[STANDIN_NODES];
	uint8_t affinity[STANDIN_NODES];
};

/* What the next `times` requests `op` get instead of their answers, or besides. */
struct standin_fault {
	uint32_t op, times;
	int32_t code;
	uint32_t delay_ms, lost;
};

struct standin_event {
	char name[64];
	uint32_t kind;
};

/* A process that asked for faults. */
struct standin_listener {
	int32_t pid; /* 0: unlocked */
	uint32_t reserved;
	uint64_t started;
};

struct standin_state {
	uint64_t magic, bytes;
	pthread_mutex_t lock;
	uint64_t unit;
	char fabric[256];
	char nodes[STANDIN_NODES][64];
	uint32_t node_count;
	uint32_t records_end; /* none is in use from here on */
	uint32_t sessions;
	uint64_t leases;
	uint64_t engine_calls;
	struct standin_process processes[STANDIN_PROCESSES];
	struct standin_region regions[STANDIN_REGIONS];
	struct standin_fault faults[STANDIN_FAULTS];
	uint32_t fault_count;
	uint32_t fired; /* events so far: a futex */
	struct standin_event events[STANDIN_EVENTS];
	struct standin_listener listeners[STANDIN_LISTENERS];
	struct standin_record records[STANDIN_RECORDS];
};

/* --- state.c --- */

/* A new one in `folder`, over the nodes (separated by commas) of the emulated fabric.  0 or a negative errno. */
int standin_state_create(const char *folder, const char *fabric, const char *nodes, uint64_t unit);
/* 0 or a negative errno. */
int standin_state_open(const char *folder, struct standin_state **out);
void standin_state_close(struct standin_state *state);

/* This process's way to a node: made when it is first needed. */
struct fabric_way {
	struct obmm_sys *sys;
	int fd;
	struct obmm_controller controller;
};

/* The state, and what this process needs to change the nodes; the lock guards both. */
struct standin_cluster {
	struct standin_state *state;
	struct fabric_way ways[STANDIN_NODES];
};

/* 0 or a negative errno. */
int standin_cluster_open(const char *folder, struct standin_cluster **out);
void standin_cluster_close(struct standin_cluster *cluster);

void standin_lock(struct standin_state *state);
void standin_unlock(struct standin_state *state);

int standin_in(const struct standin_set *set, uint32_t process);
void standin_put(struct standin_set *set, uint32_t process);
void standin_drop(struct standin_set *set, uint32_t process);
uint32_t standin_members(const struct standin_set *set);

/* The number of a node; "" is the first one; STANDIN_NOBODY for another name. */
uint32_t standin_node(const struct standin_state *state, const char *name);

/* --- fabric.c: the emulated nodes.  Everything with the lock held; 0 or a negative errno. --- */

void fabric_leave(struct standin_cluster *cluster);
int fabric_export(struct standin_cluster *cluster, uint32_t node, struct standin_export *out);
int fabric_unexport(struct standin_cluster *cluster, uint32_t node, uint64_t mem_id);
int fabric_import(struct standin_cluster *cluster, uint32_t node, uint32_t provider, const struct standin_export *source,
		  int noncacheable, uint64_t *mem_id, uint64_t *window);
int fabric_unimport(struct standin_cluster *cluster, uint32_t node, uint64_t mem_id, uint64_t window);
/* Somebody has the region open, so that it cannot be removed: 1, 0, or a negative errno. */
int fabric_busy(struct standin_cluster *cluster, uint32_t node, uint64_t mem_id);
/* chmod and chown of a region's node; mode 0 changes no mode. */
int fabric_give(struct standin_cluster *cluster, uint32_t node, uint64_t mem_id, uint32_t mode, uint32_t uid, uint32_t gid);
/* Bytes of the pool on a NUMA node; -ENOENT without one. */
int fabric_pool(struct standin_cluster *cluster, uint32_t node, uint32_t numa, uint64_t *total, uint64_t *used);

/* --- units.c: objects and leases as regions of the nodes.  0 or a result code. --- */

struct standin_record *standin_find(struct standin_state *state, const char *name);
struct standin_record *standin_find_lease(struct standin_state *state, uint64_t number);
/* Some process is gone that had it. */
int standin_busy(const struct standin_record *record);
int standin_attached(const struct standin_record *record);

/* A free record with all of its units exported by `provider`; its kind is still STANDIN_MAKING. */
int standin_make(struct standin_cluster *cluster, uint64_t size, uint32_t flags, uint32_t provider,
		 struct standin_record **out);
/* Somebody has one of the provider's units open. */
int standin_units_open(struct standin_cluster *cluster, const struct standin_record *record);
/* All of the units or none: UBSM_ERR_IN_USING while somebody has one open. */
int standin_free(struct standin_cluster *cluster, struct standin_record *record);
int standin_attach(struct standin_cluster *cluster, struct standin_record *record, uint32_t process, int prot);
/* All of the node's units or none: UBSM_ERR_UBSE while somebody else has one open (7.5). */
int standin_detach(struct standin_cluster *cluster, struct standin_record *record, uint32_t process);
/* Attached before it was complete: undo. */
void standin_undo(struct standin_cluster *cluster, struct standin_record *record, uint32_t node);

/* --- processes.c --- */

/*
 * A process begins a session.  Without `stay` whatever it still had is
 * released.  Its number, or STANDIN_NOBODY when all are taken.
 */
uint32_t standin_enter(struct standin_cluster *cluster, int32_t pid, uint32_t uid, uint32_t gid, uint32_t node, int stay);
/* It ended its session, if that is still the present one: everything it has is released. */
void standin_leave(struct standin_cluster *cluster, uint32_t process, uint32_t session);
/* Release what it has of this record. */
void standin_release(struct standin_record *record, uint32_t process, uint32_t node);
/* Those that died without a word have left. */
void standin_bury(struct standin_cluster *cluster);
/* Clean up after those that left, as far as it can be done now.  Whether something remains. */
int standin_sweep(struct standin_cluster *cluster);

/* --- rules.c --- */

/* One request of a process, and its answer. */
struct standin_turn {
	struct standin_cluster *cluster;
	uint32_t process;
	const struct standin_request *request;
	const void *payload;
	void *body; /* malloc */
	size_t size;
	unsigned int engine; /* calls that the real daemon would make to the UB engine (12.1) */
	int lost;	     /* no answer must be given */
};

/* The result code.  Takes the lock. */
int standin_answer(struct standin_turn *turn);

struct standin_process *standin_caller(const struct standin_turn *turn);
/* Zeroed room for the answer's body: `size` bytes, or NULL. */
void *standin_room(struct standin_turn *turn, size_t size);

int standin_hosts_turn(struct standin_turn *turn);   /* rules_hosts.c */
int standin_objects_turn(struct standin_turn *turn); /* rules_objects.c */
int standin_locks_turn(struct standin_turn *turn);   /* rules_locks.c */
int standin_leases_turn(struct standin_turn *turn);  /* rules_leases.c */

/*
 * Who may give memory in a region as this node knows it, best first, and who
 * may attach it.  0 or UBSM_ERR_NOT_FOUND.
 */
struct standin_choice {
	uint32_t count;
	uint32_t providers[STANDIN_NODES];
	uint32_t nodes;
};
int standin_choose(const struct standin_state *state, uint32_t node, const char *region, struct standin_choice *choice);
/* The body of an answer: what to map. */
int standin_units_body(struct standin_turn *turn, const struct standin_record *record);

#endif
