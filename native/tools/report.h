/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the smoke test says: a line per step for people, or one JSON object for
 * programs, which has at least what `obmm smoke --json` has.
 */
#ifndef OBMM_REPORT_H
#define OBMM_REPORT_H

#include <stdint.h>

struct report;

struct report *report_new(int json, const char *backend, int emulated, uint64_t size);

/* printf-like; JSON gathers them in "notices" */
void report_notice(struct report *report, const char *format, ...) __attribute__((format(printf, 2, 3)));

void report_ok(struct report *report, const char *step, const char *format, ...)
	__attribute__((format(printf, 3, 4)));
/* not tried; the text says why */
void report_skipped(struct report *report, const char *step, const char *format, ...)
	__attribute__((format(printf, 3, 4)));
/* failed for a reason that is not an errno */
void report_failed(struct report *report, const char *step, const char *format, ...)
	__attribute__((format(printf, 3, 4)));
/* operation(arguments) was refused with -rc, which is explained */
void report_refused(struct report *report, const char *step, int rc, const char *operation,
		    const char *arguments, ...) __attribute__((format(printf, 5, 6)));

/* a figure, for JSON only */
void report_figure(struct report *report, const char *name, double value);

/* Prints what is left to print and frees.  Whether no step failed. */
int report_finish(struct report *report);

#endif
