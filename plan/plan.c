/* SPDX-License-Identifier: MIT */
/*
 * plan/plan.c - the planner: keep or spill each tensor, from a measured step and measured drives
 *
 * The model (plan/simulate.c)
 *   Compute    has a clock of its own. It stops only while a tensor that it uses is not in memory:
 *              that is the stall. It never waits for a write.
 *   Memory     of a tensor is in use from its packing to its release, except from the first event
 *              after the end of its write to the beginning of its read. An event is anything that
 *              compute does with a tensor, or a call that only releases memory.
 *   Writes     start after packing, in that order, one tensor after the other at the bandwidth w.
 *              A tensor packed while more than staging_bytes wait to be written is kept.
 *   Reads      are in the order of use, at the bandwidth r, each as soon as the memory allows.
 *   Sharing    While both run, each gets half of the mixed bandwidth m, at most w and r.
 *   Requests   of tensors overlap, so latency costs no bandwidth. But a transfer has ended only
 *              latency + chunk / bandwidth after the drives have served its last byte.
 *   Bus        A device's tensors are copied to the host whole, one after the other in the order of
 *              packing. The memory is free from the first event after that, and the write begins
 *              no earlier. What is read is copied back afterwards, and nothing is read faster than
 *              it is copied. A tensor wanted after its copy and before the end of its write is only
 *              copied back.
 *   Forwarding A tensor that is used, or due to be read, while it is in memory stays there. A write
 *              that has not begun is cancelled; one that has begun counts as written.
 *
 * How early to prefetch, where compute is not throttled (fits_planned() in plan/simulate.c)
 *   N(t)  is the memory in use at compute time t if every read began only at its use.
 *   Tensor i may be read at time t if the memory M holds it until its use u(i), with all that is
 *   read before it:
 *              N(s) + bytes of all j used no later than i but after s  <=  M, for s in [t, u(i))
 *   With C(i), the bytes of all tensors used no later than i, and V(s) = N(s) - C(those used until
 *   s), this is
 *              max of V over [t, u(i))  +  C(i)  <=  M
 *   V includes the peak that the forward pass of the next micro-batch still brings. If reads begin
 *   as late as they can without a stall, the peak is P, and prefetching into M = P neither stalls
 *   nor exceeds P, unless reads and writes share the drives. So P takes one pass.
 *
 * A step with parts that may be recomputed is throttled to its memory limit, and has a search of
 * its own: plan/scopes.c.
 *
 * How it chooses (plan/choose.c)
 *   fastest    Spill everything that leaves memory at all: from the last use to the first, a tensor
 *              whose read would have to begin before its write has ended is kept. Where uses are
 *              in the reverse order of packing, that has the lowest P. For other steps it is also
 *              tried with the tensors of the shortest gaps kept, and with less bandwidth.
 *   budget     The same with reads on demand, where P is the lowest that any prefetching allows. If
 *              that is not low enough, the budget is P.
 *   repair     Then every tensor that need not be spilled for that peak, or for the budget, is kept
 *              again, in the order of benefit per byte: how long it would be out of memory while
 *              more than the limit is in use.
 *   limit      Where more than bytes_written_max would be written, the peak aimed at is raised, by
 *              halving the range, until the spills it needs are within the limit. Nothing that
 *              writes more is a candidate.
 *   The simulation decides between the candidates; keeping all is always one. Last, up to three
 *   tensors are flipped at a time, as long as a fixed amount of work is left.
 *
 * What it assumes
 *   The next step is like the measured one. Memory can be released and reused in any pieces.
 *   Compute is not slowed by transfers. There is one stream of compute. A peak within one tensor of
 *   the lowest is good enough: which sizes fit changes with the bandwidth.
 */
#include <spillway/plan.h>

#include "plan/internal.h"

/* The step alone: nothing is recomputed, and compute is not throttled. */
static int open_step(struct plan_again *again, struct spw_plan_scopes *none,
		     const struct spw_plan_step *step, const struct spw_plan_drives *drives)
{
	int rc;

	spw_plan_scopes_init(none, sizeof(*none));
	rc = spw_plan__again_open(again, step, drives, none);
	again->held.throttled = false;
	return rc;
}

int spw_plan(const struct spw_plan_step *step, const struct spw_plan_drives *drives,
	     const struct spw_plan_opts *caller, enum spw_plan_choice choices[],
	     struct spw_plan_result *result)
{
	struct spw_plan_result filled = {0};
	struct plan_found found;
	struct spw_plan_scopes none;
	struct spw_plan_opts opts;
	struct plan_again again;
	int rc = spw_plan__check_arguments(step, drives, choices, result);

	if (!rc)
		rc = spw_plan__check_opts(caller, &opts);
	if (!rc)
		rc = open_step(&again, &none, step, drives);
	if (rc)
		return rc;
	spw_plan__choose(&again, drives, &opts, &found);
	spw_plan__fill_result(&filled, &again.base, again.compute_ns, &found.outcome, found.spill);
	filled.feasible = found.feasible;
	filled.limited = found.limited;
	filled.memory_bytes = opts.mode == SPW_PLAN_BUDGET && found.feasible
				      ? opts.memory_bytes
				      : (uint64_t)found.memory;
	rc = spw_plan__check_whole();
	if (rc == 0)
		spw_plan__set_result(result, &filled);
	for (uint32_t i = 0; i < step->count && rc == 0; i++)
		choices[i] = found.spill[i] ? SPW_PLAN_SPILL : SPW_PLAN_KEEP;
	spw_plan__again_close(&again);
	return rc;
}

int spw_plan_simulate(const struct spw_plan_step *step, const struct spw_plan_drives *drives,
		      uint64_t memory_bytes, const enum spw_plan_choice choices[],
		      struct spw_plan_point points[], size_t points_max,
		      struct spw_plan_result *result)
{
	struct plan_profile profile = {.points = points, .points_max = points_max};
	struct spw_plan_result filled = {0};
	struct plan_outcome outcome;
	struct spw_plan_scopes none;
	struct plan_again again;
	uint8_t *spill;
	int rc = spw_plan__check_arguments(step, drives, choices, result);

	if (!rc)
		rc = open_step(&again, &none, step, drives);
	if (rc)
		return rc;
	spill = again.base.spill;
	for (uint32_t i = 0; i < step->count; i++)
		spill[i] = choices[i] == SPW_PLAN_SPILL;
	spw_plan__again_simulate(&again, spill, (double)memory_bytes, NULL,
				 points ? &profile : NULL, &outcome);
	spw_plan__fill_result(&filled, &again.base, again.compute_ns, &outcome, spill);
	filled.feasible = outcome.peak <= (double)memory_bytes;
	filled.memory_bytes = memory_bytes;
	filled.points = (uint32_t)profile.count;
	rc = spw_plan__check_whole();
	if (rc == 0)
		spw_plan__set_result(result, &filled);
	spw_plan__again_close(&again);
	return rc;
}
