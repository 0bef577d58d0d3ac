/* SPDX-License-Identifier: Apache-2.0 */
#include "standin_nodes.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "../abi/obmm_abi.h"
#include "../sdk_standin/standin.h"
#include "../sdk_standin/state.h"

atomic_int nodes_imports_left = 1 << 30, nodes_busy, nodes_open, nodes_exported, nodes_imported;

static void unit_path(char *path, size_t size, uint64_t mem_id)
{
	snprintf(path, size, "%s/unit%llu", getenv("OBMM_SDK_STANDIN"), (unsigned long long)mem_id);
}

const char *nodes_begin(unsigned long unit)
{
	char folder[] = "/tmp/obmm-standin-test-XXXXXX";

	if (!mkdtemp(folder) || ubsmem_standin_create(folder, "nowhere", "a,b,c", unit))
		abort();
	setenv("OBMM_SDK_STANDIN", folder, 1);
	nodes_imports_left = 1 << 30;
	nodes_busy = nodes_open = nodes_exported = nodes_imported = 0;
	return getenv("OBMM_SDK_STANDIN");
}

int nodes_end(void)
{
	const char *folder = getenv("OBMM_SDK_STANDIN");
	struct dirent **entries;
	int count = scandir(folder, &entries, NULL, NULL), left = 0;

	for (int i = 0; i < count; i++) {
		char path[512];

		left += !strncmp(entries[i]->d_name, "unit", 4);
		snprintf(path, sizeof(path), "%s/%s", folder, entries[i]->d_name);
		unlink(path);
		free(entries[i]);
	}
	free(entries);
	rmdir(folder);
	return left;
}

/* --- in the place of fabric.c --- */

void fabric_leave(struct standin_cluster *cluster)
{
	(void)cluster;
}

int fabric_export(struct standin_cluster *cluster, uint32_t node, struct standin_export *out)
{
	char path[128];
	int fd = -1;

	(void)node;
	*out = (struct standin_export){ .uba = 7, .tokenid = 9 };
	while (fd < 0) {
		unit_path(path, sizeof(path), ++out->mem_id);
		fd = open(path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
		if (fd < 0 && errno != EEXIST)
			return -errno;
	}
	if (ftruncate(fd, cluster->state->unit))
		abort();
	close(fd);
	nodes_exported++;
	return 0;
}

int fabric_unexport(struct standin_cluster *cluster, uint32_t node, uint64_t mem_id)
{
	char path[128];

	(void)cluster;
	(void)node;
	if (nodes_busy)
		return -EBUSY;
	unit_path(path, sizeof(path), mem_id);
	nodes_exported--;
	return unlink(path) && errno != ENOENT ? -errno : 0; /* a daemon that was killed had removed it */
}

int fabric_import(struct standin_cluster *cluster, uint32_t node, uint32_t provider, const struct standin_export *source,
		  int noncacheable, uint64_t *mem_id, uint64_t *window)
{
	(void)cluster;
	(void)node;
	(void)provider;
	(void)noncacheable;
	if (nodes_imports_left < 1)
		return -ENOSPC;
	nodes_imports_left--;
	nodes_imported++;
	*mem_id = source->mem_id;
	*window = source->mem_id << 21;
	return 0;
}

int fabric_unimport(struct standin_cluster *cluster, uint32_t node, uint64_t mem_id, uint64_t window)
{
	(void)cluster;
	(void)node;
	if (nodes_busy)
		return -EBUSY;
	if (window != mem_id << 21)
		abort();
	nodes_imported--;
	return 0;
}

int fabric_busy(struct standin_cluster *cluster, uint32_t node, uint64_t mem_id)
{
	(void)cluster;
	(void)node;
	return nodes_busy || (uint64_t)nodes_open == mem_id;
}

int fabric_give(struct standin_cluster *cluster, uint32_t node, uint64_t mem_id, uint32_t mode, uint32_t uid, uint32_t gid)
{
	(void)cluster;
	(void)node;
	(void)mem_id;
	(void)mode;
	(void)uid;
	(void)gid;
	return 0;
}

int fabric_pool(struct standin_cluster *cluster, uint32_t node, uint32_t numa, uint64_t *total, uint64_t *used)
{
	(void)cluster;
	*total = 1 << 20;
	*used = node << 10;
	return numa == 0 ? 0 : -ENOENT;
}

/* --- in the place of the emulator's client --- */

static int node_open(struct obmm_sys *sys, const char *path, int flags)
{
	char unit[128];

	(void)sys;
	unit_path(unit, sizeof(unit), strtoull(path + strlen(OBMM_SHMDEV_PREFIX), NULL, 10));
	return open(unit, flags | O_CLOEXEC);
}

static int node_ioctl(struct obmm_sys *sys, int fd, unsigned long request, void *argument)
{
	const struct obmm_cmd_update_range *range = argument;
	int access = range->mem_state & ~OBMM_SHM_MEM_CACHE_MASK;

	(void)sys;
	(void)fd;
	if (request != OBMM_SHMDEV_UPDATE_RANGE)
		abort();
	return mprotect((void *)(uintptr_t)range->start, range->end - range->start,
			access == OBMM_SHM_MEM_NO_ACCESS  ? PROT_NONE :
			access == OBMM_SHM_MEM_READWRITE ? PROT_READ | PROT_WRITE :
							   PROT_READ);
}

static void *node_mmap(struct obmm_sys *sys, void *addr, size_t length, int prot, int flags, int fd, uint64_t offset)
{
	(void)sys;
	return mmap(addr, length, prot, flags, fd, (off_t)offset);
}

static int node_munmap(struct obmm_sys *sys, void *addr, size_t length)
{
	(void)sys;
	return munmap(addr, length);
}

static int node_close(struct obmm_sys *sys, int fd)
{
	(void)sys;
	return close(fd);
}

int obmm_sys_emulator(const char *socket, const char *node, struct obmm_sys **out)
{
	static struct obmm_sys sys = {
		.size = sizeof(sys),
		.open = node_open,
		.ioctl = node_ioctl,
		.mmap = node_mmap,
		.munmap = node_munmap,
		.close = node_close,
	};

	(void)node;
	if (strcmp(socket, "nowhere"))
		abort();
	*out = &sys;
	return 0;
}
