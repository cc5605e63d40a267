/* SPDX-License-Identifier: MIT */
/* plan/explain.c - what each scope's alternatives would have cost, by simulating them */
#include <spillway/plan.h>

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "plan/internal.h"
#include "util/util.h"

struct explaining {
	struct plan_again again;
	uint64_t memory_bytes;
	uint8_t *planned_again, *planned_spill; /* as planned */
	uint8_t *scopes, *spill;                /* the alternative */
	void *memory;
};

static int open_explaining(struct explaining *explaining)
{
	size_t tensors = (size_t)explaining->again.step->count + 1,
	       scopes = (size_t)explaining->again.scopes->count + 1;
	const struct plan_piece pieces[] = {
		{&explaining->planned_again, scopes},
		{&explaining->planned_spill, tensors},
		{&explaining->scopes, scopes},
		{&explaining->spill, tensors},
	};

	explaining->memory = spw_plan__allocate(pieces, SPW_ARRAY_LEN(pieces));
	if (!explaining->memory)
		return spw_error(-ENOMEM, "plan: no memory to explain %u scopes",
				 explaining->again.scopes->count);
	memcpy(explaining->planned_again, explaining->again.again, scopes - 1);
	memcpy(explaining->planned_spill, explaining->again.base.spill, tensors - 1);
	return 0;
}

static struct spw_plan_other_way simulated(struct explaining *explaining)
{
	struct plan_again *again = &explaining->again;
	struct spw_plan_result result = {0};
	struct plan_outcome outcome;

	spw_plan__again_set(again, explaining->scopes);
	for (uint32_t i = 0; i < again->step->count; i++)
		explaining->spill[i] &= again->base.eligible[i] && !spw_plan__again_gives(again, i);
	spw_plan__again_simulate(again, explaining->spill, (double)explaining->memory_bytes, NULL,
				 NULL, &outcome);
	spw_plan__fill_result(&result, &again->base, again->compute_ns + again->again_ns, &outcome,
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
	memcpy(explaining->scopes, explaining->planned_again, explaining->again.scopes->count);
	memcpy(explaining->spill, explaining->planned_spill, explaining->again.step->count);
}

/* Whether something of @s can be written. */
static bool can_spill(const struct plan_again *again, uint32_t s)
{
	for (uint32_t k = again->first[s]; k < again->first[s + 1]; k++)
		if (again->base.eligible[again->members[k]])
			return true;
	return false;
}

static void try_way(struct explaining *explaining, uint32_t s, enum spw_plan_way way,
		    struct spw_plan_reason *reason)
{
	const struct plan_again *again = &explaining->again;
	bool does_again = way == SPW_PLAN_WAY_AGAIN || way == SPW_PLAN_WAY_AGAIN_SPILLED;
	bool spills = way == SPW_PLAN_WAY_SPILL || way == SPW_PLAN_WAY_AGAIN_SPILLED;

	if (does_again && !again->may[s])
		return;
	if (spills && !(does_again ? again->base.eligible[again->scopes->scopes[s].input]
				   : can_spill(again, s)))
		return;
	as_planned(explaining);
	if (way != reason->way) {
		explaining->scopes[s] = does_again;
		for (uint32_t k = again->first[s]; k < again->first[s + 1]; k++)
			explaining->spill[again->members[k]] = spills;
		if (does_again)
			explaining->spill[again->scopes->scopes[s].input] = spills;
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

/* What the plan does with the scope, from its tensors; the step is set as planned. */
static void set_way(const struct explaining *explaining, uint32_t s, struct spw_plan_reason *reason)
{
	const struct plan_again *again = &explaining->again;

	for (uint32_t k = again->first[s]; k < again->first[s + 1]; k++) {
		uint32_t i = again->members[k];
		uint64_t bytes = again->step->tensors[i].bytes;

		if (spw_plan__again_gives(again, i))
			reason->bytes_again += bytes;
		else if (explaining->planned_spill[i])
			reason->bytes_spilled += bytes;
		else
			reason->bytes_kept += bytes;
	}
	if (explaining->planned_again[s])
		reason->way = explaining->planned_spill[again->scopes->scopes[s].input]
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
		rc = spw_plan__again_open(&explaining.again, step, drives, &scopes);
	if (rc)
		return rc;
	rc = spw_plan__again_choose(&explaining.again, choices);
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
	spw_plan__again_close(&explaining.again);
	return rc;
}
