/* SPDX-License-Identifier: MIT */
/*
 * tools/replay/positional.h - SSDTrain's rule, which plans are compared with: all before one scope
 * spills, the rest stays
 */
#ifndef SPW_TOOLS_REPLAY_POSITIONAL_H
#define SPW_TOOLS_REPLAY_POSITIONAL_H

#include <spillway/plan.h>

/*
 * The first scope that stays, the first that drives of this bandwidth could not keep up with.
 * @step's tensors are in the order of their scopes. Return: UINT32_MAX: all spill.
 */
uint32_t replay_positional_cut(const struct spw_plan_step *step, uint64_t write_bytes_per_second);

/*
 * What the rule leads to. It sets no limit for prefetches: the least is taken that does not make
 * the step wait longer than none at all. @choices: set. Return: as spw_plan_simulate().
 */
int replay_positional_simulate(const struct spw_plan_step *step,
			       const struct spw_plan_drives *drives, enum spw_plan_choice choices[],
			       struct spw_plan_result *result);

#endif
