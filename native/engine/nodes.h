/* SPDX-License-Identifier: Apache-2.0 */
/* Which NUMA node memory lies on, and how many CPUs are near it. */
#ifndef OBMM_NODES_H
#define OBMM_NODES_H

#include "../abi/lp64.h"

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Nodes that have CPUs; 1 where nothing is known of nodes.  `folder` as /sys/devices/system/node. */
unsigned int obmm_nodes_with_cpus(const char *folder);

/* How many of the CPUs that the calling thread may run on are of that node. */
unsigned int obmm_node_cpus(const char *folder, unsigned int node);

/*
 * The node that holds at least nine tenths of what is present of [base, base +
 * length), by a sample; -1: no single one, or the system does not say (a
 * peer's memory, for one).  Reads none of it.
 */
int obmm_node_of(const void *base, uint64_t length);

/* The node of the CPU that this thread runs on just now. */
unsigned int obmm_node_here(void);

#ifdef __cplusplus
}
#endif

#endif
