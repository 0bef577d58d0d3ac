/* SPDX-License-Identifier: Apache-2.0 */
/* Calls that open paths and end descriptors. */
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "preload.h"

static int open_at(int dirfd, const char *path, int flags, mode_t mode)
{
	struct preload_path found;
	struct obmm_sys *sys;

	preload_find(dirfd, path, &found);
	if (found.place != PLACE_DEVICE)
		return raw_openat(dirfd, found.file, flags, mode);
	sys = preload_node();
	if (sys)
		return sys->open(sys, found.out, flags);
	errno = ENODEV; /* never this machine's own driver instead */
	return -1;
}

static mode_t mode_of(int flags, va_list more)
{
	return flags & (O_CREAT | __O_TMPFILE) ? va_arg(more, mode_t) : 0;
}

#define DEFINE_OPEN(name)                                                                                   \
	EXPORT int name(const char *path, int flags, ...)                                                   \
	{                                                                                                   \
		va_list more;                                                                               \
		mode_t mode;                                                                                \
                                                                                                            \
		va_start(more, flags);                                                                      \
		mode = mode_of(flags, more);                                                                \
		va_end(more);                                                                               \
		return open_at(AT_FDCWD, path, flags, mode);                                                \
	}

#define DEFINE_OPENAT(name)                                                                                 \
	EXPORT int name(int dirfd, const char *path, int flags, ...)                                        \
	{                                                                                                   \
		va_list more;                                                                               \
		mode_t mode;                                                                                \
                                                                                                            \
		va_start(more, flags);                                                                      \
		mode = mode_of(flags, more);                                                                \
		va_end(more);                                                                               \
		return open_at(dirfd, path, flags, mode);                                                   \
	}

DEFINE_OPEN(open)
DEFINE_OPEN(open64)
DEFINE_OPENAT(openat)
DEFINE_OPENAT(openat64)

/* What _FORTIFY_SOURCE calls instead. */
EXPORT int __open_2(const char *path, int flags)
{
	return open_at(AT_FDCWD, path, flags, 0);
}

EXPORT int __open64_2(const char *path, int flags)
{
	return open_at(AT_FDCWD, path, flags, 0);
}

EXPORT int __openat_2(int dirfd, const char *path, int flags)
{
	return open_at(dirfd, path, flags, 0);
}

EXPORT int __openat64_2(int dirfd, const char *path, int flags)
{
	return open_at(dirfd, path, flags, 0);
}

EXPORT int creat(const char *path, mode_t mode)
{
	return open_at(AT_FDCWD, path, O_CREAT | O_WRONLY | O_TRUNC, mode);
}

EXPORT int creat64(const char *path, mode_t mode)
{
	return creat(path, mode);
}

/* fopen of a device: a descriptor as open gives it, and a stream on it. */
static FILE *stream_of(const char *path, const char *mode)
{
	int flags = strchr(mode, '+') ? O_RDWR : *mode == 'r' ? O_RDONLY : O_WRONLY;
	int fd = open(path, strchr(mode, 'e') ? flags | O_CLOEXEC : flags);
	FILE *stream = fd < 0 ? NULL : fdopen(fd, mode);

	if (fd >= 0 && !stream)
		raw_close(fd);
	return stream;
}

EXPORT FILE *fopen(const char *path, const char *mode)
{
	struct preload_path found;

	preload_find(AT_FDCWD, path, &found);
	if (found.place == PLACE_DEVICE)
		return stream_of(path, mode);
	return NEXT(fopen)(found.file, mode);
}

EXPORT FILE *fopen64(const char *path, const char *mode)
{
	return fopen(path, mode);
}

EXPORT FILE *freopen(const char *path, const char *mode, FILE *stream)
{
	struct preload_path found;

	preload_find(AT_FDCWD, path, &found);
	return NEXT(freopen)(found.file, mode, stream);
}

EXPORT int chdir(const char *path)
{
	struct preload_path found;

	preload_find(AT_FDCWD, path, &found);
	return NEXT(chdir)(found.file);
}

/*
 * The connection's descriptor is none that the program knows: loops that close
 * everything pass over it, and dup2 onto its number moves it away.
 */
static int hidden(int fd)
{
	struct obmm_sys *sys = preload_node();

	return sys && fd >= 0 && fd == obmm_emulator_descriptor(sys);
}

static void make_room(int fd)
{
	struct obmm_sys *sys = preload_node();

	if (sys)
		obmm_emulator_vacate(sys, fd);
}

EXPORT int close(int fd)
{
	if (!hidden(fd))
		return raw_close(fd);
	errno = EBADF;
	return -1;
}

EXPORT int dup2(int from, int to)
{
	make_room(to);
	return NEXT(dup2)(from, to);
}

EXPORT int dup3(int from, int to, int flags)
{
	make_room(to);
	return NEXT(dup3)(from, to, flags);
}

EXPORT int close_range(unsigned int first, unsigned int last, int flags)
{
	struct obmm_sys *sys = preload_node();
	int kept = sys ? obmm_emulator_descriptor(sys) : -1;

	if (kept < 0 || (unsigned int)kept < first || (unsigned int)kept > last)
		return syscall(SYS_close_range, first, last, flags);
	if ((unsigned int)kept > first && syscall(SYS_close_range, first, kept - 1, flags))
		return -1;
	return (unsigned int)kept < last ? syscall(SYS_close_range, kept + 1, last, flags) : 0;
}

EXPORT void closefrom(int first)
{
	close_range(first < 0 ? 0 : first, ~0U, 0);
}
