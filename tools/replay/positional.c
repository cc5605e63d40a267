/* SPDX-License-Identifier: MIT */
/* tools/replay/positional.c - SSDTrain's positional rule, with which plans are compared */
#include "tools/replay/positional.h"

#include <stddef.h>

#define LIMIT_ERROR_SHARE 256 /* accuracy of the limit for prefetches, as a share */

uint32_t replay_positional_cut(const struct spw_plan_step *step, uint64_t write_bytes_per_second)
{
	double before = 0; /* bytes of all earlier scopes */

	for (uint32_t i = 0; i < step->count;) {
		uint32_t scope = step->tensors[i].scope;
		uint64_t begin_ns = step->tensors[i].pack_ns;
		double bytes = 0, seconds;

		for (; i < step->count && step->tensors[i].scope == scope; i++) {
			const struct spw_plan_tensor *tensor = &step->tensors[i];

			bytes += tensor->must_keep ? 0 : (double)tensor->bytes;
			if (tensor->pack_ns < begin_ns)
				begin_ns = tensor->pack_ns;
		}
		/* V = bytes before + 2 x bytes of the scope; T = 3 x forward - 2 x before */
		seconds = (3 * (double)step->forward_ns - 2 * (double)begin_ns) / 1e9;
		if (before + 2 * bytes > (double)write_bytes_per_second * seconds)
			return scope;
		before += bytes;
	}
	return UINT32_MAX;
}

int replay_positional_simulate(const struct spw_plan_step *step,
			       const struct spw_plan_drives *drives, enum spw_plan_choice choices[],
			       struct spw_plan_result *result)
{
	uint32_t cut = replay_positional_cut(step, drives->write_bytes_per_second);
	uint64_t stall_ns, too_low = 0, limit;
	int rc;

	for (uint32_t i = 0; i < step->count; i++)
		choices[i] = !step->tensors[i].must_keep && step->tensors[i].scope < cut
				     ? SPW_PLAN_SPILL
				     : SPW_PLAN_KEEP;
	result->size = sizeof(*result);
	rc = spw_plan_simulate(step, drives, UINT64_MAX, choices, NULL, 0, result);
	stall_ns = result->stall_ns;
	limit = result->peak_bytes;
	while (rc == 0 && limit - too_low > limit / LIMIT_ERROR_SHARE + 1) {
		uint64_t middle = too_low + (limit - too_low) / 2;

		rc = spw_plan_simulate(step, drives, middle, choices, NULL, 0, result);
		if (result->stall_ns > stall_ns)
			too_low = middle;
		else
			limit = middle;
	}
	if (rc == 0)
		rc = spw_plan_simulate(step, drives, limit, choices, NULL, 0, result);
	result->feasible = true; /* the rule has no memory limit */
	return rc;
}
