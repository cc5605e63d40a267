/* SPDX-License-Identifier: MIT */
/* plan/explain.c - simulate what each alternative for a scope would have cost */
#include <spillway/plan.h>

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "plan/internal.h"
#include "util/util.h"

struct explaining {
	struct plan_recompute recompute;
	uint64_t memory_bytes;
	uint8_t *planned_recompute, *planned_spill; /* choices of the plan */
	uint8_t *scopes, *spill;                    /* choices of the alternative */
	void *memory;
};

static int open_explaining(struct explaining *explaining)
{
	size_t tensors = (size_t)explaining->recompute.step->count + 1,
	       scopes = (size_t)explaining->recompute.scopes->count + 1;
	const struct plan_piece pieces[] = {
		{&explaining->planned_recompute, scopes},
		{&explaining->planned_spill, tensors},
		{&explaining->scopes, scopes},
		{&explaining->spill, tensors},
	};

	explaining->memory = spw_plan__allocate(pieces, SPW_ARRAY_LEN(pieces));
	if (!explaining->memory)
		return spw_error(-ENOMEM, "plan: no memory to explain %u scopes",
				 explaining->recompute.scopes->count);
	memcpy(explaining->planned_recompute, explaining->recompute.recompute, scopes - 1);
	memcpy(explaining->planned_spill, explaining->recompute.base.spill, tensors - 1);
	return 0;
}

static struct spw_plan_other_way simulated(struct explaining *explaining)
{
	struct plan_recompute *recompute = &explaining->recompute;
	struct spw_plan_result result = {0};
	struct plan_outcome outcome;

	spw_plan__recompute_set(recompute, explaining->scopes);
	for (uint32_t i = 0; i < recompute->step->count; i++)
		explaining->spill[i] &=
			recompute->base.eligible[i] && !spw_plan__recompute_gives(recompute, i);
	spw_plan__host_assign(&recompute->base, explaining->spill);
	spw_plan__recompute_simulate(recompute, explaining->spill, (double)explaining->memory_bytes,
				     NULL, NULL, &outcome);
	spw_plan__fill_result(&result, &recompute->base,
			      recompute->compute_ns + recompute->again_ns, &outcome,
			      explaining->spill);
	return (struct spw_plan_other_way){
		.possible = true,
		.fits = result.peak_bytes <= explaining->memory_bytes + 1,
		.wall_ns = result.wall_ns,
		.peak_bytes = result.peak_bytes,
	};
}

static void as_planned(struct explaining *explaining)
{
	memcpy(explaining->scopes, explaining->planned_recompute,
	       explaining->recompute.scopes->count);
	memcpy(explaining->spill, explaining->planned_spill, explaining->recompute.step->count);
}

/* Whether a tensor of @s can be spilled. */
static bool can_spill(const struct plan_recompute *recompute, uint32_t s)
{
	for (uint32_t k = recompute->first[s]; k < recompute->first[s + 1]; k++)
		if (recompute->base.eligible[recompute->members[k]])
			return true;
	return false;
}

static void try_way(struct explaining *explaining, uint32_t s, enum spw_plan_way way,
		    struct spw_plan_reason *reason)
{
	const struct plan_recompute *recompute = &explaining->recompute;
	bool does_recompute = way == SPW_PLAN_WAY_AGAIN || way == SPW_PLAN_WAY_AGAIN_SPILLED;
	bool spills = way == SPW_PLAN_WAY_SPILL || way == SPW_PLAN_WAY_AGAIN_SPILLED;

	if (does_recompute && !recompute->may[s])
		return;
	if (spills &&
	    !(does_recompute ? recompute->base.eligible[recompute->scopes->scopes[s].input]
			     : can_spill(recompute, s)))
		return;
	as_planned(explaining);
	if (way != reason->way) {
		explaining->scopes[s] = does_recompute;
		for (uint32_t k = recompute->first[s]; k < recompute->first[s + 1]; k++)
			explaining->spill[recompute->members[k]] = spills;
		if (does_recompute)
			explaining->spill[recompute->scopes->scopes[s].input] = spills;
	}
	reason->ways[way] = simulated(explaining);
}

static bool is_better(const struct spw_plan_other_way *one, const struct spw_plan_other_way *other)
{
	if (!other->possible || one->fits != other->fits)
		return !other->possible || one->fits;
	if (one->fits)
		return one->wall_ns < other->wall_ns;
	return one->peak_bytes < other->peak_bytes;
}

/* Set what the plan does with the scope's tensors. The recomputed scopes are set as planned. */
static void set_way(const struct explaining *explaining, uint32_t s, struct spw_plan_reason *reason)
{
	const struct plan_recompute *recompute = &explaining->recompute;

	for (uint32_t k = recompute->first[s]; k < recompute->first[s + 1]; k++) {
		uint32_t i = recompute->members[k];
		uint64_t bytes = recompute->step->tensors[i].bytes;

		if (spw_plan__recompute_gives(recompute, i))
			reason->bytes_again += bytes;
		else if (!explaining->planned_spill[i])
			reason->bytes_kept += bytes;
		else
			reason->bytes_spilled += bytes;
		if (explaining->planned_spill[i] && recompute->base.in_host[i])
			reason->bytes_host += bytes;
	}
	if (explaining->planned_recompute[s])
		reason->way = explaining->planned_spill[recompute->scopes->scopes[s].input]
				      ? SPW_PLAN_WAY_AGAIN_SPILLED
				      : SPW_PLAN_WAY_AGAIN;
	else if (reason->bytes_spilled > 0)
		reason->way = SPW_PLAN_WAY_SPILL;
}

static void explain_scope(struct explaining *explaining, uint32_t s, struct spw_plan_reason *reason)
{
	static const struct spw_plan_other_way none = {0};

	for (enum spw_plan_way way = 0; way < SPW_PLAN_WAYS; way++) {
		const struct spw_plan_other_way *next =
			reason->next < SPW_PLAN_WAYS ? &reason->ways[reason->next] : &none;

		try_way(explaining, s, way, reason);
		if (way != reason->way && reason->ways[way].possible &&
		    is_better(&reason->ways[way], next))
			reason->next = way;
	}
	(void)PLAN_HOLDS(reason->next != reason->way && reason->ways[reason->way].possible);
}

int spw_plan_explain(const struct spw_plan_step *step, const struct spw_plan_drives *drives,
		     const struct spw_plan_scopes *caller, uint64_t memory_bytes,
		     const enum spw_plan_choice choices[], struct spw_plan_reason reasons[])
{
	struct explaining explaining = {.memory_bytes = memory_bytes};
	struct spw_plan_result unused = {.size = sizeof(unused)};
	struct spw_plan_scopes scopes;
	int rc = spw_plan__check_arguments(step, drives, choices, &unused);

	if (!rc)
		rc = spw_plan__check_scopes(caller, &scopes);
	if (!rc)
		rc = spw_plan__recompute_open(&explaining.recompute, step, drives, &scopes);
	if (rc)
		return rc;
	rc = spw_plan__recompute_choose(&explaining.recompute, choices, true);
	if (!rc)
		rc = open_explaining(&explaining);
	for (uint32_t s = 0; s < scopes.count && !rc; s++) {
		reasons[s] = (struct spw_plan_reason){.next = SPW_PLAN_WAYS};
		set_way(&explaining, s, &reasons[s]);
	}
	for (uint32_t s = 0; s < scopes.count && !rc; s++)
		explain_scope(&explaining, s, &reasons[s]);
	if (!rc)
		rc = spw_plan__check_whole();
	free(explaining.memory);
	spw_plan__recompute_close(&explaining.recompute);
	return rc;
}
