/* SPDX-License-Identifier: MIT */
/* hooks/again.c - scopes that can be computed again, and what is given up for that */
#include "hooks.h"

struct frame *frame_now(const struct session *session)
{
	return PyObject_TypeCheck(session->frame, frame_type) ? (struct frame *)session->frame
							      : NULL;
}

/* ---- Given up ---- */

int saved_give_up(struct saved *saved, const struct seen *seen)
{
	struct frame *frame = frame_now(saved->session);
	PyObject *held = seen_plain(seen, saved->conj, saved->neg);

	if (!held)
		return -1;
	/* That it is modified later must be seen; its memory goes. */
	version_watch(saved->version, held);
	version_part(saved->version, held, false,
		     saved->device ? saved->device->nothing : torch.nothing);
	Py_DECREF(held);
	if (!frame) {
		PyErr_SetString(PyExc_SystemError, "a tensor outside of all scopes was given up");
		return -1;
	}
	saved->frame = new_ref(frame);
	saved->place = frame->saves - 1;
	saved->given_next = NULL;
	saved->given_link = frame->given_end;
	*frame->given_end = saved;
	frame->given_end = &saved->given_next;
	return 0;
}

void saved_ungive(struct saved *saved)
{
	struct frame *frame = saved->frame;

	if (!frame)
		return;
	saved->frame = NULL;
	*saved->given_link = saved->given_next;
	if (saved->given_next)
		saved->given_next->given_link = saved->given_link;
	else
		frame->given_end = saved->given_link;
	Py_DECREF((PyObject *)frame);
}

int saved_again(struct saved *saved)
{
	PyObject *frame = (PyObject *)saved->frame, *result;

	/* What was modified is not asked for: there is no need to compute it. */
	if (version_check(saved->version, NULL))
		return -1;
	if (!frame) {
		PyErr_SetString(PyExc_SystemError, "a tensor was given up that no scope has saved");
		return -1;
	}
	result = PyObject_CallMethodObjArgs(new_ref(frame), names.compute, NULL);
	Py_XDECREF(result);
	if (result && (PyObject *)saved->frame == frame) {
		PyErr_SetString(PyExc_SystemError, "a scope was computed again, and has not "
						   "given what it saved before");
		result = NULL;
	}
	Py_DECREF(frame);
	return result ? 0 : -1;
}

/* ---- Computed again ---- */

/* Which is not what was saved: in words. Return: -1 */
static int differs(const struct saved *saved, const char *what)
{
	PyErr_Format(PyExc_ValueError, "the tensor that was saved as number %lu has %s",
		     (unsigned long)saved->place + 1, what);
	return -1;
}

/* Return: 0 it is a tensor of the same kind; -1 with an exception. */
static int check_shape(const struct saved *saved, struct seen *seen)
{
	Py_ssize_t dims = saved_dims(saved);
	int64_t *sizes;
	int rc = seen_is_strange(seen);

	if (rc)
		return rc < 0 ? -1 : differs(saved, "become one of another kind");
	if (seen->dtype != saved->dtype)
		return differs(saved, "another type of elements");
	if (seen_storage(seen) || seen_base(seen))
		return -1;
	rc = (int)seen_dims(seen);
	if (rc < 0)
		return -1;
	if (rc != dims)
		return differs(saved, "another number of dimensions");
	sizes = PyMem_Malloc((size_t)(2 * dims + 1) * sizeof(*sizes));
	if (!sizes) {
		PyErr_NoMemory();
		return -1;
	}
	rc = seen_shape(seen, sizes);
	if (rc == 0 && memcmp(sizes, saved->sizes, (size_t)(2 * dims) * sizeof(*sizes)) != 0)
		rc = differs(saved, "another shape");
	PyMem_Free(sizes);
	return rc;
}

static int check_place(const struct saved *saved, const struct seen *seen, struct spw_offer *offer)
{
	int64_t offset;
	bool conj, neg;

	if (seen_place(seen, &offset, offer) || seen_flags(seen, &conj, &neg))
		return -1;
	if ((uint64_t)offset * saved->dtype->itemsize != saved->offset_bytes ||
	    conj != saved->conj || neg != saved->neg)
		return differs(saved, "another place in its storage");
	if (offer->storage_len_bytes != saved->storage_len_bytes)
		return differs(saved, "a storage of another size");
	offer->offset_bytes = 0;
	offer->len_bytes = saved->storage_len_bytes;
	return 0;
}

int saved_is_like(const struct saved *saved, struct seen *seen, struct spw_offer *offer)
{
	int rc = check_shape(saved, seen);

	return rc ? rc : check_place(saved, seen, offer);
}

/* The owner is there before the call, for its token goes with it. */
static int restore(struct session *session, const struct saved *saved, const struct seen *seen,
		   struct record *record, struct spw_offer *offer)
{
	struct version *version = record_version(record, seen->tensor, session->steps);
	struct spw_cache *cache = session_cache(session);
	PyObject *held;
	uint64_t address;
	int result;

	if (!version || !cache || to_uint64(call(torch.address, seen->tensor), &address))
		return -1;
	held = seen_plain(seen, saved->conj, saved->neg);
	if (!held)
		return -1;
	offer->owner = owner_add(&session->owners, held, version, record, address);
	result = offer->owner ? library.restore(cache, (spw_tensor){saved->id}, offer) : -1;
	if (result == 0)
		(void)owner_hold(&session->owners, offer->owner, held);
	else if (offer->owner)
		owner_end(&session->owners, owner_of(&session->owners, offer->owner));
	Py_DECREF(held);
	if (result < 0 && offer->owner)
		raise_error(result);
	return result < 0 ? -1 : 0;
}

static int saved_restore(struct saved *saved, PyObject *tensor)
{
	struct session *session = saved->session;
	struct seen seen = {.tensor = tensor};
	struct spw_offer offer = {0};
	struct record *record = NULL;
	int rc = saved_is_like(saved, &seen, &offer);

	if (rc == 0) {
		record = session_record(session, &seen);
		rc = record ? restore(session, saved, &seen, record, &offer) : -1;
	}
	Py_XDECREF((PyObject *)record);
	seen_end(&seen);
	return rc;
}

/* On its device. */
static int saved_restore_there(struct saved *saved, PyObject *tensor, PyObject *frame)
{
	return ignore(PyObject_CallMethodObjArgs((PyObject *)saved->on, names.restore, saved,
						 tensor, frame, NULL));
}

/* The scope runs again, and a tensor is saved: the hook. */
static PyObject *frame_capture(PyObject *object, PyObject *tensor)
{
	struct frame *frame = (struct frame *)object;
	struct saved *saved = frame->given;
	uint32_t place = frame->seen++;

	if (saved && saved->place == place) {
		PyObject *kept = new_ref(saved); /* while Python runs */
		int rc = saved->on ? saved_restore_there(saved, tensor, object)
				   : saved_restore(saved, tensor);

		if (rc == 0)
			saved_ungive(saved);
		Py_DECREF(kept);
		if (rc)
			return NULL;
	}
	if (!frame->given) {
		PyErr_SetNone(torch.stop);
		return NULL;
	}
	return call(torch.detach, tensor);
}

static PyObject *frame_begin(PyObject *object, PyObject *unused)
{
	struct frame *frame = (struct frame *)object;

	(void)unused;
	frame->seen = 0;
	return PyBool_FromLong(frame->given != NULL);
}

/* ---- As an object of Python ---- */

static PyObject *frame_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
	struct frame *frame = (struct frame *)PyType_GenericAlloc(type, 0);

	(void)args;
	(void)kwargs;
	if (frame)
		frame->given_end = &frame->given;
	return (PyObject *)frame;
}

static int frame_traverse(PyObject *object, visitproc visit, void *arg)
{
	Py_VISIT(Py_TYPE(object));
	return 0;
}

/* What it computes again holds it: nothing is left of that. */
static void frame_dealloc(PyObject *object)
{
	PyTypeObject *type = Py_TYPE(object);

	PyObject_GC_UnTrack(object);
	PyObject_GC_Del(object);
	Py_DECREF(type);
}

static PyMethodDef frame_methods[] = {
	{"begin", frame_begin, METH_NOARGS,
	 "It is computed again from here on. Return: whether anything is needed of it."},
	{"capture", frame_capture, METH_O, "It saves a tensor again: the hook."},
	{NULL, NULL, 0, NULL},
};

static PyMemberDef frame_members[] = {
	{"saves", T_UINT, offsetof(struct frame, saves), READONLY, NULL},
	{"seen", T_UINT, offsetof(struct frame, seen), READONLY, NULL},
	{NULL, 0, 0, 0, NULL},
};

PyTypeObject *frame_type;
PyType_Spec frame_spec = {
	.name = "spillway._hooks.Frame",
	.basicsize = sizeof(struct frame),
	.flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_HAVE_GC |
		 Py_TPFLAGS_IMMUTABLETYPE,
	.slots =
		(PyType_Slot[]){
			{Py_tp_doc, "One run of a scope that can be computed again."},
			{Py_tp_new, frame_new},
			{Py_tp_dealloc, frame_dealloc},
			{Py_tp_traverse, frame_traverse},
			{Py_tp_methods, frame_methods},
			{Py_tp_members, frame_members},
			{0, NULL},
		},
};
