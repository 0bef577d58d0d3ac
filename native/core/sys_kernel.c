/* SPDX-License-Identifier: Apache-2.0 */
#include <fcntl.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <unistd.h>

#include "sys.h"

static int kernel_open(struct obmm_sys *sys, const char *path, int flags)
{
	(void)sys;
	return open(path, flags);
}

static int kernel_ioctl(struct obmm_sys *sys, int fd, unsigned long request, void *arg)
{
	(void)sys;
	return ioctl(fd, request, arg);
}

static void *kernel_mmap(struct obmm_sys *sys, void *addr, size_t length, int prot, int flags, int fd,
			 uint64_t offset)
{
	(void)sys;
	/* bit 63 makes off_t negative; libc hands it on unchanged (spec 9.3) */
	return mmap(addr, length, prot, flags, fd, (off_t)offset);
}

static int kernel_munmap(struct obmm_sys *sys, void *addr, size_t length)
{
	(void)sys;
	return munmap(addr, length);
}

static int kernel_close(struct obmm_sys *sys, int fd)
{
	(void)sys;
	return close(fd);
}

static void kernel_destroy(struct obmm_sys *sys)
{
	(void)sys;
}

struct obmm_sys *obmm_sys_kernel(void)
{
	static struct obmm_sys kernel = {
		.size = sizeof(kernel),
		.open = kernel_open,
		.ioctl = kernel_ioctl,
		.mmap = kernel_mmap,
		.munmap = kernel_munmap,
		.close = kernel_close,
		.destroy = kernel_destroy,
		.root = "",
		.name = "kernel",
	};

	return &kernel;
}
