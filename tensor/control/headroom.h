/* SPDX-License-Identifier: MIT */
/*
 * tensor/control/headroom.h - how far the figures are trusted: what one step says of the next plan
 */
#ifndef SPW_TENSOR_CONTROL_HEADROOM_H
#define SPW_TENSOR_CONTROL_HEADROOM_H

#include "tensor/control/internal.h"

/* The bandwidths that the next plan assumes, before the headroom. */
struct spw_plan_drives spw_control__headroom_believed(const struct control *control);
uint64_t spw_control__headroom_mixed(const struct spw_plan_drives *drives);
/* What the next plan may write: for @wear, and after a stall; 0: no limit. */
uint64_t spw_control__headroom_written_max(const struct signature *signature, uint64_t wear);
/* The step followed its plan. Return: whether, and why, to replan. */
enum plan_reason spw_control__headroom_step_ended(struct control *control);

#endif
