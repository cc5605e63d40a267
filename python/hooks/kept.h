/* SPDX-License-Identifier: MIT */
/* hooks/kept.h - struct kept: a saved tensor that is not offloaded */
#ifndef SPW_HOOKS_KEPT_H
#define SPW_HOOKS_KEPT_H

#include "session.h"

extern PyTypeObject *kept_type;
extern PyType_Spec kept_spec;

PyObject *kept_new(const struct seen *seen);
/* Keep an object as long as the tensor. Consumes the reference. Return: 0; -1 if it is NULL */
int kept_counts(PyObject *kept, PyObject *counted);
/*
 * Save a tensor at once, if the plan keeps what is saved at this place of the step, or if it has
 * kept the same bytes. Return: NULL with an exception, or if it is to be saved in another way
 */
PyObject *kept_by_plan(struct session *session, struct seen *seen);
/*
 * Save a tensor, at version @number, in whose storage a tensor begins that the plan has kept.
 * Return: NULL with an exception, or if there is none
 */
PyObject *kept_before(struct session *session, const struct seen *seen,
		      const struct spw_offer *offer, int64_t number);
PyObject *kept_unpack(PyObject *kept);

#endif
