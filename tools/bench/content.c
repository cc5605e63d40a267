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

/* The seed of an earlier buffer or a new one, so that dedupe_percent of them are duplicates. */
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

/* As fio: a share of each chunk is zero. */
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

	/* A mix reads into the same buffers, so what is to be the same is put there again. */
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
