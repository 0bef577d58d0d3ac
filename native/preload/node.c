/* SPDX-License-Identifier: Apache-2.0 */
#include "preload.h"

#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/*
 * The library comes up with the first call that needs the node, which may be
 * an allocator's own start: nothing on the way allocates from the program,
 * and who comes back meanwhile on the same thread is told that there is none.
 */
enum { DOWN, UP };

static struct obmm_sys *node;
static int state = DOWN;
static long comer; /* thread that brings it up */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

void *preload_next(void **slot, const char *name)
{
	void *found = __atomic_load_n(slot, __ATOMIC_ACQUIRE);

	if (!found) {
		found = dlsym(RTLD_NEXT, name);
		if (!found) {
			dprintf(STDERR_FILENO, "obmm: this C library has no %s\n", name);
			abort();
		}
		__atomic_store_n(slot, found, __ATOMIC_RELEASE);
	}
	return found;
}

/* OBMM_DEVICE=emulator:<socket>[#<node>] */
static void connect_node(void)
{
	static const char prefix[] = "emulator:";
	static char socket_path[PATH_MAX];
	const char *device = getenv("OBMM_DEVICE");
	char *name;
	int rc = -ENAMETOOLONG;

	if (!device || strncmp(device, prefix, strlen(prefix))) {
		dprintf(STDERR_FILENO,
			"obmm: libobmm_preload.so is loaded, but OBMM_DEVICE is not emulator:<socket>#<node>; "
			"start programs with `obmm emulate run`\n");
		return;
	}
	device += strlen(prefix);
	if (strlen(device) < sizeof(socket_path)) {
		strcpy(socket_path, device);
		name = strrchr(socket_path, '#');
		if (name)
			*name++ = 0;
		rc = obmm_sys_emulator(socket_path, name, &node);
	}
	if (rc)
		dprintf(STDERR_FILENO, "obmm: no emulated node answers at %s: %s; this process has no /dev/obmm\n",
			device, strerror(-rc));
	preload_remember_environment();
}

struct obmm_sys *preload_node(void)
{
	const long thread = raw_kernel(SYS_gettid, 0, 0, 0, 0, 0, 0);
	int saved;

	if (__atomic_load_n(&state, __ATOMIC_ACQUIRE) == UP)
		return node;
	if (__atomic_load_n(&comer, __ATOMIC_ACQUIRE) == thread)
		return NULL;
	saved = errno;
	pthread_mutex_lock(&lock);
	if (state == DOWN) {
		__atomic_store_n(&comer, thread, __ATOMIC_RELEASE);
		connect_node();
		__atomic_store_n(&comer, 0, __ATOMIC_RELEASE);
		__atomic_store_n(&state, UP, __ATOMIC_RELEASE);
	}
	pthread_mutex_unlock(&lock);
	errno = saved;
	return node;
}

struct obmm_sys *preload_node_if_up(void)
{
	return __atomic_load_n(&state, __ATOMIC_ACQUIRE) == UP ? node : NULL;
}

struct obmm_sys *preload_node_of(int fd)
{
	struct obmm_sys *sys = fd >= 0 ? preload_node() : NULL;
	int saved = errno, mine;

	if (!sys)
		return NULL;
	mine = obmm_emulator_is_open(sys, fd);
	errno = saved;
	return mine ? sys : NULL;
}

/* Before main: an inherited descriptor may be used first. */
__attribute__((constructor)) static void start(void)
{
	preload_node();
}
