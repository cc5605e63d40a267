/* SPDX-License-Identifier: MIT */
/* tools/bench/offsets.c - repeatable random numbers and permutations */
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
	/* Cycle walking: permute again until the number is one of the slots. */
	do
		index = permute(shuffle, index);
	while (index >= shuffle->slots);
	return index;
}

uint64_t bench_percent_of(uint64_t whole, uint32_t percent)
{
	/* In two steps, as the product of large sizes does not fit into 64 bits. */
	return whole / 100 * percent + whole % 100 * percent / 100;
}
