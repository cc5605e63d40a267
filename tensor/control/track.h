/* SPDX-License-Identifier: MIT */
/*
 * tensor/control/track.h - a tensor as the controller knows it: its slot, its place in the recorded
 * step, and what a plan has chosen for it
 */
#ifndef SPW_TENSOR_CONTROL_TRACK_H
#define SPW_TENSOR_CONTROL_TRACK_H

#include <stdbool.h>
#include <stdint.h>

#include <spillway/plan.h>

#define NO_SLOT UINT32_MAX

/* What an entry keeps for the controller, which alone reads and writes it. */
struct track {
	uint32_t recorded, step; /* its record in that step, or none */
};

/* Whether the tensor leaves its owner's memory: for the drives, or for host memory. */
static inline bool spw_control__leaves(enum spw_plan_choice choice)
{
	return choice == SPW_PLAN_SPILL || choice == SPW_PLAN_HOST;
}

#endif
