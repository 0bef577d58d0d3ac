/* SPDX-License-Identifier: Apache-2.0 */
/* Guarded access: what is caught, what is passed on, and that nothing else changes. */
#include <errno.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/syscall.h>

#include "../access/copy.h"
#include "../access/guard.h"
#include "test_copy.h"

enum { PAGE = 4096, PAGES = 16, LENGTH = PAGE * PAGES, ID = 77 };

static void truncated_file_is_an_error_with_place_and_kind(void)
{
	struct obmm_fault fault;
	static uint8_t big[LENGTH];
	uint8_t buffer[64];
	uint64_t value;
	int fd, slot;
	uint8_t *base = map_memfd(LENGTH, &fd);

	slot = obmm_guard_add(base, LENGTH, ID);
	CHECK(slot >= 0);
	memset(base, 0x5a, LENGTH);
	CHECK(obmm_copy_from(buffer, base + 8, sizeof(buffer), &fault) == 0);
	CHECK(buffer[63] == 0x5a);
	CHECK(!ftruncate(fd, 2 * PAGE));
	CHECK(obmm_copy_from(buffer, base + 3 * PAGE, sizeof(buffer), &fault) == -EFAULT);
	CHECK(fault.id == ID && fault.signo == SIGBUS && fault.code == BUS_ADRERR);
	CHECK(fault.offset >= 3 * PAGE && fault.offset < 3 * PAGE + 64);
	CHECK(fault.address == (uintptr_t)base + fault.offset);
	CHECK(obmm_load(base + 5 * PAGE + 8, 8, &value, &fault) == -EFAULT && fault.offset == 5 * PAGE + 8);
	CHECK(obmm_store(base + 6 * PAGE, 4, 1, &fault) == -EFAULT && fault.offset == 6 * PAGE);
	CHECK(obmm_copy_to(base + 7 * PAGE, buffer, 64, &fault) == -EFAULT);
	CHECK(obmm_fill(base + 7 * PAGE, 0, 64, &fault) == -EFAULT);
	CHECK(obmm_compare(base + 7 * PAGE, buffer, 64, &fault) == -EFAULT);
	CHECK(obmm_copy_nc_from(buffer, base + 7 * PAGE, 64, &fault) == -EFAULT);
	CHECK(obmm_copy_nc_to(base + 7 * PAGE, buffer, 64, NULL) == -EFAULT);
	/* a copy that starts well and runs into the hole */
	CHECK(obmm_copy_from(big, base, 4 * PAGE, &fault) == -EFAULT);
	CHECK(fault.offset >= 2 * PAGE && fault.offset < 4 * PAGE);
	/* what is left still works */
	CHECK(obmm_load(base + PAGE, 8, &value, &fault) == 0 && value == 0x5a5a5a5a5a5a5a5aull);
	CHECK(!obmm_guard_remove(slot));
	munmap(base, LENGTH);
	close(fd);
}

static void missing_right_is_an_error(void)
{
	struct obmm_fault fault;
	uint64_t value;
	int fd, slot;
	uint8_t *base = map_memfd(LENGTH, &fd);

	slot = obmm_guard_add(base, LENGTH, ID);
	CHECK(!mprotect(base, LENGTH, PROT_READ));
	CHECK(obmm_load(base, 8, &value, &fault) == 0);
	CHECK(obmm_store(base, 8, 1, &fault) == -EFAULT);
	CHECK(fault.signo == SIGSEGV && fault.code == SEGV_ACCERR && fault.offset == 0);
	CHECK(!mprotect(base, LENGTH, PROT_NONE));
	CHECK(obmm_load(base + 16, 8, &value, &fault) == -EFAULT && fault.offset == 16);
	munmap(base, LENGTH);
	CHECK(obmm_load(base + 24, 8, &value, &fault) == -EFAULT);
	CHECK(fault.signo == SIGSEGV && fault.code == SEGV_MAPERR && fault.offset == 24);
	CHECK(!obmm_guard_remove(slot));
	close(fd);
}

static void scalars_are_exact_and_natural(void)
{
	struct obmm_fault fault;
	uint64_t memory[2] = { 0, 0 }, value;
	uint8_t *bytes = (uint8_t *)memory;

	for (unsigned int width = 1; width <= 8; width *= 2) {
		uint64_t pattern = 0x8877665544332211ull & (width == 8 ? ~0ull : (1ull << (8 * width)) - 1);

		memset(memory, 0xff, sizeof(memory));
		CHECK(obmm_store(bytes + width, width, 0x8877665544332211ull, &fault) == 0);
		CHECK(bytes[width - 1] == 0xff && (width == 8 || bytes[2 * width] == 0xff));
		CHECK(obmm_load(bytes + width, width, &value, &fault) == 0 && value == pattern);
	}
	CHECK(obmm_load(bytes + 1, 2, &value, &fault) == -EINVAL);
	CHECK(obmm_load(bytes, 3, &value, &fault) == -EINVAL);
	CHECK(obmm_load(bytes, 16, &value, &fault) == -EINVAL);
	CHECK(obmm_store(bytes + 4, 8, 0, &fault) == -EINVAL);
	CHECK(obmm_store(bytes, 0, 0, &fault) == -EINVAL);
}

static void nc_copies_every_byte_at_every_alignment(void)
{
	static uint8_t source[512], target[512] __attribute__((aligned(64)));

	for (int i = 0; i < 512; i++)
		source[i] = (uint8_t)(i * 7 + 1);
	for (size_t from = 0; from < 66; from += 3) {
		for (size_t length = 0; length < 260; length += 1 + from % 5) {
			memset(target, 0, sizeof(target));
			CHECK(!obmm_copy_nc_from(target + 1, source + from, length, NULL));
			CHECK(!memcmp(target + 1, source + from, length) && !target[0] && !target[1 + length]);
			memset(target, 0, sizeof(target));
			CHECK(!obmm_copy_nc_to(target + from, source + 1, length, NULL));
			CHECK(!memcmp(target + from, source + 1, length) && !target[from + length]);
			CHECK(!from || !target[from - 1]);
		}
	}
}

static void copies_are_exact_at_every_size_and_alignment(void)
{
	static uint8_t source[20000], target[20200];

	for (int i = 0; i < 20000; i++)
		source[i] = (uint8_t)(i * 13 + (i >> 8) + 1);
	for (size_t length = 0; length < 20000 - 70; length += 1 + length / 9) {
		for (size_t shift = 0; shift < 66; shift += 1 + length % 7 + shift / 8) {
			memset(target, 0, sizeof(target));
			CHECK(!obmm_copy_from(target + 64 + shift, source + shift % 33, length, NULL));
			CHECK(!memcmp(target + 64 + shift, source + shift % 33, length));
			CHECK(!target[63 + shift] && !target[64 + shift + length]);
		}
	}
}

/* Never a byte behind the last: the page after it must not be touched. */
static void copies_stay_inside_their_source_and_target(void)
{
	uint8_t *area = mmap(NULL, 6 * PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	CHECK(area != MAP_FAILED);
	CHECK(!mprotect(area + PAGE, PAGE, PROT_READ | PROT_WRITE) && !mprotect(area + 4 * PAGE, PAGE, PROT_READ | PROT_WRITE));
	for (size_t length = 1; length <= PAGE; length += 1 + length / 5) {
		CHECK(!obmm_copy_from(area + 5 * PAGE - length, area + PAGE, length, NULL));
		CHECK(!obmm_copy_from(area + PAGE, area + 5 * PAGE - length, length, NULL));
	}
	munmap(area, 6 * PAGE);
}

struct nest {
	uint8_t *bad;
	struct obmm_fault inner;
	int inner_result;
	int fault_again;
};

static int touch(void *arg)
{
	return *(volatile uint8_t *)arg;
}

static int nested(void *arg)
{
	struct nest *nest = arg;

	nest->inner_result = obmm_guard_run(touch, nest->bad, &nest->inner);
	return nest->fault_again ? touch(nest->bad + 1) : 5;
}

static void a_fault_ends_the_innermost_call(void)
{
	struct obmm_fault fault = { .signo = 0 };
	struct nest nest = { 0 };
	int fd, slot;

	nest.bad = map_memfd(LENGTH, &fd);
	slot = obmm_guard_add(nest.bad, LENGTH, ID);
	CHECK(!ftruncate(fd, 0));
	CHECK(obmm_guard_run(nested, &nest, &fault) == 5 && !fault.signo);
	CHECK(nest.inner_result == -EFAULT && nest.inner.offset == 0);
	nest.fault_again = 1;
	CHECK(obmm_guard_run(nested, &nest, &fault) == -EFAULT && fault.offset == 1);
	CHECK(!obmm_guard_remove(slot));
	munmap(nest.bad, LENGTH);
	close(fd);
}

static void ranges_are_told_apart(void)
{
	enum { MANY = 700 };
	static int slots[MANY];
	struct obmm_fault fault;
	uint64_t value;
	uint8_t *base = mmap(NULL, (size_t)MANY * 2 * PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	int before = obmm_guard_count();

	CHECK(base != MAP_FAILED);
	for (int i = 0; i < MANY; i++) {
		slots[i] = obmm_guard_add(base + (size_t)i * 2 * PAGE, PAGE, 1000 + (uint64_t)i);
		CHECK(slots[i] >= 0);
	}
	CHECK(obmm_guard_count() == before + MANY);
	for (int i = 0; i < MANY; i += 37) {
		CHECK(obmm_load(base + (size_t)i * 2 * PAGE + 8, 8, &value, &fault) == -EFAULT);
		CHECK(fault.id == 1000 + (uint64_t)i && fault.offset == 8);
	}
	CHECK(obmm_guard_add(base, 0, 1) == -EINVAL);
	CHECK(obmm_guard_add(base, SIZE_MAX, 1) == -EINVAL);
	CHECK(obmm_guard_add(NULL, PAGE, 1) == -EINVAL);
	for (int i = 0; i < MANY; i++)
		CHECK(!obmm_guard_remove(slots[i]));
	CHECK(obmm_guard_remove(slots[0]) == -EINVAL && obmm_guard_remove(-1) == -EINVAL);
	CHECK(obmm_guard_remove(1 << 30) == -EINVAL);
	CHECK(obmm_guard_count() == before);
	munmap(base, (size_t)MANY * 2 * PAGE);
}

static void mask_and_alternate_stack_survive_a_fault(void)
{
	static uint8_t stack[1 << 16];
	stack_t alternate = { .ss_sp = stack, .ss_size = sizeof(stack) }, after;
	sigset_t mask, now;
	struct obmm_fault fault;
	int fd, slot;
	uint8_t *base = map_memfd(LENGTH, &fd);
	uint64_t value;

	CHECK(!sigaltstack(&alternate, NULL));
	sigemptyset(&mask);
	sigaddset(&mask, SIGUSR1);
	pthread_sigmask(SIG_SETMASK, &mask, NULL);
	slot = obmm_guard_add(base, LENGTH, ID);
	CHECK(!ftruncate(fd, 0));
	for (int i = 0; i < 3; i++) {
		errno = 42;
		CHECK(obmm_load(base, 8, &value, &fault) == -EFAULT && errno == 42);
	}
	pthread_sigmask(SIG_SETMASK, NULL, &now);
	CHECK(sigismember(&now, SIGUSR1) && !sigismember(&now, SIGBUS) && !sigismember(&now, SIGSEGV));
	CHECK(!sigaltstack(NULL, &after) && after.ss_sp == stack && !(after.ss_flags & SS_ONSTACK));
	sigemptyset(&mask);
	pthread_sigmask(SIG_SETMASK, &mask, NULL);
	alternate.ss_flags = SS_DISABLE;
	sigaltstack(&alternate, NULL);
	CHECK(!obmm_guard_remove(slot));
	munmap(base, LENGTH);
	close(fd);
}

/* ---- what is not ours ---- */

static uint8_t *hole;

static void expect_and_exit(int signo, siginfo_t *info, void *context)
{
	sigset_t now;

	(void)context;
	pthread_sigmask(SIG_SETMASK, NULL, &now);
	_exit(signo == SIGSEGV && info->si_addr == hole + 5 && sigismember(&now, SIGSEGV) &&
			      sigismember(&now, SIGUSR2)
		      ? 33
		      : 34);
}

static void install(int signo, void (*handler)(int, siginfo_t *, void *))
{
	struct sigaction action = { .sa_sigaction = handler, .sa_flags = SA_SIGINFO };

	sigaddset(&action.sa_mask, SIGUSR2);
	CHECK(!sigaction(signo, &action, NULL));
}

static void make_hole(int registered)
{
	hole = mmap(NULL, PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	CHECK(hole != MAP_FAILED);
	CHECK(!obmm_guard_install());
	CHECK(obmm_guard_add(registered ? hole : (void *)&make_hole, 1 + 7 * registered, 1) >= 0);
}

static void stranger_with_handler(void)
{
	install(SIGSEGV, expect_and_exit);
	make_hole(0);
	obmm_guard_run(touch, hole + 5, NULL);
}

static void unguarded_with_handler(void)
{
	install(SIGSEGV, expect_and_exit);
	make_hole(1);
	touch(hole + 5);
}

static void stranger_without_handler(void)
{
	make_hole(0);
	obmm_guard_run(touch, hole + 5, NULL);
}

static void stranger_ignored(void)
{
	signal(SIGSEGV, SIG_IGN);
	make_hole(0);
	obmm_guard_run(touch, hole + 5, NULL);
}

static void sent_without_handler(void)
{
	make_hole(0);
	kill(getpid(), SIGBUS);
}

static void sent_and_ignored(void)
{
	signal(SIGBUS, SIG_IGN);
	make_hole(0);
	kill(getpid(), SIGBUS);
	_exit(7);
}

static int raise_segv(void *arg)
{
	(void)arg;
	return raise(SIGSEGV);
}

static void sent_while_guarded(void)
{
	make_hole(1);
	obmm_guard_run(raise_segv, NULL, NULL);
}

static void faults_of_strangers_reach_who_was_there_before(void)
{
	int status = in_child(stranger_with_handler);

	CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 33);
	status = in_child(unguarded_with_handler);
	CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 33);
}

static void without_a_handler_the_default_action_kills(void)
{
	int status = in_child(stranger_without_handler);

	CHECK(WIFSIGNALED(status) && WTERMSIG(status) == SIGSEGV);
	status = in_child(stranger_ignored);
	CHECK(WIFSIGNALED(status) && WTERMSIG(status) == SIGSEGV);
	status = in_child(sent_without_handler);
	CHECK(WIFSIGNALED(status) && WTERMSIG(status) == SIGBUS);
	status = in_child(sent_while_guarded);
	CHECK(WIFSIGNALED(status) && WTERMSIG(status) == SIGSEGV);
	status = in_child(sent_and_ignored);
	CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 7);
}

static struct sigaction found_by_newcomer;
static volatile sig_atomic_t newcomer_calls;

/* As faulthandler and others do: hand on to what was found at installation. */
static void newcomer(int signo, siginfo_t *info, void *context)
{
	newcomer_calls++;
	found_by_newcomer.sa_sigaction(signo, info, context);
}

static void oldest(int signo, siginfo_t *info, void *context)
{
	(void)signo;
	(void)info;
	(void)context;
	_exit(newcomer_calls == 1 ? 33 : 34);
}

static void displaced_then_rearmed(void)
{
	struct sigaction action = { .sa_sigaction = newcomer, .sa_flags = SA_SIGINFO | SA_NODEFER };
	uint64_t value;
	struct obmm_fault fault;

	install(SIGSEGV, oldest);
	make_hole(1);
	CHECK(obmm_guard_check() == 0);
	CHECK(!sigaction(SIGSEGV, &action, &found_by_newcomer));
	CHECK(obmm_guard_check() == 2);
	CHECK(!obmm_guard_install());
	CHECK(obmm_guard_check() == 0);
	CHECK(obmm_load(hole, 8, &value, &fault) == -EFAULT && newcomer_calls == 0);
	touch(hole + 5); /* ours -> newcomer -> ours -> oldest */
}

static sigjmp_buf rescued;
static volatile sig_atomic_t rescues;

static void jumper(int signo, siginfo_t *info, void *context)
{
	(void)signo;
	(void)info;
	(void)context;
	rescues++;
	siglongjmp(rescued, 1);
}

/* A later handler may leave by a jump, as often as it likes: the next fault is its again. */
static void jumped_out_of(void)
{
	struct sigaction action = { .sa_sigaction = jumper, .sa_flags = SA_SIGINFO };

	install(SIGSEGV, oldest);
	make_hole(1);
	CHECK(!sigaction(SIGSEGV, &action, NULL));
	CHECK(!obmm_guard_install());
	while (rescues < 5) {
		if (!sigsetjmp(rescued, 1))
			touch(hole + 5); /* ours -> jumper */
	}
	_exit(35);
}

static void a_later_handler_is_noticed_and_joins_the_chain(void)
{
	int status = in_child(jumped_out_of);

	CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 35);
	status = in_child(displaced_then_rearmed);

	CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 33);
}

/* ---- 64 readers while the memory goes away ---- */

enum { THREADS = 64 };

static uint8_t *shared;
static _Atomic int reading, raised;

static void *reader(void *arg)
{
	uint8_t row[1364];
	unsigned int seed = (unsigned int)(uintptr_t)arg;
	struct obmm_fault fault;
	int result;

	atomic_fetch_add(&reading, 1);
	do {
		size_t offset = (size_t)(rand_r(&seed) % (LENGTH - (int)sizeof(row)));

		result = obmm_copy_from(row, shared + offset, sizeof(row), &fault);
		CHECK(result || row[0] == 0x11);
	} while (!result);
	CHECK(result == -EFAULT && fault.id == ID && fault.signo == SIGBUS);
	atomic_fetch_add(&raised, 1);
	return NULL;
}

static void each_of_64_readers_gets_one_error(void)
{
	pthread_t threads[THREADS];
	int fd, slot;

	shared = map_memfd(LENGTH, &fd);
	memset(shared, 0x11, LENGTH);
	slot = obmm_guard_add(shared, LENGTH, ID);
	for (uintptr_t i = 0; i < THREADS; i++)
		CHECK(!pthread_create(&threads[i], NULL, reader, (void *)i));
	while (atomic_load(&reading) < THREADS)
		sched_yield();
	CHECK(!ftruncate(fd, 0));
	for (int i = 0; i < THREADS; i++)
		CHECK(!pthread_join(threads[i], NULL));
	CHECK(raised == THREADS);
	CHECK(!obmm_guard_remove(slot));
	munmap(shared, LENGTH);
	close(fd);
}

/* Ranges come and go while others fault: the handler must always see whole entries. */
static _Atomic int churning;

static void *churn(void *arg)
{
	uint8_t *base = arg;

	while (atomic_load(&churning)) {
		int slot = obmm_guard_add(base, PAGE, 5);

		CHECK(slot >= 0 && !obmm_guard_remove(slot));
	}
	return NULL;
}

static void registering_does_not_disturb_faulting_threads(void)
{
	pthread_t threads[4];
	uint8_t *base = mmap(NULL, 8 * PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	struct obmm_fault fault;
	uint64_t value;
	int slot = obmm_guard_add(base, PAGE, ID);

	atomic_store(&churning, 1);
	for (int i = 0; i < 4; i++)
		CHECK(!pthread_create(&threads[i], NULL, churn, base + (i + 1) * PAGE));
	for (int i = 0; i < 500; i++)
		CHECK(obmm_load(base + 8, 8, &value, &fault) == -EFAULT && fault.id == ID && fault.offset == 8);
	atomic_store(&churning, 0);
	for (int i = 0; i < 4; i++)
		CHECK(!pthread_join(threads[i], NULL));
	CHECK(!obmm_guard_remove(slot));
	munmap(base, 8 * PAGE);
}

int main(void)
{
	/* in children, and before this process installs anything */
	faults_of_strangers_reach_who_was_there_before();
	without_a_handler_the_default_action_kills();
	a_later_handler_is_noticed_and_joins_the_chain();

	truncated_file_is_an_error_with_place_and_kind();
	missing_right_is_an_error();
	scalars_are_exact_and_natural();
	nc_copies_every_byte_at_every_alignment();
	copies_are_exact_at_every_size_and_alignment();
	copies_stay_inside_their_source_and_target();
	a_fault_ends_the_innermost_call();
	ranges_are_told_apart();
	mask_and_alternate_stack_survive_a_fault();
	each_of_64_readers_gets_one_error();
	registering_does_not_disturb_faulting_threads();
	puts("test_copy_guard: ok");
	return 0;
}
