/* SPDX-License-Identifier: MIT */
/*
 * spillway/wear.h - how long a drive lasts that is written so much
 *
 * The only place that says how: `spillway plan` and `top`, the metrics, the report of a training
 * run and the cache's cap all ask here.
 *
 *   left        With a rating: the rating, less the percentage that the drive calls used. Without
 *               one: of what has been written for that percentage, the rest of the 100; as drives
 *               round it, one percent more is taken for used, so that it is a lower bound. Of less
 *               than one percent nothing can be concluded.
 *   years       What is left, at the rate given.
 *
 * Contract
 *   Threads    Any thread; nothing is kept between calls.
 *   Safety     A drive is asked for its health page, as by spw_nvme_info(), and nothing else.
 *   Trust      What a drive says of itself is its word alone.
 *   Errors     0, or -EINVAL with spw_last_error(). A drive that cannot be asked is no error.
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
	SPW_WEAR_UNKNOWN, /* nothing says how much the drive may be written: see reason */
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
	double life_bytes;        /* written in the life of the drive, by anybody */
	double left_bytes;        /* that it may still be written; if the basis is known */
	double bytes_per_day;     /* the rate given */
	double years;             /* until they are; below 0: unknown, or nothing is written */
	char reason[256];         /* why the health page, or what is left, is not known; or "" */
};

/**
 * spw_wear - how long a drive lasts
 * @path:     a drive as spw_nvme_info() takes it; NULL: none is asked
 * @rated:    bytes that it may be written in its life, by its maker; 0: not known
 * @written:  bytes that are written to it
 * @seconds:  in so much time
 *
 * Return: 0; -EINVAL a figure that is negative or no number, or a time of 0.
 */
SPW_EXPORT int spw_wear(const char *path, double rated, double written, double seconds,
			struct spw_wear *wear, size_t size);

#ifdef __cplusplus
}
#endif
#endif
