/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A system-call table whose open() asks a broker (obmm/broker/broker.py): a process
 * with privilege that opens nodes by a policy and passes the descriptors.
 * Everything else goes to the table of the kernel behind it.
 *
 * One connection per open: nothing to share between threads or with a forked
 * child, and a broker that went away is noticed at once.
 */
#ifndef OBMM_BROKER_H
#define OBMM_BROKER_H

#include "../abi/lp64.h"

#include <assert.h>
#include <stdint.h>

#include "../core/sys.h"

#ifdef __cplusplus
extern "C" {
#endif

#define OBMM_BROKER_MAGIC 0x4b424f42u /* "BOBK" */
#define OBMM_BROKER_VERSION 1
#define OBMM_BROKER_PATH_MAX 64

enum obmm_broker_kind {
	OBMM_BROKER_HELLO = 1, /* answered with the name of the device behind the broker */
	OBMM_BROKER_OPEN = 2,  /* answered with a descriptor, or an errno */
};

/* Little-endian; both ends run on one machine. */
struct obmm_broker_request {
	uint32_t magic;
	uint16_t version;
	uint16_t kind;
	uint32_t flags; /* of open(2) */
	char path[OBMM_BROKER_PATH_MAX];
};

struct obmm_broker_answer {
	uint32_t magic;
	int32_t error; /* 0 or an errno */
	uint32_t size; /* HELLO: bytes of text that follow */
};

static_assert(sizeof(struct obmm_broker_request) == 76, "wire");
static_assert(sizeof(struct obmm_broker_answer) == 12, "wire");

/*
 * A table that opens through the broker on `socket_path` and does the rest
 * through `base`, which it owns on success.  0 or a negative errno.
 */
int obmm_sys_broker(const char *socket_path, struct obmm_sys *base, struct obmm_sys **out);

/* The table behind it. */
struct obmm_sys *obmm_sys_broker_base(struct obmm_sys *sys);

#ifdef __cplusplus
}
#endif

#endif
