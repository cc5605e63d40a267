/* SPDX-License-Identifier: MIT */
/*
 * tools/replay/positional.h - SSDTrain's positional rule, with which plans are compared: scopes
 * before a certain one spill, the others stay in memory
 */
#ifndef SPW_TOOLS_REPLAY_POSITIONAL_H
#define SPW_TOOLS_REPLAY_POSITIONAL_H

#include <spillway/plan.h>

/*
 * Find the first scope that stays: the first with which drives of this bandwidth cannot keep up.
 * @step's tensors are in the order of their scopes. Return: UINT32_MAX: all spill.
 */
uint32_t replay_positional_cut(const struct spw_plan_step *step, uint64_t write_bytes_per_second);

/*
 * Simulate the rule. It has no memory limit for prefetches: this takes the lowest limit that does
 * not make the step wait longer than no limit. @choices: set. Return: as spw_plan_simulate().
 */
int replay_positional_simulate(const struct spw_plan_step *step,
			       const struct spw_plan_drives *drives, enum spw_plan_choice choices[],
			       struct spw_plan_result *result);

#endif
