/* SPDX-License-Identifier: Apache-2.0 */
/* A process's connection to a fabric as one of its nodes.  Internal to native/emulator. */
#ifndef OBMM_CONNECTION_H
#define OBMM_CONNECTION_H

#include <stdint.h>

#include "wire.h"

struct obmm_connection;

/* One system call on its way: filled by the caller, completed by the answer. */
struct obmm_call {
	struct obmm_wire_request request;
	const void *payload; /* the caller's pointer itself: the kernel gives EFAULT */
	int keep_flags;	     /* OPEN: O_CLOEXEC or 0 for the descriptor that comes back */
	int descriptor;	     /* OPEN: that descriptor */
	int answered;	     /* the result is the server's, not that there is none */
	int64_t value;
};

/* What obmm_connection_call returns besides 0 and negative errnos. */
#define OBMM_CALL_FOREIGN 1

/*
 * The process's one connection for this socket and node, made on first use.
 * A fork makes the child one of its own at its next call.
 */
int obmm_connection_get(const char *socket_path, const char *node, struct obmm_connection **out);
void obmm_connection_put(struct obmm_connection *connection);

/* 0, OBMM_CALL_FOREIGN or a negative errno; -ESHUTDOWN when the fabric is gone. */
int obmm_connection_call(struct obmm_connection *connection, struct obmm_call *call);

/*
 * The inode that names fd in requests, or 0 when fd is not an open file of this
 * connection's fabric.
 */
uint64_t obmm_connection_file(struct obmm_connection *connection, int fd);
/* The device behind fd ("/dev/obmm") and its length, or 0 when fd is not an open file of this connection's node. */
size_t obmm_connection_device(struct obmm_connection *connection, int fd, char *device, size_t size);

/* The connection's own descriptor in this process, or -1. */
int obmm_connection_descriptor(struct obmm_connection *connection);
/* Move it away from the number fd. */
void obmm_connection_vacate(struct obmm_connection *connection, int fd);

const char *obmm_connection_node(struct obmm_connection *connection);
const char *obmm_connection_root(struct obmm_connection *connection);

#endif
