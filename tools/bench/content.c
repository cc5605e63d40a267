/* SPDX-License-Identifier: MIT */
/* tools/bench/content.c - fill buffers for writes of jobs without verify */
#include "tools/bench/bench.h"

#include <string.h>

#include "util/util.h"

#define SECTOR_BYTES 512u

void bench_pattern_fill(const struct bench_pattern *pattern, void *bytes, size_t len)
{
	size_t done = SPW_MIN(len, pattern->len);

	/* Double the filled part until the buffer is full. */
	memcpy(bytes, pattern->bytes, done);
	for (; done < len; done += SPW_MIN(done, len - done))
		memcpy((char *)bytes + done, bytes, SPW_MIN(done, len - done));
}

void bench_content_begin(const struct bench_job *job, void *bytes, size_t len)
{
	if (job->zero_buffers)
		memset(bytes, 0, len);
	else if (job->pattern.len == 0)
		bench_random_fill(job->randseed, bytes, len);
}

/* Put two distinct words into each sector, as fio does, so that a drive cannot deduplicate it. */
static void scramble(char *sector, size_t len, uint64_t offset_bytes, uint64_t now_ns)
{
	for (uint64_t at = 0; at < len; at += SECTOR_BYTES, sector += SECTOR_BYTES) {
		uint64_t words[2] = {now_ns, offset_bytes + at};

		memcpy(sector + (now_ns % (SECTOR_BYTES / sizeof(words))) * sizeof(words), words,
		       sizeof(words));
	}
}

/* Draw the seed of an earlier buffer or a new one: dedupe_percent of buffers are duplicates. */
static uint64_t draw_seed(struct bench_content *content)
{
	const struct bench_job *job = content->job;
	uint64_t draw = bench_random_next(&content->random);

	if (draw % 100 >= job->dedupe_percent)
		content->seed = draw;
	else if (content->set > 0)
		return bench_mix(job->dedupe_global ? 0 : job->randseed,
				 bench_random_next(&content->random) % content->set);
	return content->seed;
}

/* Zero a share of each chunk, as fio does, to make it compressible. */
static void thin(const struct bench_job *job, char *bytes, size_t len)
{
	size_t chunk = job->compress_chunk_bytes;

	for (size_t at = 0; at < len; at += chunk) {
		size_t here = len - at < chunk ? len - at : chunk;
		size_t zeros = here * job->compress_percent / 100;

		memset(bytes + at + here - zeros, 0, zeros);
	}
}

void bench_content_next(struct bench_content *content, void *bytes, size_t len,
			uint64_t offset_bytes, uint64_t now_ns)
{
	const struct bench_job *job = content->job;

	/* A mixed job also reads into these buffers, so constant content must be put back. */
	if (job->pattern.len > 0) {
		bench_pattern_fill(&job->pattern, bytes, len);
	} else if (job->zero_buffers) {
		memset(bytes, 0, len);
	} else if (job->refill_buffers || job->compress_percent > 0 || job->dedupe_percent > 0) {
		bench_random_fill(draw_seed(content), bytes, len);
		thin(job, bytes, len);
	} else if (job->scramble_buffers) {
		scramble(bytes, len, offset_bytes, now_ns);
	}
}
