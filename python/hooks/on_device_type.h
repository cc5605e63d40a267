/* SPDX-License-Identifier: MIT */
/* hooks/on_device_type.h - OnDevice, the Python type for a session's tensors on devices */
#ifndef SPW_HOOKS_ON_DEVICE_TYPE_H
#define SPW_HOOKS_ON_DEVICE_TYPE_H

#include "on_device.h"

extern PyTypeObject *on_device_type;
extern PyType_Spec on_device_spec;

/* Get the session's OnDevice. Return: NULL if no tensor of a device was saved yet. */
struct on_device *on_device_now(const struct session *session);

#endif
