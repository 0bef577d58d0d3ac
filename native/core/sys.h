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

#include <stddef.h>
#include <stdint.h>

struct obmm_sys {
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

/* The kernel's table.  Static, destroy is a no-op. */
struct obmm_sys *obmm_sys_kernel(void);

/*
 * A table answered by the fabric behind a unix socket, as node `node` (NULL:
 * the fabric's first node).  0 or a negative errno.
 */
int obmm_sys_emulator(const char *socket_path, const char *node, struct obmm_sys **out);

#endif
