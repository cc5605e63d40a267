/* SPDX-License-Identifier: MIT */
/* tensor/control/planning.h - what the planner is asked, and what its answer becomes */
#ifndef SPW_TENSOR_CONTROL_PLANNING_H
#define SPW_TENSOR_CONTROL_PLANNING_H

#include "tensor/control/internal.h"

/* A plan of the shape in force is wanted: what it is to be made from. */
void spw_control__planning_ask(struct control *control);
/* The search: looks at nothing but what was asked, and the reference of that. */
int spw_control__planning_plan(struct asked *asked, struct plan *plan);
/* The reasons of the plan in force; not while another is searched for. */
int spw_control__planning_explain(struct control *control, struct spw_plan_reason reasons[]);
/* A plan that spills nothing learns nothing of the drives: try them once in a while. */
void spw_control__planning_probe(struct control *control);

#endif
