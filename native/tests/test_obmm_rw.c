/* SPDX-License-Identifier: Apache-2.0 */
/*
 * obmm_rw_* over a table that records: what the caller passes is what the
 * driver gets, what the driver answers is what the caller gets, once.
 */
#include "test.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/mman.h>

#include "../core/obmm_rw.h"

enum entry { NONE, OPEN, IOCTL, MMAP, MUNMAP, CLOSE };

struct call {
	enum entry entry;
	char path[64];
	int flags;
	int fd;
	unsigned long request;
	void *arg;
	unsigned char argument[256]; /* what arg pointed to */
	void *addr;
	uint64_t length;
	int prot;
	uint64_t offset;
};

struct fake {
	struct obmm_sys sys;
	unsigned int calls;
	struct call last;
	/* the answer: value, or errno if error; reply is copied to ioctl's argument on success */
	int value;
	int error;
	const void *reply;
};

static struct fake *record(struct obmm_sys *sys, const struct call *call)
{
	struct fake *fake = (struct fake *)sys;

	fake->calls++;
	fake->last = *call;
	return fake;
}

static int answer(const struct fake *fake)
{
	/* a stale errno must not turn a success into a failure */
	errno = fake->error ? fake->error : EXDEV;
	return fake->error ? -1 : fake->value;
}

static int fake_open(struct obmm_sys *sys, const char *path, int flags)
{
	struct call call = { .entry = OPEN, .flags = flags };

	snprintf(call.path, sizeof(call.path), "%s", path);
	return answer(record(sys, &call));
}

static int fake_ioctl(struct obmm_sys *sys, int fd, unsigned long request, void *arg)
{
	struct call call = { .entry = IOCTL, .fd = fd, .request = request, .arg = arg };
	struct fake *fake;

	if (arg)
		memcpy(call.argument, arg, _IOC_SIZE(request));
	fake = record(sys, &call);
	if (fake->reply && !fake->error)
		memcpy(arg, fake->reply, _IOC_SIZE(request));
	return answer(fake);
}

static void *fake_mmap(struct obmm_sys *sys, void *addr, size_t length, int prot, int flags, int fd,
		       uint64_t offset)
{
	struct call call = {
		.entry = MMAP,
		.flags = flags,
		.fd = fd,
		.addr = addr,
		.length = length,
		.prot = prot,
		.offset = offset,
	};

	return answer(record(sys, &call)) < 0 ? MAP_FAILED : (void *)0x7000000000;
}

static int fake_munmap(struct obmm_sys *sys, void *addr, size_t length)
{
	struct call call = { .entry = MUNMAP, .addr = addr, .length = length };

	return answer(record(sys, &call));
}

static int fake_close(struct obmm_sys *sys, int fd)
{
	struct call call = { .entry = CLOSE, .fd = fd };

	return answer(record(sys, &call));
}

static const struct fake FAKE = {
	.sys = {
		.size = sizeof(struct obmm_sys),
		.open = fake_open,
		.ioctl = fake_ioctl,
		.mmap = fake_mmap,
		.munmap = fake_munmap,
		.close = fake_close,
	},
};

/* Values that no driver would accept, so that a check anywhere shows. */
#define FD (-77)
#define ID 0xfedcba9876543210ULL
#define FLAGS 0xffffffffffffffffULL
#define ADDR ((void *)0x123)
#define LENGTH 0x8000000000000001ULL
#define OFFSET 0x7fffffffffffff01ULL

/* Where the out parameters of a call go; filled beforehand to see what it writes. */
static uint64_t out_a, out_b;
static void *out_address;

static unsigned char any_struct[256];

static void reset_outputs(void)
{
	out_a = out_b = 0xaaaaaaaaaaaaaaaaULL;
	out_address = (void *)0xaaaaaaaaaaaaaaaaULL;
	for (size_t i = 0; i < sizeof(any_struct); i++)
		any_struct[i] = (unsigned char)(i * 7 + 1);
}

static int outputs_untouched(void)
{
	return out_a == 0xaaaaaaaaaaaaaaaaULL && out_b == 0xaaaaaaaaaaaaaaaaULL &&
	       out_address == (void *)0xaaaaaaaaaaaaaaaaULL;
}

#define CALL(name, expression)                        \
	static int name(struct obmm_sys *sys)         \
	{                                             \
		return expression;                    \
	}

CALL(call_open, obmm_rw_open(sys))
CALL(call_close, obmm_rw_close(sys, FD))
CALL(call_ioctl, obmm_rw_ioctl(sys, FD, OBMM_U23_CMD_ADDR_QUERY, any_struct))
CALL(call_export, obmm_rw_export(sys, FD, (void *)any_struct))
CALL(call_export_useraddr, obmm_rw_export_useraddr(sys, FD, (void *)any_struct))
CALL(call_unexport, obmm_rw_unexport(sys, FD, ID, FLAGS))
CALL(call_import, obmm_rw_import(sys, FD, (void *)any_struct))
CALL(call_unimport, obmm_rw_unimport(sys, FD, ID, FLAGS))
CALL(call_declare, obmm_rw_declare_preimport(sys, FD, (void *)any_struct))
CALL(call_undeclare, obmm_rw_undeclare_preimport(sys, FD, (void *)any_struct))
CALL(call_query_pa, obmm_rw_query_pa(sys, FD, ID, OFFSET, &out_a))
CALL(call_query_id, obmm_rw_query_id(sys, FD, OFFSET, &out_a, &out_b))
CALL(call_shmdev_open_cc, obmm_rw_shmdev_open(sys, 1, O_RDWR))
CALL(call_shmdev_open_nc, obmm_rw_shmdev_open(sys, 1048575, O_RDONLY | O_SYNC))
CALL(call_shmdev_open_any, obmm_rw_shmdev_open(sys, FLAGS, O_WRONLY | O_DIRECT))
CALL(call_shmdev_open_zero, obmm_rw_shmdev_open(sys, 0, 0))
CALL(call_map, obmm_rw_map(sys, FD, NULL, OFFSET, LENGTH, PROT_NONE, 0, &out_address))
CALL(call_map_rw, obmm_rw_map(sys, FD, NULL, 4096, 0, PROT_READ | PROT_WRITE, 0, &out_address))
CALL(call_map_pmd, obmm_rw_map(sys, FD, NULL, 4 << 20, 2 << 20, PROT_READ, 1, &out_address))
CALL(call_map_fixed, obmm_rw_map(sys, FD, ADDR, 0, 4096, PROT_WRITE, 0, &out_address))
CALL(call_map_fixed_pmd, obmm_rw_map(sys, FD, ADDR, 1, LENGTH, -1, 8, &out_address))
CALL(call_unmap, obmm_rw_unmap(sys, ADDR, LENGTH))
CALL(call_seal, obmm_rw_seal(sys, ADDR, LENGTH))
CALL(call_own, obmm_rw_set_ownership(sys, FD, LENGTH, OFFSET, 0xfe, 0xfd))

static const struct {
	const char *name;
	int (*run)(struct obmm_sys *sys);
	struct call expected;
	/* ioctl: the argument's bytes; NULL: the caller's own struct, by its address */
	const void *argument;
} CASES[] = {
	{ "open", call_open, { .entry = OPEN, .path = "/dev/obmm", .flags = O_RDWR | O_CLOEXEC }, NULL },
	{ "close", call_close, { .entry = CLOSE, .fd = FD }, NULL },
	{ "ioctl", call_ioctl, { .entry = IOCTL, .fd = FD, .request = 0x7804 }, NULL },
	{ "export", call_export, { .entry = IOCTL, .fd = FD, .request = 0xC0E07800 }, NULL },
	{ "export_useraddr", call_export_useraddr, { .entry = IOCTL, .fd = FD, .request = 0xC0687805 }, NULL },
	{ "unexport", call_unexport, { .entry = IOCTL, .fd = FD, .request = 0x40107802 },
	  &(struct obmm_cmd_unexport){ .mem_id = ID, .flags = FLAGS } },
	{ "import", call_import, { .entry = IOCTL, .fd = FD, .request = 0xC0607801 }, NULL },
	{ "unimport", call_unimport, { .entry = IOCTL, .fd = FD, .request = 0x40107803 },
	  &(struct obmm_cmd_unimport){ .mem_id = ID, .flags = FLAGS } },
	{ "declare_preimport", call_declare, { .entry = IOCTL, .fd = FD, .request = 0xC0507806 }, NULL },
	{ "undeclare_preimport", call_undeclare, { .entry = IOCTL, .fd = FD, .request = 0x40507807 }, NULL },
	{ "query_pa", call_query_pa, { .entry = IOCTL, .fd = FD, .request = 0xC0207804 },
	  &(struct obmm_cmd_addr_query){ .key_type = 1, .mem_id = ID, .offset = OFFSET } },
	{ "query_id", call_query_id, { .entry = IOCTL, .fd = FD, .request = 0xC0207804 },
	  &(struct obmm_cmd_addr_query){ .key_type = 0, .pa = OFFSET } },
	{ "shmdev_open CC", call_shmdev_open_cc,
	  { .entry = OPEN, .path = "/dev/obmm_shmdev1", .flags = O_RDWR | O_CLOEXEC }, NULL },
	{ "shmdev_open NC", call_shmdev_open_nc,
	  { .entry = OPEN, .path = "/dev/obmm_shmdev1048575", .flags = O_RDONLY | O_SYNC | O_CLOEXEC }, NULL },
	{ "shmdev_open, any id", call_shmdev_open_any,
	  { .entry = OPEN, .path = "/dev/obmm_shmdev18446744073709551615", .flags = O_WRONLY | O_DIRECT | O_CLOEXEC },
	  NULL },
	{ "shmdev_open, id 0", call_shmdev_open_zero,
	  { .entry = OPEN, .path = "/dev/obmm_shmdev0", .flags = O_CLOEXEC }, NULL },
	{ "map", call_map,
	  { .entry = MMAP, .fd = FD, .length = LENGTH, .prot = PROT_NONE, .flags = MAP_SHARED, .offset = OFFSET },
	  NULL },
	{ "map rw", call_map_rw,
	  { .entry = MMAP, .fd = FD, .prot = PROT_READ | PROT_WRITE, .flags = MAP_SHARED, .offset = 4096 }, NULL },
	{ "map PMD: bit 63 beside the offset", call_map_pmd,
	  { .entry = MMAP, .fd = FD, .length = 2 << 20, .prot = PROT_READ, .flags = MAP_SHARED,
	    .offset = 0x8000000000400000ULL },
	  NULL },
	{ "map fixed", call_map_fixed,
	  { .entry = MMAP, .fd = FD, .addr = ADDR, .length = 4096, .prot = PROT_WRITE,
	    .flags = MAP_SHARED | MAP_FIXED },
	  NULL },
	{ "map fixed PMD", call_map_fixed_pmd,
	  { .entry = MMAP, .fd = FD, .addr = ADDR, .length = LENGTH, .prot = -1, .flags = MAP_SHARED | MAP_FIXED,
	    .offset = 0x8000000000000001ULL },
	  NULL },
	{ "unmap", call_unmap, { .entry = MUNMAP, .addr = ADDR, .length = LENGTH }, NULL },
	{ "seal", call_seal,
	  { .entry = MMAP, .fd = -1, .addr = ADDR, .length = LENGTH, .prot = PROT_NONE,
	    .flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED | MAP_NORESERVE },
	  NULL },
	{ "set_ownership", call_own, { .entry = IOCTL, .fd = FD, .request = 0x40185800 },
	  &(struct obmm_cmd_update_range){ .start = LENGTH, .end = OFFSET, .mem_state = 0xfe, .cache_ops = 0xfd } },
};

#define FOR_EACH_CASE(c) for (size_t c = 0; c < sizeof(CASES) / sizeof(CASES[0]); c++)

static void check_call(size_t c, const struct fake *fake)
{
	const struct call *expected = &CASES[c].expected, *last = &fake->last;
	unsigned int before = test_failures;

	CHECK_EQ(fake->calls, 1u);
	CHECK_EQ(last->entry, expected->entry);
	CHECK_STR(last->path, expected->path);
	CHECK_EQ(last->flags, expected->flags);
	CHECK_EQ(last->fd, expected->fd);
	CHECK_EQ(last->request, expected->request);
	CHECK_PTR(last->addr, expected->addr);
	CHECK_EQ(last->length, expected->length);
	CHECK_EQ(last->prot, expected->prot);
	CHECK_EQ(last->offset, expected->offset);
	if (CASES[c].argument)
		CHECK(!memcmp(last->argument, CASES[c].argument, _IOC_SIZE(last->request)));
	else if (expected->entry == IOCTL)
		CHECK_PTR(last->arg, any_struct);
	if (test_failures != before)
		printf("  in case %s\n", CASES[c].name);
}

TEST(every_call_passes_exactly_what_it_was_given)
{
	FOR_EACH_CASE(c) {
		struct fake fake = FAKE;

		reset_outputs();
		CASES[c].run(&fake.sys);
		check_call(c, &fake);
	}
}

TEST(every_refusal_comes_back_as_minus_errno_after_one_call)
{
	/* EINTR among them: NUMA removal is interrupted on purpose (spec 21) */
	static const int ERRORS[] = { EPERM, ENOENT, ESRCH, EINTR, EIO, E2BIG, EBADF, EAGAIN, ENOMEM, EACCES,
				      EFAULT, EBUSY, EEXIST, ENODEV, EINVAL, ENOTTY, ENOSPC, EOVERFLOW,
				      EOPNOTSUPP, ETIMEDOUT, ENOTRECOVERABLE };

	FOR_EACH_CASE(c) {
		for (size_t e = 0; e < sizeof(ERRORS) / sizeof(ERRORS[0]); e++) {
			struct fake fake = FAKE;

			fake.error = ERRORS[e];
			reset_outputs();
			CHECK_EQ(CASES[c].run(&fake.sys), -ERRORS[e]);
			CHECK_EQ(fake.calls, 1u);
			CHECK(outputs_untouched());
		}
	}
}

TEST(a_result_comes_back_unchanged)
{
	FOR_EACH_CASE(c) {
		struct fake fake = FAKE;

		fake.value = 12345;
		reset_outputs();
		CHECK_EQ(CASES[c].run(&fake.sys), CASES[c].expected.entry == MMAP ? 0 : 12345);
	}
}

TEST(nothing_but_the_driver_writes_the_callers_struct)
{
	unsigned char before[sizeof(any_struct)];

	FOR_EACH_CASE(c) {
		struct fake fake = FAKE;

		reset_outputs();
		memcpy(before, any_struct, sizeof(before));
		CASES[c].run(&fake.sys);
		CHECK(!memcmp(before, any_struct, sizeof(before)));
	}
}

TEST(a_struct_pointer_is_passed_on_unread)
{
	static int (*const CALLS[])(struct obmm_sys *, int, void *) = {
		(void *)obmm_rw_export,		   (void *)obmm_rw_export_useraddr,
		(void *)obmm_rw_import,		   (void *)obmm_rw_declare_preimport,
		(void *)obmm_rw_undeclare_preimport,
	};

	for (size_t i = 0; i < sizeof(CALLS) / sizeof(CALLS[0]); i++) {
		struct fake fake = FAKE;

		fake.error = EFAULT;
		CHECK_EQ(CALLS[i](&fake.sys, 3, NULL), -EFAULT);
		CHECK_PTR(fake.last.arg, NULL);
	}
}

TEST(query_by_id_and_offset_returns_the_pa)
{
	struct obmm_cmd_addr_query reply = { .key_type = 1, .mem_id = 9, .offset = 10, .pa = 0x123456789abc };
	struct fake fake = FAKE;

	fake.reply = &reply;
	reset_outputs();
	CHECK_EQ(obmm_rw_query_pa(&fake.sys, 3, 9, 10, &out_a), 0);
	CHECK_EQ(out_a, 0x123456789abcULL);
}

TEST(query_by_pa_returns_id_and_offset)
{
	struct obmm_cmd_addr_query reply = { .mem_id = 0xfffff, .offset = 0x1122334455667788, .pa = 1 };
	struct fake fake = FAKE;

	fake.reply = &reply;
	reset_outputs();
	CHECK_EQ(obmm_rw_query_id(&fake.sys, 3, 1, &out_a, &out_b), 0);
	CHECK_EQ(out_a, 0xfffffu);
	CHECK_EQ(out_b, 0x1122334455667788ULL);
}

TEST(a_table_that_is_too_short_is_refused_before_it_is_called)
{
	static const size_t SIZES[] = { 0, 8, offsetof(struct obmm_sys, close), offsetof(struct obmm_sys, name) };

	for (size_t i = 0; i < sizeof(SIZES) / sizeof(SIZES[0]); i++) {
		struct fake fake = FAKE;

		fake.sys.size = SIZES[i];
		CHECK_EQ(obmm_rw_open(&fake.sys), -ENOSYS);
		CHECK_EQ(obmm_rw_shmdev_open(&fake.sys, 1, O_RDWR), -ENOSYS);
		CHECK_EQ(fake.calls, 0u);
	}
}

TEST(a_longer_table_of_a_later_release_is_taken)
{
	struct fake fake = FAKE;

	fake.sys.size += 64;
	fake.value = 5;
	CHECK_EQ(obmm_rw_open(&fake.sys), 5);
}

TEST(map_returns_the_address)
{
	struct fake fake = FAKE;

	reset_outputs();
	CHECK_EQ(obmm_rw_map(&fake.sys, 3, NULL, 0, 4096, PROT_READ, 0, &out_address), 0);
	CHECK_PTR(out_address, 0x7000000000);
}
