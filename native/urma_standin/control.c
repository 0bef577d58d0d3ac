/* SPDX-License-Identifier: Apache-2.0 */
/* What tests and people do with a stand-in from outside: make one, look, inject faults, cut a node off. */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "standin.h"

int urma_standin_create(const char *folder, const char *nodes)
{
	return urma_state_create(folder, nodes);
}

static void print(FILE *out, const struct urma_state *state)
{
	uint32_t processes = 0, segments = 0, targets = 0, pins = 0;
	const char *comma = "";

	for (uint32_t i = 0; i < URMA_PROCESSES; i++)
		processes += state->processes[i].uasid != 0;
	for (uint32_t i = 0; i < URMA_TARGETS; i++)
		targets += state->targets[i].owner != 0;
	for (uint32_t i = 0; i < URMA_PINS; i++)
		pins += state->pins[i].process != 0;
	fprintf(out, "{\"processes\":%u,\"targets\":%u,\"copying\":%u,\"rules\":%u,\"nodes\":[", processes, targets, pins,
		state->rule_count);
	for (uint32_t i = 0; i < state->node_count; i++) {
		fprintf(out, "%s{\"name\":\"%s\",\"reachable\":%s}", comma, state->nodes[i],
			state->unreachable[i] ? "false" : "true");
		comma = ",";
	}
	fprintf(out, "],\"seen\":[");
	for (uint32_t i = 0; i < state->rule_count; i++)
		fprintf(out, "%s%u", i ? "," : "", state->rules[i].seen);
	for (uint32_t i = 0; i < URMA_SEGMENTS; i++)
		segments += state->segments[i].owner != 0;
	fprintf(out, "],\"segments\":%u}", segments);
}

int urma_standin_status(const char *folder, char *text, size_t size)
{
	struct urma_state *state;
	int rc = urma_state_open(folder, &state);
	FILE *out;
	long written;

	if (rc)
		return rc;
	out = fmemopen(text, size, "w");
	if (!out) {
		urma_state_close(state);
		return -ENOMEM;
	}
	urma_lock(state);
	urma_sweep(state);
	print(out, state);
	urma_unlock(state);
	written = ftell(out);
	rc = fclose(out) || written < 0 || (size_t)written >= size ? -ENOSPC : 0;
	urma_state_close(state);
	return rc;
}

int urma_standin_inject(const char *folder, const char *text)
{
	struct urma_state *state;
	struct urma_rule rule;
	int rc = *text ? urma_parse_rule(text, &rule) : 0;

	if (!rc)
		rc = urma_state_open(folder, &state);
	if (rc)
		return rc;
	urma_lock(state);
	if (!*text) {
		__atomic_store_n(&state->rule_count, 0, __ATOMIC_RELEASE);
	} else if (state->rule_count == URMA_RULES) {
		rc = -ENOSPC;
	} else {
		state->rules[state->rule_count] = rule;
		__atomic_store_n(&state->rule_count, state->rule_count + 1, __ATOMIC_RELEASE);
	}
	urma_unlock(state);
	urma_state_close(state);
	return rc;
}

int urma_standin_reach(const char *folder, const char *node, int reachable)
{
	struct urma_state *state;
	int rc = urma_state_open(folder, &state), number;

	if (rc)
		return rc;
	urma_lock(state);
	number = urma_node(state, node);
	if (number == URMA_NOBODY)
		rc = -ENOENT;
	else
		state->unreachable[number] = !reachable;
	urma_unlock(state);
	urma_state_close(state);
	return rc;
}
