/* SPDX-License-Identifier: MIT */
/*
 * tensor/control/background_traffic.c - I/O of other users of the store in a step, for the planner
 *
 * The record has how many bytes they had moved at what compute time. When a step has ended, each of
 * its equal parts gets its share, smoothed over steps. How long the step will be is not known while
 * it is recorded: when the record is full, every second point is dropped.
 */
#include <math.h>

#include "tensor/control/background_traffic.h"
#include "tensor/control/internal.h"
#include "tensor/control/recording.h"
#include "tensor/control/wear.h"

#define WIDTH_NS_MIN 1000u

/* More or less in a step than what was planned for, in parts of what the drives can do in it. */
#define FLOWS_DRIFT 0.05

static void thin_out(struct background_record *record)
{
	record->used /= 2;
	for (uint32_t i = 0; i < record->used; i++)
		record->points[i] = record->points[2 * i];
	record->width_ns *= 2;
}

static void put_point(struct background_record *record, uint64_t ns, const uint64_t bytes[])
{
	if (record->used == FLOW_POINTS)
		thin_out(record);
	record->points[record->used++] =
		(struct background_point){.ns = ns, .bytes = {bytes[0], bytes[1]}};
}

/* They have moved so much by now: since they were looked at the last time. */
static void add_point(struct background_record *record, uint64_t ns, const uint64_t bytes[])
{
	struct background_point *last = &record->points[record->used - 1];
	bool moved = last->bytes[0] != bytes[0] || last->bytes[1] != bytes[1];
	uint64_t still_ns = record->looked_ns;

	record->looked_ns = ns;
	if (!moved)
		return;
	if (ns < last->ns + record->width_ns && record->used > 1) {
		*last = (struct background_point){.ns = ns, .bytes = {bytes[0], bytes[1]}};
		return;
	}
	if (still_ns > last->ns) {
		const uint64_t before[] = {last->bytes[0], last->bytes[1]};

		put_point(record, still_ns, before);
	}
	put_point(record, ns, bytes);
}

void spw_control__external_traffic(struct control *control, const struct external_traffic *others)
{
	uint64_t ours = 0;
	bool moved = false;

	if (control->external_known)
		spw_control__wear_external(control,
					   (double)others->bytes[DIRECTION_WRITE] -
						   (double)control->external[DIRECTION_WRITE]);
	control->external_known = true;
	for (unsigned i = 0; i < DIRECTIONS; i++) {
		ours += control->measure.flows[i].bytes_in_flight;
		moved |= others->bytes[i] > control->external[i];
		control->external[i] = others->bytes[i];
	}
	spw_control__measure_external(&control->measure, others->in_flight_bytes > ours, moved);
	if (control->recording)
		add_point(&control->background_record, spw_control__recording_compute_ns(control),
			  control->external);
}

void spw_control__background_begin(struct control *control)
{
	control->background_record.used = 0;
	control->background_record.looked_ns = 0;
	control->background_record.width_ns = WIDTH_NS_MIN;
	put_point(&control->background_record, 0, control->external);
}

/* ---- A step has ended ---- */

/* How much they had moved by then, evenly between two points. */
static double moved_by(const struct background_record *record, unsigned direction, double ns)
{
	const struct background_point *points = record->points;
	uint32_t i = 0;
	double from, to, share;

	while (i + 1 < record->used && (double)points[i + 1].ns < ns)
		i++;
	from = (double)points[i].bytes[direction];
	if (i + 1 == record->used)
		return from;
	to = (double)points[i + 1].bytes[direction];
	share = (ns - (double)points[i].ns) / fmax((double)(points[i + 1].ns - points[i].ns), 1);
	return from + (to - from) * share;
}

void spw_control__background_merge(struct control *control, bool replace)
{
	const struct recording *now = &control->now;
	double part_ns = (double)(now->forward_ns + now->backward_ns) / FLOW_PARTS;

	for (unsigned d = 0; d < DIRECTIONS; d++) {
		double before = moved_by(&control->background_record, d, 0);

		for (unsigned k = 0; k < FLOW_PARTS; k++) {
			double *part = &control->signature->flows[k][d];
			double by = moved_by(&control->background_record, d, part_ns * (k + 1));
			double bytes = by > before ? by - before : 0;

			*part = replace ? bytes : (*part + bytes) / 2;
			before = by;
		}
	}
}

/* ---- For the planner ---- */

/* Of the drives' time in a step, roughly, as writes and reads may differ. */
double spw_control__background_share(const struct control *control)
{
	const struct spw_plan_drives *drives = &control->measure.drives;
	double seconds = (double)(control->signature->reference.forward_ns +
				  control->signature->reference.backward_ns) /
			 1e9;
	double bytes = 0;

	for (unsigned k = 0; k < FLOW_PARTS; k++)
		bytes += control->signature->flows[k][DIRECTION_WRITE] +
			 control->signature->flows[k][DIRECTION_READ];
	if (drives->write_bytes_per_second == 0 || seconds <= 0)
		return 0;
	return bytes / (seconds * (double)drives->write_bytes_per_second);
}

bool spw_control__background_drifted(const struct control *control)
{
	double now = spw_control__background_share(control),
	       then = control->signature->plan.flows_share;

	return now > then + FLOWS_DRIFT || now < then - FLOWS_DRIFT;
}

uint32_t spw_control__background_plan(const struct control *control, struct spw_plan_flow flows[])
{
	const struct recording *reference = &control->signature->reference;
	uint64_t part_ns = (reference->forward_ns + reference->backward_ns) / FLOW_PARTS;
	uint32_t count = 0;

	if (spw_control__background_share(control) < STALL_TOLERANCE || part_ns == 0)
		return 0;
	for (unsigned k = 0; k < FLOW_PARTS; k++) {
		const double *part = control->signature->flows[k];

		if (part[DIRECTION_WRITE] + part[DIRECTION_READ] >= 1)
			flows[count++] = (struct spw_plan_flow){
				.from_ns = k * part_ns,
				.ns = part_ns,
				.bytes_read = (uint64_t)part[DIRECTION_READ],
				.bytes_written = (uint64_t)part[DIRECTION_WRITE],
			};
	}
	return count;
}
