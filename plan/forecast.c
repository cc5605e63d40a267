/* SPDX-License-Identifier: MIT */
/*
 * plan/forecast.c - forecast when each tensor is out of memory, without a simulation
 *
 * Writes and reads each have a fixed rate, whatever the other does; the simulation shows what
 * sharing changes. A forecast is one pass over the tensors, a fraction of a simulation.
 */
#include "plan/internal.h"

#include <string.h>

#include "util/util.h"

/* ---- Writes ---- */

/* The bytes that wait to be written or are being written when the next tensor is packed. */
struct staged {
	const struct plan_work *work;
	const uint8_t *counted; /* the tensors that are written */
	uint32_t oldest;        /* the first of these, as an index of work->by_pack */
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

/* Find the first event not before @ns, searching from @event. */
static uint32_t event_from(const struct plan_work *work, uint32_t event, double ns)
{
	while (event > 0 && work->events[event - 1].ns >= ns)
		event--;
	while (event < work->event_count && work->events[event].ns < ns)
		event++;
	return event;
}

/*
 * Time the writes, in the order of packing; a device's tensor is written after its copy. @wasted:
 * include writes that end too late to free memory
 */
static void time_writes(struct plan_work *work, const struct plan_rates *rates,
			const uint8_t *spill, bool wasted)
{
	/* In locals: to the compiler, a store to a byte array may alias anything. */
	uint8_t *out = work->forecast.out, *written = work->forecast.written;
	double *written_ns = work->forecast.written_ns;
	const double *pack_ns = work->pack_ns, *wanted_ns = work->wanted_ns, *bytes = work->bytes;
	const uint32_t *by_pack = work->by_pack;
	struct staged staged = {.work = work, .counted = written};
	double free_ns = 0, rate = rates->write, delay_ns = rates->write_delay_ns;
	double copied_ns = 0, copy_ns = rates->write_copy_ns;
	bool bounded = work->staging < PLAN_NEVER_NS;
	uint32_t event = 0, count = work->count;

	for (uint32_t k = 0; k < count; k++) {
		uint32_t i = by_pack[k];
		double ready_ns = pack_ns[i], begin_ns, end_ns, left_ns;
		bool begins;

		out[i] = written[i] = 0;
		if (copy_ns > 0)
			ready_ns = SPW_MAX(ready_ns, copied_ns) + bytes[i] * copy_ns;
		begin_ns = SPW_MAX(ready_ns, free_ns);
		begins = begin_ns < wanted_ns[i];
		if (spill[i] && work->in_host[i] && ready_ns < wanted_ns[i]) {
			event = event_from(work, event, ready_ns);
			written_ns[i] = PLAN_NEVER_NS; /* it is only copied back */
			work->forecast.out_ns[i] = work->events[event].ns;
			out[i] = work->events[event].ns < wanted_ns[i];
			copied_ns = out[i] || wasted ? ready_ns : copied_ns;
			continue;
		}
		if (!spill[i] || rate <= 0 || work->in_host[i] ||
		    (!begins && (copy_ns <= 0 || ready_ns >= wanted_ns[i])))
			continue;
		if (bounded)
			staged_until(&staged, k, pack_ns[i]);
		if (bounded && staged.bytes + bytes[i] > work->staging)
			continue;
		end_ns = begins ? begin_ns + bytes[i] / rate : free_ns;
		written_ns[i] = end_ns + delay_ns;
		left_ns = copy_ns > 0 ? ready_ns : written_ns[i];
		if (left_ns < wanted_ns[i]) {
			event = event_from(work, event, left_ns);
			SPW_ASSERT(event < work->event_count);
			work->forecast.out_ns[i] = work->events[event].ns;
			out[i] = work->events[event].ns < wanted_ns[i];
		}
		written[i] = out[i] || wasted;
		if (!written[i])
			continue;
		free_ns = end_ns;
		copied_ns = ready_ns;
		staged.bytes += bytes[i];
	}
}

/* ---- Reads ---- */

/*
 * Time the reads as late as possible, from the last use to the first. A tensor that would not be
 * out by then stays in memory; one of a device that is not yet written is only copied back.
 */
static bool time_reads_back(struct plan_work *work, const struct plan_rates *rates, uint8_t *spill)
{
	struct plan_forecast *forecast = &work->forecast;
	double next_ns = PLAN_NEVER_NS, next_copy_ns = PLAN_NEVER_NS;
	bool dropped = false;

	for (uint32_t k = work->count; k-- > 0;) {
		uint32_t i = work->by_use[k];
		double copy_ns = work->use_ns[i] - rates->read_delay_ns - PLAN_TOLERANCE_NS, end_ns,
		       begin_ns;

		if (!forecast->out[i] || !work->used[i])
			continue;
		if (work->in_host[i])
			copy_ns += rates->read_delay_ns;
		if (copy_ns > next_copy_ns)
			copy_ns = next_copy_ns;
		copy_ns -= work->bytes[i] * rates->read_copy_ns;
		end_ns = copy_ns;
		if (end_ns > next_ns)
			end_ns = next_ns;
		begin_ns = end_ns - work->bytes[i] / rates->read;
		if (rates->write_copy_ns > 0 && begin_ns < forecast->written_ns[i])
			begin_ns = end_ns;
		if (begin_ns <= forecast->out_ns[i]) {
			spill[i] = 0;
			dropped = true;
			continue;
		}
		(void)PLAN_HOLDS(begin_ns <= next_ns && begin_ns < work->use_ns[i]);
		forecast->read_begin_ns[i] = next_ns = begin_ns;
		next_copy_ns = copy_ns;
	}
	return dropped;
}

static void time_reads_on_demand(struct plan_work *work)
{
	for (uint32_t i = 0; i < work->count; i++)
		work->forecast.read_begin_ns[i] = work->use_ns[i];
}

/* ---- Memory over time ---- */

/* The first tensor that leaves memory, at or after @k in the order of packing. */
static uint32_t next_out(const struct plan_work *work, uint32_t k)
{
	const uint8_t *out = work->forecast.out;

	while (k < work->count && !out[work->by_pack[k]])
		k++;
	return k;
}

/* The first tensor that is read, at or after @k in the order of use. */
static uint32_t next_read(const struct plan_work *work, uint32_t k)
{
	const uint8_t *out = work->forecast.out, *used = work->used;

	while (k < work->count && !(out[work->by_use[k]] && used[work->by_use[k]]))
		k++;
	return k;
}

static double out_ns(const struct plan_work *work, uint32_t k)
{
	return k < work->count ? work->forecast.out_ns[work->by_pack[k]] : PLAN_NEVER_NS;
}

static double read_ns(const struct plan_work *work, uint32_t k)
{
	return k < work->count ? work->forecast.read_begin_ns[work->by_use[k]] : PLAN_NEVER_NS;
}

struct points {
	double *ns, *bytes;
	uint32_t count;
};

static void add_point(struct points *points, double ns, double bytes)
{
	points->ns[points->count] = ns;
	points->bytes[points->count++] = bytes;
}

static double highest(const struct points *points)
{
	double peak = 0;

	for (uint32_t k = 0; k < points->count; k++)
		peak = points->bytes[k] > peak ? points->bytes[k] : peak;
	return peak;
}

/*
 * Merge events and transfers by time. At equal times: reads that begin (but after a pack), the
 * event, the memory that it releases.
 */
static void merge_points(struct plan_work *work)
{
	struct plan_forecast *forecast = &work->forecast;
	struct points points = {.ns = forecast->point_ns, .bytes = forecast->point_bytes};
	uint32_t out = next_out(work, 0), read = next_read(work, 0);
	double next_out_ns = out_ns(work, out), next_read_ns = read_ns(work, read), bytes = 0;

	for (uint32_t k = 0; k < work->event_count; k++) {
		const struct plan_event *event = &work->events[k];
		double ns = event->ns;
		uint32_t i = event->tensor;

		while (next_read_ns < ns || (next_read_ns <= ns && event->kind != PLAN_PACK)) {
			uint32_t reading = work->by_use[read];

			forecast->point_in[reading] = points.count;
			bytes += work->bytes[reading];
			add_point(&points, next_read_ns, bytes);
			read = next_read(work, read + 1);
			next_read_ns = read_ns(work, read);
		}
		if (event->kind == PLAN_RELEASE && forecast->out[i] && !work->used[i]) {
			forecast->point_in[i] = points.count;
		} else if (event->kind == PLAN_PACK || event->kind == PLAN_RELEASE) {
			bytes += event->kind == PLAN_PACK ? work->bytes[i] : -work->bytes[i];
			add_point(&points, ns, bytes);
		}
		while (next_out_ns <= ns) {
			uint32_t written = work->by_pack[out];

			forecast->point_out[written] = points.count;
			bytes -= work->bytes[written];
			add_point(&points, ns, bytes);
			out = next_out(work, out + 1);
			next_out_ns = out_ns(work, out);
		}
	}
	/* All reads and all releases have been merged. */
	SPW_ASSERT(read == work->count && out == work->count);
	forecast->points = points.count;
	forecast->peak = highest(&points);
	(void)PLAN_HOLDS(forecast->peak <=
			 work->keep_all_peak * (1 + PLAN_ROUNDED_PART) + PLAN_TOLERANCE_BYTES);
}

/* ---- Forecasts ---- */

void spw_plan__forecast_choose(struct plan_work *work, const struct plan_rates *rates,
			       enum plan_reads reads, uint8_t *spill)
{
	spw_plan__host_assign(work, spill);
	time_writes(work, rates, spill, false);
	SPW_ASSERT(spill != work->forecast.out);
	memcpy(spill, work->forecast.out, work->count);
	if (reads == PLAN_READS_ON_DEMAND)
		time_reads_on_demand(work);
	else if (time_reads_back(work, rates, spill))
		/* the remaining writes end earlier now, so their tensors still leave memory */
		time_writes(work, rates, spill, false);
	merge_points(work);
}

void spw_plan__forecast_out(struct plan_work *work, const uint8_t *spill)
{
	time_writes(work, &work->alone, spill, true);
}
