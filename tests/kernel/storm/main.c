/* SPDX-License-Identifier: Apache-2.0 */
/*
 * storm MODULE.ko SECONDS SEED: four workers, one of them killed every now and then, the module loaded afresh now and then.
 *
 * Exit status 0: every call ended, every region could be removed, the module could be unloaded each time, and its memory
 * came back.  The kernel's own complaints are the host's to find.
 */
#include "storm.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define RELOAD_S 10
#define STUCK_S 60 /* no call of a worker ended for so long */
#define SLACK_KIB (24 << 10)

struct board *board;

static struct dice dice;
static unsigned long kills, reloads;

static double now(void)
{
	struct timespec time;

	clock_gettime(CLOCK_MONOTONIC, &time);
	return (double)time.tv_sec + (double)time.tv_nsec / 1e9;
}

static void start(int index)
{
	uint64_t seed = roll(&dice);
	pid_t pid = fork();

	if (!pid)
		work(index, seed);
	if (pid > 0)
		setpgid(pid, pid);
	atomic_store(&board->pids[index], pid);
}

/* The worker with all its children, by kill -9. */
static void end(int index)
{
	pid_t pid = atomic_load(&board->pids[index]);

	kill(-pid, SIGKILL);
	kill(pid, SIGKILL);
	waitpid(pid, NULL, 0);
}

/* ---- the module ---- */

static bool load(const char *module)
{
	const char *words = roll(&dice) & 1 ? "topology=A" : "topology=B";
	int fd = open(module, O_RDONLY | O_CLOEXEC);
	long result = syscall(SYS_finit_module, fd, words, 0);

	if (result)
		perror("storm: loading the module");
	close(fd);
	return !result;
}

/* Remove every region there is: how many stayed. */
static int remove_regions(void)
{
	int left = 0, control = open(OBMM_DEV_PATH, O_RDWR | O_CLOEXEC);
	DIR *dir = opendir("/sys/devices/obmm");
	struct obmm_cmd_unexport cmd;
	struct dirent *entry;

	while (dir && (entry = readdir(dir))) {
		memset(&cmd, 0, sizeof(cmd));
		if (sscanf(entry->d_name, "obmm_shmdev%lu", &cmd.mem_id) != 1)
			continue;
		if (ioctl(control, OBMM_CMD_UNEXPORT, &cmd) && ioctl(control, OBMM_CMD_UNIMPORT, &cmd)) {
			printf("storm: region %lu: %s\n", cmd.mem_id, strerror(errno));
			left++;
		}
	}
	if (dir)
		closedir(dir);
	close(control);
	return left;
}

static bool unload(void)
{
	int status;

	for (int i = 0; i < WORKERS; i++)
		end(i);
	while (waitpid(-1, &status, 0) > 0) /* children of workers come to their subreaper */
		;
	write_text(DEBUG_FOLDER "inject", "reset");
	if (remove_regions())
		return false;
	if (syscall(SYS_delete_module, "obmm_sim", O_NONBLOCK)) {
		perror("storm: unloading the module");
		return false;
	}
	return true;
}

/* ---- verdicts ---- */

static long available_kib(void)
{
	char line[128];
	long kib = 0;
	FILE *file;

	write_text("/proc/sys/vm/drop_caches", "3");
	file = fopen("/proc/meminfo", "r");
	while (file && fgets(line, sizeof(line), file))
		if (sscanf(line, "MemAvailable: %ld", &kib) == 1)
			break;
	if (file)
		fclose(file);
	return kib;
}

static unsigned long all_calls(void)
{
	unsigned long sum = 0;

	for (int i = 0; i < WORKERS; i++)
		sum += atomic_load(&board->calls[i]);
	return sum;
}

static void show_stacks(pid_t pid)
{
	char path[64], text[2048];
	ssize_t n;
	int fd;

	for (int i = 0; i < THREADS; i++) {
		snprintf(path, sizeof(path), "/proc/%d/task/%d/stack", pid, pid + i);
		fd = open(path, O_RDONLY);
		n = fd < 0 ? 0 : read(fd, text, sizeof(text));
		if (n > 0)
			printf("%s\n%.*s", path, (int)n, text);
		if (fd >= 0)
			close(fd);
	}
}

static bool all_done(void)
{
	static const char *const names[DEEDS] = { "exported", "imported", "removed", "opened", "mapped", "owned",
						  "touched", "cut" };
	bool all = true;

	printf("storm:");
	for (int i = 0; i < DEEDS; i++) {
		unsigned long times = atomic_load(&board->done[i]);

		printf(" %s %lu", names[i], times);
		all = all && times;
	}
	printf("\n");
	return all;
}

/* Whether each worker has made a call since its last look that was not too long ago. */
static bool moving(void)
{
	static unsigned long seen[WORKERS];
	static double when[WORKERS];

	for (int i = 0; i < WORKERS; i++) {
		unsigned long calls = atomic_load(&board->calls[i]);

		if (calls != seen[i] || when[i] == 0) {
			seen[i] = calls;
			when[i] = now();
		} else if (now() - when[i] > STUCK_S) {
			printf("storm: worker %d is stuck after %lu calls\n", i, calls);
			show_stacks(atomic_load(&board->pids[i]));
			return false;
		}
	}
	return true;
}

static void replace_the_dead(void)
{
	pid_t pid;

	while ((pid = waitpid(-1, NULL, WNOHANG)) > 0)
		for (int i = 0; i < WORKERS; i++)
			if (atomic_load(&board->pids[i]) == pid)
				start(i);
}

static bool storm(const char *module, double seconds)
{
	const struct timespec pause = { 0, 50000000 };
	double began = now(), reloaded = began;
	long first = 0, last;

	for (int i = 0; i < WORKERS; i++)
		start(i);
	for (;;) {
		bool done = now() - began > seconds;

		nanosleep(&pause, NULL);
		replace_the_dead();
		if (!moving())
			return false;
		if (done || now() - reloaded > RELOAD_S) {
			if (!unload())
				return false;
			last = available_kib();
			first = first ? first : last;
			printf("storm: %.0f s, %lu calls, %lu signals, %lu killed, %lu reloads, %ld MiB free\n", now() - began,
			       all_calls(), atomic_load(&board->faults), kills, reloads, last >> 10);
			fflush(stdout);
			if (first - last > SLACK_KIB) {
				printf("storm: %ld KiB did not come back\n", first - last);
				return false;
			}
			if (done)
				return all_done();
			if (!load(module))
				return false;
			reloads++;
			for (int i = 0; i < WORKERS; i++)
				start(i);
			reloaded = now();
		} else if (!below(&dice, 10)) {
			int index = (int)below(&dice, WORKERS);

			end(index);
			kills++;
			start(index);
		}
	}
}

int main(int argc, char **argv)
{
	bool good;

	if (argc != 4) {
		fprintf(stderr, "usage: storm MODULE.ko SECONDS SEED\n");
		return 2;
	}
	dice.state = strtoull(argv[3], NULL, 0);
	board = mmap(NULL, sizeof(*board), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	prctl(PR_SET_CHILD_SUBREAPER, 1);
	write_text("/proc/self/oom_score_adj", "-1000");
	good = load(argv[1]) && races() && storm(argv[1], atof(argv[2]));
	if (!good)
		for (int i = 0; i < WORKERS; i++)
			if (atomic_load(&board->pids[i]) > 0)
				kill(-atomic_load(&board->pids[i]), SIGKILL);
	return !good;
}
