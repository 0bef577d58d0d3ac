/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Calls about a path's properties.  A device's stands on disk as a plain file:
 * what they report becomes a character device again.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/sysmacros.h>

#include "preload.h"

/* The text file that holds a device's numbers (spec 2). */
static void numbers_path(const char *device, char *out, size_t size)
{
	const char *name = strrchr(device, '/') + 1;
	struct obmm_sys *sys = preload_node();

	if (!strcmp(name, "obmm"))
		snprintf(out, size, "%s/sys/class/misc/obmm/dev", sys ? sys->root : "");
	else
		snprintf(out, size, "%s/sys/devices/obmm/%s/dev", sys ? sys->root : "", name);
}

static dev_t numbers_of(const char *device)
{
	char path[PATH_MAX], text[32] = "";
	unsigned int major = 0, minor = 0;
	int fd;

	numbers_path(device, path, sizeof(path));
	fd = raw_openat(AT_FDCWD, path, O_RDONLY | O_CLOEXEC, 0);
	if (fd >= 0) {
		if (raw_read(fd, text, sizeof(text) - 1) > 0)
			sscanf(text, "%u:%u", &major, &minor);
		raw_close(fd);
	}
	return makedev(major, minor);
}

static void as_device(const char *device, struct stat *st)
{
	st->st_mode = S_IFCHR | (st->st_mode & 07777);
	st->st_rdev = numbers_of(device);
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
	struct obmm_sys *sys = preload_node_of(fd);
	int64_t id;

	if (!sys)
		return 0;
	id = obmm_emulator_file(sys, fd, OBMM_FILE_DEVICE, 0, 0, 0);
	if (id < 0)
		return 0;
	if (id)
		snprintf(device, size, "/dev/obmm_shmdev%lld", (long long)id);
	else
		snprintf(device, size, "/dev/obmm");
	return 1;
}

static int stat_at(int dirfd, const char *path, struct stat *st, int flags)
{
	struct preload_path found;
	char device[64];
	int rc;

	if (path && !*path && flags & AT_EMPTY_PATH && device_of(dirfd, device, sizeof(device)))
		return stat_at(AT_FDCWD, device, st, 0);
	preload_find(dirfd, path, &found);
	rc = raw_fstatat(dirfd, found.file, st, flags);
	if (!rc && found.place == PLACE_DEVICE)
		as_device(found.out, st);
	else if (!rc && found.place == PLACE_TREE && S_ISREG(st->st_mode))
		st->st_size = attribute_size(found.out, st->st_size);
	return rc;
}

static int stat_fd(int fd, struct stat *st)
{
	char device[64];
	int rc = raw_fstat(fd, st);

	if (!rc && S_ISSOCK(st->st_mode) && device_of(fd, device, sizeof(device)))
		return stat_at(AT_FDCWD, device, st, 0);
	return rc;
}

EXPORT int stat(const char *path, struct stat *st)
{
	return stat_at(AT_FDCWD, path, st, 0);
}

EXPORT int stat64(const char *path, struct stat64 *st)
{
	return stat_at(AT_FDCWD, path, (struct stat *)st, 0);
}

EXPORT int lstat(const char *path, struct stat *st)
{
	return stat_at(AT_FDCWD, path, st, AT_SYMLINK_NOFOLLOW);
}

EXPORT int lstat64(const char *path, struct stat64 *st)
{
	return stat_at(AT_FDCWD, path, (struct stat *)st, AT_SYMLINK_NOFOLLOW);
}

EXPORT int fstat(int fd, struct stat *st)
{
	return stat_fd(fd, st);
}

EXPORT int fstat64(int fd, struct stat64 *st)
{
	return stat_fd(fd, (struct stat *)st);
}

EXPORT int fstatat(int dirfd, const char *path, struct stat *st, int flags)
{
	return stat_at(dirfd, path, st, flags);
}

EXPORT int fstatat64(int dirfd, const char *path, struct stat64 *st, int flags)
{
	return stat_at(dirfd, path, (struct stat *)st, flags);
}

/* Programs built against glibc before 2.33 call these. */
EXPORT int __xstat(int version, const char *path, struct stat *st)
{
	(void)version;
	return stat_at(AT_FDCWD, path, st, 0);
}

EXPORT int __xstat64(int version, const char *path, struct stat64 *st)
{
	(void)version;
	return stat_at(AT_FDCWD, path, (struct stat *)st, 0);
}

EXPORT int __lxstat(int version, const char *path, struct stat *st)
{
	(void)version;
	return stat_at(AT_FDCWD, path, st, AT_SYMLINK_NOFOLLOW);
}

EXPORT int __lxstat64(int version, const char *path, struct stat64 *st)
{
	(void)version;
	return stat_at(AT_FDCWD, path, (struct stat *)st, AT_SYMLINK_NOFOLLOW);
}

EXPORT int __fxstat(int version, int fd, struct stat *st)
{
	(void)version;
	return stat_fd(fd, st);
}

EXPORT int __fxstat64(int version, int fd, struct stat64 *st)
{
	(void)version;
	return stat_fd(fd, (struct stat *)st);
}

EXPORT int __fxstatat(int version, int dirfd, const char *path, struct stat *st, int flags)
{
	(void)version;
	return stat_at(dirfd, path, st, flags);
}

EXPORT int __fxstatat64(int version, int dirfd, const char *path, struct stat64 *st, int flags)
{
	(void)version;
	return stat_at(dirfd, path, (struct stat *)st, flags);
}

EXPORT int statx(int dirfd, const char *path, int flags, unsigned int mask, struct statx *st)
{
	struct preload_path found;
	char device[64];
	dev_t numbers;
	int rc;

	if (flags & AT_EMPTY_PATH && !*path && device_of(dirfd, device, sizeof(device)))
		return statx(AT_FDCWD, device, flags & ~AT_EMPTY_PATH, mask, st);
	preload_find(dirfd, path, &found);
	rc = syscall(SYS_statx, dirfd, found.file, flags, mask, st);
	if (!rc && found.place == PLACE_TREE && S_ISREG(st->stx_mode))
		st->stx_size = (uint64_t)attribute_size(found.out, (off_t)st->stx_size);
	if (!rc && found.place == PLACE_DEVICE) {
		numbers = numbers_of(found.out);
		st->stx_mode = S_IFCHR | (st->stx_mode & 07777);
		st->stx_rdev_major = major(numbers);
		st->stx_rdev_minor = minor(numbers);
		st->stx_size = 0;
		st->stx_blocks = 0;
	}
	return rc;
}

#define FOUND(dirfd, path)                                                                                  \
	({                                                                                                  \
		preload_find(dirfd, path, &found);                                                          \
		found.file;                                                                                 \
	})

EXPORT int access(const char *path, int mode)
{
	struct preload_path found;

	return NEXT(access)(FOUND(AT_FDCWD, path), mode);
}

EXPORT int faccessat(int dirfd, const char *path, int mode, int flags)
{
	struct preload_path found;

	return NEXT(faccessat)(dirfd, FOUND(dirfd, path), mode, flags);
}

EXPORT int euidaccess(const char *path, int mode)
{
	struct preload_path found;

	return NEXT(euidaccess)(FOUND(AT_FDCWD, path), mode);
}

EXPORT int eaccess(const char *path, int mode)
{
	return euidaccess(path, mode);
}

EXPORT int chmod(const char *path, mode_t mode)
{
	struct preload_path found;
	struct obmm_sys *sys = preload_node();

	preload_find(AT_FDCWD, path, &found);
	if (sys && found.place == PLACE_DEVICE)
		return obmm_emulator_chmod(sys, found.out, mode);
	return NEXT(chmod)(found.file, mode);
}

EXPORT int fchmodat(int dirfd, const char *path, mode_t mode, int flags)
{
	struct preload_path found;
	struct obmm_sys *sys = preload_node();

	preload_find(dirfd, path, &found);
	if (sys && found.place == PLACE_DEVICE)
		return obmm_emulator_chmod(sys, found.out, mode);
	return NEXT(fchmodat)(dirfd, found.file, mode, flags);
}

EXPORT int chown(const char *path, uid_t uid, gid_t gid)
{
	struct preload_path found;
	struct obmm_sys *sys = preload_node();

	preload_find(AT_FDCWD, path, &found);
	if (sys && found.place == PLACE_DEVICE)
		return obmm_emulator_chown(sys, found.out, uid, gid);
	return NEXT(chown)(found.file, uid, gid);
}

EXPORT int fchownat(int dirfd, const char *path, uid_t uid, gid_t gid, int flags)
{
	struct preload_path found;
	struct obmm_sys *sys = preload_node();

	preload_find(dirfd, path, &found);
	if (sys && found.place == PLACE_DEVICE)
		return obmm_emulator_chown(sys, found.out, uid, gid);
	return NEXT(fchownat)(dirfd, found.file, uid, gid, flags);
}

/* What /proc/self/fd says of an open file of the node: its device, not the socket that stands for it. */
static ssize_t descriptor_link(const char *path, char *out, size_t size)
{
	static const char folder[] = "/proc/self/fd/";
	char device[64], *end;
	size_t length;
	long fd;

	if (strncmp(path, folder, strlen(folder)))
		return -1;
	fd = strtol(path + strlen(folder), &end, 10);
	if (*end || !device_of(fd, device, sizeof(device)))
		return -1;
	length = strlen(device) < size ? strlen(device) : size;
	memcpy(out, device, length);
	return length;
}

EXPORT ssize_t readlink(const char *path, char *out, size_t size)
{
	struct preload_path found;
	ssize_t length = descriptor_link(path, out, size);

	return length >= 0 ? length : NEXT(readlink)(FOUND(AT_FDCWD, path), out, size);
}

EXPORT ssize_t readlinkat(int dirfd, const char *path, char *out, size_t size)
{
	struct preload_path found;
	ssize_t length = descriptor_link(path, out, size);

	return length >= 0 ? length : NEXT(readlinkat)(dirfd, FOUND(dirfd, path), out, size);
}

/* The file on disk is the node's business: the answer is a path of the emulated machine. */
EXPORT char *realpath(const char *path, char *out)
{
	struct preload_path found;
	char *real = NEXT(realpath)(FOUND(AT_FDCWD, path), out);
	size_t root;

	if (!real || found.place == PLACE_ELSEWHERE)
		return real;
	root = strlen(preload_node()->root);
	memmove(real, real + root, strlen(real + root) + 1);
	return real;
}

EXPORT char *canonicalize_file_name(const char *path)
{
	return realpath(path, NULL);
}
