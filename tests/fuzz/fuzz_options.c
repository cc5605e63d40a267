/* SPDX-License-Identifier: MIT */
/* tests/fuzz/fuzz_options.c - sizes, times, counts and options as a user may type them */
/* link: util tools/bench/options tools/bench/values tools/ui/nearest */
/* link: tools/bench/lists tools/bench/check tools/bench/fio_options tools/bench/job */
#include <errno.h>

#include "tests/fuzz/fuzz.h"
#include "tools/bench/bench.h"
#include "util/util.h"

/* What is read is written and read back: the same within the digits that are shown. */
static void check_size(const char *text)
{
	uint64_t bytes = 1, again;
	char words[32];
	int rc = spw_size_parse(text, &bytes);

	FUZZ_REQUIRE(rc == 0 || rc == -EINVAL || rc == -ERANGE);
	FUZZ_REQUIRE(rc == 0 || bytes == 0);
	if (rc != 0)
		return;
	(void)spw_size_format(bytes, words, sizeof(words));
	FUZZ_REQUIRE(strlen(words) < 12 && !strstr(words, "1024"));
	rc = spw_size_parse(words, &again);
	/* The largest sizes may be rounded up to what 64 bits do not hold. */
	FUZZ_REQUIRE(rc == 0 || (rc == -ERANGE && bytes > UINT64_MAX - (UINT64_MAX >> 7)));
	if (rc == 0)
		FUZZ_REQUIRE((again > bytes ? again - bytes : bytes - again) <= bytes / 100);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct bench_job job;
	char text[256], *value;
	uint64_t number;
	int rc;

	if (size >= sizeof(text))
		return 0;
	memcpy(text, data, size);
	text[size] = '\0';
	check_size(text);
	rc = bench_parse_size(text, &number);
	FUZZ_REQUIRE(rc <= 0);
	rc = bench_parse_time(text, &number);
	FUZZ_REQUIRE(rc <= 0);
	rc = bench_parse_count(text, &number);
	FUZZ_REQUIRE(rc <= 0);
	bench_job_init(&job);
	value = strchr(text, '=');
	if (value)
		*value++ = '\0';
	(void)bench_option_is_flag(text);
	rc = bench_option_set(&job, text, value);
	FUZZ_REQUIRE(rc <= 0);
	if (rc == 0 && bench_job_check(&job) == 0)
		FUZZ_REQUIRE(job.iodepth > 0 && job.block_bytes_min > 0 &&
			     job.block_bytes_min <= job.block_bytes_max);
	return 0;
}
