/* SPDX-License-Identifier: Apache-2.0 */
/* What a kernel does to mappings on request, and plain loads and stores. */
#include "storm.h"

#include <linux/futex.h>
#include <linux/mempolicy.h>
#include <linux/userfaultfd.h>
#include <sched.h>
#include <fcntl.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

struct touch {
	char *at;
	size_t length;
	bool store;
};

static void every_page(void *argument)
{
	const struct touch *touch = argument;

	for (size_t i = 0; i + 8 <= touch->length; i += PAGE * 16) {
		volatile uint64_t *word = (volatile uint64_t *)(touch->at + i);

		if (touch->store)
			*word = i;
		else
			(void)*word;
	}
}

static void touch(struct dice *dice)
{
	struct touch touch = { .store = below(dice, 2) };

	touch.at = place(dice, &touch.length);
	if (touch.length > 4 * CHUNK)
		touch.length = 4 * CHUNK;
	if (touch.at >= arena && touch.at < arena + ARENA && touch.length > (size_t)(arena + ARENA - touch.at))
		touch.length = (size_t)(arena + ARENA - touch.at); /* behind it lies this program's own */
	did(TOUCHED, touching(every_page, &touch));
}

static void add(void *at)
{
	atomic_fetch_add((_Atomic(uint64_t) *)at, 1);
}

static void touch_atomically(struct dice *dice)
{
	size_t length;

	touching(add, place(dice, &length));
}

/* Inside the arena: nothing of this program's own is hit. */
static void *inside(struct dice *dice, size_t *length)
{
	char *at;

	do {
		at = place(dice, length);
	} while (at < arena || *length > ARENA || at + *length > arena + ARENA);
	return at;
}

static void unmap(struct dice *dice)
{
	size_t length;
	void *at = inside(dice, &length);

	did(CUT, !munmap(at, length));
}

static void protect(struct dice *dice)
{
	size_t length;
	void *at = inside(dice, &length);

	if (below(dice, 4))
		mprotect(at, length, (int)below(dice, 8));
	else
		syscall(SYS_pkey_mprotect, at, length, below(dice, 8), -1);
}

static void move(struct dice *dice)
{
	size_t from, to;
	void *at = inside(dice, &from), *there = inside(dice, &to);
	int flags = (int)PICK(dice, 0, MREMAP_MAYMOVE, MREMAP_MAYMOVE | MREMAP_FIXED,
			      MREMAP_MAYMOVE | MREMAP_FIXED | 4 /* DONTUNMAP */);

	if (!below(dice, 8))
		from = 0;
	if (flags == MREMAP_MAYMOVE) /* could go anywhere: growth only, which is refused for a region */
		to = from + PAGE;
	mremap(at, from, flags & MREMAP_FIXED && below(dice, 2) ? from : to, flags, there);
}

static void advise(struct dice *dice)
{
	size_t length;
	void *at = inside(dice, &length);
	int advice = (int)PICK(dice, 0, 1, 2, 3, 4, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22, 23, 25);

	madvise(at, length, advice);
}

static void synchronise(struct dice *dice)
{
	size_t length;
	void *at = inside(dice, &length);

	msync(at, length, (int)PICK(dice, MS_ASYNC, MS_SYNC, MS_INVALIDATE, MS_SYNC | MS_INVALIDATE));
}

static void lock(struct dice *dice)
{
	size_t length;
	void *at = inside(dice, &length);

	switch (below(dice, 3)) {
	case 0:
		mlock(at, length);
		break;
	case 1:
		mlock2(at, length, MLOCK_ONFAULT);
		break;
	default:
		munlock(at, length);
	}
}

static void resident(struct dice *dice)
{
	static unsigned char pages[ARENA / PAGE];
	size_t length;
	void *at = inside(dice, &length);

	mincore(at, length, pages);
}

static void policy(struct dice *dice)
{
	unsigned long mask = 1;
	size_t length;
	void *at = inside(dice, &length);
	int mode = 0;

	if (below(dice, 3))
		syscall(SYS_mbind, at, length, PICK(dice, MPOL_DEFAULT, MPOL_BIND, MPOL_PREFERRED, MPOL_INTERLEAVE), &mask,
			below(dice, 2) ? 64 : 0, below(dice, 8));
	else
		syscall(SYS_get_mempolicy, &mode, NULL, 0, at, below(dice, 8));
}

static void remap_pages(struct dice *dice)
{
	size_t length;
	void *at = inside(dice, &length);

	syscall(SYS_remap_file_pages, at, length, 0, below(dice, 1024), 0);
}

static void user_faults(struct dice *dice)
{
	int fd = (int)syscall(SYS_userfaultfd, O_NONBLOCK | O_CLOEXEC);
	struct uffdio_api api = { .api = UFFD_API };
	struct uffdio_register wanted;
	struct uffdio_writeprotect protect;
	size_t length;

	if (fd < 0)
		return;
	if (!ioctl(fd, UFFDIO_API, &api)) {
		wanted.range.start = (uintptr_t)inside(dice, &length);
		wanted.range.len = length;
		wanted.mode = 1 + below(dice, 7);
		protect = (struct uffdio_writeprotect){ wanted.range, below(dice, 2) };
		/* ends with the descriptor: a fault that is not answered is not waited for for ever */
		ioctl(fd, UFFDIO_REGISTER, &wanted);
		ioctl(fd, UFFDIO_WRITEPROTECT, &protect);
	}
	close(fd);
}

void memory_call(struct dice *dice)
{
	static void (*const calls[])(struct dice *) = {
		touch, touch, touch, touch, touch, touch_atomically, unmap, unmap, unmap, protect,
		move, move, advise, advise, synchronise, lock, resident, policy, remap_pages, user_faults,
	};

	calls[below(dice, sizeof(calls) / sizeof(*calls))](dice);
}
