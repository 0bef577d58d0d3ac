/* SPDX-License-Identifier: Apache-2.0 */
/* Functions that take a path, a descriptor or an address, on the node's: answered or refused, never this machine's. */
#include <aio.h>
#include <dirent.h>
#include <fcntl.h>
#include <ftw.h>
#include <mntent.h>
#include <stddef.h>
#include <sys/inotify.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/param.h>
#include <sys/sendfile.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <sys/swap.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/uio.h>
#include <sys/un.h>
#include <sys/xattr.h>
#include <unistd.h>
#include <utime.h>

#include "check.h"
#include "mem.h"

#define SIZE (2UL << 20)

static int address_of(const char *path, int (*call)(int, const struct sockaddr *, socklen_t))
{
	struct sockaddr_un address = { .sun_family = AF_UNIX };
	int fd = socket(AF_UNIX, SOCK_STREAM, 0), rc, saved;

	strcpy(address.sun_path, path);
	rc = call(fd, (struct sockaddr *)&address, sizeof(address));
	saved = errno;
	close(fd);
	errno = saved;
	return rc;
}

static int bind_path(int fd, const struct sockaddr *address, socklen_t size)
{
	return bind(fd, address, size);
}

static int connect_path(int fd, const struct sockaddr *address, socklen_t size)
{
	return connect(fd, address, size);
}

static int send_to_path(int fd, const struct sockaddr *address, socklen_t size)
{
	int datagrams = socket(AF_UNIX, SOCK_DGRAM, 0), rc, saved;

	(void)fd;
	rc = sendto(datagrams, "x", 1, 0, address, size);
	saved = errno;
	close(datagrams);
	errno = saved;
	return rc;
}

/* Names cannot be made, moved or removed, whatever way leads to them. */
static void names(const char *path)
{
	REFUSED(mkdir(path, 0700), EEXIST);
	REFUSED(mkdirat(AT_FDCWD, path, 0700), EEXIST);
	REFUSED(mknod(path, S_IFIFO | 0600, 0), EEXIST);
	REFUSED(mknodat(AT_FDCWD, path, S_IFREG | 0600, 0), EEXIST);
	REFUSED(mkfifo(path, 0600), EEXIST);
	REFUSED(symlink("/tmp", path), EEXIST);
	REFUSED(symlinkat("/tmp", AT_FDCWD, path), EEXIST);
	REFUSED(link("/etc/passwd", path), EEXIST);
	REFUSED(link(path, "/dev/shm/obmm-test-link"), EPERM);
	REFUSED(linkat(AT_FDCWD, path, AT_FDCWD, "/dev/shm/obmm-test-link", 0), EPERM);
	REFUSED(unlink(path), EPERM);
	REFUSED(unlinkat(AT_FDCWD, path, 0), EPERM);
	REFUSED(rmdir(path), ENOTDIR);
	REFUSED(remove(path), EPERM);
	REFUSED(rename(path, "/dev/shm/obmm-test-name"), EPERM);
	REFUSED(rename("/dev/shm/obmm-test-none", path), EPERM);
	REFUSED(renameat(AT_FDCWD, path, AT_FDCWD, "/dev/shm/x"), EPERM);
	REFUSED(renameat2(AT_FDCWD, "/etc/passwd", AT_FDCWD, path, RENAME_NOREPLACE), EEXIST);
	REFUSED(syscall(SYS_unlinkat, AT_FDCWD, path, 0), EPERM);
	REFUSED(syscall(SYS_mkdirat, AT_FDCWD, path, 0700), EEXIST);
	REFUSED(address_of(path, bind_path), EADDRINUSE);
}

/* What a path leads to. */
static void contents(const char *path)
{
	struct timespec times[2] = { { 1000, 0 }, { 2000, 0 } };
	struct timeval old[2] = { { 3000, 0 }, { 4000, 0 } };
	struct utimbuf oldest = { 5000, 6000 };
	char *const argv[] = { "obmm", NULL };
	struct statfs fs;
	struct stat st;
	char list[64];
	int watch;

	REFUSED(truncate(path, 0), EINVAL);
	REFUSED(setxattr(path, "user.name", "x", 1, 0), EPERM);
	REFUSED(removexattr(path, "user.name"), EPERM);
	CHECK(getxattr(path, "security.none", list, sizeof(list)) == -1 && errno != ENOENT);
	CHECK(listxattr(path, list, sizeof(list)) >= 0);
	REFUSED(execve(path, argv, argv), EACCES);
	REFUSED(execl(path, "obmm", NULL), EACCES);
	REFUSED(swapon(path, 0), EINVAL);
	REFUSED(mount(path, "/mnt", "ext4", 0, NULL), ENOTBLK);
	REFUSED(mount("/etc/passwd", path, NULL, MS_BIND, NULL), EPERM);
	REFUSED(umount(path), EINVAL);
	REFUSED(acct(path), EACCES);
	REFUSED(address_of(path, connect_path), ECONNREFUSED);
	REFUSED(address_of(path, send_to_path), ECONNREFUSED);
	REFUSED(chdir(path), ENOTDIR);
	CHECK(!opendir(path) && errno == ENOTDIR);
	CHECK(!setmntent(path, "r"));
	CHECK(!statfs(path, &fs));
	CHECK(pathconf(path, _PC_NAME_MAX) > 0);
	watch = inotify_init1(IN_CLOEXEC);
	CHECK(inotify_add_watch(watch, path, IN_OPEN) > 0 && !close(watch));
	CHECK(!utimensat(AT_FDCWD, path, times, 0) && !stat(path, &st) && st.st_mtime == 2000);
	CHECK(!utimes(path, old) && !stat(path, &st) && st.st_mtime == 4000);
	CHECK(!utime(path, &oldest) && !stat(path, &st) && st.st_mtime == 6000);
	CHECK(!chmod(path, 0640) && !stat(path, &st) && st.st_mode == (S_IFCHR | 0640));
	CHECK(!lchmod("/dev/obmm", 0600) || errno == EOPNOTSUPP);
	CHECK(!chown(path, 7, -1) && !stat(path, &st) && st.st_uid == 7 && st.st_gid == 0);
	CHECK(!lchown("/dev/obmm", 0, 0) && !chmod(path, 0600));
}

/* By number, as jemalloc and others call. */
static void numbers(const char *path)
{
	uint64_t how[3] = { O_RDWR };
	struct stat st;
	int fd = syscall(SYS_openat, AT_FDCWD, path, O_RDWR);

	CHECK(fd >= 0 && !syscall(SYS_fstat, fd, &st) && S_ISCHR(st.st_mode));
	REFUSED(syscall(SYS_read, fd, &st, 8), EINVAL);
	CHECK(!syscall(SYS_close, fd));
	fd = syscall(SYS_openat2, AT_FDCWD, path, how, sizeof(how));
	CHECK(fd >= 0 && !close(fd));
	CHECK(!syscall(SYS_newfstatat, AT_FDCWD, path, &st, 0) && S_ISCHR(st.st_mode));
}

static void descriptor(int fd)
{
	struct timespec times[2] = { { 100, 0 }, { 200, 0 } };
	struct aiocb request = { .aio_fildes = fd, .aio_nbytes = 1 };
	struct iovec part = { .iov_base = &times, .iov_len = 1 };
	int pipes[2], other = open("/dev/zero", O_RDWR);
	struct stat st;
	char byte = 0;
	FILE *stream;

	CHECK(!pipe(pipes) && write(pipes[1], "x", 1) == 1);
	REFUSED(preadv2(fd, &part, 1, 0, 0), EINVAL);
	REFUSED(pwritev2(fd, &part, 1, 0, 0), EINVAL);
	REFUSED(pread(fd, &byte, 1, 0), EINVAL);
	REFUSED(pwrite(fd, &byte, 1, 0), EINVAL);
	REFUSED(sendfile(pipes[1], fd, NULL, 1), EINVAL);
	REFUSED(sendfile(fd, other, NULL, 1), EINVAL);
	REFUSED(splice(fd, NULL, pipes[1], NULL, 1, 0), EINVAL);
	REFUSED(splice(pipes[0], NULL, fd, NULL, 1, 0), EINVAL);
	REFUSED(tee(fd, pipes[1], 1, 0), EINVAL);
	REFUSED(vmsplice(fd, &part, 1, 0), EBADF);
	REFUSED(copy_file_range(fd, NULL, other, NULL, 1, 0), EINVAL);
	REFUSED(send(fd, &byte, 1, 0), ENOTSOCK);
	REFUSED(recv(fd, &byte, 1, 0), ENOTSOCK);
	REFUSED(shutdown(fd, SHUT_RDWR), ENOTSOCK);
	REFUSED(fchdir(fd), ENOTDIR);
	REFUSED(readahead(fd, 0, 1), EINVAL);
	REFUSED(sync_file_range(fd, 0, 0, 0), ESPIPE);
	REFUSED(fsetxattr(fd, "user.x", "x", 1, 0), EPERM);
	REFUSED(aio_read(&request), EINVAL);
	REFUSED(aio_write(&request), EINVAL);
	REFUSED(fcntl(fd, F_ADD_SEALS, F_SEAL_WRITE), EINVAL);
	CHECK(!isatty(fd) && !fchmod(fd, 0600) && !fchown(fd, 0, 0));
	CHECK(!futimens(fd, times) && !fstat(fd, &st) && st.st_mtime == 200);
	CHECK(dprintf(fd, "text") < 0 && errno == EINVAL);
	for (const char *mode = "rwa"; *mode; mode++) {
		stream = fopen("/dev/obmm", (char[]){ *mode, '+', 0 });
		CHECK(stream);
		REFUSED(fseek(stream, 0, SEEK_SET), ESPIPE);
		REFUSED(ftell(stream), ESPIPE);
		errno = 0;
		CHECK(fgetc(stream) == EOF && errno == EINVAL);
		clearerr(stream);
		CHECK(fputc('x', stream) == EOF || fflush(stream) == EOF);
		CHECK(errno == EINVAL);
		fclose(stream);
	}
	CHECK(!close(other) && !close(pipes[0]) && !close(pipes[1]));
}

static void memory(uint64_t id)
{
	int fd = mem_open(id, O_RDONLY), pipes[2];
	char *map = mmap(NULL, SIZE, PROT_READ, MAP_SHARED, fd, 0), copy[8];
	struct iovec region = { .iov_base = map, .iov_len = 8 }, local = { .iov_base = copy, .iov_len = 8 };

	CHECK(map != MAP_FAILED && !pipe(pipes));
	REFUSED(mprotect(map, SIZE, PROT_READ | PROT_WRITE), EACCES);
	REFUSED(pkey_mprotect(map, SIZE, PROT_READ | PROT_WRITE, -1), EACCES);
	REFUSED(syscall(SYS_pkey_mprotect, map, SIZE, PROT_READ | PROT_WRITE, -1), EACCES);
	CHECK(posix_madvise(map, SIZE, POSIX_MADV_WILLNEED) == 0);
	REFUSED(remap_file_pages(map, 4096, 0, 1, 0), EINVAL);
	REFUSED(vmsplice(pipes[1], &region, 1, 0), EFAULT);
	REFUSED(process_vm_readv(getpid(), &local, 1, &region, 1, 0), EFAULT);
	REFUSED(syscall(SYS_futex, map, 1, 1, NULL, NULL, 0), EFAULT);
	{
		uint64_t waiter[3] = { 0, (uintptr_t)map, 2 };

		REFUSED(syscall(449, waiter, 1, 0, NULL, 0), EFAULT); /* futex_waitv */
		REFUSED(syscall(454, map, ~0UL, 1, 2), EFAULT);	      /* futex_wake */
		REFUSED(syscall(455, map, 1UL, ~0UL, 2, NULL, 0), EFAULT); /* futex_wait */
	}
	CHECK(map[100] == 0 && !munmap(map, SIZE) && !close(fd) && !close(pipes[0]) && !close(pipes[1]));
}

int main(void)
{
	char own[64], folder[] = "/tmp/obmm-table-XXXXXX", alias[64], below[96], text[128];
	struct mem_desc desc;
	uint64_t id = mem_export(SIZE, &desc);
	int fd;

	CHECK(id && mkdtemp(folder));
	names("/dev/obmm");
	names("/dev/../dev/./obmm");
	names("//dev//obmm");
	contents("/dev/obmm");
	numbers("/dev/obmm");

	/* ways that a kernel resolves */
	snprintf(alias, sizeof(alias), "%s/alias", folder);
	snprintf(below, sizeof(below), "%s/dev", folder);
	CHECK(!symlink("/dev/obmm", alias) && !symlink("../../dev", below));
	contents(alias);
	numbers(alias);
	snprintf(below, sizeof(below), "%s/dev/obmm", folder);
	contents(below);
	names(below);
	REFUSED(mkdir("/dev/obmm/below", 0700), ENOTDIR);
	REFUSED(mkdir("/dev/obmm_shmdev77", 0700), EPERM);
	REFUSED(rename("/etc/hostname", "/dev/obmm_shmdev77"), EPERM);
	REFUSED(unlink("/dev/obmm_shmdev77"), ENOENT);
	REFUSED(truncate("/dev/obmm_shmdev77", 0), ENOENT);
	REFUSED(open("/dev/obmm/", O_RDONLY), ENOTDIR);
	REFUSED(open("/dev/obmm/.", O_RDONLY), ENOTDIR);
	REFUSED(open("/dev/obmm/../null", O_RDONLY), ENOTDIR);
	REFUSED(open("/dev/obmm-none/../obmm", O_RDONLY), ENOENT);
	REFUSED(open("/etc/passwd/../../dev/obmm", O_RDONLY), ENOTDIR);
	REFUSED(open(alias, O_RDWR | O_NOFOLLOW), ELOOP);
	CHECK(readlink(alias, text, sizeof(text)) == 9);
	CHECK(!unlink(alias)); /* the link is this machine's own */
	REFUSED(open("/sys/devices/obmm/new", O_CREAT | O_WRONLY, 0600), EACCES);
	REFUSED(open("/proc/devices/", O_RDONLY), ENOTDIR);

	fd = open("/dev/obmm", O_RDWR);
	snprintf(own, sizeof(own), "/proc/self/fd/%d", fd);
	CHECK(readlink(own, text, sizeof(text)) == 9 && !memcmp(text, "/dev/obmm", 9));
	CHECK(readlink(own, text, 4) == 4 && !memcmp(text, "/dev", 4));
	contents(own);
	snprintf(own, sizeof(own), "/dev/fd/%d", fd);
	contents(own);
	numbers(own);
	descriptor(fd);
	CHECK(!close(fd));
	memory(id);
	CHECK(!mem_unexport(id));
	snprintf(below, sizeof(below), "%s/dev", folder);
	CHECK(!unlink(below) && !rmdir(folder));
	puts("table ok");
	return 0;
}
