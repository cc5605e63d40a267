/* SPDX-License-Identifier: MIT */
/* engine/backend.c - what all backends share: telling how a queue works */
#include "engine/backend.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

void spw_queue_describe(struct spw_queue *q, const char *format, ...)
{
	size_t used = strlen(q->description);
	va_list args;

	va_start(args, format);
	(void)vsnprintf(q->description + used, sizeof(q->description) - used, format, args);
	va_end(args);
}
