/* SPDX-License-Identifier: MIT */
/* plan/call.c - check the arguments of the planner's calls, and fill their results */
#include <spillway/plan.h>

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "plan/internal.h"
#include "util/util.h"

#define MODE_POSITIONAL 2u /* a mode of earlier versions */

static _Thread_local char broken[256]; /* first failed PLAN_HOLDS() of this call; or "" */

void spw_plan_opts_init(struct spw_plan_opts *opts, size_t size)
{
	const struct spw_plan_opts defaults = {.size = sizeof(defaults), .mode = SPW_PLAN_FASTEST};

	spw_opts_merge(opts, size, &defaults, sizeof(defaults));
	memcpy(opts, &size, sizeof(size));
}

/* Copy a result to the caller, whose struct may have another version's size. */
void spw_plan__set_result(struct spw_plan_result *result, const struct spw_plan_result *from)
{
	size_t size = result->size;

	memcpy(result, from, size < sizeof(*from) ? size : sizeof(*from));
	result->size = size;
}

void spw_plan__fill_result(struct spw_plan_result *result, const struct plan_work *work,
			   double compute_ns, const struct plan_outcome *outcome,
			   const uint8_t *spill)
{
	double last_ns = work->event_count > 0 ? work->events[work->event_count - 1].ns : 0;
	bool forever = outcome->forever || outcome->stall_ns >= PLAN_LONGEST_NS;

	if (!PLAN_HOLDS(!outcome->abandoned && outcome->peak >= 0))
		return;
	result->peak_bytes = (uint64_t)outcome->peak;
	result->peak_keep_all_bytes = (uint64_t)work->keep_all_peak;
	result->bytes_written = (uint64_t)outcome->written;
	result->bytes_read = (uint64_t)outcome->read;
	result->bytes_forwarded = (uint64_t)outcome->forwarded;
	result->bytes_host = (uint64_t)outcome->hosted;
	result->host_peak_bytes = (uint64_t)outcome->host_peak;
	result->stall_ns =
		forever || outcome->stall_ns < PLAN_TOLERANCE_NS ? 0 : (uint64_t)outcome->stall_ns;
	result->wall_ns =
		(uint64_t)(compute_ns > last_ns ? compute_ns : last_ns) + result->stall_ns;
	if (forever)
		result->stall_ns = result->wall_ns = SPW_PLAN_STALL_FOREVER;
	for (uint32_t i = 0; i < work->count; i++) {
		result->tensors_spilled += spill[i];
		result->tensors_host += spill[i] && work->in_host[i];
	}
}

bool spw_plan__broken(const char *condition, const char *file, int line)
{
	if (broken[0] == '\0')
		(void)snprintf(broken, sizeof(broken), "%s:%d: %s", file, line, condition);
	return false;
}

int spw_plan__check_whole(void)
{
	return broken[0] == '\0' ? 0
				 : spw_error(-ENOTRECOVERABLE,
					     "plan: a fault of the planner, please report it: "
					     "%s does not hold",
					     broken);
}

int spw_plan__check_arguments(const struct spw_plan_step *step,
			      const struct spw_plan_drives *drives, const void *choices,
			      const struct spw_plan_result *result)
{
	broken[0] = '\0';
	if (!step || !drives || !result || (step->count > 0 && !choices))
		return spw_error(-EINVAL, "plan: step, drives, choices and result must be given");
	if (result->size < sizeof(result->size))
		return spw_error(-EINVAL, "plan: the size field of the result must be set");
	return 0;
}

int spw_plan__check_opts(const struct spw_plan_opts *caller, struct spw_plan_opts *opts)
{
	spw_plan_opts_init(opts, sizeof(*opts));
	if (!caller)
		return 0;
	if (caller->size < sizeof(caller->size))
		return spw_error(-EINVAL, "plan: options must be set up by spw_plan_opts_init()");
	spw_opts_merge(opts, sizeof(*opts), caller, caller->size);
	if ((unsigned)opts->mode == MODE_POSITIONAL)
		return spw_error(-EINVAL, "plan: there is no mode 2 any more, the positional rule: "
					  "take SPW_PLAN_FASTEST, or simulate choices of your own "
					  "(spw_plan_simulate)");
	if (opts->mode > SPW_PLAN_BUDGET)
		return spw_error(-EINVAL, "plan: there is no mode %u", (unsigned)opts->mode);
	return 0;
}
