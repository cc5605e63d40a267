/* SPDX-License-Identifier: MIT */
/*
 * tools/bench/null.c - make null drives, which exist for one run and which no transfer reaches
 *
 * Each is a sparse file without a name. It has superblocks but no data, and disappears with the
 * process, however that ends.
 */
#include "tools/bench/bench.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <spillway/format.h>

#include "util/util.h"

#define DRIVE_BYTES (UINT64_C(4) << 30)
#define SPARE_BYTES (UINT64_C(64) << 20) /* for superblocks, and room to replace objects */

static const char *folder_of_temporaries(void)
{
	const char *folder = getenv("TMPDIR");

	return folder && folder[0] != '\0' ? folder : "/var/tmp";
}

/*
 * Make a file and reopen it read-only: a writable descriptor would look like a process that writes
 * to the drive.
 */
static int make_file(uint64_t bytes)
{
	const char *folder = folder_of_temporaries();
	int writable = open(folder, O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
	int fd = -1, error = 0;

	if (writable >= 0 && ftruncate(writable, (off_t)bytes) == 0)
		fd = open(SPW_PATH("/proc/self/fd/%d", writable), O_RDONLY | O_CLOEXEC);
	if (fd < 0)
		error = errno;
	if (writable >= 0)
		(void)close(writable);
	return fd >= 0 ? fd
		       : spw_error_errno(-error,
					 "null: no file of %s in %s (another folder: TMPDIR)",
					 SPW_SIZE_TEXT(bytes), folder);
}

/* Twice the job's working set, so that all patterns have room; sparse files cost nothing. */
static uint64_t drive_bytes(const struct bench_job *job)
{
	uint64_t needed = job->size_bytes * job->numjobs / job->drives;

	return SPW_MAX(DRIVE_BYTES, 2 * needed + SPARE_BYTES * job->numjobs);
}

static int format(const struct bench_job *job, const struct bench_null *null, unsigned first)
{
	struct spw_format_opts opts;
	char names[SPW_DRIVES_MAX][32];
	const char *paths[SPW_DRIVES_MAX];

	for (unsigned i = 0; i < job->drives; i++) {
		(void)snprintf(names[i], sizeof(names[i]), "/proc/self/fd/%d",
			       null->fds[first + i]);
		paths[i] = names[i];
	}
	/* Without a log, as the warning that sparse files lack space does not matter here. */
	spw_format_opts_init(&opts, sizeof(opts));
	opts.partitions = job->numjobs;
	return spw_format(paths, job->drives, &opts, NULL);
}

static int make_drives(struct bench_job *job, struct bench_null *null)
{
	unsigned first = null->count;
	size_t used = 0;
	int result = 0;

	if (job->drives > SPW_ARRAY_LEN(null->fds) - first)
		return spw_error(-EINVAL, "job %s: more than %zu null drives in all", job->name,
				 SPW_ARRAY_LEN(null->fds));
	for (unsigned i = 0; i < job->drives; i++) {
		int fd = make_file(drive_bytes(job));

		if (fd < 0)
			return fd;
		null->fds[null->count++] = fd;
		used += (size_t)snprintf(job->filename + used, sizeof(job->filename) - used,
					 "%s/proc/self/fd/%d", i > 0 ? ":" : "", fd);
	}
	if (job->level == BENCH_LEVEL_STORE)
		result = format(job, null, first);
	return result == 0 ? 0 : spw_error(result, "job %s: %s", job->name, spw_last_error());
}

int bench_null_make(const struct bench_plan *plan, struct bench_null *null)
{
	int result = 0;

	null->count = 0;
	for (unsigned i = 0; i < plan->count && result == 0; i++)
		if (plan->jobs[i].null)
			result = make_drives(&plan->jobs[i], null);
	return result;
}

void bench_null_remove(struct bench_null *null)
{
	for (unsigned i = 0; i < null->count; i++)
		(void)close(null->fds[i]);
	null->count = 0;
}
