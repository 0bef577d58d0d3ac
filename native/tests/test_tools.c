/* SPDX-License-Identifier: Apache-2.0 */
/* The parts of the smoke test. */
#include "test.h"

#include <errno.h>
#include <signal.h>
#include <sys/stat.h>

#include "../core/sys.h"
#include "../tools/chase.h"
#include "../tools/explain.h"
#include "../tools/faults.h"
#include "../core/topology.h"

TEST(sizes_have_binary_units)
{
	static const struct {
		const char *text;
		uint64_t bytes;
	} SIZES[] = {
		{ "1", 1 },
		{ "0", 0 },
		{ "010", 10 },
		{ "4096B", 4096 },
		{ "4k", 4096 },
		{ "4M", 4 << 20 },
		{ "4MB", 4 << 20 },
		{ "4MiB", 4 << 20 },
		{ "3GiB", 3ULL << 30 },
		{ "16777215T", 16777215ULL << 40 },
		{ "18446744073709551615", UINT64_MAX },
	};

	for (size_t i = 0; i < sizeof(SIZES) / sizeof(SIZES[0]); i++) {
		uint64_t bytes = 12345;

		CHECK_EQ(obmm_parse_size(SIZES[i].text, &bytes), 0);
		CHECK_EQ(bytes, SIZES[i].bytes);
	}
}

TEST(other_sizes_are_refused)
{
	static const char *const MALFORMED[] = { "", "-1", "+1", " 1", "x", "4X", "4Mi B", "4MiBs", "M", "0x10", "1.5M" };
	static const char *const TOO_LARGE[] = { "18446744073709551616", "16777216T", "17179869184G" };
	uint64_t bytes;

	for (size_t i = 0; i < sizeof(MALFORMED) / sizeof(MALFORMED[0]); i++)
		CHECK_EQ(obmm_parse_size(MALFORMED[i], &bytes), -EINVAL);
	for (size_t i = 0; i < sizeof(TOO_LARGE) / sizeof(TOO_LARGE[0]); i++)
		CHECK_EQ(obmm_parse_size(TOO_LARGE[i], &bytes), -ERANGE);
}

/* root/name with this text; folders as needed */
static void put(const char *root, const char *name, const char *text)
{
	char path[512], *slash;
	FILE *file;

	snprintf(path, sizeof(path), "%s/%s", root, name);
	for (slash = strchr(path + strlen(root) + 1, '/'); slash; slash = strchr(slash + 1, '/')) {
		*slash = '\0';
		mkdir(path, 0700);
		*slash = '/';
	}
	file = fopen(path, "w");
	REQUIRE(file);
	fputs(text, file);
	fclose(file);
}

static void remove_tree(const char *root)
{
	char command[256];

	snprintf(command, sizeof(command), "rm -r %s", root);
	REQUIRE(!system(command));
}

TEST(the_first_controller_is_read_from_the_entity_that_has_ubc)
{
	static const uint8_t EID[16] = { 0x34, 0x12 };
	char root[] = "/tmp/obmm-test-XXXXXX";
	struct obmm_controller controller;

	REQUIRE(mkdtemp(root));
	CHECK_EQ(obmm_first_controller(root, &controller), -ENODEV);
	put(root, "sys/devices/ub_bus_controller1/00001/eid", "9\n");
	put(root, "sys/devices/ub_bus_controller1/00002/ubc", "0x1\n");
	CHECK_EQ(obmm_first_controller(root, &controller), -ENODEV);
	put(root, "sys/devices/ub_bus_controller1/00002/eid", "4660\n");
	put(root, "sys/devices/ub_bus_controller1/00002/primary_cna", "0x0a1b\n");
	put(root, "sys/devices/ub_bus_controller1/00002/ummu_map", "0x03\n");
	put(root, "sys/devices/ub_bus_controller1/00002/numa", "0x02\n");
	REQUIRE(!obmm_first_controller(root, &controller));
	CHECK_EQ(controller.index, 1u);
	CHECK_EQ(controller.cna, 0x0a1bu);
	CHECK_EQ(controller.ummu, 3u);
	CHECK_EQ(controller.numa, 2u);
	CHECK(!memcmp(controller.eid, EID, sizeof(EID)));
	remove_tree(root);
}

TEST(the_granule_is_the_memseg_else_2_mib)
{
	char root[] = "/tmp/obmm-test-XXXXXX";

	REQUIRE(mkdtemp(root));
	CHECK_EQ(obmm_granule(root), 2u << 20);
	put(root, "sys/module/obmm/parameters/mem_allocator_granu", "128M\n");
	CHECK_EQ(obmm_granule(root), 128u << 20);
	/* what drivers before December 2025 show for an unset value */
	put(root, "sys/module/obmm/parameters/mem_allocator_granu", "(null)\n");
	CHECK_EQ(obmm_granule(root), 2u << 20);
	remove_tree(root);
}

TEST(a_chain_is_one_cycle_through_every_line)
{
	static uint64_t memory[1000 * CHASE_LINE / sizeof(uint64_t)];
	uint64_t offset = 0;
	unsigned int steps = 0;

	chase_build(memory, sizeof(memory));
	do {
		offset = memory[offset / sizeof(uint64_t)];
		REQUIRE(offset < sizeof(memory) && offset % CHASE_LINE == 0);
		steps++;
	} while (offset && steps <= 1000);
	CHECK_EQ(steps, 1000u);
}

TEST(an_explanation_names_the_errno_its_rule_and_the_fix)
{
	char text[4096] = "";
	FILE *out = fmemopen(text, sizeof(text), "w");

	explain(out, "EXPORT", E2BIG);
	fclose(out);
	CHECK(strstr(text, "E2BIG (Argument list too long)\n  - ") == text);
	CHECK(strstr(text, "[X1]; fix: "));
}

TEST(an_answer_without_a_rule_says_so)
{
	char text[4096] = "";
	FILE *out = fmemopen(text, sizeof(text), "w");

	explain(out, "EXPORT", ENOTTY + 1000);
	fclose(out);
	CHECK(strstr(text, "no rule of the driver specification"));
}

static void raise_signal(void *signal)
{
	raise(*(int *)signal);
}

TEST(a_fault_ends_the_body_and_is_named)
{
	int bus = SIGBUS, segv = SIGSEGV, nothing = 0;

	CHECK_EQ(faults_catch(raise_signal, &bus), SIGBUS);
	CHECK_EQ(faults_catch(raise_signal, &segv), SIGSEGV);
	CHECK_EQ(faults_catch(raise_signal, &nothing), 0);
}

TEST(the_driver_is_the_default_backend)
{
	struct obmm_sys *sys;

	REQUIRE(!obmm_sys_open(NULL, &sys));
	CHECK_STR(sys->name, "kernel");
	REQUIRE(!obmm_sys_open("/dev/obmm", &sys));
	CHECK_STR(sys->name, "kernel");
}

TEST(a_device_that_is_none_is_refused)
{
	struct obmm_sys *sys;

	CHECK_EQ(obmm_sys_open("/dev/null", &sys), -EINVAL);
	CHECK_EQ(obmm_sys_open("emulated", &sys), -EINVAL);
	CHECK_EQ(obmm_sys_open("/dev/obmm#a", &sys), -EINVAL);
}

TEST(no_fabric_is_no_reason_to_fall_back)
{
	struct obmm_sys *sys = NULL;

	CHECK(obmm_sys_open("emulator:/nonexistent/fabric.sock", &sys) < 0);
	CHECK_PTR(sys, NULL);
}
