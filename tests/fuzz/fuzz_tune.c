/* SPDX-License-Identifier: MIT */
/*
 * tests/fuzz/fuzz_tune.c - any JSON as a file of best settings: an error with a message, or
 * settings that a job can have
 */
/* link: util layout engine status drives tools/tune_file */
/* link: tools/ui/output_file tools/bench/options */
/* link: tools/bench/values tools/ui/nearest */
/* link: tools/bench/lists tools/bench/check tools/bench/fio_options tools/bench/job */
#include <errno.h>

#include "tests/fuzz/fuzz.h"
#include "tools/tune_file.h"
#include "util/util.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	const char *path = fuzz_path(data, size);

	for (unsigned writes = 0; writes < 2; writes++) {
		struct bench_job job, before;
		int rc;

		bench_job_init(&job);
		job.rw = writes ? BENCH_RANDWRITE : BENCH_READ;
		before = job;
		(void)spw_error(-EIO, "nothing");
		rc = tune_file_apply(path, &job);
		FUZZ_REQUIRE(rc <= 0);
		if (rc != 0) {
			FUZZ_REQUIRE(strcmp(spw_last_error(), "nothing") != 0);
			FUZZ_REQUIRE(job.block_bytes_min == before.block_bytes_min &&
				     job.iodepth == before.iodepth);
			continue;
		}
		FUZZ_REQUIRE(job.block_bytes_min > 0 && job.block_bytes_min == job.block_bytes_max);
		FUZZ_REQUIRE(job.block_bytes_max <= SPW_IO_BYTES_MAX);
		FUZZ_REQUIRE(job.iodepth > 0 && job.iodepth <= SPW_QUEUE_DEPTH_MAX);
		FUZZ_REQUIRE(job.backend <= SPW_BACKEND_LIBAIO || job.backend < 16);
	}
	return 0;
}
