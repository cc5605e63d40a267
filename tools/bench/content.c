/* SPDX-License-Identifier: MIT */
/* tools/bench/content.c - what is written, where no verify job puts its own blocks there */
#include "tools/bench/bench.h"

#include <string.h>

#define SECTOR_BYTES 512u

void bench_content_begin(const struct bench_job *job, void *bytes, size_t len)
{
	if (job->zero_buffers)
		memset(bytes, 0, len);
	else if (job->pattern.len == 0)
		bench_random_fill(job->randseed, bytes, len);
}

/* Two distinct words per sector, as fio: a drive that finds equal data cannot skip it. */
static void scramble(char *sector, size_t len, uint64_t offset_bytes, uint64_t now_ns)
{
	for (uint64_t at = 0; at < len; at += SECTOR_BYTES, sector += SECTOR_BYTES) {
		uint64_t words[2] = {now_ns, offset_bytes + at};

		memcpy(sector + (now_ns % (SECTOR_BYTES / sizeof(words))) * sizeof(words), words,
		       sizeof(words));
	}
}

void bench_content_next(const struct bench_job *job, void *bytes, size_t len, uint64_t offset_bytes,
			uint64_t now_ns)
{
	/* A mix reads into the same buffers, so what is to be the same is put there again. */
	if (job->pattern.len > 0)
		bench_pattern_fill(&job->pattern, bytes, len);
	else if (job->zero_buffers)
		memset(bytes, 0, len);
	else if (job->refill_buffers)
		bench_random_fill(bench_mix(now_ns, offset_bytes), bytes, len);
	else if (job->scramble_buffers)
		scramble(bytes, len, offset_bytes, now_ns);
}
