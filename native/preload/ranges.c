/* SPDX-License-Identifier: Apache-2.0 */
#include "preload.h"

#include <errno.h>
#include <pthread.h>
#include <string.h>

struct range {
	uintptr_t start, end;
};

/* Sorted, disjoint.  In pages of its own: allocators call mmap and munmap too. */
static struct range *ranges;
static size_t count, room;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
/* Read without the lock: nothing is mapped outside [lowest, highest). */
static uintptr_t lowest = UINTPTR_MAX, highest;

static void before_fork(void)
{
	pthread_mutex_lock(&lock);
}

static void after_fork_in_parent(void)
{
	pthread_mutex_unlock(&lock);
}

static void after_fork_in_child(void)
{
	count = 0; /* regions are not inherited (spec 9.4) */
	pthread_mutex_unlock(&lock);
}

__attribute__((constructor)) static void register_fork(void)
{
	pthread_atfork(before_fork, after_fork_in_parent, after_fork_in_child);
}

static int grow(void)
{
	size_t wanted = room ? room * 2 : 256;
	void *pages = raw_mmap(NULL, wanted * sizeof(*ranges), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS,
			       -1, 0);

	if (pages == MAP_FAILED)
		return -1;
	if (ranges) {
		memcpy(pages, ranges, count * sizeof(*ranges));
		raw_munmap(ranges, room * sizeof(*ranges));
	}
	ranges = pages;
	room = wanted;
	return 0;
}

static void insert(size_t at, uintptr_t start, uintptr_t end)
{
	if (count == room && grow())
		return; /* its munmap goes unreported; the process's exit releases it */
	memmove(&ranges[at + 1], &ranges[at], (count - at) * sizeof(*ranges));
	ranges[at] = (struct range){ start, end };
	count++;
}

/* The first range that ends after `address`. */
static size_t first_after(uintptr_t address)
{
	size_t low = 0, high = count;

	while (low < high) {
		size_t middle = (low + high) / 2;

		if (ranges[middle].end > address)
			high = middle;
		else
			low = middle + 1;
	}
	return low;
}

/* With the lock held: take [start, end) out. */
static void cut(uintptr_t start, uintptr_t end)
{
	size_t at = first_after(start), stop;

	if (at < count && ranges[at].start < start) {
		uintptr_t tail = ranges[at].end;

		ranges[at++].end = start;
		if (end < tail) {
			insert(at, end, tail);
			return;
		}
	}
	if (at == count)
		return;
	for (stop = at; stop < count && ranges[stop].end <= end; stop++)
		;
	memmove(&ranges[at], &ranges[stop], (count - stop) * sizeof(*ranges));
	count -= stop - at;
	if (at < count && ranges[at].start < end)
		ranges[at].start = end;
}

static void bound(void)
{
	__atomic_store_n(&lowest, count ? ranges[0].start : UINTPTR_MAX, __ATOMIC_RELEASE);
	__atomic_store_n(&highest, count ? ranges[count - 1].end : 0, __ATOMIC_RELEASE);
}

void preload_ranges_add(void *addr, size_t length)
{
	uintptr_t start = (uintptr_t)addr, end = start + preload_pages(length);

	pthread_mutex_lock(&lock);
	cut(start, end);
	insert(first_after(start), start, end);
	bound();
	pthread_mutex_unlock(&lock);
}

void preload_ranges_remove(void *addr, size_t length)
{
	pthread_mutex_lock(&lock);
	cut((uintptr_t)addr, (uintptr_t)addr + preload_pages(length));
	bound();
	pthread_mutex_unlock(&lock);
}

int preload_ranges_touch(const void *addr, size_t length)
{
	uintptr_t start = (uintptr_t)addr, end = start + (length ? preload_pages(length) : 1);
	size_t at;
	int touched;

	if (end <= __atomic_load_n(&lowest, __ATOMIC_ACQUIRE) || start >= __atomic_load_n(&highest, __ATOMIC_ACQUIRE))
		return 0;
	pthread_mutex_lock(&lock);
	at = first_after(start);
	touched = at < count && ranges[at].start < end;
	pthread_mutex_unlock(&lock);
	return touched;
}
