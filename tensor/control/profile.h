/* SPDX-License-Identifier: MIT */
/* tensor/control/profile.h - the memory in use over a step, in a fixed number of bins */
#ifndef SPW_TENSOR_CONTROL_PROFILE_H
#define SPW_TENSOR_CONTROL_PROFILE_H

#include "tensor/control/internal.h"

void spw_control__profile_step_began(struct control *control);
/* The memory in use has changed. */
void spw_control__profile_note(struct control *control);

#endif
