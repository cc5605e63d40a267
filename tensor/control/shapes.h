/* SPDX-License-Identifier: MIT */
/* tensor/control/shapes.h - several shapes of step, each with a plan */
#ifndef SPW_TENSOR_CONTROL_SHAPES_H
#define SPW_TENSOR_CONTROL_SHAPES_H

#include "tensor/control/internal.h"

/* Go on by the plan of another shape that is like this step so far. Return: whether one is. */
bool spw_control__shape_switch(struct control *control);
/* The step that has ended, not followed by its plan, is of a shape that has one. It is in force. */
bool spw_control__shape_known(struct control *control);
/*
 * A new one, in the stead of the one that was not in force for the longest time; or one that
 * varies. Return: whether its reference is to be this step.
 */
bool spw_control__shape_new(struct control *control);
/* A step of the one in force has ended; the next begins, and may be of another. */
void spw_control__shape_ended(struct control *control);
void spw_control__shape_predict(struct control *control);

#endif
