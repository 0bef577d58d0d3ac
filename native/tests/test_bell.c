/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <pthread.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "../core/bell.h"
#include "test.h"

TEST(a_bell_that_is_not_rung_ends_at_the_deadline)
{
	uint32_t bell = 7;

	CHECK_EQ(obmm_bell_wait(&bell, 7, 2000000), -ETIMEDOUT);
	CHECK_EQ(obmm_bell_wait(&bell, 7, 0), -ETIMEDOUT);
	CHECK_EQ(obmm_bell_wait(&bell, 7, -1), -ETIMEDOUT);
	CHECK_EQ(obmm_bell_wait(&bell, 6, 0), 0);
	obmm_bell_ring(&bell);
	CHECK_EQ(obmm_bell_count(&bell), 8);
	CHECK_EQ(obmm_bell_wait(&bell, 7, 1000000000), 0);
}

#define ROUNDS 20000

struct pair {
	uint32_t there, back;
	uint64_t data; /* plain: the bells order it */
};

static void *echo(void *arg)
{
	struct pair *pair = arg;

	for (uint32_t i = 0; i < ROUNDS; i++) {
		while (obmm_bell_count(&pair->there) == i)
			obmm_bell_wait(&pair->there, i, 1000000000);
		pair->data++;
		obmm_bell_ring(&pair->back);
	}
	return NULL;
}

TEST(what_was_written_before_a_ring_is_seen_after_it)
{
	struct pair pair = { 0 };
	pthread_t thread;

	REQUIRE(!pthread_create(&thread, NULL, echo, &pair));
	for (uint32_t i = 0; i < ROUNDS; i++) {
		pair.data = 2 * i;
		obmm_bell_ring(&pair.there);
		while (obmm_bell_count(&pair.back) == i)
			obmm_bell_wait(&pair.back, i, 1000000000);
		CHECK_EQ(pair.data, 2 * i + 1);
	}
	pthread_join(thread, NULL);
}

TEST(another_process_waits_on_memory_that_it_may_only_read)
{
	int memory = memfd_create("bell", 0), status;
	uint32_t *bell, *seen;
	pid_t child;

	REQUIRE(!ftruncate(memory, 4096));
	bell = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, memory, 0);
	REQUIRE(bell != MAP_FAILED);
	child = fork();
	if (!child) {
		seen = mmap(NULL, 4096, PROT_READ, MAP_SHARED, memory, 0);
		while (obmm_bell_count(seen) == 0)
			if (obmm_bell_wait(seen, 0, 20000000000) == -ETIMEDOUT)
				_exit(1);
		_exit(0);
	}
	obmm_bell_ring(bell);
	CHECK_EQ(waitpid(child, &status, 0), child);
	CHECK_EQ(status, 0);
	munmap(bell, 4096);
	close(memory);
}
