/* SPDX-License-Identifier: Apache-2.0 */
/* What root does while programs run: the module's debug files, attributes, nodes elsewhere. */
#include "storm.h"

#include <dirent.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <unistd.h>

void write_text(const char *path, const char *format, ...)
{
	char text[128];
	int fd = open(path, O_WRONLY | O_CLOEXEC);
	va_list args;
	int n;

	if (fd < 0)
		return;
	va_start(args, format);
	n = vsnprintf(text, sizeof(text), format, args);
	va_end(args);
	(void)!write(fd, text, (size_t)n);
	close(fd);
}

/* Small values: a call that waits for seconds would be no storm. */
static void inject(struct dice *dice)
{
	static const char *const names[] = { "flush_err", "flush_skip", "flush_busy", "flush_sleep", "drain_state",
					     "tdev_fail", "tdev_free_err", "tid_min", "tid_max", "map_err", "alloc_fail",
					     "alloc_limit", "lin_err", "split_err", "split_skip", "remap_err", "blocker",
					     "nothing" };

	write_text(DEBUG_FOLDER "inject", "%s %d", names[below(dice, sizeof(names) / sizeof(*names))],
		   (int)below(dice, 4) - 1);
	if (below(dice, 8))
		write_text(DEBUG_FOLDER "inject", "reset");
}

static void decode(struct dice *dice)
{
	write_text(DEBUG_FOLDER "decoder", "%#llx %#llx %d",
		   (unsigned long long)PICK(dice, 0xa0000000, 0xa0200000, 0xc0000000, 0xd0000000, 0x5000000000),
		   (unsigned long long)(below(dice, 4) * CHUNK), (int)below(dice, 6));
}

static void fail_memory(struct dice *dice)
{
	unsigned long start = below(dice, 4 * CHUNK);

	write_text(DEBUG_FOLDER "sigbus", "%d %lu %lu", 1 + (int)below(dice, 12), start,
		   below(dice, 2) ? start : start + below(dice, CHUNK));
}

static void read_debug(struct dice *dice)
{
	char text[4096];
	int fd = open(below(dice, 2) ? DEBUG_FOLDER "log" : DEBUG_FOLDER "counters", O_RDONLY | O_CLOEXEC);

	if (fd < 0)
		return;
	while (read(fd, text, sizeof(text)) == sizeof(text))
		;
	close(fd);
}

static void read_attributes(struct dice *dice)
{
	char path[512], text[1024];
	struct dirent *entry;
	DIR *dir;
	int fd;

	snprintf(path, sizeof(path), "/sys/devices/obmm/obmm_shmdev%d", 1 + (int)below(dice, 12));
	dir = opendir(path);
	while (dir && (entry = readdir(dir))) {
		fd = openat(dirfd(dir), entry->d_name, O_RDONLY | O_CLOEXEC);
		if (fd < 0)
			continue;
		(void)!read(fd, text, sizeof(text));
		close(fd);
	}
	if (dir)
		closedir(dir);
}

/* The same device by another name, on a file system that goes away. */
static void elsewhere(struct dice *dice)
{
	char folder[32], path[64], name[64];
	struct stat status;
	int fd;

	snprintf(name, sizeof(name), OBMM_SHMDEV_PREFIX "%d", 1 + (int)below(dice, 12));
	if (stat(name, &status))
		return;
	snprintf(folder, sizeof(folder), "/tmp/storm%d", gettid());
	mkdir(folder, 0700);
	if (!mount("t", folder, "tmpfs", 0, NULL)) {
		snprintf(path, sizeof(path), "%s/node", folder);
		mknod(path, S_IFCHR | 0600, status.st_rdev);
		fd = open(path, O_RDWR | O_CLOEXEC);
		if (fd >= 0)
			close(fd);
		umount2(folder, MNT_DETACH);
	}
	rmdir(folder);
}

void root_call(struct dice *dice)
{
	static void (*const calls[])(struct dice *) = { inject,	    inject,	     decode,   decode, fail_memory,
							read_debug, read_attributes, elsewhere };

	calls[below(dice, sizeof(calls) / sizeof(*calls))](dice);
}
