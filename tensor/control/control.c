/* SPDX-License-Identifier: MIT */
/* tensor/control/control.c - the controller: opened, told of events, and asked for counters */
#include <errno.h>
#include <stdlib.h>

#include "tensor/control/device_clock.h"
#include "tensor/control/internal.h"
#include "tensor/control/plan_cursor.h"
#include "tensor/control/profile.h"
#include "tensor/control/recording.h"
#include "tensor/control/signatures.h"
#include "tensor/control/skipped.h"
#include "tensor/control/wear.h"

int spw_control__open(const struct control_opts *opts, struct control **out)
{
	struct control *control = *out = calloc(1, sizeof(*control));

	if (!control)
		return spw_error(-ENOMEM, "no memory for a cache");
	control->opts = *opts;
	control->signature = &control->signatures[0];
	control->probe = NO_TENSOR;
	control->time = HEADROOM_NONE(TIME_PATIENCE_STEPS);
	control->signature->memory = HEADROOM_NONE(MEMORY_PATIENCE_STEPS);
	spw_control__wear_open(control);
	control->profile.width_shift = 0; /* nothing is noted before a step */
	spw_control__recording_begin(
		control); /* the first step has not begun: records is not set yet */
	control->records = opts->cache.mode >= SPW_CACHE_FASTEST;
	return control->records ? spw_control__recording_open(control) : 0;
}

void spw_control__close(struct control *control)
{
	if (control)
		spw_control__recording_close(control);
	free(control);
}

/* ---- Where the caller is ---- */

/*
 * @what, unless NULL, shows that the step is not the one planned for: another plan may fit,
 * or the fixed rule does.
 */
static void leave_by(struct control *control, const char *what)
{
	if (!what || spw_control__signature_switch(control))
		return;
	control->left = true;
	control->plan_number++;
	control->opts.count->plan_mismatches++;
	spw_notice(control->opts.notices, CONTROL_NOTICE_SHAPE,
		   "%s: this step follows the fixed rule, and the next is replanned", what);
}

void spw_control__stage(struct control *control, uint32_t micro_batch, enum spw_stage stage)
{
	if (control->stage == SPW_STAGE_FORWARD)
		spw_control__skipped_rest(control, control->stage_scope);
	control->micro_batch = micro_batch;
	control->stage = stage;
	control->stage_scope = spw_control__scope_enter(control, 0);
}

uint32_t spw_control__scope_enter(struct control *control, uint64_t key)
{
	uint32_t matched = spw_control__skipped_before(control, key);
	uint32_t number = spw_control__recording_scope(control, key);

	if (number == NO_SCOPE)
		return NO_SCOPE;
	control->now.scopes[number].matched = matched;
	leave_by(control, spw_control__cursor_scope(control, number));
	return number;
}

void spw_control__scope_leave(struct control *control, uint32_t outer)
{
	uint32_t left;

	if (control->scope != control->stage_scope)
		spw_control__skipped_rest(control, control->scope);
	left = spw_control__recording_leave(control, outer);
	if (left != NO_SCOPE)
		leave_by(control, spw_control__cursor_scope_left(control, left));
}

/* ---- Tensors ---- */

/* Reading it takes as long as all else that an event does. */
void spw_control__hold_clock(struct control *control, bool hold)
{
	SPW_ASSERT(hold != control->is_held);
	control->is_held = hold;
	if (hold)
		control->held_ns = control->opts.clock_ns();
}

struct track spw_control__track(const struct control *control)
{
	return (struct track){.recorded = NO_TENSOR, .step = control->step};
}

void spw_control__saved(struct control *control, uint64_t len_bytes)
{
	control->keep_all_bytes += len_bytes;
}

static void take_place(struct control *control, struct recorded *recorded)
{
	struct recording *now = &control->now;

	recorded->place = now->scopes[recorded->scope].plannable;
	spw_control__skipped_offered(control, recorded);
	leave_by(control, spw_control__cursor_offer(control, recorded));
	now->scopes[recorded->scope].plannable++;
	now->scopes[recorded->scope].bytes += recorded->bytes;
	now->plannable++;
}

void spw_control__offered(struct control *control, struct track *track, uint32_t slot,
			  uint64_t len_bytes, enum spw_cache_hint hint)
{
	struct recorded *recorded, *shared = NULL;

	if (hint != SPW_HINT_INPUT && spw_control__may_plan(control, len_bytes))
		spw_control__skipped_missing(control, len_bytes);
	recorded = spw_control__recording_offer(control, track, slot, len_bytes, hint);
	if (hint != SPW_HINT_INPUT)
		spw_control__recording_saved(control);
	if (!recorded)
		return;
	if (hint == SPW_HINT_INPUT) {
		spw_control__recording_input(control, recorded);
		spw_control__cursor_input(control, recorded);
	} else if (recorded->plannable) {
		shared = spw_control__skipped_shared(control, track, recorded);
		if (shared)
			spw_control__cursor_shared(control, shared);
		else
			take_place(control, recorded);
	}
}

void spw_control__numbered(struct control *control, const struct track *track, uint64_t number)
{
	struct recorded *recorded = spw_control__recording_of(control, track);

	if (recorded)
		recorded->number = number;
}

bool spw_control__keeps(struct control *control, uint64_t number, uint64_t len_bytes,
			struct track *track, enum spw_cache_hint *hint)
{
	uint32_t which = spw_control__cursor_kept(control, number, len_bytes);
	const struct recorded *was;
	struct recorded *recorded;

	if (which == NO_TENSOR)
		return false;
	was = &control->signature->reference.tensors[which];
	*track = spw_control__track(control);
	*hint = (enum spw_cache_hint)was->hint;
	/* With this slot it is never read. */
	recorded = spw_control__recording_offer(control, track, GONE_SLOT, len_bytes, *hint);
	if (!recorded)
		return false;
	recorded->number = number;
	recorded->decided = was->decided;
	spw_control__recording_saved(control);
	take_place(control, recorded);
	SPW_ASSERT(recorded->matched == which);
	return true;
}

/* So far it was only the input of scopes that may be recomputed. */
static void saved_after_all(struct control *control, struct recorded *recorded)
{
	if (!recorded->plannable || control->stage != SPW_STAGE_FORWARD ||
	    control->scope == NO_SCOPE)
		return;
	recorded->only_input = false;
	recorded->scope = control->scope;
	take_place(control, recorded);
}

void spw_control__hinted(struct control *control, const struct track *track,
			 enum spw_cache_hint hint)
{
	struct recorded *recorded = spw_control__recording_of(control, track);

	if (hint != SPW_HINT_INPUT)
		spw_control__recording_saved(control);
	if (!recorded)
		return;
	if (hint == SPW_HINT_INPUT)
		spw_control__recording_input(control, recorded);
	else if (recorded->scope != control->scope)
		recorded->no_recompute = true;
	if (hint != SPW_HINT_INPUT && recorded->only_input)
		saved_after_all(control, recorded);
	if (hint == SPW_HINT_PIN || (hint == SPW_HINT_KEEP && recorded->hint != SPW_HINT_PIN))
		recorded->hint = (uint8_t)hint;
}

void spw_control__taken(struct control *control, const struct track *track)
{
	struct recorded *recorded = spw_control__recording_of(control, track);

	/* What a recompute takes is not a use by the step. */
	if (!recorded || control->recomputing)
		return;
	spw_control__skipped_taken(control, recorded);
	spw_control__recording_take(control, recorded);
	if (recorded->matched != NO_TENSOR && recorded->takes == 1)
		spw_control__cursor_progress(
			control,
			control->signature->reference.tensors[recorded->matched].planned_use_ns);
}

void spw_control__gone(struct control *control, uint64_t len_bytes)
{
	SPW_ASSERT(control->keep_all_bytes >= len_bytes);
	control->keep_all_bytes -= len_bytes;
	spw_control__profile_note(control);
}

void spw_control__released(struct control *control, const struct track *track, bool leased)
{
	struct recorded *recorded = spw_control__recording_of(control, track);

	if (!recorded)
		return;
	spw_control__recording_release(control, recorded);
	if (recorded->matched == NO_TENSOR)
		return;
	if (!leased)
		spw_control__cursor_progress(
			control, control->signature->reference.tensors[recorded->matched]
					 .planned_release_ns);
	control->slots[recorded->matched] = GONE_SLOT;
}

void spw_control__stored(struct control *control, const struct track *track, bool stored)
{
	struct recorded *recorded = spw_control__recording_of(control, track);

	if (recorded)
		recorded->stored = stored;
}

/* ---- Memory and time ---- */

void spw_control__memory_add(struct control *control, const struct track *track, uint64_t bytes)
{
	control->memory_bytes += bytes;
	if (control->memory_bytes > control->peak_bytes) {
		control->peak_bytes = control->memory_bytes;
		control->peak_writing_bytes =
			control->measure.flows[DIRECTION_WRITE].bytes_in_flight;
	}
	if (track->step != control->step)
		control->old_bytes += bytes;
	spw_control__profile_note(control);
}

void spw_control__memory_sub(struct control *control, const struct track *track, uint64_t bytes)
{
	SPW_ASSERT(control->memory_bytes >= bytes);
	control->memory_bytes -= bytes;
	spw_control__profile_note(control);
	if (track->step == control->step)
		return;
	SPW_ASSERT(control->old_bytes >= bytes); /* CONTROL-2 */
	control->old_bytes -= bytes;
}

uint64_t spw_control__wait_began(struct control *control)
{
	uint64_t now_ns = control->opts.clock_ns();

	if (control->waiting++ == 0)
		control->waiting_since_ns = now_ns;
	spw_control__recording_away(control, true, now_ns);
	return now_ns;
}

/*
 * Once a step stalls by more than its share, time is worth more than memory. But what waited for
 * copies out is not helped by what is read earlier.
 */
static void stall_noticed(struct control *control)
{
	uint64_t stalled_ns = spw_since_ns(control->out_ns, spw_control__stalled_ns(control));

	if (!spw_control__follows_plan(control) || control->stalled_now ||
	    control->opts.cache.mode == SPW_CACHE_BUDGET ||
	    (double)stalled_ns <
		    (double)control->signature->plan.result.stall_ns +
			    STALL_TOLERANCE * (double)control->signature->plan.result.wall_ns)
		return;
	control->stalled_now = true;
	control->opts.count->steps_hurried++;
}

uint64_t spw_control__wait_ended(struct control *control)
{
	uint64_t now_ns = control->opts.clock_ns();

	SPW_ASSERT(control->waiting > 0); /* CONTROL-1 */
	if (--control->waiting == 0)
		control->waited_ns += now_ns - control->waiting_since_ns;
	spw_control__recording_away(control, false, now_ns);
	stall_noticed(control);
	return now_ns;
}

/* The time that has passed was taken for compute: it stands still until it has been made up for. */
static void device_stalled(struct control *control, uint64_t ns, uint64_t out_ns)
{
	if (ns == 0)
		return;
	control->compute_ns_min = spw_control__recording_host_ns(control);
	control->waited_ns += ns;
	control->out_ns += out_ns;
	control->away_ns += ns;
	stall_noticed(control);
}

void spw_control__device(struct control *control, const struct spw_device_times *times)
{
	spw_control__measure_copied(&control->measure, DIRECTION_WRITE, times->bytes_out,
				    times->out_ns);
	spw_control__measure_copied(&control->measure, DIRECTION_READ, times->bytes_in,
				    times->in_ns);
	device_stalled(control, times->stall_ns, times->stall_out_ns);
}

void spw_control__host(struct control *control, uint64_t bytes)
{
	control->host_bytes = bytes;
}

uint64_t spw_control__mark(struct control *control)
{
	return spw_control__device_clock_mark(control, spw_control__recording_host_ns(control));
}

void spw_control__marked(struct control *control, uint64_t mark, uint64_t device_ns)
{
	spw_control__device_clock_marked(control, mark, device_ns);
}

void spw_control__recomputing(struct control *control, bool again)
{
	uint64_t now_ns = control->opts.clock_ns();

	SPW_ASSERT(again != control->recomputing);
	control->recomputing = again;
	if (again)
		control->recompute_since_ns = now_ns;
	else
		control->recompute_ns += now_ns - control->recompute_since_ns;
	spw_control__recording_away(control, again, now_ns);
}

uint64_t spw_control__step_ns(const struct control *control)
{
	return control->opts.clock_ns() - control->began_ns;
}

uint64_t spw_control__io_began(struct control *control, enum direction direction, uint64_t bytes)
{
	uint64_t now_ns = control->opts.clock_ns();

	spw_control__measure_began(&control->measure, direction, bytes, now_ns);
	return now_ns;
}

void spw_control__io_ended(struct control *control, enum direction direction, uint64_t bytes,
			   bool served, uint64_t began_ns)
{
	spw_control__measure_ended(&control->measure, direction, bytes, served, began_ns,
				   control->opts.clock_ns());
}

/* ---- Counters ---- */

void spw_control__stats(const struct control *control, struct spw_cache_stats *stats)
{
	const struct spw_plan_drives *drives = &control->measure.drives;
	const struct plan *plan = &control->signature->plan;
	const struct spw_plan_result *result = &plan->result;

	stats->write_bytes_per_second = drives->write_bytes_per_second;
	stats->read_bytes_per_second = drives->read_bytes_per_second;
	stats->mixed_bytes_per_second = drives->mixed_bytes_per_second;
	stats->drive_latency_ns = drives->latency_ns;
	stats->bus_out_bytes_per_second = drives->bus_out_bytes_per_second;
	stats->bus_in_bytes_per_second = drives->bus_in_bytes_per_second;
	stats->wear_bytes_per_day = control->opts.cache.wear_bytes_per_day;
	if (control->opts.cache.mode == SPW_CACHE_BUDGET)
		stats->budget_bytes = control->opts.cache.memory_bytes;
	if (!control->signature->planned)
		return;
	stats->plan_tensors = control->signature->reference.count;
	stats->plan_tensors_spilled = result->tensors_spilled;
	stats->plan_peak_bytes = result->peak_bytes;
	stats->plan_keep_all_bytes = result->peak_keep_all_bytes;
	stats->plan_stall_ns = result->stall_ns;
	stats->plan_wall_ns = result->wall_ns;
	stats->plan_bytes_written = result->bytes_written;
	stats->plan_bytes_read = result->bytes_read;
	stats->plan_bytes_forwarded = result->bytes_forwarded;
	stats->plan_memory_bytes = result->memory_bytes;
	stats->plan_bytes_written_max = plan->wear_step_bytes;
	stats->plan_scopes_again = result->scopes_again;
	stats->plan_again_ns = result->again_ns;
	stats->plan_tensors_host = result->tensors_host;
	stats->plan_bytes_host = result->bytes_host;
	stats->plan_caution_percent = (uint64_t)(100 / (1 + plan->time_share) + 0.5);
}
