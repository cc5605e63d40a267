/* SPDX-License-Identifier: MIT */
/* tensor/control/planning.h - what the planner is asked, and what its answer becomes */
#ifndef SPW_TENSOR_CONTROL_PLANNING_H
#define SPW_TENSOR_CONTROL_PLANNING_H

#include "tensor/control/internal.h"

/* Copies of a device's tensors may stay in host memory: there is some, and the bus is known. */
bool spw_control__planning_has_host(const struct control *control);
/* Copy what a plan of the signature in force is made from, for a search beside the step. */
void spw_control__planning_ask(struct control *control);
/* The search: reads only that copy, and the reference of its signature. */
int spw_control__planning_plan(struct asked *asked, struct plan *plan);
/* The reasons of the plan in force. Not during a search. */
int spw_control__planning_explain(struct control *control, struct spw_plan_reason reasons[]);
/* A plan that spills nothing measures nothing: let it spill a tensor now and then. */
void spw_control__planning_probe(struct control *control);

#endif
