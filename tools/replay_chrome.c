/* SPDX-License-Identifier: MIT */
/*
 * tools/replay_chrome.c - the last replay in the Chrome trace event format, for Perfetto and chrome://tracing
 *
 * Tracks: the scopes of the forward pass, waiting for I/O, writes and reads (asynchronous events: they overlap), and a
 * counter of the activations in memory. Times are microseconds since the step began.
 */
#include "tools/replay_report.h"

#include <errno.h>
#include <inttypes.h>

#include "tools/replay_drive.h"
#include "util/util.h"

#define SCOPE_DEPTH_MAX 64u

enum track {
	TRACK_SCOPES = 1,
	TRACK_STALLS,
	TRACK_WRITES,
	TRACK_READS,
};

static double us(uint64_t ns)
{
	return (double)ns / 1e3;
}

static void put_names(FILE *out)
{
	static const char *const names[] = {"scopes", "waiting for I/O", "writes", "reads"};

	(void)fprintf(out, "{\"ph\":\"M\",\"pid\":1,\"name\":\"process_name\",\"args\":{\"name\":\"spillway "
			   "replay\"}}");
	for (unsigned i = 0; i < SPW_ARRAY_LEN(names); i++)
		(void)fprintf(out,
			      ",\n{\"ph\":\"M\",\"pid\":1,\"tid\":%u,\"name\":\"thread_name\",\"args\":{\"name\":"
			      "\"%s\"}}",
			      i + 1, names[i]);
}

static void put_scopes(const struct replay_report *report, FILE *out)
{
	const struct replay_step *step = report->step;
	uint32_t open[SCOPE_DEPTH_MAX], depth = 0;

	for (uint32_t i = 0; i < step->ops_count; i++) {
		uint64_t ns = report->run->timeline.op_ns[i];

		if (step->ops[i].event->kind == SPW_TRACE_SCOPE_ENTER) {
			if (depth < SCOPE_DEPTH_MAX)
				open[depth] = i;
			depth++;
		} else if (step->ops[i].event->kind == SPW_TRACE_SCOPE_LEAVE && depth > 0) {
			uint64_t begin_ns;

			if (--depth >= SCOPE_DEPTH_MAX)
				continue;
			begin_ns = report->run->timeline.op_ns[open[depth]];
			(void)fprintf(out,
				      ",\n{\"ph\":\"X\",\"pid\":1,\"tid\":%d,\"ts\":%.3f,\"dur\":%.3f,\"name\":\"scope "
				      "%" PRIu64 "\"}",
				      TRACK_SCOPES, us(begin_ns), us(ns - begin_ns),
				      step->ops[open[depth]].event->scope_key);
		} else if (step->ops[i].event->kind == SPW_TRACE_STAGE) {
			(void)fprintf(out,
				      ",\n{\"ph\":\"i\",\"pid\":1,\"tid\":%d,\"s\":\"p\",\"ts\":%.3f,\"name\":\"%s of "
				      "micro-batch %u\"}",
				      TRACK_SCOPES, us(ns), step->ops[i].event->backward ? "backward" : "forward",
				      step->ops[i].event->micro_batch);
		}
	}
}

static void put_stalls(const struct replay_timeline *timeline, FILE *out)
{
	for (uint32_t i = 0; i < timeline->stalls_count; i++)
		(void)fprintf(
			out, ",\n{\"ph\":\"X\",\"pid\":1,\"tid\":%d,\"ts\":%.3f,\"dur\":%.3f,\"name\":\"tensor %u\"}",
			TRACK_STALLS, us(timeline->stalls[i].begin_ns),
			us(timeline->stalls[i].end_ns - timeline->stalls[i].begin_ns), timeline->stalls[i].tensor);
}

static void put_transfers(const struct replay_report *report, FILE *out)
{
	uint64_t begin_ns = report->run->timeline.begin_ns;
	const struct replay_transfer *transfers;
	size_t count;

	transfers = replay_drive_transfers(&count);
	for (size_t i = 0; i < count; i++) {
		const struct replay_transfer *transfer = &transfers[i];
		const char *name = transfer->read ? "read" : "write";
		int tid = transfer->read ? TRACK_READS : TRACK_WRITES;
		uint64_t from_ns = transfer->begin_ns > begin_ns ? transfer->begin_ns - begin_ns : 0;

		(void)fprintf(
			out,
			",\n{\"ph\":\"b\",\"cat\":\"%s\",\"pid\":1,\"tid\":%d,\"id\":%zu,\"ts\":%.3f,\"name\":\"%s\","
			"\"args\":{\"bytes\":%.0f,\"failed\":%s}},\n{\"ph\":\"e\",\"cat\":\"%s\",\"pid\":1,\"tid\":"
			"%d,\"id\":%zu,\"ts\":%.3f,\"name\":\"%s\"}",
			name, tid, i, us(from_ns), name, (double)transfer->bytes / report->scale,
			transfer->failed ? "true" : "false", name, tid, i, us(transfer->end_ns - begin_ns), name);
	}
}

static void put_memory(const struct replay_report *report, FILE *out)
{
	const struct replay_timeline *timeline = &report->run->timeline;

	for (uint32_t i = 0; i < timeline->samples_count; i++)
		(void)fprintf(
			out,
			",\n{\"ph\":\"C\",\"pid\":1,\"ts\":%.3f,\"name\":\"activations\",\"args\":{\"bytes\":%.0f}}",
			us(timeline->samples[i].ns), (double)timeline->samples[i].bytes / report->scale);
}

int replay_chrome_write(const struct replay_report *report, const char *path)
{
	FILE *out = fopen(path, "w");
	int failed;

	if (!out)
		return spw_error_errno(-errno, "cannot create the Chrome trace %s", path);
	(void)fputs("{\"displayTimeUnit\":\"ms\",\"traceEvents\":[\n", out);
	put_names(out);
	put_scopes(report, out);
	put_stalls(&report->run->timeline, out);
	put_transfers(report, out);
	put_memory(report, out);
	(void)fputs("\n]}\n", out);
	failed = ferror(out);
	if (fclose(out) != 0 || failed)
		return spw_error_errno(errno ? -errno : -EIO, "cannot write the Chrome trace %s", path);
	return 0;
}
