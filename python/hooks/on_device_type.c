/* SPDX-License-Identifier: MIT */
/* hooks/on_device_type.c - OnDevice, the Python type for a session's tensors on devices */
#include "on_device_type.h"
#include "using.h"

struct on_device *on_device_now(const struct session *session)
{
	return PyObject_TypeCheck(session->device, on_device_type)
		       ? (struct on_device *)session->device
		       : NULL;
}

/* Python's restore(saved tensor, recomputed tensor, frame) */
static PyObject *restore_now(PyObject *object, PyObject *args)
{
	struct on_device *on = (struct on_device *)object;
	PyObject *saved, *tensor, *frame;
	int rc;

	if (!PyArg_ParseTuple(args, "O!OO", saved_type, &saved, &tensor, &frame) || on_lock(on))
		return NULL;
	rc = on_device_restore(on, (struct saved *)saved, tensor, frame);
	on_unlock(on);
	if (rc)
		return NULL;
	Py_RETURN_NONE;
}

/*
 * Python's OnDevice(port, cache, lock, notifies): the cache must have a session, and so leases;
 * notifies: whether a thread is told of copies
 */
static PyObject *on_device_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
	PyObject *port, *cache, *lock, *leases;
	struct on_device *on;
	int notifies;

	if (kwargs || !PyArg_ParseTuple(args, "O!OOp", port_type, &port, &cache, &lock, &notifies))
		return NULL;
	leases = PyObject_GetAttrString(cache, "leases");
	if (leases && !PyObject_TypeCheck(leases, leases_type)) {
		PyErr_SetString(PyExc_TypeError, "the cache has no session");
		Py_CLEAR(leases);
	}
	on = leases ? (struct on_device *)PyType_GenericAlloc(type, 0) : NULL;
	if (on) {
		on->leases = ((struct leases_object *)leases)->leases;
		SPW_ASSERT(on->leases);
		leases_hold(on->leases);
		on->port = new_ref(port);
		on->cache = new_ref(cache);
		on->lock = new_ref(lock);
		on->notifies = notifies != 0;
		on->users = PyDict_New();
		if (!on->users)
			Py_CLEAR(on);
	}
	Py_XDECREF(leases);
	return (PyObject *)on;
}

static int on_device_traverse(PyObject *object, visitproc visit, void *arg)
{
	struct on_device *on = (struct on_device *)object;

	Py_VISIT(Py_TYPE(object));
	Py_VISIT((PyObject *)on->port);
	Py_VISIT(on->cache);
	Py_VISIT(on->users);
	for (uint32_t place = 0; place < on->owners.max; place++)
		Py_VISIT(on->owners.all[place].tensor);
	return 0;
}

static void on_device_dealloc(PyObject *object)
{
	struct on_device *on = (struct on_device *)object;
	PyTypeObject *type = Py_TYPE(object);

	PyObject_GC_UnTrack(object);
	SPW_ASSERT(on->ended_count == on->alive);
	owners_end(&on->owners);
	PyMem_Free(on->ended);
	Py_XDECREF(on->users);
	Py_DECREF((PyObject *)on->port);
	Py_DECREF(on->cache);
	Py_DECREF(on->lock);
	leases_drop(on->leases);
	PyObject_GC_Del(object);
	Py_DECREF(type);
}

static PyObject *on_device_go_on(PyObject *object, PyObject *Py_UNUSED(unused))
{
	if (on_go_on((struct on_device *)object))
		return NULL;
	Py_RETURN_NONE;
}

/* In Python Ctrl-C could come between taking the lock and the try that releases it. */
static PyObject *on_device_progress(PyObject *object, PyObject *Py_UNUSED(unused))
{
	struct on_device *on = (struct on_device *)object;
	int rc = on_lock_if_free(on);

	if (rc > 0) {
		on->is_due = true;
		rc = on_go_on(on);
		on_unlock(on);
	}
	if (rc < 0)
		return NULL;
	Py_RETURN_NONE;
}

static PyObject *on_device_forget(PyObject *object, PyObject *Py_UNUSED(unused))
{
	struct on_device *on = (struct on_device *)object;

	owners_end(&on->owners);
	PyDict_Clear(on->users);
	Py_RETURN_NONE;
}

static PyObject *on_device_held(PyObject *object, PyObject *Py_UNUSED(unused))
{
	struct owners *owners = &((struct on_device *)object)->owners;
	PyObject *list = PyList_New(0);

	for (uint32_t place = 0; list && place < owners->max; place++)
		if (owners->all[place].token != 0 && PyList_Append(list, owners->all[place].tensor))
			Py_CLEAR(list);
	return list;
}

static PyObject *on_device_known(PyObject *object, PyObject *Py_UNUSED(unused))
{
	struct on_device *on = (struct on_device *)object;

	return PyLong_FromUnsignedLong((unsigned long)on->alive + on->owners.held);
}

static PyMethodDef on_device_methods[] = {
	{"_go_on", on_device_go_on, METH_NOARGS, "Tell the cache what has ended. With the lock."},
	{"_progress", on_device_progress, METH_NOARGS,
	 "The same with the lock, unless a call has it, even one of this thread."},
	{"restore", restore_now, METH_VARARGS,
	 "What was discarded was recomputed: a verdict says whether to the same bytes."},
	{"held", on_device_held, METH_NOARGS, "The memory that the cache may have copied."},
	{"known", on_device_known, METH_NOARGS, "The number of saved tensors and tokens known."},
	{"forget", on_device_forget, METH_NOARGS, "The cache is closed."},
	{NULL, NULL, 0, NULL},
};

static PyMemberDef on_device_members[] = {
	{"port", T_OBJECT, offsetof(struct on_device, port), READONLY, NULL},
	{"_lock", T_OBJECT, offsetof(struct on_device, lock), READONLY, NULL},
	{"_users", T_OBJECT, offsetof(struct on_device, users), READONLY, NULL},
	{"_scope", T_ULONGLONG, offsetof(struct on_device, scope), 0, NULL},
	{NULL, 0, 0, 0, NULL},
};

PyTypeObject *on_device_type;
PyType_Spec on_device_spec = {
	.name = "spillway._hooks.OnDevice",
	.basicsize = sizeof(struct on_device),
	.flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_HAVE_GC |
		 Py_TPFLAGS_IMMUTABLETYPE,
	.slots =
		(PyType_Slot[]){
			{Py_tp_doc, "Tensors of devices, as a session sees them."},
			{Py_tp_new, on_device_new},
			{Py_tp_dealloc, on_device_dealloc},
			{Py_tp_traverse, on_device_traverse},
			{Py_tp_methods, on_device_methods},
			{Py_tp_members, on_device_members},
			{0, NULL},
		},
};
