/* SPDX-License-Identifier: Apache-2.0 */
/* Inside the stand-in. */
#ifndef STANDIN_H
#define STANDIN_H

#include <stddef.h>
#include <stdint.h>

#include "../core/sys.h"
#include "ubs_mem.h"
#include "wire.h"

/* --- client.c: this process's place in the cluster --- */

/* 0 or UBSM_ERR_MEMLIB; nothing to do while there is a connection, or one is being made again. */
int standin_connect(void);
void standin_disconnect(void);

/*
 * One request.  The answer's body goes to *body (malloc, the caller frees) and
 * its size to *size; both may be NULL.  The cluster's code, or UBSM_ERR_NET
 * without a connection, at its end, or after MXM_CHANNEL_TIMEOUT.
 */
int standin_call(const struct standin_request *request, const void *payload, void **body, size_t *size);
/* A round trip that is answered by units to map, for the caller to free.  UBSM_ERR_NET for what are none. */
int standin_call_units(const struct standin_request *request, const void *payload, struct standin_units **units);

/* The system calls of the node that this process is on; NULL before the first connection. */
struct obmm_sys *standin_sys(void);

void standin_count_calls(unsigned int n);
void standin_count_trip(void);

/* --- settings.c --- */

struct standin_settings {
	char folder[256];
	char node[64];
	uint64_t user[2]; /* uid and gid to be taken for, ~0 for the real ones: an emulated cluster belongs to one user */
	int in_process;
	unsigned long timeout_s;
	unsigned long attempts, wait_cap_s; /* of a refused connection */
	unsigned long second_ms;	    /* how long a second of waiting for the daemon lasts */
};

void standin_read_settings(struct standin_settings *settings);
int standin_in_process(void);

/* --- link.c, dial.c, io.c: through the daemon; direct.c: without one --- */

int standin_link_connect(const struct standin_settings *settings, struct standin_welcome *welcome);
void standin_link_disconnect(void);
int standin_link_call(const struct standin_request *request, const void *payload, void **body, size_t *size);

int standin_direct_connect(const struct standin_settings *settings, struct standin_welcome *welcome);
void standin_direct_disconnect(void);
int standin_direct_call(const struct standin_request *request, const void *payload, void **body, size_t *size);

/*
 * A socket to the daemon that has said HELLO, or a negative errno: at once
 * when `back` or when the socket's path is missing, else after all attempts.
 */
int standin_dial(const struct standin_settings *settings, int back, struct standin_welcome *welcome);

/* All of it, or -1. */
int standin_send(int fd, const void *data, size_t size);
int standin_receive(int fd, void *data, size_t size);

/* --- mapping.c: units of an object or lease, side by side in this process --- */

struct standin_mapping {
	struct standin_mapping *next;
	struct obmm_sys *sys; /* of the node where it was made */
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
/* What a reconnected process still uses: lease numbers, object names of 48 bytes each.  malloc; *size in bytes. */
void *standin_table_leases(size_t *size);
void *standin_table_names(size_t *size);

/* --- checks.c --- */

int standin_bad_name(const char *name);
int standin_bad_size(size_t size);
int standin_bad_object_flags(uint64_t flags);
size_t standin_page_round(size_t size);
size_t standin_pmd_size(void);

#endif
