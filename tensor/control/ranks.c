/* SPDX-License-Identifier: MIT */
/*
 * tensor/control/ranks.c - what ranks that share drives count on: the mean of what all have
 * measured
 *
 * Drives serve all requests alike, so a rank with more in flight gets more. By its own figure
 * alone a rank that got less would plan for less, have less under way, and get even less, and the
 * others what it leaves. By the mean like ranks have like plans, and so get alike.
 */
#include "tensor/control/internal.h"
#include "tensor/control/ranks.h"

/* Figures of other processes: no drives do more. */
#define RATE_MAX (UINT64_C(1) << 50)

static void add(struct rank_sum *sum, uint64_t bytes_per_second)
{
	if (bytes_per_second == 0 || bytes_per_second > RATE_MAX)
		return;
	sum->bytes_per_second += (double)bytes_per_second;
	sum->count++;
}

void spw_control__ranks_forget(struct control *control)
{
	control->ranks = (struct ranks){0};
}

void spw_control__rank(struct control *control, const struct spw_plan_drives *measured)
{
	add(&control->ranks.write, measured->write_bytes_per_second);
	add(&control->ranks.read, measured->read_bytes_per_second);
	add(&control->ranks.mixed, measured->mixed_bytes_per_second);
}

static uint64_t mean_of(struct rank_sum sum, uint64_t ours)
{
	if (sum.count == 0)
		return ours;
	add(&sum, ours);
	return (uint64_t)(sum.bytes_per_second / sum.count);
}

struct spw_plan_drives spw_control__ranks_share(const struct control *control)
{
	const struct ranks *ranks = &control->ranks;
	struct spw_plan_drives drives = control->measure.drives;

	drives.write_bytes_per_second = mean_of(ranks->write, drives.write_bytes_per_second);
	drives.read_bytes_per_second = mean_of(ranks->read, drives.read_bytes_per_second);
	drives.mixed_bytes_per_second = mean_of(ranks->mixed, drives.mixed_bytes_per_second);
	return drives;
}
