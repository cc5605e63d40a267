/* SPDX-License-Identifier: MIT */
/* tools/bench/check.c - check whether the options of a job go together */
#include "tools/bench/bench.h"

#include <errno.h>

#include "util/util.h"

#define wrong(job, format, ...) spw_error(-EINVAL, "job %s: " format, (job)->name, ##__VA_ARGS__)

static int check_written_once(const struct bench_job *job)
{
	const char *rw = bench_rw_name(job->rw);

	if (job->norandommap ||
	    (job->spread != BENCH_SPREAD_EVEN && job->spread < BENCH_SPREAD_ZONES))
		return wrong(job, "verify does not go with norandommap, nor with a distribution: "
				  "blocks that are written twice cannot be told apart");
	if (job->skip_bytes % (int64_t)job->block_bytes_min != 0 ||
	    (job->skip_bytes != 0 && job->time_based))
		return wrong(job,
			     "verify with rw=%s:%jd: blocks lie over one another, or are written "
			     "twice in a pass, and cannot be told apart: skip whole blocks, and "
			     "leave time_based out",
			     rw, (intmax_t)job->skip_bytes);
	if (job->do_verify && job->numjobs > 1 &&
	    (job->size_bytes == 0 || job->offset_increment_bytes < job->size_bytes))
		return wrong(
			job,
			"verify with numjobs=%u: the jobs would overwrite each other's blocks; "
			"give an offset_increment of at least their size",
			job->numjobs);
	return 0;
}

static int check_verify(const struct bench_job *job)
{
	uint64_t unit = bench_job_unit(job);

	/* ioengine=null has nothing to read back: bench_plan_add() drops verify. */
	if (job->null_engine)
		return 0;
	if (job->verify == BENCH_VERIFY_NONE)
		return job->verify_backlog == 0 ? 0 : wrong(job, "verify_backlog without verify");
	if (unit < 64 || job->block_bytes_min % unit != 0)
		return wrong(job,
			     "verify needs blocks of at least 64 bytes, of whole verify_intervals");
	if (job->level == BENCH_LEVEL_STORE)
		return wrong(job, "a store checks every read itself: leave verify out");
	return bench_rw_writes(job->rw) ? check_written_once(job) : 0;
}

/* Null drives leave read buffers unchanged; all buffers are the same. Objects are whole blocks. */
#define NULL_UNIT_BYTES 4096u

static int check_null(const struct bench_job *job)
{
	if (!job->null)
		return job->drives == 1 ? 0 : wrong(job, "drives=%u without null", job->drives);
	if (job->filename[0] != '\0' && !job->null_engine)
		return wrong(job, "null has drives of its own: leave filename out");
	if (job->backend != SPW_BACKEND_AUTO || job->hipri || job->sqthread_poll)
		return wrong(job, "null is a backend, and waits in one way: leave out what chooses "
				  "another");
	if (job->verify != BENCH_VERIFY_NONE && !job->null_engine)
		return wrong(job, "null keeps nothing that could be read back: leave verify out");
	if (job->level == BENCH_LEVEL_STORE && job->object_bytes % NULL_UNIT_BYTES != 0)
		return wrong(job, "null takes objects of whole blocks: a multiple of %u bytes",
			     NULL_UNIT_BYTES);
	return 0;
}

/* Check the options of passes. A store's passes are over objects, in an order of their own. */
static int check_passes(const struct bench_job *job)
{
	if (!job->strided && (job->zone_bytes | job->zone_range_bytes | job->zone_skip_bytes) != 0)
		return wrong(job, "zonesize, zonerange and zoneskip are of zonemode=strided");
	if (job->strided && (job->zone_bytes == 0 || bench_rw_is_random(job->rw) ||
			     job->verify != BENCH_VERIFY_NONE))
		return wrong(job, "zonemode=strided takes a zonesize, sequential transfers, and no "
				  "verify");
	if (job->steady_limit > 0 && job->steady_ns == 0)
		return wrong(job, "steadystate needs a steadystate_duration");
	if (job->zero_buffers && job->pattern.len > 0)
		return wrong(job, "zero_buffers and buffer_pattern exclude each other");
	if (job->level == BENCH_LEVEL_STORE &&
	    (job->loops > 1 || job->io_bytes > 0 || job->io_percent > 0 || job->number_ios > 0 ||
	     job->flow > 0 || job->think_us > 0 || job->spread != BENCH_SPREAD_EVEN))
		return wrong(job, "of a store: loops, io_size, number_ios, flow, thinktime and "
				  "random_distribution are of engine jobs");
	return 0;
}

int bench_job_check(const struct bench_job *job)
{
	int result;

	if (job->filename[0] == '\0' && job->directory[0] == '\0' && !job->null)
		return wrong(job, "no filename given: filename=/dev/... or --filename=/dev/...");
	if (job->block_bytes_max > SPW_IO_BYTES_MAX)
		return wrong(job, "blocks are at most 1g");
	if (job->time_based && job->runtime_ns == 0)
		return wrong(job, "time_based needs a runtime");
	if (job->hipri && job->sqthread_poll)
		return wrong(job, "hipri and sqthread_poll exclude each other");
	if (job->submit_batch > job->iodepth || job->complete_min > job->iodepth)
		return wrong(job, "a batch is larger than iodepth=%u", job->iodepth);
	result = check_null(job);
	if (result == 0)
		result = check_passes(job);
	return result ? result : check_verify(job);
}
