/* SPDX-License-Identifier: Apache-2.0 */
/* Calls on descriptors: the driver has ioctl and little else (spec 2, 9.2). */
#include "preload.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/sendfile.h>
#include <sys/uio.h>

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

EXPORT ssize_t read(int fd, void *buffer, size_t size)
{
	ANSWER(fd, OBMM_FILE_READ, size, 0, 0);
	return NEXT(read)(fd, buffer, size);
}

/*
 * /proc/self/mem takes no notice of page protections; the driver's mapping asks
 * for the current right.  So do these calls, which move the same bytes.
 * -2: not about a region through that file.
 */
static ssize_t through_proc_mem(int fd, void *buffer, size_t size, off_t offset, int number)
{
	struct iovec local = { .iov_base = buffer, .iov_len = size };
	struct iovec remote = { .iov_base = (void *)(uintptr_t)offset, .iov_len = size };
	char path[32], link[32], own[32];
	ssize_t length;

	if (!size || !preload_node_if_up() || !preload_ranges_touch(remote.iov_base, size))
		return -2;
	snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
	snprintf(own, sizeof(own), "/proc/%d/mem", getpid());
	length = raw_readlink(path, link, sizeof(link) - 1);
	if (length <= 0 || (size_t)length != strlen(own) || memcmp(link, own, (size_t)length))
		return -2;
	length = raw_call(number, getpid(), (long)&local, 1, (long)&remote, 1, 0);
	if (length < 0 && errno == EFAULT)
		errno = EIO;
	return length;
}

EXPORT ssize_t pread(int fd, void *buffer, size_t size, off_t offset)
{
	ssize_t moved = through_proc_mem(fd, buffer, size, offset, SYS_process_vm_readv);

	if (moved != -2)
		return moved;
	ANSWER(fd, OBMM_FILE_READ, size, 0, 0);
	return NEXT(pread)(fd, buffer, size, offset);
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
	ssize_t moved =
		through_proc_mem(fd, (void *)(uintptr_t)buffer, size, offset, SYS_process_vm_writev);

	if (moved != -2)
		return moved;
	ANSWER(fd, OBMM_FILE_WRITE, size, 0, 0);
	return NEXT(pwrite)(fd, buffer, size, offset);
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

EXPORT int posix_fallocate(int fd, off_t offset, off_t length)
{
	struct obmm_sys *sys = preload_node_of(fd);

	if (sys)
		return obmm_emulator_file(sys, fd, OBMM_FILE_FALLOCATE, 0, offset, length) < 0 ? errno : 0;
	return NEXT(posix_fallocate)(fd, offset, length);
}

EXPORT int ftruncate(int fd, off_t length)
{
	ANSWER(fd, OBMM_FILE_FTRUNCATE, length, 0, 0);
	return NEXT(ftruncate)(fd, length);
}

EXPORT ssize_t preadv2(int fd, const struct iovec *parts, int count, off_t offset, int flags)
{
	ANSWER(fd, OBMM_FILE_READ, 0, 0, 0);
	return NEXT(preadv2)(fd, parts, count, offset, flags);
}

EXPORT ssize_t pwritev2(int fd, const struct iovec *parts, int count, off_t offset, int flags)
{
	ANSWER(fd, OBMM_FILE_WRITE, 0, 0, 0);
	return NEXT(pwritev2)(fd, parts, count, offset, flags);
}

/* Calls that move bytes between two files. */
EXPORT ssize_t sendfile(int to, int from, off_t *offset, size_t count)
{
	ANSWER(from, OBMM_FILE_READ, count, 0, 0);
	ANSWER(to, OBMM_FILE_WRITE, count, 0, 0);
	return NEXT(sendfile)(to, from, offset, count);
}

EXPORT ssize_t copy_file_range(int from, off64_t *from_offset, int to, off64_t *to_offset, size_t count,
			       unsigned int flags)
{
	REFUSE(from, EINVAL); /* no regular file */
	REFUSE(to, EINVAL);
	return NEXT(copy_file_range)(from, from_offset, to, to_offset, count, flags);
}

EXPORT ssize_t splice(int from, off64_t *from_offset, int to, off64_t *to_offset, size_t count, unsigned int flags)
{
	ANSWER(from, OBMM_FILE_READ, count, 0, 0);
	ANSWER(to, OBMM_FILE_WRITE, count, 0, 0);
	return NEXT(splice)(from, from_offset, to, to_offset, count, flags);
}

EXPORT ssize_t tee(int from, int to, size_t count, unsigned int flags)
{
	REFUSE(from, EINVAL); /* no pipe */
	REFUSE(to, EINVAL);
	return NEXT(tee)(from, to, count, flags);
}

EXPORT ssize_t readahead(int fd, off64_t offset, size_t count)
{
	REFUSE(fd, EINVAL);
	return NEXT(readahead)(fd, offset, count);
}

EXPORT int sync_file_range(int fd, off64_t offset, off64_t count, unsigned int flags)
{
	REFUSE(fd, ESPIPE);
	return NEXT(sync_file_range)(fd, offset, count, flags);
}

/* The stand-in has the flags of the open file; one for O_PATH has none, and its seals are not to be seen. */
static int control(int fd, int command, void *arg)
{
	int value;

	if (command == F_GET_SEALS || command == F_ADD_SEALS || command == F_SETLEASE)
		REFUSE(fd, EINVAL); /* no file of memory, and no regular one */
	if (command == F_SETFL && (uintptr_t)arg & O_DIRECT)
		REFUSE(fd, EINVAL); /* the driver has no direct I/O */
	value = raw_fcntl(fd, command, arg);
	if (command == F_GETFL && value >= 0 && (value & O_ACCMODE) == O_ACCMODE)
		ANSWER(fd, OBMM_FILE_FLAGS, 0, 0, 0);
	return value;
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

/* What _FORTIFY_SOURCE calls instead. */
ssize_t __read_chk(int fd, void *buffer, size_t size, size_t room);
ssize_t __pread_chk(int fd, void *buffer, size_t size, off_t offset, size_t room);

EXPORT ssize_t __read_chk(int fd, void *buffer, size_t size, size_t room)
{
	ANSWER(fd, OBMM_FILE_READ, size, 0, 0);
	return NEXT(__read_chk)(fd, buffer, size, room);
}

EXPORT ssize_t __pread_chk(int fd, void *buffer, size_t size, off_t offset, size_t room)
{
	ANSWER(fd, OBMM_FILE_READ, size, 0, 0);
	return NEXT(__pread_chk)(fd, buffer, size, offset, room);
}

ALIAS(read, __read);
ALIAS(read, __read_nocancel);
ALIAS(write, __write);
ALIAS(write, __write_nocancel);
ALIAS(pread, pread64);
ALIAS(pread, __pread64);
ALIAS(pread, __libc_pread);
ALIAS(pread, __pread64_nocancel);
ALIAS(__pread_chk, __pread64_chk);
ALIAS(pwrite, pwrite64);
ALIAS(pwrite, __pwrite64);
ALIAS(pwrite, __libc_pwrite);
ALIAS(preadv, preadv64);
ALIAS(preadv2, preadv64v2);
ALIAS(pwritev, pwritev64);
ALIAS(pwritev2, pwritev64v2);
ALIAS(sendfile, sendfile64);
ALIAS(lseek, lseek64);
ALIAS(lseek, __lseek);
ALIAS(lseek, llseek);
ALIAS(fallocate, fallocate64);
ALIAS(posix_fallocate, posix_fallocate64);
ALIAS(ftruncate, ftruncate64);
ALIAS(fcntl, __fcntl);
ALIAS(fcntl64, __libc_fcntl64);
