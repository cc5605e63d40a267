/* SPDX-License-Identifier: MIT */
/* tools/bench/job.c - properties that follow from a job's options, and their names */
#include "tools/bench/bench.h"

#include <string.h>

const char *bench_rw_name(uint32_t rw)
{
	static const char *const names[] = {[BENCH_READ] = "read",
					    [BENCH_WRITE] = "write",
					    [BENCH_RANDREAD] = "randread",
					    [BENCH_RANDWRITE] = "randwrite",
					    [BENCH_RW] = "rw",
					    [BENCH_RANDRW] = "randrw"};

	return names[rw];
}

bool bench_rw_is_random(uint32_t rw)
{
	return rw == BENCH_RANDREAD || rw == BENCH_RANDWRITE || rw == BENCH_RANDRW;
}

bool bench_rw_reads(uint32_t rw)
{
	return rw != BENCH_WRITE && rw != BENCH_RANDWRITE;
}

bool bench_rw_writes(uint32_t rw)
{
	return rw != BENCH_READ && rw != BENCH_RANDREAD;
}

bool bench_option_same(const char *typed, const char *name)
{
	for (; *typed != '\0' && *name != '\0'; typed++, name++)
		if (*typed != *name && !(strchr("-_", *typed) && strchr("-_", *name)))
			return false;
	return *typed == *name;
}

struct bench_lengths bench_job_lengths(const struct bench_job *job, unsigned direction)
{
	const struct bench_lengths *own = &job->lengths[direction];

	return own->min > 0 ? *own
			    : (struct bench_lengths){.min = job->block_bytes_min,
						     .max = job->block_bytes_max};
}

uint64_t bench_job_unit(const struct bench_job *job)
{
	uint64_t interval = job->verify_interval_bytes;

	return interval > 0 && interval < job->block_bytes_min ? interval : job->block_bytes_min;
}

const char *bench_remark_words(enum bench_remark remark)
{
	static const char *const words[BENCH_REMARKS] = {
		[BENCH_REMARK_BUFFERED] =
			"buffered: measured past the page cache, which fio would measure",
		[BENCH_REMARK_SYNCHRONOUS] =
			"ioengine: one transfer at a time, by spillway's own engine",
		[BENCH_REMARK_ENGINE] = "ioengine: by spillway's own engine in its place",
		[BENCH_REMARK_CHECKSUM] = "verify: blocks are checked by xxh3 in its place",
		[BENCH_REMARK_LOGS] = "write_*_log, write_iolog: no log is written",
		[BENCH_REMARK_OFFLOAD] =
			"io_submit_mode: the job's own thread submits, and waits for no transfer",
		[BENCH_REMARK_NOT_VERIFIED] =
			"verify: a null engine keeps nothing, so nothing is read back",
		[BENCH_REMARK_WHOLE] = "random offsets: all of size is transferred; fio ends early",
		[BENCH_REMARK_ROUNDED] =
			"size: rounded down to whole blocks; fio's last one goes beyond it",
	};

	return words[remark];
}
