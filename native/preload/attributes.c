/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Calls that look at a path, or hand it to something else: extended
 * attributes, watches, handles, mounts.  Looking is answered by the file that
 * stands for the node's; what would reach further is refused.
 */
#include "preload.h"

#include <errno.h>
#include <sys/acct.h>
#include <sys/fanotify.h>
#include <sys/inotify.h>
#include <sys/ipc.h>
#include <sys/mount.h>
#include <sys/quota.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/swap.h>
#include <sys/un.h>
#include <sys/xattr.h>
#include <string.h>

#define FILE_OF(path, follow)                                                                               \
	({                                                                                                  \
		preload_find(AT_FDCWD, path, follow, &found);                                               \
		found.file;                                                                                 \
	})

#define GUARD(dirfd, path, follow, exists)                                                                  \
	do {                                                                                                \
		if (preload_refuses(dirfd, path, follow, exists))                                           \
			return -1;                                                                          \
	} while (0)

EXPORT ssize_t getxattr(const char *path, const char *name, void *value, size_t size)
{
	struct preload_path found;

	return NEXT(getxattr)(FILE_OF(path, FOLLOW), name, value, size);
}

EXPORT ssize_t lgetxattr(const char *path, const char *name, void *value, size_t size)
{
	struct preload_path found;

	return NEXT(lgetxattr)(FILE_OF(path, NOFOLLOW), name, value, size);
}

EXPORT ssize_t listxattr(const char *path, char *list, size_t size)
{
	struct preload_path found;

	return NEXT(listxattr)(FILE_OF(path, FOLLOW), list, size);
}

EXPORT ssize_t llistxattr(const char *path, char *list, size_t size)
{
	struct preload_path found;

	return NEXT(llistxattr)(FILE_OF(path, NOFOLLOW), list, size);
}

/* A device takes no attributes of users, and the others cannot be given. */
EXPORT int setxattr(const char *path, const char *name, const void *value, size_t size, int flags)
{
	GUARD(AT_FDCWD, path, FOLLOW, EPERM);
	return NEXT(setxattr)(path, name, value, size, flags);
}

EXPORT int lsetxattr(const char *path, const char *name, const void *value, size_t size, int flags)
{
	GUARD(AT_FDCWD, path, NOFOLLOW, EPERM);
	return NEXT(lsetxattr)(path, name, value, size, flags);
}

EXPORT int fsetxattr(int fd, const char *name, const void *value, size_t size, int flags)
{
	REFUSE(fd, EPERM);
	return NEXT(fsetxattr)(fd, name, value, size, flags);
}

EXPORT int removexattr(const char *path, const char *name)
{
	GUARD(AT_FDCWD, path, FOLLOW, EPERM);
	return NEXT(removexattr)(path, name);
}

EXPORT int lremovexattr(const char *path, const char *name)
{
	GUARD(AT_FDCWD, path, NOFOLLOW, EPERM);
	return NEXT(lremovexattr)(path, name);
}

EXPORT int fremovexattr(int fd, const char *name)
{
	REFUSE(fd, EPERM);
	return NEXT(fremovexattr)(fd, name);
}

EXPORT long pathconf(const char *path, int name)
{
	struct preload_path found;

	return NEXT(pathconf)(FILE_OF(path, FOLLOW), name);
}

EXPORT int inotify_add_watch(int fd, const char *path, uint32_t mask)
{
	struct preload_path found;

	return NEXT(inotify_add_watch)(fd, FILE_OF(path, mask & IN_DONT_FOLLOW ? NOFOLLOW : FOLLOW), mask);
}

EXPORT int fanotify_mark(int group, unsigned int flags, uint64_t mask, int dirfd, const char *path)
{
	GUARD(dirfd, path, flags & FAN_MARK_DONT_FOLLOW ? NOFOLLOW : FOLLOW, EPERM);
	return NEXT(fanotify_mark)(group, flags, mask, dirfd, path);
}

EXPORT int name_to_handle_at(int dirfd, const char *path, struct file_handle *handle, int *mount, int flags)
{
	/* a handle opens again past every name */
	GUARD(dirfd, path, flags & AT_SYMLINK_FOLLOW ? FOLLOW : NOFOLLOW, EOPNOTSUPP);
	if (flags & AT_EMPTY_PATH)
		REFUSE(dirfd, EOPNOTSUPP);
	return NEXT(name_to_handle_at)(dirfd, path, handle, mount, flags);
}

EXPORT key_t ftok(const char *path, int project)
{
	struct stat st;

	if (stat(path, &st))
		return -1;
	return (key_t)((st.st_ino & 0xffff) | ((st.st_dev & 0xff) << 16) | ((unsigned int)(project & 0xff) << 24));
}

EXPORT int chroot(const char *path)
{
	struct preload_path found;

	return NEXT(chroot)(FILE_OF(path, FOLLOW));
}

EXPORT int acct(const char *path)
{
	if (path)
		GUARD(AT_FDCWD, path, FOLLOW, EACCES); /* no regular file */
	return NEXT(acct)(path);
}

EXPORT int swapon(const char *path, int flags)
{
	GUARD(AT_FDCWD, path, FOLLOW, EINVAL);
	return NEXT(swapon)(path, flags);
}

EXPORT int swapoff(const char *path)
{
	GUARD(AT_FDCWD, path, FOLLOW, EINVAL);
	return NEXT(swapoff)(path);
}

EXPORT int mount(const char *source, const char *target, const char *type, unsigned long flags, const void *data)
{
	GUARD(AT_FDCWD, source, FOLLOW, flags & MS_BIND ? EPERM : ENOTBLK);
	GUARD(AT_FDCWD, target, FOLLOW, EPERM);
	return NEXT(mount)(source, target, type, flags, data);
}

EXPORT int umount(const char *target)
{
	GUARD(AT_FDCWD, target, FOLLOW, EINVAL); /* not a mount point */
	return NEXT(umount)(target);
}

EXPORT int umount2(const char *target, int flags)
{
	GUARD(AT_FDCWD, target, flags & UMOUNT_NOFOLLOW ? NOFOLLOW : FOLLOW, EINVAL);
	return NEXT(umount2)(target, flags);
}

EXPORT int open_tree(int dirfd, const char *path, unsigned int flags)
{
	GUARD(dirfd, path, flags & AT_SYMLINK_NOFOLLOW ? NOFOLLOW : FOLLOW, EPERM);
	return NEXT(open_tree)(dirfd, path, flags);
}

EXPORT int move_mount(int from_dirfd, const char *from, int to_dirfd, const char *to, unsigned int flags)
{
	GUARD(from_dirfd, from, FOLLOW, EINVAL);
	GUARD(to_dirfd, to, FOLLOW, EPERM);
	return NEXT(move_mount)(from_dirfd, from, to_dirfd, to, flags);
}

EXPORT int mount_setattr(int dirfd, const char *path, unsigned int flags, struct mount_attr *attributes, size_t size)
{
	GUARD(dirfd, path, flags & AT_SYMLINK_NOFOLLOW ? NOFOLLOW : FOLLOW, EINVAL);
	return NEXT(mount_setattr)(dirfd, path, flags, attributes, size);
}

EXPORT int fspick(int dirfd, const char *path, unsigned int flags)
{
	GUARD(dirfd, path, FOLLOW, EINVAL);
	return NEXT(fspick)(dirfd, path, flags);
}

EXPORT int fsconfig(int fd, unsigned int command, const char *key, const void *value, int more)
{
	if (command == FSCONFIG_SET_PATH && value)
		GUARD(more, value, FOLLOW, ENOTBLK);
	return NEXT(fsconfig)(fd, command, key, value, more);
}

int pivot_root(const char *root, const char *old);

EXPORT int pivot_root(const char *root, const char *old)
{
	GUARD(AT_FDCWD, root, FOLLOW, ENOTDIR);
	GUARD(AT_FDCWD, old, FOLLOW, ENOTDIR);
	return NEXT(pivot_root)(root, old);
}

EXPORT int quotactl(int command, const char *device, int id, char *data)
{
	if (device)
		GUARD(AT_FDCWD, device, FOLLOW, ENOTBLK);
	return NEXT(quotactl)(command, device, id, data);
}

/* A socket's address may be a path. */
static int is_path(const struct sockaddr *address, socklen_t size, char *path)
{
	const struct sockaddr_un *un = (const void *)address;
	const size_t head = offsetof(struct sockaddr_un, sun_path);

	if (!address || size <= head || size > sizeof(*un) || !preload_readable(un, size) ||
	    address->sa_family != AF_UNIX || !un->sun_path[0])
		return 0;
	memcpy(path, un->sun_path, size - head);
	path[size - head] = 0;
	return 1;
}

EXPORT int bind(int fd, __CONST_SOCKADDR_ARG address, socklen_t size)
{
	char path[sizeof(struct sockaddr_un)];

	if (is_path(address.__sockaddr__, size, path))
		GUARD(AT_FDCWD, path, NOFOLLOW, EADDRINUSE);
	return NEXT(bind)(fd, address, size);
}

EXPORT int connect(int fd, __CONST_SOCKADDR_ARG address, socklen_t size)
{
	char path[sizeof(struct sockaddr_un)];

	if (is_path(address.__sockaddr__, size, path))
		GUARD(AT_FDCWD, path, FOLLOW, ECONNREFUSED);
	return NEXT(connect)(fd, address, size);
}

EXPORT ssize_t sendto(int fd, const void *data, size_t length, int flags, __CONST_SOCKADDR_ARG address, socklen_t size)
{
	char path[sizeof(struct sockaddr_un)];

	if (is_path(address.__sockaddr__, size, path))
		GUARD(AT_FDCWD, path, FOLLOW, ECONNREFUSED);
	return NEXT(sendto)(fd, data, length, flags, address, size);
}

EXPORT ssize_t sendmsg(int fd, const struct msghdr *message, int flags)
{
	char path[sizeof(struct sockaddr_un)];

	if (preload_readable(message, sizeof(*message)) && message->msg_name &&
	    is_path(message->msg_name, message->msg_namelen, path))
		GUARD(AT_FDCWD, path, FOLLOW, ECONNREFUSED);
	return NEXT(sendmsg)(fd, message, flags);
}

EXPORT int sendmmsg(int fd, struct mmsghdr *messages, unsigned int count, int flags)
{
	char path[sizeof(struct sockaddr_un)];

	for (unsigned int i = 0; i < count && preload_readable(&messages[i], sizeof(*messages)); i++)
		if (messages[i].msg_hdr.msg_name &&
		    is_path(messages[i].msg_hdr.msg_name, messages[i].msg_hdr.msg_namelen, path))
			GUARD(AT_FDCWD, path, FOLLOW, ECONNREFUSED);
	return NEXT(sendmmsg)(fd, messages, count, flags);
}

ALIAS(sendmmsg, __sendmmsg);
ALIAS(connect, __connect);
