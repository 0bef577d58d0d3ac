/* SPDX-License-Identifier: Apache-2.0 */
/* One process exports, maps, owns, forks and cleans up. */
#include <fcntl.h>
#include <poll.h>
#include <setjmp.h>
#include <signal.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <sys/wait.h>
#include <unistd.h>

#include "abi/obmm_abi.h"
#include "check.h"
#include "mem.h"

#define SIZE (4UL << 20)
#define BLOCK (2UL << 20)

static sigjmp_buf landing;

static void handler(int number)
{
	siglongjmp(landing, number);
}

static int faults(volatile char *address, int store)
{
	int number = sigsetjmp(landing, 1);

	if (number)
		return number;
	if (store)
		*address = 1;
	else
		(void)*address;
	return 0;
}

static void node_files(uint64_t id)
{
	char path[64], text[64];
	struct stat st;

	snprintf(path, sizeof(path), "/dev/obmm_shmdev%llu", (unsigned long long)id);
	CHECK(!stat("/dev/obmm", &st) && S_ISCHR(st.st_mode) && major(st.st_rdev) == 10);
	CHECK(!stat(path, &st) && S_ISCHR(st.st_mode) && minor(st.st_rdev) == id && (st.st_mode & 0777) == 0600);
	CHECK(!access(path, R_OK | W_OK));
	REFUSED(access("/dev/obmm_shmdev999", F_OK), ENOENT);
	CHECK(!mem_attribute(id, "size", text, sizeof(text)) && strtoul(text, NULL, 0) == SIZE);
	CHECK(!mem_attribute(id, "type", text, sizeof(text)) && !strcmp(text, "export"));
	CHECK(!mem_attribute(id, "allow_mmap", text, sizeof(text)) && !strcmp(text, "1"));
}

static void open_file(int fd, uint64_t id)
{
	struct pollfd poller = { .fd = fd, .events = POLLIN | POLLOUT };
	struct stat st;
	char byte;

	CHECK(!fstat(fd, &st) && S_ISCHR(st.st_mode) && minor(st.st_rdev) == id && st.st_size == 0);
	CHECK((fcntl(fd, F_GETFL) & O_ACCMODE) == O_RDWR);
	CHECK(poll(&poller, 1, 0) == 1 && poller.revents == (POLLIN | POLLOUT));
	REFUSED(read(fd, &byte, 1), EINVAL);
	REFUSED(write(fd, &byte, 1), EINVAL);
	REFUSED(lseek(fd, 0, SEEK_SET), ESPIPE);
	REFUSED(fsync(fd), EINVAL);
	REFUSED(ftruncate(fd, 0), EINVAL);
	REFUSED(ioctl(fd, 0x12345678, NULL), ENOTTY);
}

static void ownership(int fd, char *map)
{
	CHECK(!mem_set_ownership(fd, map, SIZE, PROT_READ));
	CHECK(faults(map, 0) == 0 && faults(map, 1) == SIGSEGV);
	CHECK(!mem_set_ownership(fd, map, 4096, PROT_NONE));
	CHECK(faults(map, 0) == SIGSEGV && faults(map + 4096, 0) == 0);
	CHECK(!mem_set_ownership(fd, map, SIZE, PROT_READ | PROT_WRITE));
	CHECK(faults(map, 1) == 0);
	REFUSED(mprotect(map, SIZE, PROT_READ), EOPNOTSUPP);
	REFUSED(madvise(map, SIZE, MADV_DONTNEED), EINVAL);
	CHECK(!madvise(map, SIZE, MADV_WILLNEED));
	REFUSED(msync(map, SIZE, MS_SYNC), EINVAL);
	REFUSED(mremap(map, SIZE, 2 * SIZE, MREMAP_MAYMOVE), EFAULT);
}

static void in_a_child(int fd, char *map, uint64_t id)
{
	pid_t child = fork();
	int status;

	CHECK(child >= 0);
	if (!child) {
		char *own;

		/* regions are not inherited, descriptors are */
		CHECK(faults(map, 0) == SIGSEGV);
		own = mmap(NULL, SIZE, PROT_READ, MAP_SHARED, fd, 0);
		CHECK(own != MAP_FAILED && !strcmp(own + 100, "written by the parent"));
		REFUSED(mem_unexport(id), EBUSY);
		_exit(0);
	}
	CHECK(waitpid(child, &status, 0) == child && status == 0);
}

int main(void)
{
	struct sigaction action = { .sa_handler = handler };
	struct mem_desc desc;
	uint64_t id, blocks;
	char *map, *part;
	int fd, second;

	sigaction(SIGSEGV, &action, NULL);
	sigaction(SIGBUS, &action, NULL);
	id = mem_export(SIZE, &desc);
	CHECK(id);
	node_files(id);
	fd = mem_open(id, O_RDWR);
	CHECK(fd >= 0);
	open_file(fd, id);
	map = mmap(NULL, SIZE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	CHECK(map != MAP_FAILED);
	for (size_t i = 0; i < SIZE; i += 4096)
		CHECK(map[i] == 0);
	strcpy(map + 100, "written by the parent");
	ownership(fd, map);
	in_a_child(fd, map, id);

	/* other memory replaces a page of the mapping */
	CHECK(mmap(map + 8192, 4096, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == map + 8192);
	REFUSED(mem_set_ownership(fd, map, SIZE, PROT_READ), EFAULT);

	second = dup(fd);
	CHECK(second >= 0 && !close(fd));
	CHECK(!munmap(map, SIZE));
	CHECK(faults(map, 0) == SIGSEGV);
	REFUSED(mem_unexport(id), EBUSY);
	CHECK(!close(second));
	CHECK(!mem_unexport(id));

	blocks = mem_export(SIZE, &desc);
	CHECK(blocks == id);
	fd = mem_open(blocks, O_RDWR);
	map = mmap(NULL, SIZE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, (off_t)OBMM_MMAP_FLAG_HUGETLB_PMD);
	CHECK(map != MAP_FAILED && (uintptr_t)map % BLOCK == 0);
	part = mmap(NULL, BLOCK, PROT_READ, MAP_SHARED, fd, (off_t)(OBMM_MMAP_FLAG_HUGETLB_PMD | BLOCK));
	CHECK(part != MAP_FAILED);
	map[BLOCK] = 42;
	CHECK(part[0] == 42);
	REFUSED(mmap(NULL, SIZE, PROT_READ, MAP_SHARED, fd, 0), EPERM);
	REFUSED(munmap(map, 4096), EINVAL);
	CHECK(!munmap(map, SIZE) && !munmap(part, BLOCK) && !close(fd) && !mem_unexport(blocks));
	puts("loopback ok");
	return 0;
}
