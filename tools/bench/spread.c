/* SPDX-License-Identifier: MIT */
/*
 * tools/bench/spread.c - draw blocks of random transfers: evenly, by a distribution, or by zones
 *
 * The same share of blocks is hot, and as often, as in fio. The seed decides which blocks are hot.
 */
#include "tools/bench/bench.h"

#include <math.h>
#include <string.h>

#include "util/util.h"

/* Later terms of the series do not matter; fio ends it here, too. */
#define ZIPF_TERMS_MAX 10000000u
#define NORMAL_DRAWS   12u

static double unit_draw(struct bench_random *random)
{
	return (double)(bench_random_next(random) >> 11) * 0x1p-53;
}

static uint64_t draw_below(struct bench_random *random, uint64_t limit)
{
	return (uint64_t)((unsigned __int128)bench_random_next(random) * limit >> 64);
}

static void init_zipf(struct bench_spread *spread)
{
	double theta = spread->theta, n = (double)spread->blocks;
	double zeta2 = 1 + pow(0.5, theta);

	for (uint64_t i = 0; i < SPW_MIN(spread->blocks, ZIPF_TERMS_MAX); i++)
		spread->zetan += pow(1.0 / (double)(i + 1), theta);
	spread->eta = (1.0 - pow(2.0 / n, 1.0 - theta)) / (1.0 - zeta2 / spread->zetan);
}

static uint64_t draw_zipf(const struct bench_spread *spread, struct bench_random *random)
{
	double theta = spread->theta, draw = unit_draw(random), scaled = draw * spread->zetan;

	if (scaled < 1)
		return 0;
	if (scaled < 1 + pow(0.5, theta))
		return 1;
	return (uint64_t)((double)spread->blocks *
			  pow(spread->eta * draw - spread->eta + 1, 1 / (1 - theta)));
}

static uint64_t draw_normal(const struct bench_spread *spread, struct bench_random *random)
{
	uint64_t width = (uint64_t)ceil((double)spread->blocks * spread->theta / 100), sum = 0;

	for (unsigned i = 0; i < NORMAL_DRAWS; i++)
		sum += draw_below(random, spread->blocks + 1);
	sum = (sum + NORMAL_DRAWS - 1) / NORMAL_DRAWS;
	width = SPW_MIN(width, spread->blocks / 2);
	return width == 0 ? sum : sum + spread->blocks + draw_below(random, width) - width / 2;
}

static uint64_t draw_zones(const struct bench_spread *spread, struct bench_random *random)
{
	uint64_t draw = draw_below(random, 100), begin = 0, end = 0;

	for (unsigned i = 0; i < spread->zones_count; i++) {
		const struct bench_share *zone = &spread->zones[i];

		begin = end;
		end = spread->kind == BENCH_SPREAD_ZONES_BYTES
			      ? zone->value / spread->align_bytes
			      : (uint64_t)((unsigned __int128)spread->blocks * zone->value / 100);
		end = SPW_MIN(end, spread->blocks);
		if (draw < zone->percent)
			break;
		draw -= zone->percent;
	}
	/* A zone smaller than a block has no block of its own. */
	return end > begin ? begin + draw_below(random, end - begin)
			   : SPW_MIN(begin, spread->blocks - 1);
}

void bench_spread_init(struct bench_spread *spread, const struct bench_job *job, unsigned direction,
		       uint64_t blocks, uint64_t seed)
{
	*spread = (struct bench_spread){
		.kind = job->spread,
		.blocks = blocks,
		.theta = job->spread_theta,
		.zones = job->zones[direction],
		.zones_count = job->zones_count[direction],
		.shift = bench_mix(seed, blocks) % blocks,
	};
	if (job->spread_center >= 0)
		spread->shift = (uint64_t)((double)blocks * job->spread_center) % blocks;
	if (spread->kind == BENCH_SPREAD_NORMAL) {
		double center = job->spread_center < 0 ? 0.5 : job->spread_center;

		spread->shift = (uint64_t)((double)blocks * (center + 0.5)) % blocks;
	}
	if (spread->kind == BENCH_SPREAD_ZIPF)
		init_zipf(spread);
	if (spread->kind == BENCH_SPREAD_PARETO)
		spread->theta = log(spread->theta) / log(1 - spread->theta);
}

uint64_t bench_spread_next(const struct bench_spread *spread, struct bench_random *random)
{
	uint64_t block;

	switch (spread->kind) {
	case BENCH_SPREAD_ZIPF: block = bench_mix(0, draw_zipf(spread, random)); break;
	case BENCH_SPREAD_PARETO:
		block = bench_mix(0, (uint64_t)((double)(spread->blocks - 1) *
						pow(unit_draw(random), spread->theta)));
		break;
	case BENCH_SPREAD_NORMAL: block = bench_mix(0, draw_normal(spread, random)); break;
	case BENCH_SPREAD_ZONES:
	case BENCH_SPREAD_ZONES_BYTES: return draw_zones(spread, random);
	default: return draw_below(random, spread->blocks);
	}
	return (block % spread->blocks + spread->shift) % spread->blocks;
}
