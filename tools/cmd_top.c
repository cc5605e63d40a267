/* SPDX-License-Identifier: MIT */
/* tools/cmd_top.c - spillway top: show the activity of this machine's open stores, by drive */
#include "tools/ui/tool.h"

#include <errno.h>
#include <string.h>
#include <termios.h>
#include <unistd.h>

#include <spillway/status.h>

#include "tools/metrics/openmetrics.h"
#include "tools/ui/counters.h"
#include "tools/ui/stop.h"
#include "util/util.h"

static bool once, json, openmetrics;
static struct tool_number interval = {1, 0.1, 86400}; /* seconds */
static struct tool_number endurance = {0, 1e-6, 1e9};

static const struct tool_option options[] = {
	{"once", TOOL_FLAG, &once, NULL, "print one interval and exit"},
	{"interval", TOOL_NUMBER, &interval, "SECONDS", "seconds between updates, from 0.1 on (1)"},
	{"endurance", TOOL_NUMBER, &endurance, "N",
	 "rated endurance of one drive in terabytes (default: from its health page)"},
	{"json", TOOL_FLAG, &json, NULL, "print JSON, a document per interval"},
	{"openmetrics", TOOL_FLAG, &openmetrics, NULL,
	 "print all counters once in OpenMetrics format, and exit"},
	{NULL, TOOL_FLAG, NULL, NULL, NULL},
};

/* Whether the store was reopened: counters only grow while it is open. */
static bool is_opened_since(const struct spw_status *before, const struct spw_status *now)
{
	bool since = now->drives != before->drives || now->store.puts < before->store.puts ||
		     now->store.gets < before->store.gets;

	for (uint32_t i = 0; !since && i < now->drives; i++)
		since = now->drive[i].writes < before->drive[i].writes ||
			now->drive[i].reads < before->drive[i].reads ||
			now->drive[i].bytes_written < before->drive[i].bytes_written ||
			now->drive[i].bytes_read < before->drive[i].bytes_read;
	return since;
}

/* Find the partition in the earlier snapshot. Return: NULL if it was opened since. */
static const struct spw_status *find(const struct tool_snapshot *before,
				     const struct spw_status *now)
{
	for (unsigned i = 0; i < before->count; i++) {
		const struct spw_status *status = &before->partitions[i];

		if (status->partition == now->partition && status->pid == now->pid &&
		    strcmp(status->store_uuid, now->store_uuid) == 0)
			return is_opened_since(status, now) ? NULL : status;
	}
	return NULL;
}

struct rates {
	double write_bytes, read_bytes, writes, reads; /* per second */
	double share;                                  /* of the partition's bytes */
};

static struct rates drive_rates(const struct spw_status *before, const struct spw_status *now,
				uint32_t drive, double seconds)
{
	static const struct spw_drive_stats nothing;
	const struct spw_drive_stats *from = before ? &before->drive[drive] : &nothing,
				     *to = &now->drive[drive];
	uint64_t all = 0,
		 own = to->bytes_written - from->bytes_written + to->bytes_read - from->bytes_read;

	for (uint32_t i = 0; i < now->drives; i++) {
		const struct spw_drive_stats *other = before ? &before->drive[i] : &nothing;

		all += now->drive[i].bytes_written - other->bytes_written +
		       now->drive[i].bytes_read - other->bytes_read;
	}
	return (struct rates){
		.write_bytes = (double)(to->bytes_written - from->bytes_written) / seconds,
		.read_bytes = (double)(to->bytes_read - from->bytes_read) / seconds,
		.writes = (double)(to->writes - from->writes) / seconds,
		.reads = (double)(to->reads - from->reads) / seconds,
		.share = all ? (double)own / (double)all : 0,
	};
}

/* ---- For people ---- */

#define PERCENTILES(of) TOOL_SHORT("%.2f/%.2f", (double)of##_p50 / 1e6, (double)of##_p99 / 1e6)

static void print_drive(struct tool_table *table, const struct spw_status *before,
			const struct spw_status *now, uint32_t index, double seconds)
{
	const struct spw_drive_stats *drive = &now->drive[index];
	struct rates rates = drive_rates(before, now, index, seconds);
	double used = drive->capacity_bytes
			      ? 100.0 * (double)drive->used_bytes / (double)drive->capacity_bytes
			      : 0.0;
	uint64_t errors =
		drive->write_errors + drive->read_errors + drive->checksum_errors + drive->timeouts;

	tool_table_row(table, TOOL_SHORT_PATH(drive->path),
		       TOOL_SHORT("%.1f", rates.write_bytes / 1e6),
		       TOOL_SHORT("%.1f", rates.read_bytes / 1e6),
		       TOOL_SHORT("%.0f", rates.writes + rates.reads),
		       TOOL_SHORT("%u/%u", drive->in_flight, drive->depth),
		       PERCENTILES(drive->write_latency_ns), PERCENTILES(drive->read_latency_ns),
		       TOOL_SHORT("%.0f%%", 100 * rates.share), TOOL_SHORT("%.0f%%", used),
		       TOOL_SHORT("%ju", (uintmax_t)errors),
		       drive->full      ? "NO SPACE"
		       : drive->retired ? "RETIRED"
					: "in service");
}

/* Print wear since the store was opened, as short intervals of a training step mislead. */
static void print_wear(const struct spw_status *now)
{
	struct tool_table *table = tool_table_new("DRIVE|>WRITTEN|>PER DAY|>WORN|>LASTS");
	struct spw_wear wear;
	char reason[sizeof(wear.reason)] = "";

	for (uint32_t i = 0; i < now->drives; i++) {
		tool_wear_of(now, i, endurance.value * 1e12, &wear);
		tool_table_row(table, TOOL_SHORT_PATH(now->drive[i].path),
			       SPW_SIZE_TEXT(now->drive[i].bytes_written),
			       TOOL_PER_DAY(wear.bytes_per_day),
			       wear.has_health ? TOOL_SHORT("%u %%", wear.percentage_used) : "-",
			       TOOL_WEAR_YEARS(&wear));
		if (!reason[0])
			memcpy(reason, wear.reason, sizeof(reason));
	}
	(void)printf("\nwear, since it was opened %s ago\n", TOOL_SPAN((double)now->open_ns / 1e9));
	tool_table_end(table, stdout);
	if (reason[0]) {
		tool_print_text(reason, stdout);
		(void)puts(endurance.value > 0 ? ": taken for new"
					       : "; --endurance names a rating");
	}
}

/* Warn of missing or retired drives: mirrored data has one copy, and a step has fewer drives. */
static void print_degraded(const struct spw_status *now)
{
	const struct spw_store_stats *store = &now->store;

	if (store->drives_missing)
		(void)printf("DEGRADED: %u of %u drives missing since it was opened\n",
			     store->drives_missing, now->drives + store->drives_missing);
	if (store->drives_retired)
		(void)printf("DEGRADED: %u of %u drives retired: nothing new goes there\n",
			     store->drives_retired, now->drives + store->drives_missing);
}

static void print_partition(const struct spw_status *before, const struct spw_status *now,
			    double seconds)
{
	struct tool_table *table =
		tool_table_new("DRIVE|>WRITE MB/s|>READ MB/s|>IOPS|>DEPTH|>WRITE ms 50/99%|"
			       ">READ ms 50/99%|>SHARE|>USED|>ERRORS|STATE");

	(void)printf("store %s partition %u, open in process %d (%s), %s of %s used, %u objects, "
		     "%u requests\n",
		     now->store_uuid, now->partition, now->pid, now->command,
		     SPW_SIZE_TEXT(now->store.used_bytes), SPW_SIZE_TEXT(now->store.capacity_bytes),
		     now->store.objects, now->store.requests);
	print_degraded(now);
	for (uint32_t i = 0; i < now->drives; i++)
		print_drive(table, before, now, i, seconds);
	tool_table_end(table, stdout);
	print_wear(now);
	if (now->steps.steps > 0) {
		(void)puts("\ntensor cache, since it was opened");
		tool_counters_print(SPW_COUNTED_CACHE, &now->steps, stdout);
	}
}

static int print_all(const struct tool_snapshot *before, const struct tool_snapshot *now)
{
	double seconds = (double)(now->time_ns - before->time_ns) / 1e9;

	if (!once && isatty(STDOUT_FILENO))
		(void)fputs("\033[H\033[2J", stdout); /* cursor home, clear screen */
	if (now->count == 0)
		(void)puts("no store is open in a process that you may look at");
	for (unsigned i = 0; i < now->count; i++) {
		if (i > 0)
			(void)putchar('\n');
		print_partition(find(before, &now->partitions[i]), &now->partitions[i], seconds);
	}
	return fflush(stdout) == 0 ? TOOL_DONE : TOOL_FAILED;
}

/* ---- For programs ---- */

static json_t *json_wear(const struct spw_status *now, uint32_t index)
{
	struct spw_wear wear;

	tool_wear_of(now, index, endurance.value * 1e12, &wear);
	return tool_json_wear(&wear);
}

static json_t *json_drive(const struct spw_status *before, const struct spw_status *now,
			  uint32_t index, double seconds)
{
	const struct spw_drive_stats *drive = &now->drive[index];
	struct rates rates = drive_rates(before, now, index, seconds);

	return json_pack(
		"{s:o, s:b, s:b, s:f, s:f, s:f, s:f, s:f, s:i, s:i, s:I, s:I, s:I, s:I, s:I, s:I, "
		"s:I, s:I, s:I, s:I, s:I, s:I, s:o}",
		"path", tool_json_text(drive->path), "retired", drive->retired, "full", drive->full,
		"write_bytes_per_second", rates.write_bytes, "read_bytes_per_second",
		rates.read_bytes, "write_iops", rates.writes, "read_iops", rates.reads, "share",
		rates.share, "in_flight", (int)drive->in_flight, "depth", (int)drive->depth,
		"write_latency_ns_p50", (json_int_t)drive->write_latency_ns_p50,
		"write_latency_ns_p99", (json_int_t)drive->write_latency_ns_p99,
		"read_latency_ns_p50", (json_int_t)drive->read_latency_ns_p50,
		"read_latency_ns_p99", (json_int_t)drive->read_latency_ns_p99, "used_bytes",
		(json_int_t)drive->used_bytes, "capacity_bytes", (json_int_t)drive->capacity_bytes,
		"write_errors", (json_int_t)drive->write_errors, "read_errors",
		(json_int_t)drive->read_errors, "checksum_errors",
		(json_int_t)drive->checksum_errors, "timeouts", (json_int_t)drive->timeouts,
		"bytes_written", (json_int_t)drive->bytes_written, "bytes_read",
		(json_int_t)drive->bytes_read, "wear", json_wear(now, index));
}

static json_t *json_partition(const struct spw_status *before, const struct spw_status *now,
			      double seconds)
{
	json_t *drives = json_array();

	for (uint32_t i = 0; i < now->drives; i++)
		(void)json_array_append_new(drives, json_drive(before, now, i, seconds));
	return json_pack(
		"{s:s, s:i, s:i, s:o, s:I, s:f, s:o, s:I, s:I, s:i, s:i, s:i, s:i, s:o, s:o}",
		"store_uuid", now->store_uuid, "partition", (int)now->partition, "pid",
		(int)now->pid, "command", tool_json_text(now->command), "age_ns",
		(json_int_t)now->age_ns, "open_seconds", (double)now->open_ns / 1e9, "description",
		tool_json_text(now->description), "used_bytes", (json_int_t)now->store.used_bytes,
		"capacity_bytes", (json_int_t)now->store.capacity_bytes, "objects",
		(int)now->store.objects, "requests", (int)now->store.requests, "drives_missing",
		(int)now->store.drives_missing, "drives_retired", (int)now->store.drives_retired,
		"drives", drives, "cache",
		now->steps.steps > 0 ? tool_counters_json(SPW_COUNTED_CACHE, &now->steps)
				     : json_null());
}

static int print_json(const struct tool_snapshot *before, const struct tool_snapshot *now)
{
	double seconds = (double)(now->time_ns - before->time_ns) / 1e9;
	json_t *partitions = json_array();

	for (unsigned i = 0; i < now->count; i++)
		(void)json_array_append_new(partitions,
					    json_partition(find(before, &now->partitions[i]),
							   &now->partitions[i], seconds));
	return tool_print_json(
		json_pack("{s:f, s:o}", "interval_seconds", seconds, "partitions", partitions));
}

/* ---- The loop ---- */

/* On a terminal, keys are read one at a time, without Enter; q ends the program. */
static struct termios terminal;
static bool has_keys;

static void keys_begin(void)
{
	struct termios raw;

	has_keys = !once && !json && isatty(STDOUT_FILENO) &&
		   tcgetpgrp(STDIN_FILENO) == getpgrp() && tcgetattr(STDIN_FILENO, &terminal) == 0;
	if (!has_keys)
		return;
	raw = terminal;
	raw.c_lflag &= ~(tcflag_t)(ICANON | ECHO);
	(void)tcsetattr(STDIN_FILENO, TCSANOW, &raw);
}

static void keys_end(void)
{
	if (has_keys)
		(void)tcsetattr(STDIN_FILENO, TCSANOW, &terminal);
}

/* Wait until @ns, a signal or a key. Return: whether to go on. */
static bool wait_until(uint64_t ns)
{
	struct pollfd fds[] = {{.fd = tool_stop_fd(), .events = POLLIN},
			       {.fd = has_keys ? STDIN_FILENO : -1, .events = POLLIN}};
	char key;

	while (!tool_stopped() && spw_clock_ns() < ns) {
		if (tool_stop_poll(fds, SPW_ARRAY_LEN(fds), ns) <= 0 || !fds[1].revents)
			continue;
		if (read(STDIN_FILENO, &key, 1) != 1)
			fds[1].fd = -1; /* the terminal was closed */
		else if (key == 'q' || key == 'Q')
			return false;
	}
	return !tool_stopped();
}

static int look(const struct tool_command *command, struct tool_snapshot snapshots[2])
{
	int code = TOOL_DONE, rc = tool_snapshot_take(&snapshots[0]);

	for (unsigned turn = 1; rc == 0 && code == TOOL_DONE; turn++) {
		struct tool_snapshot *before = &snapshots[(turn - 1) % 2],
				     *now = &snapshots[turn % 2];

		if (!wait_until(before->time_ns + (uint64_t)(interval.value * 1e9)))
			return TOOL_DONE;
		rc = tool_snapshot_take(now);
		if (rc == 0)
			code = json ? print_json(before, now) : print_all(before, now);
		if (once)
			break;
	}
	return rc < 0 ? tool_fail(command, rc, json) : code;
}

/* Print the counters once as OpenMetrics, in total since the stores were opened. */
static int print_metrics(const struct tool_command *command, struct tool_snapshot *snapshot)
{
	int rc = tool_snapshot_take(snapshot);

	if (rc)
		return tool_fail(command, rc, false);
	openmetrics_write(snapshot, endurance.value * 1e12, stdout);
	return fflush(stdout) == 0 ? TOOL_DONE : TOOL_FAILED;
}

static int top(const struct tool_command *command)
{
	static struct spw_status partitions[2][TOOL_PARTITIONS_MAX];
	struct tool_snapshot snapshots[2] = {{.partitions = partitions[0]},
					     {.partitions = partitions[1]}};
	int code;

	if (openmetrics && json)
		return tool_usage_error(command, "--openmetrics and --json are two formats");
	if (openmetrics)
		return print_metrics(command, &snapshots[0]);
	tool_stop_catch();
	keys_begin();
	code = look(command, snapshots);
	keys_end();
	tool_stop_release();
	return code;
}

const struct tool_command command_top = {
	.name = "top",
	.summary = "monitor the open stores and their drives",
	.synopsis = "[--once] [--interval SECONDS] [--endurance N] [--json | --openmetrics]",
	.description = "Shows for every open partition its process, and for each drive\n"
		       "bandwidth, queue depth, latencies, share of the traffic, space, errors,\n"
		       "and whether it is retired or has no space below it; whether the store\n"
		       "runs without a drive (DEGRADED); and wear: what was written since the\n"
		       "store was opened, per day, and how long the drive lasts at that rate, by\n"
		       "its health page (needs root) or by --endurance. Of a tensor cache on the\n"
		       "store it shows the main counters that are not 0; --json has all of them,\n"
		       "and docs/COUNTERS.md describes them. Reads the pages that processes\n"
		       "publish in /dev/shm: yours, or all as root. Press q or Ctrl-C to quit.\n",
	.examples = "  spillway top\n"
		    "  spillway top --endurance 600\n"
		    "  spillway top --once --json\n"
		    "  spillway top --openmetrics >/var/lib/node_exporter/spillway.prom\n",
	.action = top,
	.options = options,
};
