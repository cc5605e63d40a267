/* SPDX-License-Identifier: MIT */
/* tensor/control/planning.c - what the planner is asked, and what its answer becomes */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "tensor/control/background_traffic.h"
#include "tensor/control/headroom.h"
#include "tensor/control/internal.h"
#include "tensor/control/planning.h"
#include "tensor/control/recompute.h"
#include "tensor/control/wear.h"

/*
 * A plan that spills nothing measures nothing. Every PROBE_STEPS steps that are seen it spills a
 * tensor that would be back in time. If there has been none for PROBE_STEPS such attempts, it
 * spills the smallest, and does so less and less often.
 */
#define PROBE_STEPS 8u

/*
 * From when a tensor that the caller has discarded is in memory: from its use on; if its scope is
 * recomputed from it, from the first use of any tensor of that.
 */
static uint64_t made_again_ns(const struct recording *reference, const struct recorded *discarded,
			      uint64_t use_ns)
{
	uint32_t input = reference->scopes[discarded->scope].input;

	if (input == NO_TENSOR || &reference->tensors[input] != discarded)
		return use_ns;
	for (uint32_t i = 0; i < reference->count; i++) {
		const struct recorded *recorded = &reference->tensors[i];

		if (recorded->scope == discarded->scope && recorded->takes > 0)
			use_ns = SPW_MIN(use_ns, recorded->use_ns);
	}
	return use_ns;
}

static struct spw_plan_step step_of(const struct asked *asked, bool keep_hints)
{
	const struct recording *reference = asked->reference;

	for (uint32_t i = 0; i < reference->count; i++) {
		const struct recorded *recorded = &reference->tensors[i];
		bool must_keep = !recorded->plannable || recorded->hint == SPW_HINT_PIN ||
				 recorded->decided ||
				 (keep_hints && recorded->hint == SPW_HINT_KEEP);
		uint64_t use_ns = recorded->takes > 0 ? recorded->use_ns : recorded->release_ns;

		asked->tensors[i] = (struct spw_plan_tensor){
			.bytes = recorded->bytes,
			.pack_ns = recorded->decided ? made_again_ns(reference, recorded, use_ns)
						     : recorded->pack_ns,
			.use_ns = recorded->use_ns,
			.release_ns = recorded->release_ns,
			.users = recorded->takes,
			.scope = recorded->scope,
			.must_keep = must_keep,
			.not_again = must_keep || recorded->no_recompute,
		};
	}
	return (struct spw_plan_step){.tensors = asked->tensors,
				      .count = reference->count,
				      .forward_ns = reference->forward_ns,
				      .backward_ns = reference->backward_ns,
				      .calls_ns = reference->drains_ns,
				      .calls = reference->drains};
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

static bool has_host(const struct control *control, const struct spw_plan_drives *measured)
{
	return control->host_bytes > 0 && measured->bus_out_bytes_per_second > 0 &&
	       measured->bus_in_bytes_per_second > 0;
}

bool spw_control__planning_has_host(const struct control *control)
{
	return has_host(control, &control->measure.drives);
}

bool spw_control__plans_host(const struct control *control)
{
	return has_host(control, &control->signature->plan.counted_on);
}

static struct spw_plan_drives drives_of(const struct control *control, const struct plan *plan)
{
	const struct control_opts *opts = &control->opts;
	struct spw_plan_drives drives = plan->counted_on;
	double caution = 1 / (1 + plan->time_share);

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
	if (has_host(control, &plan->counted_on)) {
		/* What waits to be written is in the arena, or beside what stays. */
		drives.host_bytes = control->host_bytes;
		drives.staging_bytes =
			(opts->drives > 0 ? drives.staging_bytes : 0) + control->host_bytes;
	}
	return drives;
}

static struct spw_plan_opts plan_opts_of(const struct control *control, const struct plan *plan)
{
	struct spw_plan_opts opts;

	spw_plan_opts_init(&opts, sizeof(opts));
	if (control->opts.cache.mode == SPW_CACHE_BUDGET)
		opts.mode = SPW_PLAN_BUDGET;
	opts.bytes_written_max = plan->written_max;
	opts.memory_bytes = control->opts.cache.memory_bytes;
	opts.memory_bytes -=
		(uint64_t)((double)opts.memory_bytes * control->signature->memory.share);
	return opts;
}

/* For a plan of the signature in force. */
static void ask(struct control *control, const struct plan *plan)
{
	struct asked *asked = &control->asked;

	asked->reference = &control->signature->reference;
	asked->drives = drives_of(control, plan);
	asked->opts = plan_opts_of(control, plan);
	asked->flows_count = spw_control__background_plan(control, asked->flows);
	asked->unthrottled =
		asked->flows_count == 0 && !spw_control__recompute_may(asked->reference);
}

void spw_control__planning_ask(struct control *control)
{
	struct plan *plan = &control->draft;

	plan->counted_on = spw_control__headroom_believed(control);
	plan->wear_step_bytes = spw_control__wear_step_bytes(control);
	plan->written_max =
		spw_control__headroom_written_max(control->signature, plan->wear_step_bytes);
	plan->flows_share = spw_control__background_share(control);
	plan->time_share = control->time.share;
	ask(control, plan);
}

/* ---- The search ---- */

/* The mean time between two tensors packed or used. */
static uint64_t lead_of(const struct spw_plan_step *step)
{
	uint64_t last_ns = 0;

	for (uint32_t i = 0; i < step->count; i++)
		if (step->tensors[i].users > 0 && step->tensors[i].use_ns > last_ns)
			last_ns = step->tensors[i].use_ns;
	return step->count > 0 ? last_ns / (2 * (uint64_t)step->count) : 0;
}

struct use {
	uint64_t ns;
	uint32_t which;
};

static int by_use(const void *a, const void *b)
{
	const struct use *one = a, *other = b;

	return (one->ns > other->ns) - (one->ns < other->ns);
}

/* The first use of each, also as the input of a recompute; UINT64_MAX: none. */
static void find_uses(const struct asked *asked, const struct spw_plan_step *step,
		      struct plan *plan)
{
	for (uint32_t i = 0; i < step->count; i++)
		plan->use_ns[i] = step->tensors[i].users > 0 ? step->tensors[i].use_ns : UINT64_MAX;
	for (uint32_t i = 0; i < step->count; i++) {
		uint64_t *input_ns;

		if (plan->choices[i] != SPW_PLAN_AGAIN)
			continue;
		input_ns = &plan->use_ns[asked->scopes[step->tensors[i].scope].input];
		*input_ns = SPW_MIN(*input_ns, step->tensors[i].use_ns);
	}
}

static int order_uses(const struct asked *asked, const struct spw_plan_step *step,
		      struct plan *plan)
{
	struct use *uses = calloc(step->count + (size_t)1, sizeof(*uses));
	uint32_t count = 0;

	if (!uses)
		return spw_error(-ENOMEM, "no memory for the uses of %u tensors", step->count);
	find_uses(asked, step, plan);
	for (uint32_t i = 0; i < step->count; i++)
		if (plan->use_ns[i] != UINT64_MAX)
			uses[count++] = (struct use){plan->use_ns[i], i};
	qsort(uses, count, sizeof(uses[0]), by_use);
	plan->use_count = count;
	for (uint32_t k = 0; k < count; k++)
		plan->use_order[k] = uses[k].which;
	free(uses);
	return 0;
}

/*
 * A budget that drives are too slow for is met by throttling compute; one that cannot be met
 * otherwise overrules hints. If it cannot be met at all, nothing waits for what would be in vain.
 */
static int choose_first_feasible(struct asked *asked, struct spw_plan_step *step, struct plan *plan)
{
	static const struct {
		bool keep_hints, unthrottled;
	} tries[] = {{true, true}, {true, false}, {false, false}, {false, true}};
	bool only_spills = asked->unthrottled;
	int rc = 0;

	plan->result.feasible = false;
	for (unsigned i = 0; i < SPW_ARRAY_LEN(tries) && rc == 0 && !plan->result.feasible; i++) {
		struct spw_plan_scopes scopes;

		if (tries[i].unthrottled && !only_spills)
			continue;
		asked->unthrottled = tries[i].unthrottled;
		plan->overrules = !tries[i].keep_hints;
		*step = step_of(asked, tries[i].keep_hints);
		scopes = spw_control__recompute_scopes(asked);
		rc = spw_plan_scopes(step, &asked->drives, &scopes, &asked->opts, plan->choices,
				     &plan->result);
	}
	return rc;
}

/* The bus copies one after the other, in the order in which they are saved. */
static void time_copies(const struct asked *asked, const struct spw_plan_step *step,
			struct plan *plan)
{
	double copied_ns = 0, bytes_per_ns = (double)asked->drives.bus_out_bytes_per_second / 1e9;

	for (uint32_t i = 0; i < step->count; i++) {
		double saved_ns = (double)(step->tensors[i].pack_ns + plan->throttle_ns[i]);

		plan->copied_ns[i] = 0;
		if (!spw_control__leaves(plan->choices[i]) || bytes_per_ns <= 0)
			continue;
		copied_ns = SPW_MAX(copied_ns, saved_ns) +
			    (double)step->tensors[i].bytes / bytes_per_ns;
		plan->copied_ns[i] = (uint64_t)copied_ns;
	}
}

int spw_control__planning_plan(struct asked *asked, struct plan *plan)
{
	struct spw_plan_step step;
	int rc;

	plan->result = (struct spw_plan_result){.size = sizeof(plan->result)};
	rc = choose_first_feasible(asked, &step, plan);
	if (rc == 0)
		rc = spw_control__recompute_schedule(asked, &step, plan);
	if (rc == 0)
		rc = order_uses(asked, &step, plan);
	if (rc == 0)
		time_copies(asked, &step, plan);
	plan->lead_ns = lead_of(&step);
	return rc;
}

int spw_control__planning_explain(struct control *control, struct spw_plan_reason reasons[])
{
	const struct plan *plan = &control->signature->plan;
	struct spw_plan_scopes scopes;
	struct spw_plan_step step;

	ask(control, plan);
	step = step_of(&control->asked, !plan->overrules);
	scopes = spw_control__recompute_scopes(&control->asked);
	return spw_plan_explain(&step, &control->asked.drives, &scopes, plan->result.memory_bytes,
				plan->choices, reasons);
}

/* ---- Probes ---- */

/*
 * What comes back in time if the drives are as they were the last time known, or stalls the step by
 * next to nothing. @any: they may be better than they were: then the smallest tensor of all.
 */
static uint32_t probe_of(const struct control *control, bool any)
{
	const struct signature *signature = control->signature;
	const struct spw_plan_drives drives = drives_of(control, &signature->plan);
	double spare_ns = STALL_TOLERANCE / 2 * (double)signature->plan.result.wall_ns;
	uint32_t best = NO_TENSOR;

	for (uint32_t i = 0; i < signature->reference.count; i++) {
		const struct recorded *recorded = &signature->reference.tensors[i];
		double there_ns = (double)recorded->bytes /
					  ((double)spw_control__headroom_mixed(&drives) / 1e9) +
				  (double)drives.latency_ns;
		double gap_ns = (double)(recorded->use_ns - recorded->pack_ns);

		if (!recorded->plannable || recorded->takes == 0 ||
		    recorded->hint != SPW_HINT_NONE || (!any && 2 * there_ns > gap_ns + spare_ns))
			continue;
		if (best == NO_TENSOR || recorded->bytes < signature->reference.tensors[best].bytes)
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

void spw_control__planning_probe(struct control *control)
{
	struct signature *signature = control->signature;
	const struct recorded *recorded;

	control->probe = NO_TENSOR;
	if (signature->plan.result.tensors_spilled > 0)
		control->unmeasured = 0;
	if (control->opts.cache.mode != SPW_CACHE_FASTEST ||
	    signature->plan.result.tensors_spilled > 0 || control->opts.drives == 0)
		return;
	control->unmeasured++;
	control->probe = probe_now(control);
	if (control->probe == NO_TENSOR)
		return;
	recorded = &signature->reference.tensors[control->probe];
	control->opts.count->plan_probes++;
	signature->plan.read_from_ns[control->probe] =
		recorded->planned_pack_ns / 2 + recorded->planned_use_ns / 2;
}
