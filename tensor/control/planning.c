/* SPDX-License-Identifier: MIT */
/* tensor/control/planning.c - what the planner is asked, and what its answer becomes */
#include <string.h>

#include "tensor/control/internal.h"
#include "plan/internal.h"

/*
 * A plan that spills nothing measures nothing. Every so many steps one tensor is spilled that would
 * come back in time; if so many times none would, then, and ever more seldom, the smallest.
 */
#define PROBE_STEPS 8u

static struct spw_plan_step step_of(struct control *control, bool keep_hints)
{
	const struct recording *basis = &control->shape->basis;

	for (uint32_t i = 0; i < basis->count; i++) {
		const struct recorded *recorded = &basis->tensors[i];
		bool must_keep = !recorded->plannable || recorded->hint == SPW_HINT_PIN ||
				 (keep_hints && recorded->hint == SPW_HINT_KEEP);

		control->tensors[i] = (struct spw_plan_tensor){
			.bytes = recorded->bytes,
			.pack_ns = recorded->pack_ns,
			.use_ns = recorded->use_ns,
			.release_ns = recorded->release_ns,
			.users = recorded->takes,
			.scope = recorded->scope,
			.must_keep = must_keep,
			.not_again = must_keep || recorded->not_again,
		};
	}
	return (struct spw_plan_step){.tensors = control->tensors,
				      .count = basis->count,
				      .forward_ns = basis->forward_ns,
				      .backward_ns = basis->backward_ns,
				      .calls_ns = basis->drains_ns,
				      .calls = basis->drains};
}

/*
 * Measured is how much longer a whole tensor takes than its bytes at full bandwidth. The planner
 * adds the time of a chunk by itself: when the last requests of a tensor end that others follow.
 */
static uint64_t latency_of(const struct spw_plan_drives *drives)
{
	double both =
		(double)drives->write_bytes_per_second + (double)drives->read_bytes_per_second;
	double chunk_ns = both > 0 ? (double)drives->chunk_bytes * 2e9 / both : 0;

	return (double)drives->latency_ns > chunk_ns ? drives->latency_ns - (uint64_t)chunk_ns : 0;
}

static struct spw_plan_drives drives_of(const struct control *control)
{
	const struct control_opts *opts = &control->opts;
	struct spw_plan_drives drives = control->shape->counted_on;
	double caution =
		opts->cache.mode == SPW_CACHE_POSITIONAL ? 1 : 1 / (1 + control->time.share);

	if (drives.read_bytes_per_second == 0)
		/* all was forwarded so far */
		drives.read_bytes_per_second = drives.write_bytes_per_second;
	drives.write_bytes_per_second = (uint64_t)((double)drives.write_bytes_per_second * caution);
	drives.read_bytes_per_second = (uint64_t)((double)drives.read_bytes_per_second * caution);
	drives.mixed_bytes_per_second = (uint64_t)((double)drives.mixed_bytes_per_second * caution);
	drives.bus_out_bytes_per_second =
		(uint64_t)((double)drives.bus_out_bytes_per_second * caution);
	drives.bus_in_bytes_per_second =
		(uint64_t)((double)drives.bus_in_bytes_per_second * caution);
	drives.chunk_bytes = opts->chunk_bytes * opts->drives;
	drives.latency_ns = latency_of(&drives);
	drives.staging_bytes = opts->cache.staging_bytes;
	if (drives.bus_out_bytes_per_second > 0 && opts->arena_bytes > 0)
		drives.staging_bytes = SPW_MIN(drives.staging_bytes, opts->arena_bytes);
	return drives;
}

static struct spw_plan_opts plan_opts_of(const struct control *control)
{
	struct spw_plan_opts opts;

	spw_plan_opts_init(&opts, sizeof(opts));
	if (control->opts.cache.mode == SPW_CACHE_BUDGET)
		opts.mode = SPW_PLAN_BUDGET;
	else if (control->opts.cache.mode == SPW_CACHE_POSITIONAL)
		opts.mode = SPW_PLAN_POSITIONAL;
	opts.bytes_written_max = control->shape->written_max;
	opts.memory_bytes = control->opts.cache.memory_bytes;
	opts.memory_bytes -= (uint64_t)((double)opts.memory_bytes * control->shape->memory.share);
	return opts;
}

/* The caller wants these spilled. */
static int force_spills(struct control *control, const struct spw_plan_step *step,
			const struct spw_plan_drives *drives)
{
	struct shape *shape = control->shape;
	bool forced = false;

	for (uint32_t i = 0; i < step->count; i++)
		if (shape->basis.tensors[i].hint == SPW_HINT_SPILL &&
		    shape->choices[i] == SPW_PLAN_KEEP && !step->tensors[i].must_keep) {
			shape->choices[i] = SPW_PLAN_SPILL;
			forced = true;
		}
	if (!forced)
		return 0;
	if (spw_again_plans(control))
		return spw_again_simulate(control, step, drives);
	return spw_plan_simulate(step, drives, shape->result.memory_bytes, shape->choices, NULL, 0,
				 &shape->result);
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

static int plan(struct control *control, const struct spw_plan_step *step,
		const struct spw_plan_drives *drives, const struct spw_plan_opts *opts)
{
	struct shape *shape = control->shape;

	if (spw_again_plans(control))
		return spw_again_plan(control, step, drives, opts);
	return spw_plan(step, drives, opts, shape->choices, &shape->result);
}

static int schedule(struct control *control, const struct spw_plan_step *step,
		    const struct spw_plan_drives *drives)
{
	struct shape *shape = control->shape;
	struct plan_schedule reads = {.from_ns = shape->read_from_ns, .order = shape->use_order};
	int rc;

	if (spw_again_plans(control))
		return spw_again_schedule(control, step, drives);
	memset(shape->hold_ns, 0, step->count * sizeof(*shape->hold_ns));
	rc = spw_planner_schedule(step, drives, shape->result.memory_bytes, shape->choices, &reads);
	shape->use_count = reads.count;
	return rc;
}

int spw_planning_plan(struct control *control)
{
	struct shape *shape = control->shape;
	struct spw_plan_opts opts;
	struct spw_plan_step step = step_of(control, true);
	struct spw_plan_drives drives;
	int rc;

	control->probe = NO_TENSOR; /* of the plan before: what is read from now on is this one's */
	shape->counted_on = spw_margin_believed(control);
	shape->wear_step_bytes = spw_wear_step_bytes(control);
	shape->written_max = spw_margin_written_max(shape);
	opts = plan_opts_of(control);
	drives = drives_of(control);
	shape->result = (struct spw_plan_result){.size = sizeof(shape->result)};
	rc = plan(control, &step, &drives, &opts);
	if (rc == 0 && !shape->result.feasible) {
		step = step_of(control, false);
		rc = plan(control, &step, &drives, &opts);
	}
	if (rc == 0)
		rc = force_spills(control, &step, &drives);
	if (rc == 0)
		rc = schedule(control, &step, &drives);
	if (rc)
		shape->use_count = 0;
	shape->lead_ns = lead_of(&step);
	return rc;
}

int spw_planning_explain(struct control *control, struct spw_plan_reason reasons[])
{
	const struct spw_plan_step step = step_of(control, control->shape->result.feasible);
	const struct spw_plan_drives drives = drives_of(control);

	return spw_again_explain(control, &step, &drives, reasons);
}

/* ---- Probes ---- */

/*
 * What comes back in time if the drives are as they were the last time known, or stalls the step by
 * next to nothing. @any: they may be better than they were: then the smallest tensor of all.
 */
static uint32_t probe_of(const struct control *control, bool any)
{
	const struct shape *shape = control->shape;
	const struct spw_plan_drives drives = drives_of(control);
	double spare_ns = NEGLIGIBLE / 2 * (double)shape->result.wall_ns;
	uint32_t best = NO_TENSOR;

	for (uint32_t i = 0; i < shape->basis.count; i++) {
		const struct recorded *recorded = &shape->basis.tensors[i];
		double there_ns =
			(double)recorded->bytes / ((double)spw_margin_mixed(&drives) / 1e9) +
			(double)drives.latency_ns;
		double gap_ns = (double)(recorded->use_ns - recorded->pack_ns);

		if (!recorded->plannable || recorded->takes == 0 ||
		    recorded->hint != SPW_HINT_NONE || (!any && 2 * there_ns > gap_ns + spare_ns))
			continue;
		if (best == NO_TENSOR || recorded->bytes < shape->basis.tensors[best].bytes)
			best = i;
	}
	return best;
}

/* The tensor to try the drives with in this step, or NO_TENSOR. */
static uint32_t probe_now(const struct control *control)
{
	uint64_t probes = control->unmeasured / PROBE_STEPS;
	uint32_t probe;

	if (control->unmeasured % PROBE_STEPS > 0)
		return NO_TENSOR;
	probe = probe_of(control, false);
	if (probe == NO_TENSOR && probes >= PROBE_STEPS && (probes & (probes - 1)) == 0)
		probe = probe_of(control, true);
	return probe;
}

void spw_planning_probe(struct control *control)
{
	struct shape *shape = control->shape;
	const struct recorded *recorded;

	if (control->probe != NO_TENSOR) {
		control->probe = NO_TENSOR;
		shape->use_count = 0;
	}
	if (shape->result.tensors_spilled > 0)
		control->unmeasured = 0;
	if (control->opts.cache.mode != SPW_CACHE_FASTEST || shape->result.tensors_spilled > 0 ||
	    control->opts.drives == 0)
		return;
	control->unmeasured++;
	control->probe = probe_now(control);
	if (control->probe == NO_TENSOR)
		return;
	recorded = &shape->basis.tensors[control->probe];
	control->opts.count->plan_probes++;
	shape->use_order[0] = control->probe;
	shape->use_count = 1;
	shape->read_from_ns[control->probe] =
		recorded->planned_pack_ns / 2 + recorded->planned_use_ns / 2;
}
