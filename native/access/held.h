/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a mapping holds of the system, written down by the call that takes or
 * gives it: an interpreter that is interrupted right after a call (a signal
 * handler that raises) still knows what there is to give back, and gives it
 * back once.
 */
#ifndef OBMM_HELD_H
#define OBMM_HELD_H

#include "../abi/lp64.h"

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

struct obmm_node;
struct obmm_sys;

struct obmm_held {
	int fd;		 /* the region's node, or -1 */
	int slot;	 /* of the guard, or -1 */
	void *base;	 /* the mapping, or NULL */
	void *sealed;	 /* addresses kept inaccessible, or NULL */
	uint64_t length; /* of either */
};

/* Nothing is held. */
#define OBMM_HELD_INIT { -1, -1, NULL, NULL, 0 }

void obmm_held_init(struct obmm_held *held);

/* Each: 0 or a negative errno, and then nothing is taken. */
int obmm_held_open(struct obmm_sys *sys, struct obmm_held *held, uint64_t mem_id, int flags);
int obmm_held_map(struct obmm_sys *sys, struct obmm_held *held, void *addr, uint64_t offset, uint64_t length,
		  int prot, int pmd);
int obmm_held_guard(struct obmm_held *held, uint64_t identity);

/* Give back what is held: mapping, guard, node.  An error of munmap leaves everything as it is. */
int obmm_held_release(struct obmm_sys *sys, struct obmm_held *held);

/* The last of it: release, whose errors cannot be reported.  Only in the node's own process. */
void obmm_held_end(struct obmm_node *node, struct obmm_held *held);

/* As release, but the addresses stay taken and inaccessible until the next release. */
int obmm_held_seal(struct obmm_sys *sys, struct obmm_held *held);

#ifdef __cplusplus
}
#endif

#endif
