/* SPDX-License-Identifier: MIT */
/*
 * plan/scopes.c - spw_plan_scopes(): plan what is kept, spilled and recomputed
 *
 * seed      Choose what to spill if nothing is recomputed and compute is not throttled
 *           (plan/choose.c). If unthrottled, this is the plan.
 * budget    From the seed, search (plan/seek.c) for the shortest step within the budget.
 * fastest   From the seed, bisect for the lowest memory limit for which the search finds a step
 *           within the slack. Each search begins with the best plan of the last.
 *
 * The search works on groups of tensors (plan/groups.c); its result is tried on the tensors, and
 * refined one tensor at a time.
 */
#include <spillway/plan.h>

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "plan/internal.h"
#include "util/util.h"

#define SLACK_DEFAULT 0.02
#define GROUPS        96u /* approximately */
/* Limits of planning time, without a clock: events simulated in a search, and in refining. */
#define SEARCH_EVENTS  400000u
#define HALVING_EVENTS (1u << 15)
#define REFINE_EVENTS  (1u << 15)
#define SPARE_EVENTS   (1u << 16)
#define MANY_GROUPS    1000u
#define TRIES_MIN      6u
#define HALVINGS       9u
#define GROUP_STEPS    4u
#define SLACK_MAX      100.0

void spw_plan_scopes_init(struct spw_plan_scopes *scopes, size_t size)
{
	const struct spw_plan_scopes defaults = {.size = sizeof(defaults), .slack = SLACK_DEFAULT};

	spw_opts_merge(scopes, size, &defaults, sizeof(defaults));
	memcpy(scopes, &size, sizeof(size));
}

/* ---- A search with its arrays ---- */

static int seek_open(struct plan_seek *seek, struct plan_recompute *recompute, void **memory)
{
	size_t tensors = (size_t)recompute->step->count + 1,
	       scopes = (size_t)recompute->scopes->count + 1;
	const struct plan_piece pieces[] = {
		{&seek->recompute_best, scopes},
		{&seek->spill_best, tensors},
		{&seek->recompute_trial, scopes},
		{&seek->spill_trial, tensors},
		{&seek->recompute_now, scopes},
		{&seek->spill_now, tensors},
		{&seek->order, scopes * sizeof(uint32_t)},
		{&seek->least_ns, scopes * sizeof(double)},
		{&seek->worth, scopes * sizeof(struct plan_worth)},
	};

	*memory = spw_plan__allocate(pieces, SPW_ARRAY_LEN(pieces));
	if (!*memory)
		return spw_error(-ENOMEM, "plan: no memory for the search");
	seek->recompute = recompute;
	seek->best_ns = INFINITY;
	seek->best.peak = INFINITY;
	return 0;
}

static uint32_t tries_of(const struct plan_recompute *recompute, uint32_t events)
{
	/* In long steps the rest of planning takes longer, too: they get a quarter of events. */
	uint32_t part = recompute->step->count > MANY_GROUPS ? 4 : 1;
	uint32_t tries = events / part / (recompute->base.event_count + 1);

	return tries > TRIES_MIN ? tries : TRIES_MIN;
}

/* ---- Planning ---- */

/* A plan, and the limit for which it was found. */
struct best {
	uint8_t *recompute, *spill;
	double limit, ns;
	struct plan_outcome outcome;
	bool fits;
};

struct planning {
	const struct spw_plan_drives *drives;
	const struct spw_plan_opts *opts;
	double longest_ns; /* SPW_PLAN_FASTEST */
	struct plan_recompute recompute, groups_recompute;
	struct plan_seek seek, groups_seek; /* of all tensors, and of their groups */
	struct plan_groups groups;
	struct best best, groups_best;
	uint8_t *spill; /* scratch */
	void *memory, *seek_memory, *groups_memory;
};

static void keep_best(struct best *best, const struct plan_seek *seek)
{
	(void)PLAN_HOLDS(seek->best_ns < INFINITY);
	memcpy(best->recompute, seek->recompute_best, seek->recompute->scopes->count);
	memcpy(best->spill, seek->spill_best, seek->recompute->step->count);
	best->limit = seek->best_limit;
	best->ns = seek->best_ns;
	best->outcome = seek->best;
	best->fits = seek->fits;
}

static bool in_time(const struct planning *planning, const struct plan_seek *seek)
{
	return seek->fits && seek->best_ns <= planning->longest_ns + PLAN_TOLERANCE_NS;
}

static void spill_members(struct planning *planning, const uint8_t *groups, uint8_t *spill)
{
	for (uint32_t i = 0; i < planning->recompute.step->count; i++)
		spill[i] = groups[planning->groups.group_of[i]];
}

/* Find the best plan without recomputation, with compute not throttled. */
static void choose_spills(struct planning *planning, double slack)
{
	struct plan_recompute *recompute = &planning->recompute;
	struct plan_seek *seek = &planning->seek;

	recompute->held.throttled = false;
	if (planning->opts->mode == SPW_PLAN_BUDGET) {
		spw_plan__seek_begin(seek, PLAN_GOAL_BYTES, (double)planning->opts->memory_bytes);
	} else {
		seek->enough_ns = recompute->compute_ns * (1 + slack);
		spw_plan__seek_begin(seek, PLAN_GOAL_PEAK, recompute->base.keep_all_peak);
	}
	spw_plan__choose(seek);
	recompute->held.throttled = !recompute->scopes->unthrottled;
	keep_best(&planning->best, seek);
}

static void plan_unthrottled(struct planning *planning)
{
	struct plan_seek *seek = &planning->seek;
	struct best *best = &planning->best;

	choose_spills(planning, planning->recompute.scopes->slack);
	if (best->fits)
		return;
	/*
	 * The budget is too small, so the lowest peak found replaces it. It was found with reads at
	 * their use; within that memory reads may be earlier.
	 */
	seek->limit = best->outcome.peak;
	if (spw_plan__seek_try(seek, best->recompute, best->spill))
		keep_best(best, seek);
	best->fits = false;
}

static void plan_budget(struct planning *planning)
{
	struct plan_seek *seek = &planning->seek, *of_groups = &planning->groups_seek;
	struct best *best = &planning->best;

	choose_spills(planning, 0);
	if (planning->recompute.base.keep_all_peak <= seek->limit)
		return; /* no step is shorter than one that keeps everything */
	of_groups->limit = seek->limit;
	spw_plan__seek_within(seek, seek->limit, best->recompute, best->spill);
	spw_plan__seek(of_groups, tries_of(&planning->groups_recompute, SEARCH_EVENTS));
	spill_members(planning, of_groups->spill_best, planning->spill);
	(void)spw_plan__seek_try(seek, of_groups->recompute_best, planning->spill);
	spw_plan__seek_refine(seek, tries_of(&planning->recompute, REFINE_EVENTS));
	seek->enough_ns = seek->best_ns;
	if (seek->fits)
		spw_plan__seek_spare(seek, tries_of(&planning->recompute, SPARE_EVENTS));
	keep_best(best, seek);
}

/* Bisect for the lowest limit for which a plan of the groups is in time. */
static void halve_limit(struct planning *planning)
{
	struct plan_seek *of_groups = &planning->groups_seek;
	struct best *best = &planning->groups_best;
	uint32_t tries = tries_of(&planning->groups_recompute, HALVING_EVENTS);
	double low = 0, high = best->limit;

	for (unsigned k = 0; k < HALVINGS; k++) {
		double middle = (low + high) / 2;

		spw_plan__seek_within(of_groups, middle, best->recompute, best->spill);
		spw_plan__seek(of_groups, tries);
		if (in_time(planning, of_groups)) {
			keep_best(best, of_groups);
			high = of_groups->best.peak;
			best->limit = high;
		} else {
			low = middle;
		}
	}
}

/* Find the lowest limit for which the groups' plan, applied to their tensors, is in time. */
static void try_groups(struct planning *planning)
{
	struct plan_seek *seek = &planning->seek;
	double low = planning->groups_best.limit, high = planning->best.limit;
	uint8_t *spill = planning->spill;

	spill_members(planning, planning->groups_best.spill, spill);
	for (unsigned k = 0; k < GROUP_STEPS; k++) {
		spw_plan__seek_within(seek, low + (high - low) * k / GROUP_STEPS,
				      planning->groups_best.recompute, spill);
		if (in_time(planning, seek)) {
			keep_best(&planning->best, seek);
			return;
		}
	}
}

/* Lower the limit in small steps, as long as changes of single tensors allow it. */
static void lower_limit(struct planning *planning)
{
	static const double steps[] = {0.1, 0.04, 0.02, 0.01};
	struct plan_seek *seek = &planning->seek;
	struct best *best = &planning->best;
	uint32_t tries =
		tries_of(&planning->recompute, REFINE_EVENTS) / (uint32_t)SPW_ARRAY_LEN(steps);

	for (unsigned k = 0; k < SPW_ARRAY_LEN(steps);) {
		spw_plan__seek_within(seek, best->outcome.peak * (1 - steps[k]), best->recompute,
				      best->spill);
		if (!in_time(planning, seek))
			spw_plan__seek_refine(seek, tries);
		if (in_time(planning, seek) && seek->best.peak < best->outcome.peak)
			keep_best(best, seek);
		else
			k++;
	}
	spw_plan__seek_within(seek, best->limit, best->recompute, best->spill);
	if (!in_time(planning, seek))
		return; /* only rounding can cause this */
	spw_plan__seek_spare(seek, tries_of(&planning->recompute, SPARE_EVENTS));
	keep_best(best, seek);
}

static void plan_fastest(struct planning *planning)
{
	struct plan_seek *seek = &planning->seek;
	struct best *best = &planning->best, *groups_best = &planning->groups_best;

	choose_spills(planning, 0);
	planning->longest_ns =
		planning->recompute.compute_ns * (1 + planning->recompute.scopes->slack);
	seek->enough_ns = planning->groups_seek.enough_ns = planning->longest_ns;
	spw_plan__seek_within(seek, best->limit, best->recompute, best->spill);
	if (!in_time(planning, seek)) /* keeping everything is always in time */
		spw_plan__seek_begin(seek, PLAN_GOAL_STEP, planning->recompute.base.keep_all_peak);
	keep_best(best, seek);
	groups_best->limit = best->limit;
	halve_limit(planning);
	if (groups_best->limit < best->limit)
		try_groups(planning);
	lower_limit(planning);
}

/* ---- Open and close ---- */

static void close_planning(struct planning *planning)
{
	free(planning->memory);
	free(planning->groups_memory);
	free(planning->seek_memory);
	if (planning->groups_recompute.memory)
		spw_plan__recompute_close(&planning->groups_recompute);
	spw_plan__groups_close(&planning->groups);
	spw_plan__recompute_close(&planning->recompute);
}

static int open_few(struct planning *planning)
{
	struct plan_groups *groups = &planning->groups;
	int rc = spw_plan__groups_open(groups, &planning->recompute, GROUPS);

	if (!rc)
		rc = spw_plan__recompute_open(&planning->groups_recompute, &groups->step,
					      planning->drives, &groups->scopes);
	return rc ? rc
		  : seek_open(&planning->groups_seek, &planning->groups_recompute,
			      &planning->groups_memory);
}

static int open_planning(struct planning *planning, const struct spw_plan_step *step,
			 const struct spw_plan_scopes *scopes)
{
	size_t tensors = (size_t)step->count + 1, count = (size_t)scopes->count + 1;
	const struct plan_piece pieces[] = {
		{&planning->best.recompute, count},
		{&planning->best.spill, tensors},
		{&planning->spill, tensors},
		{&planning->groups_best.recompute, count},
		{&planning->groups_best.spill, tensors},
	};
	double written_max = planning->opts->bytes_written_max > 0
				     ? (double)planning->opts->bytes_written_max
				     : INFINITY;
	int rc = spw_plan__recompute_open(&planning->recompute, step, planning->drives, scopes);

	if (rc)
		return rc;
	planning->memory = spw_plan__allocate(pieces, SPW_ARRAY_LEN(pieces));
	if (!planning->memory)
		rc = spw_error(-ENOMEM, "plan: no memory for %u tensors", step->count);
	if (!rc)
		rc = seek_open(&planning->seek, &planning->recompute, &planning->seek_memory);
	if (!rc && !scopes->unthrottled)
		rc = open_few(planning);
	planning->seek.written_max = planning->groups_seek.written_max = written_max;
	if (rc)
		close_planning(planning);
	return rc;
}

static bool is_same(const struct plan_outcome *one, const struct plan_outcome *other)
{
	return one->peak == other->peak && one->stall_ns == other->stall_ns &&
	       one->written == other->written && one->read == other->read;
}

static void set_choices(struct planning *planning, enum spw_plan_choice choices[],
			struct spw_plan_result *filled)
{
	struct plan_recompute *recompute = &planning->recompute;
	const struct best *best = &planning->best;
	struct plan_outcome outcome;

	spw_plan__host_assign(&recompute->base, best->spill);
	/* Where only spills are chosen, this would be a good part of the work. */
	if (!recompute->scopes->unthrottled) {
		spw_plan__recompute_set(recompute, best->recompute);
		spw_plan__recompute_simulate(recompute, best->spill, best->limit, NULL, NULL,
					     &outcome);
		(void)PLAN_HOLDS(is_same(&outcome, &best->outcome));
	}
	spw_plan__fill_result(filled, &recompute->base, recompute->compute_ns + recompute->again_ns,
			      &best->outcome, best->spill);
	for (uint32_t i = 0; i < recompute->step->count; i++) {
		choices[i] = best->spill[i] ? SPW_PLAN_SPILL : SPW_PLAN_KEEP;
		if (best->spill[i] && recompute->base.in_host[i])
			choices[i] = SPW_PLAN_HOST;
		if (spw_plan__recompute_gives(recompute, i))
			choices[i] = SPW_PLAN_AGAIN;
	}
	for (uint32_t s = 0; s < recompute->scopes->count; s++)
		filled->scopes_again += recompute->recompute[s];
	filled->again_ns = (uint64_t)recompute->again_ns;
}

/* ---- The calls ---- */

int spw_plan__check_scopes(const struct spw_plan_scopes *caller, struct spw_plan_scopes *scopes)
{
	spw_plan_scopes_init(scopes, sizeof(*scopes));
	if (!caller || caller->size < sizeof(caller->size))
		return spw_error(-EINVAL, "plan: scopes must be set up by spw_plan_scopes_init()");
	spw_opts_merge(scopes, sizeof(*scopes), caller, caller->size);
	if (!(scopes->slack >= 0 && scopes->slack <= SLACK_MAX))
		return spw_error(-EINVAL, "plan: slack must be from 0 to %g", SLACK_MAX);
	return 0;
}

static int plan_with(const struct spw_plan_step *step, const struct spw_plan_drives *drives,
		     const struct spw_plan_scopes *scopes, const struct spw_plan_opts *opts,
		     enum spw_plan_choice choices[], struct spw_plan_result *filled)
{
	struct planning planning = {.drives = drives, .opts = opts};
	int rc = open_planning(&planning, step, scopes);

	if (rc)
		return rc;
	if (scopes->unthrottled)
		plan_unthrottled(&planning);
	else if (opts->mode == SPW_PLAN_BUDGET)
		plan_budget(&planning);
	else
		plan_fastest(&planning);
	set_choices(&planning, choices, filled);
	filled->feasible = planning.best.fits;
	filled->limited = planning.seek.limited || planning.groups_seek.limited;
	/* A budget as given: the largest are not exact in a double. */
	filled->memory_bytes =
		opts->mode == SPW_PLAN_BUDGET && (filled->feasible || !scopes->unthrottled)
			? opts->memory_bytes
			: (uint64_t)planning.best.limit;
	close_planning(&planning);
	return spw_plan__check_whole();
}

/* By what the mode asks for. */
static bool is_better_plan(const struct spw_plan_opts *opts, const struct spw_plan_result *one,
			   const struct spw_plan_result *other)
{
	if (one->feasible != other->feasible)
		return one->feasible;
	if (opts->mode == SPW_PLAN_BUDGET && one->feasible && one->wall_ns != other->wall_ns)
		return one->wall_ns < other->wall_ns;
	if ((opts->mode == SPW_PLAN_FASTEST || !one->feasible) &&
	    one->peak_bytes != other->peak_bytes)
		return one->peak_bytes < other->peak_bytes;
	return one->bytes_written < other->bytes_written;
}

/*
 * Less host memory than may wait for the drives anyway: what waits there is forwarded, and may be
 * worth more than what stays. Such a plan is the same with host memory.
 */
static int plan_without_host(const struct spw_plan_step *step, const struct spw_plan_drives *drives,
			     const struct spw_plan_scopes *scopes, const struct spw_plan_opts *opts,
			     enum spw_plan_choice choices[], struct spw_plan_result *filled)
{
	enum spw_plan_choice *others = calloc(step->count + (size_t)1, sizeof(*others));
	struct spw_plan_drives without = *drives;
	struct spw_plan_result other = {0};
	int rc;

	if (!others)
		return spw_error(-ENOMEM, "plan: no memory for %u tensors", step->count);
	without.host_bytes = 0;
	rc = plan_with(step, &without, scopes, opts, others, &other);
	if (rc == 0 && is_better_plan(opts, &other, filled)) {
		*filled = other;
		memcpy(choices, others, step->count * sizeof(*choices));
	}
	free(others);
	return rc;
}

int spw_plan_scopes(const struct spw_plan_step *step, const struct spw_plan_drives *drives,
		    const struct spw_plan_scopes *caller, const struct spw_plan_opts *caller_opts,
		    enum spw_plan_choice choices[], struct spw_plan_result *result)
{
	struct spw_plan_result filled = {0};
	struct spw_plan_scopes scopes;
	struct spw_plan_opts opts;
	int rc = spw_plan__check_arguments(step, drives, choices, result);

	if (!rc)
		rc = spw_plan__check_opts(caller_opts, &opts);
	if (!rc)
		rc = spw_plan__check_scopes(caller, &scopes);
	if (!rc)
		rc = plan_with(step, drives, &scopes, &opts, choices, &filled);
	if (!rc && drives->host_bytes > 0 && drives->write_bytes_per_second > 0 &&
	    (drives->staging_bytes == 0 || drives->host_bytes <= drives->staging_bytes))
		rc = plan_without_host(step, drives, &scopes, &opts, choices, &filled);
	if (rc)
		return rc;
	spw_plan__set_result(result, &filled);
	return 0;
}

int spw_plan_scopes_simulate(const struct spw_plan_step *step, const struct spw_plan_drives *drives,
			     const struct spw_plan_scopes *caller, uint64_t memory_bytes,
			     const enum spw_plan_choice choices[],
			     const struct spw_plan_record *record, struct spw_plan_result *result)
{
	const struct spw_plan_record none = {0};
	const struct spw_plan_record *wanted = record ? record : &none;
	struct plan_profile profile = {.points = wanted->points, .points_max = wanted->points_max};
	struct plan_spans spans = {.spans = wanted->spans, .spans_max = wanted->spans_max};
	struct spw_plan_result filled = {0};
	struct plan_outcome outcome;
	struct spw_plan_scopes scopes;
	struct plan_recompute recompute;
	int rc = spw_plan__check_arguments(step, drives, choices, result);

	if (!rc)
		rc = spw_reserved_check(wanted->reserved, sizeof(wanted->reserved),
					"plan: a record");
	if (!rc)
		rc = spw_plan__check_scopes(caller, &scopes);
	if (!rc)
		rc = spw_plan__recompute_open(&recompute, step, drives, &scopes);
	if (rc)
		return rc;
	rc = spw_plan__recompute_choose(&recompute, choices, false);
	if (rc == 0) {
		recompute.held.spans = wanted->spans ? &spans : NULL;
		recompute.held.until_ns = scopes.hold_until_ns;
		recompute.held.throttled = !scopes.unthrottled;
		recompute.held.packed_ns = wanted->saved_ns;
		spw_plan__recompute_simulate(&recompute, recompute.base.spill, (double)memory_bytes,
					     NULL, wanted->points ? &profile : NULL, &outcome);
		spw_plan__fill_result(&filled, &recompute.base,
				      recompute.compute_ns + recompute.again_ns, &outcome,
				      recompute.base.spill);
		for (uint32_t s = 0; s < scopes.count; s++)
			filled.scopes_again += recompute.recompute[s];
		filled.again_ns = (uint64_t)recompute.again_ns;
		filled.feasible = outcome.peak <= (double)memory_bytes + PLAN_TOLERANCE_BYTES;
		filled.memory_bytes = memory_bytes;
		filled.points = (uint32_t)profile.count;
		filled.spans = (uint32_t)spans.count;
		rc = spw_plan__check_whole();
		if (rc == 0)
			spw_plan__set_result(result, &filled);
	}
	spw_plan__recompute_close(&recompute);
	return rc;
}
