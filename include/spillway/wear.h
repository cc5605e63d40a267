/* SPDX-License-Identifier: MIT */
/*
 * spillway/wear.h - spw_wear(): how long a drive lasts at a write rate
 *
 * Used by `spillway plan` and `top`, the metrics, the report of a training run and the cache's
 * write limit.
 *
 *   left        With a rating: the rating, less the percentage that the drive reports as used.
 *               Without a rating: extrapolated from the bytes written and the percentage used. As
 *               drives round the percentage, one percent is added, which gives a lower bound; from
 *               less than one percent it cannot be extrapolated.
 *   years       How long the bytes left last at the given rate.
 *
 * Contract
 *   Threads    Any thread; no state is kept between calls.
 *   Safety     Only reads the drive's health page, like spw_nvme_info().
 *   Trust      A drive's health data cannot be verified.
 *   Errors     0, or -EINVAL with spw_last_error(). A drive that cannot be asked is not
 *              an error.
 */
#ifndef SPILLWAY_WEAR_H
#define SPILLWAY_WEAR_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <spillway/error.h>

#ifdef __cplusplus
extern "C" {
#endif

#define SPW_SECONDS_PER_DAY 86400.0
#define SPW_DAYS_PER_YEAR   365.25

enum spw_wear_basis {
	SPW_WEAR_UNKNOWN, /* the endurance of the drive is not known: see reason */
	SPW_WEAR_HEALTH,  /* from the bytes written and percentage used on the health page */
	SPW_WEAR_RATING,  /* the rating given, less the percentage used on the health page */
	/* the rating given, as for a new drive: the health page cannot be read, see reason */
	SPW_WEAR_RATING_ALONE,
};

struct spw_wear {
	size_t size;
	enum spw_wear_basis basis;
	bool has_health;          /* percentage_used and life_bytes are known */
	uint32_t percentage_used; /* 100 and above: worn out */
	double life_bytes;        /* bytes written since the drive was new, by any program */
	double left_bytes;        /* bytes that may still be written; if the basis is known */
	double bytes_per_day;     /* the rate given */
	/* until left_bytes are written; below 0: unknown, or nothing is written */
	double years;
	char reason[256]; /* why the health page, or left_bytes, is unknown; or "" */
};
SPW_ABI(struct spw_wear, reason, 56, 312);

/**
 * spw_wear - estimate how long a drive lasts at a write rate
 * @path:     a drive as for spw_nvme_info(); NULL: use no health data
 * @rated:    the maker's endurance in bytes; 0: not known
 * @written:  bytes that are written to it,
 * @seconds:  in this time
 * @wear:     set on success
 * @size:     sizeof *@wear
 *
 * A drive whose health page cannot be read is not an error: see @wear->reason.
 *
 * Return: 0; -EINVAL a figure is negative or not finite, or @seconds is 0.
 */
SPW_EXPORT int spw_wear(const char *path, double rated, double written, double seconds,
			struct spw_wear *wear, size_t size);

#ifdef __cplusplus
}
#endif
#endif
