/* SPDX-License-Identifier: MIT */
/*
 * spillway/trace.h - a recorded run of the tensor cache: written while a model trains, read to
 * replay it and to plan
 *
 * A trace is a file of JSON lines: a header, then one object per call of the cache. docs/TRACES.md
 * describes them. A trace whose path ends in .gz is written compressed; reading recognizes
 * compressed files.
 *
 * Contract
 *   Threads    A writer accepts events from any thread, and orders them by the time of the call.
 *              Its own thread writes the file, so that events never wait for a disk; until then
 *              they are in memory. A trace that was read is constant: any thread may use it.
 *   Memory     Events are copied. A writer remembers each storage and each tensor that it has
 *              numbered, 16 to 64 bytes each: record some steps, not a week.
 *   Errors     A failed write never disturbs the cache: the first failure ends the recording, and
 *              spw_trace_finish() returns it. Reading checks everything: an error names the file,
 *              the line and what is wrong with it. Functions return 0 or a negative errno, with a
 *              message in spw_last_error().
 */
#ifndef SPILLWAY_TRACE_H
#define SPILLWAY_TRACE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <spillway/error.h>

#ifdef __cplusplus
extern "C" {
#endif

#define SPW_TRACE_VERSION    1
#define SPW_TRACE_EVENTS_MAX (1u << 22)
#define SPW_TRACE_MODEL_MAX  4096u /* bytes of the description */

struct spw_trace_writer; /* opaque */

enum spw_trace_kind {
	SPW_TRACE_STEP,
	SPW_TRACE_STAGE,
	SPW_TRACE_SCOPE_ENTER,
	SPW_TRACE_SCOPE_LEAVE,
	SPW_TRACE_OFFER,
	SPW_TRACE_TAKE,   /* the time is that of its end; it began wait_ns earlier */
	SPW_TRACE_RETURN, /* of the lease that a take of the tensor returned */
	SPW_TRACE_RELEASE,
	/* end of throttling compute for wait_ns; see spw_cache_hold_back() */
	SPW_TRACE_HOLD,
	/* end of recomputing a scope for wait_ns; see spw_cache_again_begin() */
	SPW_TRACE_AGAIN,
};

/* The caller's hint. */
enum spw_trace_hint {
	SPW_TRACE_HINT_NONE,
	SPW_TRACE_HINT_KEEP,
	SPW_TRACE_HINT_SPILL, /* written by earlier versions: spill in any case; replayed as NONE */
	SPW_TRACE_HINT_PIN,
};

enum spw_trace_result {
	SPW_TRACE_RESULT_KEEP,
	SPW_TRACE_RESULT_SPILL,
	SPW_TRACE_RESULT_DEDUP,
};

/* One call of the cache. Fields that do not belong to its kind are 0. */
struct spw_trace_event {
	uint64_t ns; /* time since the writer was created; set by the writer */
	enum spw_trace_kind kind;

	/* STAGE */
	uint32_t micro_batch, next_micro_batch;
	bool backward;
	bool has_next, next_backward; /* the caller said which stage comes next */

	/* SCOPE_ENTER */
	uint64_t scope_key;

	/*
	 * OFFER, TAKE, RETURN, RELEASE: the cache's id, not 0. A writer numbers tensors, storage
	 * keys and scope keys, each from 1 in the order in which they appear; a reader returns
	 * those numbers.
	 */
	uint64_t tensor;

	/* OFFER */
	uint64_t storage_key, storage_version, storage_len_bytes;
	enum spw_trace_hint hint;
	enum spw_trace_result result;

	/* OFFER, TAKE: the part of the storage */
	uint64_t offset_bytes, len_bytes;

	/* TAKE: time waited for I/O; HOLD, AGAIN: time that compute was throttled, or recomputed */
	uint64_t wait_ns;
	uint64_t reserved[2];
};
SPW_ABI(struct spw_trace_event, reserved, 96, 112);

/**
 * spw_trace_create - begin to record a trace
 * @path:    the file; an existing one is replaced
 * @model:   a description of what is recorded, UTF-8, at most SPW_TRACE_MODEL_MAX bytes; or NULL
 * @writer:  set on success, else NULL
 *
 * Return: 0; -EINVAL; -ENOMEM; -EAGAIN no thread can be created; or as open(2).
 */
SPW_EXPORT int spw_trace_create(const char *path, const char *model,
				struct spw_trace_writer **writer);

/**
 * spw_trace_write - record an event
 * @writer:  the writer
 * @event:   copied; its time is set to the present time
 *
 * Any thread. Does not wait for the file; costs about as much as printing the event to memory. A
 * failure is reported by spw_trace_finish().
 */
SPW_EXPORT void spw_trace_write(struct spw_trace_writer *writer,
				const struct spw_trace_event *event);

/**
 * spw_trace_finish - write the remaining events, close the file and free the writer
 * @writer:  no longer in use by any thread; or NULL
 *
 * Return: 0; or the first failure since the writer was created: -ENOSPC, -EIO, -ENOMEM. After a
 * failure the file ends early.
 */
SPW_EXPORT int spw_trace_finish(struct spw_trace_writer *writer);

/* A trace in memory. */
struct spw_trace {
	/* the description given to spw_trace_create(), or "" */
	const char *model;
	const struct spw_trace_event *events; /* in the order of their times */
	uint32_t count;
	uint32_t steps; /* SPW_TRACE_STEP events */
	/* numbered 1 to tensors, 1 to storages, in the order in which they appear */
	uint32_t tensors, storages;
};
SPW_ABI(struct spw_trace, storages, 28, 32);

/**
 * spw_trace_read - read a trace
 * @path:   the file
 * @trace:  set on success, else NULL; for spw_trace_free()
 *
 * The events are consistent: times never decrease; every tensor that is taken, returned or released
 * was offered before, with the part that is taken inside of its storage; it is not released more
 * often than it was offered, and not taken or offered after that; all offers of a tensor are of one
 * version of one storage; parts are not empty and lie within their storage.
 *
 * Return: 0; -EBADMSG not a trace, or damaged, with the line in spw_last_error(); -EPROTONOSUPPORT
 * a newer version; -E2BIG more than SPW_TRACE_EVENTS_MAX events; -ENOMEM; or as open(2) and
 * read(2).
 */
SPW_EXPORT int spw_trace_read(const char *path, struct spw_trace **trace);

/**
 * spw_trace_free - free a trace
 * @trace:  or NULL
 */
SPW_EXPORT void spw_trace_free(struct spw_trace *trace);

#ifdef __cplusplus
}
#endif
#endif
