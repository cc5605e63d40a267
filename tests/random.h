/* SPDX-License-Identifier: MIT */
/* tests/random.h - random numbers of a test (splitmix64), and the seed that repeats them */
#ifndef SPW_TEST_RANDOM_H
#define SPW_TEST_RANDOM_H

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/random.h>

static inline uint64_t random_mix(uint64_t z)
{
	z = (z ^ (z >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
	z = (z ^ (z >> 27)) * UINT64_C(0x94d049bb133111eb);
	return z ^ (z >> 31);
}

static inline uint64_t random_next(uint64_t *random)
{
	return random_mix(*random += UINT64_C(0x9e3779b97f4a7c15));
}

static inline uint64_t random_below(uint64_t *random, uint64_t limit)
{
	return random_next(random) % limit;
}

/* SPW_SEED, or drawn; printed. */
static inline uint64_t random_seed(void)
{
	const char *text = getenv("SPW_SEED");
	uint64_t seed;

	if (text)
		seed = strtoull(text, NULL, 0);
	else if (getrandom(&seed, sizeof(seed), 0) != sizeof(seed))
		abort();
	printf("SPW_SEED=%llu\n", (unsigned long long)seed);
	(void)fflush(stdout);
	return seed;
}

#endif
