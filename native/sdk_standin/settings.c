/* SPDX-License-Identifier: Apache-2.0 */
/* What the environment says: read whenever a connection is made, as the real library does (SDK specification 2). */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "standin.h"

static unsigned long number(const char *name, unsigned long low, unsigned long high, unsigned long usual)
{
	const char *text = getenv(name);
	unsigned long value = text ? strtoul(text, NULL, 10) : 0;

	return value >= low && value <= high ? value : usual;
}

void standin_read_settings(struct standin_settings *settings)
{
	const char *folder = getenv("OBMM_SDK_STANDIN"), *node = getenv("OBMM_SDK_STANDIN_NODE");
	const char *user = getenv("OBMM_SDK_STANDIN_USER");
	char *end;

	memset(settings, 0, sizeof(*settings));
	snprintf(settings->folder, sizeof(settings->folder), "%s", folder ? folder : "");
	snprintf(settings->node, sizeof(settings->node), "%s", node ? node : "");
	settings->in_process = standin_in_process();
	settings->user[0] = settings->user[1] = UINT64_MAX;
	if (user) {
		settings->user[0] = strtoul(user, &end, 10);
		settings->user[1] = *end == ':' ? strtoul(end + 1, NULL, 10) : settings->user[0];
	}
	settings->timeout_s = number("MXM_CHANNEL_TIMEOUT", 1, 1UL << 30, 60);
	settings->attempts = number("HCOM_CONNECTION_RETRY_TIMES", 1, 10, 5);
	settings->wait_cap_s = number("HCOM_CONNECTION_RETRY_INTERVAL_SEC", 1, 60, 20);
	settings->second_ms = number("OBMM_SDK_STANDIN_SECOND_MS", 1, 1000, 1000);
}

int standin_in_process(void)
{
	const char *mode = getenv("OBMM_SDK_STANDIN_MODE");

	return mode && !strcmp(mode, "in-process");
}
