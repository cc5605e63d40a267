/* SPDX-License-Identifier: MIT */
/*
 * tests/fuzz/fuzz_jobfile.c - any bytes as a job file: an error with its line, or jobs that make
 * sense
 */
/* link: util tools/bench/jobfile tools/bench/options tools/bench/values tools/ui/nearest */
/* link: tools/bench/lists tools/bench/check tools/bench/fio_options tools/bench/job */
#include <errno.h>

#include "tests/fuzz/fuzz.h"
#include "tools/bench/bench.h"
#include "util/util.h"

static void tell(const char *fault)
{
	FUZZ_REQUIRE(fault[0] != '\0');
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct bench_plan plan = {0};
	struct bench_job global;
	int rc;

	bench_job_init(&global);
	(void)spw_error(-EIO, "nothing");
	rc = bench_jobfile_read(fuzz_path(data, size), &global, &plan, tell);
	FUZZ_REQUIRE(rc <= 0 && (rc == 0 || strcmp(spw_last_error(), "nothing") != 0));
	FUZZ_REQUIRE(rc != 0 || plan.count > 0);
	for (unsigned i = 0; i < plan.count; i++) {
		const struct bench_job *job = &plan.jobs[i];

		FUZZ_REQUIRE(bench_job_check(job) == 0);
		FUZZ_REQUIRE(job->block_bytes_min > 0 &&
			     job->block_bytes_min <= job->block_bytes_max);
		FUZZ_REQUIRE(job->iodepth > 0 && job->numjobs > 0);
		FUZZ_REQUIRE(strlen(job->name) < BENCH_NAME_BYTES &&
			     strlen(job->filename) < BENCH_FILENAME_BYTES);
	}
	bench_plan_free(&plan);
	return 0;
}
