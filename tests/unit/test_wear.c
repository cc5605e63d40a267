/* SPDX-License-Identifier: MIT */
/* tests/unit/test_wear.c - how long a drive lasts, by what it says and by its rating */
/* link: util drives/wear */

#include "tests/case.h"

#include <errno.h>
#include <math.h>

#include <spillway/nvme.h>
#include <spillway/wear.h>

#include "util/util.h"

/* ---- The drive ---- */

static struct spw_nvme_info drive;
static int asked_rc;

int spw_nvme_info(const char *path, struct spw_nvme_info *info)
{
	if (asked_rc)
		return spw_error(asked_rc, "%s: sending NVMe commands takes root", path);
	*info = drive;
	return 0;
}

static struct spw_wear wear_of(uint32_t percentage, double rated, double written, double seconds)
{
	struct spw_wear wear;

	asked_rc = 0;
	drive = (struct spw_nvme_info){.has_health = true,
				       .percentage_used = percentage,
				       .bytes_written = UINT64_C(100000000000000)};
	assert_int_equal(spw_wear("/dev/nvme0n1", rated, written, seconds, &wear, sizeof(wear)), 0);
	return wear;
}

static void near(double expected, double found)
{
	if (fabs(found - expected) > fabs(expected) * 1e-9)
		fail_msg("%g expected, %g found", expected, found);
}

/* ---- Cases ---- */

CASE(by_the_health_page_alone)
{
	/* 100 TB for 19 %, 20 at most: 400 TB are left, of which 2 TB go in half a day. */
	struct spw_wear wear = wear_of(19, 0, 2e12, SPW_SECONDS_PER_DAY / 2);

	assert_int_equal(wear.basis, SPW_WEAR_HEALTH);
	assert_int_equal(wear.percentage_used, 19);
	near(100e12, wear.life_bytes);
	near(400e12, wear.left_bytes);
	near(4e12, wear.bytes_per_day);
	near(100 / SPW_DAYS_PER_YEAR, wear.years);
	assert_string_equal(wear.reason, "");
}

CASE(used_up_is_nothing_left)
{
	for (uint32_t percent = 99; percent < 256; percent += 52) {
		assert_true(wear_of(percent, 0, 1e12, 1).left_bytes == 0);
		assert_true(wear_of(percent, 0, 1e12, 1).years == 0);
	}
	assert_true(wear_of(100, 600e12, 1e12, 1).left_bytes == 0);
	near(6e12, wear_of(99, 600e12, 1e12, 1).left_bytes);
}

CASE(less_than_a_percent_says_nothing_without_a_rating)
{
	struct spw_wear wear = wear_of(0, 0, 1e12, 1);

	assert_int_equal(wear.basis, SPW_WEAR_UNKNOWN);
	assert_true(wear.has_health && wear.years < 0);
	assert_non_null(strstr(wear.reason, "less than 1 %"));
	wear = wear_of(0, 600e12, 1e12, 1);
	assert_int_equal(wear.basis, SPW_WEAR_RATING);
	near(600e12, wear.left_bytes);
}

CASE(a_drive_that_cannot_be_asked_says_why)
{
	struct spw_wear wear;

	asked_rc = -EACCES;
	assert_int_equal(spw_wear("/dev/nvme0n1", 0, 1, 1, &wear, sizeof(wear)), 0);
	assert_int_equal(wear.basis, SPW_WEAR_UNKNOWN);
	assert_true(!wear.has_health && wear.years < 0);
	assert_non_null(strstr(wear.reason, "takes root"));
	near(SPW_SECONDS_PER_DAY, wear.bytes_per_day);
	assert_int_equal(
		spw_wear("/dev/nvme0n1", 600e12, 1e12, SPW_SECONDS_PER_DAY, &wear, sizeof(wear)),
		0);
	assert_int_equal(wear.basis, SPW_WEAR_RATING_ALONE);
	assert_non_null(strstr(wear.reason, "takes root"));
	near(600 / SPW_DAYS_PER_YEAR, wear.years);
}

CASE(nothing_written_lasts_nobody_knows_how_long)
{
	assert_true(wear_of(19, 600e12, 0, 1).years < 0);
	near(486e12, wear_of(19, 600e12, 0, 1).left_bytes);
}

CASE(nonsense_is_refused_and_no_drive_is_asked)
{
	const double bad[] = {-1, NAN, INFINITY};
	struct spw_wear wear;

	asked_rc = -EIO;
	for (size_t i = 0; i < SPW_ARRAY_LEN(bad); i++) {
		assert_int_equal(spw_wear(NULL, bad[i], 1, 1, &wear, sizeof(wear)), -EINVAL);
		assert_int_equal(spw_wear(NULL, 1, bad[i], 1, &wear, sizeof(wear)), -EINVAL);
		assert_int_equal(spw_wear(NULL, 1, 1, bad[i], &wear, sizeof(wear)), -EINVAL);
	}
	assert_int_equal(spw_wear(NULL, 1, 1, 0, &wear, sizeof(wear)), -EINVAL);
	assert_int_equal(spw_wear(NULL, 1, 1, 1, &wear, sizeof(wear)), 0);
	assert_string_equal(wear.reason, "");
}

RUN_CASES(NULL, NULL)
