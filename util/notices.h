/* SPDX-License-Identifier: MIT */
/* util/notices.h - log messages, repeated ever more rarely; the caller logs them without locks */
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
 * Note a message, unless one of this kind was noted since spw_notices_again(). It becomes pending,
 * to be logged, the first, second, fourth, eighth time and so on: a problem in every step must not
 * fill the log.
 */
SPW_COLD void spw_notice(struct spw_notices *notices, unsigned kind, const char *format, ...)
	SPW_PRINTF(3, 4);

/* Allow one more notice of each kind, except for the kinds whose bit is in @never. */
static inline void spw_notices_again(struct spw_notices *notices, uint32_t never)
{
	notices->noted &= never;
}

#endif
