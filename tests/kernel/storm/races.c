/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Threads that meet at the first touch of a block: one of them maps it, and the
 * other must not take the block for a table of pages, whose entries would then
 * be written into the region's own bytes.
 */
#include "storm.h"

#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <unistd.h>

#define MEETINGS 400

static char *_Atomic at;
static atomic_int round_, arrived;

/* What every thread does with block number `round_`: reads its own word. */
static void meet(int round, int thread)
{
	for (int spins = 0; atomic_load(&round_) != round; spins++) {
		if (atomic_load(&round_) < 0)
			return;
		if (spins > 20000) /* the other one has no processor */
			sched_yield();
	}
	(void)*(volatile uint64_t *)(atomic_load(&at) + thread * PAGE);
	atomic_fetch_add(&arrived, 1);
}

static void *other(void *unused)
{
	(void)unused;
	for (int round = 1; round <= MEETINGS; round++)
		meet(round, 1);
	return NULL;
}

static size_t words_that_are_not_zero(const char *bytes)
{
	size_t found = 0;

	for (size_t i = 0; i < CHUNK; i += 8)
		found += *(const uint64_t *)(bytes + i) != 0;
	return found;
}

static bool meet_often(int fd)
{
	pthread_t thread;
	size_t wrong = 0;

	if (pthread_create(&thread, NULL, other, NULL))
		return false;
	for (int round = 1; round <= MEETINGS && !wrong; round++) {
		void *map = mmap(NULL, CHUNK, PROT_READ | PROT_WRITE, MAP_SHARED, fd, (off_t)OBMM_MMAP_FLAG_HUGETLB_PMD);

		if (map == MAP_FAILED) {
			perror("storm: mapping a block");
			wrong = 1;
			break;
		}
		atomic_store(&at, map);
		atomic_store(&arrived, 0);
		atomic_store(&round_, round);
		meet(round, 0);
		while (atomic_load(&arrived) != 2)
			sched_yield();
		if (round % 8 == 0 || round == MEETINGS)
			wrong = words_that_are_not_zero(map);
		munmap(map, CHUNK);
	}
	atomic_store(&round_, -1);
	pthread_join(thread, NULL);
	if (wrong)
		printf("storm: %zu words of a block changed without a writer\n", wrong);
	return !wrong;
}

bool races(void)
{
	struct obmm_cmd_export cmd;
	struct obmm_cmd_unexport end = { 0 };
	char path[64];
	bool good;
	int fd, control = open(OBMM_DEV_PATH, O_RDWR | O_CLOEXEC);

	memset(&cmd, 0, sizeof(cmd));
	cmd.size[0] = CHUNK;
	cmd.length = 1;
	cmd.flags = OBMM_EXPORT_FLAG_ALLOW_MMAP;
	if (ioctl(control, OBMM_CMD_EXPORT, &cmd)) {
		perror("storm: exporting");
		return false;
	}
	snprintf(path, sizeof(path), OBMM_SHMDEV_PREFIX "%lu", cmd.mem_id);
	fd = open(path, O_RDWR | O_CLOEXEC);
	good = meet_often(fd);
	close(fd);
	end.mem_id = cmd.mem_id;
	good = !ioctl(control, OBMM_CMD_UNEXPORT, &end) && good;
	close(control);
	return good;
}
