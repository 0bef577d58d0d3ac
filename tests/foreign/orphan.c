/* SPDX-License-Identifier: Apache-2.0 */
/* Maps a region, says so, waits for a byte, and unmaps: by then its node is gone. */
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include "check.h"
#include "mem.h"

#define SIZE (2UL << 20)

int main(void)
{
	struct mem_desc desc;
	uint64_t id = mem_export(SIZE, &desc);
	int fd = mem_open(id, O_RDWR);
	char *map[3], byte;

	for (int i = 0; i < 3; i++) {
		map[i] = mmap(NULL, SIZE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
		CHECK(map[i] != MAP_FAILED);
	}
	map[0][0] = 'x';
	puts("mapped");
	fflush(stdout);
	CHECK(read(0, &byte, 1) == 1);
	CHECK(!munmap(map[0], SIZE));
	CHECK(!munmap(map[1] + 4096, 8192)); /* a part of it */
	CHECK(mmap(map[2], 4096, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == map[2]);
	CHECK(msync(map[0], SIZE, MS_ASYNC) == -1 && errno == ENOMEM); /* really gone */
	REFUSED(mem_unexport(id), ESHUTDOWN);
	CHECK(!close(fd));
	puts("orphan ok");
	return 0;
}
