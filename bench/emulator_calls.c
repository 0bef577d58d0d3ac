/* SPDX-License-Identifier: Apache-2.0 */
/* Times system calls of a table, and dependent loads, from C.  Compiled where the benchmark runs. */
#include <stddef.h>
#include <stdint.h>
#include <time.h>
#include <unistd.h>

/* The first entries of struct obmm_sys (native/core/sys.h). */
struct table {
	size_t size;
	int (*open)(struct table *sys, const char *path, int flags);
	int (*ioctl)(struct table *sys, int fd, unsigned long request, void *arg);
	void *(*mmap)(struct table *sys, void *addr, size_t length, int prot, int flags, int fd, uint64_t offset);
	int (*munmap)(struct table *sys, void *addr, size_t length);
};

static uint64_t now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * 1000000000ULL + t.tv_nsec;
}

/* One ioctl, timed. */
int64_t time_ioctl(void *sys, int fd, unsigned long request, void *arg)
{
	struct table *table = sys;
	uint64_t start = now();
	int rc = table->ioctl(table, fd, request, arg);
	uint64_t end = now();

	return rc < 0 ? -1 : (int64_t)(end - start);
}

/* One open, timed; its close is not. */
int64_t time_open(void *sys, const char *path, int flags)
{
	struct table *table = sys;
	uint64_t start = now();
	int fd = table->open(table, path, flags);
	uint64_t end = now();

	if (fd < 0)
		return -1;
	close(fd);
	return end - start;
}

/* One mmap, timed; its munmap is not. */
int64_t time_mmap(void *sys, int fd, size_t length, int prot, int flags)
{
	struct table *table = sys;
	uint64_t start = now();
	void *mapped = table->mmap(table, NULL, length, prot, flags, fd, 0);
	uint64_t end = now();

	if (mapped == (void *)-1)
		return -1;
	table->munmap(table, mapped, length);
	return end - start;
}

/* A cycle through `order`, one step per cache line of base. */
void chase_build(void *base, const uint32_t *order, size_t lines)
{
	for (size_t i = 0; i < lines; i++)
		*(void **)((char *)base + 64UL * order[i]) = (char *)base + 64UL * order[(i + 1) % lines];
}

/* `loads` loads, each address from the load before: nanoseconds for all. */
int64_t chase(void *base, uint64_t loads)
{
	void *volatile *at = base;
	uint64_t start = now();

	for (uint64_t i = 0; i < loads; i++)
		at = *at;
	return now() - start;
}
