/* SPDX-License-Identifier: Apache-2.0 */
/* threads SOCKET NODE: the emulator's client from many threads at once, for the sanitizers. */
#include <fcntl.h>
#include <pthread.h>
#include <stdint.h>
#include <unistd.h>

#include "check.h"
#include "core/obmm_rw.h"

#define SIZE (2UL << 20)
#define ROUNDS 30

static struct obmm_sys *sys;
static uint64_t mem_id;

static void *work(void *socket_path)
{
	for (int i = 0; i < ROUNDS; i++) {
		struct obmm_sys *own;
		int fd = obmm_rw_shmdev_open(sys, mem_id, O_RDWR);
		void *map;

		CHECK(fd >= 0);
		CHECK(!obmm_rw_map(sys, fd, NULL, 0, SIZE, 3, 0, &map));
		CHECK(!obmm_rw_set_ownership(sys, fd, (uintptr_t)map + 4096, (uintptr_t)map + 8192,
					     OBMM_SHM_MEM_NORMAL | OBMM_SHM_MEM_READONLY, OBMM_SHM_CACHE_INFER));
		CHECK(!obmm_rw_unmap(sys, map, SIZE));
		CHECK(!obmm_rw_close(sys, fd));
		CHECK(!obmm_sys_emulator(socket_path, "a", &own));
		own->destroy(own);
	}
	return NULL;
}

int main(int argc, char **argv)
{
	struct obmm_cmd_export command = { .length = 1, .size = { SIZE }, .flags = OBMM_EXPORT_FLAG_ALLOW_MMAP };
	struct {
		uint64_t version, mask;
		uint8_t on_chip, zero[7];
	} vendor = { .mask = 1, .on_chip = 1 };
	pthread_t threads[4];
	int fd;

	CHECK(argc == 2 && !obmm_sys_emulator(argv[1], "a", &sys));
	fd = obmm_rw_open(sys);
	command.vendor_info = &vendor;
	command.vendor_len = sizeof(vendor);
	CHECK(fd >= 0 && !obmm_rw_export(sys, fd, &command));
	mem_id = command.mem_id;
	for (int i = 0; i < 4; i++)
		CHECK(!pthread_create(&threads[i], NULL, work, argv[1]));
	for (int i = 0; i < 4; i++)
		CHECK(!pthread_join(threads[i], NULL));
	CHECK(!obmm_rw_unexport(sys, fd, mem_id, 0) && !obmm_rw_close(sys, fd));
	sys->destroy(sys);
	puts("threads ok");
	return 0;
}
