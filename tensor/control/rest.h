/* SPDX-License-Identifier: MIT */
/* tensor/control/rest.h - steps that need not be seen, as their plan moves nothing */
#ifndef SPW_TENSOR_CONTROL_REST_H
#define SPW_TENSOR_CONTROL_REST_H

#include "tensor/control/internal.h"

/* A step that was seen has ended. @followed: by its plan throughout. */
void spw_control__rest_step_ended(struct control *control, bool followed);

#endif
