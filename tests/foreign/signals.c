/* SPDX-License-Identifier: Apache-2.0 */
/* Calls from a signal handler that interrupts calls, and a thread that is cancelled between them. */
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <unistd.h>

#include "check.h"
#include "mem.h"

static volatile sig_atomic_t hits;

static void handler(int number)
{
	int saved = errno, fd = open("/dev/obmm", O_RDWR);

	(void)number;
	if (fd < 0)
		_exit(3);
	close(fd);
	errno = saved;
	hits++;
}

static void *forever(void *unused)
{
	for (;;) {
		int fd = open("/dev/obmm", O_RDWR);

		usleep(10); /* where it is cancelled, with or without a request of its own behind it */
		close(fd);
	}
	return unused;
}

int main(void)
{
	struct sigaction action = { .sa_handler = handler };
	struct itimerval fast = { { 0, 300 }, { 0, 300 } }, off = { 0 };
	struct mem_desc desc;
	uint64_t id = mem_export(2UL << 20, &desc);
	pthread_t thread;
	int fd;

	CHECK(id);
	CHECK(!sigaction(SIGALRM, &action, NULL) && !setitimer(ITIMER_REAL, &fast, NULL));
	while (hits < 100) {
		char *map;

		fd = mem_open(id, O_RDWR);
		CHECK(fd >= 0);
		map = mmap(NULL, 2UL << 20, PROT_READ, MAP_SHARED, fd, 0);
		CHECK(map != MAP_FAILED && !munmap(map, 2UL << 20) && !close(fd));
	}
	CHECK(!setitimer(ITIMER_REAL, &off, NULL));

	for (int i = 0; i < 20; i++) {
		CHECK(!pthread_create(&thread, NULL, forever, NULL));
		usleep(1000);
		CHECK(!pthread_cancel(thread) && !pthread_join(thread, NULL));
		fd = mem_open(id, O_RDWR);
		CHECK(fd >= 0 && !close(fd));
	}
	CHECK(!mem_unexport(id));
	puts("signals ok");
	return 0;
}
