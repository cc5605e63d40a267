/* SPDX-License-Identifier: MIT */
/*
 * hooks/object.h - Python's limited API, small helpers on its objects, and what the hooks are
 *
 * The hooks move plain tensors between autograd and the tensor cache. A hook runs right after an
 * operation has displaced the CPU caches, so its cost is the memory that it touches; the same steps
 * in Python touch several times as much. The Python package does the rare work (recorded steps,
 * lazily conjugated tensors, errors), measures device times, and makes all calls into a device,
 * through a spillway._gpu.accelerator.Table.
 *
 * One build serves every version of Python and PyTorch: it uses the limited API of Python 3.11,
 * calls PyTorch's methods as Python objects, and turns memory of the cache into a tensor by DLPack,
 * whose deleter may run on any thread, without the GIL.
 *
 * Threads    The GIL protects everything but leases: they end on any thread, and struct leases is
 *            atomic.
 * Lifetime   A saved tensor holds a reference to its session. A lease holds only struct leases,
 *            which outlives the session.
 * Errors     Functions that fail set a Python exception and return NULL or -1.
 *
 * Each source file calls only those before it in this list: calls.c, tensor.c, content.c, lease.c,
 * owner.c, session.c, recompute.c, part.c, port.c, users.c, offering.c, using.c, on_device.c,
 * kept.c, saved.c, rest.c, module.c.
 */
#ifndef SPW_HOOKS_OBJECT_H
#define SPW_HOOKS_OBJECT_H

#define Py_LIMITED_API 0x030b0000
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <structmember.h>

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define SPW_ASSERT_TEXT_(line) #line
#define SPW_ASSERT_TEXT(line)  SPW_ASSERT_TEXT_(line)

/*
 * States an invariant of this module, in release builds too. It only looks. If the invariant does
 * not hold, the process ends with Python's stack.
 */
#define SPW_ASSERT(condition)  \
	((condition) ? (void)0 \
		     : Py_FatalError(__FILE__ ":" SPW_ASSERT_TEXT(__LINE__) ": not " #condition))

/* Whether this thread holds the GIL; without it PyThreadState_Get() ends the process. */
static inline bool gil_is_held(void)
{
	return PyThreadState_Get() != NULL;
}

/* Flags of types whose objects only this module creates. */
#define MADE_HERE \
	(Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION | Py_TPFLAGS_IMMUTABLETYPE)

static inline void *new_ref(void *object)
{
	Py_INCREF((PyObject *)object);
	return object;
}

/* Replace the reference at @place by @object. Consumes the reference to @object. */
static inline void set_ref(PyObject **place, PyObject *object)
{
	PyObject *before = *place;

	*place = object;
	Py_XDECREF(before);
}

/* Calls a function, or a method of @argument, with one argument. */
static inline PyObject *call(PyObject *function, PyObject *argument)
{
	return PyObject_CallFunctionObjArgs(function, argument, NULL);
}

/* Drop the result of a call. Return: 0; -1 with an exception if the call failed. */
static inline int ignore(PyObject *result)
{
	Py_XDECREF(result);
	return result ? 0 : -1;
}

/* Free an object of a heap type, and its reference to that type. */
static inline void object_free(PyObject *object)
{
	PyTypeObject *type = Py_TYPE(object);

	PyObject_Free(object);
	Py_DECREF(type);
}

/*
 * These convert a number and consume its reference. Return: 0, but to_bool() the truth value; -1
 * with an exception, also if the number is NULL because the call that should have made it failed.
 */
static inline int to_int64(PyObject *number, int64_t *value)
{
	if (!number)
		return -1;
	*value = PyLong_AsLongLong(number);
	Py_DECREF(number);
	return *value == -1 && PyErr_Occurred() ? -1 : 0;
}

static inline int to_uint64(PyObject *number, uint64_t *value)
{
	if (!number)
		return -1;
	*value = PyLong_AsUnsignedLongLong(number);
	Py_DECREF(number);
	return *value == UINT64_MAX && PyErr_Occurred() ? -1 : 0;
}

static inline int to_bool(PyObject *object)
{
	int is_true;

	if (!object)
		return -1;
	is_true = object == Py_True ? 1 : object == Py_False ? 0 : PyObject_IsTrue(object);
	Py_DECREF(object);
	return is_true;
}

#endif
