/* SPDX-License-Identifier: Apache-2.0 */
/* How many CPUs may be kept busy by waiting: control groups, and the other processes. */
#include <string.h>
#include <sys/stat.h>

#include "../core/clock.h"
#include "../engine/room.h"
#include "test_copy.h"

static char folder[] = "/tmp/obmm-room-XXXXXX";

static void put(const char *name, const char *text)
{
	char path[256], *slash;
	FILE *file;

	snprintf(path, sizeof(path), "%s/%s", folder, name);
	for (slash = path + strlen(folder) + 1; (slash = strchr(slash, '/')); *slash++ = '/') {
		*slash = 0;
		mkdir(path, 0700);
	}
	file = fopen(path, "w");
	CHECK(file && fputs(text, file) >= 0 && !fclose(file));
}

static unsigned int quota(const char *groups)
{
	char path[256];

	put("groups", groups);
	snprintf(path, sizeof(path), "%s/groups", folder);
	return obmm_room_quota(path, folder);
}

static void the_tightest_group_counts(void)
{
	put("cpu.max", "max 100000\n");
	put("slice/cpu.max", "350000 100000\n");
	put("slice/job/cpu.max", "600000 100000\n");
	CHECK(quota("0::/slice/job\n") == 4);
	CHECK(quota("0::/slice\n") == 4);
	CHECK(quota("0::/\n") == UINT32_MAX);
	CHECK(quota("0::/gone/away\n") == UINT32_MAX);
}

static void the_older_layout_counts_too(void)
{
	put("cpu,cpuacct/pod/cpu.cfs_quota_us", "150000\n");
	put("cpu,cpuacct/pod/cpu.cfs_period_us", "50000\n");
	put("cpu,cpuacct/free/cpu.cfs_quota_us", "-1\n");
	put("cpu,cpuacct/free/cpu.cfs_period_us", "100000\n");
	CHECK(quota("4:memory:/pod\n3:cpu,cpuacct:/pod\n") == 3);
	CHECK(quota("3:cpu,cpuacct:/free\n") == UINT32_MAX);
}

static void nonsense_is_no_limit(void)
{
	put("odd/cpu.max", "-5 0\n");
	put("wild/cpu.max", "99999999999999999999 1\n");
	put("zero/cpu.max", "100000 0\n");
	CHECK(quota("0::/odd\n") == UINT32_MAX);
	CHECK(quota("0::/wild\n") == UINT32_MAX);
	CHECK(quota("0::/zero\n") == UINT32_MAX);
	CHECK(quota("") == UINT32_MAX);
	CHECK(quota("no colon\n:\n::\n") == UINT32_MAX);
	CHECK(obmm_room_quota("/nowhere/at/all", folder) == UINT32_MAX);
}

static void processes_share_what_they_have_in_common(void)
{
	const unsigned int all[3] = { 16, 16, 16 }, half[1] = { 8 };

	CHECK(obmm_room_part(16, NULL, 0) == 15);
	CHECK(obmm_room_part(16, all, 1) == 7);
	CHECK(obmm_room_part(16, all, 3) == 3);
	CHECK(obmm_room_part(16, half, 1) == 11);
	CHECK(obmm_room_part(2, all, 1) == 0);
	CHECK(obmm_room_part(1, NULL, 0) == 0);
}

static void somebody_who_gathers_is_seen_and_then_forgotten(void)
{
	uint64_t second = 1000000000ull, now = 0;
	unsigned int alone;
	int ready[2], end[2];
	char byte = 0;
	pid_t other;

	now = obmm_now_ns();
	CHECK(obmm_room_refresh(now));
	CHECK(!obmm_room_refresh(now + 1000));
	alone = obmm_room_free();
	CHECK(!pipe(ready) && !pipe(end));
	other = fork();
	CHECK(other >= 0);
	if (!other) {
		obmm_room_refresh(now + 1);
		obmm_room_use(now + second);
		CHECK(write(ready[1], &byte, 1) == 1 && read(end[0], &byte, 1) == 1);
		_exit(0);
	}
	CHECK(read(ready[0], &byte, 1) == 1);
	CHECK(obmm_room_refresh(now + second + 1));
	CHECK(obmm_room_free() <= alone / 2 || !alone);
	CHECK(obmm_room_refresh(now + 3 * second));
	CHECK(obmm_room_free() >= alone);
	CHECK(write(end[1], &byte, 1) == 1 && waitpid(other, NULL, 0) == other);
}

int main(void)
{
	CHECK(mkdtemp(folder));
	the_tightest_group_counts();
	the_older_layout_counts_too();
	nonsense_is_no_limit();
	processes_share_what_they_have_in_common();
	somebody_who_gathers_is_seen_and_then_forgotten();
	puts("test_room: ok");
	return 0;
}
