/* SPDX-License-Identifier: Apache-2.0 */
/* Calls that open paths and end descriptors. */
#include "preload.h"

#include <errno.h>
#include <linux/openat2.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* A file of the node's tree: read as it is; what may be written goes nowhere, as the driver has no such attribute. */
static int open_tree_file(const char *file, int flags, mode_t mode)
{
	const int writes = (flags & O_ACCMODE) != O_RDONLY || flags & O_TRUNC;
	struct stat st;
	int missing = raw_fstatat(AT_FDCWD, file, &st, 0);

	if (missing && errno == ENOENT && flags & O_CREAT)
		errno = EACCES; /* no files are made there */
	if (missing)
		return -1;
	if ((flags & O_TMPFILE) == O_TMPFILE) {
		errno = S_ISDIR(st.st_mode) ? EOPNOTSUPP : ENOTDIR;
		return -1;
	}
	if (flags & O_CREAT && flags & O_EXCL) {
		errno = EEXIST;
		return -1;
	}
	if (S_ISREG(st.st_mode) && writes && !(st.st_mode & 0222)) {
		errno = EACCES;
		return -1;
	}
	if (S_ISREG(st.st_mode) && writes && !(flags & O_DIRECTORY))
		file = "/dev/null";
	return raw_openat(AT_FDCWD, file, flags & ~(O_CREAT | O_TRUNC | O_NOFOLLOW), mode);
}

static int open_at(int dirfd, const char *path, int flags, mode_t mode)
{
	const int link = flags & O_NOFOLLOW || (flags & O_CREAT && flags & O_EXCL);
	struct preload_path found;
	struct obmm_sys *sys;

	preload_find(dirfd, path, link ? NOFOLLOW : FOLLOW, &found);
	if (found.place == PLACE_ELSEWHERE)
		return raw_openat(dirfd, path, flags, mode);
	if (found.place == PLACE_TREE)
		return open_tree_file(found.file, flags, mode);
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

/* openat2(2) has no wrapper in older libraries: flags, mode and how to resolve. */
int preload_openat2(int dirfd, const char *path, const uint64_t *how, size_t size)
{
	struct preload_path found;

	if (size >= 3 * sizeof(*how) && preload_readable(how, 3 * sizeof(*how)) && preload_readable_text(path)) {
		const int absolute = *path == '/';
		const char *from = absolute && how[2] & RESOLVE_IN_ROOT ? path + strspn(path, "/") : path;

		preload_find(dirfd, from, how[0] & O_NOFOLLOW ? NOFOLLOW : FOLLOW, &found);
		if (found.place != PLACE_ELSEWHERE && absolute && how[2] & RESOLVE_BENEATH) {
			errno = EXDEV;
			return -1;
		}
		if (found.place != PLACE_ELSEWHERE)
			return open_at(dirfd, from, (int)how[0], (mode_t)how[1]);
	}
	return (int)raw_call(SYS_openat2, dirfd, (long)path, (long)how, (long)size, 0, 0);
}

/* The flags of open that a stream's mode asks for. */
static int flags_of(const char *mode)
{
	int flags = *mode == 'r' ? 0 : *mode == 'a' ? O_CREAT | O_APPEND : O_CREAT | O_TRUNC;

	flags |= strchr(mode, '+') ? O_RDWR : *mode == 'r' ? O_RDONLY : O_WRONLY;
	return flags | (strchr(mode, 'e') ? O_CLOEXEC : 0) | (strchr(mode, 'x') ? O_EXCL : 0);
}

EXPORT FILE *fopen(const char *path, const char *mode)
{
	struct preload_path found;
	FILE *stream;
	int fd;

	preload_find(AT_FDCWD, path, FOLLOW, &found);
	if (found.place == PLACE_ELSEWHERE)
		return NEXT(fopen)(path, mode);
	/* a file of the node's: a descriptor as open gives it, and a stream on it */
	fd = open_at(AT_FDCWD, path, flags_of(mode), 0666);
	stream = fd < 0 ? NULL : fdopen(fd, mode);
	if (fd >= 0 && !stream)
		raw_close(fd);
	return stream;
}

EXPORT FILE *freopen(const char *path, const char *mode, FILE *stream)
{
	struct preload_path found;
	int fd, to;

	preload_find(AT_FDCWD, path, FOLLOW, &found);
	if (found.place == PLACE_ELSEWHERE)
		return NEXT(freopen)(path, mode, stream);
	/* the stream on something that libc can open, then the node's file in its place */
	fd = open_at(AT_FDCWD, path, flags_of(mode), 0666);
	if (fd < 0) {
		int saved = errno;

		fclose(stream);
		errno = saved;
		return NULL;
	}
	stream = NEXT(freopen)("/dev/null", mode, stream);
	to = stream ? fileno(stream) : -1;
	if (to >= 0)
		raw_call(SYS_dup3, fd, to, strchr(mode, 'e') ? O_CLOEXEC : 0, 0, 0, 0);
	raw_close(fd);
	return stream;
}

EXPORT int chdir(const char *path)
{
	struct preload_path found;

	preload_find(AT_FDCWD, path, FOLLOW, &found);
	return NEXT(chdir)(found.file);
}

ALIAS(open, __open);
ALIAS(open64, __open64);
ALIAS(open, __open_nocancel);
ALIAS(open64, __open64_nocancel);
ALIAS(creat, creat64);
ALIAS(fopen, fopen64);
ALIAS(fopen, _IO_fopen);
ALIAS(freopen, freopen64);

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
	if (hidden(from)) {
		errno = EBADF;
		return -1;
	}
	make_room(to);
	if (from == to)
		return raw_fcntl(from, F_GETFD, NULL) < 0 ? -1 : to;
	return (int)raw_call(SYS_dup3, from, to, 0, 0, 0, 0);
}

EXPORT int dup3(int from, int to, int flags)
{
	make_room(to);
	return (int)raw_call(SYS_dup3, from, to, flags, 0, 0, 0);
}

EXPORT int close_range(unsigned int first, unsigned int last, int flags)
{
	struct obmm_sys *sys = preload_node();
	const int kept = sys ? obmm_emulator_descriptor(sys) : -1;
	const unsigned int at = (unsigned int)kept;

	if (kept < 0 || at < first || at > last)
		return (int)raw_call(SYS_close_range, first, last, flags, 0, 0, 0);
	if (at > first && raw_call(SYS_close_range, first, at - 1, flags, 0, 0, 0))
		return -1;
	return at < last ? (int)raw_call(SYS_close_range, at + 1, last, flags, 0, 0, 0) : 0;
}

EXPORT void closefrom(int first)
{
	close_range(first < 0 ? 0 : first, ~0U, 0);
}

ALIAS(close, __close);
ALIAS(close, __close_nocancel);
ALIAS(dup2, __dup2);
