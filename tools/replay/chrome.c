/* SPDX-License-Identifier: MIT */
/*
 * tools/replay/chrome.c - the last replay in the Chrome trace event format, for Perfetto and
 * chrome://tracing
 *
 * Tracks: passes, scopes, waiting for I/O, writes and reads (asynchronous events: they overlap),
 * and a counter of the activations in memory. Times are microseconds since the step began; events
 * are in the order of time, and what encloses another comes before it.
 */
#include "tools/replay/report.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>

#include "tools/replay/drive.h"
#include "util/util.h"

#define SCOPE_DEPTH_MAX 64u

enum track {
	TRACK_PASSES = 1,
	TRACK_SCOPES,
	TRACK_STALLS,
	TRACK_WRITES,
	TRACK_READS,
};

enum kind {
	KIND_PASS,
	KIND_SCOPE,
	KIND_STALL,
	KIND_TRANSFER_BEGIN,
	KIND_TRANSFER_END,
	KIND_MEMORY,
};

struct event {
	uint64_t ns, end_ns; /* since the step began */
	enum kind kind;
	/* of the micro-batch, the operation that enters, the stall, the transfer or the sample */
	size_t index;
	bool backward; /* pass */
};

struct events {
	const struct replay_report *report;
	const struct replay_transfer *transfers;
	struct event *all;
	size_t count, max;
};

static double us(uint64_t ns)
{
	return (double)ns / 1e3;
}

/* ---- What happened ---- */

static void add(struct events *events, enum kind kind, size_t index, uint64_t ns, uint64_t end_ns)
{
	SPW_ASSERT(events->count < events->max);
	events->all[events->count++] =
		(struct event){.ns = ns, .end_ns = end_ns, .kind = kind, .index = index};
}

static void add_pass(void *context, const struct replay_pass *pass)
{
	struct events *events = context;

	add(events, KIND_PASS, pass->micro_batch, pass->begin_ns, pass->end_ns);
	events->all[events->count - 1].backward = pass->backward;
}

static void add_scopes(struct events *events)
{
	const struct replay_step *step = events->report->step;
	const uint64_t *op_ns = events->report->run->timeline.op_ns;
	uint32_t open[SCOPE_DEPTH_MAX], depth = 0;

	for (uint32_t i = 0; i < step->ops_count; i++) {
		if (step->ops[i].event->kind == SPW_TRACE_SCOPE_ENTER) {
			if (depth < SCOPE_DEPTH_MAX)
				open[depth] = i;
			depth++;
		} else if (step->ops[i].event->kind == SPW_TRACE_SCOPE_LEAVE && depth > 0) {
			if (--depth < SCOPE_DEPTH_MAX)
				add(events, KIND_SCOPE, open[depth], op_ns[open[depth]], op_ns[i]);
		}
	}
}

static void add_rest(struct events *events, size_t transfers_count)
{
	const struct replay_timeline *timeline = &events->report->run->timeline;

	for (uint32_t i = 0; i < timeline->stalls_count; i++)
		add(events, KIND_STALL, i, timeline->stalls[i].begin_ns,
		    timeline->stalls[i].end_ns);
	for (size_t i = 0; i < transfers_count; i++) {
		const struct replay_transfer *transfer = &events->transfers[i];
		uint64_t begin_ns = transfer->begin_ns > timeline->begin_ns ? transfer->begin_ns
									    : timeline->begin_ns;

		add(events, KIND_TRANSFER_BEGIN, i, begin_ns - timeline->begin_ns, 0);
		add(events, KIND_TRANSFER_END, i, transfer->end_ns - timeline->begin_ns, 0);
	}
	for (uint32_t i = 0; i < timeline->samples_count; i++)
		add(events, KIND_MEMORY, i, timeline->samples[i].ns, 0);
}

/* By time; then by track; then what takes longer first: it encloses the other. */
static int compare(const void *a, const void *b)
{
	const struct event *one = a, *other = b;

	if (one->ns != other->ns)
		return one->ns < other->ns ? -1 : 1;
	if (one->kind != other->kind)
		return one->kind < other->kind ? -1 : 1;
	if (one->end_ns != other->end_ns)
		return one->end_ns > other->end_ns ? -1 : 1;
	return one->index < other->index ? -1 : one->index > other->index;
}

static int collect(struct events *events)
{
	const struct replay_run *run = events->report->run;
	size_t transfers_count;

	events->transfers = replay_drive_transfers(&transfers_count);
	/* A pass or a scope each at most, and the last pass. */
	events->max = (size_t)run->step->ops_count + 1 + run->timeline.stalls_count +
		      run->timeline.samples_count + 2 * transfers_count;
	events->all = calloc(events->max, sizeof(*events->all));
	if (!events->all)
		return spw_error(-ENOMEM, "no memory for a Chrome trace of %zu events",
				 events->max);
	replay_each_pass(events->report, add_pass, events);
	add_scopes(events);
	add_rest(events, transfers_count);
	qsort(events->all, events->count, sizeof(*events->all), compare);
	return 0;
}

/* ---- The file ---- */

static void put_names(FILE *out)
{
	static const char *const names[] = {"passes", "scopes", "waiting for I/O", "writes",
					    "reads"};

	(void)fprintf(out, "{\"ph\":\"M\",\"pid\":1,\"tid\":0,\"name\":\"process_name\",\"args\":{"
			   "\"name\":\"spillway "
			   "replay\"}}");
	for (unsigned i = 0; i < SPW_ARRAY_LEN(names); i++)
		(void)fprintf(out,
			      ",\n{\"ph\":\"M\",\"pid\":1,\"tid\":%u,\"name\":\"thread_name\","
			      "\"args\":{\"name\":"
			      "\"%s\"}},\n{\"ph\":\"M\",\"pid\":1,\"tid\":%u,\"name\":\"thread_"
			      "sort_index\",\"args\":{"
			      "\"sort_index\":%u}}",
			      i + 1, names[i], i + 1, i + 1);
}

static void put_span(FILE *out, const struct event *event, enum track track, const char *name)
{
	(void)fprintf(
		out,
		",\n{\"ph\":\"X\",\"pid\":1,\"tid\":%d,\"ts\":%.3f,\"dur\":%.3f,\"name\":\"%s\"}",
		track, us(event->ns), us(event->end_ns - event->ns), name);
}

static void put_transfer(FILE *out, const struct replay_report *report, const struct event *event,
			 const struct replay_transfer *transfer)
{
	const char *name = transfer->read ? "read" : "write";

	(void)fprintf(out,
		      ",\n{\"ph\":\"%s\",\"cat\":\"%s\",\"pid\":1,\"tid\":%d,\"id\":%zu,\"ts\":%."
		      "3f,\"name\":\"%s\"",
		      event->kind == KIND_TRANSFER_BEGIN ? "b" : "e", name,
		      transfer->read ? TRACK_READS : TRACK_WRITES, event->index, us(event->ns),
		      name);
	if (event->kind == KIND_TRANSFER_BEGIN)
		(void)fprintf(out, ",\"args\":{\"bytes\":%.0f,\"failed\":%s}",
			      (double)transfer->bytes / report->scale,
			      transfer->failed ? "true" : "false");
	(void)fputc('}', out);
}

static void put(FILE *out, const struct events *events, const struct event *event)
{
	const struct replay_report *report = events->report;
	const struct replay_timeline *timeline = &report->run->timeline;
	char name[64];

	switch (event->kind) {
	case KIND_PASS:
		(void)snprintf(name, sizeof(name), "%s of micro-batch %zu",
			       event->backward ? "backward" : "forward", event->index);
		put_span(out, event, TRACK_PASSES, name);
		break;
	case KIND_SCOPE:
		(void)snprintf(name, sizeof(name), "scope %" PRIu64,
			       report->step->ops[event->index].event->scope_key);
		put_span(out, event, TRACK_SCOPES, name);
		break;
	case KIND_STALL:
		(void)snprintf(name, sizeof(name), "tensor %u",
			       timeline->stalls[event->index].tensor);
		put_span(out, event, TRACK_STALLS, name);
		break;
	case KIND_TRANSFER_BEGIN:
	case KIND_TRANSFER_END:
		put_transfer(out, report, event, &events->transfers[event->index]);
		break;
	case KIND_MEMORY:
		(void)fprintf(out,
			      ",\n{\"ph\":\"C\",\"pid\":1,\"tid\":0,\"ts\":%.3f,\"name\":"
			      "\"activations\",\"args\":{"
			      "\"bytes\":%.0f}}",
			      us(event->ns),
			      (double)timeline->samples[event->index].bytes / report->scale);
		break;
	}
}

int replay_chrome_write(const struct replay_report *report, const char *path)
{
	struct events events = {.report = report};
	int rc = collect(&events), failed;
	FILE *out;

	if (rc)
		return rc;
	out = fopen(path, "w");
	if (!out) {
		rc = spw_error_errno(-errno, "cannot create the Chrome trace %s", path);
		goto out;
	}
	(void)fputs("{\"displayTimeUnit\":\"ms\",\"traceEvents\":[\n", out);
	put_names(out);
	for (size_t i = 0; i < events.count; i++)
		put(out, &events, &events.all[i]);
	(void)fputs("\n]}\n", out);
	failed = ferror(out);
	if (fclose(out) != 0 || failed)
		rc = spw_error_errno(errno ? -errno : -EIO, "cannot write the Chrome trace %s",
				     path);
out:
	free(events.all);
	return rc;
}
