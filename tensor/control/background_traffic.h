/* SPDX-License-Identifier: MIT */
/*
 * tensor/control/background_traffic.h - I/O of other users of the store in a step, for the planner
 */
#ifndef SPW_TENSOR_CONTROL_BACKGROUND_TRAFFIC_H
#define SPW_TENSOR_CONTROL_BACKGROUND_TRAFFIC_H

#include "tensor/control/internal.h"

void spw_control__background_begin(struct control *control);
/* A step has ended. @replace: it is the first of its signature, or unlike those before. */
void spw_control__background_merge(struct control *control, bool replace);
/* Whether it is no longer what the plan was made for. */
bool spw_control__background_drifted(const struct control *control);
/* Its part of the drives' time in a step of the signature in force. */
double spw_control__background_share(const struct control *control);
/* For the planner: at most FLOW_PARTS. Return: how many; 0: nothing worth planning. */
uint32_t spw_control__background_plan(const struct control *control, struct spw_plan_flow flows[]);

#endif
