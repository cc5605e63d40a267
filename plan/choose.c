/* SPDX-License-Identifier: MIT */
/*
 * plan/choose.c - choose what to spill if nothing is recomputed: begin with all tensors, drop those
 * that are not needed, then try small changes; plan/seek.c decides which plan is better
 */
#include "plan/internal.h"

#include <math.h>
#include <string.h>

#include "util/util.h"

/*
 * Limits of planning time, without a clock: how many tensors the local search may simulate. A
 * simulation counts as at least TENSORS_MIN, or by its events if the step has many calls.
 */
#define TRIES_MAX         (1u << 15)
#define TENSORS_MIN       16u
#define EVENTS_PER_TENSOR 8u
/* How many tensors the greedy starts may simulate. */
#define GREEDY_TENSORS_MAX 20000u
/* bisection steps of the peak, to meet bytes_written_max */
#define LIMIT_STEPS     12u
#define MANY_TENSORS    1000u
#define ALL_TENSORS_MAX 12u        /* with up to this many tensors every choice is tried, */
#define ALL_WORK_MAX    (1u << 20) /* unless that costs more work than this */

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

/* ---- Order: the tensor least worth spilling first ---- */

/*
 * Order by benefit per byte: how long a tensor could be out of memory while more than @limit would
 * be in use if everything were kept.
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

/* Add to the points [from, to), at least one. */
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
 * more, since this one ignores that the other transfers get faster. Return: whether one was kept.
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

/* A start, with how much sharing of the drives it expects: more is safer, less saves more. */
struct start {
	double shared; /* 0: as if only one direction ran, 1: as if both always ran */
	/* share of tensors kept from the beginning: those with the shortest gap */
	double kept;
};

/* The first starts, and the only ones for a step of many tensors; else a grid follows. */
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

/* The rates and reads that a start expects. */
struct expected {
	struct plan_rates rates;
	enum plan_reads reads;
};

static struct expected expected_of(const struct plan_seek *seek, double shared)
{
	const struct plan_work *work = &seek->recompute->base;
	struct plan_rates rates = work->alone;
	double half = work->mixed / 2;

	if (rates.write > half)
		rates.write += (half - rates.write) * shared;
	if (rates.read > half)
		rates.read += (half - rates.read) * shared;
	return (struct expected){rates, seek->goal == PLAN_GOAL_BYTES ? PLAN_READS_ON_DEMAND
								      : PLAN_READS_IN_TIME};
}

static void forecast(struct plan_seek *seek, const struct expected *expected)
{
	spw_plan__forecast_choose(&seek->recompute->base, &expected->rates, expected->reads,
				  seek->spill_trial);
}

/* Let the trial spill all eligible tensors that leave memory, except those kept by @start. */
static void spill_all(struct plan_seek *seek, const struct start *start,
		      const struct expected *expected)
{
	const struct plan_work *work = &seek->recompute->base;
	uint32_t kept = (uint32_t)((double)work->count * start->kept);

	memcpy(seek->spill_trial, work->eligible, work->count);
	for (uint32_t k = 0; k < kept; k++)
		seek->spill_trial[work->by_gap[k]] = 0;
	forecast(seek, expected);
}

/* Keep each tensor of the trial that need not be spilled for @limit, until there is none. */
static void drop_all_needless(struct plan_seek *seek, const struct expected *expected, double limit)
{
	struct plan_work *work = &seek->recompute->base;
	unsigned rounds = work->count > MANY_TENSORS ? 1 : 8;

	order_by_benefit(work, limit);
	while (rounds-- > 0 && drop_needless(work, seek->spill_trial, limit))
		forecast(seek, expected);
}

static bool writes_too_much(const struct plan_seek *seek)
{
	const struct plan_work *work = &seek->recompute->base;
	double bytes = 0;

	if (isinf(seek->written_max))
		return false;
	for (uint32_t i = 0; i < work->count; i++)
		bytes += seek->spill_trial[i] && !work->in_host[i] ? work->bytes[i] : 0;
	return bytes > seek->written_max;
}

/* The lowest peak above @low for which the trial writes no more than bytes_written_max. */
static void raise_peak(struct plan_seek *seek, const struct start *start,
		       const struct expected *expected, double low)
{
	double high = seek->recompute->base.keep_all_peak; /* nothing has to be spilled */

	for (unsigned k = 0; k <= LIMIT_STEPS; k++) {
		double limit = k < LIMIT_STEPS ? (low + high) / 2 : high;

		spill_all(seek, start, expected);
		drop_all_needless(seek, expected, limit);
		if (writes_too_much(seek))
			low = limit;
		else
			high = limit;
	}
}

static bool try_trial(struct plan_seek *seek)
{
	if (seek->goal == PLAN_GOAL_PEAK)
		seek->limit = seek->recompute->base.forecast.peak;
	return spw_plan__seek_try_spills(seek);
}

static void greedy(struct plan_seek *seek, const struct start *start)
{
	const struct expected expected = expected_of(seek, start->shared);
	const struct plan_work *work = &seek->recompute->base;
	double limit;

	spill_all(seek, start, &expected);
	limit = work->forecast.peak;
	if (seek->goal == PLAN_GOAL_BYTES)
		limit = larger(limit, seek->limit);
	/* Of many tensors none is so large that dropping others lowers the peak further. */
	if (work->count > MANY_TENSORS && limit > spw_plan__seek_highest(seek))
		return;
	drop_all_needless(seek, &expected, limit);
	if (writes_too_much(seek)) {
		seek->limited = true;
		raise_peak(seek, start, &expected, limit);
	}
	/* A simulated peak is not below the forecast's: sharing and stalls only delay releases. */
	if (seek->goal == PLAN_GOAL_BYTES || work->forecast.peak <= seek->best.peak)
		(void)try_trial(seek);
}

static void try_starts(struct plan_seek *seek)
{
	const struct plan_work *work = &seek->recompute->base;
	uint32_t tries = GREEDY_TENSORS_MAX / cost_of(work);

	if (tries < SPW_ARRAY_LEN(starts))
		tries = SPW_ARRAY_LEN(starts);
	for (uint32_t k = 0; k < tries && k < STARTS_MAX; k++) {
		struct start start = start_of(k);

		/* With many tensors the first plan writes hardly a byte too many. */
		if (seek->goal == PLAN_GOAL_BYTES && seek->fits && work->count > MANY_TENSORS)
			return;
		greedy(seek, &start);
	}
}

/* ---- Small changes ---- */

/* Flip each set of @flips tensors with the first @chosen. Return: whether one is better. */
static bool try_flips(struct plan_seek *seek, unsigned chosen, unsigned flips)
{
	struct plan_work *work = &seek->recompute->base;
	uint32_t i = chosen > 0 ? seek->flipped[chosen - 1] + 1 : 0;

	if (chosen == flips) {
		const struct expected alone = expected_of(seek, 0);

		memcpy(seek->spill_trial, seek->spill_best, work->count);
		for (unsigned k = 0; k < flips; k++)
			seek->spill_trial[seek->flipped[k]] ^= 1;
		if (seek->goal == PLAN_GOAL_PEAK)
			forecast(seek, &alone);
		return try_trial(seek);
	}
	for (; i < work->count && seek->tries_left > 0; i++) {
		seek->flipped[chosen] = i;
		if (work->eligible[i] && try_flips(seek, chosen + 1, flips))
			return true;
	}
	return false;
}

static void improve(struct plan_seek *seek)
{
	const struct plan_work *work = &seek->recompute->base;

	seek->tries_left = TRIES_MAX / cost_of(work);
	if (work->count > seek->tries_left)
		return; /* not even one round */
	for (unsigned flips = 1; flips <= PLAN_FLIPS_MAX && seek->tries_left > 0;)
		flips = try_flips(seek, 0, flips) ? 1 : flips + 1;
}

/* With few tensors every choice is tried before a budget is called impossible. */
static void try_all(struct plan_seek *seek)
{
	const struct plan_work *work = &seek->recompute->base;
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
	for (uint32_t set = 0; set < 1u << count && !seek->fits; set++) {
		memset(seek->spill_trial, 0, work->count);
		for (uint32_t k = 0; k < count; k++)
			seek->spill_trial[eligible[k]] = set >> k & 1;
		(void)spw_plan__seek_try_spills(seek);
	}
}

/*
 * Try SSDTrain's rule, which has a lower peak than the greedy starts on rare steps: spill the
 * tensors saved first, as far as the drives keep up.
 */
static void try_cut(struct plan_seek *seek)
{
	const struct plan_work *work = &seek->recompute->base;
	const struct expected alone = expected_of(seek, 0);
	double before = 0, forward_ns = (double)seek->recompute->step->forward_ns;

	memset(seek->spill_trial, 0, work->count);
	for (uint32_t k = 0; k < work->count; k++) {
		uint32_t i = work->by_pack[k];
		double ns = 3 * forward_ns - 2 * work->pack_ns[i];

		if (before + 2 * work->bytes[i] > work->alone.write * ns)
			break;
		before += work->bytes[i];
		seek->spill_trial[i] = work->eligible[i];
	}
	forecast(seek, &alone);
	if (try_trial(seek))
		return;
	seek->limit = work->keep_all_peak;
	(void)spw_plan__seek_try_spills(seek);
}

void spw_plan__choose(struct plan_seek *seek)
{
	if (seek->goal == PLAN_GOAL_BYTES && seek->fits)
		return; /* nothing has to be spilled */
	try_starts(seek);
	improve(seek);
	if (seek->goal == PLAN_GOAL_PEAK)
		try_cut(seek);
	if (seek->fits)
		return;
	try_all(seek);
	improve(seek);
}
