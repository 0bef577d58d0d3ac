/* SPDX-License-Identifier: Apache-2.0 */
#include "faults.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const struct {
	const char *name;
	enum urma_action action;
	int valued;
} actions[] = {
	{ "status", URMA_STATUS, 1 }, { "drop", URMA_DROP, 0 },	      { "delay", URMA_DELAY, 1 },
	{ "late", URMA_LATE, 1 },     { "early", URMA_EARLY, 0 },     { "list", URMA_LIST, 1 },
	{ "poll", URMA_POLL, 0 },     { "import", URMA_IMPORT, 0 },   { "duplicate", URMA_DUPLICATE, 0 },
	{ "swap", URMA_SWAP, 0 },     { "kill", URMA_KILL, 0 },
};

static int number(const char *text, uint32_t *out)
{
	char *end;
	unsigned long value;

	errno = 0;
	value = text && *text >= '0' && *text <= '9' ? strtoul(text, &end, 10) : UINT32_MAX;
	if (value >= UINT32_MAX || errno || *end)
		return -EINVAL;
	*out = (uint32_t)value;
	return 0;
}

static int word(char *name, struct urma_rule *rule)
{
	char *value = strchr(name, '=');

	if (value)
		*value++ = '\0';
	if (!strcmp(name, "node"))
		return !value || snprintf(rule->node, sizeof(rule->node), "%s", value) >= (int)sizeof(rule->node) ? -EINVAL : 0;
	if (!strcmp(name, "queue"))
		return number(value, &rule->queue);
	if (!strcmp(name, "every"))
		return number(value, &rule->every) || !rule->every ? -EINVAL : 0;
	if (!strcmp(name, "at"))
		return number(value, &rule->at);
	if (!strcmp(name, "first"))
		return number(value, &rule->count);
	for (size_t i = 0; i < sizeof(actions) / sizeof(actions[0]); i++) {
		if (strcmp(name, actions[i].name))
			continue;
		if (rule->action || !value != !actions[i].valued)
			return -EINVAL;
		rule->action = actions[i].action;
		return value ? number(value, &rule->value) : 0;
	}
	return -EINVAL;
}

int urma_parse_rule(const char *text, struct urma_rule *rule)
{
	char copy[256], *rest = copy, *name;
	int rc = 0;

	memset(rule, 0, sizeof(*rule));
	rule->count = 1;
	if (snprintf(copy, sizeof(copy), "%s", text) >= (int)sizeof(copy))
		return -EINVAL;
	while (!rc && (name = strsep(&rest, ",")))
		rc = word(name, rule);
	return rc || !rule->action ? -EINVAL : 0;
}

static int due(struct urma_rule *rule)
{
	const uint32_t seen = __atomic_fetch_add(&rule->seen, 1, __ATOMIC_RELAXED);

	return rule->every ? (seen + 1) % rule->every == 0 : seen >= rule->at && seen - rule->at < rule->count;
}

const struct urma_rule *urma_strikes(struct urma_rule *rules, uint32_t n, uint32_t wanted, const char *node,
				     uint32_t queue)
{
	for (uint32_t i = 0; i < n; i++) {
		struct urma_rule *rule = &rules[i];

		if (!(wanted >> rule->action & 1) || (*rule->node && strcmp(rule->node, node)) ||
		    (rule->queue && rule->queue != queue))
			continue;
		if (due(rule))
			return rule;
	}
	return NULL;
}
