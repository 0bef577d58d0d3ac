/* SPDX-License-Identifier: Apache-2.0 */
#include "descriptor.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <unistd.h>

static int noted(struct obmm_descriptor *descriptor, int fd)
{
	if (fd < 0)
		return -errno;
	descriptor->fd_plus_one = fd + 1;
	return fd;
}

int obmm_descriptor_eventfd(struct obmm_descriptor *descriptor)
{
	return noted(descriptor, eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
}

int obmm_descriptor_memfd(struct obmm_descriptor *descriptor, const char *name)
{
	return noted(descriptor, memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING));
}

int obmm_descriptor_open(struct obmm_descriptor *descriptor, const char *path, int flags, unsigned int mode)
{
	return noted(descriptor, open(path, flags | O_CLOEXEC, mode));
}

int obmm_descriptor_dup(struct obmm_descriptor *descriptor, int fd)
{
	return noted(descriptor, fcntl(fd, F_DUPFD_CLOEXEC, 0));
}

void obmm_descriptor_close(struct obmm_descriptor *descriptor)
{
	int fd = descriptor->fd_plus_one - 1;

	descriptor->fd_plus_one = 0;
	if (fd >= 0)
		close(fd);
}
