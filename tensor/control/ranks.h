/* SPDX-License-Identifier: MIT */
/*
 * tensor/control/ranks.h - what ranks that share drives count on: the mean of what all have
 * measured
 */
#ifndef SPW_TENSOR_CONTROL_RANKS_H
#define SPW_TENSOR_CONTROL_RANKS_H

#include "tensor/control/internal.h"

/* What has been measured of the drives: the mean of all ranks. */
struct spw_plan_drives spw_control__ranks_share(const struct control *control);

#endif
