/* SPDX-License-Identifier: MIT */
/*
 * tensor/adapt.c - the plan: made from the last step and the drives as they were, left when a step
 * is another, made anew
 *
 * A step is recorded (record.c) and the drives are measured (measure.c) while it runs. Between
 * steps the planner is asked if there is a reason to: the first recording; another shape of step; a
 * timeline, a bandwidth or a peak that is no longer what the plan counts on; a stall. Figures are
 * smoothed over steps as long as they change little; what changes much replaces what was.
 *
 * Caution. The planner leaves no time unused, and a step is never exactly like the last. So it is
 * given a part of the bandwidth only, a little less after a step that stalled, what it turned out
 * to be after another one soon, more again after a number of steps without a stall, and that number
 * grows each time that this was too much.
 *
 * A plan is carried out by the places of tensors: place for place each tensor has the size that it
 * had, or the step is left to the fixed rule, recorded, and planned for anew. What has been spilled
 * by then is read ahead by the fixed rule too, within the memory that the step has held already:
 * where sequences have ever other lengths, all steps are so.
 */
#include <errno.h>
#include <string.h>

#include "tensor/internal.h"
#include "plan/internal.h"

#define CAUTION_MAX     1.0
#define CAUTION_MIN     0.3
#define CAUTION_FACTOR  0.95
#define CALM_STEPS      20u
#define CALM_STEPS_MAX  1000u
#define STALL_SHARE     0.01 /* of a step's compute: more is a stall to be planned away */
#define STALLS_RECENT   8u   /* two stalls within so many steps are no accident */
#define TIMELINE_DRIFT  0.05
#define TIMELINE_CHANGE 0.2
#define BANDWIDTH_DRIFT 0.1
#define MIXED_DRIFT     0.2
#define PROBE_STEPS     8u
/* so many times nothing would come back in time; then, and ever more seldom, one is tried */
#define PROBE_BLIND   8u
#define HURRY_PARTS   4u /* one of so many of the memory saved may be used to make up for a stall */
#define RESERVE_PARTS 64u /* of a budget: less than one is not worth leaving out */
/* one part in so many of the memory planned may be exceeded, to keep reads going */
#define SLACK_SHARE 64u

void spw_adapt_open(struct adapt *adapt)
{
	adapt->caution = CAUTION_MAX;
	adapt->calm_needed = adapt->below_needed = CALM_STEPS;
	adapt->stalled_ago = STALLS_RECENT;
}

/* ---- In the step ---- */

bool spw_adapt_in_force(const struct spw_cache *cache)
{
	return cache->adapt.planned && !cache->adapt.left && cache->adapt.recording;
}

void spw_adapt_progress(struct spw_cache *cache, uint64_t basis_ns)
{
	struct adapt *adapt = &cache->adapt;

	if (!spw_adapt_in_force(cache) || basis_ns < adapt->progress_ns)
		return;
	adapt->progress_ns = basis_ns;
	adapt->progress_at_ns = spw_record_compute_ns(cache);
}

uint64_t spw_adapt_now_ns(const struct spw_cache *cache)
{
	return cache->adapt.progress_ns + spw_record_compute_ns(cache) -
	       cache->adapt.progress_at_ns;
}

bool spw_adapt_leave(struct spw_cache *cache, const char *what)
{
	struct adapt *adapt = &cache->adapt;

	if (!spw_adapt_in_force(cache))
		return false;
	if (spw_shape_switch(cache))
		return true;
	adapt->left = true;
	cache->count.plan_mismatches++;
	spw_cache_notice(cache, NOTICE_SHAPE,
			 "%s: this step follows the fixed rule, and the next is planned anew",
			 what);
	spw_window_begin(cache);
	return false;
}

void spw_adapt_scope(struct spw_cache *cache, uint32_t number)
{
	const struct adapt *adapt = &cache->adapt;
	const struct recorded_scope *now = &adapt->now.scopes[number],
				    *was = &adapt->basis.scopes[number];

	if (!spw_adapt_in_force(cache))
		return;
	if (number >= adapt->basis.scope_count || now->key != was->key ||
	    now->stage != was->stage || now->micro_batch != was->micro_batch)
		(void)spw_adapt_leave(
			cache, "other scopes or stages than in the step that was planned for");
	else
		spw_adapt_progress(cache, was->enter_ns);
}

void spw_adapt_scope_left(struct spw_cache *cache, uint32_t number)
{
	const struct adapt *adapt = &cache->adapt;

	if (spw_adapt_in_force(cache) &&
	    adapt->now.scopes[number].plannable < adapt->basis.scopes[number].plannable)
		(void)spw_adapt_leave(
			cache, "fewer tensors in a scope than in the step that was planned for");
}

/* What is matched already if another plan is followed from here on. */
static uint32_t match_or_leave(struct spw_cache *cache, const struct recorded *recorded,
			       const char *what)
{
	return spw_adapt_leave(cache, what) ? recorded->matched : NO_TENSOR;
}

uint32_t spw_adapt_match(struct spw_cache *cache, const struct recorded *recorded)
{
	struct adapt *adapt = &cache->adapt;
	const struct recorded_scope *was = &adapt->basis.scopes[recorded->scope];
	uint32_t which;

	if (!spw_adapt_in_force(cache))
		return NO_TENSOR;
	if (recorded->place >= was->plannable)
		return match_or_leave(
			cache, recorded,
			"more tensors in a scope than in the step that was planned for");
	which = adapt->basis.members[was->first + recorded->place];
	if (adapt->basis.tensors[which].bytes != recorded->bytes)
		return match_or_leave(
			cache, recorded,
			"tensors of other sizes than in the step that was planned for");
	adapt->matched++;
	spw_adapt_progress(cache, adapt->basis.tensors[which].pack_ns);
	return which;
}

bool spw_adapt_choice(const struct entry *entry, enum spw_plan_choice *choice)
{
	const struct adapt *adapt = &entry->cache->adapt;

	if (!spw_adapt_in_force(entry->cache) || entry->matched == NO_TENSOR)
		return false;
	*choice = entry->matched == adapt->probe ? SPW_PLAN_SPILL : adapt->choices[entry->matched];
	return true;
}

uint64_t spw_adapt_memory_bytes(const struct spw_cache *cache, bool late)
{
	const struct adapt *adapt = &cache->adapt;
	uint64_t bytes = adapt->result.memory_bytes, slack = 2 * cache->chunk_bytes * cache->drives;

	if (bytes < adapt->result.peak_bytes)
		bytes = adapt->result.peak_bytes; /* of a budget that cannot be met */
	if (cache->opts.mode == SPW_CACHE_BUDGET)
		return bytes;
	if (adapt->stalled_now && bytes < adapt->result.peak_keep_all_bytes)
		bytes += (adapt->result.peak_keep_all_bytes - bytes) / HURRY_PARTS;
	if (!late)
		return bytes;
	return bytes + (slack > bytes / SLACK_SHARE ? slack : bytes / SLACK_SHARE);
}

/* A take has waited. Once a step stalls by more than its share, time is worth more than memory. */
void spw_adapt_waited(struct spw_cache *cache)
{
	struct adapt *adapt = &cache->adapt;

	if (!spw_adapt_in_force(cache) || adapt->stalled_now ||
	    cache->opts.mode == SPW_CACHE_BUDGET ||
	    (double)adapt->waited_ns < STALL_SHARE * (double)adapt->result.wall_ns)
		return;
	adapt->stalled_now = true;
	cache->count.steps_hurried++;
}

/* ---- A step has ended ---- */

/* The most that the time until the end of any scope has changed, in parts of the whole. */
static double drift_of(const struct recording *recording, const struct recording *basis,
		       bool from_plan)
{
	double now = 0, was = 0, most = 0;

	for (uint32_t i = 0; i < recording->scope_count && i < basis->scope_count; i++) {
		now += (double)recording->scopes[i].compute_ns;
		was += (double)(from_plan ? basis->scopes[i].planned_ns
					  : basis->scopes[i].compute_ns);
		if (now - was > most || was - now > most)
			most = now > was ? now - was : was - now;
	}
	return was > 0 ? most / was : 0;
}

static uint64_t mix(uint64_t was, uint64_t now, bool replace)
{
	return replace ? now : was / 2 + now / 2;
}

static void merge_tensor(struct recorded *to, const struct recorded *from, bool replace)
{
	bool all = replace || (to->takes == 0) != (from->takes == 0);

	to->pack_ns = mix(to->pack_ns, from->pack_ns, all);
	to->use_ns = mix(to->use_ns, from->use_ns, all);
	to->release_ns = mix(to->release_ns, from->release_ns, all);
	to->takes = from->takes;
	to->hint = from->hint;
}

/*
 * What is not planned has no place. It holds memory all the same, and may be large: what the
 * backward stage saves. As long as the step has as many of it in the same order, it is known by
 * that.
 */
static void merge_unplanned(struct adapt *adapt, bool replace)
{
	struct recording *basis = &adapt->basis;
	uint32_t k = 0;

	for (uint32_t i = 0; i < adapt->now.count; i++) {
		const struct recorded *from = &adapt->now.tensors[i];

		if (from->plannable)
			continue;
		while (k < basis->count && basis->tensors[k].plannable)
			k++;
		if (k == basis->count)
			return;
		if (basis->tensors[k].scope == from->scope &&
		    basis->tensors[k].bytes == from->bytes)
			merge_tensor(&basis->tensors[k], from, replace);
		k++;
	}
}

static void merge(struct adapt *adapt)
{
	struct recording *basis = &adapt->basis, *now = &adapt->now;
	bool replace = drift_of(now, basis, false) > TIMELINE_CHANGE;

	for (uint32_t i = 0; i < now->scope_count && i < basis->scope_count; i++) {
		basis->scopes[i].enter_ns =
			mix(basis->scopes[i].enter_ns, now->scopes[i].enter_ns, replace);
		basis->scopes[i].compute_ns =
			mix(basis->scopes[i].compute_ns, now->scopes[i].compute_ns, replace);
	}
	for (uint32_t i = 0; i < now->count; i++)
		if (now->tensors[i].matched != NO_TENSOR)
			merge_tensor(&basis->tensors[now->tensors[i].matched], &now->tensors[i],
				     replace);
	merge_unplanned(adapt, replace);
	for (uint32_t i = 0; i < now->drains; i++)
		basis->drains_ns[i] = mix(basis->drains_ns[i], now->drains_ns[i],
					  replace || now->drains != basis->drains);
	basis->drains = now->drains;
	basis->forward_ns = mix(basis->forward_ns, now->forward_ns, replace);
	basis->backward_ns = mix(basis->backward_ns, now->backward_ns, replace);
}

/* What has been recorded is the basis of the next plan. */
static void replace_basis(struct adapt *adapt)
{
	struct recording basis = adapt->now;
	uint32_t first = 0;

	adapt->now = adapt->basis;
	for (uint32_t i = 0; i < basis.scope_count; i++) {
		basis.scopes[i].first = first;
		first += basis.scopes[i].plannable;
		basis.scopes[i].plannable = 0; /* counted again below */
	}
	for (uint32_t i = 0; i < basis.count; i++) {
		struct recorded_scope *scope = &basis.scopes[basis.tensors[i].scope];

		if (basis.tensors[i].plannable)
			basis.members[scope->first + scope->plannable++] = i;
	}
	adapt->basis = basis;
}

static bool differs(uint64_t now, uint64_t then, double share)
{
	double difference = now > then ? (double)(now - then) : (double)(then - now);

	return difference > share * (double)then;
}

static uint64_t mixed_of(const struct spw_plan_drives *drives)
{
	if (drives->mixed_bytes_per_second > 0)
		return drives->mixed_bytes_per_second;
	return drives->read_bytes_per_second < drives->write_bytes_per_second
		       ? drives->read_bytes_per_second
		       : drives->write_bytes_per_second;
}

/* That the drives take longer shows as a stall; that they take much less shows nowhere else. */
static bool latency_fell(const struct adapt *adapt, uint64_t now_ns)
{
	uint64_t then_ns = adapt->counted_on.latency_ns;

	return then_ns > now_ns &&
	       (double)(then_ns - now_ns) > STALL_SHARE * (double)adapt->result.wall_ns;
}

static void at_most(uint64_t *figure, uint64_t before)
{
	if (before > 0 && *figure > before)
		*figure = before;
}

/*
 * What the next plan counts on: what has been measured. Only, a step that has stalled is no proof
 * that the drives are faster than was thought: it may have read little at a time, and they let that
 * through as a burst.
 */
static struct spw_plan_drives believed_drives(const struct spw_cache *cache)
{
	const struct spw_plan_drives *then = &cache->adapt.counted_on;
	struct spw_plan_drives now = cache->measure.drives;

	if (cache->adapt.stalled_ago == 0) {
		at_most(&now.write_bytes_per_second, then->write_bytes_per_second);
		at_most(&now.read_bytes_per_second, then->read_bytes_per_second);
		at_most(&now.mixed_bytes_per_second, then->mixed_bytes_per_second);
	}
	return now;
}

static bool drives_drifted(const struct spw_cache *cache)
{
	const struct spw_plan_drives now = believed_drives(cache), *then = &cache->adapt.counted_on;

	return latency_fell(&cache->adapt, now.latency_ns) ||
	       differs(now.write_bytes_per_second, then->write_bytes_per_second, BANDWIDTH_DRIFT) ||
	       differs(now.read_bytes_per_second, then->read_bytes_per_second, BANDWIDTH_DRIFT) ||
	       differs(mixed_of(&now), mixed_of(then), MIXED_DRIFT);
}

static bool has_stalled(const struct spw_cache *cache)
{
	const struct adapt *adapt = &cache->adapt;

	return (double)adapt->waited_ns >
	       (double)adapt->result.stall_ns + STALL_SHARE * (double)cache->count.step_compute_ns;
}

/*
 * What part of the bandwidth that was counted on is, from now on. One stall may be an accident, or
 * what the new timeline or bandwidth explains. Of two within a few steps the second tells: the
 * reads of a backward pass were to take no longer than that, and took longer by the stall. On a
 * machine that is fast in one step and slow in the next each has its explanation, and a plan for
 * the one stalls in the other.
 */
static double less_after_a_stall(const struct spw_cache *cache, bool again)
{
	const struct adapt *adapt = &cache->adapt;
	double backward_ns = (double)adapt->now.backward_ns;
	double late_ns = (double)adapt->waited_ns - (double)adapt->result.stall_ns;
	double part =
		again && backward_ns > 0 ? backward_ns / (backward_ns + late_ns) : CAUTION_FACTOR;

	return part < CAUTION_FACTOR ? part : CAUTION_FACTOR;
}

/*
 * @again: another step stalled not long ago. Return: whether the plan is to be changed because of
 * it.
 */
static bool stall_seen(struct spw_cache *cache, bool explained, bool again)
{
	struct adapt *adapt = &cache->adapt;
	bool stalled = adapt->stalled_ago == 0;

	adapt->calm = stalled ? 0 : adapt->calm + 1;
	if (stalled && (!explained || again)) {
		if (adapt->caution_lowered && adapt->calm_needed < CALM_STEPS_MAX)
			adapt->calm_needed *= 2;
		adapt->caution_lowered = false;
		if (adapt->caution * CAUTION_FACTOR < CAUTION_MIN)
			return false;
		adapt->caution *= less_after_a_stall(cache, again);
		if (adapt->caution < CAUTION_MIN)
			adapt->caution = CAUTION_MIN;
		return true;
	}
	if (adapt->calm < adapt->calm_needed || adapt->caution >= CAUTION_MAX)
		return false;
	adapt->caution /= CAUTION_FACTOR;
	if (adapt->caution > CAUTION_MAX)
		adapt->caution = CAUTION_MAX;
	adapt->calm = 0;
	adapt->caution_lowered = true;
	return true;
}

/*
 * What is left out of the budget may not be needed any more: some steps hold memory that others do
 * not.
 */
static bool reserve_less(struct adapt *adapt, uint64_t budget)
{
	if (adapt->reserve_bytes == 0 || ++adapt->below < adapt->below_needed)
		return false;
	adapt->below = 0;
	adapt->reserve_lowered = true;
	adapt->reserve_bytes =
		adapt->reserve_bytes > budget / RESERVE_PARTS ? adapt->reserve_bytes / 2 : 0;
	return true;
}

/*
 * The peak was above the budget though the plan's is not: something is not as simulated. Leave that
 * much out.
 */
static bool peak_seen(struct spw_cache *cache)
{
	struct adapt *adapt = &cache->adapt;
	uint64_t budget = cache->opts.memory_bytes;

	if (cache->opts.mode != SPW_CACHE_BUDGET || adapt->switched)
		return false;
	if (!adapt->result.feasible || adapt->peak_bytes <= budget)
		return reserve_less(adapt, budget);
	adapt->below = 0;
	if (adapt->reserve_lowered && adapt->below_needed < CALM_STEPS_MAX)
		adapt->below_needed *= 2;
	adapt->reserve_lowered = false;
	if (adapt->reserve_bytes + (adapt->peak_bytes - budget) > budget / 2)
		return false;
	adapt->reserve_bytes += adapt->peak_bytes - budget;
	return true;
}

static enum plan_reason drifted(struct spw_cache *cache)
{
	struct adapt *adapt = &cache->adapt;
	enum plan_reason reason = PLAN_REASON_NONE;
	bool again = adapt->stalled_ago < STALLS_RECENT;

	merge(adapt);
	if (has_stalled(cache))
		adapt->stalled_ago = 0;
	else if (again)
		adapt->stalled_ago++;
	if (drives_drifted(cache))
		reason = PLAN_REASON_BANDWIDTH;
	else if (drift_of(&adapt->basis, &adapt->basis, true) > TIMELINE_DRIFT)
		reason = PLAN_REASON_TIMELINE;
	if (stall_seen(cache, reason != PLAN_REASON_NONE, again) && reason == PLAN_REASON_NONE)
		reason = PLAN_REASON_STALL;
	if (peak_seen(cache) && reason == PLAN_REASON_NONE)
		reason = PLAN_REASON_MEMORY;
	return cache->opts.mode == SPW_CACHE_POSITIONAL ? PLAN_REASON_NONE : reason;
}

static void count_step(struct spw_cache *cache)
{
	const struct adapt *adapt = &cache->adapt;

	cache->count.step_compute_ns = spw_record_compute_ns(cache);
	cache->count.step_stall_ns = adapt->waited_ns;
	cache->count.step_peak_bytes = adapt->peak_bytes;
	cache->count.step_forward_ns = adapt->now.forward_ns;
	cache->count.step_backward_ns = adapt->now.backward_ns;
}

/*
 * A backward pass that ended early, by an error or a loss that is no number: the step says nothing
 * of the next one. Two in a row are how steps are now.
 */
static bool breaks_off(struct adapt *adapt)
{
	bool before = adapt->broke_off;

	adapt->broke_off = false;
	for (uint32_t i = 0; i < adapt->now.count && !adapt->broke_off; i++) {
		const struct recorded *recorded = &adapt->now.tensors[i];

		adapt->broke_off = recorded->matched != NO_TENSOR && recorded->takes == 0 &&
				   adapt->basis.tensors[recorded->matched].takes > 0;
	}
	return adapt->broke_off && !before;
}

enum plan_reason spw_adapt_step_ended(struct spw_cache *cache)
{
	struct adapt *adapt = &cache->adapt;
	bool followed = spw_adapt_in_force(cache) && adapt->matched == adapt->basis.plannable;

	spw_record_end(cache);
	if (cache->count.steps > 0) /* before the first there was none */
		count_step(cache);
	spw_measure_step(&cache->measure);
	if (!followed)
		adapt->stalled_ago = STALLS_RECENT;
	/* Without a backward pass it was no training step, and says nothing of the next. */
	if (!adapt->records || adapt->now.takes == 0)
		return PLAN_REASON_NONE;
	if (followed) {
		cache->count.steps_planned++;
		spw_shape_ended(adapt);
		return breaks_off(adapt) ? PLAN_REASON_NONE : drifted(cache);
	}
	cache->count.steps_fixed++;
	if (adapt->planned && !adapt->left)
		cache->count.plan_mismatches++; /* tensors were missing at the end */
	if (adapt->now.is_short) {
		cache->count.recordings_short++;
		spw_cache_notice(cache, NOTICE_SHORT,
				 "a step of more than %u tensors or %u scopes is not planned: "
				 "raise tensors_max",
				 adapt->tensors_max, adapt->scopes_max);
		return PLAN_REASON_NONE;
	}
	if (spw_shape_known(cache)) {
		spw_shape_ended(adapt);
		return PLAN_REASON_NONE;
	}
	spw_shape_park(cache);
	spw_shape_ended(adapt);
	replace_basis(adapt);
	if (cache->measure.drives.write_bytes_per_second == 0)
		return PLAN_REASON_NONE;
	/* As its authors do: not from the first step, which warms up. */
	if (cache->opts.mode == SPW_CACHE_POSITIONAL && cache->count.steps < 2)
		return PLAN_REASON_NONE;
	return cache->count.plans == 0 ? PLAN_REASON_FIRST : PLAN_REASON_SHAPE;
}

/* ---- Planning ---- */

static struct spw_plan_step step_of(struct adapt *adapt, bool keep_hints)
{
	const struct recording *basis = &adapt->basis;

	for (uint32_t i = 0; i < basis->count; i++) {
		const struct recorded *recorded = &basis->tensors[i];

		adapt->tensors[i] = (struct spw_plan_tensor){
			.bytes = recorded->bytes,
			.pack_ns = recorded->pack_ns,
			.use_ns = recorded->use_ns,
			.release_ns = recorded->release_ns,
			.users = recorded->takes,
			.scope = recorded->scope,
			.must_keep = !recorded->plannable || recorded->hint == SPW_HINT_PIN ||
				     (keep_hints && recorded->hint == SPW_HINT_KEEP),
		};
	}
	return (struct spw_plan_step){.tensors = adapt->tensors,
				      .count = basis->count,
				      .forward_ns = basis->forward_ns,
				      .backward_ns = basis->backward_ns,
				      .calls_ns = basis->drains_ns,
				      .calls = basis->drains};
}

/*
 * What has been measured is how much longer a whole tensor takes than its bytes do at full
 * bandwidth. The planner adds the time of a chunk by itself, as that is when the last requests of a
 * tensor end that others follow.
 */
static uint64_t latency_of(const struct spw_plan_drives *drives)
{
	double both =
		(double)drives->write_bytes_per_second + (double)drives->read_bytes_per_second;
	double chunk_ns = both > 0 ? (double)drives->chunk_bytes * 2e9 / both : 0;

	return (double)drives->latency_ns > chunk_ns ? drives->latency_ns - (uint64_t)chunk_ns : 0;
}

static struct spw_plan_drives drives_of(const struct spw_cache *cache)
{
	struct spw_plan_drives drives = cache->adapt.counted_on;
	double caution = cache->opts.mode == SPW_CACHE_POSITIONAL ? 1 : cache->adapt.caution;

	if (drives.read_bytes_per_second == 0)
		/* all was forwarded so far */
		drives.read_bytes_per_second = drives.write_bytes_per_second;
	drives.write_bytes_per_second = (uint64_t)((double)drives.write_bytes_per_second * caution);
	drives.read_bytes_per_second = (uint64_t)((double)drives.read_bytes_per_second * caution);
	drives.mixed_bytes_per_second = (uint64_t)((double)drives.mixed_bytes_per_second * caution);
	drives.chunk_bytes = cache->chunk_bytes * cache->drives;
	drives.latency_ns = latency_of(&drives);
	drives.staging_bytes = cache->opts.staging_bytes;
	return drives;
}

static struct spw_plan_opts plan_opts_of(const struct spw_cache *cache)
{
	struct spw_plan_opts opts;

	spw_plan_opts_init(&opts, sizeof(opts));
	if (cache->opts.mode == SPW_CACHE_BUDGET)
		opts.mode = SPW_PLAN_BUDGET;
	else if (cache->opts.mode == SPW_CACHE_POSITIONAL)
		opts.mode = SPW_PLAN_POSITIONAL;
	opts.memory_bytes = cache->opts.memory_bytes - cache->adapt.reserve_bytes;
	return opts;
}

/* The caller wants these spilled. */
static int force_spills(struct adapt *adapt, const struct spw_plan_step *step,
			const struct spw_plan_drives *drives)
{
	uint64_t memory_bytes = adapt->result.memory_bytes;
	bool forced = false;

	for (uint32_t i = 0; i < step->count; i++)
		if (adapt->basis.tensors[i].hint == SPW_HINT_SPILL &&
		    adapt->choices[i] == SPW_PLAN_KEEP && !step->tensors[i].must_keep) {
			adapt->choices[i] = SPW_PLAN_SPILL;
			forced = true;
		}
	if (!forced)
		return 0;
	return spw_plan_simulate(step, drives, memory_bytes, adapt->choices, NULL, 0,
				 &adapt->result);
}

/* The mean time between two tensors packed or used. */
static uint64_t lead_of(const struct spw_plan_step *step)
{
	uint64_t last_ns = 0;

	for (uint32_t i = 0; i < step->count; i++)
		if (step->tensors[i].users > 0 && step->tensors[i].use_ns > last_ns)
			last_ns = step->tensors[i].use_ns;
	return step->count > 0 ? last_ns / (2 * (uint64_t)step->count) : 0;
}

int spw_adapt_plan(struct spw_cache *cache)
{
	struct adapt *adapt = &cache->adapt;
	struct spw_plan_opts opts = plan_opts_of(cache);
	struct spw_plan_step step = step_of(adapt, true);
	struct plan_schedule reads = {.from_ns = adapt->read_from_ns, .order = adapt->use_order};
	struct spw_plan_drives drives;
	int rc;

	adapt->probe = NO_TENSOR; /* of the plan before: what is read from now on is this one's */
	adapt->counted_on = believed_drives(cache);
	drives = drives_of(cache);
	adapt->result = (struct spw_plan_result){.size = sizeof(adapt->result)};
	rc = spw_plan(&step, &drives, &opts, adapt->choices, &adapt->result);
	if (rc == 0 && !adapt->result.feasible) {
		step = step_of(adapt, false);
		rc = spw_plan(&step, &drives, &opts, adapt->choices, &adapt->result);
	}
	if (rc == 0)
		rc = force_spills(adapt, &step, &drives);
	if (rc == 0)
		rc = spw_planner_read_times(&step, &drives, adapt->result.memory_bytes,
					    adapt->choices, &reads);
	adapt->use_count = reads.count;
	adapt->lead_ns = lead_of(&step);
	return rc;
}

void spw_adapt_planned(struct spw_cache *cache, enum plan_reason reason, int rc, uint64_t cost_ns)
{
	struct spw_cache_stats *count = &cache->count;
	struct adapt *adapt = &cache->adapt;

	count->plan_cost_ns = cost_ns;
	if (rc) {
		count->plans_failed++;
		spw_cache_notice(cache, NOTICE_PLAN,
				 "no plan for the next step, it follows the fixed rule: %s",
				 spw_last_error());
		return;
	}
	count->plans++;
	count->plans_shape += reason == PLAN_REASON_SHAPE;
	count->plans_timeline += reason == PLAN_REASON_TIMELINE;
	count->plans_bandwidth += reason == PLAN_REASON_BANDWIDTH;
	count->plans_stall += reason == PLAN_REASON_STALL;
	count->plans_memory += reason == PLAN_REASON_MEMORY;
	if (!adapt->result.feasible && cache->opts.mode == SPW_CACHE_BUDGET) {
		count->plans_failed++;
		spw_cache_notice(cache, NOTICE_PLAN,
				 "a budget of %llu bytes cannot be met: planned for the lowest "
				 "peak found, %llu bytes",
				 (unsigned long long)cache->opts.memory_bytes,
				 (unsigned long long)adapt->result.peak_bytes);
	}
	for (uint32_t i = 0; i < adapt->basis.scope_count; i++)
		adapt->basis.scopes[i].planned_ns = adapt->basis.scopes[i].compute_ns;
	adapt->planned = true;
	SPW_PROBE(plan, cache, reason, adapt->result.tensors_spilled, cost_ns);
}

/* ---- A step begins ---- */

/*
 * What comes back in time if the drives are as they were the last time known, or stalls the step by
 * next to nothing. @blind: they may be better than they were: then the smallest tensor of all.
 */
static uint32_t probe_of(const struct spw_cache *cache, bool blind)
{
	const struct adapt *adapt = &cache->adapt;
	const struct spw_plan_drives drives = drives_of(cache);
	uint32_t best = NO_TENSOR;

	for (uint32_t i = 0; i < adapt->basis.count; i++) {
		const struct recorded *recorded = &adapt->basis.tensors[i];
		double there_ns = (double)recorded->bytes / ((double)mixed_of(&drives) / 1e9) +
				  (double)drives.latency_ns;
		double gap_ns = (double)(recorded->use_ns - recorded->pack_ns);

		if (!recorded->plannable || recorded->takes == 0 ||
		    recorded->hint != SPW_HINT_NONE ||
		    (!blind &&
		     2 * there_ns > gap_ns + STALL_SHARE / 2 * (double)adapt->result.wall_ns))
			continue;
		if (best == NO_TENSOR || recorded->bytes < adapt->basis.tensors[best].bytes)
			best = i;
	}
	return best;
}

/*
 * Of a plan that spills nothing, so many steps in a row. Return: the tensor to try the drives with,
 * or NO_TENSOR.
 */
static uint32_t probe_now(const struct spw_cache *cache, uint64_t steps)
{
	uint64_t probes = steps / PROBE_STEPS;
	uint32_t probe;

	if (steps % PROBE_STEPS > 0)
		return NO_TENSOR;
	probe = probe_of(cache, false);
	if (probe == NO_TENSOR && probes >= PROBE_BLIND && (probes & (probes - 1)) == 0)
		probe = probe_of(cache, true);
	return probe;
}

/* A plan that spills nothing learns nothing of the drives: try them once in a while. */
static void probe(struct spw_cache *cache)
{
	struct adapt *adapt = &cache->adapt;
	const struct recorded *recorded;

	if (adapt->probe != NO_TENSOR) {
		adapt->probe = NO_TENSOR;
		adapt->use_count = 0;
	}
	if (adapt->result.tensors_spilled > 0)
		adapt->unmeasured = 0;
	if (cache->opts.mode != SPW_CACHE_FASTEST || adapt->result.tensors_spilled > 0)
		return;
	adapt->probe = probe_now(cache, ++adapt->unmeasured);
	if (adapt->probe == NO_TENSOR)
		return;
	recorded = &adapt->basis.tensors[adapt->probe];
	cache->count.plan_probes++;
	adapt->use_order[0] = adapt->probe;
	adapt->use_count = 1;
	adapt->read_from_ns[adapt->probe] = recorded->pack_ns / 2 + recorded->use_ns / 2;
}

void spw_adapt_follow(struct spw_cache *cache)
{
	struct adapt *adapt = &cache->adapt;

	adapt->left = adapt->stalled_now = false;
	adapt->matched = adapt->use_next = 0;
	adapt->progress_ns = adapt->progress_at_ns = 0;
	for (uint32_t i = 0; adapt->planned && i < adapt->basis.count; i++) {
		adapt->slots[i] = NO_TENSOR;
		adapt->gone[i] = false;
	}
}

void spw_adapt_step_began(struct spw_cache *cache)
{
	spw_shape_predict(cache);
	cache->adapt.switched = false;
	spw_adapt_follow(cache);
	if (cache->adapt.planned)
		probe(cache);
}

/* ---- Counters ---- */

void spw_adapt_stats(const struct spw_cache *cache, struct spw_cache_stats *stats)
{
	const struct spw_plan_drives *drives = &cache->measure.drives;
	const struct spw_plan_result *result = &cache->adapt.result;

	stats->write_bytes_per_second = drives->write_bytes_per_second;
	stats->read_bytes_per_second = drives->read_bytes_per_second;
	stats->mixed_bytes_per_second = drives->mixed_bytes_per_second;
	stats->drive_latency_ns = drives->latency_ns;
	if (!cache->adapt.planned)
		return;
	stats->plan_tensors = cache->adapt.basis.count;
	stats->plan_tensors_spilled = result->tensors_spilled;
	stats->plan_peak_bytes = result->peak_bytes;
	stats->plan_keep_all_bytes = result->peak_keep_all_bytes;
	stats->plan_stall_ns = result->stall_ns;
	stats->plan_wall_ns = result->wall_ns;
	stats->plan_bytes_written = result->bytes_written;
	stats->plan_bytes_read = result->bytes_read;
	stats->plan_bytes_forwarded = result->bytes_forwarded;
	stats->plan_memory_bytes = result->memory_bytes;
	stats->plan_caution_percent = (uint64_t)(cache->adapt.caution * 100 + 0.5);
}
