/* SPDX-License-Identifier: Apache-2.0 */
/* What the stand-in and its daemon say to each other. */
#ifndef STANDIN_WIRE_H
#define STANDIN_WIRE_H

#include <assert.h>
#include <stdint.h>

enum standin_op {
	STANDIN_HELLO = 1, /* uid, gid (~0: the peer's credentials), whether it comes back (a reconnection) */
	STANDIN_STILL_LEASES = 4, /* body: numbers */
	STANDIN_GROUPS = 5,
	STANDIN_RESOLVE = 6,
	STANDIN_CREATE = 7,
	STANDIN_CREATE_AT = 8,
	STANDIN_MAP = 9,
	STANDIN_UNMAP = 10,
	STANDIN_DELETE = 11,
	STANDIN_STILL_OBJECTS = 13, /* body: names, 48 bytes each */
	STANDIN_REGION_CREATE = 15,
	STANDIN_REGION_LOOKUP = 16,
	STANDIN_REGION_DESTROY = 17,
	STANDIN_WRITE_LOCK = 18,
	STANDIN_READ_LOCK = 19,
	STANDIN_UNLOCK = 20,
	STANDIN_CLUSTER = 21,
	STANDIN_LIST = 24,
	STANDIN_LOOKUP = 25,
	STANDIN_SLOT = 30,
	STANDIN_LEASE = 40,
	STANDIN_LEASE_AT = 41,
	STANDIN_LEASE_FREE = 42,
};

struct standin_request {
	uint32_t op;
	uint32_t id;
	uint32_t size; /* bytes of the body that follows */
	uint32_t reserved;
	uint64_t arg[4];
	char name[64];
	char region[64];
};

struct standin_answer {
	uint32_t id;
	int32_t code;
	uint32_t size; /* bytes of the body that follows */
	uint32_t reserved;
};

/* Body of the answer to MAP and LEASE: what to map. */
struct standin_units {
	uint64_t size;
	uint64_t unit;
	uint64_t lease; /* LEASE: its number */
	uint32_t count;
	uint32_t flags;	    /* without 0x8 on the exporter */
	uint32_t open_mode; /* O_RDONLY or O_RDWR */
	uint32_t reserved;
	uint64_t mem_ids[];
};

/* Body of the answer to HELLO. */
struct standin_welcome {
	char socket[256]; /* the fabric */
	char node[64];
};

static_assert(sizeof(struct standin_request) == 176, "no holes");
static_assert(sizeof(struct standin_answer) == 16, "no holes");
static_assert(sizeof(struct standin_units) == 40, "no holes");
static_assert(sizeof(struct standin_welcome) == 320, "no holes");

#endif
