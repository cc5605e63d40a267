/* SPDX-License-Identifier: MIT */
/* trace/internal.h - names in trace files, shared by writer and reader */
#ifndef SPW_TRACE_INTERNAL_H
#define SPW_TRACE_INTERNAL_H

#include <spillway/trace.h>

#define TRACE_FORMAT "spillway-trace"
/* Longest line with its newline: a header fits whose description is all control characters. */
#define TRACE_LINE_MAX (64u << 10)
#define TRACE_KINDS    (SPW_TRACE_AGAIN + 1)
#define TRACE_HINTS    (SPW_TRACE_HINT_PIN + 1)
#define TRACE_RESULTS  (SPW_TRACE_RESULT_DEDUP + 1)

extern const char *const spw_trace__kind_names[TRACE_KINDS];
extern const char *const spw_trace__hint_names[TRACE_HINTS];
extern const char *const spw_trace__result_names[TRACE_RESULTS];
extern const char *const spw_trace__stage_names[2]; /* index: event->backward */

static inline bool spw_trace__names_tensor(const struct spw_trace_event *event)
{
	return event->kind >= SPW_TRACE_OFFER && event->kind <= SPW_TRACE_RELEASE;
}

#endif
