/* SPDX-License-Identifier: Apache-2.0 */
#include "shared.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23
#endif

uint64_t standin_started(int32_t pid)
{
	char path[64], line[1024], *end, status;
	unsigned long long ticks;
	FILE *file;
	size_t size;

	snprintf(path, sizeof(path), "/proc/%d/stat", pid);
	file = fopen(path, "re");
	if (!file)
		return 0;
	size = fread(line, 1, sizeof(line) - 1, file);
	fclose(file);
	line[size] = '\0';
	end = strrchr(line, ')'); /* the name before may have spaces and brackets of its own */
	if (!end ||
	    sscanf(end + 1, " %c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %*u %*u %*d %*d %*d %*d %*d %*d %llu", &status,
		   &ticks) != 2)
		return 0;
	return status == 'Z' || status == 'X' ? 0 : ticks;
}

int standin_room_for(void *start, size_t size)
{
	const uintptr_t page = sysconf(_SC_PAGESIZE), first = (uintptr_t)start & ~(page - 1);

	/* an older kernel does not know it; then a full disk is a SIGBUS, as for other programs */
	return madvise((void *)first, (uintptr_t)start + size - first, MADV_POPULATE_WRITE) && errno != EINVAL ? -1 : 0;
}

static int map_file(int fd, size_t size, void **out)
{
	void *at = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);

	if (at == MAP_FAILED)
		return -errno;
	*out = at;
	return 0;
}

static void path_of(const char *folder, char *path, size_t size)
{
	snprintf(path, size, "%s/state", folder);
}

int standin_file_create(const char *folder, size_t size, size_t reserve, void **out)
{
	char path[512];
	int fd, rc;

	path_of(folder, path, sizeof(path));
	fd = open(path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
	if (fd < 0)
		return -errno;
	rc = ftruncate(fd, size) ? -errno : map_file(fd, size, out);
	close(fd);
	if (!rc && standin_room_for(*out, reserve)) {
		munmap(*out, size);
		rc = -ENOSPC;
	}
	if (rc)
		unlink(path);
	return rc;
}

int standin_file_open(const char *folder, size_t size, void **out)
{
	struct stat info;
	char path[512];
	int fd, rc;

	path_of(folder, path, sizeof(path));
	fd = open(path, O_RDWR | O_CLOEXEC);
	if (fd < 0)
		return -errno;
	rc = fstat(fd, &info) ? -errno : (size_t)info.st_size != size ? -EPROTO : map_file(fd, size, out);
	close(fd);
	return rc;
}

void standin_file_remove(const char *folder)
{
	char path[512];

	path_of(folder, path, sizeof(path));
	unlink(path);
}

int standin_mutex_init(pthread_mutex_t *lock)
{
	pthread_mutexattr_t attributes;
	int rc;

	pthread_mutexattr_init(&attributes);
	pthread_mutexattr_setpshared(&attributes, PTHREAD_PROCESS_SHARED);
	pthread_mutexattr_setrobust(&attributes, PTHREAD_MUTEX_ROBUST);
	rc = -pthread_mutex_init(lock, &attributes);
	pthread_mutexattr_destroy(&attributes);
	return rc;
}

void standin_mutex_lock(pthread_mutex_t *lock)
{
	/* its last holder was killed: whatever it left is found by who looks */
	if (pthread_mutex_lock(lock) == EOWNERDEAD)
		pthread_mutex_consistent(lock);
}
