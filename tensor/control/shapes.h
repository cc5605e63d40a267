/* SPDX-License-Identifier: MIT */
/* tensor/control/shapes.h - several shapes of step, each with a plan */
#ifndef SPW_TENSOR_CONTROL_SHAPES_H
#define SPW_TENSOR_CONTROL_SHAPES_H

#include "tensor/control/internal.h"

/* Switch to another planned shape that is like this step so far. Return: whether there is one. */
bool spw_control__shape_switch(struct control *control);
/* The step that ended, which left its plan, was of a shape that has one: it is in force now. */
bool spw_control__shape_known(struct control *control);
/*
 * Begin a new shape, in the slot of the least recently used one; or one shape whose steps vary.
 * Return: whether this step becomes its reference.
 */
bool spw_control__shape_new(struct control *control);
/* A step of the shape in force has ended; the next begins: predict its shape. */
void spw_control__shape_ended(struct control *control);
void spw_control__shape_predict(struct control *control);

#endif
