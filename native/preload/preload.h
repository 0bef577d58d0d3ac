/* SPDX-License-Identifier: Apache-2.0 */
/*
 * libobmm_preload.so: lets an unmodified, dynamically linked program use an
 * emulated node through the paths and calls of the driver (docs/emulator.md,
 * "Foreign programs").  It replaces libc functions; functions.toml says for
 * each function of libc what becomes of it.
 */
#ifndef OBMM_PRELOAD_H
#define OBMM_PRELOAD_H

#include "flags.h"

#include <limits.h>
#include <stddef.h>
#include <stdint.h>

#include "../emulator/client.h"
#include "../emulator/wire.h"
#include "raw.h"

#define EXPORT __attribute__((visibility("default")))

/* One more name of a replaced function: what libc's headers or other libraries call instead. */
#if __has_attribute(copy)
#define SAME_AS(function) copy(function),
#else
#define SAME_AS(function)
#endif
#define ALIAS(function, name)                                                                               \
	extern __typeof__(function) preload_##name __asm__(#name)                                           \
		__attribute__((SAME_AS(function) alias(#function), visibility("default")))

/* The definition of a replaced function that the program would have got without us. */
#define NEXT(function)                                                                                      \
	({                                                                                                  \
		static void *slot;                                                                          \
		(__typeof__(&function))preload_next(&slot, #function);                                      \
	})

void *preload_next(void **slot, const char *name);

/* The node that OBMM_DEVICE names, or NULL: none, or its fabric does not answer (said once on stderr). */
struct obmm_sys *preload_node(void);
/* The same without connecting first: for memory calls, which allocators make before anything is up. */
struct obmm_sys *preload_node_if_up(void);
/* NULL, or the node when fd is an open file of it. */
struct obmm_sys *preload_node_of(int fd);

enum preload_place {
	PLACE_ELSEWHERE, /* not the node's: the path as it is */
	PLACE_DEVICE,	 /* /dev/obmm or /dev/obmm_shmdev<id> */
	PLACE_TREE,	 /* a file of the node's sysfs or procfs */
};

/* What follows a path's last link, as the system call would. */
enum preload_follow { FOLLOW, NOFOLLOW };

/* Resolved paths may be this long: small stacks open files too.  Longer ones are none of the node's. */
#define PRELOAD_OUT_MAX 1024

/*
 * Where `path` (relative to dirfd as in openat) leads on the emulated machine,
 * links resolved as a kernel does.  DEVICE: `out` is the device's path.  DEVICE
 * and TREE: `file` is the file on disk that stands for it.  ELSEWHERE below
 * /dev, /sys and /proc: `disk` is where the node's own would be.
 */
struct preload_path {
	enum preload_place place;
	const char *file; /* what to give to the next library: `disk`, or the path itself */
	char out[PRELOAD_OUT_MAX];
	char disk[PRELOAD_OUT_MAX + OBMM_WIRE_ROOT_MAX];
};

void preload_find(int dirfd, const char *path, enum preload_follow follow, struct preload_path *found);

/* Whether it is an empty text: with AT_EMPTY_PATH the descriptor is meant. */
int preload_is_empty(const char *path);

/* Whether the entry `name` of `folder` is always the node's, whatever this machine has there. */
int preload_is_ours(const char *folder, const char *name);

/*
 * Whether a call that changes what `path` names has to be refused: the node's
 * files are the driver's.  1 and errno: `exists` when there is such a file;
 * when there is none ENOENT, or EPERM for a call that would make one (which
 * says EEXIST or EADDRINUSE of one that is there); ENOTDIR behind a device.
 */
int preload_refuses(int dirfd, const char *path, enum preload_follow follow, int exists);

/* A path on disk below the node's tree as the program knows it, in place; its length. */
size_t preload_unroot(char *path);
/* `link`, as /proc/<pid>/fd/<n> of any process shows an open file of this node: its device, or NULL. */
const char *preload_linked_device(char *link);

/* Keep what exec has to hand on: called once, when the node is up. */
void preload_remember_environment(void);

/*
 * Whether the program may read there.  A kernel answers EFAULT to a pointer that leads nowhere: what is looked at here
 * first is passed on as it came when it does.
 */
int preload_readable(const void *at, size_t length);
/* The same for a text that ends within PATH_MAX, or is as long. */
int preload_readable_text(const char *text);

static inline size_t preload_pages(size_t length)
{
	return (length + 4095) & ~4095UL;
}

/* The addresses at which regions are mapped, so that other memory calls cost nothing. */
void preload_ranges_add(void *addr, size_t length);
void preload_ranges_remove(void *addr, size_t length);
int preload_ranges_touch(const void *addr, size_t length);

/* On a file of the node: the server's answer to `operation`, returned from the caller. */
#define ANSWER(fd, operation, a, b, c)                                                                      \
	do {                                                                                                \
		struct obmm_sys *node_ = preload_node_of(fd);                                               \
                                                                                                            \
		if (node_)                                                                                  \
			return obmm_emulator_file(node_, fd, operation, a, b, c);                           \
	} while (0)

/* On a file of the node: refuse, as a kernel does for any character device without the operation. */
#define REFUSE(fd, error)                                                                                   \
	do {                                                                                                \
		if (preload_node_of(fd)) {                                                                  \
			errno = (error);                                                                    \
			return -1;                                                                          \
		}                                                                                           \
	} while (0)

#endif
