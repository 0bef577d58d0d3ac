/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The system calls that the core needs, as a table.  The kernel answers one
 * table (sys_kernel.c), the emulator's client another (emulator/client.c);
 * nothing above this line knows which.
 *
 * Every entry follows libc: -1 (MAP_FAILED) and errno on failure.
 */
#ifndef OBMM_SYS_H
#define OBMM_SYS_H

#include "../abi/lp64.h"

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/*
 * A table of one's own may be older than the library that is handed it.  So it
 * says its size, and the table only grows at its end: what is below stays where
 * it is (asserted in sys.c), and the library calls a member that was added
 * later only where OBMM_SYS_HAS().
 */
struct obmm_sys {
	size_t size; /* sizeof(struct obmm_sys) where the table was made */
	int (*open)(struct obmm_sys *sys, const char *path, int flags);
	int (*ioctl)(struct obmm_sys *sys, int fd, unsigned long request, void *arg);
	/* offset: bit 63 asks for PMD block mappings (spec 9.3), hence unsigned */
	void *(*mmap)(struct obmm_sys *sys, void *addr, size_t length, int prot, int flags, int fd,
		      uint64_t offset);
	int (*munmap)(struct obmm_sys *sys, void *addr, size_t length);
	int (*close)(struct obmm_sys *sys, int fd);
	void (*destroy)(struct obmm_sys *sys);
	/* where this backend's /sys, /proc and /dev live: "" for the kernel */
	const char *root;
	/* "kernel" or "emulator:<socket>#<node>": what repr and banners print */
	const char *name;
};

/* Whether the table reaches as far as the member. */
#define OBMM_SYS_HAS(sys, member) \
	((sys)->size >= offsetof(struct obmm_sys, member) + sizeof((sys)->member))

/* 0, or -ENOSYS: a table of no size, or one that lacks what every release calls.  Asked when a node is opened. */
int obmm_sys_check(const struct obmm_sys *sys);

/* The kernel's table.  Static, destroy is a no-op. */
struct obmm_sys *obmm_sys_kernel(void);

/*
 * A table answered by the fabric behind a unix socket, as node `node` (NULL:
 * the fabric's first node).  0 or a negative errno.
 */
int obmm_sys_emulator(const char *socket_path, const char *node, struct obmm_sys **out);

/*
 * The table that OBMM_DEVICE names, as for the Python package: /dev/obmm (or
 * NULL, ""), emulator, emulator:<socket>[#<node>], emulator#<node>.  0 or a
 * negative errno, -EINVAL for any other text.  Never one instead of another.
 */
int obmm_sys_open(const char *device, struct obmm_sys **out);

#ifdef __cplusplus
}
#endif

#endif
