/* SPDX-License-Identifier: Apache-2.0 */
#include "explain.h"

#include <errno.h>
#include <string.h>

static const struct {
	const char *operation;
	int error;
	const char *rules;
	const char *meaning;
	const char *fix;
} CAUSES[] = {
#include "explain_table.h"
};

void explain(FILE *out, const char *operation, int error)
{
	const char *name = strerrorname_np(error);
	int known = 0;

	fprintf(out, "%s (%s)", name ? name : "unknown errno", strerror(error));
	for (size_t i = 0; i < sizeof(CAUSES) / sizeof(CAUSES[0]); i++) {
		if (CAUSES[i].error != error || strcmp(CAUSES[i].operation, operation))
			continue;
		fprintf(out, "\n  - %s [%s]; fix: %s", CAUSES[i].meaning, CAUSES[i].rules, CAUSES[i].fix);
		known = 1;
	}
	if (!known)
		fprintf(out, "\n  - no rule of the driver specification gives this answer; "
			     "read the kernel log (prefix OBMM:)");
}
