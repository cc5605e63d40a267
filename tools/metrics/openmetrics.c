/* SPDX-License-Identifier: MIT */
/*
 * tools/metrics/openmetrics.c - print the counters of open stores in the OpenMetrics format: for
 * each family its head, then a sample per drive, store or cache
 */
#include "tools/metrics/openmetrics.h"

#include <math.h>
#include <stddef.h>
#include <string.h>

#include "tools/ui/counters.h"
#include "util/util.h"

enum type {
	GAUGE,
	COUNTER,
};

/* A metric family: a number in a struct of counters. */
struct family {
	const char *name, *unit, *help; /* the name ends with the unit, if there is one */
	enum type type;
	struct spw_counter counter; /* the number's place in the struct */
};

#define DRIVE(member)                                                         \
	.counter = {.offset_bytes = offsetof(struct spw_drive_stats, member), \
		    .len_bytes = sizeof(((struct spw_drive_stats *)NULL)->member)}

static const struct family of_drives[] = {
	{"drive_written_bytes", "bytes", "Written to the drive.", COUNTER, DRIVE(bytes_written)},
	{"drive_read_bytes", "bytes", "Read from the drive.", COUNTER, DRIVE(bytes_read)},
	{"drive_writes", NULL, "Writes that have ended.", COUNTER, DRIVE(writes)},
	{"drive_reads", NULL, "Reads that have ended.", COUNTER, DRIVE(reads)},
	{"drive_write_errors", NULL, "Writes that failed.", COUNTER, DRIVE(write_errors)},
	{"drive_read_errors", NULL, "Reads that failed.", COUNTER, DRIVE(read_errors)},
	{"drive_checksum_errors", NULL, "Reads that gave other bytes than were written.", COUNTER,
	 DRIVE(checksum_errors)},
	{"drive_timeouts", NULL, "Transfers that missed their deadline.", COUNTER, DRIVE(timeouts)},
	{"drive_writes_no_space", NULL, "Writes below which there was no space.", COUNTER,
	 DRIVE(writes_no_space)},
	{"drive_capacity_bytes", "bytes", "Of the partition on the drive.", GAUGE,
	 DRIVE(capacity_bytes)},
	{"drive_used_bytes", "bytes", "Of the partition on the drive, in use.", GAUGE,
	 DRIVE(used_bytes)},
	{"drive_in_flight", NULL, "Transfers that the drive has.", GAUGE, DRIVE(in_flight)},
	{"drive_depth", NULL, "Transfers that the drive gets at most.", GAUGE, DRIVE(depth)},
};

/* ---- Text ---- */

static void print_head(const char *name, const char *type, const char *unit, const char *help,
		       FILE *out)
{
	(void)fprintf(out, "# TYPE spillway_%s %s\n", name, type);
	if (unit)
		(void)fprintf(out, "# UNIT spillway_%s %s\n", name, unit);
	(void)fprintf(out, "# HELP spillway_%s %s\n", name, help);
}

/* Print a label. Its value comes from another process, but was cleaned when it was read. */
static void print_label(const char *name, const char *value, FILE *out)
{
	(void)fprintf(out, "%s=\"", name);
	for (; *value; value++) {
		if (*value == '\\' || *value == '"')
			(void)fputc('\\', out);
		(void)fputc(*value, out);
	}
	(void)fputc('"', out);
}

/* @drive: or NULL; @more: {"le", "0.1"}, or NULL */
static void print_labels(const struct spw_status *status, const char *drive, const char *le,
			 FILE *out)
{
	(void)fputc('{', out);
	print_label("store", status->store_uuid, out);
	(void)fprintf(out, ",partition=\"%u\"", status->partition);
	if (drive) {
		(void)fputc(',', out);
		print_label("drive", drive, out);
	}
	if (le) {
		(void)fputc(',', out);
		print_label("le", le, out);
	}
	(void)fputs("} ", out);
}

/* ---- Families ---- */

/* The position of next_drive() among the drives of open stores; {0}: before the first. */
struct drive_cursor {
	unsigned partition;
	uint32_t next; /* drive */
	const struct spw_status *status;
	const struct spw_drive_stats *drive;
};

static bool next_drive(const struct tool_snapshot *snapshot, struct drive_cursor *cursor)
{
	for (; cursor->partition < snapshot->count; cursor->partition++, cursor->next = 0) {
		cursor->status = &snapshot->partitions[cursor->partition];
		if (cursor->next < cursor->status->drives) {
			cursor->drive = &cursor->status->drive[cursor->next++];
			return true;
		}
	}
	return false;
}

static void print_drives(const struct tool_snapshot *snapshot, FILE *out)
{
	for (size_t k = 0; k < SPW_ARRAY_LEN(of_drives); k++) {
		const struct family *family = &of_drives[k];

		print_head(family->name, family->type == COUNTER ? "counter" : "gauge",
			   family->unit, family->help, out);
		for (struct drive_cursor cursor = {0}; next_drive(snapshot, &cursor);) {
			(void)fprintf(out, "spillway_%s%s", family->name,
				      family->type == COUNTER ? "_total" : "");
			print_labels(cursor.status, cursor.drive->path, NULL, out);
			(void)fprintf(
				out, "%ju\n",
				(uintmax_t)tool_counter_value(&family->counter, cursor.drive));
		}
	}
}

static void print_in_service(const struct tool_snapshot *snapshot, FILE *out)
{
	print_head("drive_in_service", "gauge", NULL, "1; 0: retired, it gets nothing new.", out);
	for (struct drive_cursor cursor = {0}; next_drive(snapshot, &cursor);) {
		(void)fputs("spillway_drive_in_service", out);
		print_labels(cursor.status, cursor.drive->path, NULL, out);
		(void)fprintf(out, "%d\n", !cursor.drive->retired);
	}
}

static void print_latencies(const char *name, const struct spw_status *status, const char *drive,
			    const struct spw_latencies *latencies, FILE *out)
{
	uint64_t count = 0;

	for (unsigned i = 0; i < SPW_LATENCY_COUNTS; i++) {
		double le = (double)(UINT64_C(1) << (SPW_LATENCY_FIRST_LOG + i)) / 1e9;

		count += latencies->counts[i];
		(void)fprintf(out, "spillway_%s_bucket", name);
		print_labels(status, drive,
			     i + 1 < SPW_LATENCY_COUNTS ? TOOL_SHORT("%.9f", le) : "+Inf", out);
		(void)fprintf(out, "%ju\n", (uintmax_t)count);
	}
	(void)fprintf(out, "spillway_%s_count", name);
	print_labels(status, drive, NULL, out);
	(void)fprintf(out, "%ju\nspillway_%s_sum", (uintmax_t)count, name);
	print_labels(status, drive, NULL, out);
	(void)fprintf(out, "%ju.%09ju\n", (uintmax_t)(latencies->sum_ns / 1000000000),
		      (uintmax_t)(latencies->sum_ns % 1000000000));
}

static void print_histograms(const struct tool_snapshot *snapshot, bool writes, FILE *out)
{
	const char *name = writes ? "drive_write_latency_seconds" : "drive_read_latency_seconds";

	print_head(name, "histogram", "seconds",
		   writes ? "From issue to end, of each write." : "The same of each read.", out);
	for (struct drive_cursor cursor = {0}; next_drive(snapshot, &cursor);)
		print_latencies(name, cursor.status, cursor.drive->path,
				writes ? &cursor.drive->write_latencies
				       : &cursor.drive->read_latencies,
				out);
}

static void print_stores(const struct tool_snapshot *snapshot, FILE *out)
{
	print_head("store", "info", NULL, "Who has the partition open, and how.", out);
	for (unsigned i = 0; i < snapshot->count; i++) {
		const struct spw_status *status = &snapshot->partitions[i];

		(void)fputs("spillway_store_info{", out);
		print_label("store", status->store_uuid, out);
		(void)fprintf(out, ",partition=\"%u\",pid=\"%d\",", status->partition, status->pid);
		print_label("command", status->command, out);
		(void)fputc(',', out);
		print_label("description", status->description, out);
		(void)fputs("} 1\n", out);
	}
	print_head("store_open_seconds", "gauge", "seconds", "For how long it has been open.", out);
	for (unsigned i = 0; i < snapshot->count; i++) {
		(void)fputs("spillway_store_open_seconds", out);
		print_labels(&snapshot->partitions[i], NULL, NULL, out);
		(void)fprintf(out, "%.3f\n", (double)snapshot->partitions[i].open_ns / 1e9);
	}
}

/* ---- Counters of the library's tables ---- */

/* The suffix of names with this unit in OpenMetrics, or NULL. */
static const char *suffix_of(enum spw_counter_unit unit)
{
	switch (unit) {
	case SPW_COUNTER_BYTES: return "bytes";
	case SPW_COUNTER_NS: return "seconds";
	case SPW_COUNTER_PERCENT: return "ratio";
	case SPW_COUNTER_BYTES_PER_DAY: return "bytes";
	case SPW_COUNTER_BYTES_PER_SECOND:
	case SPW_COUNTER_NUMBER:
	case SPW_COUNTER_CAUSE: break;
	}
	return NULL;
}

/* A family's name. The unit comes last; OpenMetrics has no units per day or second. */
static const char *family_name(char buf[64], const char *of, const struct spw_counter *counter)
{
	const char *suffix = suffix_of(counter->unit);
	char name[64];

	if (!suffix)
		return tool_format(buf, 64, "%s_%s", of, counter->name);
	return tool_format(buf, 64, "%s_%s%s_%s", of, tool_counter_name(name, counter),
			   counter->unit == SPW_COUNTER_BYTES_PER_DAY ? "_limit" : "", suffix);
}

static void print_counter(const struct spw_counter *counter, uint64_t value, FILE *out)
{
	if (counter->unit == SPW_COUNTER_NS)
		(void)fprintf(out, "%ju.%09ju\n", (uintmax_t)(value / 1000000000),
			      (uintmax_t)(value % 1000000000));
	else if (counter->unit == SPW_COUNTER_PERCENT)
		(void)fprintf(out, "%.2f\n", (double)value / 100);
	else
		(void)fprintf(out, "%ju\n", (uintmax_t)value);
}

/* @of: first word of the names, as "store"; @offset: of the counters in struct spw_status */
static void print_counted(const struct tool_snapshot *snapshot, const char *of,
			  enum spw_counted counted, size_t offset, FILE *out)
{
	struct spw_counter counter;

	for (unsigned k = 0; tool_counter_at(counted, k, &counter); k++) {
		bool total = counter.kind == SPW_COUNTER_TOTAL;
		char name[64];

		print_head(family_name(name, of, &counter), total ? "counter" : "gauge",
			   suffix_of(counter.unit), counter.help, out);
		for (unsigned i = 0; i < snapshot->count; i++) {
			const struct spw_status *status = &snapshot->partitions[i];
			const char *stats = (const char *)status + offset;

			if (counted == SPW_COUNTED_CACHE && status->steps.steps == 0)
				continue;
			(void)fprintf(out, "spillway_%s%s", name, total ? "_total" : "");
			print_labels(status, NULL, NULL, out);
			print_counter(&counter, tool_counter_value(&counter, stats), out);
		}
	}
}

/* ---- Wear ---- */

struct wear_family {
	const char *name, *unit, *help;
	/* NAN: not known */
	double (*value)(const struct spw_wear *wear);
};

static double used_of(const struct spw_wear *wear)
{
	return wear->has_health ? wear->percentage_used / 100. : NAN;
}

static double life_of(const struct spw_wear *wear)
{
	return wear->has_health ? wear->life_bytes : NAN;
}

static double left_of(const struct spw_wear *wear)
{
	return wear->basis != SPW_WEAR_UNKNOWN ? wear->left_bytes : NAN;
}

static double lasts_of(const struct spw_wear *wear)
{
	return wear->years >= 0 ? wear->years * SPW_DAYS_PER_YEAR * SPW_SECONDS_PER_DAY : NAN;
}

static const struct wear_family of_wear[] = {
	{"drive_life_used_ratio", "ratio", "Of the drive's life, as it says itself; 1: used up.",
	 used_of},
	{"drive_life_written_bytes", "bytes", "Written in the drive's life by any program.",
	 life_of},
	{"drive_left_bytes", "bytes", "That the drive may still be written.", left_of},
	{"drive_lasts_seconds", "seconds", "Until then, at the rate since the store was opened.",
	 lasts_of},
};

/* Print wear. Unknown values have no sample: they need the right to query drives, or a rating. */
static void print_wear(const struct tool_snapshot *snapshot, const struct spw_wear *wear, FILE *out)
{
	for (size_t k = 0; k < SPW_ARRAY_LEN(of_wear); k++) {
		const struct wear_family *family = &of_wear[k];
		const struct spw_wear *next = wear;

		print_head(family->name, "gauge", family->unit, family->help, out);
		for (struct drive_cursor cursor = {0}; next_drive(snapshot, &cursor);) {
			double value = family->value(next++);

			if (isnan(value))
				continue;
			(void)fprintf(out, "spillway_%s", family->name);
			print_labels(cursor.status, cursor.drive->path, NULL, out);
			(void)fprintf(out, "%.15g\n", value);
		}
	}
}

void openmetrics_write(const struct tool_snapshot *snapshot, double rated, FILE *out)
{
	static struct spw_wear wear[TOOL_PARTITIONS_MAX * SPW_DRIVES_MAX];
	struct spw_wear *next = wear;

	/* Query each drive once, for all families. */
	for (unsigned i = 0; i < snapshot->count; i++)
		for (uint32_t n = 0; n < snapshot->partitions[i].drives; n++)
			tool_wear_of(&snapshot->partitions[i], n, rated, next++);
	print_drives(snapshot, out);
	print_in_service(snapshot, out);
	print_histograms(snapshot, true, out);
	print_histograms(snapshot, false, out);
	print_wear(snapshot, wear, out);
	print_stores(snapshot, out);
	print_counted(snapshot, "store", SPW_COUNTED_STORE, offsetof(struct spw_status, store),
		      out);
	print_counted(snapshot, "cache", SPW_COUNTED_CACHE, offsetof(struct spw_status, steps),
		      out);
	(void)fputs("# EOF\n", out);
}
