/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a process holds of the driver, written down by the call that takes or
 * gives it: an interpreter that is interrupted right after a call (a signal
 * handler that raises) still knows what there is to give back, and gives it back
 * once.  The same for mappings: access/held.h.
 *
 * Calls on one record by several threads must be serialised by the caller.
 */
#ifndef OBMM_OWNED_H
#define OBMM_OWNED_H

#include "../abi/lp64.h"

#include <stddef.h>
#include <stdint.h>

#include "../abi/obmm_abi.h"
#include "sys.h"

#ifdef __cplusplus
extern "C" {
#endif

/* An open control node and the table that it was opened by. */
struct obmm_node {
	struct obmm_sys *sys; /* filled by obmm_sys_emulator() and others, or NULL */
	int fd;		      /* /dev/obmm, or -1 */
	int pid;	      /* whose it is, or 0: anybody's */
};

#define OBMM_NODE_INIT { NULL, -1, 0 }

/* Nothing is open, and it is this process's. */
void obmm_node_init(struct obmm_node *node);
/* Open /dev/obmm.  0 or a negative errno. */
int obmm_node_open(struct obmm_node *node);
/* Close the descriptor and destroy the table, each once; in a forked child as obmm_node_abandon. */
void obmm_node_close(struct obmm_node *node);
/* In a forked child: the descriptor only; the table's locks may be held for ever. */
void obmm_node_abandon(struct obmm_node *node);

/* A region that this process made: 0, or its mem_id. */
struct obmm_owned {
	uint64_t mem_id;
};

/* Each: 0 or a negative errno, and then nothing was made. */
int obmm_owned_export(struct obmm_node *node, struct obmm_cmd_export *cmd, struct obmm_owned *owned);
int obmm_owned_export_useraddr(struct obmm_node *node, struct obmm_cmd_export_pid *cmd, struct obmm_owned *owned);
int obmm_owned_import(struct obmm_node *node, struct obmm_cmd_import *cmd, struct obmm_owned *owned);

/* UNEXPORT or UNIMPORT, if there is something.  On an error everything stays as it is. */
int obmm_owned_unexport(struct obmm_node *node, struct obmm_owned *owned);
int obmm_owned_unimport(struct obmm_node *node, struct obmm_owned *owned);

#ifdef __cplusplus
}
#endif

#endif
