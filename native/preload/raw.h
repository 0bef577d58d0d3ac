/* SPDX-License-Identifier: Apache-2.0 */
/*
 * System calls that go past this library's own replacements of libc's
 * functions.  Included before the emulator's client, whose calls must not be
 * answered by the emulator once more.
 */
#ifndef OBMM_PRELOAD_RAW_H
#define OBMM_PRELOAD_RAW_H

#include <fcntl.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

static inline void *raw_mmap(void *addr, size_t length, int prot, int flags, int fd, off_t offset)
{
	return (void *)syscall(SYS_mmap, addr, length, prot, flags, fd, offset);
}

static inline void *raw_mremap(void *addr, size_t old_length, size_t new_length, int flags, void *new_addr)
{
	return (void *)syscall(SYS_mremap, addr, old_length, new_length, flags, new_addr);
}

static inline int raw_munmap(void *addr, size_t length)
{
	return syscall(SYS_munmap, addr, length);
}

static inline int raw_mprotect(void *addr, size_t length, int prot)
{
	return syscall(SYS_mprotect, addr, length, prot);
}

static inline int raw_madvise(void *addr, size_t length, int advice)
{
	return syscall(SYS_madvise, addr, length, advice);
}

static inline int raw_msync(void *addr, size_t length, int flags)
{
	return syscall(SYS_msync, addr, length, flags);
}

static inline int raw_ioctl(int fd, unsigned long request, void *arg)
{
	return syscall(SYS_ioctl, fd, request, arg);
}

static inline int raw_fcntl(int fd, int command, void *arg)
{
	return syscall(SYS_fcntl, fd, command, arg);
}

static inline int raw_openat(int dirfd, const char *path, int flags, mode_t mode)
{
	return syscall(SYS_openat, dirfd, path, flags, mode);
}

static inline int raw_close(int fd)
{
	return syscall(SYS_close, fd);
}

static inline ssize_t raw_read(int fd, void *buffer, size_t size)
{
	return syscall(SYS_read, fd, buffer, size);
}

static inline int raw_fstat(int fd, struct stat *st)
{
	return syscall(SYS_fstat, fd, st);
}

static inline int raw_fstatat(int dirfd, const char *path, struct stat *st, int flags)
{
	return syscall(SYS_newfstatat, dirfd, path, st, flags);
}

static inline ssize_t raw_readlink(const char *path, char *out, size_t size)
{
	return syscall(SYS_readlinkat, AT_FDCWD, path, out, size);
}

#endif
