/* SPDX-License-Identifier: Apache-2.0 */
/* What tests and people do with a stand-in from outside: make one, look, inject faults, end it. */
#include <errno.h>
#include <limits.h>
#include <linux/futex.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "standin.h"
#include "state.h"

int ubsmem_standin_create(const char *folder, const char *fabric, const char *nodes, uint64_t unit)
{
	return standin_state_create(folder, fabric, nodes, unit);
}

int ubsmem_standin_destroy(const char *folder)
{
	struct standin_cluster *cluster;
	int rc = standin_cluster_open(folder, &cluster), left;

	if (rc)
		return rc;
	standin_lock(cluster->state);
	for (uint32_t i = 0; i < STANDIN_PROCESSES; i++)
		if (cluster->state->processes[i].used)
			standin_leave(cluster, i, cluster->state->processes[i].session);
	left = standin_sweep(cluster);
	for (uint32_t i = 0; i < cluster->state->records_end; i++) {
		struct standin_record *record = &cluster->state->records[i];

		if (record->kind == STANDIN_OBJECT && !standin_attached(record))
			left |= standin_free(cluster, record) != UBSM_OK;
	}
	standin_unlock(cluster->state);
	standin_cluster_close(cluster);
	return left ? -EBUSY : 0;
}

static void print_object(FILE *out, const struct standin_state *state, const struct standin_record *record)
{
	const char *comma = "";

	fprintf(out, "\"%s\":{", record->name);
	for (uint32_t node = 0; node < state->node_count; node++) {
		const char *next = "";

		if (!record->on[node].there)
			continue;
		fprintf(out, "%s\"%s\":[", comma, state->nodes[node]);
		for (uint32_t i = 0; i < STANDIN_PROCESSES; i++) {
			if (!standin_in(&record->on[node].users, i))
				continue;
			fprintf(out, "%s%d", next, state->processes[i].pid);
			next = ",";
		}
		fputc(']', out);
		comma = ",";
	}
	fputc('}', out);
}

static void print(FILE *out, const struct standin_state *state)
{
	const char *comma = "";
	uint32_t leases = 0;

	fprintf(out, "{\"objects\":{");
	for (uint32_t i = 0; i < state->records_end; i++) {
		leases += state->records[i].kind == STANDIN_LEASED;
		if (state->records[i].kind != STANDIN_OBJECT)
			continue;
		fputs(comma, out);
		print_object(out, state, &state->records[i]);
		comma = ",";
	}
	fprintf(out, "},\"leases\":%u,\"engine_calls\":%llu,\"busy\":[", leases, (unsigned long long)state->engine_calls);
	comma = "";
	for (uint32_t i = 0; i < state->records_end; i++) {
		if (state->records[i].kind != STANDIN_OBJECT || !standin_busy(&state->records[i]))
			continue;
		fprintf(out, "%s\"%s\"", comma, state->records[i].name);
		comma = ",";
	}
	fprintf(out, "]}");
}

int ubsmem_standin_status(const char *folder, char *text, size_t size)
{
	struct standin_cluster *cluster;
	int rc = standin_cluster_open(folder, &cluster);
	FILE *out;
	long written;

	if (rc)
		return rc;
	out = fmemopen(text, size, "w");
	if (!out) {
		standin_cluster_close(cluster);
		return -ENOMEM;
	}
	standin_lock(cluster->state);
	standin_bury(cluster);
	standin_sweep(cluster);
	print(out, cluster->state);
	standin_unlock(cluster->state);
	written = ftell(out);
	rc = fclose(out) || written < 0 || (size_t)written >= size ? -ENOSPC : 0;
	standin_cluster_close(cluster);
	return rc;
}

int ubsmem_standin_inject(const char *folder, uint32_t op, int32_t code, uint32_t delay_ms, int lost, uint32_t times)
{
	struct standin_state *state;
	int rc = standin_state_open(folder, &state);

	if (rc)
		return rc;
	standin_lock(state);
	if (!times)
		rc = -EINVAL;
	else if (state->fault_count == STANDIN_FAULTS)
		rc = -ENOSPC;
	else
		state->faults[state->fault_count++] = (struct standin_fault){ op, times, code, delay_ms, lost };
	standin_unlock(state);
	standin_state_close(state);
	return rc;
}

int ubsmem_standin_fire(const char *folder, const char *name, uint32_t kind)
{
	struct standin_event *event;
	struct standin_state *state;
	int rc = standin_state_open(folder, &state);

	if (rc)
		return rc;
	standin_lock(state);
	event = &state->events[state->fired % STANDIN_EVENTS];
	snprintf(event->name, sizeof(event->name), "%s", name);
	event->kind = kind;
	__atomic_add_fetch(&state->fired, 1, __ATOMIC_SEQ_CST);
	for (uint32_t i = 0; i < STANDIN_LISTENERS; i++) {
		struct standin_listener *listener = &state->listeners[i];

		if (listener->pid && standin_started(listener->pid) != listener->started)
			listener->pid = 0;
		rc += listener->pid != 0;
	}
	syscall(SYS_futex, &state->fired, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
	standin_unlock(state);
	standin_state_close(state);
	return rc;
}
