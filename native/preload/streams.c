/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Streams on a device, and names that libc makes up itself.  Reads and writes
 * of a stream meet the kernel's own refusal; its position would move.
 */
#include "preload.h"

#include <aio.h>
#include <errno.h>
#include <fts.h>
#include <mntent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <utmp.h>
#include <utmpx.h>

/* The position at which what stands for an open file refuses (obmm/emulator/open_files.py). */
#define END ((off_t)INT64_MAX)

static int on_device(FILE *stream)
{
	return preload_node_of(fileno(stream)) != NULL;
}

/* -1 and ESPIPE for a stream on a device. */
#define SEEKABLE(stream)                                                                                    \
	do {                                                                                                \
		if (on_device(stream)) {                                                                    \
			errno = ESPIPE;                                                                     \
			return -1;                                                                          \
		}                                                                                           \
	} while (0)

EXPORT FILE *fdopen(int fd, const char *mode)
{
	FILE *stream = NEXT(fdopen)(fd, mode);

	/* a stream for appending goes to the end of the file first */
	if (stream && *mode == 'a' && preload_node_of(fd))
		raw_call(SYS_lseek, fd, END, SEEK_SET, 0, 0, 0);
	return stream;
}

EXPORT int fseek(FILE *stream, long offset, int whence)
{
	SEEKABLE(stream);
	return NEXT(fseek)(stream, offset, whence);
}

EXPORT int fseeko(FILE *stream, off_t offset, int whence)
{
	SEEKABLE(stream);
	return NEXT(fseeko)(stream, offset, whence);
}

EXPORT long ftell(FILE *stream)
{
	SEEKABLE(stream);
	return NEXT(ftell)(stream);
}

EXPORT off_t ftello(FILE *stream)
{
	SEEKABLE(stream);
	return NEXT(ftello)(stream);
}

EXPORT int fgetpos(FILE *stream, fpos_t *position)
{
	SEEKABLE(stream);
	return NEXT(fgetpos)(stream, position);
}

EXPORT int fgetpos64(FILE *stream, fpos64_t *position)
{
	SEEKABLE(stream);
	return NEXT(fgetpos64)(stream, position);
}

EXPORT int fsetpos(FILE *stream, const fpos_t *position)
{
	SEEKABLE(stream);
	return NEXT(fsetpos)(stream, position);
}

EXPORT int fsetpos64(FILE *stream, const fpos64_t *position)
{
	SEEKABLE(stream);
	return NEXT(fsetpos64)(stream, position);
}

EXPORT void rewind(FILE *stream)
{
	if (on_device(stream)) {
		errno = ESPIPE;
		clearerr(stream);
		return;
	}
	NEXT(rewind)(stream);
}

/* Files with names from a template: none below the node's folders. */
#define LEAVE(path, follow, nothing)                                                                        \
	do {                                                                                                \
		if (preload_refuses(AT_FDCWD, path, follow, EEXIST))                                        \
			return nothing;                                                                     \
	} while (0)

EXPORT int mkstemp(char *template)
{
	LEAVE(template, NOFOLLOW, -1);
	return NEXT(mkstemp)(template);
}

EXPORT int mkostemp(char *template, int flags)
{
	LEAVE(template, NOFOLLOW, -1);
	return NEXT(mkostemp)(template, flags);
}

EXPORT int mkstemps(char *template, int suffix)
{
	LEAVE(template, NOFOLLOW, -1);
	return NEXT(mkstemps)(template, suffix);
}

EXPORT int mkostemps(char *template, int suffix, int flags)
{
	LEAVE(template, NOFOLLOW, -1);
	return NEXT(mkostemps)(template, suffix, flags);
}

EXPORT char *mkdtemp(char *template)
{
	LEAVE(template, NOFOLLOW, NULL);
	return NEXT(mkdtemp)(template);
}

/* Databases in files: a device is none. */
EXPORT FILE *setmntent(const char *path, const char *mode)
{
	LEAVE(path, FOLLOW, NULL);
	return NEXT(setmntent)(path, mode);
}

EXPORT int utmpname(const char *path)
{
	LEAVE(path, FOLLOW, -1);
	return NEXT(utmpname)(path);
}

EXPORT void updwtmp(const char *path, const struct utmp *entry)
{
	if (!preload_refuses(AT_FDCWD, path, FOLLOW, EACCES))
		NEXT(updwtmp)(path, entry);
}

EXPORT void updwtmpx(const char *path, const struct utmpx *entry)
{
	if (!preload_refuses(AT_FDCWD, path, FOLLOW, EACCES))
		NEXT(updwtmpx)(path, entry);
}

/* A walk that libc makes inside itself: it would see this machine's folders only. */
EXPORT FTS *fts_open(char *const *paths, int options, int (*compare)(const FTSENT **, const FTSENT **))
{
	for (char *const *path = paths; *path; path++)
		if (preload_refuses(AT_FDCWD, *path, FOLLOW, ENOTSUP))
			return NULL;
	return NEXT(fts_open)(paths, options, compare);
}

/* libc's asynchronous calls read and write at positions, on threads of their own. */
#define NO_TRANSFERS(request)                                                                               \
	do {                                                                                                \
		if (preload_node_of((request)->aio_fildes)) {                                  \
			errno = EINVAL;                                                                     \
			return -1;                                                                          \
		}                                                                                           \
	} while (0)

EXPORT int aio_read(struct aiocb *request)
{
	NO_TRANSFERS(request);
	return NEXT(aio_read)(request);
}

EXPORT int aio_write(struct aiocb *request)
{
	NO_TRANSFERS(request);
	return NEXT(aio_write)(request);
}

EXPORT int aio_fsync(int operation, struct aiocb *request)
{
	NO_TRANSFERS(request);
	return NEXT(aio_fsync)(operation, request);
}

EXPORT int lio_listio(int mode, struct aiocb *const requests[], int count, struct sigevent *event)
{
	for (int i = 0; i < count; i++)
		if (requests[i])
			NO_TRANSFERS(requests[i]);
	return NEXT(lio_listio)(mode, requests, count, event);
}

ALIAS(aio_read, aio_read64);
ALIAS(aio_write, aio_write64);
ALIAS(aio_fsync, aio_fsync64);
ALIAS(lio_listio, lio_listio64);
ALIAS(fdopen, _IO_fdopen);
ALIAS(fseeko, fseeko64);
ALIAS(fseeko, __fseeko64);
ALIAS(ftello, ftello64);
ALIAS(ftello, __ftello64);
ALIAS(ftell, _IO_ftell);
ALIAS(fgetpos, _IO_fgetpos);
ALIAS(fgetpos64, _IO_fgetpos64);
ALIAS(fsetpos, _IO_fsetpos);
ALIAS(fsetpos64, _IO_fsetpos64);
ALIAS(mkstemp, mkstemp64);
ALIAS(mkostemp, mkostemp64);
ALIAS(mkstemps, mkstemps64);
ALIAS(mkostemps, mkostemps64);
ALIAS(setmntent, __setmntent);
ALIAS(utmpname, utmpxname);
ALIAS(fts_open, fts64_open);
