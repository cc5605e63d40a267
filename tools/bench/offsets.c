/* SPDX-License-Identifier: MIT */
/* tools/bench/offsets.c - which block is next: sequential, or each once in shuffled order */
#include "tools/bench/bench.h"

#include <errno.h>
#include <string.h>

#include "util/util.h"

#define SHUFFLE_ROUNDS 4

/* The finalizer of splitmix64. */
static uint64_t finalize(uint64_t value)
{
	value = (value ^ (value >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
	value = (value ^ (value >> 27)) * UINT64_C(0x94d049bb133111eb);
	return value ^ (value >> 31);
}

#define GOLDEN UINT64_C(0x9e3779b97f4a7c15) /* 2^64 divided by the golden ratio */

uint64_t bench_mix(uint64_t key, uint64_t value)
{
	return finalize(finalize(key + GOLDEN) + value * GOLDEN);
}

uint64_t bench_random_next(struct bench_random *random)
{
	random->state += GOLDEN;
	return finalize(random->state);
}

void bench_random_fill(uint64_t seed, void *bytes, size_t len)
{
	struct bench_random random = {.state = seed};

	for (size_t at = 0; at < len; at += sizeof(uint64_t)) {
		uint64_t word = bench_random_next(&random);

		memcpy((char *)bytes + at, &word,
		       len - at < sizeof(word) ? len - at : sizeof(word));
	}
}

void bench_shuffle_init(struct bench_shuffle *shuffle, uint64_t slots, uint64_t key)
{
	unsigned bits = slots <= 2 ? 1 : 64u - (unsigned)__builtin_clzll(slots - 1);

	shuffle->slots = slots;
	shuffle->key = key;
	shuffle->left_bits = bits / 2;
	shuffle->right_bits = bits - bits / 2;
}

/* A bijection of [0, 2^bits): a Feistel network with halves of unequal width. */
static uint64_t permute(const struct bench_shuffle *shuffle, uint64_t value)
{
	uint64_t left_mask = (UINT64_C(1) << shuffle->left_bits) - 1;
	uint64_t right_mask = (UINT64_C(1) << shuffle->right_bits) - 1;
	uint64_t left = value >> shuffle->right_bits, right = value & right_mask;

	for (unsigned round = 0; round < SHUFFLE_ROUNDS; round++) {
		uint64_t key = shuffle->key + round * GOLDEN;

		left ^= finalize(key ^ right) & left_mask;
		right ^= finalize(key ^ (left << 1 | 1)) & right_mask;
	}
	return left << shuffle->right_bits | right;
}

uint64_t bench_shuffle_at(const struct bench_shuffle *shuffle, uint64_t index)
{
	/* Cycle walking: numbers beyond the slots are permuted on, and come back. */
	do
		index = permute(shuffle, index);
	while (index >= shuffle->slots);
	return index;
}

uint64_t bench_percent_of(uint64_t whole, uint32_t percent)
{
	/* In two steps: the product of large sizes does not fit. */
	return whole / 100 * percent + whole % 100 * percent / 100;
}

static int check_blocks(const struct bench_job *job, const char *path,
			const struct spw_geometry *geometry)
{
	uint32_t block = geometry->logical_block_bytes;

	if (job->block_bytes_min % block != 0 || job->block_bytes_max % block != 0)
		return spw_error(
			-EINVAL, "job %s: bs=%ju is not a multiple of the %u-byte blocks of %s",
			job->name,
			(uintmax_t)(job->block_bytes_min % block != 0 ? job->block_bytes_min
								      : job->block_bytes_max),
			block, path);
	if (job->skip_bytes % (int64_t)block != 0)
		return spw_error(
			-EINVAL, "job %s: rw=%s:%jd does not skip whole %u-byte blocks of %s",
			job->name, bench_rw_name(job->rw), (intmax_t)job->skip_bytes, block, path);
	if (job->offset_bytes % block != 0)
		return spw_error(-EINVAL,
				 "job %s: offset=%ju is not a multiple of the %u-byte blocks of %s",
				 job->name, (uintmax_t)job->offset_bytes, block, path);
	return 0;
}

int bench_region_place(struct bench_region *region, const struct bench_job *job, const char *path,
		       const struct spw_geometry *geometry, unsigned files, uint64_t seed)
{
	uint64_t have = geometry->size_bytes > job->offset_bytes
				? geometry->size_bytes - job->offset_bytes
				: 0;
	uint64_t len = have;
	int result = check_blocks(job, path, geometry);

	if (result != 0)
		return result;
	if (job->size_bytes > 0)
		len = job->size_bytes / files;
	else if (job->size_percent > 0)
		len = bench_percent_of(geometry->size_bytes, job->size_percent);
	len = spw_round_down(len, job->block_bytes_min);
	if (len > have)
		return spw_error(-ENOSPC,
				 "job %s: %s has %ju bytes from offset %ju on, but size asks for "
				 "%ju of it: give a smaller --size, or a larger file or device",
				 job->name, path, (uintmax_t)have, (uintmax_t)job->offset_bytes,
				 (uintmax_t)len);
	if (len < job->block_bytes_max)
		return spw_error(
			-ENOSPC,
			"job %s: %s is too short: %ju bytes to use, less than one block of %ju",
			job->name, path, (uintmax_t)len, (uintmax_t)job->block_bytes_max);
	*region = (struct bench_region){
		.start_bytes = job->offset_bytes,
		.len_bytes = len,
		.block_bytes_min = job->block_bytes_min,
		.block_bytes_max = job->block_bytes_max,
		.seed = seed,
		.skip_bytes = job->skip_bytes,
		.random = bench_rw_is_random(job->rw),
		.repeats = job->norandommap,
	};
	bench_region_start_pass(region, 0);
	return 0;
}

void bench_region_start_pass(struct bench_region *region, uint64_t pass)
{
	region->pass = pass;
	region->index = 0;
	region->issued_bytes = 0;
	region->position_bytes[0] = region->position_bytes[1] = 0;
	bench_shuffle_init(&region->shuffle, region->len_bytes / region->block_bytes_max,
			   bench_mix(region->seed, pass));
}

static uint64_t draw_len(const struct bench_region *region)
{
	uint64_t units = region->block_bytes_max / region->block_bytes_min;

	if (units == 1)
		return region->block_bytes_min;
	return (1 + bench_mix(region->shuffle.key, region->index) % units) *
	       region->block_bytes_min;
}

static bool next_random(struct bench_region *region, uint64_t *offset_bytes, uint64_t *len_bytes)
{
	uint64_t slot;

	if (region->index == region->shuffle.slots)
		return false;
	if (region->repeats)
		slot = bench_mix(~region->shuffle.key, region->index) % region->shuffle.slots;
	else
		slot = bench_shuffle_at(&region->shuffle, region->index);
	*len_bytes = draw_len(region);
	*offset_bytes = slot * region->block_bytes_max;
	return true;
}

/* From @position on by transfer and skip; past either end it goes on at the other. */
static uint64_t advance(const struct bench_region *region, uint64_t position, uint64_t len)
{
	int64_t span = (int64_t)region->len_bytes;
	int64_t next = ((int64_t)(position + len) + region->skip_bytes % span) % span;

	return (uint64_t)(next < 0 ? next + span : next);
}

static bool next_sequential(struct bench_region *region, unsigned direction, uint64_t *offset_bytes,
			    uint64_t *len_bytes)
{
	uint64_t rest = region->len_bytes - region->issued_bytes;
	uint64_t len = draw_len(region);

	if (rest == 0)
		return false;
	*len_bytes = len < rest ? len : rest;
	*offset_bytes = region->position_bytes[direction];
	if (*len_bytes > region->len_bytes - *offset_bytes)
		*len_bytes = region->len_bytes - *offset_bytes;
	region->position_bytes[direction] = advance(region, *offset_bytes, *len_bytes);
	region->issued_bytes += *len_bytes;
	return true;
}

bool bench_region_next(struct bench_region *region, unsigned direction, uint64_t *offset_bytes,
		       uint32_t *len_bytes)
{
	uint64_t offset, len;

	if (!(region->random ? next_random(region, &offset, &len)
			     : next_sequential(region, direction, &offset, &len)))
		return false;
	region->index++;
	*offset_bytes = region->start_bytes + offset;
	*len_bytes = (uint32_t)len;
	return true;
}
