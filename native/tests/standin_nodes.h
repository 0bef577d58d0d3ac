/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The emulated nodes of the stand-in's tests: units are files of one folder,
 * seen by every process under the same id on every node.
 */
#ifndef STANDIN_NODES_H
#define STANDIN_NODES_H

#include <stdatomic.h>

/* Nodes a, b and c with units of `unit` bytes in a folder of their own, which OBMM_SDK_STANDIN names from here on. */
const char *nodes_begin(unsigned long unit);
/* Removes the folder; how many units were left in it. */
int nodes_end(void);

/* How many imports succeed from now on, and whether every removal is refused. */
extern atomic_int nodes_imports_left, nodes_busy;
/* The unit that somebody else has open, or 0. */
extern atomic_int nodes_open;
/* Units that this process exported, and imports that it made, less those that it took back. */
extern atomic_int nodes_exported, nodes_imported;

#endif
