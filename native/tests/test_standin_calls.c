/* SPDX-License-Identifier: Apache-2.0 */
/* The stand-in library as programs call it: threads, both modes, a daemon that ends and returns (SDK specification 5, 16). */
#include "test.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "../sdk_standin/standin.h"
#include "../sdk_standin/state.h"
#include "standin_nodes.h"

#define UNIT (1UL << 20)
#define SIZE (4 * UNIT)
#define THREADS 4
#define TURNS 8
#define KILLS 5

/*
 * Daemons are children of a process that has no threads, made before this one
 * has any.  It starts one per byte 's', kills it per byte 'k', and answers.
 */
static int keeper_in, keeper_out;

static void keep(int in, int out)
{
	pid_t child = 0;
	char order, folder[64];

	while (read(in, &order, 1) == 1) {
		if (order == 'k') {
			kill(child, SIGKILL);
			waitpid(child, NULL, 0);
			child = 0;
		} else {
			int ready[2], life[2];

			if (read(in, folder, sizeof(folder)) != sizeof(folder) || pipe(ready) || pipe(life))
				_exit(1);
			setenv("OBMM_SDK_STANDIN", folder, 1);
			child = fork();
			if (!child)
				_exit(ubsmem_standin_serve(folder, order == 'e', life[0], ready[1]) != 0);
			if (read(ready[0], folder, 6) != 6)
				_exit(1);
		}
		if (write(out, &order, 1) != 1)
			_exit(1);
	}
	if (child)
		kill(child, SIGKILL);
	_exit(0);
}

__attribute__((constructor)) static void start_keeper(void)
{
	int orders[2], answers[2];

	if (pipe(orders) || pipe(answers))
		abort();
	if (!fork()) {
		close(orders[1]);
		keep(orders[0], answers[1]);
	}
	close(orders[0]);
	keeper_in = orders[1];
	keeper_out = answers[0];
}

/* A daemon that is killed may have the lock. */
static int no_robust_mutexes(void)
{
	if (!getenv("OBMM_TEST_QEMU_USER"))
		return 0;
	puts("left out: qemu-user has no robust mutexes, the kernel has");
	return 1;
}

static void order(char what)
{
	char text[65] = { what }, answer;
	size_t size = what == 'k' ? 1 : sizeof(text);

	snprintf(text + 1, sizeof(text) - 1, "%s", getenv("OBMM_SDK_STANDIN"));
	REQUIRE(write(keeper_in, text, size) == (ssize_t)size);
	REQUIRE(read(keeper_out, &answer, 1) == 1 && answer == what);
}

static void begin(const char *mode)
{
	nodes_begin(UNIT);
	setenv("OBMM_SDK_STANDIN_MODE", mode, 1);
	setenv("OBMM_SDK_STANDIN_NODE", "b", 1);
	setenv("OBMM_SDK_STANDIN_SECOND_MS", "10", 1);
	if (!strcmp(mode, "daemon"))
		order('s');
	REQUIRE(!ubsmem_initialize((void *)1));
}

/* `lost`: units that may have been left by daemons killed right between making one and writing it down. */
static void end_after(const char *mode, int lost)
{
	CHECK_EQ(ubsmem_finalize(), 0);
	if (!strcmp(mode, "daemon"))
		order('k');
	CHECK_EQ(ubsmem_standin_destroy(getenv("OBMM_SDK_STANDIN")), 0);
	CHECK(nodes_end() <= lost);
}

static void end(const char *mode)
{
	end_after(mode, 0);
}

static void *cycles(void *number)
{
	char name[16];

	snprintf(name, sizeof(name), "t%d", (int)(intptr_t)number);
	for (int turn = 0; turn < TURNS; turn++) {
		uint32_t slot, count = 64;
		ubsmem_shmem_desc_t *list = calloc(count, sizeof(*list));
		ubsmem_shmem_info_t *info = calloc(1, sizeof(*info));
		char *memory, *lease;

		CHECK_EQ(ubsmem_shmem_allocate("default", name, SIZE, 0600, turn % 2 ? 0 : 1), 0);
		CHECK_EQ(ubsmem_shmem_map(NULL, SIZE, 3, MAP_SHARED, name, 0, (void **)&memory), 0);
		memory[0] = memory[SIZE - 1] = turn;
		CHECK_EQ(ubsmem_shmem_lookup(name, info), 0);
		CHECK_EQ(info->mem_num, SIZE / UNIT);
		CHECK_EQ(ubsmem_shmem_list_lookup("t", list, &count), 0);
		if (turn % 2) {
			CHECK_EQ(ubsmem_shmem_set_ownership(name, memory + UNIT - 4096, 8192, 1), 0);
		} else {
			CHECK_EQ(ubsmem_shmem_write_lock(name), 0);
			CHECK_EQ(ubsmem_shmem_unmap(memory, SIZE), UBSM_ERR_LOCK_ALREADY_LOCKED);
			CHECK_EQ(ubsmem_shmem_unlock(name), 0);
		}
		CHECK_EQ(ubsmem_local_nid_query(&slot), 0);
		CHECK_EQ(slot, 2);
		CHECK_EQ(ubsmem_lease_malloc("default", SIZE, 0, 0, (void **)&lease), 0);
		lease[0] = lease[SIZE - 1] = turn;
		CHECK_EQ(ubsmem_lease_free(lease), 0);
		CHECK_EQ(ubsmem_shmem_unmap(memory, SIZE), 0);
		CHECK_EQ(ubsmem_shmem_deallocate(name), 0);
		free(list);
		free(info);
	}
	return NULL;
}

static void in_threads(const char *mode)
{
	pthread_t threads[THREADS];

	begin(mode);
	for (intptr_t i = 0; i < THREADS; i++)
		REQUIRE(!pthread_create(&threads[i], NULL, cycles, (void *)i));
	for (int i = 0; i < THREADS; i++)
		pthread_join(threads[i], NULL);
	end(mode);
}

TEST(threads_through_a_daemon)
{
	if (!no_robust_mutexes())
		in_threads("daemon");
}

TEST(threads_in_process)
{
	in_threads("in-process");
}

static void costs(const char *mode, uint64_t trip)
{
	uint64_t before[2], after[2];
	void *memory;

	begin(mode);
	ubsmem_standin_counters(&before[0], &before[1]);
	CHECK_EQ(ubsmem_shmem_allocate("default", "x", SIZE, 0600, 0), 0);
	ubsmem_standin_counters(&after[0], &after[1]);
	CHECK_EQ(after[0] - before[0], 2 * trip);
	CHECK_EQ(after[1] - before[1], 0);
	CHECK_EQ(ubsmem_shmem_map(NULL, SIZE, 3, MAP_SHARED, "x", 0, &memory), 0);
	CHECK_EQ(ubsmem_shmem_unmap(memory, SIZE), 0);
	ubsmem_standin_counters(&before[0], &before[1]);
	CHECK_EQ(before[0] - after[0], 2 * trip);
	CHECK_EQ(before[1] - after[1], 3 * SIZE / UNIT + 3);
	CHECK_EQ(ubsmem_shmem_deallocate("x"), 0);
	ubsmem_standin_counters(&after[0], &after[1]);
	CHECK_EQ(after[0] - before[0], trip);
	end(mode);
}

TEST(section_12_costs_through_a_daemon)
{
	if (!no_robust_mutexes())
		costs("daemon", 1);
}

TEST(section_12_costs_in_process)
{
	costs("in-process", 0);
}

/* Calls until a daemon answers again. */
static void wait_for_daemon(void)
{
	uint32_t slot;

	while (ubsmem_local_nid_query(&slot) == UBSM_ERR_NET)
		usleep(1000);
}

TEST(a_mapping_and_a_lease_survive_the_daemon)
{
	uint64_t trips, more, calls;
	char *memory, *lease;
	uint32_t slot;

	if (no_robust_mutexes())
		return;
	begin("daemon");
	CHECK_EQ(ubsmem_shmem_allocate("default", "x", SIZE, 0600, 0), 0);
	CHECK_EQ(ubsmem_shmem_map(NULL, SIZE, 3, MAP_SHARED, "x", 0, (void **)&memory), 0);
	CHECK_EQ(ubsmem_lease_malloc("default", SIZE, 0, 0, (void **)&lease), 0);
	memory[SIZE - 1] = lease[SIZE - 1] = 7;
	order('k');
	while (ubsmem_local_nid_query(&slot) != UBSM_ERR_NET)
		;
	CHECK_EQ(ubsmem_shmem_unmap(memory, SIZE), UBSM_ERR_NET);
	CHECK_EQ(lease[SIZE - 1], 7);
	ubsmem_standin_counters(&trips, &calls);
	order('e');
	wait_for_daemon();
	ubsmem_standin_counters(&more, &calls);
	CHECK_EQ(more - trips, 3);
	CHECK_EQ(ubsmem_shmem_unmap(memory, SIZE), 0);
	CHECK_EQ(ubsmem_lease_free(lease), 0);
	CHECK_EQ(ubsmem_shmem_deallocate("x"), 0);
	end("daemon");
}

static atomic_int stop;

static void *restless(void *number)
{
	char name[16];
	char *memory;
	int done = 0;

	snprintf(name, sizeof(name), "r%d", (int)(intptr_t)number);
	while (!stop || !done) {
		done = 0;
		ubsmem_shmem_allocate("default", name, SIZE, 0600, 0);
		if (!ubsmem_shmem_map(NULL, SIZE, 3, MAP_SHARED, name, 0, (void **)&memory)) {
			memory[SIZE - 1] = 1;
			while (ubsmem_shmem_unmap(memory, SIZE) == UBSM_ERR_NET)
				wait_for_daemon();
		}
		done = !ubsmem_shmem_deallocate(name);
	}
	return NULL;
}

/* Whatever a call was doing when its daemon died, in the end nothing is left. */
TEST(daemons_die_under_threads_that_call)
{
	pthread_t threads[THREADS];

	if (no_robust_mutexes())
		return;
	begin("daemon");
	stop = 0;
	for (intptr_t i = 0; i < THREADS; i++)
		REQUIRE(!pthread_create(&threads[i], NULL, restless, (void *)i));
	for (int turn = 0; turn < KILLS; turn++) {
		usleep(20000);
		order('k');
		order('s');
	}
	stop = 1;
	for (int i = 0; i < THREADS; i++)
		pthread_join(threads[i], NULL);
	end_after("daemon", KILLS);
}

TEST(finalize_in_the_middle_of_calls)
{
	pthread_t threads[THREADS];

	for (int turn = 0; turn < 4; turn++) {
		const char *mode = turn % 2 ? "daemon" : "in-process";

		if (turn % 2 && no_robust_mutexes())
			continue;
		begin(mode);
		stop = 0;
		for (intptr_t i = 0; i < THREADS; i++)
			REQUIRE(!pthread_create(&threads[i], NULL, restless, (void *)i));
		for (int again = 0; again < 3; again++) {
			usleep(5000);
			CHECK_EQ(ubsmem_finalize(), 0);
			CHECK_EQ(ubsmem_initialize((void *)1), 0);
		}
		stop = 1;
		for (int i = 0; i < THREADS; i++)
			pthread_join(threads[i], NULL);
		end(mode);
	}
}

static atomic_int heard;

static int32_t hear(const char *name, uint32_t kind)
{
	if (!strcmp(name, "x") && kind == 15)
		heard++;
	return 0;
}

TEST(s13_faults_reach_the_callback)
{
	nodes_begin(UNIT);
	CHECK_EQ(ubsmem_shmem_faults_register(hear), 0);
	CHECK_EQ(ubsmem_shmem_faults_register(hear), 0);
	for (int i = 0; i < 10; i++)
		CHECK_EQ(ubsmem_standin_fire(getenv("OBMM_SDK_STANDIN"), "x", 15), 1);
	while (heard < 10)
		usleep(1000);
	CHECK_EQ(nodes_end(), 0);
}
