/* SPDX-License-Identifier: Apache-2.0 */
#include <ctype.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "preload.h"

/* Always the emulated machine's, whatever this machine has there. */
static const char *const ours[] = {
	"/dev/obmm",		"/sys/devices/obmm",	"/sys/devices/ub_bus_controller", "/sys/module/obmm",
	"/sys/kernel/obmm_mempool", "/sys/bus/ub", "/sys/class/misc/obmm",	  "/proc/obmm",
};

/* Append a path to the absolute, normal one in out.  0, or -1 when it does not fit. */
static int append(char *out, const char *path)
{
	size_t end = strlen(out);

	while (*path) {
		size_t length = strcspn(path, "/");

		if (length == 2 && !memcmp(path, "..", 2)) {
			while (end && out[--end] != '/')
				;
			out[end] = 0;
		} else if (length && !(length == 1 && *path == '.')) {
			if (end + 1 + length >= PATH_MAX)
				return -1;
			out[end++] = '/';
			memcpy(out + end, path, length);
			end += length;
			out[end] = 0;
		}
		path += length;
		path += strspn(path, "/");
	}
	return 0;
}

/* The folder that relative paths start from. */
static int base(int dirfd, char *out)
{
	char link[64];
	ssize_t length;

	if (dirfd == AT_FDCWD)
		snprintf(link, sizeof(link), "/proc/self/cwd");
	else
		snprintf(link, sizeof(link), "/proc/self/fd/%d", dirfd);
	length = raw_readlink(link, out, PATH_MAX - 1);
	if (length <= 0)
		return -1;
	out[length == 1 ? 0 : length] = 0; /* "/" is what comes before every path */
	return 0;
}

static int starts(const char *path, const char *prefix)
{
	return !strncmp(path, prefix, strlen(prefix));
}

static int under(const char *path, const char *folder)
{
	size_t length = strlen(folder);

	return !strncmp(path, folder, length) && (!path[length] || path[length] == '/');
}

static int is_device(const char *path)
{
	static const char control[] = "/dev/obmm", region[] = "/dev/obmm_shmdev";

	if (!strcmp(path, control))
		return 1;
	if (!starts(path, region) || !path[strlen(region)])
		return 0;
	for (path += strlen(region); *path; path++)
		if (!isdigit((unsigned char)*path))
			return 0;
	return 1;
}

static int belongs_to_node(const char *path, const char *disk)
{
	struct stat st, here;

	for (size_t i = 0; i < sizeof(ours) / sizeof(*ours); i++) {
		const char *rest = path + strlen(ours[i]);

		/* numbered names may go on, others end here */
		if (starts(path, ours[i]) && (!*rest || *rest == '/' || isdigit((unsigned char)*rest)))
			return 1;
	}
	/* a text that the node has beside this machine's, such as /proc/devices; a folder only if the machine has none */
	if (raw_fstatat(AT_FDCWD, disk, &st, AT_SYMLINK_NOFOLLOW))
		return 0;
	return !S_ISDIR(st.st_mode) || raw_fstatat(AT_FDCWD, path, &here, 0);
}

void preload_find(int dirfd, const char *path, struct preload_path *found)
{
	struct obmm_sys *sys;
	int saved = errno;

	found->place = PLACE_ELSEWHERE;
	found->file = path;
	found->out[0] = found->disk[0] = 0;
	if (!path || !*path)
		return;
	if (*path != '/' && base(dirfd, found->out))
		goto out;
	if (append(found->out, path))
		goto out;
	if (!under(found->out, "/dev") && !under(found->out, "/sys") && !under(found->out, "/proc"))
		goto out;
	sys = preload_node();
	/* without a node `disk` stays empty: ENOENT, never this machine's own driver instead */
	if (sys && strlen(sys->root) + strlen(found->out) < PATH_MAX)
		strcpy(stpcpy(found->disk, sys->root), found->out);
	if (is_device(found->out))
		found->place = PLACE_DEVICE;
	else if (belongs_to_node(found->out, found->disk))
		found->place = PLACE_TREE;
	if (found->place != PLACE_ELSEWHERE)
		found->file = found->disk;
out:
	errno = saved;
}
