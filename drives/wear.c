/* SPDX-License-Identifier: MIT */
/* drives/wear.c - spw_wear(): how long a drive lasts, from its endurance left and the write rate */
#include <spillway/wear.h>

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include <spillway/nvme.h>

#include "util/util.h"

static bool is_amount(double value)
{
	return isfinite(value) && value >= 0;
}

static void ask_drive(const char *path, struct spw_wear *wear)
{
	struct spw_nvme_info info = {.size = sizeof(info)};
	int rc = spw_nvme_info(path, &info);

	if (rc)
		(void)snprintf(wear->reason, sizeof(wear->reason), "%s", spw_last_error());
	else if (!info.has_health)
		(void)snprintf(wear->reason, sizeof(wear->reason), "%s: it has no health page",
			       path);
	if (rc || !info.has_health)
		return;
	wear->has_health = true;
	wear->percentage_used = info.percentage_used;
	wear->life_bytes = (double)info.bytes_written;
}

static double unused_share(const struct spw_wear *wear)
{
	return wear->percentage_used < 100 ? (100 - wear->percentage_used) / 100. : 0;
}

/* A lower bound: as percentages are rounded, one percent more may be used. */
static double left_by_health(const struct spw_wear *wear)
{
	double used = wear->percentage_used + 1.;

	return used < 100 ? wear->life_bytes / used * (100 - used) : 0;
}

static void find_left(struct spw_wear *wear, double rated)
{
	if (rated > 0) {
		wear->basis = wear->has_health ? SPW_WEAR_RATING : SPW_WEAR_RATING_ALONE;
		wear->left_bytes = rated * unused_share(wear);
	} else if (wear->has_health && wear->percentage_used > 0) {
		wear->basis = SPW_WEAR_HEALTH;
		wear->left_bytes = left_by_health(wear);
	} else if (wear->has_health) {
		(void)snprintf(wear->reason, sizeof(wear->reason),
			       "less than 1 %% of its life is used: too little to tell from");
	}
}

int spw_wear(const char *path, double rated, double written, double seconds, struct spw_wear *out,
	     size_t size)
{
	struct spw_wear wear = {.years = -1};

	if (!is_amount(rated) || !is_amount(written) || !is_amount(seconds) || seconds <= 0 || !out)
		return spw_error(-EINVAL, "wear: amounts are 0 or more, and a time is above 0");
	wear.size = size < sizeof(wear) ? size : sizeof(wear);
	wear.bytes_per_day = written / seconds * SPW_SECONDS_PER_DAY;
	if (path)
		ask_drive(path, &wear);
	find_left(&wear, rated);
	if (wear.basis != SPW_WEAR_UNKNOWN && wear.bytes_per_day > 0)
		wear.years = wear.left_bytes / wear.bytes_per_day / SPW_DAYS_PER_YEAR;
	SPW_ASSERT(wear.left_bytes >= 0);
	memcpy(out, &wear, wear.size);
	return 0;
}
