/* SPDX-License-Identifier: MIT */
/* hooks/recompute.c - frames: discard tensors that can be recomputed, and restore them */
#include "recompute.h"
#include "port.h"
#include "saved_tensor.h"

#include <string.h>

struct frame *frame_now(const struct session *session)
{
	return PyObject_TypeCheck(session->frame, frame_type) ? (struct frame *)session->frame
							      : NULL;
}

/* ---- Discarded ---- */

bool seen_may_go(const struct session *session, const struct seen *seen)
{
	const struct frame *frame = frame_now(session);

	return seen->as != SEEN_INPUT || (frame && frame->is_decided);
}

int saved_discard(struct saved *saved, const struct seen *seen)
{
	struct frame *frame = frame_now(saved->session);
	PyObject *held = seen_plain(seen, saved->conj, saved->neg);

	SPW_ASSERT(!saved->frame);
	if (!held)
		return -1;
	/* Keep the version counter, which shows later modifications, and drop the memory. */
	version_watch(saved->version, held);
	version_part(saved->version, held, false,
		     saved->device ? saved->device->nothing : torch.nothing);
	Py_DECREF(held);
	if (!frame) {
		PyErr_SetString(PyExc_SystemError, "a tensor outside of all scopes was discarded");
		return -1;
	}
	SPW_ASSERT(frame->saves > 0 && *frame->discarded_end == NULL);
	saved->frame = new_ref(frame);
	saved->place = frame->saves - 1;
	saved->discarded_next = NULL;
	saved->discarded_link = frame->discarded_end;
	*frame->discarded_end = saved;
	frame->discarded_end = &saved->discarded_next;
	return 0;
}

void saved_undiscard(struct saved *saved)
{
	struct frame *frame = saved->frame;

	if (!frame)
		return;
	SPW_ASSERT(*saved->discarded_link == saved && frame->discarded);
	saved->frame = NULL;
	*saved->discarded_link = saved->discarded_next;
	if (saved->discarded_next)
		saved->discarded_next->discarded_link = saved->discarded_link;
	else
		frame->discarded_end = saved->discarded_link;
	Py_DECREF((PyObject *)frame);
}

int saved_recompute(struct saved *saved)
{
	PyObject *frame = (PyObject *)saved->frame, *result;

	/* Using a modified tensor is an error, whatever its bytes: check before recomputing. */
	if (version_check(saved->version, NULL))
		return -1;
	if (!frame) {
		PyErr_SetString(PyExc_SystemError, "a discarded tensor belongs to no scope");
		return -1;
	}
	result = PyObject_CallMethodObjArgs(new_ref(frame), names.compute, NULL);
	Py_XDECREF(result);
	if (result && (PyObject *)saved->frame == frame) {
		PyErr_SetString(PyExc_SystemError, "a scope was recomputed and did not save "
						   "a tensor that it saved before");
		result = NULL;
	}
	Py_DECREF(frame);
	return result ? 0 : -1;
}

/* ---- Recomputed ---- */

/* Raise the exception for a recomputed tensor that differs from the saved one. Return: -1 */
static int differs(const struct saved *saved, const char *what)
{
	PyErr_Format(PyExc_ValueError, "the tensor that was saved as number %lu has %s",
		     (unsigned long)saved->place + 1, what);
	return -1;
}

/* Check type and shape. Return: 0 they are as saved; -1 with an exception. */
static int check_shape(const struct saved *saved, struct seen *seen)
{
	Py_ssize_t dims = saved_dims(saved);
	int64_t *sizes;
	int rc = seen_is_strange(seen);

	if (rc)
		return rc < 0 ? -1 : differs(saved, "become one of another kind");
	if (seen->dtype != saved->dtype)
		return differs(saved, "another element type");
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

/* Return recomputed bytes to the cache. Adds the owner before the call that passes its token. */
static int restore(struct session *session, const struct saved *saved, const struct seen *seen,
		   struct record *record, struct spw_offer *offer)
{
	struct version *version = record_version(record, seen->tensor, session->steps);
	struct spw_cache *cache = session_cache(session);
	PyObject *held;
	uint64_t address;
	int result;

	SPW_ASSERT(saved->id != 0);
	if (!version || version_witnessed(version, seen->tensor) || !cache ||
	    tensor_address(seen->tensor, &address))
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

static int saved_restore_there(struct saved *saved, PyObject *tensor, PyObject *frame)
{
	return ignore(PyObject_CallMethodObjArgs((PyObject *)saved->on, names.restore, saved,
						 tensor, frame, NULL));
}

/* The pack hook during recomputation: restores the tensor of the same place if it was discarded. */
static PyObject *frame_capture(PyObject *object, PyObject *tensor)
{
	struct frame *frame = (struct frame *)object;
	struct saved *saved = frame->discarded;
	uint32_t place = frame->seen++;

	SPW_ASSERT(!saved || saved->frame == frame);
	if (saved && saved->place < place) {
		(void)differs(saved, "not come a second time, and the error that said why was "
				     "caught");
		return NULL;
	}
	if (saved && saved->place == place) {
		PyObject *kept = new_ref(saved); /* alive while Python runs */
		int rc = saved->on ? saved_restore_there(saved, tensor, object)
				   : saved_restore(saved, tensor);

		if (rc == 0)
			saved_undiscard(saved);
		Py_DECREF(kept);
		if (rc)
			return NULL;
	}
	if (!frame->discarded) {
		PyErr_SetNone(torch.stop);
		return NULL;
	}
	return call(torch.detach, tensor);
}

static PyObject *frame_begin(PyObject *object, PyObject *Py_UNUSED(unused))
{
	struct frame *frame = (struct frame *)object;

	frame->seen = 0;
	return PyBool_FromLong(frame->discarded != NULL);
}

/* ---- As a Python object ---- */

static PyObject *frame_new(PyTypeObject *type, PyObject *args, PyObject *Py_UNUSED(kwargs))
{
	struct frame *frame = (struct frame *)PyType_GenericAlloc(type, 0);

	(void)args;
	if (frame)
		frame->discarded_end = &frame->discarded;
	return (PyObject *)frame;
}

static int frame_traverse(PyObject *object, visitproc visit, void *arg)
{
	Py_VISIT(Py_TYPE(object));
	return 0;
}

/* Discarded tensors hold a reference to their frame, so none is left here. */
static void frame_dealloc(PyObject *object)
{
	PyTypeObject *type = Py_TYPE(object);

	SPW_ASSERT(!((struct frame *)object)->discarded);
	PyObject_GC_UnTrack(object);
	PyObject_GC_Del(object);
	Py_DECREF(type);
}

static PyMethodDef frame_methods[] = {
	{"begin", frame_begin, METH_NOARGS,
	 "Recomputation begins. Return: whether any of its tensors is needed."},
	{"capture", frame_capture, METH_O, "The pack hook while it is recomputed."},
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
			{Py_tp_doc, "One run of a scope that can be recomputed."},
			{Py_tp_new, frame_new},
			{Py_tp_dealloc, frame_dealloc},
			{Py_tp_traverse, frame_traverse},
			{Py_tp_methods, frame_methods},
			{Py_tp_members, frame_members},
			{0, NULL},
		},
};
