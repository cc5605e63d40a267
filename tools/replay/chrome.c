/* SPDX-License-Identifier: MIT */
/*
 * tools/replay/chrome.c - write the last replay in the Chrome trace event format, for Perfetto and
 * chrome://tracing
 *
 * Tracks: passes, scopes, waiting for I/O, writes and reads (asynchronous events: they overlap),
 * and a counter of the activations in memory. Times are microseconds since the step began; events
 * are sorted by time, an enclosing event before those inside.
 */
#include "tools/replay/report.h"

#include <errno.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdlib.h>

#include "tools/replay/drive.h"
#include "tools/ui/tool.h"
#include "util/util.h"

static const char *const tracks[] = {"passes", "scopes", "waiting for I/O", "writes", "reads"};

enum track {
	TRACK_NONE,
	TRACK_PASSES,
	TRACK_SCOPES,
	TRACK_STALLS,
	TRACK_WRITES,
	TRACK_READS,
};

struct event {
	uint64_t ns, end_ns; /* since the step began */
	size_t number;       /* in the order in which they were added */
	char *text;
};

struct events {
	const struct replay_report *report;
	struct event *all;
	size_t count, max;
	bool out_of_memory;
};

static double us(uint64_t ns)
{
	return (double)ns / 1e3;
}

/* ---- Collect events ---- */

/* Add an event. @format: its own keys, after the common ones */
static void add(struct events *events, const char *phase, enum track track, uint64_t ns,
		uint64_t end_ns, const char *format, ...) SPW_PRINTF(6, 7);

static void add(struct events *events, const char *phase, enum track track, uint64_t ns,
		uint64_t end_ns, const char *format, ...)
{
	struct event *event = &events->all[events->count];
	char own[160];
	va_list args;

	SPW_ASSERT(events->count < events->max);
	va_start(args, format);
	(void)vsnprintf(own, sizeof(own), format, args);
	va_end(args);
	*event = (struct event){.ns = ns, .end_ns = end_ns, .number = events->count};
	if (asprintf(&event->text, ",\n{\"ph\":\"%s\",\"pid\":1,\"tid\":%d,\"ts\":%.3f,%s}", phase,
		     track, us(ns), own) < 0)
		events->out_of_memory = true;
	else
		events->count++;
}

static void add_pass(void *context, const struct replay_pass *pass)
{
	add(context, "X", TRACK_PASSES, pass->begin_ns, pass->end_ns,
	    "\"dur\":%.3f,\"name\":\"%s of micro-batch %u\"", us(pass->end_ns - pass->begin_ns),
	    pass->backward ? "backward" : "forward", pass->micro_batch);
}

/* Add the scopes, from the operation that enters each to the one that leaves it. */
static void add_scopes(struct events *events)
{
	const struct replay_step *step = events->report->step;
	const uint64_t *op_ns = events->report->run->timeline.op_ns;

	for (uint32_t i = 0; i < step->ops_count; i++) {
		uint32_t end = i, depth = 0;

		if (step->ops[i].event->kind != SPW_TRACE_SCOPE_ENTER)
			continue;
		for (; end < step->ops_count; end++) {
			depth += step->ops[end].event->kind == SPW_TRACE_SCOPE_ENTER;
			depth -= step->ops[end].event->kind == SPW_TRACE_SCOPE_LEAVE;
			if (depth == 0)
				break;
		}
		if (end < step->ops_count)
			add(events, "X", TRACK_SCOPES, op_ns[i], op_ns[end],
			    "\"dur\":%.3f,\"name\":\"scope %" PRIu64 "\"",
			    us(op_ns[end] - op_ns[i]), step->ops[i].event->scope_key);
	}
}

static void add_transfer(struct events *events, const struct replay_transfer *transfer, size_t id)
{
	uint64_t step_ns = events->report->run->timeline.begin_ns;
	uint64_t begin_ns = transfer->begin_ns > step_ns ? transfer->begin_ns - step_ns : 0;
	uint64_t end_ns = transfer->end_ns - step_ns;
	enum track track = transfer->read ? TRACK_READS : TRACK_WRITES;
	const char *name = transfer->read ? "read" : "write";

	add(events, "b", track, begin_ns, end_ns,
	    "\"cat\":\"%s\",\"id\":%zu,\"name\":\"%s\",\"args\":{\"bytes\":%.0f,\"failed\":%s}",
	    name, id, name, (double)transfer->bytes / events->report->scale,
	    transfer->failed ? "true" : "false");
	add(events, "e", track, end_ns, end_ns, "\"cat\":\"%s\",\"id\":%zu,\"name\":\"%s\"", name,
	    id, name);
}

/* Order events by time; the longer one encloses the other; else as added. */
static int compare(const void *a, const void *b)
{
	const struct event *one = a, *other = b;

	if (one->ns != other->ns)
		return one->ns < other->ns ? -1 : 1;
	if (one->end_ns != other->end_ns)
		return one->end_ns > other->end_ns ? -1 : 1;
	return one->number < other->number ? -1 : 1;
}

static int no_memory(const struct events *events)
{
	return spw_error(-ENOMEM, "no memory for a Chrome trace of %zu events", events->max);
}

static int collect(struct events *events)
{
	const struct replay_timeline *timeline = &events->report->run->timeline;
	size_t transfers_count;
	const struct replay_transfer *transfers = replay_drive_transfers(&transfers_count);

	/* Each operation adds at most a pass or a scope; add one for the last pass. */
	events->max = (size_t)events->report->step->ops_count + 1 + timeline->stalls_count +
		      timeline->samples_count + 2 * transfers_count;
	events->all = calloc(events->max, sizeof(*events->all));
	if (!events->all)
		return no_memory(events);
	replay_each_pass(events->report, add_pass, events);
	add_scopes(events);
	for (uint32_t i = 0; i < timeline->stalls_count; i++) {
		const struct replay_stall *stall = &timeline->stalls[i];

		add(events, "X", TRACK_STALLS, stall->begin_ns, stall->end_ns,
		    "\"dur\":%.3f,\"name\":\"tensor %u\"", us(stall->end_ns - stall->begin_ns),
		    stall->tensor);
	}
	for (size_t i = 0; i < transfers_count; i++)
		add_transfer(events, &transfers[i], i);
	for (uint32_t i = 0; i < timeline->samples_count; i++)
		add(events, "C", TRACK_NONE, timeline->samples[i].ns, timeline->samples[i].ns,
		    "\"name\":\"activations\",\"args\":{\"bytes\":%.0f}",
		    (double)timeline->samples[i].bytes / events->report->scale);
	if (events->out_of_memory)
		return no_memory(events);
	qsort(events->all, events->count, sizeof(*events->all), compare);
	return 0;
}

/* ---- The file ---- */

static void put_all(void *context, FILE *out)
{
	const struct events *events = context;

	(void)fputs("{\"displayTimeUnit\":\"ms\",\"traceEvents\":[\n"
		    "{\"ph\":\"M\",\"pid\":1,\"tid\":0,\"name\":\"process_name\",\"args\":{"
		    "\"name\":\"spillway replay\"}}",
		    out);
	for (unsigned i = 0; i < SPW_ARRAY_LEN(tracks); i++)
		(void)fprintf(out,
			      ",\n{\"ph\":\"M\",\"pid\":1,\"tid\":%u,\"name\":\"thread_name\","
			      "\"args\":{\"name\":\"%s\"}},\n{\"ph\":\"M\",\"pid\":1,\"tid\":%u,"
			      "\"name\":\"thread_sort_index\",\"args\":{\"sort_index\":%u}}",
			      i + 1, tracks[i], i + 1, i + 1);
	for (size_t i = 0; i < events->count; i++)
		(void)fputs(events->all[i].text, out);
	(void)fputs("\n]}\n", out);
}

int replay_chrome_write(const struct replay_report *report, const char *path)
{
	struct events events = {.report = report};
	int rc = collect(&events);

	if (rc == 0)
		rc = tool_output_write(path, "the Chrome trace", put_all, &events);
	for (size_t i = 0; i < events.count; i++)
		free(events.all[i].text);
	free(events.all);
	return rc;
}
