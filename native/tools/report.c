/* SPDX-License-Identifier: Apache-2.0 */
#include "report.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "explain.h"

struct report {
	int json;
	int emulated;
	int failed;
	/* the members of the JSON arrays so far, as text */
	FILE *steps, *notices, *figures;
	char *texts[3];
	size_t lengths[3];
	char *backend;
	uint64_t size;
};

static void json_string(FILE *out, const char *text)
{
	fputc('"', out);
	for (; *text; text++) {
		if (*text == '"' || *text == '\\')
			fprintf(out, "\\%c", *text);
		else if (*text == '\n')
			fputs("\\n", out);
		else if ((unsigned char)*text < ' ')
			fprintf(out, "\\u%04x", *text);
		else
			fputc(*text, out);
	}
	fputc('"', out);
}

static void separate(FILE *array)
{
	if (ftell(array) > 0)
		fputs(", ", array);
}

struct report *report_new(int json, const char *backend, int emulated, uint64_t size)
{
	struct report *report = calloc(1, sizeof(*report));

	if (!report)
		abort();
	report->json = json;
	report->emulated = emulated;
	report->backend = strdup(backend);
	report->size = size;
	report->steps = open_memstream(&report->texts[0], &report->lengths[0]);
	report->notices = open_memstream(&report->texts[1], &report->lengths[1]);
	report->figures = open_memstream(&report->texts[2], &report->lengths[2]);
	if (!report->backend || !report->steps || !report->notices || !report->figures)
		abort();
	if (!json)
		printf("obmm smoke test in C, %llu bytes, backend %s\n", (unsigned long long)size, backend);
	return report;
}

static char *formatted(const char *format, va_list arguments)
{
	char *text;

	if (vasprintf(&text, format, arguments) < 0)
		abort();
	return text;
}

void report_notice(struct report *report, const char *format, ...)
{
	va_list arguments;
	char *text;

	va_start(arguments, format);
	text = formatted(format, arguments);
	va_end(arguments);
	if (report->json) {
		separate(report->notices);
		json_string(report->notices, text);
	} else {
		printf("notice: %s\n", text);
	}
	free(text);
}

/* error: 0 or the errno of a refused call */
static void add_step(struct report *report, const char *step, const char *status, int error, const char *text)
{
	if (!report->json) {
		printf("%-13s %-8s %s\n", step, status, text);
		fflush(stdout);
		return;
	}
	separate(report->steps);
	fprintf(report->steps, "{\"name\": \"%s\", \"status\": \"%s\", \"errno\": ", step, status);
	if (error)
		fprintf(report->steps, "\"%s\"", strerrorname_np(error) ? strerrorname_np(error) : "?");
	else
		fputs("null", report->steps);
	fputs(", \"text\": ", report->steps);
	json_string(report->steps, text);
	fputc('}', report->steps);
}

#define STEP(status)                                              \
	do {                                                      \
		va_list arguments;                                \
		char *text;                                       \
								  \
		va_start(arguments, format);                      \
		text = formatted(format, arguments);              \
		va_end(arguments);                                \
		add_step(report, step, status, 0, text);          \
		free(text);                                       \
	} while (0)

void report_ok(struct report *report, const char *step, const char *format, ...)
{
	STEP("ok");
}

void report_skipped(struct report *report, const char *step, const char *format, ...)
{
	STEP("skipped");
}

void report_failed(struct report *report, const char *step, const char *format, ...)
{
	report->failed = 1;
	STEP("failed");
}

void report_refused(struct report *report, const char *step, int rc, const char *operation,
		    const char *arguments, ...)
{
	size_t length;
	char *text;
	FILE *out = open_memstream(&text, &length);
	va_list list;

	if (!out)
		abort();
	report->failed = 1;
	fprintf(out, "%s(", operation);
	va_start(list, arguments);
	vfprintf(out, arguments, list);
	va_end(list);
	fputs(") failed with ", out);
	explain(out, operation, -rc);
	fclose(out);
	add_step(report, step, "failed", -rc, text);
	free(text);
}

void report_figure(struct report *report, const char *name, double value)
{
	fprintf(report->figures, ", \"%s\": %.2f", name, value);
}

int report_finish(struct report *report)
{
	int ok = !report->failed;

	fclose(report->steps);
	fclose(report->notices);
	fclose(report->figures);
	if (report->json) {
		fputs("{\"program\": \"smoke-c\", \"backend\": ", stdout);
		json_string(stdout, report->backend);
		printf(", \"emulated\": %s, \"result\": \"%s\", \"size\": %llu%s, \"notices\": [%s], \"steps\": [%s]}\n",
		       report->emulated ? "true" : "false", ok ? "ok" : "failed", (unsigned long long)report->size,
		       report->texts[2], report->texts[1], report->texts[0]);
	} else {
		printf("smoke %s: backend=%s size=%llu\n", ok ? "ok" : "failed", report->backend,
		       (unsigned long long)report->size);
	}
	for (int i = 0; i < 3; i++)
		free(report->texts[i]);
	free(report->backend);
	free(report);
	return ok;
}
