/* SPDX-License-Identifier: Apache-2.0 */
/* Library, device, context (URMA specification 6.1). */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <unistd.h>

#include "standin.h"

#define DEVICE "standin0"

struct urma_here urma_here = { .lock = PTHREAD_MUTEX_INITIALIZER };

const char *urma_standin_version(void)
{
	return "obmm URMA stand-in 1, ABI profile C";
}

void urma_count(uint64_t *counter, uint64_t n)
{
	__atomic_fetch_add(counter, n, __ATOMIC_RELAXED);
}

void urma_standin_counters(struct urma_standin_counts *counts)
{
	*counts = urma_here.counts;
}

void *urma_refuse(int error)
{
	errno = error;
	return NULL;
}

struct urma_state *urma_started(void)
{
	if (!urma_here.process)
		errno = EINVAL;
	return urma_here.process ? urma_here.state : NULL;
}

/* Nothing here is the child's (U14): its calls find no process. */
static void forked(void)
{
	urma_here.process = NULL;
	urma_here.state = NULL;
	pthread_mutex_init(&urma_here.lock, NULL); /* another thread may have held it */
	urma_life_forked();
}

static unsigned long number(const char *name, unsigned long usual)
{
	const char *text = getenv(name);
	char *end;
	const unsigned long value = text ? strtoul(text, &end, 10) : usual;

	return text && (*end || !*text || value > 3600000) ? usual : value;
}

/* Rules of the environment, separated by semicolons. */
static int read_rules(void)
{
	const char *text = getenv("OBMM_URMA_STANDIN_FAULTS");
	char copy[1024], *rest = copy, *rule;

	urma_here.rule_count = 0;
	if (!text || !*text)
		return 0;
	if (snprintf(copy, sizeof(copy), "%s", text) >= (int)sizeof(copy))
		return -EINVAL;
	while ((rule = strsep(&rest, ";")))
		if (urma_here.rule_count == URMA_RULES || urma_parse_rule(rule, &urma_here.rules[urma_here.rule_count++]))
			return -EINVAL;
	return 0;
}

const struct urma_rule *urma_fault(uint32_t actions, uint32_t queue)
{
	const struct urma_rule *rule = NULL;
	struct urma_state *state = urma_here.state;
	uint32_t shared = __atomic_load_n(&state->rule_count, __ATOMIC_ACQUIRE);

	if (urma_here.rule_count)
		rule = urma_strikes(urma_here.rules, urma_here.rule_count, actions, urma_here.node, queue);
	if (!rule && shared)
		rule = urma_strikes(state->rules, shared < URMA_RULES ? shared : URMA_RULES, actions, urma_here.node, queue);
	return rule;
}

/* A security module may keep processes of one user from each other's memory unless they are asked in. */
static void let_readers_in(void)
{
	FILE *file = fopen("/proc/sys/kernel/yama/ptrace_scope", "re");

	if (!file)
		return;
	if (fgetc(file) == '1')
		prctl(PR_SET_PTRACER, PR_SET_PTRACER_ANY, 0, 0, 0);
	fclose(file);
}

/* A place among the processes.  URMA_NOBODY when all are taken. */
static int enter(struct urma_state *state, int node)
{
	int found = URMA_NOBODY;

	urma_lock(state);
	urma_sweep(state);
	for (int i = 0; found == URMA_NOBODY && i < URMA_PROCESSES; i++)
		if (!state->processes[i].uasid)
			found = i;
	if (found != URMA_NOBODY) {
		struct urma_process *process = &state->processes[found];

		memset(process, 0, sizeof(*process));
		process->pid = getpid();
		process->started = standin_started(process->pid);
		process->node = (uint32_t)node;
		if (urma_live(process))
			found = URMA_NOBODY;
		else
			process->uasid = ++state->next_uasid;
	}
	urma_unlock(state);
	return found;
}

static int start(void)
{
	static int once;
	const char *folder = getenv("OBMM_URMA_STANDIN"), *name = getenv("OBMM_URMA_STANDIN_NODE");
	const char *refusal = getenv("OBMM_URMA_STANDIN_REFUSAL");
	struct urma_state *state;
	int node, place;

	if (!folder || read_rules() || urma_state_open(folder, &state))
		return URMA_FAIL;
	node = urma_node(state, name ? name : "");
	place = node == URMA_NOBODY ? URMA_NOBODY : enter(state, node);
	if (place == URMA_NOBODY) {
		urma_state_close(state);
		return URMA_FAIL;
	}
	let_readers_in();
	if (!once)
		pthread_atfork(NULL, NULL, forked);
	once = 1;
	snprintf(urma_here.node, sizeof(urma_here.node), "%s", state->nodes[node]);
	urma_here.silent = refusal && !strcmp(refusal, "silent");
	urma_here.timeout_ns = number("OBMM_URMA_STANDIN_TIMEOUT_MS", 50) * 1000000u;
	snprintf(urma_here.device.name, sizeof(urma_here.device.name), "%s", DEVICE);
	snprintf(urma_here.device.path, sizeof(urma_here.device.path), "%s", folder);
	urma_here.number = (uint32_t)place;
	urma_here.state = state;
	urma_here.process = &state->processes[place];
	return URMA_OK;
}

int urma_init(urma_init_attr_t *attr)
{
	int rc;

	(void)attr;
	pthread_mutex_lock(&urma_here.lock);
	rc = urma_here.process ? URMA_EEXIST : start();
	pthread_mutex_unlock(&urma_here.lock);
	return rc;
}

int urma_uninit(void)
{
	struct urma_state *state;

	pthread_mutex_lock(&urma_here.lock);
	state = urma_started();
	if (state) {
		urma_die(urma_here.process);
		urma_lock(state);
		urma_forget(state, urma_here.number);
		urma_unlock(state);
		urma_here.process = NULL;
		urma_here.state = NULL;
		urma_state_close(state);
	}
	pthread_mutex_unlock(&urma_here.lock);
	return URMA_OK;
}

/* the stand-in logs nothing */
void urma_log_set_level(uint32_t level)
{
	(void)level;
}

urma_device_t **urma_get_device_list(int *count)
{
	urma_device_t **list;

	if (!count)
		return urma_refuse(EINVAL);
	*count = 0;
	if (!urma_started())
		return urma_refuse(ENODEV);
	list = calloc(2, sizeof(*list));
	if (!list)
		return urma_refuse(ENOMEM);
	list[0] = &urma_here.device;
	*count = 1;
	return list;
}

void urma_free_device_list(urma_device_t **list)
{
	free(list);
}

void urma_free_eid_list(urma_eid_info_t *list)
{
	free(list);
}

urma_device_t *urma_get_device_by_name(char *name)
{
	if (!name || strnlen(name, 64) == 64)
		return urma_refuse(EINVAL);
	return urma_started() && !strcmp(name, DEVICE) ? &urma_here.device : urma_refuse(ENODEV);
}

static int is_ours(const urma_device_t *device)
{
	return urma_started() && device == &urma_here.device;
}

urma_eid_info_t *urma_get_eid_list(urma_device_t *device, uint32_t *count)
{
	urma_eid_info_t *list;

	if (!device || !count || !is_ours(device))
		return urma_refuse(EINVAL);
	list = calloc(1, sizeof(*list));
	if (!list)
		return urma_refuse(ENOMEM);
	urma_eid_of(urma_here.process->node, &list->eid);
	*count = 1;
	return list;
}

static void put32(urma_device_attr_t *attr, size_t at, uint32_t value)
{
	memcpy(attr->dev_cap + at, &value, sizeof(value));
}

int urma_query_device(urma_device_t *device, urma_device_attr_t *attr)
{
	const uint64_t message = URMA_MAX_BYTES, pages = 4096;
	const uint16_t modes = URMA_TM_RM;

	if (!device || !attr || !is_ours(device)) {
		errno = EINVAL;
		return URMA_EINVAL;
	}
	memset(attr, 0, sizeof(*attr));
	memcpy(attr->guid, DEVICE, sizeof(DEVICE));
	put32(attr, 0, 1u << 16 | 1u << 18); /* several segments per token id; CTP */
	for (size_t at = 4; at <= 16; at += 4)
		put32(attr, at, 65532); /* jfc, jfs, jfr, jetty */
	put32(attr, 28, URMA_MAX_JFC_DEPTH);
	put32(attr, 32, URMA_MAX_JFS_DEPTH);
	put32(attr, 36, URMA_MAX_JFR_DEPTH);
	put32(attr, 44, URMA_MAX_SGE);
	put32(attr, 48, 1);
	put32(attr, 52, URMA_MAX_READ_SGE);
	memcpy(attr->dev_cap + 56, &message, sizeof(message));
	put32(attr, 64, URMA_MAX_BYTES);
	put32(attr, 68, URMA_MAX_BYTES);
	memcpy(attr->dev_cap + 104, &modes, sizeof(modes));
	put32(attr, 112, 1);
	put32(attr, 120, 1);
	memcpy(attr->dev_cap + 128, &pages, sizeof(pages));
	put32(attr, 156, 1u << URMA_RTP | 1u << URMA_CTP);
	for (uint32_t priority = 0; priority < 16; priority++) {
		put32(attr, 172 + 8 * priority, priority);
		put32(attr, 176 + 8 * priority,
		      priority == 6 || priority == 7 ? 1u << URMA_CTP : priority == 15 ? 1u << URMA_RTP : 0);
	}
	attr->port_cnt = 1;
	return URMA_OK;
}

urma_context_t *urma_create_context(urma_device_t *device, uint32_t eid_index)
{
	struct context *context;

	(void)eid_index; /* unchecked for devices that a provider makes */
	if (!device || !is_ours(device))
		return urma_refuse(EINVAL);
	context = calloc(1, sizeof(*context));
	if (!context)
		return urma_refuse(ENOMEM);
	context->refs = 1;
	urma_count(&urma_here.counts.references, 1);
	return &context->public;
}

int urma_delete_context(urma_context_t *public)
{
	struct context *context = (struct context *)public;

	if (!context || !urma_started())
		return URMA_EINVAL;
	if (__atomic_load_n(&context->refs, __ATOMIC_SEQ_CST) > 1)
		return URMA_EAGAIN;
	free(context);
	urma_count(&urma_here.counts.references, (uint64_t)-1);
	return URMA_OK;
}

void urma_hold(struct context *context)
{
	__atomic_add_fetch(&context->refs, 1, __ATOMIC_SEQ_CST);
	urma_count(&urma_here.counts.references, 1);
}

void urma_drop(struct context *context)
{
	__atomic_sub_fetch(&context->refs, 1, __ATOMIC_SEQ_CST);
	urma_count(&urma_here.counts.references, (uint64_t)-1);
}
