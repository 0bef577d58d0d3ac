/* SPDX-License-Identifier: Apache-2.0 */
/* Inside the stand-in. */
#ifndef STANDIN_H
#define STANDIN_H

#include <stddef.h>
#include <stdint.h>

#include "../core/sys.h"
#include "ubs_mem.h"
#include "wire.h"

/* --- link.c: the connection to the daemon and its worker thread --- */

/* 0 or UBSM_ERR_MEMLIB; nothing to do while a connection lives. */
int standin_connect(void);
void standin_disconnect(void);
/* A socket to the daemon that has said HELLO, or a negative errno. */
int standin_dial(struct standin_welcome *welcome);

/*
 * One round trip.  The answer's body goes to *body (malloc, the caller frees)
 * and its size to *size; both may be NULL.  The daemon's code, or
 * UBSM_ERR_NET without a connection, at its end, or after MXM_CHANNEL_TIMEOUT.
 */
int standin_call(struct standin_request *request, const void *payload, void **body, size_t *size);

/* The emulated node's system calls; NULL before the first connection.  Never destroyed: mappings outlive finalize. */
struct obmm_sys *standin_sys(void);

/* --- mapping.c: units of an object or lease, side by side in this process --- */

struct standin_mapping {
	struct standin_mapping *next;
	char name[64];	/* "" for a lease */
	uint64_t lease; /* its number, or 0 */
	char *base;
	size_t length; /* whole pages */
	size_t unit;
	uint32_t flags;
	int open_flags;
	int locked;
	uint32_t count;
	uint64_t *mem_ids;
	int *fds;
};

/* 0 or a result code; on failure nothing is mapped. */
int standin_map_units(struct standin_mapping *mapping, const struct standin_units *units, void *addr, int prot,
		      int flags);
/* Range inaccessible, descriptors closed. */
int standin_seal_units(struct standin_mapping *mapping);
/* After a seal: open and map everything again, inaccessible. */
void standin_reopen_units(struct standin_mapping *mapping);
/* After a seal: give the addresses back. */
void standin_unmap_units(struct standin_mapping *mapping);
/* Ownership over [start, start + length), which lies inside.  0 or UBSM_ERR_OBMM. */
int standin_own_units(struct standin_mapping *mapping, char *start, size_t length, int prot);
void standin_free_mapping(struct standin_mapping *mapping);

/* --- table.c: the mappings of this process --- */

void standin_table_add(struct standin_mapping *mapping);
void standin_table_remove(struct standin_mapping *mapping);
struct standin_mapping *standin_table_object(const char *name);
struct standin_mapping *standin_table_at(const void *base);
int standin_table_overlaps(const char *base, size_t length);

/* --- counters --- */

void standin_count_calls(unsigned int n);

/* --- checks.c --- */

int standin_bad_name(const char *name);
int standin_bad_size(size_t size);
int standin_bad_object_flags(uint64_t flags);
size_t standin_page_round(size_t size);
size_t standin_pmd_size(void);

#endif
