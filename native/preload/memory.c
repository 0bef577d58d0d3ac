/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Calls about the address space (spec 9.3 to 9.5).  Allocators make them before
 * anything is up: whatever touches no region goes on without a lock, an
 * allocation or a look at the node.
 */
#include "preload.h"

#include <errno.h>
#include <stdarg.h>
#include <stdlib.h>
#include <sys/shm.h>
#include <sys/uio.h>

/* Other memory replaces [addr, addr + length): the regions mapped there are let go. */
static void replaced(void *addr, size_t length)
{
	struct obmm_sys *sys = preload_node_if_up();
	int saved = errno;

	if (sys && preload_ranges_touch(addr, length)) {
		preload_ranges_remove(addr, length);
		sys->munmap(sys, addr, length);
	}
	errno = saved;
}

EXPORT void *mmap(void *addr, size_t length, int prot, int flags, int fd, off_t offset)
{
	struct obmm_sys *sys = flags & MAP_ANONYMOUS || !preload_node_if_up() ? NULL : preload_node_of(fd);
	void *mapped;

	if (!sys) {
		if (flags & MAP_FIXED)
			replaced(addr, length);
		return raw_mmap(addr, length, prot, flags, fd, offset);
	}
	mapped = sys->mmap(sys, addr, length, prot, flags, fd, offset);
	if (mapped != MAP_FAILED)
		preload_ranges_add(mapped, length);
	return mapped;
}

EXPORT int munmap(void *addr, size_t length)
{
	struct obmm_sys *sys = preload_node_if_up();

	if (!sys || !preload_ranges_touch(addr, length))
		return raw_munmap(addr, length);
	/* the book first: once unmapped, another thread may map there again */
	preload_ranges_remove(addr, length);
	if (!sys->munmap(sys, addr, length))
		return 0;
	preload_ranges_add(addr, length);
	return -1;
}

EXPORT int mprotect(void *addr, size_t length, int prot)
{
	struct obmm_sys *sys = preload_node_if_up();

	if (!sys || !preload_ranges_touch(addr, length))
		return raw_mprotect(addr, length, prot);
	return obmm_emulator_mprotect(sys, addr, length, prot);
}

EXPORT int madvise(void *addr, size_t length, int advice)
{
	struct obmm_sys *sys = preload_node_if_up();

	if (!sys || !preload_ranges_touch(addr, length))
		return raw_madvise(addr, length, advice);
	return obmm_emulator_madvise(sys, addr, length, advice);
}

EXPORT int msync(void *addr, size_t length, int flags)
{
	struct obmm_sys *sys = preload_node_if_up();

	if (!sys || !preload_ranges_touch(addr, length))
		return raw_msync(addr, length, flags);
	return obmm_emulator_msync(sys, addr, length, flags);
}

EXPORT void *mremap(void *addr, size_t old_length, size_t new_length, int flags, ...)
{
	struct obmm_sys *sys = preload_node_if_up();
	void *new_addr = NULL, *moved;
	va_list more;

	if (flags & MREMAP_FIXED) {
		va_start(more, flags);
		new_addr = va_arg(more, void *);
		va_end(more);
	}
	if (!sys || !preload_ranges_touch(addr, old_length)) {
		if (flags & MREMAP_FIXED)
			replaced(new_addr, new_length);
		return raw_mremap(addr, old_length, new_length, flags, new_addr);
	}
	moved = obmm_emulator_mremap(sys, addr, old_length, new_length, flags, new_addr);
	if (moved != MAP_FAILED && new_length < old_length)
		preload_ranges_remove((char *)addr + preload_pages(new_length), old_length - preload_pages(new_length));
	return moved;
}

EXPORT int pkey_mprotect(void *addr, size_t length, int prot, int key)
{
	struct obmm_sys *sys = preload_node_if_up();

	if (!sys || !preload_ranges_touch(addr, length))
		return (int)raw_call(SYS_pkey_mprotect, (long)addr, (long)length, prot, key, 0, 0);
	return obmm_emulator_mprotect(sys, addr, length, prot);
}

EXPORT int posix_madvise(void *addr, size_t length, int advice)
{
	int saved = errno, error = 0;

	if (advice != POSIX_MADV_DONTNEED && madvise(addr, length, advice)) /* which means nothing here, as in libc */
		error = errno;
	errno = saved;
	return error;
}

/* Whether any of the ranges is a region's: memory that has no pages which a kernel could take hold of. */
static int any_region(const struct iovec *parts, unsigned long count)
{
	if (!preload_node_if_up() || count > IOV_MAX || !preload_readable(parts, count * sizeof(*parts)))
		return 0; /* the kernel's EINVAL or EFAULT */
	for (unsigned long i = 0; i < count; i++)
		if (parts[i].iov_len && preload_ranges_touch(parts[i].iov_base, parts[i].iov_len))
			return 1;
	return 0;
}

static int no_pages(const struct iovec *parts, unsigned long count)
{
	if (!any_region(parts, count))
		return 0;
	errno = EFAULT;
	return 1;
}

EXPORT ssize_t vmsplice(int fd, const struct iovec *parts, size_t count, unsigned int flags)
{
	REFUSE(fd, EBADF); /* no pipe */
	return no_pages(parts, count) ? -1 : NEXT(vmsplice)(fd, parts, count, flags);
}

EXPORT ssize_t process_vm_readv(pid_t pid, const struct iovec *local, unsigned long locals, const struct iovec *remote,
				unsigned long remotes, unsigned long flags)
{
	if (pid == getpid() && no_pages(remote, remotes))
		return -1;
	return NEXT(process_vm_readv)(pid, local, locals, remote, remotes, flags);
}

EXPORT ssize_t process_vm_writev(pid_t pid, const struct iovec *local, unsigned long locals, const struct iovec *remote,
				 unsigned long remotes, unsigned long flags)
{
	if (pid == getpid() && no_pages(remote, remotes))
		return -1;
	return NEXT(process_vm_writev)(pid, local, locals, remote, remotes, flags);
}

/* Advice for several ranges: each as madvise would take it. */
EXPORT ssize_t process_madvise(int pidfd, const struct iovec *parts, size_t count, int advice, unsigned int flags)
{
	if (any_region(parts, count)) {
		errno = EINVAL; /* none of the advices that this call knows has a meaning for the driver's memory */
		return -1;
	}
	return raw_call(SYS_process_madvise, pidfd, (long)parts, (long)count, advice, flags, 0);
}

EXPORT int remap_file_pages(void *addr, size_t length, int prot, size_t page, int flags)
{
	if (preload_node_if_up() && preload_ranges_touch(addr, length)) {
		errno = EINVAL;
		return -1;
	}
	return NEXT(remap_file_pages)(addr, length, prot, page, flags);
}

EXPORT void *shmat(int id, const void *addr, int flags)
{
	struct shmid_ds segment;

	/* SHM_REMAP replaces what is mapped there, as MAP_FIXED does */
	if (addr && flags & SHM_REMAP && preload_node_if_up() && !shmctl(id, IPC_STAT, &segment))
		replaced((void *)(uintptr_t)addr, segment.shm_segsz);
	return NEXT(shmat)(id, addr, flags);
}

ALIAS(mmap, mmap64);
ALIAS(mmap, __mmap);
ALIAS(munmap, __munmap);
ALIAS(mprotect, __mprotect);
ALIAS(madvise, __madvise);
