/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A table whose every entry says that it was entered, then blocks until its
 * gate opens.  For the test that Python runs meanwhile; C only, because a
 * callback into Python would let other threads run by itself.
 */
#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include "../core/sys.h"

struct blocking {
	struct obmm_sys sys;
	int entered; /* write end of a pipe */
	int gate;    /* read end of a pipe: readable is open */
};

static int block(struct obmm_sys *sys)
{
	struct blocking *blocking = (struct blocking *)sys;
	struct pollfd gate = { .fd = blocking->gate, .events = POLLIN };

	if (write(blocking->entered, "", 1) == 1 && poll(&gate, 1, 5000) == 1)
		return 0;
	errno = ETIMEDOUT;
	return -1;
}

static int blocking_open(struct obmm_sys *sys, const char *path, int flags)
{
	(void)path, (void)flags;
	return block(sys);
}

static int blocking_ioctl(struct obmm_sys *sys, int fd, unsigned long request, void *arg)
{
	(void)fd, (void)request, (void)arg;
	return block(sys);
}

static void *blocking_mmap(struct obmm_sys *sys, void *addr, size_t length, int prot, int flags, int fd,
			   uint64_t offset)
{
	(void)addr, (void)length, (void)prot, (void)flags, (void)fd, (void)offset;
	return block(sys) < 0 ? MAP_FAILED : NULL;
}

static int blocking_munmap(struct obmm_sys *sys, void *addr, size_t length)
{
	(void)addr, (void)length;
	return block(sys);
}

static int blocking_close(struct obmm_sys *sys, int fd)
{
	(void)fd;
	return block(sys);
}

struct obmm_sys *blocking_sys(int entered, int gate)
{
	struct blocking *blocking = malloc(sizeof(*blocking));

	if (blocking)
		*blocking = (struct blocking){
			.sys = {
				.size = sizeof(struct obmm_sys),
				.open = blocking_open,
				.ioctl = blocking_ioctl,
				.mmap = blocking_mmap,
				.munmap = blocking_munmap,
				.close = blocking_close,
			},
			.entered = entered,
			.gate = gate,
		};
	return (struct obmm_sys *)blocking;
}
