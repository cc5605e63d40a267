/* SPDX-License-Identifier: MIT */
/*
 * spillway/wear.h - how long a drive lasts at a write rate
 *
 * The only place that computes this: `spillway plan` and `top`, the metrics, the report of a
 * training run and the cache's limit all use it.
 *
 *   left        With a rating: the rating, less the percentage that the drive reports as used.
 *               Without one: extrapolated from what was written for that percentage. Drives round
 *               it, so one percent more is taken as used, which gives a lower bound; less than one
 *               percent is not enough to extrapolate from.
 *   years       What is left, at the given rate.
 *
 * Contract
 *   Threads    Any thread; nothing is kept between calls.
 *   Safety     A drive is asked for its health page, as by spw_nvme_info(), and nothing else.
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
	SPW_WEAR_HEALTH,  /* what its health page says is written and used */
	SPW_WEAR_RATING,  /* the rating given, less what the health page says is used */
	/* the rating given, as of a new drive: the health page cannot be read, see reason */
	SPW_WEAR_RATING_ALONE,
};

struct spw_wear {
	size_t size;
	enum spw_wear_basis basis;
	bool has_health;          /* the next two are known */
	uint32_t percentage_used; /* 100 and above: used up */
	double life_bytes;        /* written in the life of the drive by any program */
	double left_bytes;        /* that it may still be written; if the basis is known */
	double bytes_per_day;     /* the rate given */
	double years;             /* until they are; below 0: unknown, or nothing is written */
	char reason[256];         /* why the health page, or what is left, is not known; or "" */
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
