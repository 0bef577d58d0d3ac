/* SPDX-License-Identifier: Apache-2.0 */
/*
 * syscall(2): the calls that this library answers under their names, it
 * answers under their numbers too.
 */
#include "preload.h"

#include <dirent.h>
#include <errno.h>
#include <linux/aio_abi.h>
#include <linux/futex.h>
#include <stdarg.h>
#include <stdio.h>
#include <sys/acct.h>
#include <sys/epoll.h>
#include <sys/fanotify.h>
#include <sys/inotify.h>
#include <sys/mount.h>
#include <sys/quota.h>
#include <sys/sendfile.h>
#include <sys/shm.h>
#include <sys/socket.h>
#include <sys/statfs.h>
#include <sys/swap.h>
#include <sys/time.h>
#include <sys/uio.h>
#include <sys/xattr.h>
#include <utime.h>

#define P(i) ((void *)a[i])
#define I(i) ((int)a[i])
#define U(i) ((unsigned int)a[i])
#define ON(name, result)                                                                                    \
	case SYS_##name:                                                                                    \
		*answer = (long)(result);                                                                   \
		return 1

int preload_openat2(int dirfd, const char *path, const uint64_t *how, size_t size);
int pivot_root(const char *root, const char *old);

/* A shared futex needs a page that a kernel can take hold of. */
static int no_futex(const void *at, long *answer)
{
	if (!preload_node_if_up() || !preload_ranges_touch(at, 4))
		return 0;
	errno = EFAULT;
	*answer = -1;
	return 1;
}

/* The kernel's asynchronous transfers: those before the first one on a file of the node's go, which is EINVAL. */
static int no_transfers(struct iocb *const *requests, long count, void *context, long *answer)
{
	for (long i = 0; i < count && preload_readable(&requests[i], sizeof(*requests)) &&
			 preload_readable(requests[i], sizeof(**requests));
	     i++) {
		if (requests[i]->aio_lio_opcode == IOCB_CMD_POLL || !preload_node_of((int)requests[i]->aio_fildes))
			continue;
		errno = EINVAL;
		*answer = i ? raw_call(SYS_io_submit, (long)context, i, (long)requests, 0, 0, 0) : -1;
		return 1;
	}
	return 0;
}

/* Calls on descriptors and memory.  1 when `number` is one, with its answer. */
static int on_descriptor(long number, const long a[6], long *answer)
{
	switch (number) {
		ON(read, read(I(0), P(1), (size_t)a[2]));
		ON(write, write(I(0), P(1), (size_t)a[2]));
		ON(pread64, pread(I(0), P(1), (size_t)a[2], a[3]));
		ON(pwrite64, pwrite(I(0), P(1), (size_t)a[2], a[3]));
		ON(readv, readv(I(0), P(1), I(2)));
		ON(writev, writev(I(0), P(1), I(2)));
		ON(preadv, preadv(I(0), P(1), I(2), a[3]));
		ON(pwritev, pwritev(I(0), P(1), I(2), a[3]));
		ON(preadv2, preadv2(I(0), P(1), I(2), a[3], I(5)));
		ON(pwritev2, pwritev2(I(0), P(1), I(2), a[3], I(5)));
		ON(sendfile, sendfile(I(0), I(1), P(2), (size_t)a[3]));
		ON(splice, splice(I(0), P(1), I(2), P(3), (size_t)a[4], U(5)));
		ON(tee, tee(I(0), I(1), (size_t)a[2], U(3)));
		ON(vmsplice, vmsplice(I(0), P(1), (size_t)a[2], U(3)));
		ON(copy_file_range, copy_file_range(I(0), P(1), I(2), P(3), (size_t)a[4], U(5)));
		ON(lseek, lseek(I(0), a[1], I(2)));
		ON(ioctl, ioctl(I(0), (unsigned long)a[1], P(2)));
		ON(fcntl, fcntl(I(0), I(1), P(2)));
		ON(fsync, fsync(I(0)));
		ON(fdatasync, fdatasync(I(0)));
		ON(ftruncate, ftruncate(I(0), a[1]));
		ON(fallocate, fallocate(I(0), I(1), a[2], a[3]));
		ON(readahead, readahead(I(0), a[1], (size_t)a[2]));
		ON(sync_file_range, sync_file_range(I(0), a[1], a[2], U(3)));
		ON(close, close(I(0)));
		ON(close_range, close_range(U(0), U(1), I(2)));
		ON(dup3, dup3(I(0), I(1), I(2)));
		ON(fstat, fstat(I(0), P(1)));
		ON(fstatfs, fstatfs(I(0), P(1)));
		ON(fchmod, fchmod(I(0), (mode_t)a[1]));
		ON(fchown, fchown(I(0), (uid_t)a[1], (gid_t)a[2]));
		ON(fsetxattr, fsetxattr(I(0), P(1), P(2), (size_t)a[3], I(4)));
		ON(fremovexattr, fremovexattr(I(0), P(1)));
		ON(epoll_ctl, epoll_ctl(I(0), I(1), I(2), P(3)));
		ON(mmap, mmap(P(0), (size_t)a[1], I(2), I(3), I(4), a[5]));
		ON(munmap, munmap(P(0), (size_t)a[1]));
		ON(mprotect, mprotect(P(0), (size_t)a[1], I(2)));
		ON(pkey_mprotect, pkey_mprotect(P(0), (size_t)a[1], I(2), I(3)));
		ON(madvise, madvise(P(0), (size_t)a[1], I(2)));
		ON(process_madvise, process_madvise(I(0), P(1), (size_t)a[2], I(3), U(4)));
		ON(msync, msync(P(0), (size_t)a[1], I(2)));
		ON(mremap, mremap(P(0), (size_t)a[1], (size_t)a[2], I(3), P(4)));
		ON(remap_file_pages, remap_file_pages(P(0), (size_t)a[1], I(2), (size_t)a[3], I(4)));
		ON(shmat, shmat(I(0), P(1), I(2)));
		ON(process_vm_readv,
		   process_vm_readv((pid_t)a[0], P(1), (unsigned long)a[2], P(3), (unsigned long)a[4], 0));
		ON(process_vm_writev,
		   process_vm_writev((pid_t)a[0], P(1), (unsigned long)a[2], P(3), (unsigned long)a[4], 0));
#ifdef SYS_dup2
		ON(dup2, dup2(I(0), I(1)));
#endif
	case SYS_futex:
		return !(I(1) & FUTEX_PRIVATE_FLAG) && no_futex(P(0), answer);
	case 449: /* futex_waitv: value, address, flags each */
		for (unsigned int i = 0; i < U(1) && i < 128; i++) {
			const uint64_t *wait = (const uint64_t *)P(0) + (size_t)3 * i;

			if (preload_readable(wait, 3 * sizeof(*wait)) && !(wait[2] & FUTEX_PRIVATE_FLAG) &&
			    no_futex((const void *)(uintptr_t)wait[1], answer))
				return 1;
		}
		return 0;
	case 454: /* futex_wake */
		return !(a[3] & FUTEX_PRIVATE_FLAG) && no_futex(P(0), answer);
	case 455: /* futex_wait */
		return !(a[3] & FUTEX_PRIVATE_FLAG) && no_futex(P(0), answer);
	case SYS_io_submit:
		return no_transfers(P(2), a[1], P(0), answer);
	}
	return 0;
}

/* Calls that look at paths. */
static int on_path(long number, const long a[6], long *answer)
{
	switch (number) {
		ON(openat, openat(I(0), P(1), I(2), (mode_t)a[3]));
		ON(openat2, preload_openat2(I(0), P(1), P(2), (size_t)a[3]));
		ON(newfstatat, fstatat(I(0), P(1), P(2), I(3)));
		ON(statx, statx(I(0), P(1), I(2), U(3), P(4)));
		ON(faccessat, faccessat(I(0), P(1), I(2), 0));
#ifdef SYS_faccessat2
		ON(faccessat2, faccessat(I(0), P(1), I(2), I(3)));
#endif
		ON(readlinkat, readlinkat(I(0), P(1), P(2), (size_t)a[3]));
		ON(statfs, statfs(P(0), P(1)));
		ON(chdir, chdir(P(0)));
		ON(chroot, chroot(P(0)));
		ON(acct, acct(P(0)));
		ON(swapon, swapon(P(0), I(1)));
		ON(swapoff, swapoff(P(0)));
		ON(mount, mount(P(0), P(1), P(2), (unsigned long)a[3], P(4)));
		ON(umount2, umount2(P(0), I(1)));
		ON(pivot_root, pivot_root(P(0), P(1)));
		ON(open_tree, open_tree(I(0), P(1), U(2)));
		ON(move_mount, move_mount(I(0), P(1), I(2), P(3), U(4)));
		ON(fspick, fspick(I(0), P(1), U(2)));
		ON(fsconfig, fsconfig(I(0), U(1), P(2), P(3), I(4)));
		ON(mount_setattr, mount_setattr(I(0), P(1), U(2), P(3), (size_t)a[4]));
		ON(quotactl, quotactl(I(0), P(1), I(2), P(3)));
		ON(inotify_add_watch, inotify_add_watch(I(0), P(1), U(2)));
		ON(fanotify_mark, fanotify_mark(I(0), U(1), (uint64_t)a[2], I(3), P(4)));
		ON(name_to_handle_at, name_to_handle_at(I(0), P(1), P(2), P(3), I(4)));
		ON(getxattr, getxattr(P(0), P(1), P(2), (size_t)a[3]));
		ON(lgetxattr, lgetxattr(P(0), P(1), P(2), (size_t)a[3]));
		ON(listxattr, listxattr(P(0), P(1), (size_t)a[2]));
		ON(llistxattr, llistxattr(P(0), P(1), (size_t)a[2]));
		ON(bind, bind(I(0), P(1), (socklen_t)a[2]));
		ON(connect, connect(I(0), P(1), (socklen_t)a[2]));
		ON(sendto, sendto(I(0), P(1), (size_t)a[2], I(3), P(4), (socklen_t)a[5]));
		ON(sendmsg, sendmsg(I(0), P(1), I(2)));
		ON(sendmmsg, sendmmsg(I(0), P(1), U(2), I(3)));
		ON(execve, execve(P(0), P(1), P(2)));
		ON(execveat, execveat(I(0), P(1), P(2), P(3), I(4)));
#ifdef SYS_open
		ON(open, open(P(0), I(1), (mode_t)a[2]));
		ON(creat, creat(P(0), (mode_t)a[1]));
		ON(stat, stat(P(0), P(1)));
		ON(lstat, lstat(P(0), P(1)));
		ON(access, access(P(0), I(1)));
		ON(readlink, readlink(P(0), P(1), (size_t)a[2]));
#endif
	}
	return 0;
}

/* Calls that change what paths name. */
static int on_name(long number, const long a[6], long *answer)
{
	switch (number) {
		ON(fchmodat, fchmodat(I(0), P(1), (mode_t)a[2], 0));
	case 452: /* fchmodat2, which older headers do not name */
		*answer = fchmodat(I(0), P(1), (mode_t)a[2], I(3));
		return 1;
	case 463: /* setxattrat, getxattrat, listxattrat, removexattrat, file_getattr, file_setattr: no words for them yet */
	case 464:
	case 465:
	case 466:
	case 467: /* open_tree_attr */
	case 468:
	case 469:
		if (!P(1) || !preload_refuses(I(0), P(1), FOLLOW, EOPNOTSUPP))
			return 0;
		*answer = -1;
		return 1;
		ON(fchownat, fchownat(I(0), P(1), (uid_t)a[2], (gid_t)a[3], I(4)));
		ON(mkdirat, mkdirat(I(0), P(1), (mode_t)a[2]));
		ON(mknodat, mknodat(I(0), P(1), (mode_t)a[2], (dev_t)a[3]));
		ON(symlinkat, symlinkat(P(0), I(1), P(2)));
		ON(linkat, linkat(I(0), P(1), I(2), P(3), I(4)));
		ON(unlinkat, unlinkat(I(0), P(1), I(2)));
		ON(renameat2, renameat2(I(0), P(1), I(2), P(3), U(4)));
		ON(truncate, truncate(P(0), a[1]));
	case SYS_utimensat: /* no path: the descriptor's, which libc gives to futimens only */
		*answer = P(1) || I(3) ? utimensat(I(0), P(1), P(2), I(3)) : futimens(I(0), P(2));
		return 1;
		ON(setxattr, setxattr(P(0), P(1), P(2), (size_t)a[3], I(4)));
		ON(lsetxattr, lsetxattr(P(0), P(1), P(2), (size_t)a[3], I(4)));
		ON(removexattr, removexattr(P(0), P(1)));
		ON(lremovexattr, lremovexattr(P(0), P(1)));
#ifdef SYS_renameat
		ON(renameat, renameat(I(0), P(1), I(2), P(3)));
#endif
#ifdef SYS_rename
		ON(rename, rename(P(0), P(1)));
		ON(mkdir, mkdir(P(0), (mode_t)a[1]));
		ON(rmdir, rmdir(P(0)));
		ON(link, link(P(0), P(1)));
		ON(unlink, unlink(P(0)));
		ON(symlink, symlink(P(0), P(1)));
		ON(chmod, chmod(P(0), (mode_t)a[1]));
		ON(chown, chown(P(0), (uid_t)a[1], (gid_t)a[2]));
		ON(lchown, lchown(P(0), (uid_t)a[1], (gid_t)a[2]));
		ON(mknod, mknod(P(0), (mode_t)a[1], (dev_t)a[2]));
		ON(utime, utime(P(0), P(1)));
		ON(utimes, utimes(P(0), P(1)));
		ON(futimesat, futimesat(I(0), P(1), P(2)));
#endif
	}
	return 0;
}

EXPORT long syscall(long number, ...)
{
	long a[6], answer;
	va_list more;

	va_start(more, number);
	for (int i = 0; i < 6; i++)
		a[i] = va_arg(more, long);
	va_end(more);
	if (on_descriptor(number, a, &answer) || on_path(number, a, &answer) || on_name(number, a, &answer))
		return answer;
	return raw_call(number, a[0], a[1], a[2], a[3], a[4], a[5]);
}
