/* SPDX-License-Identifier: Apache-2.0 */
/* Where memory lies, and that far workers leave a gather to near ones. */
#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <string.h>
#include <sys/stat.h>

#include "../engine/engine.h"
#include "../engine/nodes.h"
#include "test_copy.h"

static char folder[] = "/tmp/obmm-nodes-XXXXXX";

static void put(unsigned int node, const char *list)
{
	char path[256];
	FILE *file;

	snprintf(path, sizeof(path), "%s/node%u", folder, node);
	mkdir(path, 0700);
	snprintf(path, sizeof(path), "%s/node%u/cpulist", folder, node);
	file = fopen(path, "w");
	CHECK(file && fputs(list, file) >= 0 && !fclose(file));
}

static void nodes_are_counted_by_their_cpus(void)
{
	cpu_set_t allowed;
	unsigned int here = 0;

	CHECK(!sched_getaffinity(0, sizeof(allowed), &allowed));
	for (int cpu = 0; cpu < 4; cpu++)
		here += CPU_ISSET(cpu, &allowed) != 0;
	put(0, "0-3\n");
	put(1, "1020-1023\n");
	put(2, "\n"); /* memory only */
	put(3, "nonsense 5-\n");
	put(5, "9999999999-4\n");
	CHECK(obmm_nodes_with_cpus(folder) == 2);
	CHECK(obmm_nodes_with_cpus("/nowhere") == 1);
	CHECK(obmm_node_cpus(folder, 0) == here);
	CHECK(obmm_node_cpus(folder, 2) == 0 && obmm_node_cpus(folder, 63) == 0);
}

static void memory_that_is_here_is_on_a_node_and_other_memory_on_none(void)
{
	int fd, node;
	uint8_t *memory = map_memfd(1 << 20, &fd);

	CHECK(obmm_node_of(memory, 1 << 20) == -1); /* nothing is present */
	memset(memory, 1, 1 << 20);
	node = obmm_node_of(memory, 1 << 20);
	CHECK(node >= -1 && node < 64); /* a kernel without NUMA does not say */
	CHECK(obmm_node_of(memory, 0) == -1 || node >= 0);
	munmap(memory, 1 << 20);
	CHECK(obmm_node_of(memory, 1 << 20) == -1);
	close(fd);
}

struct task {
	struct obmm_engine *engine;
	const struct obmm_request *request;
};

static void *gather_far(void *arg)
{
	struct task *task = arg;
	struct obmm_outcome outcome;

	CHECK(obmm_engine_gather(task->engine, task->request, 3, &outcome) == (int64_t)task->request->count);
	return NULL;
}

/* The rows are said to lie where no CPU of this machine is: the caller does it all, and a submitted gather is not left. */
static void what_is_far_is_left_to_its_caller_but_not_when_no_other_has_it(void)
{
	enum { ROWS = 512, ROW = 64, COUNT = 4000 };
	static uint8_t out[COUNT * ROW], other[COUNT * ROW];
	static int64_t ids[COUNT];
	struct obmm_engine *engine;
	int fd;
	struct obmm_table table = { .base = map_memfd(ROWS * ROW, &fd), .rows = ROWS, .row_stride = ROW, .row_bytes = ROW };
	struct obmm_request request = { .table = &table, .ids = ids, .count = COUNT, .id_bytes = 8, .out = out, .out_stride = ROW,
					.high = UINT64_MAX };
	struct obmm_request beside = request;
	struct obmm_outcome outcome;
	uint64_t ticket;
	unsigned int bad;

	beside.out = other;
	obmm_tuning_default(&table.tuning, ROW, 0);
	table.tuning.node = 60;
	table.tuning.near_cpus = 3;
	CHECK(!obmm_engine_create(3, 0, NULL, 0, &engine));
	for (int round = 0; round < 30; round++) {
		obmm_engine_expect(engine, 300000);
		usleep(200);
		CHECK(obmm_engine_gather(engine, &request, 3, &outcome) == COUNT && outcome.threads == 1);
		/* more threads than there are near ones: all may come */
		CHECK(obmm_engine_gather(engine, &request, 4, &outcome) == COUNT);
		CHECK(!obmm_engine_submit(engine, &request, 1, 3, &outcome, &ticket, &bad));
		CHECK(!obmm_ticket_collect(engine, ticket, 60000000000ll) && outcome.rows_read == COUNT);
	}
	/* what is submitted behind such a gather is not forgotten */
	for (int round = 0; round < 200; round++) {
		pthread_t caller;
		struct task task = { engine, &request };

		CHECK(!pthread_create(&caller, NULL, gather_far, &task));
		CHECK(!obmm_engine_submit(engine, &beside, 1, 1, &outcome, &ticket, &bad));
		CHECK(!obmm_ticket_collect(engine, ticket, 60000000000ll) && outcome.rows_read == COUNT);
		CHECK(!pthread_join(caller, NULL));
	}
	obmm_engine_free(engine);
	munmap((void *)table.base, ROWS * ROW);
	close(fd);
}

int main(void)
{
	CHECK(mkdtemp(folder));
	CHECK(!obmm_guard_install());
	nodes_are_counted_by_their_cpus();
	memory_that_is_here_is_on_a_node_and_other_memory_on_none();
	what_is_far_is_left_to_its_caller_but_not_when_no_other_has_it();
	puts("test_nodes: ok");
	return 0;
}
