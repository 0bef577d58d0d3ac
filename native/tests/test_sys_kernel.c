/* SPDX-License-Identifier: Apache-2.0 */
/* The kernel's table is libc, no more: tried on files that every Linux has. */
#include "test.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <unistd.h>

#include "../core/obmm_rw.h"

TEST(kernel_names_itself)
{
	struct obmm_sys *sys = obmm_sys_kernel();

	CHECK_STR(sys->name, "kernel");
	CHECK_STR(sys->root, "");
	sys->destroy(sys);
	CHECK_PTR(obmm_sys_kernel(), sys);
}

TEST(kernel_opens_and_closes)
{
	struct obmm_sys *sys = obmm_sys_kernel();
	int fd = sys->open(sys, "/dev/null", O_RDWR | O_CLOEXEC);

	REQUIRE(fd >= 0);
	CHECK_EQ(fcntl(fd, F_GETFD), FD_CLOEXEC);
	CHECK_EQ(obmm_rw_close(sys, fd), 0);
	CHECK_EQ(obmm_rw_close(sys, fd), -EBADF);
}

TEST(kernel_passes_the_request_and_its_argument)
{
	struct obmm_sys *sys = obmm_sys_kernel();
	int ends[2], readable = 0;

	/* a request that qemu-user knows too */
	REQUIRE(!pipe2(ends, O_CLOEXEC) && write(ends[1], "abc", 3) == 3);
	CHECK_EQ(obmm_rw_ioctl(sys, ends[0], FIONREAD, &readable), 0);
	CHECK_EQ(readable, 3);
	CHECK_EQ(obmm_rw_ioctl(sys, ends[0], FIONREAD, NULL), -EFAULT);
	CHECK_EQ(obmm_rw_ioctl(sys, -1, FIONREAD, &readable), -EBADF);
	obmm_rw_close(sys, ends[0]);
	obmm_rw_close(sys, ends[1]);
}

TEST(kernel_maps_at_offset_and_address)
{
	struct obmm_sys *sys = obmm_sys_kernel();
	size_t page = (size_t)sysconf(_SC_PAGESIZE);
	int fd = memfd_create("obmm-test", MFD_CLOEXEC);
	void *first, *second;

	REQUIRE(fd >= 0 && !ftruncate(fd, (off_t)(2 * page)));
	REQUIRE(pwrite(fd, "second", 7, (off_t)page) == 7);
	REQUIRE(obmm_rw_map(sys, fd, NULL, 0, 2 * page, PROT_READ, 0, &first) == 0);
	CHECK_STR((char *)first + page, "second");
	REQUIRE(obmm_rw_map(sys, fd, first, page, page, PROT_READ, 0, &second) == 0);
	CHECK_PTR(second, first);
	CHECK_STR(second, "second");
	CHECK_EQ(obmm_rw_unmap(sys, first, 2 * page), 0);
	CHECK_EQ(obmm_rw_unmap(sys, first, 0), -EINVAL);
	obmm_rw_close(sys, fd);
}

TEST(kernel_gets_bit_63_of_the_offset)
{
	struct obmm_sys *sys = obmm_sys_kernel();
	size_t page = (size_t)sysconf(_SC_PAGESIZE);
	int fd = memfd_create("obmm-test", MFD_CLOEXEC);
	void *out = NULL;
	int rc;

	REQUIRE(fd >= 0 && !ftruncate(fd, (off_t)page));
	/* at page offset 2^51 a regular file ends: whatever the answer, never a mapping of offset 0 */
	rc = obmm_rw_map(sys, fd, NULL, 0, page, PROT_READ, 1, &out);
	CHECK(rc == -EOVERFLOW || rc == -EINVAL);
	CHECK_PTR(out, NULL);
	obmm_rw_close(sys, fd);
}

static void *open_and_close(void *failures)
{
	struct obmm_sys *sys = obmm_sys_kernel();

	for (int i = 0; i < 200; i++) {
		int fd = sys->open(sys, "/dev/null", O_RDWR | O_CLOEXEC);

		if (fd < 0 || obmm_rw_close(sys, fd))
			__atomic_fetch_add((int *)failures, 1, __ATOMIC_RELAXED);
	}
	return NULL;
}

TEST(kernel_serves_threads)
{
	pthread_t threads[4];
	int failures = 0;

	for (int i = 0; i < 4; i++)
		REQUIRE(!pthread_create(&threads[i], NULL, open_and_close, &failures));
	for (int i = 0; i < 4; i++)
		pthread_join(threads[i], NULL);
	CHECK_EQ(failures, 0);
}
