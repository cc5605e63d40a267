/* SPDX-License-Identifier: MIT */
/* tensor/control/device_clock.h - the time of a step by the clock of a device */
#ifndef SPW_TENSOR_CONTROL_DEVICE_CLOCK_H
#define SPW_TENSOR_CONTROL_DEVICE_CLOCK_H

#include "tensor/control/internal.h"

void spw_control__device_clock_begin(struct control *control);
void spw_control__device_clock_end(struct control *control, uint64_t host_ns);
/* As spw_control__mark(), now; and as spw_control__marked(). */
uint64_t spw_control__device_clock_mark(struct control *control, uint64_t host_ns);
void spw_control__device_clock_marked(struct control *control, uint64_t mark, uint64_t device_ns);
/* The step that has ended was of the signature in force. */
void spw_control__device_clock_belongs(struct control *control);
/* Between steps: signatures take over the times of their last complete step. */
void spw_control__device_clock_adopt(struct control *control);

/* The id of the signature whose device times this step uses; 0: it uses the host's. */
uint32_t spw_control__device_clock_timed_by(const struct control *control);

/* At the end of a step without a plan: whether its plan waits for the device's times. */
bool spw_control__device_clock_awaits(struct control *control, uint32_t timed_by);
/* Compute time by the device's clock; the host's if that is not known. */
uint64_t spw_control__device_clock_ns(const struct control *control, uint64_t host_ns);

#endif
