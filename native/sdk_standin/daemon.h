/* SPDX-License-Identifier: Apache-2.0 */
/* Inside the stand-in's daemon, which is this library in a process of its own. */
#ifndef STANDIN_DAEMON_H
#define STANDIN_DAEMON_H

#include <stdint.h>

#include "state.h"

/* A listening unix socket, or a negative errno.  What lay at the path is removed. */
int daemon_listen(const char *path);
int daemon_connect(const char *path);

/*
 * The UB engine's part: one message and one answer per connection, as the real
 * one (SDK specification 1).  It does nothing but count them.
 */
int engine_start(const char *path, struct standin_state *state);
void engine_call(const char *path, unsigned int times);

#endif
