/* SPDX-License-Identifier: MIT */
/* tensor/host.h - host memory in which copies of a device's tensors stay */
#ifndef SPW_TENSOR_HOST_H
#define SPW_TENSOR_HOST_H

#include "tensor/internal.h"

/*
 * Get host memory for the copy of a device's tensor to stay in, if the plan says so, or nothing
 * does. Return: whether there was room: the tensor is not written.
 */
bool spw_cache__host_hold(struct entry *entry);

#endif
