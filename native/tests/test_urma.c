/* SPDX-License-Identifier: Apache-2.0 */
/* The URMA stand-in and the lists over it, in one process: what sanitizers can watch (URMA specification 7, 10, 11). */
#include "test.h"

#include <errno.h>
#include <pthread.h>
#include <unistd.h>

#include "../urma/path.h"
#include "../urma_standin/urma.h"

#define NBYTES (1 << 20)
#define ROW 64

/* The stand-in moves bytes as a device would, between processes. */
static int no_process_vm(void)
{
	if (!getenv("OBMM_TEST_QEMU_USER"))
		return 0;
	puts("left out: qemu-user has no process_vm_readv, the kernel has");
	return 1;
}

static char folder[] = "/tmp/obmm-urma-test-XXXXXX";
static uint8_t table[NBYTES] __attribute__((aligned(4096))), landing[NBYTES] __attribute__((aligned(4096)));

/* One side of a connection, and an import of the table that lies in this very process. */
struct side {
	urma_context_t *context;
	urma_jfc_t *jfc;
	urma_jfr_t *jfr;
	urma_jetty_t *jetty;
	urma_target_seg_t *local, *remote;
	urma_target_jetty_t *target;
	struct obmm_urma_path *path;
};

static urma_target_seg_t *registered, *table_seg;
static struct side owner;

static void open_side(struct side *side)
{
	urma_jfc_cfg_t jfc = { .depth = 256 };
	urma_jfr_cfg_t jfr = { .depth = 8, .flag = 1, .trans_mode = URMA_TM_RM, .max_sge = 1, .token = { 77 } };
	urma_jetty_cfg_t jetty = { .flag = URMA_JETTY_SHARE_JFR };

	side->context = urma_create_context(urma_get_device_by_name("standin0"), 0);
	side->jfc = urma_create_jfc(side->context, &jfc);
	jfr.jfc = side->jfc;
	side->jfr = urma_create_jfr(side->context, &jfr);
	jetty.jfs_cfg = (urma_jfs_cfg_t){ .depth = 128, .trans_mode = URMA_TM_RM, .max_sge = 1, .max_rsge = 1, .jfc = side->jfc };
	jetty.jfr = side->jfr;
	side->jetty = urma_create_jetty(side->context, &jetty);
	REQUIRE(side->jetty);
}

static void attach(struct side *side)
{
	urma_seg_cfg_t mine = { (uintptr_t)landing, NBYTES, NULL, { 9 }, 1 | 1 << 5, 0, 0 };
	urma_rjetty_t target = { .jetty_id = owner.jetty->jetty_id, .trans_mode = URMA_TM_RM, .type = 1, .flag = 1, .tp_type = 1 };
	urma_token_t token = { 5 }, target_token = { 77 };
	uint64_t post, poll;
	int (*post_call)(urma_jetty_t *, urma_jfs_wr_t *, urma_jfs_wr_t **) = urma_post_jetty_send_wr;
	int (*poll_call)(urma_jfc_t *, int, urma_cr_t *) = urma_poll_jfc;

	open_side(side);
	side->local = urma_register_seg(side->context, &mine);
	side->remote = urma_import_seg(side->context, &table_seg->seg, &token, 0, 0);
	side->target = urma_import_jetty(side->context, &target, &target_token);
	memcpy(&post, &post_call, sizeof(post));
	memcpy(&poll, &poll_call, sizeof(poll));
	REQUIRE(side->local && side->remote && side->target);
	REQUIRE(!obmm_urma_path_create(post, poll, side->jetty, side->jfc, 128, 64, &side->path));
}

static void close_side(struct side *side)
{
	if (side->path)
		obmm_urma_path_free(side->path);
	if (side->target)
		CHECK_EQ(urma_unimport_jetty(side->target), 0);
	CHECK_EQ(urma_delete_jetty(side->jetty), 0);
	CHECK_EQ(urma_delete_jfr(side->jfr), 0);
	CHECK_EQ(urma_delete_jfc(side->jfc), 0);
	if (side->remote)
		CHECK_EQ(urma_unimport_seg(side->remote), 0);
	if (side->local)
		CHECK_EQ(urma_unregister_seg(side->local), 0);
}

static void begin(void)
{
	urma_seg_cfg_t cfg = { (uintptr_t)table, NBYTES, NULL, { 5 }, 1 | URMA_ACCESS_READ << 5, 0, 0 };

	strcpy(folder + strlen(folder) - 6, "XXXXXX");
	REQUIRE(mkdtemp(folder));
	REQUIRE(!urma_standin_create(folder, "a,b"));
	setenv("OBMM_URMA_STANDIN", folder, 1);
	REQUIRE(urma_init(NULL) == URMA_OK);
	for (size_t i = 0; i < NBYTES; i++)
		table[i] = (uint8_t)(i * 31 + i / 251);
	owner = (struct side){ 0 };
	open_side(&owner);
	registered = table_seg = urma_register_seg(owner.context, &cfg);
	REQUIRE(table_seg);
}

static void end(void)
{
	char path[64];

	if (registered)
		CHECK_EQ(urma_unregister_seg(registered), 0);
	close_side(&owner);
	CHECK_EQ(urma_delete_context(owner.context), 0);
	CHECK_EQ(urma_uninit(), 0);
	snprintf(path, sizeof(path), "%s/state", folder);
	unlink(path);
	rmdir(folder);
}

static struct obmm_urma_batch batch_of(const struct side *side, const uint64_t *offsets, uint64_t n, uint8_t *out)
{
	return (struct obmm_urma_batch){
		.target = side->target,
		.remote_segment = side->remote,
		.remote = (uintptr_t)table,
		.remote_bytes = NBYTES,
		.local_segment = side->local,
		.local = (uintptr_t)out,
		.local_bytes = n * ROW,
		.offsets = offsets,
		.length = ROW,
		.opcode = URMA_OPC_READ,
		.n = n,
		.timeout_ns = 5000000000,
	};
}

static void close_reader(struct side *side)
{
	close_side(side);
	CHECK_EQ(urma_delete_context(side->context), 0);
}

TEST(a_batch_of_many_lists_is_packed_in_its_order)
{
	struct obmm_urma_outcome outcome;
	struct side side = { 0 };
	uint64_t offsets[1000];
	struct obmm_urma_batch batch;

	if (no_process_vm())
		return;
	begin();
	attach(&side);
	for (uint64_t i = 0; i < 1000; i++)
		offsets[i] = i * 7919 % (NBYTES - ROW);
	batch = batch_of(&side, offsets, 1000, landing);
	CHECK_EQ(obmm_urma_transfer(side.path, &batch, &outcome), 0);
	CHECK_EQ(outcome.lists, 16);
	for (uint64_t i = 0; i < 1000; i++)
		CHECK(!memcmp(landing + i * ROW, table + offsets[i], ROW));
	close_reader(&side);
	end();
}

TEST(what_does_not_fit_is_refused_before_the_first_post)
{
	const uint64_t offsets[] = { 0, NBYTES - ROW + 1, UINT64_MAX - 8 };
	struct obmm_urma_outcome outcome;
	struct urma_standin_counts before, after;
	struct obmm_urma_batch batch;
	struct side side = { 0 };

	begin();
	attach(&side);
	urma_standin_counters(&before);
	batch = batch_of(&side, offsets, 2, landing);
	CHECK_EQ(obmm_urma_transfer(side.path, &batch, &outcome), -ERANGE);
	CHECK_EQ(outcome.index, 1);
	batch = batch_of(&side, offsets + 2, 1, landing);
	CHECK_EQ(obmm_urma_transfer(side.path, &batch, &outcome), -ERANGE);
	batch = batch_of(&side, offsets, 1, landing);
	batch.local_bytes = ROW - 1;
	CHECK_EQ(obmm_urma_transfer(side.path, &batch, &outcome), -ENOSPC);
	batch.n = 0;
	CHECK_EQ(obmm_urma_transfer(side.path, &batch, &outcome), 0);
	urma_standin_counters(&after);
	CHECK_EQ(after.posts, before.posts);
	CHECK(!obmm_urma_path_is_dead(side.path));
	close_reader(&side);
	end();
}

/* Another thread's write, at the worst time: after all was checked, before the second list is laid out. */
static uint64_t moving[128];
static uint32_t growing[128];
static int moves, grows;

static int post_then_change(urma_jetty_t *jetty, urma_jfs_wr_t *requests, urma_jfs_wr_t **bad)
{
	int rc = urma_post_jetty_send_wr(jetty, requests, bad);

	if (moves)
		moving[100] = UINT64_MAX - 8;
	if (grows)
		growing[100] = 65 * ROW;
	return rc;
}

TEST(numbers_that_change_after_they_were_checked_reach_nothing_outside)
{
	int (*post_call)(urma_jetty_t *, urma_jfs_wr_t *, urma_jfs_wr_t **) = post_then_change;
	int (*poll_call)(urma_jfc_t *, int, urma_cr_t *) = urma_poll_jfc;
	struct urma_standin_counts before, after;
	struct obmm_urma_outcome outcome;
	struct obmm_urma_batch batch;
	struct side side = { 0 };
	uint64_t post, poll;

	if (no_process_vm())
		return;
	begin();
	attach(&side);
	obmm_urma_path_free(side.path);
	memcpy(&post, &post_call, sizeof(post));
	memcpy(&poll, &poll_call, sizeof(poll));
	REQUIRE(!obmm_urma_path_create(post, poll, side.jetty, side.jfc, 128, 64, &side.path));
	for (uint64_t i = 0; i < 128; i++) {
		moving[i] = i * ROW;
		growing[i] = ROW;
	}
	batch = batch_of(&side, moving, 128, landing);
	batch.local_bytes = 128 * ROW;
	urma_standin_counters(&before);
	moves = 1;
	CHECK_EQ(obmm_urma_transfer(side.path, &batch, &outcome), -ERANGE);
	CHECK_EQ(outcome.index, 100);
	moves = 0;
	moving[100] = 100 * ROW;
	batch.lengths = growing;
	grows = 1;
	CHECK_EQ(obmm_urma_transfer(side.path, &batch, &outcome), -ENOSPC);
	CHECK_EQ(outcome.index, 100);
	grows = 0;
	growing[100] = ROW;
	urma_standin_counters(&after);
	CHECK_EQ(after.posts, before.posts + 2); /* the first list of each */
	CHECK(!obmm_urma_path_is_dead(side.path));
	CHECK_EQ(obmm_urma_transfer(side.path, &batch, &outcome), 0);
	CHECK(!memcmp(landing, table, 128 * ROW));
	close_reader(&side);
	end();
}

TEST(a_piece_that_fails_is_named_and_the_path_is_dead)
{
	uint64_t offsets[100] = { 0 };
	struct obmm_urma_outcome outcome;
	struct obmm_urma_batch batch;
	struct side side = { 0 };

	if (no_process_vm())
		return;
	begin();
	attach(&side);
	CHECK_EQ(urma_standin_inject(folder, "at=70,status=15"), 0);
	batch = batch_of(&side, offsets, 100, landing);
	CHECK_EQ(obmm_urma_transfer(side.path, &batch, &outcome), -EIO);
	CHECK_EQ(outcome.index, 70);
	CHECK_EQ(outcome.status, 15);
	CHECK_EQ(obmm_urma_transfer(side.path, &batch, &outcome), -ESHUTDOWN);
	close_reader(&side);
	end();
}

TEST(injected_faults_never_hang_and_never_leave_the_heap)
{
	static const char *const rules[] = { "every=9,delay=50", "every=9,late=50", "every=9,early", "every=40,list=1",
					     "every=40,poll",	 "every=9,duplicate", "every=40,drop", "every=40,swap" };
	uint64_t offsets[16] = { 0 };
	struct obmm_urma_outcome outcome;
	struct obmm_urma_batch batch;

	begin();
	for (size_t rule = 0; rule < sizeof(rules) / sizeof(rules[0]); rule++) {
		CHECK_EQ(urma_standin_inject(folder, rules[rule]), 0);
		for (int i = 0; i < 12; i++) {
			struct side side = { 0 };

			attach(&side);
			batch = batch_of(&side, offsets, 16, landing);
			batch.timeout_ns = 20000000;
			for (int n = 0; n < 4 && !obmm_urma_path_is_dead(side.path); n++)
				obmm_urma_transfer(side.path, &batch, &outcome);
			close_reader(&side);
		}
		CHECK_EQ(urma_standin_inject(folder, ""), 0);
	}
	end();
}

static void *read_rows(void *arg)
{
	struct side *side = arg;
	uint64_t offsets[64];

	for (int round = 0; round < 50; round++) {
		struct obmm_urma_outcome outcome;
		/* each thread has its part of the landing */
		uint8_t *out = landing + (uintptr_t)pthread_self() / 4096 % 64 * 64 * ROW;
		struct obmm_urma_batch batch;

		for (uint64_t i = 0; i < 64; i++)
			offsets[i] = (uint64_t)(round * 64 + (int)i) * ROW % (NBYTES - ROW);
		batch = batch_of(side, offsets, 64, out);
		if (obmm_urma_transfer(side->path, &batch, &outcome))
			return arg;
	}
	return NULL;
}

TEST(threads_share_a_path)
{
	pthread_t threads[6];
	struct side side = { 0 };
	void *failed;

	if (no_process_vm())
		return;
	begin();
	attach(&side);
	for (int i = 0; i < 6; i++)
		REQUIRE(!pthread_create(&threads[i], NULL, read_rows, &side));
	for (int i = 0; i < 6; i++) {
		pthread_join(threads[i], &failed);
		CHECK(!failed);
	}
	close_reader(&side);
	end();
}

static void *unregister(void *arg)
{
	(void)arg;
	usleep(2000);
	urma_unregister_seg(registered);
	registered = NULL;
	return NULL;
}

TEST(unregistering_during_reads_is_a_refusal)
{
	uint64_t offsets[64] = { 0 };
	struct obmm_urma_outcome outcome;
	struct obmm_urma_batch batch;
	struct side side = { 0 };
	pthread_t thread;
	int rc;

	if (no_process_vm())
		return;
	begin();
	attach(&side);
	batch = batch_of(&side, offsets, 64, landing);
	REQUIRE(!pthread_create(&thread, NULL, unregister, NULL));
	do {
		rc = obmm_urma_transfer(side.path, &batch, &outcome);
	} while (!rc);
	pthread_join(thread, NULL);
	CHECK_EQ(rc, -EIO);
	CHECK_EQ(outcome.status, URMA_CR_REM_ACCESS_ABORT_ERR);
	close_reader(&side);
	end();
}
