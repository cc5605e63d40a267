/* SPDX-License-Identifier: MIT */
/*
 * tensor/plan_forecast.c - when each tensor is out of memory, in closed form: what the planner searches with
 *
 * Writes and reads each run at a rate of their own, whatever the other does; the simulation says what sharing changes.
 * One pass per question, so a forecast costs a fraction of a simulation.
 */
#include "tensor/plan_internal.h"

#include <string.h>

/* ---- Writes ---- */

/* Those before it, in the order of packing, that wait for their write or are written when the next one is packed. */
struct staged {
	const struct plan_work *work;
	const uint8_t *counted; /* who is written */
	uint32_t oldest;        /* the first of those in work->by_pack */
	double bytes;
};

static void staged_until(struct staged *staged, uint32_t end, double ns)
{
	const struct plan_work *work = staged->work;

	for (; staged->oldest < end; staged->oldest++) {
		uint32_t i = work->by_pack[staged->oldest];

		if (!staged->counted[i])
			continue;
		if (work->forecast.written_ns[i] > ns)
			return;
		staged->bytes -= work->bytes[i];
	}
}

/* The first event not before @ns, near the one at @event. */
static uint32_t event_from(const struct plan_work *work, uint32_t event, double ns)
{
	while (event > 0 && work->events[event - 1].ns >= ns)
		event--;
	while (event < work->event_count && work->events[event].ns < ns)
		event++;
	return event;
}

/* Writes in the order of packing. @wasted: those that end too late to give memory back take their time all the same. */
static void time_writes(struct plan_work *work, const struct plan_rates *rates, const uint8_t *spill, bool wasted)
{
	struct plan_forecast *forecast = &work->forecast;
	struct staged staged = {.work = work, .counted = forecast->written};
	double free_ns = 0;
	uint32_t event = 0;

	for (uint32_t k = 0; k < work->count; k++) {
		uint32_t i = work->by_pack[k];
		double begin_ns = work->pack_ns[i] > free_ns ? work->pack_ns[i] : free_ns, end_ns;

		forecast->out[i] = forecast->written[i] = 0;
		if (!spill[i] || rates->write <= 0 || begin_ns >= work->wanted_ns[i])
			continue;
		staged_until(&staged, k, work->pack_ns[i]);
		if (staged.bytes + work->bytes[i] > work->staging)
			continue;
		end_ns = begin_ns + work->bytes[i] / rates->write;
		forecast->written_ns[i] = end_ns + rates->write_delay_ns;
		if (forecast->written_ns[i] < work->wanted_ns[i]) {
			event = event_from(work, event, forecast->written_ns[i]);
			forecast->out_ns[i] = work->events[event].ns;
			forecast->out[i] = forecast->out_ns[i] < work->wanted_ns[i];
		}
		forecast->written[i] = forecast->out[i] || wasted;
		if (!forecast->written[i])
			continue;
		free_ns = end_ns;
		staged.bytes += work->bytes[i];
	}
}

/* ---- Reads ---- */

/* Reads as late as possible, from the last use to the first; what would have to be read before it is out stays. */
static bool time_reads_back(struct plan_work *work, const struct plan_rates *rates, uint8_t *spill)
{
	struct plan_forecast *forecast = &work->forecast;
	double next_ns = PLAN_NEVER_NS;
	bool dropped = false;

	for (uint32_t k = work->count; k-- > 0;) {
		uint32_t i = work->by_use[k];
		double end_ns = work->use_ns[i] - rates->read_delay_ns - PLAN_TOLERANCE_NS, begin_ns;

		if (!forecast->out[i] || !work->used[i])
			continue;
		if (end_ns > next_ns)
			end_ns = next_ns;
		begin_ns = end_ns - work->bytes[i] / rates->read;
		if (begin_ns <= forecast->out_ns[i]) {
			spill[i] = 0;
			dropped = true;
			continue;
		}
		forecast->read_begin_ns[i] = next_ns = begin_ns;
	}
	return dropped;
}

static void time_reads_on_demand(struct plan_work *work)
{
	for (uint32_t i = 0; i < work->count; i++)
		work->forecast.read_begin_ns[i] = work->use_ns[i];
}

/* ---- Memory over time ---- */

/* The points so far, and who comes next of those that are given back, by pack, and of those that are read, by use. */
struct merge {
	const struct plan_work *work;
	double *point_ns, *point_bytes;
	double bytes, peak;
	uint32_t points;
	uint32_t pack_order, use_order; /* how far they have been gone through */
	uint32_t given_back, read;
	double give_back_ns, read_ns; /* PLAN_NEVER_NS: there is no further one */
};

static void add_point(struct merge *merge, double ns, double change)
{
	merge->bytes += change;
	if (merge->bytes > merge->peak)
		merge->peak = merge->bytes;
	merge->point_ns[merge->points] = ns;
	merge->point_bytes[merge->points++] = merge->bytes;
}

static void next_to_give_back(struct merge *merge)
{
	const struct plan_work *work = merge->work;
	const uint8_t *out = work->forecast.out;
	uint32_t k = merge->pack_order;

	while (k < work->count && !out[work->by_pack[k]])
		k++;
	merge->give_back_ns = PLAN_NEVER_NS;
	if (k < work->count) {
		merge->given_back = work->by_pack[k++];
		merge->give_back_ns = work->forecast.out_ns[merge->given_back];
	}
	merge->pack_order = k;
}

static void next_to_read(struct merge *merge)
{
	const struct plan_work *work = merge->work;
	const uint8_t *out = work->forecast.out, *used = work->used;
	uint32_t k = merge->use_order;

	while (k < work->count && !(out[work->by_use[k]] && used[work->by_use[k]]))
		k++;
	merge->read_ns = PLAN_NEVER_NS;
	if (k < work->count) {
		merge->read = work->by_use[k++];
		merge->read_ns = work->forecast.read_begin_ns[merge->read];
	}
	merge->use_order = k;
}

/* Reads that begin before @ns, or also those at @ns. */
static void merge_reads(struct merge *merge, double ns, bool at_ns)
{
	while (merge->read_ns < ns || (at_ns && merge->read_ns <= ns)) {
		merge->work->forecast.point_in[merge->read] = merge->points;
		add_point(merge, merge->read_ns, merge->work->bytes[merge->read]);
		next_to_read(merge);
	}
}

/* What the event at @ns gives back. */
static void merge_writes(struct merge *merge, double ns)
{
	while (merge->give_back_ns <= ns) {
		merge->work->forecast.point_out[merge->given_back] = merge->points;
		add_point(merge, ns, -merge->work->bytes[merge->given_back]);
		next_to_give_back(merge);
	}
}

/* At one time: reads that begin (before what is packed only if they begin earlier), the event, what it gives back. */
static void merge_points(struct plan_work *work, bool with_reads)
{
	struct plan_forecast *forecast = &work->forecast;
	struct merge merge = {.work = work,
			      .point_ns = forecast->point_ns,
			      .point_bytes = forecast->point_bytes,
			      .read_ns = PLAN_NEVER_NS};

	next_to_give_back(&merge);
	if (with_reads)
		next_to_read(&merge);
	for (uint32_t k = 0; k < work->event_count; k++) {
		const struct plan_event *event = &work->events[k];
		uint32_t i = event->tensor;

		merge_reads(&merge, event->ns, event->kind != PLAN_PACK);
		if (event->kind == PLAN_PACK)
			add_point(&merge, event->ns, work->bytes[i]);
		else if (event->kind == PLAN_RELEASE && forecast->out[i] && !work->used[i])
			forecast->point_in[i] = merge.points;
		else if (event->kind == PLAN_RELEASE)
			add_point(&merge, event->ns, -work->bytes[i]);
		merge_writes(&merge, event->ns);
	}
	forecast->points = merge.points;
	forecast->peak = merge.peak;
}

/* ---- Forecasts ---- */

void plan_forecast_choose(struct plan_work *work, const struct plan_rates *rates, enum plan_reads reads, uint8_t *spill)
{
	time_writes(work, rates, spill, false);
	memcpy(spill, work->forecast.out, work->count);
	if (reads == PLAN_READS_ON_DEMAND)
		time_reads_on_demand(work);
	else if (time_reads_back(work, rates, spill))
		time_writes(work, rates, spill, false); /* earlier now: all that is left still leaves memory */
	merge_points(work, true);
}

void plan_forecast_needs(struct plan_work *work, const uint8_t *spill)
{
	time_writes(work, &work->alone, spill, true);
	merge_points(work, false);
}
