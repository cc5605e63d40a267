/* SPDX-License-Identifier: MIT */
/*
 * tests/fuzz/fuzz_trace.c - any bytes as a trace: an error with a message, or events that keep what
 * spillway/trace.h guarantees
 */
/* link: util trace/read */
#include <errno.h>

#include <spillway/trace.h>

#include "tests/fuzz/fuzz.h"
#include "util/util.h"

static bool has_range(const struct spw_trace_event *event)
{
	return event->kind == SPW_TRACE_OFFER || event->kind == SPW_TRACE_TAKE;
}

/* No tensor is released more often than offered, and none is taken that was not offered. */
static void check_lives(const struct spw_trace *trace)
{
	int32_t *users = calloc((size_t)trace->tensors + 1, sizeof(*users));

	FUZZ_REQUIRE(users);
	for (uint32_t i = 0; i < trace->count; i++) {
		const struct spw_trace_event *event = &trace->events[i];

		FUZZ_REQUIRE(event->tensor <= trace->tensors);
		users[event->tensor] += event->kind == SPW_TRACE_OFFER;
		if (event->kind == SPW_TRACE_TAKE || event->kind == SPW_TRACE_RELEASE)
			FUZZ_REQUIRE(event->tensor > 0 && users[event->tensor] > 0);
		users[event->tensor] -= event->kind == SPW_TRACE_RELEASE;
	}
	free(users);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct spw_trace *trace;
	uint64_t ns = 0;
	uint32_t steps = 0;
	int rc;

	(void)spw_error(-EIO, "nothing");
	rc = spw_trace_read(fuzz_path(data, size), &trace);
	FUZZ_REQUIRE(rc <= 0 && (rc == 0) == (trace != NULL));
	FUZZ_REQUIRE(rc == 0 || strcmp(spw_last_error(), "nothing") != 0);
	if (rc != 0)
		return 0;
	for (uint32_t i = 0; i < trace->count; i++) {
		const struct spw_trace_event *event = &trace->events[i];

		FUZZ_REQUIRE(event->ns >= ns && event->kind <= SPW_TRACE_AGAIN);
		FUZZ_REQUIRE(!has_range(event) || event->len_bytes > 0);
		if (event->kind == SPW_TRACE_OFFER)
			FUZZ_REQUIRE(event->offset_bytes <= event->storage_len_bytes &&
				     event->len_bytes <=
					     event->storage_len_bytes - event->offset_bytes &&
				     event->storage_key > 0 &&
				     event->storage_key <= trace->storages);
		ns = event->ns;
		steps += event->kind == SPW_TRACE_STEP;
	}
	FUZZ_REQUIRE(steps == trace->steps);
	check_lives(trace);
	spw_trace_free(trace);
	return 0;
}
