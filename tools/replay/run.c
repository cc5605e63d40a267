/* SPDX-License-Identifier: MIT */
/* tools/replay/run.c - replay_run(): wait, offer, take, compare and measure in one thread */
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "tools/replay/drive.h"
#include "tools/replay/pattern.h"
#include "tools/replay/replaying.h"
#include "tools/ui/stop.h"
#include "util/util.h"

/* ---- The timeline of the last replay ---- */

static void sample(void *context)
{
	struct replaying *replaying = context;
	struct replay_timeline *timeline = &replaying->run->timeline;
	struct spw_cache_stats stats;
	struct replay_sample *last;

	(void)pthread_mutex_lock(&replaying->samples_lock);
	spw_cache_stats(replaying->run->cache, &stats, sizeof(stats));
	last = timeline->samples_count > 0 ? &timeline->samples[timeline->samples_count - 1] : NULL;
	if ((!last || last->bytes != stats.activation_bytes) && timeline->samples &&
	    timeline->samples_count < timeline->samples_max)
		timeline->samples[timeline->samples_count++] =
			(struct replay_sample){.ns = replay_drive_now_ns() - timeline->begin_ns,
					       .bytes = stats.activation_bytes};
	(void)pthread_mutex_unlock(&replaying->samples_lock);
}

static int timeline_open(struct replay_run *run)
{
	struct replay_timeline *timeline = &run->timeline;

	/* A sample after each operation, and after each tensor's write and read. */
	timeline->samples_max = run->step->ops_count + 2 * run->step->tensors_count + 16;
	timeline->op_ns = calloc((size_t)run->step->ops_count + 1, sizeof(*timeline->op_ns));
	timeline->samples = calloc(timeline->samples_max, sizeof(*timeline->samples));
	timeline->stalls = calloc((size_t)run->step->ops_count + 1, sizeof(*timeline->stalls));
	return timeline->op_ns && timeline->samples && timeline->stalls ? 0 : -ENOMEM;
}

/* ---- The operations ---- */

static enum spw_cache_hint hint_of(const struct replaying *replaying, const struct replay_op *op)
{
	static const enum spw_cache_hint hints[] = {SPW_HINT_NONE, SPW_HINT_KEEP, SPW_HINT_NONE,
						    SPW_HINT_PIN};
	const struct replay_run *run = replaying->run;

	if (run->step->tensors[op->tensor].scope >= run->pinned_from_scope)
		return SPW_HINT_PIN;
	return op->event->hint == SPW_TRACE_HINT_NONE ? replay_recompute_hint(replaying)
						      : hints[op->event->hint];
}

static int offer(struct replaying *replaying, const struct replay_op *op)
{
	struct buffer *buffer = replay_buffer_of(replaying, op->content);
	struct handle *handle = &replaying->handles[op->tensor];
	struct spw_offer offered;
	spw_tensor id;
	int rc;

	if (!buffer)
		return -ENOMEM;
	offered = replay_offer(replaying, op, buffer);
	rc = spw_cache_offer_hint(replaying->run->cache, &offered, hint_of(replaying, op), &id);
	if (rc == SPW_OFFER_KEEP || rc == SPW_OFFER_SPILL)
		buffer->holds++;
	replay_buffer_let_go(replaying, buffer);
	if (rc < 0)
		return rc;
	if (handle->users > 0 && handle->id.value != id.value)
		return spw_error(-EPROTO,
				 "tensor %u was offered again, and the cache took it for another",
				 op->tensor);
	if (handle->users++ == 0)
		handle->offered = op;
	handle->id = id;
	if (rc == SPW_OFFER_AGAIN && !handle->discarded)
		replay_recompute_discarded(replaying, op->tensor);
	return 0;
}

static int take(struct replaying *replaying, const struct replay_op *op)
{
	struct handle *handle = &replaying->handles[op->tensor];
	uint64_t seed = replay_pattern_seed(replaying->keys[op->content]);
	struct spw_taken taken;
	const uint8_t *bytes;
	int rc = spw_cache_take(replaying->run->cache, handle->id, op->offset_bytes, op->len_bytes,
				&taken);

	if (rc == SPW_TAKE_AGAIN) {
		rc = replay_recompute(replaying, op->tensor);
		return rc ? rc : take(replaying, op);
	}
	if (rc)
		return rc;
	if (taken.bytes) {
		bytes = taken.bytes;
		handle->lease = taken.lease;
		handle->leases++;
	} else {
		bytes = ((struct buffer *)(uintptr_t)taken.owner)->bytes + op->offset_bytes;
	}
	if (!replay_pattern_matches(bytes, op->offset_bytes, op->len_bytes, seed))
		return spw_error(-EBADMSG,
				 "tensor %u, bytes %" PRIu64 " + %" PRIu64
				 ": the cache returned wrong bytes",
				 op->tensor, op->offset_bytes, op->len_bytes);
	return 0;
}

static int operate(struct replaying *replaying, const struct replay_op *op)
{
	struct spw_cache *cache = replaying->run->cache;
	const struct spw_trace_event *event = op->event;
	int rc;

	switch (event->kind) {
	case SPW_TRACE_STEP: spw_cache_step(cache); break;
	case SPW_TRACE_STAGE:
		replay_recompute_stage(replaying, event->backward);
		if (event->has_next)
			spw_cache_stage_next(
				cache, event->micro_batch,
				event->backward ? SPW_STAGE_BACKWARD : SPW_STAGE_FORWARD,
				event->next_micro_batch,
				event->next_backward ? SPW_STAGE_BACKWARD : SPW_STAGE_FORWARD);
		else
			spw_cache_stage(cache, event->micro_batch,
					event->backward ? SPW_STAGE_BACKWARD : SPW_STAGE_FORWARD);
		break;
	case SPW_TRACE_SCOPE_ENTER:
		replay_recompute_enter(replaying);
		spw_cache_scope_enter(cache, event->scope_key);
		break;
	case SPW_TRACE_SCOPE_LEAVE:
		rc = replay_recompute_leave(replaying);
		spw_cache_scope_leave(cache);
		return rc;
	case SPW_TRACE_OFFER: return offer(replaying, op);
	case SPW_TRACE_TAKE: return take(replaying, op);
	case SPW_TRACE_RELEASE: return replay_release(replaying, op->tensor);
	case SPW_TRACE_RETURN:
	case SPW_TRACE_HOLD:
	case SPW_TRACE_AGAIN: break;
	}
	return 0;
}

/* Convert compute time of the step to that of this replay. */
static uint64_t compute_ns(const struct replay_run *run, uint64_t ns)
{
	uint64_t forward_ns = SPW_MIN(ns, run->step->backward_ns);

	return (uint64_t)((double)forward_ns / run->hurry) + ns - forward_ns;
}

/* The time waited for I/O so far. */
static uint64_t waited_ns(const struct replaying *replaying)
{
	struct spw_cache_stats stats;

	spw_cache_stats(replaying->run->cache, &stats, sizeof(stats));
	return stats.stall_ns + stats.hold_ns;
}

/* Run an operation at its time, which is compute plus the waits for I/O so far. */
static int do_op(struct replaying *replaying, uint32_t index)
{
	const struct replay_op *op = &replaying->run->step->ops[index];
	struct replay_timeline *timeline = &replaying->run->timeline;
	uint64_t recompute_ns = replaying->recompute_ns, wait_ns = 0;
	bool may_wait = op->event->kind == SPW_TRACE_TAKE || op->event->kind == SPW_TRACE_OFFER;
	uint64_t due_ns =
		replaying->begin_ns + compute_ns(replaying->run, op->ns) + replaying->behind_ns;
	int rc;

	if (replay_drive_now_ns() < due_ns)
		replay_drive_sleep_until(due_ns);
	if (may_wait)
		wait_ns = waited_ns(replaying);
	rc = operate(replaying, op);
	replay_drain(replaying);
	if (op->event->kind == SPW_TRACE_OFFER &&
	    spw_cache_hold_back(replaying->run->cache, true) == 1)
		replay_drain(replaying);
	if (may_wait)
		wait_ns = waited_ns(replaying) - wait_ns;
	replaying->behind_ns += wait_ns + replaying->recompute_ns - recompute_ns;
	if (rc || !replaying->last)
		return rc;
	timeline->op_ns[index] = replay_drive_now_ns() - timeline->begin_ns;
	if (wait_ns > 0)
		timeline->stalls[timeline->stalls_count++] =
			(struct replay_stall){.begin_ns = timeline->op_ns[index] - wait_ns,
					      .end_ns = timeline->op_ns[index],
					      .tensor = op->tensor};
	sample(replaying);
	return 0;
}

static void measure(struct replaying *replaying, const struct spw_cache_stats *before,
		    struct replay_measure *measure)
{
	uint64_t step_ns = replay_drive_now_ns() - replaying->begin_ns;
	uint64_t should_ns =
		compute_ns(replaying->run, replaying->run->step->compute_ns) + replaying->behind_ns;
	struct spw_cache_stats *after = &measure->stats;

	spw_cache_stats(replaying->run->cache, after, sizeof(*after));
	measure->step_ns = step_ns;
	measure->stall_ns = after->stall_ns - before->stall_ns;
	measure->hold_ns = after->hold_ns - before->hold_ns;
	measure->recompute_ns = replaying->recompute_ns;
	measure->late_ns = step_ns > should_ns ? step_ns - should_ns : 0;
	measure->peak_bytes = after->activation_bytes_max;
	measure->bytes_written = after->bytes_spilled - before->bytes_spilled;
	measure->bytes_read = after->bytes_read - before->bytes_read;
	measure->bytes_forwarded = after->bytes_forwarded - before->bytes_forwarded;
}

static int one_step(struct replaying *replaying, uint32_t number)
{
	struct replay_run *run = replaying->run;
	struct spw_cache_stats before;
	uint64_t end_ns;
	int rc = 0;

	for (uint32_t i = 0; i < run->step->contents_count; i++)
		replaying->current[i] = NULL;
	memset(replaying->keys, 0, run->step->contents_count * sizeof(*replaying->keys));
	run->hurry = 1;
	if (run->before_step)
		run->before_step(run, number);
	spw_cache_reset_peak(run->cache);
	spw_cache_stats(run->cache, &before, sizeof(before));
	replaying->last = number + 1 == run->steps;
	replaying->behind_ns = replaying->recompute_ns = 0;
	replay_recompute_step(replaying);
	replaying->begin_ns = run->timeline.begin_ns = replay_drive_now_ns();
	if (replaying->last)
		replay_drive_watch(true, sample, replaying);
	for (uint32_t i = 0; i < run->step->ops_count && rc == 0 && !tool_stopped(); i++)
		rc = do_op(replaying, i);
	end_ns =
		replaying->begin_ns + compute_ns(run, run->step->compute_ns) + replaying->behind_ns;
	if (rc == 0 && replay_drive_now_ns() < end_ns)
		replay_drive_sleep_until(end_ns);
	replay_drive_watch(false, NULL, NULL);
	replay_drain(replaying);
	measure(replaying, &before, &run->measures[number]);
	return rc;
}

int replay_run(struct replay_run *run)
{
	struct replaying replaying = {.run = run, .samples_lock = PTHREAD_MUTEX_INITIALIZER};
	const struct replay_step *step = run->step;
	int rc;

	run->measures = calloc(run->steps, sizeof(*run->measures));
	replaying.current = calloc((size_t)step->contents_count + 1, sizeof(struct buffer *));
	replaying.keys = calloc((size_t)step->contents_count + 1, sizeof(*replaying.keys));
	replaying.handles = calloc((size_t)step->tensors_count + 1, sizeof(*replaying.handles));
	if (!run->measures || !replaying.current || !replaying.keys || !replaying.handles ||
	    timeline_open(run))
		rc = spw_error(-ENOMEM, "no memory for a replay of %u operations", step->ops_count);
	else
		rc = replay_recompute_open(&replaying);
	for (uint32_t i = 0; i < run->steps && rc == 0; i++) {
		rc = one_step(&replaying, i);
		run->interrupted = tool_stopped();
		if (rc || run->interrupted)
			break;
		run->measured++;
		if (run->after_step)
			run->after_step(i, &run->measures[i]);
	}
	/* Close the cache before freeing buffers, as writes may still read them. */
	spw_cache_close(run->cache);
	run->cache = NULL;
	replay_buffers_free(&replaying);
	replay_recompute_close(&replaying);
	free(replaying.current);
	free(replaying.keys);
	free(replaying.handles);
	return rc;
}

void replay_run_free(struct replay_run *run)
{
	free(run->measures);
	free(run->timeline.op_ns);
	free(run->timeline.samples);
	free(run->timeline.stalls);
}
