/* SPDX-License-Identifier: MIT */
/* tensor/control/signatures.h - several signatures of step, each with a plan */
#ifndef SPW_TENSOR_CONTROL_SIGNATURES_H
#define SPW_TENSOR_CONTROL_SIGNATURES_H

#include "tensor/control/internal.h"

/*
 * Switch to another planned signature that is like this step so far. Return: whether there is one.
 */
bool spw_control__signature_switch(struct control *control);
/* The step that ended, which left its plan, was of a signature that has one: it is in force now. */
bool spw_control__signature_known(struct control *control);
/*
 * Begin a new signature, in the slot of the least recently used one; or one signature whose steps
 * vary. Return: whether this step becomes its reference.
 */
bool spw_control__signature_new(struct control *control);
/* A step of the signature in force has ended; the next begins: predict its signature. */
void spw_control__signature_ended(struct control *control);
void spw_control__signature_predict(struct control *control);

#endif
