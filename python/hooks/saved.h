/* SPDX-License-Identifier: MIT */
/* hooks/saved.h - pack and unpack hooks: session methods that save tensors and use them */
#ifndef SPW_HOOKS_SAVED_H
#define SPW_HOOKS_SAVED_H

#include "session.h"

extern PyType_Spec saved_spec;

/* Methods of a session. The first nine return what autograd keeps and passes to use(). */
PyObject *session_pack(PyObject *session, PyObject *tensor);
PyObject *session_save(PyObject *session, PyObject *tensor);
PyObject *session_discard(PyObject *session, PyObject *args);
PyObject *session_discard_input(PyObject *session, PyObject *args);
PyObject *session_keep(PyObject *session, PyObject *tensor);
PyObject *session_input(PyObject *session, PyObject *tensor);
PyObject *session_inner(PyObject *session, PyObject *args);
PyObject *session_count(PyObject *session, PyObject *tensor);
PyObject *session_keep_counted(PyObject *session, PyObject *args);
PyObject *session_use(PyObject *session, PyObject *saved);
/* The cache closes: make saved tensors drop the memory of the cache that they hold. */
PyObject *session_part(PyObject *session, PyObject *unused);
PyObject *saved_unpack(PyObject *saved);

#endif
