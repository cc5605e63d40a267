/* SPDX-License-Identifier: MIT */
/* tensor/control/explain.c - what the plan in force does with each scope, and why */
#include <errno.h>
#include <stdlib.h>

#include "tensor/control/internal.h"
#include "tensor/control/planning.h"
#include "tensor/control/recompute.h"

/* Of scopes of the forward pass that have saved something. Return: how many there are. */
static unsigned fill_reasons(const struct control *control, const struct spw_plan_reason planned[],
			     struct spw_cache_reason reasons[], unsigned count)
{
	const struct recording *reference = &control->signature->reference;
	unsigned found = 0;

	for (uint32_t s = 0; s < reference->scope_count; s++) {
		const struct recorded_scope *scope = &reference->scopes[s];
		uint64_t bytes = 0;

		for (uint32_t i = 0; i < reference->count; i++)
			bytes += reference->tensors[i].scope == s ? reference->tensors[i].bytes : 0;
		if (scope->stage != SPW_STAGE_FORWARD || bytes == 0)
			continue;
		if (found < count)
			reasons[found] = (struct spw_cache_reason){
				.scope_key = scope->key,
				.micro_batch = scope->micro_batch,
				.may_again = spw_control__recompute_scope_may(scope),
				.again_ns = control->asked.scopes[s].again_ns,
				.saved_bytes = bytes,
				.reason = planned[s],
			};
		found++;
	}
	return found;
}

int spw_control__explain(struct control *control, struct spw_cache_reason reasons[], unsigned count,
			 struct spw_plan_result *result)
{
	const struct signature *signature = control->signature;
	struct spw_plan_reason *planned;
	int rc;

	if (!control->records || !signature->planned)
		return 0;
	planned = calloc(signature->reference.scope_count + (size_t)1, sizeof(*planned));
	if (!planned)
		return spw_error(-ENOMEM, "no memory for the reasons of %u scopes",
				 signature->reference.scope_count);
	rc = spw_control__planning_explain(control, planned);
	if (rc == 0)
		rc = (int)fill_reasons(control, planned, reasons, count);
	if (rc >= 0 && result)
		spw_opts_merge(result, result->size, &signature->plan.result,
			       sizeof(signature->plan.result));
	free(planned);
	return rc;
}
