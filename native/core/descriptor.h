/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A file descriptor that its maker has noted before anybody can be interrupted,
 * and that is closed once.  The same idea as owned.h.
 */
#ifndef OBMM_DESCRIPTOR_H
#define OBMM_DESCRIPTOR_H

#include "../abi/lp64.h"

#ifdef __cplusplus
extern "C" {
#endif

struct obmm_descriptor {
	int fd_plus_one; /* 0: none, so that zeroed memory is one that holds nothing */
};

/* Each closes on exec.  The descriptor, or a negative errno. */
int obmm_descriptor_eventfd(struct obmm_descriptor *descriptor);
int obmm_descriptor_memfd(struct obmm_descriptor *descriptor, const char *name);
int obmm_descriptor_open(struct obmm_descriptor *descriptor, const char *path, int flags, unsigned int mode);
int obmm_descriptor_dup(struct obmm_descriptor *descriptor, int fd);

/* Close it, if there is one. */
void obmm_descriptor_close(struct obmm_descriptor *descriptor);

#ifdef __cplusplus
}
#endif

#endif
