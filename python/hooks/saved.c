/* SPDX-License-Identifier: MIT */
/* hooks/saved.c - pack and unpack hooks: offer a tensor to the cache or keep it, and use it */
#include "saved.h"
#include "kept.h"
#include "offering.h"
#include "on_device_type.h"
#include "part.h"
#include "recompute.h"
#include "using.h"

/* ---- A saved tensor that the cache knows ---- */

static void saved_borrow(struct saved *saved, PyObject *memory)
{
	struct session *session = saved->session;

	if (saved->on) { /* the device's memory is not the cache's */
		set_ref(&saved->borrowed, new_ref(memory));
		return;
	}
	if (!atomic_load(&session->leases->open))
		return; /* closed meanwhile: the cache waits until tensors release its memory */
	if (!saved->borrowed) {
		saved->next = session->borrowers;
		saved->link = &session->borrowers;
		if (saved->next)
			saved->next->link = &saved->next;
		session->borrowers = saved;
	}
	set_ref(&saved->borrowed, new_ref(memory));
}

static void saved_part(struct saved *saved)
{
	if (!saved->borrowed || saved->on)
		return;
	SPW_ASSERT(*saved->link == saved);
	*saved->link = saved->next;
	if (saved->next)
		saved->next->link = saved->link;
	Py_CLEAR(saved->borrowed);
}

PyObject *session_part(PyObject *session, PyObject *Py_UNUSED(unused))
{
	while (((struct session *)session)->borrowers)
		saved_part(((struct session *)session)->borrowers);
	Py_RETURN_NONE;
}

/* Run no Python code here: an exception of a signal handler would be lost. */
static void saved_dealloc(PyObject *object)
{
	struct saved *saved = (struct saved *)object;
	struct spw_cache *cache;

	SPW_ASSERT(gil_is_held());
	saved_part(saved);
	saved_undiscard(saved);
	cache = saved->id && !saved->on ? atomic_load(&saved->session->leases->open) : NULL;
	if (cache)
		(void)library.release(cache, (spw_tensor){saved->id});
	if (saved->on) {
		on_device_end(saved);
		Py_XDECREF(saved->borrowed);
		Py_XDECREF(saved->shape);
		Py_DECREF((PyObject *)saved->on);
	}
	version_drop(saved->version);
	Py_DECREF(saved->session);
	object_free(object);
}

/* ---- Saving ---- */

/*
 * Replace the owner's tensor, which keeps the graph alive, by a detached one. Detaching may switch
 * threads, and meanwhile the cache may have reaped the token.
 */
static int offer_hold(struct session *session, struct saved *saved, const struct seen *seen,
		      bool is_written)
{
	PyObject *held = seen_plain(seen, saved->conj, saved->neg);

	if (!held || (is_written && version_witnessed(saved->version, seen->tensor))) {
		Py_XDECREF(held);
		return -1;
	}
	version_watch(saved->version, held);
	if (!owner_hold(&session->owners, saved->token, held))
		version_part(saved->version, held, false, torch.nothing);
	Py_DECREF(held);
	return 0;
}

/*
 * Offer a tensor to the cache. The owner is added before the call that hands over its token, and
 * removed if the cache has the bytes already. Return: 0; 1 the cache does not take the tensor; -1
 * with an exception.
 */
static int offer_make(struct session *session, struct saved *saved, struct spw_offer *offer,
		      const struct seen *seen, struct record *record)
{
	struct spw_cache *cache;
	uint64_t address;
	spw_tensor id;
	int result;

	SPW_ASSERT(saved->id == 0 && saved->token == 0);
	if (!atomic_load(&session->leases->cache))
		return 1; /* a child of fork() must not use its parent's cache */
	cache = session_cache(session);
	if (!cache)
		return -1;
	/* Creating objects may collect garbage, which runs any code, or switch threads. */
	if (tensor_address(seen->tensor, &address))
		return -1;
	if (address != (uint64_t)(uintptr_t)offer->storage_bytes + saved->offset_bytes)
		return 1; /* the storage was moved meanwhile */
	offer->owner = owner_add(&session->owners, seen->tensor, saved->version, record, address);
	if (offer->owner == 0)
		return -1;
	result = library.offer_hint(cache, offer, hint_of(saved, seen), &id);
	saved->id = id.value;
	SPW_ASSERT(result < 0 || saved->id != 0);
	if (result == SPW_OFFER_AGAIN) {
		int rc = seen_may_go(session, seen) ? saved_discard(saved, seen) : 1;

		owner_end(&session->owners, owner_of(&session->owners, offer->owner));
		return rc;
	}
	if (result < 0 || result == SPW_OFFER_DEDUP) {
		owner_end(&session->owners, owner_of(&session->owners, offer->owner));
		return result < 0;
	}
	saved->token = offer->owner;
	return offer_hold(session, saved, seen, result == SPW_OFFER_SPILL);
}

/* Return: a saved tensor; None if the caller has to keep the tensor; NULL with an exception. */
static PyObject *session_offer(struct session *session, struct seen *seen)
{
	struct record *record = session_record(session, seen);
	struct saved *saved = record ? saved_of(session, seen, record) : NULL;
	struct spw_offer offer = {.storage_key = record ? record->key : 0};
	PyObject *kept = NULL;
	int rc = -1;

	if (saved)
		rc = offer_fill(&offer, saved, seen);
	if (rc < 0 && was_refused())
		rc = 1;
	if (rc == 0)
		kept = kept_before(session, seen, &offer, saved->version->number);
	if (rc == 0 && !kept && PyErr_Occurred())
		rc = -1;
	if (rc == 0 && !kept) {
		session_drain_at_times(session, saved->len_bytes);
		rc = offer_make(session, saved, &offer, seen, record);
	}
	Py_XDECREF((PyObject *)record);
	if (kept) {
		Py_DECREF((PyObject *)saved);
		return kept;
	}
	if (rc == 0) {
		session_throttle(session);
		return (PyObject *)saved;
	}
	Py_XDECREF((PyObject *)saved);
	return rc < 0 ? NULL : new_ref(Py_None);
}

/*
 * Save a parameter whose bytes may be on drives, or a part of one. Return: the package's
 * placeholder; None if the tensor is not one; NULL with an exception.
 */
static PyObject *save_part(struct session *session, struct seen *seen)
{
	PyObject *place;

	if (session->places == Py_None)
		return new_ref(Py_None);
	if (seen_storage(seen))
		return was_refused() ? new_ref(Py_None) : NULL;
	place = PyDict_GetItemWithError(session->places, seen->identity);
	if (!place)
		return PyErr_Occurred() ? NULL : new_ref(Py_None);
	return PyObject_CallMethodObjArgs((PyObject *)session, names.save_part, place, seen->tensor,
					  NULL);
}

static PyObject *save(struct session *session, struct seen *seen);

/* The first tensor of a device is saved: the package sets up devices. */
static PyObject *save_elsewhere(struct session *session, const struct seen *seen)
{
	struct seen again = {.tensor = seen->tensor, .as = seen->as, .is_view = seen->is_view};
	int serves = to_bool(
		PyObject_CallMethodObjArgs((PyObject *)session, names.meet, seen->tensor, NULL));
	PyObject *packed = NULL;

	if (serves > 0)
		packed = save(session, &again);
	else if (serves == 0)
		packed = kept_new(seen);
	seen_end(&again);
	return packed;
}

/*
 * Save a tensor that is not offloaded, by keeping it. The cache counts the whole storage of a part
 * that was computed; the package saves tensor subclasses.
 */
static PyObject *save_skipped(struct session *session, const struct seen *seen)
{
	struct seen whole = {.tensor = seen->tensor, .device = seen->device, .as = SEEN_COUNTED};
	int is_kept = seen->as == SEEN_COUNTED || !seen->is_other ? 1 : seen_is_parameter(seen);
	PyObject *kept;

	if (is_kept == 0)
		return PyObject_CallMethodObjArgs((PyObject *)session, names.save_other,
						  seen->tensor, NULL);
	if (is_kept > 0 && seen->is_elsewhere && session->device == Py_None)
		return save_elsewhere(session, seen);
	kept = is_kept < 0 ? NULL : kept_new(seen);
	if (kept && seen->is_fixed && seen->as != SEEN_COUNTED) {
		if (kept_counts(kept, save(session, &whole)))
			Py_CLEAR(kept);
		seen_end(&whole);
	}
	return kept;
}

static PyObject *save(struct session *session, struct seen *seen)
{
	bool is_plain = (PyObject *)Py_TYPE(seen->tensor) == torch.tensor_type;
	struct on_device *on = is_plain ? on_device_now(session) : NULL;
	PyObject *packed = save_part(session, seen);
	int skipped;

	if (packed != Py_None)
		return packed;
	Py_CLEAR(packed);
	if (on && port_find(on->port, seen->tensor, &seen->device))
		return NULL;
	skipped = seen->device ? 0 : is_skipped(session, seen);
	if (skipped == 0)
		packed = seen->device ? on_device_save(on, session, seen)
				      : session_offer(session, seen);
	if (packed == Py_None) {
		Py_CLEAR(packed);
		skipped = 1;
	}
	return skipped > 0 ? save_skipped(session, seen) : packed;
}

static PyObject *save_as(PyObject *session, PyObject *tensor, enum seen_as as, bool is_view)
{
	struct seen seen = {.tensor = tensor, .as = as, .is_view = is_view};
	PyObject *packed = kept_by_plan((struct session *)session, &seen);

	if (!packed && !PyErr_Occurred())
		packed = save((struct session *)session, &seen);
	seen_end(&seen);
	return packed;
}

PyObject *session_save(PyObject *object, PyObject *tensor)
{
	return save_as(object, tensor, SEEN_SAVED, false);
}

static PyObject *discard_as(PyObject *object, PyObject *args, enum seen_as as)
{
	struct session *session = (struct session *)object;
	PyObject *scope = session->frame, *frame, *tensor, *packed;

	if (!PyArg_ParseTuple(args, "O!O", frame_type, &frame, &tensor))
		return NULL;
	((struct frame *)frame)->is_decided = true;
	((struct frame *)frame)->saves++;
	session->frame = new_ref(frame);
	packed = save_as(object, tensor, as, false);
	set_ref(&session->frame, scope);
	return packed;
}

/*
 * Python's discard(frame, tensor): save a tensor that an operation can recompute. It is kept
 * nevertheless if it is small, not offloaded, or a part of a storage with unknown bytes around it.
 */
PyObject *session_discard(PyObject *object, PyObject *args)
{
	return discard_as(object, args, SEEN_SAVED);
}

/* Python's discard_input(frame, tensor): the same for one that a scope is recomputed from. */
PyObject *session_discard_input(PyObject *object, PyObject *args)
{
	return discard_as(object, args, SEEN_INPUT);
}

PyObject *session_keep(PyObject *object, PyObject *tensor)
{
	const struct seen seen = {.tensor = tensor};

	(void)object;
	return kept_new(&seen);
}

PyObject *session_input(PyObject *object, PyObject *tensor)
{
	return save_as(object, tensor, SEEN_INPUT, false);
}

/* Python's inner(tensor, is_view): save the elements of a tensor subclass, which may be a view */
PyObject *session_inner(PyObject *object, PyObject *args)
{
	PyObject *tensor;
	int is_view;

	if (!PyArg_ParseTuple(args, "Op", &tensor, &is_view))
		return NULL;
	return save_as(object, tensor, SEEN_INNER, is_view);
}

PyObject *session_count(PyObject *object, PyObject *tensor)
{
	return save_as(object, tensor, SEEN_COUNTED, false);
}

/* Python's keep_counted(tensor, object): keep a tensor, and the object as long as the tensor */
PyObject *session_keep_counted(PyObject *object, PyObject *args)
{
	struct seen seen = {0};
	PyObject *counted, *kept;

	(void)object;
	if (!PyArg_ParseTuple(args, "OO", &seen.tensor, &counted))
		return NULL;
	kept = kept_new(&seen);
	if (kept)
		(void)kept_counts(kept, new_ref(counted));
	return kept;
}

/* The pack hook. The package handles recorded steps, trial steps and recomputed operations. */
PyObject *session_pack(PyObject *object, PyObject *tensor)
{
	struct session *session = (struct session *)object;
	struct frame *frame = frame_now(session);

	if (session->begins && (session->unpacked || session->steps == 0) &&
	    ignore(PyObject_CallMethodObjArgs(object, names.begin_step, NULL)))
		return NULL;
	if (frame)
		frame->saves++;
	if (session->tracer == Py_None && session->trial == Py_None &&
	    session->operations == Py_None)
		return session_save(object, tensor);
	return PyObject_CallMethodObjArgs(object, names.pack_watched, tensor, NULL);
}

/* ---- Using ---- */

/*
 * Get the tensor that the owner still has. Return: NULL without an exception if another thread has
 * reaped the token or is detaching the tensor.
 */
static PyObject *tensor_of_owner(struct saved *saved, uint64_t token)
{
	struct owner *owner = owner_of(&saved->session->owners, token);
	PyObject *tensor;
	int64_t number;

	if (!owner || !owner->is_held)
		return NULL;
	SPW_ASSERT(owner->token == token);
	/* Whose number is looked at in any case, by version_check(). */
	if (owner->tensor != saved->version->counter) {
		if (version_number(owner->tensor, &number))
			return NULL;
		if (number != owner->version->number)
			saved->version->modified = true;
	}
	owner->is_shown = true;
	tensor = new_ref(owner->tensor);
	if (token != saved->token || saved->conj || saved->neg)
		set_ref(&tensor, saved_on(saved, tensor, 0));
	return tensor;
}

/* Make a tensor of one dimension on the whole storage. */
static PyObject *storage_of_lease(struct saved *saved, const struct spw_taken *taken)
{
	const struct dtype *dtype = saved->dtype;
	int64_t row[2] = {0, 1};

	if (saved->storage_len_bytes % dtype->itemsize != 0)
		dtype = dtype_find(torch.uint8);
	SPW_ASSERT(dtype);
	row[0] = (int64_t)(saved->storage_len_bytes / dtype->itemsize);
	return lease_tensor(saved->session->leases, taken,
			    &(struct shape){.dtype = dtype, .sizes = row, .dims = 1});
}

/* Make the tensor on a lease. The lease ends with the last tensor on its memory. */
static PyObject *tensor_of_lease(struct saved *saved, const struct spw_taken *taken)
{
	struct shape shape = {
		.dtype = saved->dtype, .sizes = saved->sizes, .dims = saved_dims(saved)};
	PyObject *tensor = saved_is_part(saved)
				   ? storage_of_lease(saved, taken)
				   : lease_tensor(saved->session->leases, taken, &shape);

	tensor = tensor_lent(saved->version->counter, tensor);
	if (tensor && saved_is_part(saved))
		set_ref(&tensor, saved_on(saved, tensor, 0));
	else if (tensor && (saved->conj || saved->neg))
		set_ref(&tensor, PyObject_CallFunction(torch.flagged, "Oii", tensor, saved->conj,
						       saved->neg));
	return tensor;
}

static void take_failed(struct saved *saved, int result)
{
	struct session *session = saved->session;
	PyObject *error = PyObject_CallFunction(torch.error_of, "i", result);

	leases_user_ended(session->leases);
	if (!error)
		return;
	/*
	 * Memory that was modified or freed during its write fails its checksum later: report the
	 * modification, not an error of the drive.
	 */
	session_drain(session);
	if (!saved->version->moved && version_check(saved->version, NULL) == 0)
		PyErr_SetObject((PyObject *)Py_TYPE(error), error);
	Py_DECREF(error);
}

/* Take the bytes from the cache. Return: NULL without an exception if the caller must retry. */
static PyObject *saved_take(struct saved *saved)
{
	struct leases *leases = saved->session->leases;
	struct spw_cache *cache = session_cache(saved->session);
	struct spw_taken taken;
	int result;

	SPW_ASSERT(saved->id != 0 && !saved->on);
	if (!cache)
		return NULL;
	leases_user_begins(leases);
	Py_BEGIN_ALLOW_THREADS;
	result = library.take(cache, (spw_tensor){saved->id}, 0, saved->storage_len_bytes, &taken);
	Py_END_ALLOW_THREADS;
	if (result < 0) {
		take_failed(saved, result);
		return NULL;
	}
	if (result == SPW_TAKE_AGAIN) {
		leases_user_ended(leases);
		(void)saved_recompute(saved);
		return NULL;
	}
	if (taken.bytes)
		return tensor_of_lease(saved, &taken);
	leases_user_ended(leases);
	return tensor_of_owner(saved, taken.owner);
}

static PyObject *use_here(struct saved *saved)
{
	PyObject *tensor = NULL;

	session_drain_at_times(saved->session, saved->len_bytes);
	while (!tensor && !saved->version->moved) {
		tensor = saved_take(saved);
		if (!tensor && PyErr_Occurred())
			return NULL;
	}
	if (saved->version->moved)
		set_ref(&tensor, saved_on(saved, saved->version->moved, 0));
	return tensor;
}

static PyObject *use(struct saved *saved)
{
	PyObject *tensor;

	saved->session->unpacked = true;
	tensor = saved->on ? on_device_use(saved) : use_here(saved);
	if (!tensor || version_check(saved->version, tensor))
		Py_CLEAR(tensor);
	else
		saved_borrow(saved, tensor);
	return tensor;
}

PyObject *session_use(PyObject *object, PyObject *saved)
{
	(void)object;
	if (!PyObject_TypeCheck(saved, saved_type)) {
		PyErr_SetString(PyExc_TypeError, "use() takes a saved tensor");
		return NULL;
	}
	return use((struct saved *)saved);
}

PyObject *saved_unpack(PyObject *object)
{
	struct saved *saved = (struct saved *)object;
	PyObject *tensor;

	Py_INCREF(object);
	if (saved->session->tracer == Py_None)
		tensor = use(saved);
	else
		tensor = PyObject_CallMethodObjArgs((PyObject *)saved->session, names.use_watched,
						    object, NULL);
	Py_DECREF(object);
	return tensor;
}

static PyObject *saved_unpack_now(PyObject *object, PyObject *Py_UNUSED(unused))
{
	return saved_unpack(object);
}

static PyMethodDef saved_methods[] = {
	{"unpack", saved_unpack_now, METH_NOARGS, "The unpack hook."},
	{NULL, NULL, 0, NULL},
};

static PyMemberDef saved_members[] = {
	{"id", T_ULONGLONG, offsetof(struct saved, id), READONLY, NULL},
	{"length", T_ULONGLONG, offsetof(struct saved, len_bytes), READONLY, NULL},
	{NULL, 0, 0, 0, NULL},
};

PyType_Spec saved_spec = {
	.name = "spillway._hooks.Saved",
	.basicsize = offsetof(struct saved, sizes),
	.itemsize = sizeof(int64_t),
	.flags = MADE_HERE,
	.slots =
		(PyType_Slot[]){
			{Py_tp_doc, "A saved tensor that the cache knows."},
			{Py_tp_dealloc, saved_dealloc},
			{Py_tp_methods, saved_methods},
			{Py_tp_members, saved_members},
			{0, NULL},
		},
};
