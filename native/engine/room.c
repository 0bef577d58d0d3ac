/* SPDX-License-Identifier: Apache-2.0 */
#include "room.h"

#include <assert.h>
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

enum { SLOTS = 64, WORDS = 16, PATH_BYTES = 512, GROUPS_BYTES = 4096 };
#define REFRESH_NS 250000000ull
#define TELL_NS 100000000ull	  /* between two stores that say that this process gathers */
#define HEARD_NS 1000000000ull	  /* who was not heard for so long does not gather */
#define FORGET_NS 60000000000ull /* ... and whose slot may be taken */

/* One process, in memory that any process of this user may write. */
struct slot {
	_Atomic uint64_t owner; /* a number that is unique, never 0 */
	_Atomic uint64_t used_ns;
	_Atomic uint64_t cpus[WORDS];
	uint64_t unused[14];
};
static_assert(sizeof(struct slot) == 256, "lines of its own");

static struct slot *slots;
static _Atomic(struct slot *) own;
static uint64_t own_number;
static _Atomic pid_t own_process;
static cpu_set_t own_cpus; /* of the thread that made the first engine: a worker may be pinned */
static _Atomic unsigned int free_cpus;
static _Atomic uint64_t looked_ns;
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;

unsigned int obmm_room_free(void)
{
	return atomic_load_explicit(&free_cpus, memory_order_relaxed);
}

void obmm_room_use(uint64_t now)
{
	struct slot *slot = atomic_load_explicit(&own, memory_order_relaxed);

	if (slot && now - atomic_load_explicit(&slot->used_ns, memory_order_relaxed) > TELL_NS)
		atomic_store_explicit(&slot->used_ns, now, memory_order_relaxed);
}

/* ---- what control groups allow ---- */

/* A small file whole, as text: bytes read, or -1.  No stdio: a gather looks here now and then, and allocates nothing. */
static ssize_t read_text(const char *path, char *text, size_t size)
{
	int fd = open(path, O_RDONLY | O_CLOEXEC);
	size_t have = 0;
	ssize_t more;

	if (fd < 0)
		return -1;
	while (have < size - 1 && (more = read(fd, text + have, size - 1 - have)) > 0)
		have += (size_t)more;
	close(fd);
	text[have] = 0;
	return (ssize_t)have;
}

static unsigned int quota_of(const char *path, const char *period_path)
{
	long long quota, period = 100000;
	char text[64], *end;

	if (read_text(path, text, sizeof(text)) < 0)
		return UINT32_MAX;
	quota = strtoll(text, &end, 10);
	if (end == text) /* "max" */
		quota = -1;
	else if (*end == ' ')
		period = strtoll(end, NULL, 10);
	if (period_path && read_text(period_path, text, sizeof(text)) >= 0)
		period = strtoll(text, NULL, 10);
	if (quota <= 0 || period <= 0 || quota / period >= 1 << 20)
		return UINT32_MAX;
	return (unsigned int)((quota + period - 1) / period);
}

/* The group and those that it lies in. */
static unsigned int quota_upwards(const char *mount, char *group, bool unified)
{
	unsigned int least = UINT32_MAX;

	for (;;) {
		char path[2 * PATH_BYTES], period[2 * PATH_BYTES];
		unsigned int quota;
		char *slash;

		snprintf(path, sizeof(path), "%s%s/%s", mount, group, unified ? "cpu.max" : "cpu.cfs_quota_us");
		snprintf(period, sizeof(period), "%s%s/cpu.cfs_period_us", mount, group);
		quota = quota_of(path, unified ? NULL : period);
		least = quota < least ? quota : least;
		slash = strrchr(group, '/');
		if (!slash)
			return least;
		*slash = 0;
	}
}

unsigned int obmm_room_quota(const char *groups, const char *mount)
{
	unsigned int least = UINT32_MAX;
	char text[GROUPS_BYTES], under[PATH_BYTES], *rest = text, *line;

	if (read_text(groups, text, sizeof(text)) < 0)
		return UINT32_MAX;
	while ((line = strsep(&rest, "\n"))) {
		char *controllers = strchr(line, ':'), *group = controllers ? strchr(controllers + 1, ':') : NULL;
		bool unified;
		unsigned int quota;

		if (!group)
			continue;
		*group++ = 0;
		controllers++;
		unified = !*controllers;
		if (!unified && !strstr(controllers, "cpu"))
			continue;
		snprintf(under, sizeof(under), "%s%s%s", mount, unified ? "" : "/", controllers);
		quota = quota_upwards(under, group, unified);
		least = quota < least ? quota : least;
	}
	return least;
}

/* ---- the other processes ---- */

static void share_slots(void)
{
	char path[64];
	struct stat status;
	void *found = MAP_FAILED;
	int fd;

	snprintf(path, sizeof(path), "/dev/shm/obmm-cores-%u", (unsigned int)geteuid());
	fd = open(path, O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0600);
	if (fd < 0)
		return;
	/* only what this user made and no other user can write */
	if (!fstat(fd, &status) && S_ISREG(status.st_mode) && status.st_uid == geteuid() && !(status.st_mode & 022) &&
	    (status.st_size == SLOTS * sizeof(struct slot) ||
	     (!status.st_size && !ftruncate(fd, SLOTS * sizeof(struct slot)))))
		found = mmap(NULL, SLOTS * sizeof(struct slot), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	close(fd);
	if (found != MAP_FAILED)
		slots = found;
}

static void take_slot(const cpu_set_t *cpus, uint64_t now)
{
	struct slot *slot = atomic_load_explicit(&own, memory_order_relaxed);

	if (slot && atomic_load(&slot->owner) != own_number)
		slot = NULL; /* we were silent for a minute, and another process has it */
	for (int i = 0; !slot && i < SLOTS; i++) {
		uint64_t owner = atomic_load(&slots[i].owner);
		uint64_t used = atomic_load_explicit(&slots[i].used_ns, memory_order_relaxed);

		if ((!owner || (used <= now && now - used > FORGET_NS)) &&
		    atomic_compare_exchange_strong(&slots[i].owner, &owner, own_number)) {
			slot = &slots[i];
			atomic_store_explicit(&slot->used_ns, now > HEARD_NS ? now - HEARD_NS : 0, memory_order_relaxed);
		}
	}
	for (int word = 0; slot && word < WORDS; word++) {
		uint64_t bits = 0;

		for (int bit = 0; bit < 64; bit++)
			bits |= (uint64_t)(CPU_ISSET(word * 64 + bit, cpus) != 0) << bit;
		atomic_store_explicit(&slot->cpus[word], bits, memory_order_relaxed);
	}
	atomic_store_explicit(&own, slot, memory_order_relaxed);
}

static unsigned int in_common(const struct slot *slot, const cpu_set_t *cpus)
{
	unsigned int common = 0;

	for (int word = 0; word < WORDS; word++) {
		uint64_t bits = atomic_load_explicit(&slot->cpus[word], memory_order_relaxed);

		for (int bit = 0; bit < 64; bit++)
			common += bits >> bit & 1 && CPU_ISSET(word * 64 + bit, cpus);
	}
	return common;
}

unsigned int obmm_room_part(unsigned int mine, const unsigned int *common, unsigned int others)
{
	double part = mine;

	/* each CPU in common is divided evenly, as if all processes had it in common with one of the others only */
	for (unsigned int i = 0; i < others; i++)
		part -= (double)common[i] / (others + 1);
	if (part < (double)mine / (others + 1))
		part = (double)mine / (others + 1);
	return part >= 2 ? (unsigned int)part - 1 : 0;
}

static unsigned int look(uint64_t now)
{
	unsigned int common[SLOTS], others = 0, mine, quota;
	const cpu_set_t *cpus = &own_cpus;

	if (own_process != getpid()) { /* the first look, or the first one after a fork */
		if (sched_getaffinity(0, sizeof(own_cpus), &own_cpus))
			return 0;
		own_process = getpid();
		own_number = now << 22 ^ (uint64_t)own_process;
		own_number += !own_number;
		atomic_store(&own, NULL);
	}
	mine = (unsigned int)CPU_COUNT(cpus);
	if (!slots)
		share_slots();
	if (slots)
		take_slot(cpus, now);
	for (int i = 0; slots && i < SLOTS; i++) {
		uint64_t used = atomic_load_explicit(&slots[i].used_ns, memory_order_relaxed);

		if (&slots[i] == atomic_load(&own) || !atomic_load(&slots[i].owner) || used > now ||
		    now - used >= HEARD_NS)
			continue;
		common[others] = in_common(&slots[i], cpus);
		others += common[others] > 0;
	}
	quota = obmm_room_quota("/proc/self/cgroup", "/sys/fs/cgroup");
	for (unsigned int i = 0; quota < mine && i < others; i++)
		common[i] = common[i] < quota ? common[i] : quota;
	return obmm_room_part(quota < mine ? quota : mine, common, others);
}

bool obmm_room_refresh(uint64_t now)
{
	uint64_t looked = atomic_load_explicit(&looked_ns, memory_order_relaxed);

	if (looked && now - looked < REFRESH_NS && own_process == getpid())
		return false;
	if (pthread_mutex_trylock(&mutex))
		return false;
	atomic_store_explicit(&free_cpus, look(now), memory_order_relaxed);
	atomic_store_explicit(&looked_ns, now, memory_order_relaxed);
	pthread_mutex_unlock(&mutex);
	return true;
}
