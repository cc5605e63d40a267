/* SPDX-License-Identifier: MIT */
/* util/notices.c - spw_notice(): log messages that are repeated ever more rarely, by kind */
#include "util/notices.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

void spw_notice(struct spw_notices *notices, unsigned kind, const char *format, ...)
{
	uint32_t bit = UINT32_C(1) << kind, times;
	char *text = notices->text[kind];
	va_list args;
	size_t used;

	SPW_ASSERT(kind < SPW_NOTICES_MAX);
	if (notices->noted & bit)
		return;
	notices->noted |= bit;
	times = ++notices->times[kind];
	if (!spw_is_power_of_two(times))
		return;
	notices->pending |= bit;
	va_start(args, format);
	(void)vsnprintf(text, SPW_NOTICE_BYTES_MAX, format, args);
	va_end(args);
	used = strlen(text);
	if (times > 1)
		(void)snprintf(text + used, SPW_NOTICE_BYTES_MAX - used, " (%u times so far)",
			       times);
}
