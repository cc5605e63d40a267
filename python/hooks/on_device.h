/* SPDX-License-Identifier: MIT */
/* hooks/on_device.h - tensors of devices, as a Python object */
#ifndef SPW_HOOKS_ON_DEVICE_H
#define SPW_HOOKS_ON_DEVICE_H

#include "users.h"

extern PyTypeObject *on_device_type;
extern PyType_Spec on_device_spec;

/* NULL: the session has met no device. */
struct on_device *on_device_now(const struct session *session);

#endif
