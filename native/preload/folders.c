/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Folders that both machines have, such as /dev and /sys/devices: listed with
 * the node's entries after this machine's.
 */
#include "preload.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <glob.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

/* An open folder with a second one behind it. */
struct listing {
	struct listing *next;
	DIR *first, *second;
	char folder[64]; /* those that both machines have are few, with short names */
};

static struct listing *listings;
static unsigned int open_listings; /* read without the lock: most programs have none */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static struct listing *find(DIR *dir)
{
	struct listing *l = NULL;

	if (!__atomic_load_n(&open_listings, __ATOMIC_ACQUIRE))
		return NULL;
	pthread_mutex_lock(&lock);
	for (l = listings; l && l->first != dir; l = l->next)
		;
	pthread_mutex_unlock(&lock);
	return l;
}

/* Let the node's folder `second` follow dir's entries. */
static void follow(DIR *dir, DIR *second, const char *folder)
{
	struct listing *l = malloc(sizeof(*l));

	if (!l) {
		NEXT(closedir)(second);
		return;
	}
	*l = (struct listing){ .first = dir, .second = second };
	strncpy(l->folder, folder, sizeof(l->folder) - 1);
	pthread_mutex_lock(&lock);
	l->next = listings;
	listings = l;
	__atomic_add_fetch(&open_listings, 1, __ATOMIC_RELEASE);
	pthread_mutex_unlock(&lock);
}

/* The node's folder beside this machine's, or NULL. */
static DIR *beside(const struct preload_path *found)
{
	int saved = errno;
	DIR *dir = found->place == PLACE_ELSEWHERE && *found->disk ? NEXT(opendir)(found->disk) : NULL;

	errno = saved;
	return dir;
}

EXPORT DIR *opendir(const char *path)
{
	struct preload_path found;
	DIR *dir, *second;

	preload_find(AT_FDCWD, path, FOLLOW, &found);
	dir = NEXT(opendir)(found.file);
	second = dir ? beside(&found) : NULL;
	if (second)
		follow(dir, second, found.out);
	return dir;
}

EXPORT DIR *fdopendir(int fd)
{
	struct preload_path found;
	DIR *dir = NEXT(fdopendir)(fd), *second;

	if (dir) {
		preload_find(fd, ".", FOLLOW, &found);
		second = beside(&found);
		if (second)
			follow(dir, second, found.out);
	}
	return dir;
}

EXPORT int closedir(DIR *dir)
{
	struct listing *gone = NULL;

	if (find(dir)) {
		pthread_mutex_lock(&lock);
		for (struct listing **at = &listings; *at; at = &(*at)->next)
			if ((*at)->first == dir) {
				gone = *at;
				*at = gone->next;
				__atomic_sub_fetch(&open_listings, 1, __ATOMIC_RELEASE);
				break;
			}
		pthread_mutex_unlock(&lock);
	}
	if (gone) {
		NEXT(closedir)(gone->second);
		free(gone);
	}
	return NEXT(closedir)(dir);
}

EXPORT void rewinddir(DIR *dir)
{
	struct listing *l = find(dir);

	if (l)
		NEXT(rewinddir)(l->second);
	NEXT(rewinddir)(dir);
}

/* Whether this machine's folder has the name too, which was then listed already. */
static int listed(const struct listing *l, const char *name)
{
	struct stat st;

	return !raw_fstatat(dirfd(l->first), name, &st, AT_SYMLINK_NOFOLLOW);
}

/* The next entry of this machine's folder that the emulated machine has too. */
static struct dirent *of_this_machine(const struct listing *l, DIR *dir)
{
	struct dirent *entry = NEXT(readdir)(dir);

	while (l && entry && preload_is_ours(l->folder, entry->d_name))
		entry = NEXT(readdir)(dir);
	return entry;
}

EXPORT struct dirent *readdir(DIR *dir)
{
	struct listing *l = find(dir);
	struct dirent *entry = of_this_machine(l, dir);

	if (entry || !l)
		return entry;
	while ((entry = NEXT(readdir)(l->second)) && !preload_is_ours(l->folder, entry->d_name) &&
	       listed(l, entry->d_name))
		;
	/* a device stands on disk as a plain file */
	if (entry && entry->d_type == DT_REG && !strcmp(l->folder, "/dev"))
		entry->d_type = DT_CHR;
	return entry;
}

static int scan(DIR *dir, struct dirent ***names, int (*select)(const struct dirent *),
		int (*compare)(const struct dirent **, const struct dirent **))
{
	struct dirent **list = NULL, *entry, *copy;
	size_t count = 0, room = 0;

	if (!dir)
		return -1;
	while ((entry = readdir(dir))) {
		if (select && !select(entry))
			continue;
		if (count == room) {
			struct dirent **more = realloc(list, (room = room ? room * 2 : 16) * sizeof(*list));

			if (!more)
				goto fail;
			list = more;
		}
		copy = malloc(entry->d_reclen);
		if (!copy)
			goto fail;
		list[count++] = memcpy(copy, entry, entry->d_reclen);
	}
	closedir(dir);
	if (compare && count)
		qsort(list, count, sizeof(*list), (int (*)(const void *, const void *))(void (*)(void))compare);
	*names = list;
	return (int)count;
fail:
	while (count)
		free(list[--count]);
	free(list);
	closedir(dir);
	errno = ENOMEM;
	return -1;
}

EXPORT int scandir(const char *path, struct dirent ***names, int (*select)(const struct dirent *),
		   int (*compare)(const struct dirent **, const struct dirent **))
{
	return scan(opendir(path), names, select, compare);
}

EXPORT int scandirat(int dirfd, const char *path, struct dirent ***names, int (*select)(const struct dirent *),
		     int (*compare)(const struct dirent **, const struct dirent **))
{
	int fd = openat(dirfd, path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	DIR *dir = fd < 0 ? NULL : fdopendir(fd);

	if (fd >= 0 && !dir)
		raw_close(fd);
	return scan(dir, names, select, compare);
}

/* Kept for old programs, and marked so in libc's headers: the next entry in the caller's memory. */
int read_into(DIR *dir, struct dirent *room, struct dirent **result) __asm__("readdir_r");

EXPORT int read_into(DIR *dir, struct dirent *room, struct dirent **result)
{
	struct dirent *entry;
	int saved = errno, error;

	errno = 0;
	entry = readdir(dir);
	error = errno;
	errno = saved;
	*result = entry ? memcpy(room, entry, entry->d_reclen) : NULL;
	return entry ? 0 : error;
}

static void glob_closedir(void *dir)
{
	closedir(dir);
}

static struct dirent *glob_readdir(void *dir)
{
	return readdir(dir);
}

static void *glob_opendir(const char *path)
{
	return opendir(path);
}

/* glob's own calls stay inside libc, unless it is given others. */
EXPORT int glob(const char *pattern, int flags, int (*error)(const char *, int), glob_t *result)
{
	if (flags & GLOB_ALTDIRFUNC)
		return NEXT(glob)(pattern, flags, error, result);
	result->gl_closedir = glob_closedir;
	result->gl_readdir = glob_readdir;
	result->gl_opendir = glob_opendir;
	result->gl_lstat = lstat;
	result->gl_stat = stat;
	return NEXT(glob)(pattern, flags | GLOB_ALTDIRFUNC, error, result);
}

extern __typeof__(read_into) read_into64 __asm__("readdir64_r")
	__attribute__((alias("readdir_r"), visibility("default")));
ALIAS(readdir, readdir64); /* one layout on 64-bit machines */
ALIAS(scandir, scandir64);
ALIAS(scandirat, scandirat64);
ALIAS(glob, glob64);
