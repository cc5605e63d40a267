/* SPDX-License-Identifier: MIT */
/*
 * plan/plan.c - spw_plan(): keep or spill each tensor, from a measured step and measured drives
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
 *   Host       Some of a device's tensors may stay in host memory, as far as it goes: copied out,
 *              not written, and copied back. Its other tensors that are spilled wait there for the
 *              drives. Which tensors stay follows from what is spilled (plan/host.c).
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
 * It is the search of plan/scopes.c, with nothing to recompute and compute that is not throttled.
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

/* Scopes for spw_plan(): nothing is recomputed, no slack, compute is not throttled. */
static struct spw_plan_scopes no_scopes(void)
{
	struct spw_plan_scopes none;

	spw_plan_scopes_init(&none, sizeof(none));
	none.slack = 0;
	none.unthrottled = true;
	return none;
}

int spw_plan(const struct spw_plan_step *step, const struct spw_plan_drives *drives,
	     const struct spw_plan_opts *opts, enum spw_plan_choice choices[],
	     struct spw_plan_result *result)
{
	const struct spw_plan_scopes none = no_scopes();

	return spw_plan_scopes(step, drives, &none, opts, choices, result);
}

int spw_plan_simulate(const struct spw_plan_step *step, const struct spw_plan_drives *drives,
		      uint64_t memory_bytes, const enum spw_plan_choice choices[],
		      struct spw_plan_point points[], size_t points_max,
		      struct spw_plan_result *result)
{
	const struct spw_plan_record record = {.points = points, .points_max = points_max};
	const struct spw_plan_scopes none = no_scopes();

	return spw_plan_scopes_simulate(step, drives, &none, memory_bytes, choices, &record,
					result);
}
