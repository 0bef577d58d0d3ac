/* SPDX-License-Identifier: Apache-2.0 */
/* Inside the stand-in: the objects of one process. */
#ifndef URMA_STANDIN_H
#define URMA_STANDIN_H

#include <pthread.h>

#include "state.h"

enum {
	URMA_MAX_JFC_DEPTH = 1 << 20,
	URMA_MAX_JFS_DEPTH = 8192,
	URMA_MAX_JFR_DEPTH = 32768,
	URMA_MAX_SGE = 13,
	URMA_MAX_READ_SGE = 6,
	URMA_MAX_BYTES = 256 << 20, /* of one read or write */
	URMA_MAX_PIECES = 1024,	    /* of one system call: the kernel's limit */
};

/* --- start.c: this process --- */

struct urma_here {
	pthread_mutex_t lock; /* guards the lists and counts of objects */
	struct urma_state *state;
	struct urma_process *process;
	uint32_t number; /* its slot */
	char node[64];
	int silent;		/* a refusal gives no record (11.2) */
	uint64_t timeout_ns;	/* the longest wait for an answer that does not come */
	struct urma_rule rules[URMA_RULES]; /* of the environment */
	uint32_t rule_count;
	struct urma_standin_counts counts;
	urma_device_t device;
};
extern struct urma_here urma_here;

/* NULL, with errno EINVAL, unless the library is initialised in this very process. */
struct urma_state *urma_started(void);
/* A rule that strikes now, of the environment or of the state. */
const struct urma_rule *urma_fault(uint32_t actions, uint32_t queue);
void urma_count(uint64_t *counter, uint64_t n);

/* --- objects.  The public part comes first: programs hold its address. --- */

struct context {
	urma_context_t public;
	uint32_t refs; /* 1 and everything made from it */
};

struct jfce {
	urma_jfce_t public;
	uint32_t users;
	pthread_mutex_t lock;
	struct jfc *first;
};

/* A completion.  `queue` is NULL once its queue is deleted. */
struct record {
	urma_cr_t cr;
	uint64_t visible_ns;
	uint64_t sequence;
	struct queue *queue;
};

struct jfc {
	urma_jfc_t public;
	urma_jfc_cfg_t cfg;
	struct jfce *jfce;
	struct jfc *next; /* of the jfce */
	pthread_mutex_t lock;
	uint32_t holders; /* the program and its queues */
	int deleted, broken;
	struct record *ring;
	uint32_t room, first, count;
	struct late *late;
	int armed;
	uint64_t event_ns; /* when it became or becomes ready; UINT64_MAX: no event */
	uint32_t unacked;
};

/* A jfs, or the send side of a jetty. */
struct queue {
	struct jfc *jfc;
	struct context *context;
	pthread_mutex_t lock;
	uint32_t id, depth, max_sge;
	uint32_t state;
	int mute; /* dead, and nothing tells so */
	int marked; /* the marker 13 was sent */
	int marker_polled;
	uint64_t posted, freed; /* sequence numbers (L3, L4) */
	uint64_t *unhandled;	/* user_ctx of what was posted behind the marker */
	uint32_t unhandled_count;
	uint32_t wait_tries;
	uint64_t late_until; /* until then something earlier is under way: what asks for completion order waits (7.4) */
};

struct jfs {
	urma_jfs_t public;
	struct queue queue;
};

struct jfr {
	urma_jfr_t public;
	struct context *context;
	uint32_t trans_mode, order;
	int target; /* its place in the state */
};

struct jetty {
	urma_jetty_t public;
	struct queue queue;
	int target;
};

struct token_id {
	urma_token_id_t public;
	struct context *context;
};

struct segment {
	urma_target_seg_t public;
	struct context *context;
	struct segment *next; /* of all registered ones of this process */
	struct token_id *own; /* made by the library itself */
	int imported;
	uint32_t place; /* in the state */
	uint32_t token;
};

struct target {
	urma_target_jetty_t public;
	struct context *context;
	uint32_t token;
};

/* NULL with errno, as every pointer call answers (section 6). */
void *urma_refuse(int error);
void urma_hold(struct context *context);
void urma_drop(struct context *context);

/* --- completions.c --- */

/* A request whose data move later than they should. */
struct late {
	struct late *next;
	struct queue *queue;
	uint64_t due_ns; /* 0: when a poll finds nothing, or the queue is used again */
	urma_jfs_wr_t wr;
	urma_sge_t remote, local[URMA_MAX_SGE];
};

/* Lets a record be polled from `visible_ns` on. */
void urma_complete(struct queue *queue, uint32_t status, const urma_jfs_wr_t *wr, uint32_t length, uint64_t sequence,
		   uint64_t visible_ns);
/* The same for a record that goes to the queue of the next one, and the next one's to this (URMA_SWAP). */
void urma_complete_swapped(struct queue *queue, const urma_jfs_wr_t *wr, uint32_t length, uint64_t sequence);
void urma_add_late(struct queue *queue, const urma_jfs_wr_t *wr, uint64_t due_ns);
/* Move what waits for this queue to be used again. */
void urma_run_early(struct queue *queue);
/* No record or late copy of the queue is left. */
void urma_forget_queue(struct queue *queue);
void urma_jfc_put(struct jfc *jfc);

/* --- access.c --- */

/* The completion status of a request that cannot be carried out, or 0. */
uint32_t urma_check_local(const urma_jfs_wr_t *wr);

/* Requests of one opcode to one target and imported segment, of at most URMA_MAX_PIECES local pieces together. */
struct urma_run {
	urma_jfs_wr_t *wrs[URMA_MAX_PIECES];
	uint64_t sequences[URMA_MAX_PIECES];
	uint32_t count, pieces;
	uint32_t done;	 /* how many were carried out, from the first on */
	uint32_t status; /* of the next one; 0: it is fine, and wants a run of its own */
};
/* Carries requests out as far as they go to one segment. */
void urma_run(struct urma_run *run);
/* The length of the local pieces. */
uint64_t urma_length(const urma_jfs_wr_t *wr);
const urma_sg_t *urma_local(const urma_jfs_wr_t *wr);
const urma_sge_t *urma_remote(const urma_jfs_wr_t *wr);
/* The owner of the memory that a request names, to be killed (URMA_KILL). */
void urma_kill_owner(const urma_jfs_wr_t *wr);

/* --- memory.c --- */

/* The registered segment behind a pointer of the program; NULL for any other. */
const struct segment *urma_registered(const urma_target_seg_t *seg);

/* --- post.c --- */

int urma_post(struct queue *queue, urma_jfs_wr_t *wr, urma_jfs_wr_t **bad);
/* The state of a queue becomes `state`. */
void urma_modify(struct queue *queue, uint32_t state);
int urma_flush(struct queue *queue, int count, urma_cr_t *cr);

#endif
