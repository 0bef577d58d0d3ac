/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <pthread.h>
#include <string.h>

#include "preload.h"

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
	memcpy(pages, ranges, count * sizeof(*ranges));
	if (ranges)
		raw_munmap(ranges, room * sizeof(*ranges));
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

/* With the lock held: take [start, end) out. */
static void cut(uintptr_t start, uintptr_t end)
{
	for (size_t i = 0; i < count; i++) {
		struct range *r = &ranges[i];

		if (r->end <= start || end <= r->start)
			continue;
		if (r->start < start && end < r->end) {
			uintptr_t tail = r->end;

			r->end = start;
			insert(i + 1, end, tail);
			return;
		}
		if (r->start < start) {
			r->end = start;
		} else if (end < r->end) {
			r->start = end;
		} else {
			memmove(r, r + 1, (count - i - 1) * sizeof(*r));
			count--;
			i--;
		}
	}
}

static void bound(void)
{
	__atomic_store_n(&lowest, count ? ranges[0].start : UINTPTR_MAX, __ATOMIC_RELEASE);
	__atomic_store_n(&highest, count ? ranges[count - 1].end : 0, __ATOMIC_RELEASE);
}

void preload_ranges_add(void *addr, size_t length)
{
	uintptr_t start = (uintptr_t)addr, end = start + preload_pages(length);
	size_t at = 0;

	pthread_mutex_lock(&lock);
	cut(start, end);
	while (at < count && ranges[at].start < start)
		at++;
	insert(at, start, end);
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
	int touched = 0;

	if (end <= __atomic_load_n(&lowest, __ATOMIC_ACQUIRE) || start >= __atomic_load_n(&highest, __ATOMIC_ACQUIRE))
		return 0;
	pthread_mutex_lock(&lock);
	for (size_t i = 0; i < count && !touched; i++)
		touched = ranges[i].start < end && start < ranges[i].end;
	pthread_mutex_unlock(&lock);
	return touched;
}
