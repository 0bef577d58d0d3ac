/* SPDX-License-Identifier: Apache-2.0 */
/* What the C tests of guarded copies and gathers share: checks, child processes, memory that can fault. */
#ifndef OBMM_TEST_COPY_H
#define OBMM_TEST_COPY_H

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#define CHECK(condition)                                                                  \
	do {                                                                              \
		if (!(condition)) {                                                       \
			fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #condition);   \
			exit(1);                                                          \
		}                                                                         \
	} while (0)

/* The sanitizers' own fault handlers would answer in place of the default action. */
const char *__asan_default_options(void);
const char *__tsan_default_options(void);
__attribute__((visibility("default"), used)) const char *__asan_default_options(void)
{
	return "handle_segv=0:handle_sigbus=0:detect_stack_use_after_return=0";
}
__attribute__((visibility("default"), used)) const char *__tsan_default_options(void)
{
	return "handle_segv=0:handle_sigbus=0:die_after_fork=0";
}

/* Run fn in a child; its wait status. */
static inline int in_child(void (*fn)(void))
{
	int status;
	pid_t pid = fork();

	if (!pid) {
		fn();
		_exit(0);
	}
	CHECK(pid > 0);
	CHECK(waitpid(pid, &status, 0) == pid);
	return status;
}

/* Shared memory whose file can be cut short under the mapping: that is a SIGBUS. */
static inline uint8_t *map_memfd(size_t length, int *fd)
{
	void *base;

	*fd = memfd_create("obmm-test", MFD_CLOEXEC);
	CHECK(*fd >= 0);
	CHECK(!ftruncate(*fd, (off_t)length));
	base = mmap(NULL, length, PROT_READ | PROT_WRITE, MAP_SHARED, *fd, 0);
	CHECK(base != MAP_FAILED);
	return base;
}

#endif
