/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Calls about a path's properties.  A device's stands on disk as a plain file:
 * what they report becomes a character device again.
 */
#include "preload.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/statvfs.h>
#include <sys/sysmacros.h>
#include <sys/vfs.h>

/* What the file that stands for a device says: "major:minor", and "uid:gid" when root gave it away. */
struct device_text {
	unsigned int major, minor, uid, gid;
};

static void read_device(const char *disk, struct device_text *device)
{
	char text[64] = "";
	int fd = raw_openat(AT_FDCWD, disk, O_RDONLY | O_CLOEXEC, 0);

	*device = (struct device_text){ 0 };
	if (fd < 0)
		return;
	if (raw_read(fd, text, sizeof(text) - 1) > 0)
		sscanf(text, "%u:%u %u:%u", &device->major, &device->minor, &device->uid, &device->gid);
	raw_close(fd);
}

static void as_device(const char *disk, struct stat *st)
{
	struct device_text device;

	read_device(disk, &device);
	st->st_mode = S_IFCHR | (st->st_mode & 07777);
	st->st_rdev = makedev(device.major, device.minor);
	st->st_uid = device.uid;
	st->st_gid = device.gid;
	st->st_size = 0;
	st->st_blocks = 0;
}

/* sysfs gives every text attribute a page; `priv` is binary and has its own size.  procfs says 0. */
static off_t attribute_size(const char *path, off_t size)
{
	const char *name = strrchr(path, '/');

	if (strncmp(path, "/sys/", 5))
		return 0;
	return name && !strcmp(name, "/priv") ? size : 4096;
}

/* The device behind an open file of the node. */
static int device_of(int fd, char *device, size_t size)
{
	struct obmm_sys *sys = fd >= 0 ? preload_node() : NULL;
	int saved = errno, found = sys && obmm_emulator_device(sys, fd, device, size);

	errno = saved;
	return found;
}

/* Kept apart: libc's headers promise compilers that paths are never NULL, which the kernel takes for an empty one. */
__attribute__((noinline)) static int is_empty(const char *path)
{
	return !path || preload_is_empty(path);
}

static int stat_at(int dirfd, const char *path, struct stat *st, int flags)
{
	struct preload_path found;
	char device[64];
	int rc;

	if (is_empty(path) && flags & AT_EMPTY_PATH && device_of(dirfd, device, sizeof(device)))
		return stat_at(AT_FDCWD, device, st, 0);
	preload_find(dirfd, path, flags & AT_SYMLINK_NOFOLLOW ? NOFOLLOW : FOLLOW, &found);
	rc = raw_fstatat(dirfd, found.file, st, flags);
	if (!rc && found.place == PLACE_DEVICE)
		as_device(found.file, st);
	else if (!rc && found.place == PLACE_TREE && S_ISREG(st->st_mode))
		st->st_size = attribute_size(found.out, st->st_size);
	return rc;
}

static int stat_fd(int fd, struct stat *st)
{
	char device[64];
	int rc = raw_fstat(fd, st);

	if (!rc && S_ISREG(st->st_mode) && !st->st_size && device_of(fd, device, sizeof(device)))
		return stat_at(AT_FDCWD, device, st, 0);
	return rc;
}

EXPORT int stat(const char *path, struct stat *st)
{
	return stat_at(AT_FDCWD, path, st, 0);
}

EXPORT int lstat(const char *path, struct stat *st)
{
	return stat_at(AT_FDCWD, path, st, AT_SYMLINK_NOFOLLOW);
}

EXPORT int fstat(int fd, struct stat *st)
{
	return stat_fd(fd, st);
}

EXPORT int fstatat(int dirfd, const char *path, struct stat *st, int flags)
{
	return stat_at(dirfd, path, st, flags);
}

/* Programs built against glibc before 2.33 call these. */
EXPORT int __xstat(int version, const char *path, struct stat *st)
{
	(void)version;
	return stat_at(AT_FDCWD, path, st, 0);
}

EXPORT int __lxstat(int version, const char *path, struct stat *st)
{
	(void)version;
	return stat_at(AT_FDCWD, path, st, AT_SYMLINK_NOFOLLOW);
}

EXPORT int __fxstat(int version, int fd, struct stat *st)
{
	(void)version;
	return stat_fd(fd, st);
}

EXPORT int __fxstatat(int version, int dirfd, const char *path, struct stat *st, int flags)
{
	(void)version;
	return stat_at(dirfd, path, st, flags);
}

EXPORT int statx(int dirfd, const char *path, int flags, unsigned int mask, struct statx *st)
{
	struct preload_path found;
	struct device_text numbers;
	char device[64];
	int rc;

	if (flags & AT_EMPTY_PATH && is_empty(path) && device_of(dirfd, device, sizeof(device)))
		return statx(AT_FDCWD, device, flags & ~AT_EMPTY_PATH, mask, st);
	preload_find(dirfd, path, flags & AT_SYMLINK_NOFOLLOW ? NOFOLLOW : FOLLOW, &found);
	rc = (int)raw_call(SYS_statx, dirfd, (long)found.file, flags, mask, (long)st, 0);
	if (!rc && found.place == PLACE_TREE && S_ISREG(st->stx_mode))
		st->stx_size = (uint64_t)attribute_size(found.out, (off_t)st->stx_size);
	if (!rc && found.place == PLACE_DEVICE) {
		read_device(found.file, &numbers);
		st->stx_mode = S_IFCHR | (st->stx_mode & 07777);
		st->stx_uid = numbers.uid;
		st->stx_gid = numbers.gid;
		st->stx_rdev_major = numbers.major;
		st->stx_rdev_minor = numbers.minor;
		st->stx_size = 0;
		st->stx_blocks = 0;
	}
	return rc;
}

EXPORT int access(const char *path, int mode)
{
	struct preload_path found;

	preload_find(AT_FDCWD, path, FOLLOW, &found);
	return NEXT(access)(found.file, mode);
}

EXPORT int faccessat(int dirfd, const char *path, int mode, int flags)
{
	struct preload_path found;

	preload_find(dirfd, path, flags & AT_SYMLINK_NOFOLLOW ? NOFOLLOW : FOLLOW, &found);
	return NEXT(faccessat)(dirfd, found.file, mode, flags);
}

EXPORT int euidaccess(const char *path, int mode)
{
	struct preload_path found;

	preload_find(AT_FDCWD, path, FOLLOW, &found);
	return NEXT(euidaccess)(found.file, mode);
}

/* The file system that a file of the node's would be on: the one of this machine's folder. */
static const char *mounted_at(const struct preload_path *found, const char *path)
{
	if (found->place == PLACE_ELSEWHERE)
		return path;
	if (raw_call(SYS_faccessat, AT_FDCWD, (long)found->file, F_OK, 0, 0, 0))
		return found->file; /* which is not there */
	return !strncmp(found->out, "/sys", 4) ? "/sys" : !strncmp(found->out, "/proc", 5) ? "/proc" : "/dev";
}

EXPORT int statfs(const char *path, struct statfs *fs)
{
	struct preload_path found;

	preload_find(AT_FDCWD, path, FOLLOW, &found);
	return NEXT(statfs)(mounted_at(&found, path), fs);
}

EXPORT int statvfs(const char *path, struct statvfs *fs)
{
	struct preload_path found;

	preload_find(AT_FDCWD, path, FOLLOW, &found);
	return NEXT(statvfs)(mounted_at(&found, path), fs);
}

EXPORT int fstatfs(int fd, struct statfs *fs)
{
	return preload_node_of(fd) ? NEXT(statfs)("/dev", fs) : NEXT(fstatfs)(fd, fs);
}

EXPORT int fstatvfs(int fd, struct statvfs *fs)
{
	return preload_node_of(fd) ? NEXT(statvfs)("/dev", fs) : NEXT(fstatvfs)(fd, fs);
}

/* The link of an open file of this node names its device. */
EXPORT ssize_t readlinkat(int dirfd, const char *path, char *out, size_t size)
{
	struct preload_path found;
	const char *device;
	char whole[300];
	ssize_t length;

	preload_find(dirfd, path, NOFOLLOW, &found);
	/* not into the caller's buffer, which keeps what lies behind the answer; and whole, which that buffer may not hold */
	length = NEXT(readlinkat)(dirfd, found.file, whole, sizeof(whole) - 1);
	whole[length < 0 ? 0 : length] = 0;
	device = strncmp(whole, "/memfd", 6) ? NULL : preload_linked_device(whole);
	if (!device)
		return NEXT(readlinkat)(dirfd, found.file, out, size);
	length = (ssize_t)(strlen(device) < size ? strlen(device) : size);
	memcpy(out, device, (size_t)length);
	return length;
}

EXPORT ssize_t readlink(const char *path, char *out, size_t size)
{
	return readlinkat(AT_FDCWD, path, out, size);
}

/* The file on disk is the node's business: the answer is a path of the emulated machine. */
EXPORT char *realpath(const char *path, char *out)
{
	struct preload_path found;
	char *real;

	preload_find(AT_FDCWD, path, FOLLOW, &found);
	real = NEXT(realpath)(found.file, out);
	if (real && found.place != PLACE_ELSEWHERE)
		preload_unroot(real);
	return real;
}

EXPORT char *canonicalize_file_name(const char *path)
{
	return realpath(path, NULL);
}

EXPORT char *getcwd(char *out, size_t size)
{
	char *cwd = NEXT(getcwd)(out, size);

	if (cwd)
		preload_unroot(cwd);
	return cwd;
}

EXPORT char *getwd(char *out)
{
	return getcwd(out, PATH_MAX);
}

EXPORT char *get_current_dir_name(void)
{
	return getcwd(NULL, 0);
}

ssize_t __readlink_chk(const char *path, char *out, size_t size, size_t room);
ssize_t __readlinkat_chk(int dirfd, const char *path, char *out, size_t size, size_t room);
char *__realpath_chk(const char *path, char *out, size_t room);
char *__getcwd_chk(char *out, size_t size, size_t room);
char *__getwd_chk(char *out, size_t room);

/* A buffer smaller than the program says ends it, as libc would. */
static void must_fit(int fits)
{
	if (!fits)
		abort();
}

EXPORT ssize_t __readlink_chk(const char *path, char *out, size_t size, size_t room)
{
	must_fit(size <= room);
	return readlink(path, out, size);
}

EXPORT ssize_t __readlinkat_chk(int dirfd, const char *path, char *out, size_t size, size_t room)
{
	must_fit(size <= room);
	return readlinkat(dirfd, path, out, size);
}

EXPORT char *__realpath_chk(const char *path, char *out, size_t room)
{
	must_fit(room >= PATH_MAX);
	return realpath(path, out);
}

EXPORT char *__getcwd_chk(char *out, size_t size, size_t room)
{
	must_fit(size <= room);
	return getcwd(out, size);
}

EXPORT char *__getwd_chk(char *out, size_t room)
{
	return getcwd(out, room < PATH_MAX ? room : PATH_MAX);
}

ALIAS(stat, stat64);
ALIAS(lstat, lstat64);
ALIAS(fstat, fstat64);
ALIAS(fstat, __fstat64);
ALIAS(fstatat, fstatat64);
ALIAS(__xstat, __xstat64);
ALIAS(__lxstat, __lxstat64);
ALIAS(__fxstat, __fxstat64);
ALIAS(__fxstatat, __fxstatat64);
ALIAS(euidaccess, eaccess);
ALIAS(statfs, statfs64);
ALIAS(statfs, __statfs);
ALIAS(statvfs, statvfs64);
ALIAS(fstatfs, fstatfs64);
ALIAS(fstatvfs, fstatvfs64);
