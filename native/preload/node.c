/* SPDX-License-Identifier: Apache-2.0 */
#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "preload.h"

static struct obmm_sys *node;
static pthread_once_t once = PTHREAD_ONCE_INIT;

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
	const char *device = getenv("OBMM_DEVICE");
	char *socket_path, *name;
	int saved = errno, rc;

	if (!device || strncmp(device, prefix, strlen(prefix))) {
		dprintf(STDERR_FILENO,
			"obmm: libobmm_preload.so is loaded, but OBMM_DEVICE is not emulator:<socket>#<node>; "
			"start programs with `obmm emulate run`\n");
		return;
	}
	socket_path = strdup(device + strlen(prefix));
	if (!socket_path)
		return;
	name = strrchr(socket_path, '#');
	if (name)
		*name++ = 0;
	rc = obmm_sys_emulator(socket_path, name, &node);
	if (rc)
		dprintf(STDERR_FILENO, "obmm: no emulated node answers at %s: %s; this process has no /dev/obmm\n",
			device, strerror(-rc));
	free(socket_path);
	errno = saved;
}

struct obmm_sys *preload_node(void)
{
	pthread_once(&once, connect_node);
	return node;
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
