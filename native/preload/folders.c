/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Folders that both machines have, such as /dev and /sys/devices: listed with
 * the node's entries after this machine's.
 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <glob.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "preload.h"

/* An open folder with a second one behind it. */
struct listing {
	struct listing *next;
	DIR *first, *second;
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
static void follow(DIR *dir, DIR *second)
{
	struct listing *l = malloc(sizeof(*l));

	if (!l) {
		NEXT(closedir)(second);
		return;
	}
	*l = (struct listing){ .first = dir, .second = second };
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

	preload_find(AT_FDCWD, path, &found);
	dir = NEXT(opendir)(found.file);
	second = dir ? beside(&found) : NULL;
	if (second)
		follow(dir, second);
	return dir;
}

EXPORT DIR *fdopendir(int fd)
{
	struct preload_path found;
	DIR *dir = NEXT(fdopendir)(fd), *second;

	if (dir) {
		preload_find(fd, ".", &found);
		second = beside(&found);
		if (second)
			follow(dir, second);
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

EXPORT struct dirent *readdir(DIR *dir)
{
	struct dirent *entry = NEXT(readdir)(dir);
	struct listing *l = entry ? NULL : find(dir);

	while (l && (entry = NEXT(readdir)(l->second)) && listed(l, entry->d_name))
		;
	return entry;
}

EXPORT struct dirent64 *readdir64(DIR *dir)
{
	return (struct dirent64 *)readdir(dir); /* one layout on 64-bit machines */
}

EXPORT int scandir(const char *path, struct dirent ***names, int (*select)(const struct dirent *),
		   int (*compare)(const struct dirent **, const struct dirent **))
{
	DIR *dir = opendir(path);
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
	return count;
fail:
	while (count)
		free(list[--count]);
	free(list);
	closedir(dir);
	errno = ENOMEM;
	return -1;
}

EXPORT int scandir64(const char *path, struct dirent64 ***names, int (*select)(const struct dirent64 *),
		     int (*compare)(const struct dirent64 **, const struct dirent64 **))
{
	return scandir(path, (struct dirent ***)names, (int (*)(const struct dirent *))(void (*)(void))select,
		       (int (*)(const struct dirent **, const struct dirent **))(void (*)(void))compare);
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

EXPORT int glob64(const char *pattern, int flags, int (*error)(const char *, int), glob64_t *result)
{
	return glob(pattern, flags, error, (glob_t *)result);
}
