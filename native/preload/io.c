/* SPDX-License-Identifier: Apache-2.0 */
/* Calls on descriptors: the driver has ioctl and little else (spec 2, 9.2). */
#include <errno.h>
#include <stdarg.h>
#include <sys/epoll.h>
#include <sys/uio.h>

#include "preload.h"

EXPORT int ioctl(int fd, unsigned long request, ...)
{
	struct obmm_sys *sys = preload_node_of(fd);
	va_list more;
	void *arg;

	va_start(more, request);
	arg = va_arg(more, void *);
	va_end(more);
	return sys ? sys->ioctl(sys, fd, request, arg) : raw_ioctl(fd, request, arg);
}

/* On a file of the node: the server's answer to `operation`, returned from the caller. */
#define ANSWER(fd, operation, a, b, c)                                                                      \
	do {                                                                                                \
		struct obmm_sys *node_ = preload_node_of(fd);                                               \
                                                                                                            \
		if (node_)                                                                                  \
			return obmm_emulator_file(node_, fd, operation, a, b, c);                           \
	} while (0)

EXPORT ssize_t read(int fd, void *buffer, size_t size)
{
	ANSWER(fd, OBMM_FILE_READ, size, 0, 0);
	return NEXT(read)(fd, buffer, size);
}

EXPORT ssize_t pread(int fd, void *buffer, size_t size, off_t offset)
{
	ANSWER(fd, OBMM_FILE_READ, size, 0, 0);
	return NEXT(pread)(fd, buffer, size, offset);
}

EXPORT ssize_t pread64(int fd, void *buffer, size_t size, off_t offset)
{
	return pread(fd, buffer, size, offset);
}

EXPORT ssize_t readv(int fd, const struct iovec *parts, int count)
{
	ANSWER(fd, OBMM_FILE_READ, 0, 0, 0);
	return NEXT(readv)(fd, parts, count);
}

EXPORT ssize_t preadv(int fd, const struct iovec *parts, int count, off_t offset)
{
	ANSWER(fd, OBMM_FILE_READ, 0, 0, 0);
	return NEXT(preadv)(fd, parts, count, offset);
}

EXPORT ssize_t write(int fd, const void *buffer, size_t size)
{
	ANSWER(fd, OBMM_FILE_WRITE, size, 0, 0);
	return NEXT(write)(fd, buffer, size);
}

EXPORT ssize_t pwrite(int fd, const void *buffer, size_t size, off_t offset)
{
	ANSWER(fd, OBMM_FILE_WRITE, size, 0, 0);
	return NEXT(pwrite)(fd, buffer, size, offset);
}

EXPORT ssize_t pwrite64(int fd, const void *buffer, size_t size, off_t offset)
{
	return pwrite(fd, buffer, size, offset);
}

EXPORT ssize_t writev(int fd, const struct iovec *parts, int count)
{
	ANSWER(fd, OBMM_FILE_WRITE, 0, 0, 0);
	return NEXT(writev)(fd, parts, count);
}

EXPORT ssize_t pwritev(int fd, const struct iovec *parts, int count, off_t offset)
{
	ANSWER(fd, OBMM_FILE_WRITE, 0, 0, 0);
	return NEXT(pwritev)(fd, parts, count, offset);
}

EXPORT off_t lseek(int fd, off_t offset, int whence)
{
	ANSWER(fd, OBMM_FILE_LSEEK, offset, whence, 0);
	return NEXT(lseek)(fd, offset, whence);
}

EXPORT off_t lseek64(int fd, off_t offset, int whence)
{
	return lseek(fd, offset, whence);
}

EXPORT int fsync(int fd)
{
	ANSWER(fd, OBMM_FILE_FSYNC, 0, 0, 0);
	return NEXT(fsync)(fd);
}

EXPORT int fdatasync(int fd)
{
	ANSWER(fd, OBMM_FILE_FSYNC, 1, 0, 0);
	return NEXT(fdatasync)(fd);
}

EXPORT int fallocate(int fd, int mode, off_t offset, off_t length)
{
	ANSWER(fd, OBMM_FILE_FALLOCATE, mode, offset, length);
	return NEXT(fallocate)(fd, mode, offset, length);
}

EXPORT int fallocate64(int fd, int mode, off_t offset, off_t length)
{
	return fallocate(fd, mode, offset, length);
}

EXPORT int posix_fallocate(int fd, off_t offset, off_t length)
{
	struct obmm_sys *sys = preload_node_of(fd);

	if (sys)
		return obmm_emulator_file(sys, fd, OBMM_FILE_FALLOCATE, 0, offset, length) < 0 ? errno : 0;
	return NEXT(posix_fallocate)(fd, offset, length);
}

EXPORT int posix_fallocate64(int fd, off_t offset, off_t length)
{
	return posix_fallocate(fd, offset, length);
}

EXPORT int ftruncate(int fd, off_t length)
{
	ANSWER(fd, OBMM_FILE_FTRUNCATE, length, 0, 0);
	return NEXT(ftruncate)(fd, length);
}

EXPORT int ftruncate64(int fd, off_t length)
{
	return ftruncate(fd, length);
}

/* Only what the flags of the open file say differs from the socket that stands for it. */
static int control(int fd, int command, void *arg)
{
	if (command == F_GETFL)
		ANSWER(fd, OBMM_FILE_FLAGS, 0, 0, 0);
	return raw_fcntl(fd, command, arg);
}

#define DEFINE_FCNTL(name)                                                                                  \
	EXPORT int name(int fd, int command, ...)                                                           \
	{                                                                                                   \
		va_list more;                                                                               \
		void *arg;                                                                                  \
                                                                                                            \
		va_start(more, command);                                                                    \
		arg = va_arg(more, void *);                                                                 \
		va_end(more);                                                                               \
		return control(fd, command, arg);                                                           \
	}

DEFINE_FCNTL(fcntl)
DEFINE_FCNTL(fcntl64)

EXPORT int epoll_ctl(int epoll, int operation, int fd, struct epoll_event *event)
{
	if (operation == EPOLL_CTL_ADD && preload_node_of(fd)) {
		errno = EPERM; /* a file without poll of its own */
		return -1;
	}
	return NEXT(epoll_ctl)(epoll, operation, fd, event);
}
