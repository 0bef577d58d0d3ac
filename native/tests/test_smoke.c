/* SPDX-License-Identifier: Apache-2.0 */
/* The smoke test over a table whose calls fail one by one: each failure is reported, and nothing stays behind. */
#define main smoke_main
#include "../tools/smoke.c"
#undef main

#include <stdbool.h>
#include <sys/stat.h>
#include <unistd.h>

#include "test.h"

#define CONTROL_FD 1000
#define MEMORY_SIZE (2ULL << 20)

struct fake {
	struct obmm_sys sys;
	int calls;
	int fail; /* the call that fails, from 0; -1: none */
	unsigned long failed_request;
	bool control_open, opened[3], region[3];
	int mapped;
	int memory; /* memfd: export and import are the same memory */
};

static bool fails(struct fake *fake, unsigned long request)
{
	if (fake->calls++ != fake->fail)
		return false;
	fake->failed_request = request;
	errno = EIO;
	return true;
}

static int fake_open(struct obmm_sys *sys, const char *path, int flags)
{
	struct fake *fake = (struct fake *)sys;
	int id;

	(void)flags;
	if (fails(fake, 0))
		return -1;
	if (!strcmp(path, OBMM_DEV_PATH)) {
		fake->control_open = true;
		return CONTROL_FD;
	}
	id = atoi(path + strlen(OBMM_SHMDEV_PREFIX));
	REQUIRE((id == 1 || id == 2) && fake->region[id] && !fake->opened[id]);
	fake->opened[id] = true;
	return CONTROL_FD + id;
}

static int remove_region(struct fake *fake, uint64_t id)
{
	REQUIRE((id == 1 || id == 2) && fake->region[id] && !fake->opened[id]);
	fake->region[id] = false;
	return 0;
}

static int fake_ioctl(struct obmm_sys *sys, int fd, unsigned long request, void *arg)
{
	struct fake *fake = (struct fake *)sys;

	REQUIRE(fd >= CONTROL_FD && fake->control_open);
	if (fails(fake, request))
		return -1;
	switch (request) {
	case OBMM_CMD_EXPORT:
		((struct obmm_cmd_export *)arg)->mem_id = 1;
		fake->region[1] = true;
		return 0;
	case OBMM_CMD_IMPORT:
		((struct obmm_cmd_import *)arg)->mem_id = 2;
		fake->region[2] = true;
		return 0;
	case OBMM_CMD_UNEXPORT:
		return remove_region(fake, ((struct obmm_cmd_unexport *)arg)->mem_id);
	case OBMM_CMD_UNIMPORT:
		return remove_region(fake, ((struct obmm_cmd_unimport *)arg)->mem_id);
	case OBMM_SHMDEV_UPDATE_RANGE: {
		const struct obmm_cmd_update_range *cmd = arg;
		int access = cmd->mem_state & OBMM_SHM_MEM_ACCESS_MASK;

		return mprotect((void *)(uintptr_t)cmd->start, cmd->end - cmd->start,
				access == OBMM_SHM_MEM_NO_ACCESS ? PROT_NONE : PROT_READ);
	}
	}
	REQUIRE(!"a request that the smoke test makes");
	return -1;
}

static void *fake_mmap(struct obmm_sys *sys, void *addr, size_t length, int prot, int flags, int fd,
		       uint64_t offset)
{
	struct fake *fake = (struct fake *)sys;

	REQUIRE(fd > CONTROL_FD && fake->opened[fd - CONTROL_FD]);
	if (fails(fake, 0))
		return MAP_FAILED;
	fake->mapped++;
	return mmap(addr, length, prot, flags, fake->memory, (off_t)offset);
}

static int fake_munmap(struct obmm_sys *sys, void *addr, size_t length)
{
	struct fake *fake = (struct fake *)sys;

	/* really, even when it "fails": the test wants its memory back */
	munmap(addr, length);
	fake->mapped--;
	return fails(fake, 0) ? -1 : 0;
}

static int fake_close(struct obmm_sys *sys, int fd)
{
	struct fake *fake = (struct fake *)sys;

	if (fd == CONTROL_FD)
		fake->control_open = false;
	else
		fake->opened[fd - CONTROL_FD] = false;
	return 0;
}

static void put(const char *root, const char *name, const char *text)
{
	char path[512];
	FILE *file;

	snprintf(path, sizeof(path), "%s/sys/devices/ub_bus_controller0/00001/%s", root, name);
	file = fopen(path, "w");
	REQUIRE(file);
	fputs(text, file);
	fclose(file);
}

static void make_root(char *root)
{
	char command[256];

	REQUIRE(mkdtemp(root));
	snprintf(command, sizeof(command), "mkdir -p %s/sys/devices/ub_bus_controller0/00001", root);
	REQUIRE(!system(command));
	put(root, "ubc", "0x0\n");
	put(root, "eid", "18\n");
	put(root, "primary_cna", "0x040a\n");
	put(root, "ummu_map", "0x00\n");
	put(root, "numa", "0x00\n");
}

/* One run whose call number `fail` fails.  Whether the smoke test was content. */
static int smoke_with_failure(const char *root, int fail, uint64_t window, struct fake *fake)
{
	struct smoke smoke = { .fd = -1, .exported.fd = -1, .imported.fd = -1, .window = window };
	int out, null, ok;

	*fake = (struct fake){
		.sys = {
			.size = sizeof(struct obmm_sys),
			.open = fake_open,
			.ioctl = fake_ioctl,
			.mmap = fake_mmap,
			.munmap = fake_munmap,
			.close = fake_close,
			.root = root,
			.name = "fake",
		},
		.fail = fail,
		.memory = memfd_create("obmm-test", MFD_CLOEXEC),
	};
	REQUIRE(fake->memory >= 0 && !ftruncate(fake->memory, (off_t)MEMORY_SIZE));
	smoke.sys = &fake->sys;
	smoke.size = MEMORY_SIZE;
	fflush(stdout);
	out = dup(STDOUT_FILENO);
	null = open("/dev/null", O_WRONLY | O_CLOEXEC);
	REQUIRE(out >= 0 && null >= 0 && dup2(null, STDOUT_FILENO) >= 0);
	smoke.report = report_new(0, fake->sys.name, 0, smoke.size);
	ok = run(&smoke);
	fflush(stdout);
	dup2(out, STDOUT_FILENO);
	close(out);
	close(null);
	close(fake->memory);
	return ok;
}

static void check_every_failure(uint64_t window, int least_calls)
{
	char root[] = "/tmp/obmm-test-XXXXXX", command[64];
	struct fake fake;
	int calls;

	make_root(root);
	CHECK(smoke_with_failure(root, -1, window, &fake));
	calls = fake.calls;
	CHECK(calls >= least_calls);
	for (int fail = -1; fail < calls; fail++) {
		unsigned int before = test_failures;

		CHECK_EQ(smoke_with_failure(root, fail, window, &fake), fail < 0);
		CHECK(!fake.control_open && !fake.opened[1] && !fake.opened[2]);
		CHECK_EQ(fake.mapped, 0);
		/* a region stays only where its own removal was refused */
		CHECK_EQ(fake.region[1], fake.failed_request == OBMM_CMD_UNEXPORT);
		CHECK_EQ(fake.region[2], fake.failed_request == OBMM_CMD_UNIMPORT);
		if (test_failures != before)
			printf("  when call %d fails (request %#lx)\n", fail, fake.failed_request);
	}
	snprintf(command, sizeof(command), "rm -r %s", root);
	REQUIRE(!system(command));
}

TEST(nothing_stays_behind_whichever_call_fails)
{
	/* open, EXPORT, open, mmap, own, IMPORT, open, mmap, own; own, munmap, UNIMPORT, own, munmap, UNEXPORT */
	check_every_failure(0x10000000000, 15);
}

TEST(nothing_stays_behind_without_a_window_either)
{
	check_every_failure(0, 8);
}

TEST(a_host_without_controllers_is_refused_before_anything_is_made)
{
	struct fake fake;

	CHECK(!smoke_with_failure("/nonexistent", -1, 0, &fake));
	CHECK_EQ(fake.calls, 1);
	CHECK(!fake.control_open);
}
