/* SPDX-License-Identifier: MIT */
/*
 * plan/choose.c - who is spilled: from all that could be down to who is needed, then small changes
 */
#include "plan/internal.h"

#include <math.h>
#include <string.h>

#include "util/util.h"

/*
 * The small changes that are tried after the greedy choice cost a simulation each. This many
 * tensors may be simulated for them (a simulation of few costs as much as one of PLAN_TENSORS_MIN):
 * a bound on time that needs no clock.
 */
#define PLAN_TRIES_MAX   (1u << 15)
#define PLAN_TENSORS_MIN 16u
/*
 * As many as a tensor and the calls around it have. Of a step with more calls than that it is the
 * events that count.
 */
#define EVENTS_PER_TENSOR 8u

/* The same for the greedy choices, which cost two simulations each. */
#define GREEDY_TENSORS_MAX 20000u
#define GREEDY_TRIES_MIN   3u
#define MANY_TENSORS       1000u
#define ALL_TENSORS_MAX    12u        /* that may be spilled: all choices are tried, */
#define ALL_WORK_MAX       (1u << 20) /* if they do not cost more than this */

enum goal {
	GOAL_FASTEST,
	GOAL_BUDGET,
};

struct search {
	struct plan_work *work;
	enum goal goal;
	double memory; /* of the budget */
	struct plan_found *best;
	uint8_t *trial;
	uint32_t tries_left;
};

static double larger(double one, double other)
{
	return one > other ? one : other;
}

/* Of one simulation, in tensors. */
static uint32_t cost_of(const struct plan_work *work)
{
	uint32_t by_events = work->event_count / EVENTS_PER_TENSOR;
	uint32_t cost = by_events > work->count ? by_events : work->count;

	return cost > PLAN_TENSORS_MIN ? cost : PLAN_TENSORS_MIN;
}

/* ---- Better and worse ---- */

static bool stalls(const struct plan_outcome *outcome)
{
	return outcome->forever || outcome->stall_ns >= PLAN_TOLERANCE_NS;
}

static bool fewer_written(const struct plan_outcome *one, const struct plan_outcome *other)
{
	if (one->written != other->written)
		return one->written < other->written;
	return one->stall_ns < other->stall_ns;
}

static bool is_better(const struct search *search, const struct plan_outcome *outcome,
		      bool feasible)
{
	const struct plan_found *best = search->best;

	if (feasible != best->feasible)
		return feasible;
	if (outcome->forever != best->outcome.forever)
		return !outcome->forever;
	if (search->goal == GOAL_BUDGET && feasible)
		return fewer_written(outcome, &best->outcome);
	if (outcome->peak != best->outcome.peak)
		return outcome->peak < best->outcome.peak;
	return fewer_written(outcome, &best->outcome);
}

/* Beyond which nothing can be better than the best so far. */
static struct plan_bounds bounds_of(const struct search *search)
{
	const struct plan_found *best = search->best;
	struct plan_bounds bounds = {.peak = INFINITY, .written = INFINITY, .stall_ns = INFINITY};

	if (search->goal == GOAL_FASTEST) {
		bounds.peak = best->outcome.peak;
		bounds.stall_ns = PLAN_TOLERANCE_NS;
	} else if (best->feasible) {
		bounds.peak = search->memory;
		bounds.written = best->outcome.written;
	} else if (!best->outcome.forever) {
		bounds.peak = larger(search->memory, best->outcome.peak);
	}
	return bounds;
}

/* Simulate the trial; it becomes the best if it is. Return: whether. */
static bool consider(struct search *search, double memory)
{
	struct plan_bounds bounds = bounds_of(search);
	struct plan_outcome outcome;
	bool feasible;

	spw_planner_simulate(search->work, search->trial, memory, &bounds, NULL, &outcome);
	if (outcome.given_up)
		return false;
	feasible = search->goal == GOAL_BUDGET ? outcome.peak <= search->memory && !outcome.forever
					       : !stalls(&outcome);
	if (!is_better(search, &outcome, feasible))
		return false;
	search->best->feasible = feasible;
	search->best->outcome = outcome;
	search->best->memory = memory;
	memcpy(search->best->spill, search->trial, search->work->count);
	return true;
}

static bool consider_trial(struct search *search, const struct plan_rates *rates)
{
	if (search->goal == GOAL_BUDGET)
		return consider(search, search->memory);
	spw_planner_forecast_choose(search->work, rates, PLAN_READS_IN_TIME, search->trial);
	return consider(search, search->work->forecast.peak);
}

/* ---- Order: who is worth the least ---- */

/*
 * Benefit per byte: how long a tensor could be out of memory while more than @limit is in use if
 * nothing is spilled.
 */
static void order_by_benefit(struct plan_work *work, double limit)
{
	double *critical_ns = work->tree; /* before the tensor was packed */
	double bytes = 0, since_ns = 0, sum_ns = 0;

	memcpy(work->order, work->by_gap, work->count * sizeof(*work->order));
	for (uint32_t k = 0; k < work->event_count; k++) {
		const struct plan_event *event = &work->events[k];
		uint32_t i = event->tensor;

		if (bytes > limit)
			sum_ns += event->ns - since_ns;
		since_ns = event->ns;
		if (event->kind == PLAN_CALL)
			continue;
		if (event->kind == PLAN_PACK) {
			critical_ns[i] = sum_ns;
			bytes += work->bytes[i];
		} else if (event->kind == PLAN_USE || !work->used[i]) {
			critical_ns[i] = sum_ns - critical_ns[i];
		}
		if (event->kind == PLAN_RELEASE)
			bytes -= work->bytes[i];
	}
	for (uint32_t k = 0; k < work->count; k++)
		work->keys[k] = (uint64_t)critical_ns[work->order[k]];
	spw_planner_sort(work->keys, work->order, work->keys_other, work->order_other, work->count);
}

static void order_by_size(struct plan_work *work)
{
	for (uint32_t i = 0; i < work->count; i++) {
		work->order[i] = i;
		work->keys[i] = UINT64_MAX - (uint64_t)work->bytes[i];
	}
	spw_planner_sort(work->keys, work->order, work->keys_other, work->order_other, work->count);
}

/*
 * ---- The memory over time as a tree: the highest point of a range, and adding to all points of
 * one ----
 */

/*
 * A leaf is a block of points: their bytes in the forecast do not count what was added to the block
 * as a whole, which is in tree_added. work->tree[1] is the root; a node's value counts what was
 * added to it, not what was added above it.
 */
#define BLOCK_POINTS 8u

static uint32_t leaves_of(const struct plan_work *work)
{
	return (work->forecast.points + BLOCK_POINTS - 1) / BLOCK_POINTS;
}

static double highest_of(const struct plan_work *work, uint32_t from, uint32_t to)
{
	const double *bytes = work->forecast.point_bytes;
	double one = -PLAN_NEVER_NS, other = one;

	for (; from + 1 < to; from += 2) {
		one = larger(one, bytes[from]);
		other = larger(other, bytes[from + 1]);
	}
	return larger(other, from < to ? larger(one, bytes[from]) : one);
}

static double highest_of_block(const struct plan_work *work, uint32_t block)
{
	uint32_t from = block * BLOCK_POINTS, left = work->forecast.points - from;

	return highest_of(work, from, from + (left < BLOCK_POINTS ? left : BLOCK_POINTS));
}

static void tree_build(struct plan_work *work)
{
	uint32_t leaves = leaves_of(work);

	for (uint32_t k = 0; k < leaves; k++)
		work->tree[leaves + k] = highest_of_block(work, k);
	for (uint32_t k = leaves; k-- > 1;)
		work->tree[k] = larger(work->tree[2 * k], work->tree[2 * k + 1]);
	memset(work->tree_added, 0, 2 * (size_t)leaves * sizeof(*work->tree_added));
}

static void tree_update(struct plan_work *work, uint32_t node)
{
	work->tree[node] =
		larger(work->tree[2 * node], work->tree[2 * node + 1]) + work->tree_added[node];
}

/* What is above either of two leaves; the larger number is never above the other. */
static void tree_update_above(struct plan_work *work, uint32_t one, uint32_t other)
{
	one /= 2;
	other /= 2;
	while (one != other) {
		uint32_t *lower = one > other ? &one : &other;

		tree_update(work, *lower);
		*lower /= 2;
	}
	for (; one >= 1; one /= 2)
		tree_update(work, one);
}

/* Points [from, to) of one block. */
static void add_in_block(struct plan_work *work, uint32_t leaves, uint32_t from, uint32_t to,
			 double bytes)
{
	uint32_t block = from / BLOCK_POINTS;

	for (uint32_t k = from; k < to; k++)
		work->forecast.point_bytes[k] += bytes;
	work->tree[leaves + block] =
		highest_of_block(work, block) + work->tree_added[leaves + block];
}

/* Points [from, to), of which there is at least one. */
static void tree_add(struct plan_work *work, uint32_t from, uint32_t to, double bytes)
{
	uint32_t leaves = leaves_of(work), first = from / BLOCK_POINTS,
		 last = (to - 1) / BLOCK_POINTS;
	const double added[2] = {0, bytes}; /* without a branch that no processor can predict */

	if (first == last) {
		add_in_block(work, leaves, from, to, bytes);
		tree_update_above(work, leaves + first, leaves + first);
		return;
	}
	add_in_block(work, leaves, from, (first + 1) * BLOCK_POINTS, bytes);
	add_in_block(work, leaves, last * BLOCK_POINTS, to, bytes);
	for (uint32_t l = leaves + first + 1, r = leaves + last; l < r; l = (l + 1) / 2, r /= 2) {
		work->tree[l] += added[l & 1];
		work->tree_added[l] += added[l & 1];
		work->tree[r & ~1u] += added[r & 1];
		work->tree_added[r & ~1u] += added[r & 1];
	}
	tree_update_above(work, leaves + first, leaves + last);
}

/* What was added to @node and above it. */
static double tree_added_from(const struct plan_work *work, uint32_t node)
{
	double sum = 0;

	for (; node >= 1; node /= 2)
		sum += work->tree_added[node];
	return sum;
}

/*
 * The highest of the points [from, to), of which there is at least one. The nodes gathered from the
 * left end all lie below the one left of l, those from the right end below r: what was added there
 * counts for all of them.
 */
static double tree_highest(const struct plan_work *work, uint32_t from, uint32_t to)
{
	static const double skipped[2] = {-PLAN_NEVER_NS, 0};
	uint32_t leaves = leaves_of(work), first = from / BLOCK_POINTS,
		 last = (to - 1) / BLOCK_POINTS;
	uint32_t l = leaves + first + 1, r = leaves + last;
	double left, right;

	if (first == last)
		return highest_of(work, from, to) + tree_added_from(work, leaves + first);
	left = highest_of(work, from, (first + 1) * BLOCK_POINTS) +
	       work->tree_added[leaves + first];
	right = highest_of(work, last * BLOCK_POINTS, to) + work->tree_added[leaves + last];
	while (l < r) {
		left = larger(left, work->tree[l] + skipped[l & 1]);
		right = larger(right, work->tree[r & ~1u] + skipped[r & 1]);
		l = (l + 1) / 2;
		r /= 2;
		left += work->tree_added[l - 1];
		right += work->tree_added[r];
	}
	return larger(left + tree_added_from(work, (l - 1) / 2),
		      right + tree_added_from(work, r / 2));
}

static uint32_t highest_point(const struct plan_forecast *forecast)
{
	uint32_t highest = 0;

	for (uint32_t k = 1; k < forecast->points; k++)
		if (forecast->point_bytes[k] > forecast->point_bytes[highest])
			highest = k;
	return highest;
}

/*
 * Keep, in work->order, whoever the peak does not need spilled. Cautious: that the others'
 * transfers gain from it is not counted, so going through them again may find more. Return: whether
 * somebody was.
 */
static bool drop_needless(struct plan_work *work, uint8_t *spill, double limit)
{
	const struct plan_forecast *forecast = &work->forecast;
	uint32_t highest = highest_point(forecast);
	double at_highest = forecast->points > 0 ? forecast->point_bytes[highest] : 0;
	bool dropped = false;

	tree_build(work);
	for (uint32_t k = 0; k < work->count; k++) {
		uint32_t i = work->order[k], from = forecast->point_out[i],
			 to = forecast->point_in[i];
		bool at_peak;

		if (!spill[i] || !forecast->out[i])
			continue;
		at_peak = from <= highest && highest < to;
		if (at_peak && at_highest + work->bytes[i] > limit)
			continue; /* most cases, without the tree */
		if (from < to && tree_highest(work, from, to) + work->bytes[i] > limit)
			continue;
		if (from < to)
			tree_add(work, from, to, work->bytes[i]);
		if (at_peak)
			at_highest += work->bytes[i];
		spill[i] = 0;
		dropped = true;
	}
	return dropped;
}

/* ---- Greedy ---- */

/*
 * Where to begin, and how much of the sharing of the drives to expect: more expected is safer, less
 * is less memory.
 */
struct start {
	double shared; /* 0: transfers as if alone, 1: as if always both ways */
	/*
	 * share of the tensors kept from the beginning: those that could be out of memory shortest
	 */
	double kept;
};

/*
 * The first is right if nothing is in anybody's way. If more work may be done, all of a grid
 * follow.
 */
static const struct start starts[] = {{0, 0},    {0.5, 0},     {0, 1. / 16},
				      {0.25, 0}, {0, 5. / 16}, {1, 0}};

#define START_SHARED_STEPS 9u /* 0, 1/8 .. 1 */
#define START_KEPT_STEPS   8u /* 0, 1/16 .. 7/16 */
#define STARTS_MAX         (SPW_ARRAY_LEN(starts) + START_SHARED_STEPS * START_KEPT_STEPS)

static struct start start_of(uint32_t k)
{
	if (k < SPW_ARRAY_LEN(starts))
		return starts[k];
	uint32_t shared = (k - (uint32_t)SPW_ARRAY_LEN(starts)) % START_SHARED_STEPS;
	uint32_t kept = (k - (uint32_t)SPW_ARRAY_LEN(starts)) / START_SHARED_STEPS;

	return (struct start){.shared = shared / 8., .kept = kept / 16.};
}

static struct plan_rates rates_of(const struct search *search, double shared)
{
	const struct plan_work *work = search->work;
	struct plan_rates rates = work->alone;
	double half = work->mixed / 2;

	if (rates.write > half)
		rates.write += (half - rates.write) * shared;
	if (rates.read > half)
		rates.read += (half - rates.read) * shared;
	return rates;
}

static void start_from(struct search *search, const struct start *start)
{
	const struct plan_work *work = search->work;
	uint32_t kept = (uint32_t)((double)work->count * start->kept);

	memcpy(search->trial, work->eligible, work->count);
	for (uint32_t k = 0; k < kept; k++)
		search->trial[work->by_gap[k]] = 0;
}

/*
 * From the trial, keep whoever @limit does not need spilled, in work->order, until nobody is found.
 */
static void drop_all_needless(struct search *search, const struct plan_rates *rates,
			      enum plan_reads reads, double limit)
{
	unsigned rounds = search->work->count > MANY_TENSORS ? 1 : 8;

	while (rounds-- > 0 && drop_needless(search->work, search->trial, limit))
		spw_planner_forecast_choose(search->work, rates, reads, search->trial);
}

/* Return: whether the simulation said what the forecast did. */
static bool greedy(struct search *search, uint32_t start_number, bool by_size)
{
	struct start start = start_of(start_number);
	struct plan_rates rates = rates_of(search, start.shared);
	enum plan_reads reads =
		search->goal == GOAL_BUDGET ? PLAN_READS_ON_DEMAND : PLAN_READS_IN_TIME;
	struct plan_work *work = search->work;
	struct plan_bounds bounds = bounds_of(search);
	double limit;

	start_from(search, &start);
	spw_planner_forecast_choose(work, &rates, reads, search->trial);
	limit = work->forecast.peak;
	if (search->goal == GOAL_BUDGET && limit < search->memory)
		limit = search->memory;
	/* Of many tensors none is large enough for what follows to lower the peak. */
	if (work->count > MANY_TENSORS && limit > bounds.peak)
		return false;
	if (by_size)
		order_by_size(work);
	else
		order_by_benefit(work, limit);
	drop_all_needless(search, &rates, reads, limit);
	/* Sharing the drives, and stalls, only let memory be given back later. */
	if (search->goal == GOAL_FASTEST && work->forecast.peak > bounds.peak)
		return false;
	return consider(search,
			search->goal == GOAL_BUDGET ? search->memory : work->forecast.peak) &&
	       search->best->feasible && search->best->outcome.peak <= limit;
}

/*
 * Whether uses are in the reverse order of packing: then nobody who is spilled in addition is in
 * another's way.
 */
static bool is_last_in_first_out(const struct plan_work *work)
{
	for (uint32_t k = 1; k < work->count; k++)
		if (work->wanted_ns[work->by_pack[k - 1]] < work->wanted_ns[work->by_pack[k]])
			return false;
	return true;
}

static void try_starts(struct search *search)
{
	uint32_t count = search->work->count + 1,
		 by_events = search->work->event_count / EVENTS_PER_TENSOR;
	uint32_t tries = GREEDY_TENSORS_MAX / (count > by_events ? count : by_events);
	bool sizes = search->goal == GOAL_BUDGET && count <= MANY_TENSORS;

	if (tries < GREEDY_TRIES_MIN)
		tries = GREEDY_TRIES_MIN;
	if (sizes)
		tries /= 2;
	if (tries > STARTS_MAX)
		tries = STARTS_MAX;
	if (greedy(search, 0, false) && is_last_in_first_out(search->work))
		tries = 1;
	for (uint32_t k = 1; k < tries; k++) {
		if (search->goal == GOAL_BUDGET && search->best->feasible && !sizes)
			return; /* of many tensors, hardly a byte too many is written */
		(void)greedy(search, k, false);
	}
	for (uint32_t k = 0; sizes && k < tries; k++)
		(void)greedy(search, k, true);
}

/* ---- Small changes ---- */

static bool try_flips(struct search *search, const uint32_t *tensors, unsigned count)
{
	const struct plan_work *work = search->work;
	uint32_t cost = cost_of(work);

	if (search->tries_left < cost)
		return false;
	search->tries_left -= cost;
	memcpy(search->trial, search->best->spill, work->count);
	for (unsigned k = 0; k < count; k++) {
		if (!work->eligible[tensors[k]])
			return false;
		search->trial[tensors[k]] ^= 1;
	}
	return consider_trial(search, &work->alone);
}

/*
 * Every set of up to three tensors changed, from the best so far. Return: whether one was better.
 */
static bool try_all_flips(struct search *search, unsigned flips)
{
	uint32_t count = search->work->count;

	for (uint32_t a = 0; a < count; a++) {
		if (flips == 1 && try_flips(search, &a, 1))
			return true;
		for (uint32_t b = a + 1; flips > 1 && b < count && search->tries_left > 0; b++) {
			if (flips == 2 && try_flips(search, (const uint32_t[]){a, b}, 2))
				return true;
			for (uint32_t c = b + 1; flips > 2 && c < count; c++)
				if (try_flips(search, (const uint32_t[]){a, b, c}, 3))
					return true;
		}
	}
	return false;
}

static void improve(struct search *search)
{
	uint32_t count = search->work->count, cost = cost_of(search->work);

	search->tries_left = PLAN_TRIES_MAX;
	if ((uint64_t)count * cost > search->tries_left)
		return; /* not even one round */
	for (unsigned flips = 1; flips <= 3 && search->tries_left >= cost;)
		flips = try_all_flips(search, flips) ? 1 : flips + 1;
}

/*
 * A budget must not be called impossible for want of looking: if they are few, all choices are
 * tried.
 */
static void try_all(struct search *search)
{
	const struct plan_work *work = search->work;
	uint32_t eligible[ALL_TENSORS_MAX], count = 0;

	for (uint32_t i = 0; i < work->count; i++) {
		if (!work->eligible[i])
			continue;
		if (count == ALL_TENSORS_MAX)
			return;
		eligible[count++] = i;
	}
	if ((uint64_t)cost_of(work) << count > ALL_WORK_MAX)
		return;
	for (uint32_t set = 0; set < 1u << count && !search->best->feasible; set++) {
		memset(search->trial, 0, work->count);
		for (uint32_t k = 0; k < count; k++)
			search->trial[eligible[k]] = set >> k & 1;
		(void)consider_trial(search, &work->alone);
	}
}

/* ---- The modes ---- */

static void begin(struct search *search, struct plan_work *work, struct plan_found *found,
		  uint8_t *scratch)
{
	search->work = work;
	search->best = found;
	search->trial = scratch;
	memset(found->spill, 0, work->count);
	memset(scratch, 0, work->count);
	found->outcome = (struct plan_outcome){.peak = work->keep_all_peak};
	found->memory = work->keep_all_peak;
	found->feasible = search->goal == GOAL_FASTEST || found->memory <= search->memory;
}

/*
 * The search is greedy, and on a rare step a cut by position has a lower peak: then that is the
 * plan.
 */
static void try_positional(struct search *search, const struct spw_plan_step *step,
			   const struct spw_plan_drives *drives, uint8_t *spill)
{
	struct plan_bounds bounds = bounds_of(search);
	struct plan_found rival = {.spill = spill};

	spw_planner_choose_positional(search->work, step, drives, &bounds, &rival, search->trial);
	if (rival.outcome.given_up || stalls(&rival.outcome) ||
	    !is_better(search, &rival.outcome, true))
		return;
	search->best->feasible = true;
	search->best->outcome = rival.outcome;
	search->best->memory = rival.memory;
	memcpy(search->best->spill, rival.spill, search->work->count);
}

void spw_planner_choose_fastest(struct plan_work *work, const struct spw_plan_step *step,
				const struct spw_plan_drives *drives, struct plan_found *found,
				uint8_t *scratch)
{
	struct search search = {.goal = GOAL_FASTEST};

	begin(&search, work, found, scratch);
	try_starts(&search);
	improve(&search);
	try_positional(&search, step, drives, scratch + work->count + 1);
}

/*
 * The budget cannot be met: it becomes what the lowest peak found needs. That peak was found with
 * reads as late as their use; with the memory that it takes anyway they may be earlier.
 */
static void nearest_budget(const struct search *search, uint8_t *spill)
{
	struct plan_found *found = search->best;
	struct plan_found nearest = {
		.spill = spill, .feasible = true, .memory = found->outcome.peak};
	struct search again = *search;

	memcpy(spill, found->spill, search->work->count);
	spw_planner_simulate(search->work, spill, nearest.memory, NULL, NULL, &nearest.outcome);
	if (nearest.outcome.peak > nearest.memory || nearest.outcome.forever)
		return;
	again.memory = nearest.memory;
	again.best = &nearest;
	if (again.work->count <= MANY_TENSORS)
		improve(&again);
	memcpy(found->spill, spill, search->work->count);
	found->outcome = nearest.outcome;
	found->memory = nearest.memory;
}

void spw_planner_choose_budget(struct plan_work *work, double memory, struct plan_found *found,
			       uint8_t *scratch)
{
	struct search search = {.goal = GOAL_BUDGET, .memory = memory};

	begin(&search, work, found, scratch);
	if (found->feasible)
		return; /* nothing has to be spilled */
	try_starts(&search);
	improve(&search);
	if (found->feasible)
		return;
	try_all(&search);
	improve(&search);
	if (!found->feasible)
		nearest_budget(&search, scratch + work->count + 1);
}

/* ---- SSDTrain's rule ---- */

struct scope {
	uint64_t bytes;
	uint64_t begin_ns;
};

/*
 * Candidates for the first scope kept, in order: the first that the drives could not keep up with
 * is it.
 */
static uint32_t positional_cut(const struct plan_work *work, const struct spw_plan_step *step,
			       double bandwidth)
{
	double before = 0; /* bytes of the scopes before */

	for (uint32_t k = 0; k < work->count;) {
		uint32_t number = step->tensors[work->order[k]].scope;
		struct scope scope = {.begin_ns = UINT64_MAX};
		double seconds;

		for (; k < work->count && step->tensors[work->order[k]].scope == number; k++) {
			const struct spw_plan_tensor *tensor = &step->tensors[work->order[k]];

			scope.bytes += work->eligible[work->order[k]] ? tensor->bytes : 0;
			if (tensor->pack_ns < scope.begin_ns)
				scope.begin_ns = tensor->pack_ns;
		}
		/*
		 * V = sum(bytes before) + 2 x bytes of the scope; T = 3 x forward - 2 x forward
		 * before the scope
		 */
		seconds = (3 * (double)step->forward_ns - 2 * (double)scope.begin_ns) / 1e9;
		if (before + 2 * (double)scope.bytes > bandwidth * seconds)
			return number;
		before += (double)scope.bytes;
	}
	return UINT32_MAX;
}

void spw_planner_choose_positional(struct plan_work *work, const struct spw_plan_step *step,
				   const struct spw_plan_drives *drives,
				   const struct plan_bounds *bounds, struct plan_found *found,
				   uint8_t *scratch)
{
	struct plan_outcome unlimited;
	uint32_t cut;

	for (uint32_t i = 0; i < work->count; i++) {
		work->order[i] = i;
		work->keys[i] = step->tensors[i].scope;
	}
	spw_planner_sort(work->keys, work->order, work->keys_other, work->order_other, work->count);
	cut = positional_cut(work, step, (double)drives->write_bytes_per_second);
	for (uint32_t i = 0; i < work->count; i++)
		found->spill[i] = work->eligible[i] && step->tensors[i].scope < cut;
	/*
	 * The rule says nothing of memory: it gets the least that lets its reads be in time, else
	 * all it wants.
	 */
	memcpy(scratch, found->spill, work->count);
	spw_planner_forecast_choose(work, &work->alone, PLAN_READS_IN_TIME, scratch);
	found->memory = work->forecast.peak;
	found->feasible = true;
	found->outcome.given_up =
		bounds && work->count > MANY_TENSORS && found->memory > bounds->peak;
	if (found->outcome.given_up)
		return;
	spw_planner_simulate(work, found->spill, found->memory, bounds, NULL, &found->outcome);
	if (!stalls(&found->outcome) && !found->outcome.given_up)
		return;
	spw_planner_simulate(work, found->spill, work->keep_all_peak, bounds, NULL, &unlimited);
	if (unlimited.given_up)
		return;
	if (found->outcome.given_up || unlimited.stall_ns < found->outcome.stall_ns) {
		found->outcome = unlimited;
		found->memory = work->keep_all_peak;
	}
}
