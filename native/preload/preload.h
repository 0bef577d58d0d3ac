/* SPDX-License-Identifier: Apache-2.0 */
/*
 * libobmm_preload.so: lets an unmodified, dynamically linked program use an
 * emulated node through the paths and calls of the driver (docs/emulator.md,
 * "Foreign programs").  It replaces libc functions; whatever concerns no node,
 * no region and no file of the node's tree goes on to the next library.
 */
#ifndef OBMM_PRELOAD_H
#define OBMM_PRELOAD_H

#include <limits.h>
#include <stddef.h>
#include <stdint.h>

#include "../emulator/client.h"
#include "../emulator/wire.h"
#include "raw.h"

#define EXPORT __attribute__((visibility("default")))

/* The definition of a replaced function that the program would have got without us. */
#define NEXT(function)                                                                                      \
	({                                                                                                  \
		static void *slot;                                                                          \
		(__typeof__(&function))preload_next(&slot, #function);                                      \
	})

void *preload_next(void **slot, const char *name);

/* The node that OBMM_DEVICE names, or NULL: none, or its fabric does not answer (said once on stderr). */
struct obmm_sys *preload_node(void);
/* NULL, or the node when fd is an open file of it. */
struct obmm_sys *preload_node_of(int fd);

enum preload_place {
	PLACE_ELSEWHERE, /* not the node's: the path as it is */
	PLACE_DEVICE,	 /* /dev/obmm or /dev/obmm_shmdev<id> */
	PLACE_TREE,	 /* a file of the node's sysfs or procfs */
};

/*
 * Where `path` (relative to dirfd as in openat) leads on the emulated machine.
 * DEVICE: `out` is the device's path.  DEVICE and TREE: `file` is the file on
 * disk that stands for it.  ELSEWHERE below /dev, /sys and /proc: `disk` is
 * where the node's own would be.
 */
struct preload_path {
	enum preload_place place;
	const char *file; /* what to give to the next library: `disk`, or the path itself */
	char out[PATH_MAX];
	char disk[PATH_MAX];
};

void preload_find(int dirfd, const char *path, struct preload_path *found);

static inline size_t preload_pages(size_t length)
{
	return (length + 4095) & ~4095UL;
}

/* The addresses at which regions are mapped, so that other memory calls cost nothing. */
void preload_ranges_add(void *addr, size_t length);
void preload_ranges_remove(void *addr, size_t length);
int preload_ranges_touch(const void *addr, size_t length);

#endif
