/* SPDX-License-Identifier: Apache-2.0 */
/* Other ways to the same memory and the same files: calls that copy, keep pages, pass descriptors on, look from outside. */
#include "storm.h"

#include <fcntl.h>
#include <linux/futex.h>
#include <signal.h>
#include <stdio.h>
#include <sys/epoll.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/ptrace.h>
#include <sys/sendfile.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static void keep_pages(struct dice *dice)
{
	struct iovec piece;
	char bytes[PAGE];
	int ends[2];

	piece.iov_base = place(dice, &piece.iov_len);
	if (pipe2(ends, O_NONBLOCK))
		return;
	if (vmsplice(ends[1], &piece, 1, SPLICE_F_NONBLOCK | (below(dice, 2) ? SPLICE_F_GIFT : 0)) > 0)
		(void)!read(ends[0], bytes, sizeof(bytes));
	close(ends[0]);
	close(ends[1]);
}

static void wait_on(struct dice *dice)
{
	static const int operations[] = { FUTEX_WAIT, FUTEX_WAKE, FUTEX_TRYLOCK_PI, FUTEX_UNLOCK_PI,
					  FUTEX_REQUEUE, FUTEX_WAIT | FUTEX_PRIVATE_FLAG };
	const struct timespec soon = { 0, 1000000 };
	size_t length;
	char *at = place(dice, &length);
	int operation = operations[below(dice, sizeof(operations) / sizeof(*operations))];

	syscall(SYS_futex, at, operation, 0, operation == FUTEX_REQUEUE ? (void *)1 : (void *)&soon, at + 64, 0);
}

static void other_memory(struct dice *dice)
{
	char bytes[256];
	struct iovec here = { bytes, sizeof(bytes) }, there;
	pid_t pid = below(dice, 2) ? getpid() : atomic_load(&board->pids[below(dice, WORKERS)]);
	char path[32];
	int fd;

	there.iov_base = place(dice, &there.iov_len);
	switch (below(dice, 4)) {
	case 0:
		process_vm_readv(pid, &here, 1, &there, 1, 0);
		break;
	case 1:
		process_vm_writev(pid, &here, 1, &there, 1, 0);
		break;
	default:
		snprintf(path, sizeof(path), "/proc/%d/mem", pid);
		fd = open(path, O_RDWR | O_CLOEXEC);
		if (fd < 0)
			return;
		if (below(dice, 2))
			(void)!pread(fd, bytes, sizeof(bytes), (off_t)(uintptr_t)there.iov_base);
		else if (there.iov_base >= (void *)arena && there.iov_base < (void *)(arena + ARENA))
			(void)!pwrite(fd, bytes, sizeof(bytes), (off_t)(uintptr_t)there.iov_base);
		close(fd);
	}
}

/* The kernel reads and writes the arena for an ordinary file. */
static void copies(struct dice *dice)
{
	int ends[2];
	size_t length;
	void *at = place(dice, &length);

	if (length > CHUNK)
		length = CHUNK;
	if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, ends))
		return;
	(void)!write(ends[0], at, length);
	at = place(dice, &length);
	if (at >= (void *)arena && at < (void *)(arena + ARENA))
		(void)!read(ends[1], at, length < CHUNK ? length : CHUNK);
	close(ends[0]);
	close(ends[1]);
}

static void looks(struct dice *dice)
{
	static const char *const files[] = { "maps", "smaps", "smaps_rollup", "numa_maps", "pagemap", "stack", "fdinfo/3" };
	char path[64], text[4096];
	int pid = atomic_load(&board->pids[below(dice, WORKERS)]);
	int fd;

	snprintf(path, sizeof(path), "/proc/%d/%s", pid, files[below(dice, sizeof(files) / sizeof(*files))]);
	fd = open(path, O_RDONLY | O_CLOEXEC);
	if (fd >= 0) {
		for (int i = 0; i < 64 && read(fd, text, sizeof(text)) > 0; i++)
			;
		(void)!pread(fd, text, sizeof(text), (off_t)((uintptr_t)arena / PAGE * 8)); /* of pagemap */
		close(fd);
	}
	snprintf(path, sizeof(path), "/proc/%d/clear_refs", pid);
	write_text(path, "%d", (int)below(dice, 6));
}

static void file_calls(struct dice *dice)
{
	int fd = node(dice), other = node(dice), ends[2];
	struct epoll_event event = { EPOLLIN, { 0 } };
	size_t length;
	void *at = place(dice, &length);
	off_t offset = 0;

	switch (below(dice, 16)) {
	case 0:
		(void)!read(fd, at, PAGE);
		break;
	case 1:
		(void)!write(fd, at, PAGE);
		break;
	case 2:
		sendfile(other, fd, &offset, PAGE);
		break;
	case 3:
		if (pipe(ends))
			break;
		splice(fd, NULL, ends[1], NULL, PAGE, SPLICE_F_NONBLOCK);
		splice(ends[0], NULL, fd, NULL, PAGE, SPLICE_F_NONBLOCK);
		close(ends[0]);
		close(ends[1]);
		break;
	case 4:
		copy_file_range(fd, NULL, other, NULL, PAGE, 0);
		break;
	case 5:
		fsync(fd);
		(void)!ftruncate(fd, (off_t)CHUNK);
		break;
	case 6:
		fallocate(fd, (int)below(dice, 4), 0, (off_t)CHUNK);
		break;
	case 7:
		posix_fadvise(fd, 0, (off_t)CHUNK, (int)below(dice, 6));
		readahead(fd, 0, CHUNK);
		sync_file_range(fd, 0, CHUNK, 7);
		break;
	case 8:
		flock(fd, LOCK_SH | LOCK_NB);
		flock(fd, LOCK_UN);
		fcntl(fd, F_SETLEASE, below(dice, 3));
		break;
	case 9:
		fcntl(fd, F_SETFL, (int)PICK(dice, 0, O_ASYNC, O_NONBLOCK, O_DIRECT, O_APPEND));
		break;
	case 10:
		other = epoll_create1(EPOLL_CLOEXEC);
		epoll_ctl(other, EPOLL_CTL_ADD, fd, &event);
		close(other);
		break;
	case 11:
		lseek(fd, (off_t)roll(dice), (int)below(dice, 5));
		break;
	case 12:
		syscall(SYS_io_uring_setup, 4, at);
		break;
	default:
		keep(dice, dup(fd));
	}
}

/* A descriptor in a message that is never read: closed by the collector of sockets. */
static void pass_on(struct dice *dice)
{
	char control[CMSG_SPACE(sizeof(int))] = { 0 };
	char byte = 0;
	struct iovec piece = { &byte, 1 };
	struct msghdr message = { .msg_iov = &piece, .msg_iovlen = 1, .msg_control = control,
				  .msg_controllen = sizeof(control) };
	struct cmsghdr *head = CMSG_FIRSTHDR(&message);
	int ends[2];

	if (socketpair(AF_UNIX, SOCK_DGRAM | SOCK_NONBLOCK, 0, ends))
		return;
	head->cmsg_level = SOL_SOCKET;
	head->cmsg_type = SCM_RIGHTS;
	head->cmsg_len = CMSG_LEN(sizeof(int));
	*(int *)CMSG_DATA(head) = node(dice);
	sendmsg(ends[0], &message, 0);
	close(ends[0]);
	close(ends[1]);
}

/* A child that has the open files and, as the driver has it, none of the mappings. */
static void fork_one(struct dice *dice)
{
	pid_t pid = fork();

	if (pid) {
		if (pid > 0 && !below(dice, 2))
			kill(pid, SIGKILL);
		return;
	}
	dice->state ^= (uint64_t)getpid() << 32;
	alarm(5);
	for (uint64_t i = below(dice, 40); i; i--) {
		if (below(dice, 2))
			driver_call(dice);
		else
			memory_call(dice);
	}
	if (!below(dice, 3))
		execl("/bin/busybox", "true", (char *)NULL);
	_exit(0);
}

/* A child is looked into by ptrace: its way to memory is the mapping's own. */
static void trace_one(struct dice *dice)
{
	size_t length;
	void *at = place(dice, &length);
	pid_t pid = fork();

	if (!pid) {
		alarm(5);
		for (;;)
			driver_call(dice);
	}
	if (pid < 0)
		return;
	if (!ptrace(PTRACE_SEIZE, pid, NULL, NULL) && !ptrace(PTRACE_INTERRUPT, pid, NULL, NULL) &&
	    waitpid(pid, NULL, __WALL) == pid) {
		ptrace(PTRACE_PEEKDATA, pid, at, NULL);
		ptrace(PTRACE_POKEDATA, pid, at, (void *)1);
	}
	kill(pid, SIGKILL);
}

void foreign_call(struct dice *dice)
{
	static void (*const calls[])(struct dice *) = {
		keep_pages, keep_pages, wait_on, wait_on, other_memory, other_memory, other_memory, copies, copies,
		looks, file_calls, file_calls, file_calls, file_calls, pass_on,
	};

	if (!below(dice, 400))
		trace_one(dice);
	else if (!below(dice, 100))
		fork_one(dice);
	else
		calls[below(dice, sizeof(calls) / sizeof(*calls))](dice);
}
