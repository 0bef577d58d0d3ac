/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The C tests' whole framework.  A file test_<what>.c includes this, defines
 * TEST(name) { ... } as often as it likes and gets main() with it; the build
 * links it with every room of native/.  Arguments choose tests by name.
 */
#ifndef OBMM_TEST_H
#define OBMM_TEST_H

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct test {
	const char *name;
	void (*run)(void);
	struct test *next;
};

static struct test *test_first, **test_last = &test_first;
static unsigned int test_failures;

#define TEST(name)                                                   \
	static void name(void);                                      \
	static struct test name##_test = { #name, name, NULL };      \
	__attribute__((constructor)) static void name##_add(void)    \
	{                                                            \
		*test_last = &name##_test;                           \
		test_last = &name##_test.next;                       \
	}                                                            \
	static void name(void)

/* A failed check is reported and counted; the test goes on. */
#define CHECK(condition)                                                                  \
	do {                                                                              \
		if (!(condition)) {                                                       \
			printf("%s:%d: not so: %s\n", __FILE__, __LINE__, #condition);    \
			test_failures++;                                                  \
		}                                                                         \
	} while (0)

/* Integers of any width and sign. */
#define CHECK_EQ(actual, expected)                                                                    \
	do {                                                                                          \
		__typeof__(actual) actual_ = (actual);                                                \
		__typeof__(expected) expected_ = (expected);                                          \
		if ((uint64_t)actual_ != (uint64_t)expected_) {                                       \
			printf("%s:%d: %s is %lld (%#llx), not %lld (%#llx)\n", __FILE__, __LINE__,   \
			       #actual, (long long)actual_, (unsigned long long)actual_,              \
			       (long long)expected_, (unsigned long long)expected_);                  \
			test_failures++;                                                              \
		}                                                                                     \
	} while (0)

#define CHECK_PTR(actual, expected) CHECK_EQ((uintptr_t)(actual), (uintptr_t)(expected))

#define CHECK_STR(actual, expected)                                                           \
	do {                                                                                  \
		const char *actual_ = (actual), *expected_ = (expected);                      \
		if (strcmp(actual_, expected_)) {                                             \
			printf("%s:%d: %s is \"%s\", not \"%s\"\n", __FILE__, __LINE__,       \
			       #actual, actual_, expected_);                                  \
			test_failures++;                                                      \
		}                                                                             \
	} while (0)

/* For what a test cannot go on without. */
#define REQUIRE(condition)                                                                              \
	do {                                                                                            \
		if (!(condition)) {                                                                     \
			fprintf(stderr, "%s:%d: cannot go on: %s\n", __FILE__, __LINE__, #condition);   \
			exit(2);                                                                        \
		}                                                                                       \
	} while (0)

static int test_wanted(const char *name, int argc, char **argv)
{
	for (int i = 1; i < argc; i++)
		if (!strcmp(argv[i], name))
			return 1;
	return argc < 2;
}

int main(int argc, char **argv)
{
	unsigned int run = 0, failed = 0;

	setvbuf(stdout, NULL, _IOLBF, 0);
	for (struct test *test = test_first; test; test = test->next) {
		unsigned int before = test_failures;

		if (!test_wanted(test->name, argc, argv))
			continue;
		run++;
		test->run();
		if (test_failures != before) {
			failed++;
			printf("FAIL %s\n", test->name);
		}
	}
	printf("%u of %u passed\n", run - failed, run);
	return failed || !run;
}

#endif
