/* SPDX-License-Identifier: Apache-2.0 */
/* The stand-in's state and rules: failures half way, deaths, hostile requests (SDK specification 7, 16). */
#include "test.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "../sdk_standin/standin.h"
#include "../sdk_standin/state.h"
#include "standin_nodes.h"

#define UNIT 65536ULL

static struct standin_cluster *cluster;

/* This process as on one node; a number of its own each time, so that it can play several. */
static uint32_t enter(uint32_t node)
{
	static int32_t pid = 1 << 22; /* beyond the kernel's largest */
	uint32_t process;

	standin_lock(cluster->state);
	process = standin_enter(cluster, ++pid, 1000, 100, node, 0);
	standin_unlock(cluster->state);
	return process;
}

static void begin(void)
{
	const char *folder = nodes_begin(UNIT);

	REQUIRE(!standin_cluster_open(folder, &cluster));
}

static void end(void)
{
	standin_cluster_close(cluster);
	CHECK_EQ(nodes_end(), 0);
	CHECK_EQ(nodes_exported, 0);
	CHECK_EQ(nodes_imported, 0);
}

static int ask(uint32_t process, struct standin_request request, const void *payload, struct standin_turn *out)
{
	struct standin_turn turn = { .cluster = cluster, .process = process, .request = &request, .payload = payload };
	int code = standin_answer(&turn);

	if (out)
		*out = turn;
	else
		free(turn.body);
	return code;
}

static int on_name(uint32_t process, enum standin_op op, const char *name)
{
	struct standin_request request = { .op = op };

	snprintf(request.name, sizeof(request.name), "%s", name);
	return ask(process, request, NULL, NULL);
}

static int create(uint32_t process, const char *name, uint64_t size)
{
	struct standin_request request = { .op = STANDIN_CREATE, .arg = { size, 0600 }, .region = "default" };

	snprintf(request.name, sizeof(request.name), "%s", name);
	return ask(process, request, NULL, NULL);
}

static int busy(const char *name)
{
	return standin_busy(standin_find(cluster->state, name));
}

static void leave(uint32_t process)
{
	standin_lock(cluster->state);
	standin_leave(cluster, process, cluster->state->processes[process].session);
	standin_unlock(cluster->state);
}

TEST(an_import_that_fails_half_way_leaves_nothing)
{
	uint32_t a, b;

	begin();
	a = enter(0);
	b = enter(1);
	CHECK_EQ(create(a, "x", 3 * UNIT), 0);
	nodes_imports_left = 2;
	CHECK_EQ(on_name(b, STANDIN_MAP, "x"), UBSM_ERR_UBSE);
	CHECK_EQ(nodes_imported, 0);
	nodes_imports_left = 3;
	CHECK_EQ(on_name(b, STANDIN_MAP, "x"), 0);
	CHECK_EQ(nodes_imported, 3);
	CHECK_EQ(on_name(b, STANDIN_UNMAP, "x"), 0);
	CHECK_EQ(on_name(a, STANDIN_DELETE, "x"), 0);
	end();
}

TEST(section_7_2_mode_bits)
{
	static const struct {
		uint32_t uid, gid, mode;
		int prot, code, open;
	} cases[] = {
		{ 1000, 100, 0600, 3, 0, O_RDWR },
		{ 1000, 100, 0400, 3, UBSM_ERR_NOPERM, 0 },
		{ 1000, 100, 0400, 0, 0, O_RDONLY },
		{ 1000, 100, 0200, 0, UBSM_ERR_NOPERM, 0 },
		{ 1000, 100, 0200, 2, UBSM_ERR_NOPERM, 0 },
		{ 1000, 100, 0077, 0, UBSM_ERR_NOPERM, 0 }, /* the owner's bits decide for the owner */
		{ 1001, 100, 0060, 3, 0, O_RDWR },
		{ 1001, 100, 0606, 1, UBSM_ERR_NOPERM, 0 },
		{ 1001, 101, 0004, 1, 0, O_RDONLY },
		{ 1001, 101, 0004, 2, UBSM_ERR_NOPERM, 0 },
		{ 0, 0, 0660, 1, UBSM_ERR_NOPERM, 0 }, /* root has no override */
		{ 0, 0, 0000, 0, UBSM_ERR_NOPERM, 0 },
		{ 1001, 101, 0001, 3, 0, O_RDWR }, /* the quirk */
	};
	uint32_t owner, other;

	begin();
	owner = enter(0);
	for (unsigned int i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		struct standin_request map = { .op = STANDIN_MAP, .arg = { cases[i].prot }, .name = "x" };

		CHECK_EQ(create(owner, "x", UNIT), 0);
		standin_find(cluster->state, "x")->mode = cases[i].mode;
		other = enter(1);
		cluster->state->processes[other].uid = cases[i].uid;
		cluster->state->processes[other].gid = cases[i].gid;
		CHECK_EQ(ask(other, map, NULL, NULL), cases[i].code);
		if (!cases[i].code)
			CHECK_EQ(standin_find(cluster->state, "x")->on[1].open_mode, cases[i].open);
		leave(other);
		CHECK_EQ(on_name(owner, STANDIN_DELETE, "x"), 0);
	}
	end();
}

TEST(s15_a_busy_region_keeps_the_process_registered)
{
	uint32_t a, b;

	begin();
	a = enter(0);
	b = enter(1);
	CHECK_EQ(create(a, "x", 2 * UNIT), 0);
	CHECK_EQ(on_name(b, STANDIN_MAP, "x"), 0);
	nodes_busy = 1;
	CHECK_EQ(on_name(b, STANDIN_UNMAP, "x"), UBSM_ERR_UBSE);
	CHECK_EQ(on_name(b, STANDIN_MAP, "x"), UBSM_ERR_ALREADY_EXIST);
	CHECK_EQ(on_name(a, STANDIN_DELETE, "x"), UBSM_ERR_IN_USING);
	nodes_busy = 0;
	CHECK_EQ(on_name(b, STANDIN_UNMAP, "x"), 0);
	CHECK_EQ(on_name(b, STANDIN_UNMAP, "x"), UBSM_ERR_NOT_FOUND);
	CHECK_EQ(on_name(a, STANDIN_DELETE, "x"), 0);
	end();
}

TEST(s7_of_three_units_all_go_or_none)
{
	uint32_t a, b;

	begin();
	a = enter(0);
	b = enter(1);
	CHECK_EQ(create(a, "x", 3 * UNIT), 0);
	CHECK_EQ(on_name(b, STANDIN_MAP, "x"), 0);
	nodes_open = 2;
	CHECK_EQ(on_name(b, STANDIN_UNMAP, "x"), UBSM_ERR_UBSE);
	CHECK_EQ(nodes_imported, 3);
	nodes_open = 0;
	CHECK_EQ(on_name(b, STANDIN_UNMAP, "x"), 0);
	nodes_open = 2;
	CHECK_EQ(on_name(a, STANDIN_DELETE, "x"), UBSM_ERR_IN_USING);
	CHECK_EQ(nodes_exported, 3);
	CHECK_EQ(on_name(b, STANDIN_MAP, "x"), 0);
	CHECK_EQ(nodes_imported, 3);
	nodes_open = 0;
	CHECK_EQ(on_name(b, STANDIN_UNMAP, "x"), 0);
	CHECK_EQ(on_name(a, STANDIN_DELETE, "x"), 0);
	CHECK_EQ(nodes_exported, 0);
	end();
}

TEST(s12_who_leaves_makes_the_name_busy_until_the_region_is_free)
{
	uint32_t a, b;

	begin();
	a = enter(0);
	b = enter(1);
	CHECK_EQ(create(a, "x", UNIT), 0);
	CHECK_EQ(on_name(b, STANDIN_MAP, "x"), 0);
	nodes_busy = 1;
	leave(b);
	CHECK(busy("x"));
	CHECK_EQ(on_name(a, STANDIN_DELETE, "x"), UBSM_ERR_BUSY);
	CHECK_EQ(on_name(a, STANDIN_MAP, "x"), UBSM_ERR_BUSY);
	CHECK_EQ(create(a, "x", UNIT), UBSM_ERR_BUSY);
	CHECK(cluster->state->processes[b].used);
	nodes_busy = 0;
	CHECK_EQ(on_name(a, STANDIN_DELETE, "x"), 0);
	CHECK(!cluster->state->processes[b].used);
	leave(a);
	end();
}

TEST(s12_the_last_of_a_node_is_who_takes_the_units_away)
{
	uint32_t a, b, other;

	begin();
	a = enter(0);
	b = enter(1);
	other = enter(1);
	CHECK_EQ(create(a, "x", UNIT), 0);
	CHECK_EQ(on_name(b, STANDIN_MAP, "x"), 0);
	CHECK_EQ(on_name(other, STANDIN_MAP, "x"), 0);
	leave(b);
	CHECK_EQ(nodes_imported, 1);
	leave(other);
	CHECK_EQ(nodes_imported, 0);
	CHECK_EQ(on_name(a, STANDIN_DELETE, "x"), 0);
	end();
}

TEST(s12_leases_and_locks_go_with_their_process)
{
	struct standin_request lease = { .op = STANDIN_LEASE, .arg = { 4 * UNIT }, .region = "default" };
	uint32_t a, b;

	begin();
	a = enter(0);
	b = enter(1);
	CHECK_EQ(create(a, "x", UNIT), 0);
	CHECK_EQ(ask(b, lease, NULL, NULL), 0);
	CHECK_EQ(nodes_imported, 4);
	CHECK_EQ(on_name(b, STANDIN_WRITE_LOCK, "x"), 0);
	CHECK_EQ(on_name(a, STANDIN_WRITE_LOCK, "x"), UBSM_ERR_DLOCK);
	leave(b);
	CHECK_EQ(nodes_imported, 0);
	CHECK_EQ(on_name(a, STANDIN_WRITE_LOCK, "x"), 0);
	CHECK_EQ(on_name(a, STANDIN_WRITE_LOCK, "x"), UBSM_ERR_LOCK_ALREADY_LOCKED);
	CHECK_EQ(on_name(a, STANDIN_UNLOCK, "x"), 0);
	CHECK_EQ(on_name(a, STANDIN_DELETE, "x"), 0);
	end();
}

TEST(readers_count_and_keep_a_writer_out)
{
	uint32_t a, b;

	begin();
	a = enter(0);
	b = enter(1);
	CHECK_EQ(create(a, "x", UNIT), 0);
	CHECK_EQ(on_name(a, STANDIN_READ_LOCK, "x"), 0);
	CHECK_EQ(on_name(a, STANDIN_READ_LOCK, "x"), 0);
	CHECK_EQ(on_name(b, STANDIN_READ_LOCK, "x"), 0);
	CHECK_EQ(on_name(a, STANDIN_UNLOCK, "x"), 0);
	CHECK_EQ(on_name(b, STANDIN_UNLOCK, "x"), 0);
	CHECK_EQ(on_name(b, STANDIN_UNLOCK, "x"), UBSM_ERR_NOT_FOUND);
	CHECK_EQ(on_name(b, STANDIN_WRITE_LOCK, "x"), UBSM_ERR_DLOCK);
	CHECK_EQ(on_name(a, STANDIN_UNLOCK, "x"), 0);
	CHECK_EQ(on_name(b, STANDIN_WRITE_LOCK, "x"), 0);
	CHECK_EQ(on_name(a, STANDIN_READ_LOCK, "x"), UBSM_ERR_DLOCK);
	CHECK_EQ(on_name(b, STANDIN_UNLOCK, "x"), 0);
	CHECK_EQ(on_name(a, STANDIN_DELETE, "x"), 0);
	end();
}

TEST(a_lease_that_cannot_be_freed_stays_its_borrowers)
{
	struct standin_request lease = { .op = STANDIN_LEASE, .arg = { UNIT }, .region = "default" };
	struct standin_request give_back = { .op = STANDIN_LEASE_FREE };
	struct standin_turn turn;
	uint32_t a;

	begin();
	a = enter(0);
	CHECK_EQ(ask(a, lease, NULL, &turn), 0);
	give_back.arg[0] = ((struct standin_units *)turn.body)->lease;
	free(turn.body);
	nodes_busy = 1;
	CHECK_EQ(ask(a, give_back, NULL, NULL), UBSM_ERR_UBSE);
	CHECK_EQ(ask(enter(0), give_back, NULL, NULL), UBSM_ERR_NOT_FOUND);
	nodes_busy = 0;
	CHECK_EQ(ask(a, give_back, NULL, NULL), 0);
	CHECK_EQ(ask(a, give_back, NULL, NULL), UBSM_ERR_NOT_FOUND);
	end();
}

TEST(s11_no_numa_node_appears_here)
{
	struct standin_request lease = { .op = STANDIN_LEASE, .arg = { UNIT, 0, 0x40 }, .region = "default" };

	begin();
	CHECK_EQ(ask(enter(0), lease, NULL, NULL), UBSM_ERR_UBSE);
	end();
}

TEST(after_a_reconnection_only_what_is_listed_is_kept)
{
	struct standin_request lease = { .op = STANDIN_LEASE, .arg = { UNIT }, .region = "default" };
	struct standin_request leases = { .op = STANDIN_STILL_LEASES }, names = { .op = STANDIN_STILL_OBJECTS };
	char kept[48] = "x";
	uint64_t number;
	struct standin_turn turn;
	uint32_t a, b;

	begin();
	a = enter(0);
	b = enter(1);
	CHECK_EQ(create(a, "x", UNIT), 0);
	CHECK_EQ(create(a, "y", UNIT), 0);
	CHECK_EQ(on_name(b, STANDIN_MAP, "x"), 0);
	CHECK_EQ(on_name(b, STANDIN_MAP, "y"), 0);
	CHECK_EQ(ask(b, lease, NULL, NULL), 0);
	CHECK_EQ(ask(b, lease, NULL, &turn), 0);
	number = ((struct standin_units *)turn.body)->lease;
	free(turn.body);
	CHECK_EQ(nodes_imported, 4);
	leases.size = sizeof(number);
	CHECK_EQ(ask(b, leases, &number, NULL), 0);
	CHECK_EQ(nodes_imported, 3);
	names.size = sizeof(kept);
	CHECK_EQ(ask(b, names, kept, NULL), 0);
	CHECK_EQ(nodes_imported, 2);
	CHECK_EQ(on_name(a, STANDIN_DELETE, "y"), 0);
	CHECK_EQ(on_name(a, STANDIN_DELETE, "x"), UBSM_ERR_IN_USING);
	leave(b);
	CHECK_EQ(on_name(a, STANDIN_DELETE, "x"), 0);
	end();
}

TEST(a_new_session_of_the_same_process_begins_with_nothing)
{
	struct standin_process before;
	uint32_t a, b;

	begin();
	a = enter(0);
	b = enter(1);
	CHECK_EQ(create(a, "x", UNIT), 0);
	CHECK_EQ(on_name(b, STANDIN_MAP, "x"), 0);
	before = cluster->state->processes[b];
	standin_lock(cluster->state);
	CHECK_EQ(standin_enter(cluster, before.pid, 1000, 100, 1, 1), b);
	CHECK_EQ(nodes_imported, 1);
	/* the end of the earlier connection is noticed late */
	standin_leave(cluster, b, before.session);
	CHECK_EQ(nodes_imported, 1);
	CHECK_EQ(standin_enter(cluster, before.pid, 1000, 100, 1, 0), b);
	CHECK_EQ(nodes_imported, 0);
	standin_unlock(cluster->state);
	CHECK_EQ(on_name(b, STANDIN_MAP, "x"), 0);
	CHECK_EQ(on_name(b, STANDIN_UNMAP, "x"), 0);
	CHECK_EQ(on_name(a, STANDIN_DELETE, "x"), 0);
	end();
}

TEST(the_dead_are_told_from_later_processes_of_their_pid)
{
	uint32_t a, b;

	begin();
	a = enter(0);
	standin_lock(cluster->state);
	b = standin_enter(cluster, getpid(), 1000, 100, 1, 0);
	standin_unlock(cluster->state);
	CHECK_EQ(create(a, "x", UNIT), 0);
	CHECK_EQ(on_name(b, STANDIN_MAP, "x"), 0);
	standin_lock(cluster->state);
	standin_bury(cluster);
	CHECK_EQ(nodes_imported, 1);
	cluster->state->processes[b].started--;
	standin_bury(cluster);
	CHECK_EQ(nodes_imported, 0);
	standin_unlock(cluster->state);
	CHECK_EQ(on_name(a, STANDIN_DELETE, "x"), 0);
	end();
}

/* A child that ends in the middle of a change, with the lock. */
static void die_in_a_change(uint64_t units)
{
	struct standin_record *record;
	pid_t pid = fork();

	if (!pid) {
		standin_lock(cluster->state);
		if (standin_make(cluster, units * UNIT, 0, 0, &record))
			_exit(1);
		_exit(0);
	}
	REQUIRE(pid > 0);
	CHECK_EQ(waitpid(pid, NULL, 0), pid);
	nodes_exported += (int)units; /* the child's; they are taken back here */
}

TEST(a_process_that_dies_with_the_lock_stops_no_other)
{
	uint32_t a;

	if (getenv("OBMM_TEST_QEMU_USER")) {
		puts("left out: qemu-user has no robust mutexes, the kernel has");
		return;
	}
	begin();
	a = enter(0);
	die_in_a_change(2);
	CHECK_EQ(create(a, "x", UNIT), 0);
	CHECK_EQ(on_name(a, STANDIN_DELETE, "x"), 0);
	end();
}

TEST(objects_have_as_many_units_as_the_engine_takes)
{
	uint32_t a;

	begin();
	a = enter(0);
	CHECK_EQ(create(a, "x", (STANDIN_UNITS + 1) * UNIT), UBSM_ERR_UBSE);
	CHECK_EQ(create(a, "x", UINT64_MAX), UBSM_ERR_UBSE);
	CHECK_EQ(create(a, "x", STANDIN_UNITS * UNIT), 0);
	CHECK_EQ(on_name(a, STANDIN_DELETE, "x"), 0);
	end();
}

TEST(a_full_table_is_the_engines_refusal)
{
	char name[16];
	uint32_t a;

	begin();
	a = enter(0);
	for (int i = 0; i < STANDIN_RECORDS; i++) {
		snprintf(name, sizeof(name), "n%d", i);
		REQUIRE(!create(a, name, 1));
	}
	CHECK_EQ(create(a, "more", 1), UBSM_ERR_UBSE);
	CHECK_EQ(on_name(a, STANDIN_DELETE, "n7"), 0);
	CHECK_EQ(create(a, "more", 1), 0);
	CHECK_EQ(on_name(a, STANDIN_DELETE, "more"), 0);
	for (int i = 0; i < STANDIN_RECORDS; i++) {
		snprintf(name, sizeof(name), "n%d", i);
		if (i != 7)
			CHECK_EQ(on_name(a, STANDIN_DELETE, name), 0);
	}
	end();
}

TEST(process_places_are_used_again)
{
	begin();
	for (int i = 0; i < 3 * STANDIN_PROCESSES; i++) {
		uint32_t process = enter(0);

		REQUIRE(process != STANDIN_NOBODY);
		leave(process);
	}
	for (int i = 0; i < STANDIN_PROCESSES; i++)
		REQUIRE(enter(0) != STANDIN_NOBODY);
	CHECK_EQ(enter(0), STANDIN_NOBODY);
	end();
}

TEST(hostile_requests_are_refused_and_write_nowhere_else)
{
	static const uint32_t ops[] = {
		STANDIN_GROUPS,	      STANDIN_RESOLVE,	      STANDIN_CREATE,	   STANDIN_CREATE_AT,	   STANDIN_MAP,
		STANDIN_UNMAP,	      STANDIN_DELETE,	      STANDIN_REGION_CREATE, STANDIN_REGION_LOOKUP, STANDIN_REGION_DESTROY,
		STANDIN_WRITE_LOCK,   STANDIN_READ_LOCK,      STANDIN_UNLOCK,	   STANDIN_CLUSTER,	   STANDIN_LIST,
		STANDIN_LOOKUP,	      STANDIN_SLOT,	      STANDIN_LEASE,	   STANDIN_LEASE_AT,	   STANDIN_LEASE_FREE,
		STANDIN_STILL_LEASES, STANDIN_STILL_OBJECTS, 0,			   99,			   UINT32_MAX,
	};
	struct standin_request request = { .arg = { UINT64_MAX, UINT64_MAX, UINT64_MAX, UINT64_MAX } };
	uint32_t a;

	begin();
	a = enter(0);
	memset(request.name, 'n', sizeof(request.name) - 1);
	memset(request.region, 'r', sizeof(request.region) - 1);
	for (unsigned int i = 0; i < sizeof(ops) / sizeof(ops[0]); i++) {
		for (uint32_t size = 0; size < 4096; size += 1 + size / 2) {
			uint8_t *payload = malloc(size ? size : 1);

			memset(payload, 'p', size);
			request.op = ops[i];
			request.size = size;
			ask(a, request, size ? payload : NULL, NULL);
			free(payload);
		}
	}
	CHECK_EQ(create(a, "nnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnn", UNIT), UBSM_ERR_UBSE); /* 48 */
	end();
}

TEST(s14_faults_come_in_order_each_to_its_own_call)
{
	const char *folder;
	uint32_t a;

	begin();
	a = enter(0);
	folder = getenv("OBMM_SDK_STANDIN");
	CHECK_EQ(ubsmem_standin_inject(folder, STANDIN_CREATE, 6099, 0, 0, 2), 0);
	CHECK_EQ(ubsmem_standin_inject(folder, STANDIN_DELETE, 6050, 1, 0, 1), 0);
	CHECK_EQ(ubsmem_standin_inject(folder, STANDIN_CREATE, 6017, 0, 0, 1), 0);
	CHECK_EQ(ubsmem_standin_inject(folder, STANDIN_CREATE, 6017, 0, 0, 0), -EINVAL);
	CHECK_EQ(create(a, "x", UNIT), 6099);
	CHECK_EQ(create(a, "x", UNIT), 6099);
	CHECK_EQ(create(a, "x", UNIT), 6017);
	CHECK_EQ(create(a, "x", UNIT), 0);
	CHECK_EQ(on_name(a, STANDIN_DELETE, "x"), 6050);
	CHECK_EQ(on_name(a, STANDIN_DELETE, "x"), 0);
	for (int i = 0; i < STANDIN_FAULTS; i++)
		CHECK_EQ(ubsmem_standin_inject(folder, STANDIN_SLOT, 1, 0, 0, 1), 0);
	CHECK_EQ(ubsmem_standin_inject(folder, STANDIN_SLOT, 1, 0, 0, 1), -ENOSPC);
	end();
}

TEST(a_folder_that_is_no_stand_in_is_refused)
{
	struct standin_cluster *other;
	char path[128];
	FILE *file;

	CHECK_EQ(standin_cluster_open("/nowhere", &other), -ENOENT);
	begin();
	CHECK_EQ(ubsmem_standin_create(getenv("OBMM_SDK_STANDIN"), "f", "a", 1), -EEXIST);
	end();
	CHECK_EQ(mkdtemp(strcpy(path, "/tmp/obmm-standin-test-XXXXXX")) == NULL, 0);
	CHECK_EQ(ubsmem_standin_create(path, "f", "", 1), -EINVAL);
	CHECK_EQ(ubsmem_standin_create(path, "f", "a", 0), -EINVAL);
	CHECK_EQ(standin_cluster_open(path, &other), -ENOENT);
	strcat(path, "/state");
	file = fopen(path, "w");
	fputs("short", file);
	fclose(file);
	*strrchr(path, '/') = '\0';
	CHECK_EQ(standin_cluster_open(path, &other), -EPROTO);
	strcat(path, "/state");
	unlink(path);
	*strrchr(path, '/') = '\0';
	CHECK_EQ(rmdir(path), 0);
}

TEST(status_is_json)
{
	char text[512], expected[512];
	uint32_t a, b;

	begin();
	a = enter(0);
	standin_lock(cluster->state);
	b = standin_enter(cluster, getpid(), 1000, 100, 1, 0);
	standin_unlock(cluster->state);
	CHECK_EQ(create(a, "x", UNIT), 0);
	CHECK_EQ(create(a, "y", UNIT), 0);
	CHECK_EQ(on_name(b, STANDIN_MAP, "x"), 0);
	CHECK_EQ(ubsmem_standin_status(getenv("OBMM_SDK_STANDIN"), text, sizeof(text)), 0);
	snprintf(expected, sizeof(expected),
		 "{\"objects\":{\"x\":{\"b\":[%d]},\"y\":{}},\"leases\":0,\"engine_calls\":0,\"busy\":[]}", getpid());
	CHECK_STR(text, expected);
	CHECK_EQ(ubsmem_standin_status(getenv("OBMM_SDK_STANDIN"), text, 16), -ENOSPC);
	CHECK_EQ(ubsmem_standin_destroy(getenv("OBMM_SDK_STANDIN")), 0);
	end();
}
