/* SPDX-License-Identifier: MIT */
/* util/notices.c - texts for the log, each kind once in a while */
#include "util/notices.h"

#include <stdarg.h>
#include <stdio.h>

void spw_notice(struct spw_notices *notices, unsigned kind, const char *format, ...)
{
	uint32_t bit = UINT32_C(1) << kind;
	va_list args;

	SPW_ASSERT(kind < SPW_NOTICES_MAX);
	if (notices->noted & bit)
		return;
	notices->noted |= bit;
	notices->pending |= bit;
	va_start(args, format);
	(void)vsnprintf(notices->text[kind], sizeof(notices->text[kind]), format, args);
	va_end(args);
}
