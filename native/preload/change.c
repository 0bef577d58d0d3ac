/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Calls that change what a path names.  The devices' mode and owner are the
 * node's to change; everything else about its files is refused, as a kernel
 * refuses it where the kernel has an answer, and with EPERM where devtmpfs
 * would let root break the machine.
 */
#include "preload.h"

#include <errno.h>
#include <stdio.h>
#include <sys/time.h>
#include <utime.h>

/* Refuse for a file of the node's, else go on. */
#define GUARD(dirfd, path, follow, exists)                                                                  \
	do {                                                                                                \
		if (preload_refuses(dirfd, path, follow, exists))                                           \
			return -1;                                                                          \
	} while (0)

/* The name that a file is moved to: never one of the node's. */
#define GUARD_NEW(dirfd, path, exists)                                                                      \
	do {                                                                                                \
		if (preload_refuses(dirfd, path, NOFOLLOW, EEXIST)) {                                       \
			errno = errno == EEXIST ? (exists) : errno;                                         \
			return -1;                                                                          \
		}                                                                                           \
	} while (0)

/* The device that an open file is of, O_PATH's too. */
static int device_of(int fd, char *device, size_t size)
{
	struct obmm_sys *sys = preload_node_of(fd);

	return sys && obmm_emulator_device(sys, fd, device, size);
}

/* For a call that changes what is open: 1 with the device, 0 for no file of the node's, -1 for one that is only a place. */
static int device_to_change(int fd, char *device, size_t size)
{
	if (!device_of(fd, device, size))
		return 0;
	if (!(fcntl(fd, F_GETFL) & O_PATH))
		return 1;
	errno = EBADF;
	return -1;
}

/* Mode and owner: of a device, its node's; 0 when `path` is none, with `found` filled. */
static int device_at(int dirfd, const char *path, int flags, struct preload_path *found)
{
	if (flags & AT_EMPTY_PATH && preload_is_empty(path) &&
	    device_of(dirfd, found->out, sizeof(found->out)))
		return 1;
	preload_find(dirfd, path, flags & AT_SYMLINK_NOFOLLOW ? NOFOLLOW : FOLLOW, found);
	return found->place == PLACE_DEVICE && preload_node();
}

static int mode_at(int dirfd, const char *path, mode_t mode, int flags)
{
	struct preload_path found;

	if (device_at(dirfd, path, flags, &found))
		return obmm_emulator_chmod(preload_node(), found.out, mode);
	GUARD(dirfd, path, flags & AT_SYMLINK_NOFOLLOW ? NOFOLLOW : FOLLOW, EPERM);
	return NEXT(fchmodat)(dirfd, path, mode, flags);
}

static int owner_at(int dirfd, const char *path, uid_t uid, gid_t gid, int flags)
{
	struct preload_path found;

	if (device_at(dirfd, path, flags, &found))
		return obmm_emulator_chown(preload_node(), found.out, uid, gid);
	GUARD(dirfd, path, flags & AT_SYMLINK_NOFOLLOW ? NOFOLLOW : FOLLOW, EPERM);
	return NEXT(fchownat)(dirfd, path, uid, gid, flags);
}

EXPORT int chmod(const char *path, mode_t mode)
{
	return mode_at(AT_FDCWD, path, mode, 0);
}

EXPORT int lchmod(const char *path, mode_t mode)
{
	return mode_at(AT_FDCWD, path, mode, AT_SYMLINK_NOFOLLOW);
}

EXPORT int fchmodat(int dirfd, const char *path, mode_t mode, int flags)
{
	return mode_at(dirfd, path, mode, flags);
}

EXPORT int fchmod(int fd, mode_t mode)
{
	char device[64];
	int mine = device_to_change(fd, device, sizeof(device));

	if (mine)
		return mine < 0 ? -1 : obmm_emulator_chmod(preload_node(), device, mode);
	return NEXT(fchmod)(fd, mode);
}

EXPORT int chown(const char *path, uid_t uid, gid_t gid)
{
	return owner_at(AT_FDCWD, path, uid, gid, 0);
}

EXPORT int lchown(const char *path, uid_t uid, gid_t gid)
{
	return owner_at(AT_FDCWD, path, uid, gid, AT_SYMLINK_NOFOLLOW);
}

EXPORT int fchownat(int dirfd, const char *path, uid_t uid, gid_t gid, int flags)
{
	return owner_at(dirfd, path, uid, gid, flags);
}

EXPORT int fchown(int fd, uid_t uid, gid_t gid)
{
	char device[64];
	int mine = device_to_change(fd, device, sizeof(device));

	if (mine)
		return mine < 0 ? -1 : obmm_emulator_chown(preload_node(), device, uid, gid);
	return NEXT(fchown)(fd, uid, gid);
}

/* Names: made, moved, removed. */

EXPORT int mkdir(const char *path, mode_t mode)
{
	GUARD(AT_FDCWD, path, NOFOLLOW, EEXIST);
	return NEXT(mkdir)(path, mode);
}

EXPORT int mkdirat(int dirfd, const char *path, mode_t mode)
{
	GUARD(dirfd, path, NOFOLLOW, EEXIST);
	return NEXT(mkdirat)(dirfd, path, mode);
}

EXPORT int mknod(const char *path, mode_t mode, dev_t device)
{
	GUARD(AT_FDCWD, path, NOFOLLOW, EEXIST);
	return NEXT(mknod)(path, mode, device);
}

EXPORT int mknodat(int dirfd, const char *path, mode_t mode, dev_t device)
{
	GUARD(dirfd, path, NOFOLLOW, EEXIST);
	return NEXT(mknodat)(dirfd, path, mode, device);
}

int __xmknod(int version, const char *path, mode_t mode, dev_t *device);
int __xmknodat(int version, int dirfd, const char *path, mode_t mode, dev_t *device);

EXPORT int __xmknod(int version, const char *path, mode_t mode, dev_t *device)
{
	(void)version;
	return mknod(path, mode, *device);
}

EXPORT int __xmknodat(int version, int dirfd, const char *path, mode_t mode, dev_t *device)
{
	(void)version;
	return mknodat(dirfd, path, mode, *device);
}

EXPORT int mkfifo(const char *path, mode_t mode)
{
	GUARD(AT_FDCWD, path, NOFOLLOW, EEXIST);
	return NEXT(mkfifo)(path, mode);
}

EXPORT int mkfifoat(int dirfd, const char *path, mode_t mode)
{
	GUARD(dirfd, path, NOFOLLOW, EEXIST);
	return NEXT(mkfifoat)(dirfd, path, mode);
}

EXPORT int symlink(const char *text, const char *path)
{
	GUARD(AT_FDCWD, path, NOFOLLOW, EEXIST);
	return NEXT(symlink)(text, path);
}

EXPORT int symlinkat(const char *text, int dirfd, const char *path)
{
	GUARD(dirfd, path, NOFOLLOW, EEXIST);
	return NEXT(symlinkat)(text, dirfd, path);
}

EXPORT int link(const char *from, const char *to)
{
	GUARD(AT_FDCWD, to, NOFOLLOW, EEXIST);
	GUARD(AT_FDCWD, from, NOFOLLOW, EPERM);
	return NEXT(link)(from, to);
}

EXPORT int linkat(int from_dirfd, const char *from, int to_dirfd, const char *to, int flags)
{
	GUARD(to_dirfd, to, NOFOLLOW, EEXIST);
	GUARD(from_dirfd, from, flags & AT_SYMLINK_FOLLOW ? FOLLOW : NOFOLLOW, EPERM);
	if (flags & AT_EMPTY_PATH)
		REFUSE(from_dirfd, EPERM);
	return NEXT(linkat)(from_dirfd, from, to_dirfd, to, flags);
}

/* Refused, with the kernel's word for a folder where a file is meant or the reverse. */
static int stays(int dirfd, const char *path, int folder)
{
	struct preload_path found;
	struct stat st;

	if (!preload_refuses(dirfd, path, NOFOLLOW, EPERM))
		return 0;
	if (errno == EPERM) {
		preload_find(dirfd, path, NOFOLLOW, &found);
		if (!raw_fstatat(AT_FDCWD, found.disk, &st, AT_SYMLINK_NOFOLLOW) && (S_ISDIR(st.st_mode) != 0) != folder)
			errno = folder ? ENOTDIR : EISDIR;
		else
			errno = EPERM;
	}
	return 1;
}

EXPORT int unlink(const char *path)
{
	return stays(AT_FDCWD, path, 0) ? -1 : NEXT(unlink)(path);
}

EXPORT int unlinkat(int dirfd, const char *path, int flags)
{
	return stays(dirfd, path, !!(flags & AT_REMOVEDIR)) ? -1 : NEXT(unlinkat)(dirfd, path, flags);
}

EXPORT int rmdir(const char *path)
{
	return stays(AT_FDCWD, path, 1) ? -1 : NEXT(rmdir)(path);
}

EXPORT int remove(const char *path)
{
	GUARD(AT_FDCWD, path, NOFOLLOW, EPERM);
	return NEXT(remove)(path);
}

EXPORT int rename(const char *from, const char *to)
{
	GUARD(AT_FDCWD, from, NOFOLLOW, EPERM);
	GUARD_NEW(AT_FDCWD, to, EPERM);
	return NEXT(rename)(from, to);
}

EXPORT int renameat(int from_dirfd, const char *from, int to_dirfd, const char *to)
{
	GUARD(from_dirfd, from, NOFOLLOW, EPERM);
	GUARD_NEW(to_dirfd, to, EPERM);
	return NEXT(renameat)(from_dirfd, from, to_dirfd, to);
}

EXPORT int renameat2(int from_dirfd, const char *from, int to_dirfd, const char *to, unsigned int flags)
{
	GUARD(from_dirfd, from, NOFOLLOW, EPERM);
	GUARD_NEW(to_dirfd, to, flags & RENAME_NOREPLACE ? EEXIST : EPERM);
	return NEXT(renameat2)(from_dirfd, from, to_dirfd, to, flags);
}

/* Contents and times. */

EXPORT int truncate(const char *path, off_t length)
{
	GUARD(AT_FDCWD, path, FOLLOW, EINVAL); /* no regular file */
	return NEXT(truncate)(path, length);
}

/* Times of a device live in devtmpfs: the file that stands for it keeps them. */
static const char *times_of(int dirfd, const char *path, enum preload_follow follow, struct preload_path *found)
{
	preload_find(dirfd, path, follow, found);
	return found->file;
}

EXPORT int utimensat(int dirfd, const char *path, const struct timespec times[2], int flags)
{
	struct preload_path found;
	char device[64];

	if (flags & AT_EMPTY_PATH && preload_is_empty(path) && device_of(dirfd, device, sizeof(device)))
		return utimensat(AT_FDCWD, device, times, 0);
	return NEXT(utimensat)(
		dirfd, times_of(dirfd, path, flags & AT_SYMLINK_NOFOLLOW ? NOFOLLOW : FOLLOW, &found), times, flags);
}

EXPORT int futimens(int fd, const struct timespec times[2])
{
	char device[64];
	int mine = device_to_change(fd, device, sizeof(device));

	if (mine)
		return mine < 0 ? -1 : utimensat(AT_FDCWD, device, times, 0);
	return NEXT(futimens)(fd, times);
}

EXPORT int futimes(int fd, const struct timeval times[2])
{
	char device[64];
	int mine = device_to_change(fd, device, sizeof(device));

	if (mine)
		return mine < 0 ? -1 : utimes(device, times);
	return NEXT(futimes)(fd, times);
}

EXPORT int utime(const char *path, const struct utimbuf *times)
{
	struct preload_path found;

	return NEXT(utime)(times_of(AT_FDCWD, path, FOLLOW, &found), times);
}

EXPORT int utimes(const char *path, const struct timeval times[2])
{
	struct preload_path found;

	return NEXT(utimes)(times_of(AT_FDCWD, path, FOLLOW, &found), times);
}

EXPORT int lutimes(const char *path, const struct timeval times[2])
{
	struct preload_path found;

	return NEXT(lutimes)(times_of(AT_FDCWD, path, NOFOLLOW, &found), times);
}

EXPORT int futimesat(int dirfd, const char *path, const struct timeval times[2])
{
	struct preload_path found;

	return NEXT(futimesat)(dirfd, times_of(dirfd, path, FOLLOW, &found), times);
}

ALIAS(truncate, truncate64);
