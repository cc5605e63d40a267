/* SPDX-License-Identifier: MIT */
/* tensor/control/wear.h - the cap on what is written */
#ifndef SPW_TENSOR_CONTROL_WEAR_H
#define SPW_TENSOR_CONTROL_WEAR_H

#include "tensor/control/internal.h"

void spw_control__wear_open(struct control *control);
/* Others have written @bytes more; below 0: some that counted as theirs are the cache's own. */
void spw_control__wear_external(struct control *control, double bytes);
void spw_control__wear_step_ended(struct control *control);
/* What the cap gives for a step of the signature in force; 0: there is none. */
uint64_t spw_control__wear_step_bytes(const struct control *control);
/* Whether that is no longer what the plan was made for. */
bool spw_control__wear_drifted(const struct control *control);
/* A plan has been made: say whether the cap has changed it. */
void spw_control__wear_planned(struct control *control, const struct plan *plan);

#endif
