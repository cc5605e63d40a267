/* SPDX-License-Identifier: MIT */
/*
 * tools/scrub.c - read every copy of committed data, repair it, report damage, for check --scrub;
 * write second copies, also for replace
 */
#include "tools/scrub.h"

#include <errno.h>
#include <unistd.h>

#include <spillway/store.h>

#include "tools/ui/stop.h"
#include "util/util.h"

#define ARENA_BYTES (16u << 20)
#define PATIENCE_NS UINT64_C(2000000000)
#define INTERVAL_NS UINT64_C(500000000)

struct progress {
	uint32_t partition;
	uint64_t next_ns;
	bool shown;
};

/* The findings, printed at the end, also after an interrupt. */
struct report {
	json_t *array; /* NULL: print text */
	unsigned commits;
	int rc; /* the first error, and its message */
	char words[512];
};

static bool go_on(void *context, uint64_t done_bytes, uint64_t all_bytes)
{
	struct progress *progress = context;

	if (tool_stopped())
		return false;
	if (!isatty(STDERR_FILENO) || spw_clock_ns() < progress->next_ns)
		return true;
	progress->next_ns = spw_clock_ns() + INTERVAL_NS;
	progress->shown = true;
	(void)fprintf(stderr, "\rpartition %u: %s of %s (%u %%) ... ", progress->partition,
		      SPW_SIZE_TEXT(done_bytes), SPW_SIZE_TEXT(all_bytes),
		      (unsigned)(all_bytes ? 100 * done_bytes / all_bytes : 100));
	return true;
}

static void end_line(struct progress *progress)
{
	if (progress->shown)
		(void)fputc('\n', stderr);
	progress->shown = false;
}

static void set_up(struct spw_store_opts *opts, uint32_t partition, bool read_only)
{
	spw_store_opts_init(opts, sizeof(*opts));
	opts->partition = partition;
	opts->arena_bytes = ARENA_BYTES;
	opts->no_hugetlb = true;
	opts->read_only = read_only;
	opts->log = tool_log(false);
}

static const char *path_of(struct spw_store *store, unsigned drive, struct spw_drive_stats *stats)
{
	return spw_store_drive_stats(store, drive, stats, sizeof(*stats)) ? "" : stats->path;
}

static void print_json(struct spw_store *store, uint32_t partition,
		       const struct spw_commit_info *info, const struct spw_scrub *found,
		       unsigned drives, json_t *array)
{
	json_t *each = json_array();

	for (unsigned i = 0; i < drives; i++) {
		struct spw_drive_stats stats;

		(void)json_array_append_new(
			each, json_pack("{s:o, s:I, s:I, s:I, s:I}", "path",
					tool_json_text(path_of(store, i, &stats)), "copies_read",
					(json_int_t)found->drive[i].copies, "bytes_read",
					(json_int_t)found->drive[i].bytes, "copies_bad",
					(json_int_t)found->drive[i].copies_bad, "copies_repaired",
					(json_int_t)found->drive[i].copies_repaired));
	}
	(void)json_array_append_new(
		array, json_pack("{s:i, s:I, s:b, s:I, s:I, s:I, s:o}", "partition", (int)partition,
				 "step", (json_int_t)info->number, "mirrored", info->mirrored,
				 "chunks", (json_int_t)found->runs, "chunks_with_one_copy",
				 (json_int_t)found->runs_single, "chunks_lost",
				 (json_int_t)found->runs_lost, "drives", each));
}

static void print_text(struct spw_store *store, uint32_t partition,
		       const struct spw_commit_info *info, const struct spw_scrub *found,
		       unsigned drives)
{
	struct tool_table *table = tool_table_new("DRIVE|>READ|>COPIES|>BAD|>REPAIRED");

	(void)printf("partition %u, step %llu: %llu chunks%s, %llu lost\n", partition,
		     (unsigned long long)info->number, (unsigned long long)found->runs,
		     info->mirrored ? " in two copies" : " in one copy",
		     (unsigned long long)found->runs_lost);
	for (unsigned i = 0; i < drives; i++) {
		const struct spw_scrub_drive *drive = &found->drive[i];
		struct spw_drive_stats stats;

		tool_table_row(table, path_of(store, i, &stats), SPW_SIZE_TEXT(drive->bytes),
			       TOOL_SHORT("%llu", (unsigned long long)drive->copies),
			       TOOL_SHORT("%llu", (unsigned long long)drive->copies_bad),
			       TOOL_SHORT("%llu", (unsigned long long)drive->copies_repaired));
	}
	tool_table_end(table, stdout);
}

/* Note an error. Only the first is kept, with its message. */
static void note(struct report *report, int rc)
{
	if (rc == 0 || report->rc)
		return;
	report->rc = rc;
	(void)snprintf(report->words, sizeof(report->words), "%s", spw_last_error());
}

/* ---- Second copies ---- */

/*
 * Whether the partition keeps an earlier commit, to which other processes may return. Opening the
 * partition for writing would discard it.
 */
static bool has_kept(const struct tool_devices *devices, uint32_t partition)
{
	struct spw_commit_info info = {.size = sizeof(info)};

	return spw_committed(devices->paths, devices->count, partition, &info, sizeof(info)) != 0 ||
	       info.has_previous;
}

/* Write missing second copies. Return: number of chunks that still have only one. */
static uint64_t resilver(const struct tool_devices *devices, uint32_t partition,
			 struct progress *progress, struct report *report)
{
	struct spw_commit_info info = {.size = sizeof(info), .runs_single = UINT64_MAX};
	struct spw_store_opts opts;
	struct spw_store *store;
	int rc;

	set_up(&opts, partition, false);
	rc = spw_store_open(devices->paths, devices->count, &opts, &store);
	if (rc == 0)
		rc = spw_store_resilver(store, go_on, progress);
	end_line(progress);
	note(report, rc);
	if (store)
		(void)spw_store_committed(store, &info, sizeof(info));
	spw_store_close(store);
	return info.runs_single;
}

/* Give second copies to mirrored chunks that lack one, if possible now; otherwise say why not. */
static void complete(const struct tool_devices *devices, uint32_t partition,
		     const struct spw_store_stats *stats, uint64_t single,
		     struct progress *progress, struct report *report)
{
	const char *why = stats->drives_missing > 0 ? "drives are missing"
			  : stats->drives < 2       ? "the store has one drive"
			  : has_kept(devices, partition)
				  ? "the step before is kept, for other processes"
				  : NULL;
	uint64_t left = why ? single : resilver(devices, partition, progress, report);
	json_t *last = report->array
			       ? json_array_get(report->array, json_array_size(report->array) - 1)
			       : NULL;

	if (last)
		(void)json_object_set_new(last, "chunks_with_one_copy",
					  json_integer((json_int_t)left));
	else if (why)
		(void)printf("%llu chunks have one copy alone, as %s: they get a second one when "
			     "they are put the next time, by training that resumes\n",
			     (unsigned long long)single, why);
	else if (left == 0)
		(void)printf("%llu chunks had one copy alone, and have two now\n",
			     (unsigned long long)single);
}

/* ---- A partition ---- */

/* Look at a commit, and report it. *single: chunks with one copy. Return: 0; an error, noted. */
typedef int look_at(struct spw_store *store, const struct spw_commit_info *info,
		    const struct spw_store_stats *stats, struct progress *progress,
		    struct report *report, uint64_t *single);

/* Look at a partition's commit, if there is one, and give second copies to what lacks them. */
static void visit_partition(const struct tool_devices *devices, uint32_t partition, look_at *look,
			    struct report *report)
{
	struct progress progress = {.partition = partition,
				    .next_ns = spw_clock_ns() + PATIENCE_NS};
	struct spw_commit_info info = {.size = sizeof(info)};
	struct spw_store_opts opts;
	struct spw_store_stats stats;
	struct spw_store *store;
	uint64_t single = 0;
	int rc;

	set_up(&opts, partition, true); /* read-only, so no commit is discarded */
	rc = spw_store_open(devices->paths, devices->count, &opts, &store);
	if (rc == 0)
		rc = spw_store_committed(store, &info, sizeof(info));
	note(report, rc == -ENODATA ? 0 : rc);
	if (rc == 0) {
		report->commits++;
		spw_store_stats(store, &stats, sizeof(stats));
		rc = look(store, &info, &stats, &progress, report, &single);
		spw_store_stats(store, &stats, sizeof(stats)); /* a drive may have failed */
	}
	spw_store_close(store);
	if (rc == 0 && info.mirrored && single > 0)
		complete(devices, partition, &stats, single, &progress, report);
}

static int scrub(struct spw_store *store, const struct spw_commit_info *info,
		 const struct spw_store_stats *stats, struct progress *progress,
		 struct report *report, uint64_t *single)
{
	struct spw_scrub found = {.runs_single = 0};
	int rc = spw_store_scrub(store, go_on, progress, &found, sizeof(found));

	end_line(progress);
	note(report, rc);
	if (report->array)
		print_json(store, progress->partition, info, &found, stats->drives, report->array);
	else
		print_text(store, progress->partition, info, &found, stats->drives);
	*single = found.runs_single;
	return rc;
}

/* Only what the commit says of itself. */
static int describe(struct spw_store *store, const struct spw_commit_info *info,
		    const struct spw_store_stats *stats, struct progress *progress,
		    struct report *report, uint64_t *single)
{
	(void)store;
	(void)stats;
	if (report->array)
		(void)json_array_append_new(
			report->array,
			json_pack("{s:i, s:I, s:b, s:I, s:I}", "partition",
				  (int)progress->partition, "step", (json_int_t)info->number,
				  "mirrored", info->mirrored, "chunks", (json_int_t)info->runs,
				  "chunks_with_one_copy", (json_int_t)info->runs_single));
	*single = info->runs_single;
	return 0;
}

/* ---- All ---- */

int tool_second_copies(const struct tool_command *command, const struct tool_devices *devices,
		       uint32_t partitions, json_t *array)
{
	struct report report = {.array = array};
	uint32_t done = 0;

	for (; done < partitions && !tool_stopped(); done++)
		visit_partition(devices, done, describe, &report);
	if (done < partitions)
		note(&report, spw_error(-ECANCELED, "interrupted: not all has two copies"));
	if (report.rc == 0)
		return TOOL_DONE;
	(void)tool_fail(command, spw_error(report.rc, "%s", report.words), false);
	return report.rc == -ECANCELED ? TOOL_INTERRUPTED : TOOL_FAILED;
}

int tool_scrub(const struct tool_command *command, const struct tool_devices *devices,
	       uint32_t partitions, bool json)
{
	struct report report = {.array = json ? json_array() : NULL};
	int code = TOOL_DONE;
	uint32_t done = 0;

	tool_stop_catch();
	for (; done < partitions && !tool_stopped(); done++)
		visit_partition(devices, done, scrub, &report);
	if (done < partitions)
		note(&report, spw_error(-ECANCELED, "interrupted: not all was read"));
	tool_stop_release();
	if (!json && report.commits == 0 && report.rc == 0)
		(void)printf("nothing is committed\n");
	if (json)
		code = tool_print_json(json_pack(
			"{s:b, s:o, s:o}", "good", report.rc == 0, "commits", report.array, "error",
			report.rc ? tool_json_text(report.words) : json_null()));
	if (report.rc == 0)
		return code;
	code = tool_fail(command, spw_error(report.rc, "%s", report.words), false);
	return report.rc == -ECANCELED ? TOOL_INTERRUPTED : code;
}
