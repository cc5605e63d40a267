/* SPDX-License-Identifier: MIT */
/* hooks/offering.h - a tensor of a device is saved */
#ifndef SPW_HOOKS_OFFERING_H
#define SPW_HOOKS_OFFERING_H

#include "users.h"

/* A tensor that is being offered. */
struct offering {
	struct saved *saved;
	struct spw_offer offer;
	struct spw_copy copy;
	PyObject *held;
	PyObject *stream, *produced; /* that computed it, and the event after that */
};

/* Adds the owner before the call that hands its token to the cache. Return: 0; -1 */
int offering_own(struct on_device *on, struct offering *offering, const struct seen *seen,
		 struct record *record, struct version *version);
/* Return: a saved tensor; None if the caller has to keep the tensor; NULL */
PyObject *on_device_save(struct on_device *on, struct session *session, struct seen *seen);

#endif
