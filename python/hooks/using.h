/* SPDX-License-Identifier: MIT */
/* hooks/using.h - a saved tensor of a device is used */
#ifndef SPW_HOOKS_USING_H
#define SPW_HOOKS_USING_H

#include "users.h"

/* A tensor on the device; the stream that computes now waits for its bytes. */
PyObject *on_device_use(struct saved *saved);
/* What was discarded was recomputed: a verdict says whether to the same bytes. With the lock. */
int on_device_restore(struct on_device *on, struct saved *saved, PyObject *tensor, PyObject *frame);

#endif
