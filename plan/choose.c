/* SPDX-License-Identifier: MIT */
/* plan/choose.c - choose what to spill: start from all, drop the unneeded, then local search */
#include "plan/internal.h"

#include <math.h>
#include <string.h>

#include "util/util.h"

/*
 * Bounds on time without a clock: how many tensors the local search may simulate. A simulation
 * costs as much as TENSORS_MIN at least, or as its events where a step has many calls.
 */
#define TRIES_MAX         (1u << 15)
#define TENSORS_MIN       16u
#define EVENTS_PER_TENSOR 8u
/* The same for the greedy starts. */
#define GREEDY_TENSORS_MAX 20000u
/* halvings of the range of peaks, to meet bytes_written_max */
#define LIMIT_STEPS     12u
#define FLIPS_MAX       3u /* tensors that are changed at a time */
#define MANY_TENSORS    1000u
#define ALL_TENSORS_MAX 12u        /* up to as many: every choice is tried, */
#define ALL_WORK_MAX    (1u << 20) /* unless that costs more than this */

enum goal {
	GOAL_FASTEST,
	GOAL_BUDGET,
};

struct search {
	struct plan_again *again;
	struct plan_work *work; /* its base */
	enum goal goal;
	double memory; /* of the budget */
	double written_max;
	struct plan_found *best;
	uint32_t tries_left;
	uint32_t flipped[FLIPS_MAX];
};

static double larger(double one, double other)
{
	return one > other ? one : other;
}

/* The cost of one simulation, in tensors. */
static uint32_t cost_of(const struct plan_work *work)
{
	uint32_t by_events = work->event_count / EVENTS_PER_TENSOR;
	uint32_t cost = by_events > work->count ? by_events : work->count;

	return cost > TENSORS_MIN ? cost : TENSORS_MIN;
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
	if (bounds.written > search->written_max)
		bounds.written = search->written_max;
	return bounds;
}

/* Simulate the trial. Return: whether it is better than the best, which it becomes. */
static bool consider(struct search *search, double memory)
{
	struct plan_bounds bounds = bounds_of(search);
	struct plan_work *work = search->work;
	struct plan_outcome outcome;
	bool feasible;

	spw_plan__again_simulate(search->again, work->trial, memory, &bounds, NULL, &outcome);
	if (outcome.written > search->written_max)
		search->best->limited = true;
	if (outcome.abandoned)
		return false;
	feasible = search->goal == GOAL_BUDGET ? outcome.peak <= search->memory && !outcome.forever
					       : !stalls(&outcome);
	if (!is_better(search, &outcome, feasible))
		return false;
	(void)PLAN_HOLDS(outcome.written <= search->written_max && !(feasible && outcome.forever));
	search->best->feasible = feasible;
	search->best->outcome = outcome;
	search->best->memory = memory;
	memcpy(search->best->spill, work->trial, work->count);
	return true;
}

static bool consider_trial(struct search *search)
{
	struct plan_work *work = search->work;

	if (search->goal == GOAL_BUDGET)
		return consider(search, search->memory);
	spw_plan__forecast_choose(work, &work->alone, PLAN_READS_IN_TIME, work->trial);
	return consider(search, search->work->forecast.peak);
}

/* ---- Order: the least useful to spill first ---- */

/* Benefit per byte: how long it could be out while more than @limit is in use if all is kept. */
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
	spw_plan__sort(work, work->order);
}

/* ---- The memory over time as a tree: the highest point of a range, and adding to a range ---- */

/*
 * Node 1 is the root, below node n are 2n and 2n + 1, and the leaves are the points. A node's value
 * counts what was added to all that is below it, but not what was added further up.
 */
static void tree_build(struct plan_work *work)
{
	uint32_t leaves = work->forecast.points;

	memcpy(&work->tree[leaves], work->forecast.point_bytes, leaves * sizeof(*work->tree));
	for (uint32_t node = leaves; node-- > 1;)
		work->tree[node] = larger(work->tree[2 * node], work->tree[2 * node + 1]);
	memset(work->tree_added, 0, 2 * (size_t)leaves * sizeof(*work->tree_added));
}

static void add_to(struct plan_work *work, uint32_t node, double bytes)
{
	work->tree[node] += bytes;
	work->tree_added[node] += bytes;
}

static void update_above(struct plan_work *work, uint32_t node)
{
	for (node /= 2; node >= 1; node /= 2)
		work->tree[node] = larger(work->tree[2 * node], work->tree[2 * node + 1]) +
				   work->tree_added[node];
}

/* Points [from, to), of which there is at least one. */
static void tree_add(struct plan_work *work, uint32_t from, uint32_t to, double bytes)
{
	uint32_t leaves = work->forecast.points;

	SPW_ASSERT(from < to && to <= leaves);
	for (uint32_t l = leaves + from, r = leaves + to; l < r; l /= 2, r /= 2) {
		if (l & 1)
			add_to(work, l++, bytes);
		if (r & 1)
			add_to(work, --r, bytes);
	}
	update_above(work, leaves + from);
	update_above(work, leaves + to - 1);
}

static double added_from(const struct plan_work *work, uint32_t node)
{
	double sum = 0;

	for (; node >= 1; node /= 2)
		sum += work->tree_added[node];
	return sum;
}

/*
 * The highest of the points [from, to). The nodes gathered from the left end all lie below the one
 * left of l, those from the right end below r: what was added there counts for all of them.
 */
static double tree_highest(const struct plan_work *work, uint32_t from, uint32_t to)
{
	double left = -PLAN_NEVER_NS, right = -PLAN_NEVER_NS;
	uint32_t l = work->forecast.points + from, r = work->forecast.points + to;

	while (l < r) {
		if (l & 1)
			left = larger(left, work->tree[l++]);
		if (r & 1)
			right = larger(right, work->tree[--r]);
		l /= 2;
		r /= 2;
		left += work->tree_added[l - 1];
		right += work->tree_added[r];
	}
	return larger(left + added_from(work, (l - 1) / 2), right + added_from(work, r / 2));
}

/*
 * In work->order, keep each tensor that need not be spilled for @limit. Another round may find
 * more, as it is not counted that other transfers get faster. Return: whether one was kept.
 */
static bool drop_needless(struct plan_work *work, uint8_t *spill, double limit)
{
	const struct plan_forecast *forecast = &work->forecast;
	bool dropped = false;

	tree_build(work);
	for (uint32_t k = 0; k < work->count; k++) {
		uint32_t i = work->order[k], from = forecast->point_out[i],
			 to = forecast->point_in[i];

		if (!spill[i] || !forecast->out[i] ||
		    (from < to && tree_highest(work, from, to) + work->bytes[i] > limit))
			continue;
		if (from < to)
			tree_add(work, from, to, work->bytes[i]);
		spill[i] = 0;
		dropped = true;
	}
	return dropped;
}

/* ---- Greedy ---- */

/* Where to begin, and how much sharing of the drives to expect: more is safer, less saves more. */
struct start {
	double shared; /* 0: transfers as if alone, 1: as if always both ways */
	/* share of tensors kept from the beginning: those with the shortest gap */
	double kept;
};

/* The only ones tried for a step of many tensors; else a grid follows. */
static const struct start starts[] = {{0, 0}, {0.5, 0}, {0, 1. / 16}};

#define START_SHARED_STEPS 9u /* 0, 1/8 .. 1 */
#define START_KEPT_STEPS   8u /* 0, 1/16 .. 7/16 */
#define STARTS_MAX         (SPW_ARRAY_LEN(starts) + START_SHARED_STEPS * START_KEPT_STEPS)

static struct start start_of(uint32_t k)
{
	uint32_t number = k - (uint32_t)SPW_ARRAY_LEN(starts);
	uint32_t shared = number % START_SHARED_STEPS, kept = number / START_SHARED_STEPS;

	if (k < SPW_ARRAY_LEN(starts))
		return starts[k];
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

	memcpy(work->trial, work->eligible, work->count);
	for (uint32_t k = 0; k < kept; k++)
		work->trial[work->by_gap[k]] = 0;
}

/* Keep each tensor of the trial that need not be spilled for @limit, until there is none. */
static void drop_all_needless(struct search *search, const struct plan_rates *rates,
			      enum plan_reads reads, double limit)
{
	struct plan_work *work = search->work;
	unsigned rounds = work->count > MANY_TENSORS ? 1 : 8;

	while (rounds-- > 0 && drop_needless(work, work->trial, limit))
		spw_plan__forecast_choose(work, rates, reads, work->trial);
}

/* The trial becomes what must be spilled to stay within @limit, beginning from @start. */
static void choose_for(struct search *search, const struct start *start,
		       const struct plan_rates *rates, enum plan_reads reads, double limit)
{
	struct plan_work *work = search->work;

	start_from(search, start);
	spw_plan__forecast_choose(work, rates, reads, work->trial);
	order_by_benefit(work, limit);
	drop_all_needless(search, rates, reads, limit);
}

static bool writes_too_much(const struct search *search)
{
	const struct plan_work *work = search->work;
	double bytes = 0;

	for (uint32_t i = 0; i < work->count; i++)
		bytes += work->trial[i] ? work->bytes[i] : 0;
	return bytes > search->written_max;
}

/* The lowest peak above @low for which the trial writes no more than bytes_written_max. */
static void raise_peak(struct search *search, const struct start *start,
		       const struct plan_rates *rates, enum plan_reads reads, double low)
{
	double high = search->work->keep_all_peak; /* nothing has to be spilled */

	for (unsigned k = 0; k < LIMIT_STEPS; k++) {
		double middle = (low + high) / 2;

		choose_for(search, start, rates, reads, middle);
		if (writes_too_much(search))
			low = middle;
		else
			high = middle;
	}
	choose_for(search, start, rates, reads, high);
}

static void greedy(struct search *search, const struct start *start)
{
	struct plan_rates rates = rates_of(search, start->shared);
	enum plan_reads reads =
		search->goal == GOAL_BUDGET ? PLAN_READS_ON_DEMAND : PLAN_READS_IN_TIME;
	struct plan_work *work = search->work;
	struct plan_bounds bounds = bounds_of(search);
	double limit;

	start_from(search, start);
	spw_plan__forecast_choose(work, &rates, reads, work->trial);
	limit = work->forecast.peak;
	if (search->goal == GOAL_BUDGET)
		limit = larger(limit, search->memory);
	/* Among many tensors none is large enough for the rest to lower the peak. */
	if (work->count > MANY_TENSORS && limit > bounds.peak)
		return;
	order_by_benefit(work, limit);
	drop_all_needless(search, &rates, reads, limit);
	if (writes_too_much(search)) {
		search->best->limited = true;
		raise_peak(search, start, &rates, reads, limit);
	}
	/* Sharing the drives, and stalls, only delay the release of memory. */
	if (search->goal == GOAL_FASTEST && work->forecast.peak > bounds.peak)
		return;
	if (search->goal == GOAL_BUDGET)
		(void)consider(search, search->memory);
	else
		(void)consider(search, search->work->forecast.peak);
}

static void try_starts(struct search *search)
{
	uint32_t tries = GREEDY_TENSORS_MAX / cost_of(search->work);

	if (tries < SPW_ARRAY_LEN(starts))
		tries = SPW_ARRAY_LEN(starts);
	for (uint32_t k = 0; k < tries && k < STARTS_MAX; k++) {
		struct start start = start_of(k);

		/* With many tensors hardly a byte too many is written. */
		if (search->goal == GOAL_BUDGET && search->best->feasible &&
		    search->work->count > MANY_TENSORS)
			return;
		greedy(search, &start);
	}
}

/* ---- Small changes ---- */

static bool try_flipped(struct search *search, unsigned flips)
{
	struct plan_work *work = search->work;

	memcpy(work->trial, search->best->spill, work->count);
	for (unsigned k = 0; k < flips; k++)
		work->trial[search->flipped[k]] ^= 1;
	return consider_trial(search);
}

/* Flip each set of @flips tensors that contains the first @chosen. Return: is one better? */
static bool try_flips(struct search *search, unsigned chosen, unsigned flips)
{
	const struct plan_work *work = search->work;
	uint32_t i = chosen > 0 ? search->flipped[chosen - 1] + 1 : 0;

	if (chosen == flips) {
		search->tries_left--;
		return try_flipped(search, flips);
	}
	for (; i < work->count && search->tries_left > 0; i++) {
		search->flipped[chosen] = i;
		if (work->eligible[i] && try_flips(search, chosen + 1, flips))
			return true;
	}
	return false;
}

static void improve(struct search *search)
{
	search->tries_left = TRIES_MAX / cost_of(search->work);
	if (search->work->count > search->tries_left)
		return; /* not even one round */
	for (unsigned flips = 1; flips <= FLIPS_MAX && search->tries_left > 0;)
		flips = try_flips(search, 0, flips) ? 1 : flips + 1;
}

/* With few tensors every choice is tried before a budget is called impossible. */
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
		memset(work->trial, 0, work->count);
		for (uint32_t k = 0; k < count; k++)
			work->trial[eligible[k]] = set >> k & 1;
		(void)consider_trial(search);
	}
}

/* ---- A cut by position ---- */

struct scope {
	uint64_t bytes;
	uint64_t begin_ns;
};

/* The first scope kept: the first that the drives could not keep up with. */
static uint32_t position_of_cut(const struct plan_work *work, const struct spw_plan_step *step,
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
		/* V = bytes before + 2 x bytes of the scope; T = 3 x forward - 2 x before */
		seconds = (3 * (double)step->forward_ns - 2 * (double)scope.begin_ns) / 1e9;
		if (before + 2 * (double)scope.bytes > bandwidth * seconds)
			return number;
		before += (double)scope.bytes;
	}
	return UINT32_MAX;
}

static void set_by_position(struct plan_work *work, const struct spw_plan_step *step,
			    const struct spw_plan_drives *drives, uint8_t *spill)
{
	uint32_t cut;

	for (uint32_t i = 0; i < work->count; i++) {
		work->order[i] = i;
		work->keys[i] = step->tensors[i].scope;
	}
	spw_plan__sort(work, work->order);
	cut = position_of_cut(work, step, (double)drives->write_bytes_per_second);
	for (uint32_t i = 0; i < work->count; i++)
		spill[i] = work->eligible[i] && step->tensors[i].scope < cut;
}

/* ---- The modes ---- */

/*
 * The budget cannot be met, so it becomes the lowest peak found. That was found with reads as late
 * as their use; within the memory that it takes anyway they may be earlier.
 */
static void nearest_budget(const struct search *search)
{
	struct plan_found *found = search->best;
	struct plan_outcome outcome;

	spw_plan__again_simulate(search->again, found->spill, found->outcome.peak, NULL, NULL,
				 &outcome);
	if (outcome.peak > found->outcome.peak || outcome.forever ||
	    outcome.written > search->written_max)
		return;
	found->memory = found->outcome.peak;
	found->outcome = outcome;
}

void spw_plan__choose(struct plan_again *again, const struct spw_plan_drives *drives,
		      const struct spw_plan_opts *opts, struct plan_found *found)
{
	struct plan_work *work = &again->base;
	struct search search = {.again = again,
				.work = work,
				.goal = opts->mode == SPW_PLAN_BUDGET ? GOAL_BUDGET : GOAL_FASTEST,
				.memory = (double)opts->memory_bytes,
				.written_max = opts->bytes_written_max > 0
						       ? (double)opts->bytes_written_max
						       : INFINITY,
				.best = found};

	*found = (struct plan_found){.spill = work->spill,
				     .outcome.peak = work->keep_all_peak,
				     .memory = work->keep_all_peak,
				     .feasible = search.goal == GOAL_FASTEST ||
						 work->keep_all_peak <= search.memory};
	if (search.goal == GOAL_BUDGET && found->feasible)
		return; /* nothing has to be spilled */
	try_starts(&search);
	improve(&search);
	if (search.goal == GOAL_FASTEST) {
		/* The search is greedy: on a rare step a cut by position has a lower peak. */
		set_by_position(work, again->step, drives, work->trial);
		if (!consider_trial(&search))
			(void)consider(&search, work->keep_all_peak);
	} else if (!found->feasible) {
		try_all(&search);
		improve(&search);
		if (!found->feasible)
			nearest_budget(&search);
	}
}
