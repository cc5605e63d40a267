/* SPDX-License-Identifier: MIT */
/* util/notices.h - texts for the log, each kind ever more rarely; written when no lock is held */
#ifndef SPW_NOTICES_H
#define SPW_NOTICES_H

#include <stdint.h>

#include "util/util.h"

#define SPW_NOTICES_MAX      23 /* kinds of the cache and its control */
#define SPW_NOTICE_BYTES_MAX 320

struct spw_notices {
	uint32_t noted, pending; /* a bit for each kind */
	uint32_t times[SPW_NOTICES_MAX];
	char text[SPW_NOTICES_MAX][SPW_NOTICE_BYTES_MAX];
};

/*
 * Note it, if none of this kind was noted since spw_notices_again(). It is written the first,
 * second, fourth, eighth time, and so on: what is wrong in each step must not fill the log.
 */
SPW_COLD void spw_notice(struct spw_notices *notices, unsigned kind, const char *format, ...)
	SPW_PRINTF(3, 4);

/* From here on each kind may be noted once more, but for those whose bit is in @never. */
static inline void spw_notices_again(struct spw_notices *notices, uint32_t never)
{
	notices->noted &= never;
}

#endif
