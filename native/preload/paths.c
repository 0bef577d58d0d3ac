/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Paths, resolved as the kernel of the emulated machine would: component by
 * component, through this machine's links and the node's.
 */
#include "preload.h"

#include <ctype.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define LINKS_MAX 40 /* as the kernel's */

/* Always the emulated machine's, whatever this machine has there. */
static const char *const ours[] = {
	"/dev/obmm",	  "/sys/devices/obmm",	      "/sys/devices/ub_bus_controller",
	"/sys/module/obmm", "/sys/kernel/obmm_mempool", "/sys/bus/ub",
	"/proc/obmm",	  "/sys/class/misc/obmm",     "/sys/devices/virtual/misc/obmm",
};

static int starts(const char *path, const char *prefix)
{
	return !strncmp(path, prefix, strlen(prefix));
}

static int under(const char *path, const char *folder)
{
	size_t length = strlen(folder);

	return starts(path, folder) && (!path[length] || path[length] == '/');
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

static int always_ours(const char *path)
{
	for (size_t i = 0; i < sizeof(ours) / sizeof(*ours); i++) {
		const char *rest = path + strlen(ours[i]);

		/* numbered names may go on, others end here */
		if (starts(path, ours[i]) && (!*rest || *rest == '/' || isdigit((unsigned char)*rest)))
			return 1;
	}
	return is_device(path);
}

int preload_is_ours(const char *folder, const char *name)
{
	char path[PRELOAD_OUT_MAX];

	return snprintf(path, sizeof(path), "%s/%s", folder, name) < (int)sizeof(path) && always_ours(path);
}

static int belongs_to_node(const char *path, const char *disk)
{
	struct stat st, here;

	if (always_ours(path))
		return 1;
	/* a text that the node has beside this machine's, such as /proc/devices; a folder only if the machine has none */
	if (!*disk || raw_fstatat(AT_FDCWD, disk, &st, AT_SYMLINK_NOFOLLOW))
		return 0;
	return !S_ISDIR(st.st_mode) || raw_fstatat(AT_FDCWD, path, &here, 0);
}

/* Whose the absolute, normal path in found->out is. */
static void place(struct preload_path *found)
{
	struct obmm_sys *sys;

	found->place = PLACE_ELSEWHERE;
	found->disk[0] = 0;
	if (!under(found->out, "/dev") && !under(found->out, "/sys") && !under(found->out, "/proc"))
		return;
	sys = preload_node();
	/* without a node `disk` stays empty: ENOENT, never this machine's own driver instead */
	if (sys && strlen(sys->root) + strlen(found->out) < sizeof(found->disk))
		strcpy(stpcpy(found->disk, sys->root), found->out);
	if (is_device(found->out))
		found->place = PLACE_DEVICE;
	else if (belongs_to_node(found->out, found->disk))
		found->place = PLACE_TREE;
}

size_t preload_unroot(char *path)
{
	struct obmm_sys *sys = preload_node();
	size_t root = sys ? strlen(sys->root) : 0;

	if (root && under(path, sys->root)) {
		memmove(path, path + root, strlen(path + root) + 1);
		if (!*path)
			strcpy(path, "/");
	}
	return strlen(path);
}

const char *preload_linked_device(char *link)
{
	struct obmm_sys *sys = starts(link, "/memfd:obmm:") ? preload_node() : NULL;
	char *device = sys ? strstr(link, ":/dev/obmm") : NULL;
	const char *name;
	char *end;

	if (!device)
		return NULL;
	/* "/memfd:obmm:<tag>:<node>:<device> (deleted)": of this node only, whatever the fabric's tag */
	*device = 0;
	name = strrchr(link, ':') + 1;
	if (strcmp(name, strrchr(sys->name, '#') + 1))
		return NULL;
	end = strrchr(++device, ' ');
	if (end)
		*end = 0;
	return is_device(device) ? device : NULL;
}

/* The folder that relative paths start from, as the program knows it. */
static int base(int dirfd, char *out)
{
	char link[64];
	ssize_t length;

	if (dirfd == AT_FDCWD)
		snprintf(link, sizeof(link), "/proc/self/cwd");
	else
		snprintf(link, sizeof(link), "/proc/self/fd/%d", dirfd);
	length = raw_readlink(link, out, PRELOAD_OUT_MAX);
	if (length <= 0 || length == PRELOAD_OUT_MAX || *out != '/')
		return -1;
	out[length] = 0;
	preload_unroot(out);
	if (!strcmp(out, "/"))
		*out = 0; /* "/" is what comes before every path */
	return 0;
}

/* A walk in progress: `found->out` is resolved, `rest` is still to come. */
struct walk {
	struct preload_path *found;
	const char *rest;
	int links;
	char spliced[PATH_MAX]; /* where `rest` lies once a link was followed */
};

/* Put the text of a link before the rest.  -1: too long, or too many. */
static int splice_link(struct walk *walk, const char *text)
{
	size_t length = strlen(text), more = strlen(walk->rest);

	if (++walk->links > LINKS_MAX || length + more >= sizeof(walk->spliced))
		return -1;
	memmove(walk->spliced + length, walk->rest, more + 1);
	memcpy(walk->spliced, text, length);
	walk->rest = walk->spliced;
	if (*text == '/')
		*walk->found->out = 0;
	return 0;
}

static void up(char *out)
{
	char *slash = strrchr(out, '/');

	if (slash)
		*slash = 0;
}

/*
 * The component that was just appended to found->out: what it is, and where it
 * leads when it is a link.  1: go on, 0: nothing more can be said, -1: an error
 * that the kernel will find as well.
 */
static int enter(struct walk *walk, enum preload_follow follow)
{
	struct preload_path *found = walk->found;
	const int last = !walk->rest[strspn(walk->rest, "/")];
	char text[PRELOAD_OUT_MAX];
	const char *device, *at;
	struct stat st;
	ssize_t length;

	place(found);
	if (found->place == PLACE_DEVICE)
		return 0;
	at = found->place == PLACE_TREE ? found->disk : found->out;
	if (raw_fstatat(AT_FDCWD, at, &st, AT_SYMLINK_NOFOLLOW))
		return found->place == PLACE_TREE ? 0 : -1;
	if (S_ISDIR(st.st_mode))
		return 1;
	if (!S_ISLNK(st.st_mode))
		return found->place == PLACE_TREE ? !*walk->rest : last ? 1 : -1;
	if (last && follow == NOFOLLOW && !*walk->rest)
		return 1;
	length = raw_readlink(at, text, sizeof(text));
	if (length <= 0 || length == sizeof(text))
		return -1;
	text[length] = 0;
	device = preload_linked_device(text);
	if (device) {
		strcpy(found->out, device);
		place(found);
		return 0;
	}
	if (starts(found->out, "/proc/") && (*text != '/' && strchr(text, ':')))
		return -1; /* pipe:[1], socket:[2]: no path */
	preload_unroot(text);
	up(found->out);
	return splice_link(walk, text) ? -1 : 1;
}

/* Walk to the end of walk->rest.  -1: not all of it; the kernel says what is wrong. */
static int resolve(struct walk *walk, enum preload_follow follow)
{
	char *out = walk->found->out;

	while (*walk->rest) {
		const char *part = walk->rest + strspn(walk->rest, "/");
		size_t length = strcspn(part, "/"), end = strlen(out);
		int went;

		walk->rest = part + length;
		if (!length || (length == 1 && *part == '.'))
			continue;
		if (length == 2 && !memcmp(part, "..", 2)) {
			up(out);
			continue;
		}
		if (end + 1 + length >= PRELOAD_OUT_MAX)
			return -1;
		out[end] = '/';
		memcpy(out + end + 1, part, length);
		out[end + 1 + length] = 0;
		went = enter(walk, follow);
		if (went <= 0)
			return went;
	}
	return 0;
}

/* What is left behind a file of the node goes behind the file on disk: the kernel's ENOTDIR or ENOENT. */
static int append_rest(struct preload_path *found, const char *rest)
{
	if (!*rest)
		return 0;
	if (strlen(found->disk) + strlen(rest) >= sizeof(found->disk))
		return -1;
	strcat(found->disk, rest);
	if (found->place == PLACE_DEVICE)
		found->place = PLACE_TREE;
	return 0;
}

int preload_is_empty(const char *path)
{
	return preload_readable(path, 1) && !*path;
}

void preload_find(int dirfd, const char *path, enum preload_follow follow, struct preload_path *found)
{
	struct walk walk = { .found = found, .rest = path };
	int saved = errno;

	found->place = PLACE_ELSEWHERE;
	found->file = path;
	found->out[0] = found->disk[0] = 0;
	if (!path || !preload_readable_text(path) || !*path || strnlen(path, PATH_MAX) == PATH_MAX)
		return;
	if (*path != '/' && base(dirfd, found->out))
		goto out;
	if (resolve(&walk, follow) && walk.rest[strspn(walk.rest, "/")]) {
		found->place = PLACE_ELSEWHERE;
		found->disk[0] = 0;
		goto out;
	}
	if (found->place == PLACE_ELSEWHERE)
		place(found);
	if (found->place != PLACE_ELSEWHERE && append_rest(found, walk.rest))
		found->place = PLACE_ELSEWHERE;
	if (found->place != PLACE_ELSEWHERE)
		found->file = found->disk;
out:
	errno = saved;
}

int preload_refuses(int dirfd, const char *path, enum preload_follow follow, int exists)
{
	const int makes = exists == EEXIST || exists == EADDRINUSE;
	struct preload_path found;
	struct stat st;

	preload_find(dirfd, path, follow, &found);
	if (found.place == PLACE_ELSEWHERE)
		return 0;
	errno = 0;
	if (*found.disk && !raw_fstatat(AT_FDCWD, found.disk, &st, AT_SYMLINK_NOFOLLOW))
		errno = exists;
	else if (errno != ENOTDIR)
		errno = makes ? EPERM : ENOENT;
	return 1;
}
