/* SPDX-License-Identifier: Apache-2.0 */
/*
 * System calls that go past this library's own replacements of libc's
 * functions, syscall(2) among them.  Included before the emulator's client,
 * whose calls must not be answered by the emulator once more.
 */
#ifndef OBMM_PRELOAD_RAW_H
#define OBMM_PRELOAD_RAW_H

#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

/* What the kernel answers: a value or a negative errno. */
static inline long raw_kernel(long number, long a, long b, long c, long d, long e, long f)
{
#if defined(__x86_64__)
	register long r10 __asm__("r10") = d;
	register long r8 __asm__("r8") = e;
	register long r9 __asm__("r9") = f;
	long result;

	__asm__ volatile("syscall"
			 : "=a"(result)
			 : "a"(number), "D"(a), "S"(b), "d"(c), "r"(r10), "r"(r8), "r"(r9)
			 : "rcx", "r11", "memory");
	return result;
#elif defined(__aarch64__)
	register long x8 __asm__("x8") = number;
	register long x0 __asm__("x0") = a;
	register long x1 __asm__("x1") = b;
	register long x2 __asm__("x2") = c;
	register long x3 __asm__("x3") = d;
	register long x4 __asm__("x4") = e;
	register long x5 __asm__("x5") = f;

	__asm__ volatile("svc 0" : "+r"(x0) : "r"(x8), "r"(x1), "r"(x2), "r"(x3), "r"(x4), "r"(x5) : "memory");
	return x0;
#else
#error "the preload library makes system calls on x86-64 and aarch64"
#endif
}

/* As libc's syscall(2). */
static inline long raw_call(long number, long a, long b, long c, long d, long e, long f)
{
	long result = raw_kernel(number, a, b, c, d, e, f);

	if (result > -4096 && result < 0) {
		errno = (int)-result;
		return -1;
	}
	return result;
}

static inline void *raw_mmap(void *addr, size_t length, int prot, int flags, int fd, off_t offset)
{
	return (void *)raw_call(SYS_mmap, (long)addr, (long)length, prot, flags, fd, offset);
}

static inline void *raw_mremap(void *addr, size_t old_length, size_t new_length, int flags, void *new_addr)
{
	return (void *)raw_call(SYS_mremap, (long)addr, (long)old_length, (long)new_length, flags, (long)new_addr, 0);
}

static inline int raw_munmap(void *addr, size_t length)
{
	return (int)raw_call(SYS_munmap, (long)addr, (long)length, 0, 0, 0, 0);
}

static inline int raw_mprotect(void *addr, size_t length, int prot)
{
	return (int)raw_call(SYS_mprotect, (long)addr, (long)length, prot, 0, 0, 0);
}

static inline int raw_madvise(void *addr, size_t length, int advice)
{
	return (int)raw_call(SYS_madvise, (long)addr, (long)length, advice, 0, 0, 0);
}

static inline int raw_msync(void *addr, size_t length, int flags)
{
	return (int)raw_call(SYS_msync, (long)addr, (long)length, flags, 0, 0, 0);
}

static inline int raw_ioctl(int fd, unsigned long request, void *arg)
{
	return (int)raw_call(SYS_ioctl, fd, (long)request, (long)arg, 0, 0, 0);
}

static inline int raw_fcntl(int fd, int command, void *arg)
{
	return (int)raw_call(SYS_fcntl, fd, command, (long)arg, 0, 0, 0);
}

static inline int raw_openat(int dirfd, const char *path, int flags, mode_t mode)
{
	return (int)raw_call(SYS_openat, dirfd, (long)path, flags, mode, 0, 0);
}

static inline int raw_close(int fd)
{
	return (int)raw_call(SYS_close, fd, 0, 0, 0, 0, 0);
}

static inline ssize_t raw_read(int fd, void *buffer, size_t size)
{
	return raw_call(SYS_read, fd, (long)buffer, (long)size, 0, 0, 0);
}

static inline int raw_fstat(int fd, struct stat *st)
{
	return (int)raw_call(SYS_fstat, fd, (long)st, 0, 0, 0, 0);
}

static inline int raw_fstatat(int dirfd, const char *path, struct stat *st, int flags)
{
	return (int)raw_call(SYS_newfstatat, dirfd, (long)path, (long)st, flags, 0, 0);
}

static inline ssize_t raw_readlink(const char *path, char *out, size_t size)
{
	return raw_call(SYS_readlinkat, AT_FDCWD, (long)path, (long)out, (long)size, 0, 0);
}

static inline int raw_connect(int fd, const void *address, unsigned int size)
{
	return (int)raw_call(SYS_connect, fd, (long)address, size, 0, 0, 0);
}

static inline ssize_t raw_sendmsg(int fd, const void *message, int flags)
{
	return raw_call(SYS_sendmsg, fd, (long)message, flags, 0, 0, 0);
}

/* Memory that no allocator of the program's knows: pages of their own, with their length in front. */
static inline void *raw_calloc(size_t count, size_t size)
{
	const size_t head = 64, length = head + count * size; /* callers' sizes are constants */
	char *pages = raw_mmap(NULL, length, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	if (pages == MAP_FAILED)
		return NULL;
	*(size_t *)pages = length;
	return pages + head;
}

static inline void raw_free(void *memory)
{
	char *pages = memory ? (char *)memory - 64 : NULL;

	if (pages)
		raw_munmap(pages, *(size_t *)pages);
}

#endif
