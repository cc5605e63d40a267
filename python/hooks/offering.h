/* SPDX-License-Identifier: MIT */
/* hooks/offering.h - save a tensor of a device: offer it to the cache and copy it out */
#ifndef SPW_HOOKS_OFFERING_H
#define SPW_HOOKS_OFFERING_H

#include "on_device.h"

/* A tensor that is being offered. */
struct offering {
	struct saved *saved;
	struct spw_offer offer;
	struct spw_copy copy;
	PyObject *held;
	PyObject *stream;   /* that computed it */
	PyObject *produced; /* an event after that, from when it is copied out on; or NULL */
};

/* Register the owner; call this before the offer hands its token to the cache. Return: 0; -1 */
int offering_own(struct on_device *on, struct offering *offering, const struct seen *seen,
		 struct record *record, struct version *version);
/*
 * Save a tensor of a device. Return: a saved tensor; None if the caller has to keep the tensor in
 * memory; NULL with an exception.
 */
PyObject *on_device_save(struct on_device *on, struct session *session, struct seen *seen);

#endif
