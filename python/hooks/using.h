/* SPDX-License-Identifier: MIT */
/* hooks/using.h - use a saved tensor of a device: copy it in, or recompute it */
#ifndef SPW_HOOKS_USING_H
#define SPW_HOOKS_USING_H

#include "on_device.h"

/* Make the tensor on the device; the current stream waits for the copy of its bytes. */
PyObject *on_device_use(struct saved *saved);
/*
 * Restore a discarded tensor by a recomputed one, and compare their checksums on the device. The
 * caller holds on->lock.
 */
int on_device_restore(struct on_device *on, struct saved *saved, PyObject *tensor, PyObject *frame);

#endif
