/* SPDX-License-Identifier: Apache-2.0 */
/* Calls about the address space (spec 9.3 to 9.5). */
#include <errno.h>
#include <stdarg.h>

#include "preload.h"

/* Other memory replaces [addr, addr + length): the regions mapped there are let go. */
static void replaced(void *addr, size_t length)
{
	struct obmm_sys *sys = preload_node();
	int saved = errno;

	if (sys && preload_ranges_touch(addr, length)) {
		preload_ranges_remove(addr, length);
		sys->munmap(sys, addr, length);
	}
	errno = saved;
}

EXPORT void *mmap(void *addr, size_t length, int prot, int flags, int fd, off_t offset)
{
	struct obmm_sys *sys = flags & MAP_ANONYMOUS ? NULL : preload_node_of(fd);
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

EXPORT void *mmap64(void *addr, size_t length, int prot, int flags, int fd, off_t offset)
{
	return mmap(addr, length, prot, flags, fd, offset);
}

EXPORT int munmap(void *addr, size_t length)
{
	struct obmm_sys *sys = preload_node();

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
	struct obmm_sys *sys = preload_node();

	if (!sys || !preload_ranges_touch(addr, length))
		return raw_mprotect(addr, length, prot);
	return obmm_emulator_mprotect(sys, addr, length, prot);
}

EXPORT int madvise(void *addr, size_t length, int advice)
{
	struct obmm_sys *sys = preload_node();

	if (!sys || !preload_ranges_touch(addr, length))
		return raw_madvise(addr, length, advice);
	return obmm_emulator_madvise(sys, addr, length, advice);
}

EXPORT int msync(void *addr, size_t length, int flags)
{
	struct obmm_sys *sys = preload_node();

	if (!sys || !preload_ranges_touch(addr, length))
		return raw_msync(addr, length, flags);
	return obmm_emulator_msync(sys, addr, length, flags);
}

EXPORT void *mremap(void *addr, size_t old_length, size_t new_length, int flags, ...)
{
	struct obmm_sys *sys = preload_node();
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
