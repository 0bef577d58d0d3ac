/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>

#include "../access/gate.h"
#include "test.h"

TEST(shut_gate_lets_no_thread_in)
{
	struct obmm_gate gate = { 0 };
	uint64_t from = 7, to = 0;

	CHECK_EQ(obmm_gated_copy_from(&gate, &to, (uintptr_t)&from, 8, 0, NULL), 0);
	CHECK_EQ(to, 7);
	CHECK_EQ(obmm_gate_shut(&gate, -1), 0);
	CHECK_EQ(obmm_gate_enter(&gate), -EBADF);
	CHECK_EQ(obmm_gated_copy_to(&gate, (uintptr_t)&to, &from, 8, 0, NULL), -EBADF);
	CHECK_EQ(obmm_gated_store(&gate, (uintptr_t)&to, 8, 9, NULL), -EBADF);
	CHECK_EQ(obmm_gated_load(&gate, (uintptr_t)&to, 8, NULL).result, -EBADF);
	CHECK_EQ(to, 7);
	CHECK_EQ(obmm_gate_inside(&gate), 0);
}

TEST(shutting_gives_up_at_the_deadline_and_stays_open)
{
	struct obmm_gate gate = { 0 };
	uint64_t from = 7, to = 0;

	CHECK_EQ(obmm_gate_enter(&gate), 0);
	CHECK_EQ(obmm_gate_inside(&gate), 1);
	CHECK_EQ(obmm_gate_shut(&gate, 5), -ETIMEDOUT);
	CHECK_EQ(obmm_gated_load(&gate, (uintptr_t)&from, 8, NULL).value, 7);
	CHECK_EQ(obmm_gated_store(&gate, (uintptr_t)&to, 8, 9, NULL), 0);
	CHECK_EQ(to, 9);
	obmm_gate_leave(&gate);
	CHECK_EQ(obmm_gate_shut(&gate, 5), 0);
	obmm_gate_reopen(&gate);
	CHECK_EQ(obmm_gate_enter(&gate), 0);
}

struct crowd {
	struct obmm_gate gate;
	uint64_t memory;  /* plain: the thread that shuts the gate owns it */
	atomic_int refused;
};

static void *visitor(void *arg)
{
	struct crowd *crowd = arg;
	uint64_t value;

	while (!obmm_gate_enter(&crowd->gate)) {
		value = __atomic_load_n(&crowd->memory, __ATOMIC_RELAXED);
		CHECK_EQ(value, 1);
		obmm_gate_leave(&crowd->gate);
	}
	atomic_fetch_add(&crowd->refused, 1);
	return NULL;
}

TEST(shutting_waits_for_the_last_one_out)
{
	struct crowd crowd = { .memory = 1 };
	pthread_t threads[8];

	for (int i = 0; i < 8; i++)
		REQUIRE(!pthread_create(&threads[i], NULL, visitor, &crowd));
	CHECK_EQ(obmm_gate_shut(&crowd.gate, -1), 0);
	__atomic_store_n(&crowd.memory, 2, __ATOMIC_RELAXED);
	for (int i = 0; i < 8; i++)
		pthread_join(threads[i], NULL);
	CHECK_EQ(atomic_load(&crowd.refused), 8);
}
