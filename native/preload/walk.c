/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ftw and nftw.  libc's own walks make their calls inside libc and would see
 * this machine's folders: those that start in a folder of the node's, or in
 * one that both machines have, are made here, by the calls that this library
 * answers.
 */
#include "preload.h"

#include <dirent.h>
#include <errno.h>
#include <ftw.h>
#include <stdlib.h>
#include <string.h>

typedef int plain_call(const char *, const struct stat *, int);
typedef int call(const char *, const struct stat *, int, struct FTW *);

/* A folder that was entered: through links a walk could come to it again. */
struct entered {
	struct entered *next;
	dev_t dev;
	ino_t ino;
};

struct tour {
	plain_call *plain; /* ftw's, or NULL */
	call *each;	   /* nftw's */
	int flags;
	dev_t dev; /* of the start */
	struct entered *entered;
	size_t length;
	char path[PATH_MAX];
};

static int visit(struct tour *tour, int base, int level);

static int tell(struct tour *tour, const struct stat *st, int type, int base, int level)
{
	struct FTW where = { .base = base, .level = level };

	if (tour->each)
		return tour->each(tour->path, st, type, &where);
	return tour->plain(tour->path, st, type == FTW_SLN ? FTW_NS : type);
}

/* 1: entered before, 0: not yet, -1: no memory. */
static int enter_once(struct tour *tour, const struct stat *st)
{
	struct entered *entry = tour->entered;

	for (; entry; entry = entry->next)
		if (entry->dev == st->st_dev && entry->ino == st->st_ino)
			return 1;
	entry = malloc(sizeof(*entry));
	if (!entry)
		return -1;
	*entry = (struct entered){ .next = tour->entered, .dev = st->st_dev, .ino = st->st_ino };
	tour->entered = entry;
	return 0;
}

/* What a call said, to whom goes on with the folder above: with FTW_ACTIONRETVAL some answers only leave things out. */
static int answered(const struct tour *tour, int answer, int left_out)
{
	return tour->flags & FTW_ACTIONRETVAL && answer == left_out ? 0 : answer;
}

static int visit_entry(struct tour *tour, const char *name, int level)
{
	const size_t length = tour->length, base = length + (tour->path[length - 1] != '/');
	const size_t end = base + strlen(name);
	int answer;

	if (end >= sizeof(tour->path)) {
		errno = ENAMETOOLONG;
		return -1;
	}
	tour->path[base - 1] = '/';
	strcpy(tour->path + base, name);
	tour->length = end;
	answer = visit(tour, (int)base, level);
	tour->length = length;
	tour->path[length] = 0;
	return answer;
}

static int visit_folder(struct tour *tour, const struct stat *st, int base, int level)
{
	struct dirent **entries;
	int count = scandir(tour->path, &entries, NULL, NULL), answer = 0, inside = 1;

	if (count < 0)
		return errno == EACCES ? tell(tour, st, FTW_DNR, base, level) : -1;
	if (!(tour->flags & FTW_DEPTH)) {
		answer = tell(tour, st, FTW_D, base, level);
		inside = !answer;
		answer = answered(tour, answer, FTW_SKIP_SUBTREE);
	}
	for (int i = 0; i < count; i++) {
		if (inside && !answer && strcmp(entries[i]->d_name, ".") && strcmp(entries[i]->d_name, "..")) {
			answer = answered(tour, visit_entry(tour, entries[i]->d_name, level + 1), FTW_SKIP_SUBTREE);
			if (answer && !answered(tour, answer, FTW_SKIP_SIBLINGS))
				answer = inside = 0;
		}
		free(entries[i]);
	}
	free(entries);
	return !answer && tour->flags & FTW_DEPTH ? tell(tour, st, FTW_DP, base, level) : answer;
}

static int visit(struct tour *tour, int base, int level)
{
	const int physical = tour->flags & FTW_PHYS;
	struct stat st;
	int dangling, again;

	memset(&st, 0, sizeof(st));
	if (physical ? lstat(tour->path, &st) : stat(tour->path, &st)) {
		if (errno != EACCES && errno != ENOENT)
			return -1;
		dangling = !physical && errno == ENOENT && !lstat(tour->path, &st) && S_ISLNK(st.st_mode);
		if (!level && !dangling)
			return -1;
		return tell(tour, &st, dangling ? FTW_SLN : FTW_NS, base, level);
	}
	if (!level)
		tour->dev = st.st_dev;
	else if (tour->flags & FTW_MOUNT && st.st_dev != tour->dev && !S_ISCHR(st.st_mode)) /* the node's device is in /dev */
		return 0;
	if (!S_ISDIR(st.st_mode))
		return tell(tour, &st, S_ISLNK(st.st_mode) ? FTW_SL : FTW_F, base, level);
	again = physical ? 0 : enter_once(tour, &st);
	return again ? (again < 0 ? -1 : 0) : visit_folder(tour, &st, base, level);
}

/* Whether a walk from there comes to what is the node's. */
static int is_ours(const char *path, int flags)
{
	struct preload_path found;
	struct stat st;

	preload_find(AT_FDCWD, path, flags & FTW_PHYS ? NOFOLLOW : FOLLOW, &found);
	if (found.place != PLACE_ELSEWHERE || (*path && !*found.out))
		return preload_node() != NULL;
	return *found.disk && !raw_fstatat(AT_FDCWD, found.disk, &st, 0) && S_ISDIR(st.st_mode);
}

/* The tour's answer; the caller of nftw may be in the folder that it asked for afterwards. */
static int start(plain_call *plain, call *each, const char *path, int flags)
{
	struct tour *tour;
	const char *name;
	int answer;

	if (flags & FTW_CHDIR) {
		errno = ENOTSUP;
		return -1;
	}
	tour = calloc(1, sizeof(*tour));
	if (!tour)
		return -1;
	tour->plain = plain;
	tour->each = each;
	tour->flags = flags;
	tour->length = strlen(path); /* is_ours knows paths below PATH_MAX only */
	while (tour->length > 1 && path[tour->length - 1] == '/')
		tour->length--;
	memcpy(tour->path, path, tour->length);
	name = strrchr(tour->path, '/');
	answer = visit(tour, name && tour->length > 1 ? (int)(name + 1 - tour->path) : 0, 0);
	while (tour->entered) {
		struct entered *gone = tour->entered;

		tour->entered = gone->next;
		free(gone);
	}
	free(tour);
	return answer;
}

EXPORT int ftw(const char *path, plain_call *each, int descriptors)
{
	return is_ours(path, 0) ? start(each, NULL, path, 0) : NEXT(ftw)(path, each, descriptors);
}

EXPORT int nftw(const char *path, call *each, int descriptors, int flags)
{
	return is_ours(path, flags) ? start(NULL, each, path, flags) : NEXT(nftw)(path, each, descriptors, flags);
}

ALIAS(ftw, ftw64);
ALIAS(nftw, nftw64);
