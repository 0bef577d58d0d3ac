/* SPDX-License-Identifier: Apache-2.0 */
#include "nodes.h"

#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { MOST_NODES = 64, PAGES = 64, MOST_CPU = CPU_SETSIZE };

/* The CPUs of a node's list, such as "0-3,8": all of them, and those in `allowed` (NULL: all). */
static unsigned int cpus_of(const char *folder, unsigned int node, const cpu_set_t *allowed)
{
	unsigned int found = 0, low, high;
	char path[512];
	FILE *file;

	snprintf(path, sizeof(path), "%s/node%u/cpulist", folder, node);
	file = fopen(path, "re");
	if (!file)
		return 0;
	while (fscanf(file, "%u", &low) == 1) {
		int next = fgetc(file);

		high = low;
		if (next == '-') {
			if (fscanf(file, "%u", &high) != 1)
				break;
			next = fgetc(file);
		}
		for (unsigned int cpu = low; cpu <= high && cpu < MOST_CPU; cpu++)
			found += !allowed || CPU_ISSET(cpu, allowed);
		if (next != ',')
			break;
	}
	fclose(file);
	return found;
}

unsigned int obmm_nodes_with_cpus(const char *folder)
{
	unsigned int nodes = 0;

	for (unsigned int node = 0; node < MOST_NODES; node++)
		nodes += cpus_of(folder, node, NULL) > 0;
	return nodes ? nodes : 1;
}

unsigned int obmm_node_cpus(const char *folder, unsigned int node)
{
	cpu_set_t allowed;

	if (sched_getaffinity(0, sizeof(allowed), &allowed))
		return 0;
	return cpus_of(folder, node, &allowed);
}

int obmm_node_of(const void *base, uint64_t length)
{
	uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE), first = (uintptr_t)base & ~(page - 1);
	uint64_t pages = ((uintptr_t)base + length - first + page - 1) / page;
	unsigned int n = pages < PAGES ? (unsigned int)pages : PAGES, present = 0;
	unsigned int on[MOST_NODES] = { 0 };
	int status[PAGES];
	void *at[PAGES];

	for (unsigned int i = 0; i < n; i++)
		at[i] = (void *)(first + i * (pages / n) * page);
	if (!n || syscall(SYS_move_pages, 0, (unsigned long)n, at, NULL, status, 0))
		return -1;
	for (unsigned int i = 0; i < n; i++) {
		if (status[i] < 0 || status[i] >= MOST_NODES)
			continue;
		present++;
		on[status[i]]++;
	}
	for (int node = 0; present && node < MOST_NODES; node++) {
		if (10 * on[node] >= 9 * present)
			return node;
	}
	return -1;
}

unsigned int obmm_node_here(void)
{
	unsigned int cpu, node = 0;

#ifdef __GLIBC__
	return getcpu(&cpu, &node) ? 0 : node;
#else /* musl has no wrapper */
	return syscall(SYS_getcpu, &cpu, &node, NULL) ? 0 : node;
#endif
}
