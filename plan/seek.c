/* SPDX-License-Identifier: MIT */
/*
 * plan/seek.c - search which scopes to recompute, and what to spill, within a memory limit
 *
 * Scan    Scopes are ordered by the bytes that recomputing them frees per time; scopes of about the
 *         same worth are spread over the step. In a second order all are spread. Scopes that are
 *         needed right after they ran come last. With the first 0, 1, 2 ... scopes recomputed, find
 *         by bisection how few tensors from the beginning of the step, of those that can be written
 *         and read in time, must be spilled so that the rest fits.
 * Climb   From the best of these plans, change one scope or exchange two neighbours, as long as
 *         that is better and tries are left.
 * Anneal  Leave a local optimum by annealing, if many tries are left.
 *
 * Which of two plans is better depends on the goal; enum plan_goal.
 */
#include "plan/internal.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "util/util.h"

#define SCAN_STEPS 12u /* how many numbers of recomputed scopes are tried first */
#define DOWN_STEPS 12u /* the same, if the longest step is given */
/* A scope that frees less than the mean of all, divided by this, is tried last. */
#define MIN_GAIN_PART 8
/* The first temperature, as a share of the step; the last one, as a share of the first. */
#define ANNEAL_FIRST           0.03
#define ANNEAL_LAST            0.01
#define ANNEAL_TRIES_PER_SCOPE 50u
#define OVER_WEIGHT            4.0 /* weight of a peak above the limit, compared to a longer step */

enum tried {
	TRIED_BETTER,
	TRIED_SLOWER,
	TRIED_NEARER, /* better than the best, but also above the limit */
	TRIED_TOO_LARGE,
};

/* ---- One try ---- */

static bool enough(const struct plan_seek *seek)
{
	return seek->fits && seek->best_ns <= seek->enough_ns + PLAN_TOLERANCE_NS;
}

static bool goes_on(const struct plan_seek *seek)
{
	return seek->tries_left > 0 && !enough(seek);
}

static bool is_within(const struct plan_seek *seek, const struct plan_outcome *outcome)
{
	return outcome->peak <= seek->limit + PLAN_TOLERANCE_BYTES;
}

double spw_plan__seek_highest(const struct plan_seek *seek)
{
	bool within = seek->fits && seek->goal != PLAN_GOAL_PEAK;

	return within ? seek->limit + PLAN_TOLERANCE_BYTES : seek->best.peak;
}

/* Bounds beyond which a plan cannot be better than the best. */
static struct plan_bounds bounds_of(const struct plan_seek *seek, double least_ns)
{
	struct plan_bounds bounds = {.peak = spw_plan__seek_highest(seek),
				     .written = seek->written_max,
				     .stall_ns = INFINITY};

	if (seek->goal == PLAN_GOAL_PEAK)
		bounds.stall_ns = seek->enough_ns - least_ns + PLAN_TOLERANCE_NS;
	else if (seek->goal == PLAN_GOAL_STEP && seek->fits)
		bounds.stall_ns = seek->best_ns - least_ns + 2 * PLAN_TOLERANCE_NS;
	else if (seek->fits)
		bounds.written = fmin(bounds.written, seek->best.written);
	return bounds;
}

static bool is_better(const struct plan_seek *seek, const struct plan_outcome *outcome, bool fits,
		      double ns)
{
	const struct plan_outcome *best = &seek->best;

	if (fits != seek->fits)
		return fits;
	if ((!fits || seek->goal == PLAN_GOAL_PEAK) && outcome->peak != best->peak)
		return outcome->peak < best->peak;
	if (fits && seek->goal == PLAN_GOAL_STEP && fabs(ns - seek->best_ns) > PLAN_TOLERANCE_NS)
		return ns < seek->best_ns;
	if (outcome->written != best->written)
		return outcome->written < best->written;
	return ns < seek->best_ns - PLAN_TOLERANCE_NS;
}

/* Set the step to the trial, less impossible spills. Return: the step's time without waits. */
static double set_trial(struct plan_seek *seek)
{
	struct plan_recompute *recompute = seek->recompute;
	/* In locals: to the compiler, a store to a byte array may alias anything. */
	uint8_t *spill = seek->spill_trial;
	const uint8_t *can_spill = recompute->can_spill;
	uint32_t count = recompute->step->count;

	if (memcmp(seek->recompute_trial, recompute->recompute, recompute->scopes->count) != 0)
		spw_plan__recompute_set(recompute, seek->recompute_trial);
	for (uint32_t i = 0; i < count; i++)
		spill[i] &= can_spill[i];
	spw_plan__host_assign(&recompute->base, spill);
	return recompute->compute_ns + recompute->again_ns;
}

static void take_trial(struct plan_seek *seek, const struct plan_outcome *outcome, double ns)
{
	(void)PLAN_HOLDS(!outcome->abandoned && !outcome->forever &&
			 ns >= seek->recompute->compute_ns);
	(void)PLAN_HOLDS(outcome->written <= seek->written_max);
	seek->best_ns = ns;
	seek->best_limit = seek->limit;
	seek->best = *outcome;
	memcpy(seek->recompute_best, seek->recompute_trial, seek->recompute->scopes->count);
	memcpy(seek->spill_best, seek->spill_trial, seek->recompute->step->count);
}

/* Make the trial the best if it is better. Return: whether it is. */
static bool accept(struct plan_seek *seek, const struct plan_outcome *outcome, double ns)
{
	bool fits = seek->goal == PLAN_GOAL_PEAK ? ns < seek->enough_ns + PLAN_TOLERANCE_NS
						 : is_within(seek, outcome);

	seek->limited |= outcome->written > seek->written_max;
	if (outcome->abandoned || outcome->forever || !is_better(seek, outcome, fits, ns))
		return false;
	(void)PLAN_HOLDS(fits || !seek->fits);
	take_trial(seek, outcome, ns);
	seek->fits = fits;
	return true;
}

static enum tried try(struct plan_seek *seek)
{
	double least_ns = set_trial(seek);
	struct plan_bounds bounds = bounds_of(seek, least_ns);
	struct plan_outcome outcome;

	if (seek->fits && least_ns > seek->best_ns + PLAN_TOLERANCE_NS)
		return TRIED_SLOWER;
	seek->tries_left -= seek->tries_left > 0;
	spw_plan__recompute_simulate(seek->recompute, seek->spill_trial, seek->limit, &bounds, NULL,
				     &outcome);
	if (accept(seek, &outcome, least_ns + outcome.stall_ns))
		return seek->fits ? TRIED_BETTER : TRIED_NEARER;
	return is_within(seek, &outcome) ? TRIED_SLOWER : TRIED_TOO_LARGE;
}

static bool is_too_large(enum tried tried)
{
	return tried == TRIED_NEARER || tried == TRIED_TOO_LARGE;
}

bool spw_plan__seek_try(struct plan_seek *seek, const uint8_t *scopes, const uint8_t *spill)
{
	enum tried tried;

	memcpy(seek->recompute_trial, scopes, seek->recompute->scopes->count);
	memcpy(seek->spill_trial, spill, seek->recompute->step->count);
	tried = try(seek);
	return tried == TRIED_BETTER || tried == TRIED_NEARER;
}

bool spw_plan__seek_try_spills(struct plan_seek *seek)
{
	enum tried tried;

	memset(seek->recompute_trial, 0, seek->recompute->scopes->count);
	tried = try(seek);
	return tried == TRIED_BETTER || tried == TRIED_NEARER;
}

void spw_plan__seek_begin(struct plan_seek *seek, enum plan_goal goal, double limit)
{
	const struct plan_recompute *recompute = seek->recompute;

	seek->goal = goal;
	seek->limit = seek->best_limit = limit;
	seek->best_ns = recompute->compute_ns;
	seek->best = (struct plan_outcome){.peak = recompute->base.keep_all_peak};
	seek->fits = goal == PLAN_GOAL_PEAK || is_within(seek, &seek->best);
	memset(seek->recompute_best, 0, recompute->scopes->count);
	memset(seek->spill_best, 0, recompute->step->count);
}

void spw_plan__seek_within(struct plan_seek *seek, double limit, const uint8_t *scopes,
			   const uint8_t *spill)
{
	seek->goal = PLAN_GOAL_STEP;
	/* In whole bytes, as returned to the caller. */
	seek->limit = floor(limit);
	seek->fits = false;
	seek->best_ns = INFINITY;
	seek->best = (struct plan_outcome){.peak = INFINITY};
	(void)spw_plan__seek_try(seek, scopes, spill);
}

/* ---- Scan ---- */

/* It could be copied to host memory, or else be written, and be back before it is wanted. */
static bool can_be_away(const struct plan_work *base, uint32_t i)
{
	double there_ns =
		base->host > 0
			? base->bytes[i] * (base->alone.write_copy_ns + base->alone.read_copy_ns)
			: base->bytes[i] / base->alone.write + base->bytes[i] / base->alone.read;

	return base->wanted_ns[i] - base->pack_ns[i] >= there_ns;
}

/* Bisect for how few of the first tensors must be spilled to fit. */
static void try_prefixes(struct plan_seek *seek)
{
	const struct plan_work *base = &seek->recompute->base;
	uint32_t low = 0, high = base->count, middle = high;

	do {
		enum tried tried;

		memset(seek->spill_trial, 0, base->count);
		for (uint32_t k = 0; k < middle; k++)
			seek->spill_trial[base->by_pack[k]] = can_be_away(base, base->by_pack[k]);
		tried = try(seek);
		/* No more can be spilled, or nothing at all. */
		if (middle == base->count &&
		    (is_too_large(tried) || (base->alone.write <= 0 && base->host <= 0)))
			return;
		if (is_too_large(tried))
			low = middle;
		else
			high = middle;
		middle = low + (high - low) / 2;
	} while (high - low > 1 && goes_on(seek));
}

/* Recompute the first @count scopes of the order. Return: whether that can be better. */
static bool try_count(struct plan_seek *seek, uint32_t count)
{
	SPW_ASSERT(count <= seek->order_count);
	memset(seek->recompute_trial, 0, seek->recompute->scopes->count);
	for (uint32_t k = 0; k < count; k++)
		seek->recompute_trial[seek->order[k]] = 1;
	if (seek->fits && seek->least_ns[count] > seek->best_ns)
		return false;
	try_prefixes(seek);
	return true;
}

static void scan(struct plan_seek *seek)
{
	uint32_t count = seek->order_count, step = count / SCAN_STEPS + 1, best = 0;
	double best_ns = seek->best_ns;

	for (uint32_t k = 0; goes_on(seek) && try_count(seek, k); k += step) {
		if (seek->best_ns < best_ns) {
			best_ns = seek->best_ns;
			best = k;
		}
		if (k == count)
			break;
		if (k + step > count)
			k = count - step;
	}
	/* Then try numbers closer to the best one. */
	for (step /= 2; step > 0; step /= 2)
		for (int side = -1; side <= 1 && goes_on(seek); side += 2) {
			int64_t k = (int64_t)best + side * (int64_t)step;

			if (k < 0 || k > count)
				continue;
			(void)try_count(seek, (uint32_t)k);
			if (seek->best_ns < best_ns) {
				best_ns = seek->best_ns;
				best = (uint32_t)k;
			}
		}
}

/*
 * Scan where a step that is short enough ends the search: begin with as many scopes as the best
 * plan of another limit, then as many as there is time for, then fewer and fewer.
 */
static void scan_down(struct plan_seek *seek)
{
	uint32_t begin = 0, most = seek->order_count, step;

	for (uint32_t s = 0; s < seek->recompute->scopes->count; s++)
		begin += seek->recompute_best[s];
	while (most > 0 && seek->least_ns[most] > seek->enough_ns)
		most--;
	step = most / DOWN_STEPS + 1;
	if (goes_on(seek))
		(void)try_count(seek, begin < most ? begin : most);
	for (uint32_t k = most; goes_on(seek); k -= step) {
		(void)try_count(seek, k);
		if (k < step)
			break;
	}
	/* More scopes take too long, but may fit; the climb may make such a step shorter. */
	for (uint32_t k = most + step; !seek->fits && goes_on(seek) && k <= seek->order_count;
	     k += step)
		(void)try_count(seek, k);
}

/* ---- Climb ---- */

static void take_best(struct plan_seek *seek)
{
	memcpy(seek->recompute_trial, seek->recompute_best, seek->recompute->scopes->count);
	memcpy(seek->spill_trial, seek->spill_best, seek->recompute->step->count);
}

static void spill_scope(struct plan_seek *seek, uint32_t s, uint8_t spill)
{
	const struct plan_recompute *recompute = seek->recompute;

	for (uint32_t k = recompute->first[s]; k < recompute->first[s + 1]; k++)
		seek->spill_trial[recompute->members[k]] = spill;
}

/* Change scope @s of the trial: recomputed or not, and all its tensors kept or spilled. */
static bool change_scope(struct plan_seek *seek, uint32_t s, unsigned way)
{
	if ((way & 1) && !seek->recompute->may[s])
		return false;
	seek->recompute_trial[s] = way & 1;
	spill_scope(seek, s, (uint8_t)(way >> 1));
	return true;
}

#define WAYS 4u

static bool try_scope(struct plan_seek *seek, uint32_t s)
{
	bool better = false;

	for (unsigned way = 0; way < WAYS && goes_on(seek); way++) {
		take_best(seek);
		if (change_scope(seek, s, way))
			better |= try(seek) == TRIED_BETTER;
	}
	return better;
}

/* Flip one tensor at a time. Return: whether a flip was better. */
static bool try_tensors(struct plan_seek *seek)
{
	const struct plan_work *base = &seek->recompute->base;
	bool better = false;

	for (uint32_t k = 0; k < base->count && goes_on(seek); k++) {
		uint32_t i = base->by_gap[k];

		if (!base->eligible[i])
			continue;
		take_best(seek);
		seek->spill_trial[i] ^= 1;
		better |= try(seek) == TRIED_BETTER;
	}
	return better;
}

static bool try_exchange(struct plan_seek *seek, uint32_t s, uint32_t other)
{
	const struct plan_recompute *recompute = seek->recompute;
	uint8_t spill;

	if (other >= recompute->scopes->count || !recompute->may[s] || !recompute->may[other] ||
	    seek->recompute_best[s] == seek->recompute_best[other] || !goes_on(seek))
		return false;
	take_best(seek);
	seek->recompute_trial[s] = seek->recompute_best[other];
	seek->recompute_trial[other] = seek->recompute_best[s];
	/* The scope that is no longer recomputed is spilled as the other one was. */
	spill = seek->spill_best[recompute->members[recompute->first[s + 1] - 1]] |
		seek->spill_best[recompute->members[recompute->first[other + 1] - 1]];
	spill_scope(seek, seek->recompute_trial[s] ? other : s, spill);
	return try(seek) == TRIED_BETTER;
}

static bool try_scopes(struct plan_seek *seek)
{
	uint32_t count = seek->recompute->scopes->count;
	bool better = false;

	for (uint32_t s = 0; s < count && goes_on(seek); s++) {
		better |= try_scope(seek, s);
		better |= try_exchange(seek, s, s + 1);
		better |= try_exchange(seek, s, s + 2);
	}
	return better;
}

static uint32_t draw(struct plan_seek *seek, uint32_t below)
{
	SPW_ASSERT(below > 0);
	seek->random = seek->random * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
	return (uint32_t)((seek->random >> 33) % below);
}

static double draw_share(struct plan_seek *seek)
{
	return (double)draw(seek, 1u << 30) / (1u << 30);
}

/* One or two random changes of the trial. */
static void change_drawn(struct plan_seek *seek)
{
	uint32_t scopes = seek->recompute->scopes->count, tensors = seek->recompute->step->count;

	for (uint32_t changes = 1 + draw(seek, 2); changes > 0; changes--) {
		if (draw(seek, 2) == 0)
			seek->spill_trial[draw(seek, tensors)] ^= 1;
		else
			(void)change_scope(seek, draw(seek, scopes), draw(seek, WAYS));
	}
}

/* The time of the trial, with a penalty for a peak over the limit. */
static double energy_of(struct plan_seek *seek)
{
	struct plan_bounds bounds = {
		.peak = INFINITY, .written = seek->written_max, .stall_ns = INFINITY};
	double least_ns = set_trial(seek), over;
	struct plan_outcome outcome;

	seek->tries_left -= seek->tries_left > 0;
	spw_plan__recompute_simulate(seek->recompute, seek->spill_trial, seek->limit, &bounds, NULL,
				     &outcome);
	(void)accept(seek, &outcome, least_ns + outcome.stall_ns);
	if (outcome.abandoned || outcome.forever)
		return INFINITY;
	over = outcome.peak > seek->limit ? outcome.peak / seek->limit - 1 : 0;
	return (least_ns + outcome.stall_ns) * (1 + OVER_WEIGHT * over);
}

/*
 * Leave a local optimum: accept random changes even if they are a little worse, and gradually less
 * so. Long steps have too few tries for this to help.
 */
static void anneal(struct plan_seek *seek)
{
	uint32_t scopes = seek->recompute->scopes->count, tensors = seek->recompute->step->count;
	double first_ns = ANNEAL_FIRST * seek->recompute->compute_ns, energy,
	       tries = seek->tries_left;
	uint8_t *recompute_now = seek->recompute_now, *spill_now = seek->spill_now;

	if (seek->tries_left < ANNEAL_TRIES_PER_SCOPE * scopes || !goes_on(seek) || scopes == 0 ||
	    tensors == 0)
		return;
	take_best(seek);
	energy = energy_of(seek);
	memcpy(recompute_now, seek->recompute_trial, scopes);
	memcpy(spill_now, seek->spill_trial, tensors);
	while (goes_on(seek)) {
		double warmth = first_ns * pow(ANNEAL_LAST, 1 - seek->tries_left / tries), other;

		memcpy(seek->recompute_trial, recompute_now, scopes);
		memcpy(seek->spill_trial, spill_now, tensors);
		change_drawn(seek);
		other = energy_of(seek);
		if (other > energy && draw_share(seek) >= exp((energy - other) / warmth))
			continue;
		energy = other;
		memcpy(recompute_now, seek->recompute_trial, scopes);
		memcpy(spill_now, seek->spill_trial, tensors);
	}
}

static void climb(struct plan_seek *seek)
{
	while (goes_on(seek) && (try_scopes(seek) || try_tensors(seek)))
		;
}

/* Spill everything that can be spilled, then flip tensor by tensor. */
void spw_plan__seek_refine(struct plan_seek *seek, uint32_t tries)
{
	seek->tries_left = tries;
	take_best(seek);
	memset(seek->spill_trial, 1, seek->recompute->step->count);
	(void)try(seek);
	(void)try_tensors(seek);
}

/* The step is short enough: keep, scope by scope, tensors that need not be spilled. */
void spw_plan__seek_spare(struct plan_seek *seek, uint32_t tries)
{
	struct plan_bounds bounds = {.peak = seek->limit + PLAN_TOLERANCE_BYTES};

	(void)PLAN_HOLDS(seek->fits && seek->best_ns <= seek->enough_ns + PLAN_TOLERANCE_NS);
	for (uint32_t s = 0; s < seek->recompute->scopes->count && tries > 0; s++) {
		struct plan_outcome outcome;
		double least_ns;

		take_best(seek);
		spill_scope(seek, s, 0);
		if (memcmp(seek->spill_trial, seek->spill_best, seek->recompute->step->count) == 0)
			continue;
		tries--;
		least_ns = set_trial(seek);
		bounds.written = seek->best.written;
		bounds.stall_ns = seek->enough_ns - least_ns + PLAN_TOLERANCE_NS;
		spw_plan__recompute_simulate(seek->recompute, seek->spill_trial, seek->limit,
					     &bounds, NULL, &outcome);
		if (!outcome.abandoned && !outcome.forever && outcome.written <= seek->best.written)
			take_trial(seek, &outcome, least_ns + outcome.stall_ns);
	}
}

/* ---- The order ---- */

/* Van der Corput's sequence, 0, 1/2, 1/4, 3/4 ...: neighbours are far apart. */
static uint32_t corput(uint32_t k)
{
	uint32_t reversed = 0;

	for (unsigned bit = 0; bit < 32; bit++)
		reversed |= (k >> bit & 1) << (31 - bit);
	return reversed;
}

static double given_bytes(const struct plan_recompute *recompute, uint32_t s)
{
	double bytes = 0;

	for (uint32_t k = recompute->first[s]; k < recompute->first[s + 1]; k++)
		if (recompute->giving[recompute->members[k]])
			bytes += recompute->base.bytes[recompute->members[k]];
	return bytes;
}

/* Whether a scope's tensors are needed before it can be recomputed, as in a pass's last scope. */
static bool is_wanted_at_once(const struct plan_recompute *recompute, uint32_t s)
{
	double saved_ns = 0, wanted_ns = INFINITY;

	for (uint32_t k = recompute->first[s]; k < recompute->first[s + 1]; k++) {
		uint32_t i = recompute->members[k];

		if (!recompute->giving[i])
			continue;
		saved_ns = fmax(saved_ns, recompute->base.pack_ns[i]);
		wanted_ns = fmin(wanted_ns, recompute->base.use_ns[i]);
	}
	return wanted_ns - saved_ns < (double)recompute->scopes->scopes[s].again_ns;
}

/*
 * A sort key: the most useful scopes come first, scopes of about the same use are spread over the
 * step, and scopes that free next to nothing come last.
 */
static uint64_t key_of(const struct plan_recompute *recompute, uint32_t s, double alike,
		       double min_gain)
{
	double bytes = given_bytes(recompute, s),
	       ns = (double)recompute->scopes->scopes[s].again_ns;
	double worth = floor(log((bytes + 1) / (ns > 1 ? ns : 1)) / log(alike));
	bool last = bytes < min_gain || is_wanted_at_once(recompute, s);

	/* Worth is bounded: at most 2^62 bytes in at least 1 ns. */
	return (uint64_t)(last ? 8192 : 4096 - worth) << 32 | corput(s);
}

static int compare_worth(const void *a, const void *b)
{
	const struct plan_worth *one = a, *other = b;

	return (one->key > other->key) - (one->key < other->key);
}

/* Scopes up to @alike times as useful count as the same, and are spread over the step. */
static void set_order(struct plan_seek *seek, double alike)
{
	const struct plan_recompute *recompute = seek->recompute;
	double bytes = 0;

	for (uint32_t s = 0; s < recompute->scopes->count; s++)
		bytes += given_bytes(recompute, s);
	seek->order_count = 0;
	for (uint32_t s = 0; s < recompute->scopes->count; s++)
		if (recompute->may[s])
			seek->worth[seek->order_count++] = (struct plan_worth){
				.key = key_of(recompute, s, alike,
					      bytes / MIN_GAIN_PART / recompute->scopes->count),
				.scope = s};
	SPW_ASSERT(seek->order_count <= recompute->scopes->count);
	qsort(seek->worth, seek->order_count, sizeof(*seek->worth), compare_worth);
	seek->least_ns[0] = recompute->compute_ns;
	for (uint32_t k = 0; k < seek->order_count; k++) {
		seek->order[k] = seek->worth[k].scope;
		seek->least_ns[k + 1] = seek->least_ns[k] +
					(double)recompute->scopes->scopes[seek->order[k]].again_ns;
	}
}

void spw_plan__seek(struct plan_seek *seek, uint32_t tries)
{
	static const struct {
		double alike;
		uint32_t tries; /* divisor of all tries */
	} orders[] = {{1.15, 2}, {1e300, 6}};
	uint32_t left = tries;

	for (unsigned k = 0; k < SPW_ARRAY_LEN(orders); k++) {
		seek->tries_left += tries / orders[k].tries;
		left -= tries / orders[k].tries;
		set_order(seek, orders[k].alike);
		if (seek->enough_ns > 0)
			scan_down(seek);
		else
			scan(seek);
	}
	seek->tries_left += left;
	climb(seek);
	anneal(seek);
	seek->tries_left = 0;
}
