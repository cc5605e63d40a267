/* SPDX-License-Identifier: MIT */
/* hooks/offering.c - save a tensor of a device: offer it to the cache and copy it out */
#include "offering.h"
#include "part.h"
#include "recompute.h"

#include <errno.h>

#define WORD_BYTES 8

/* Return the staging memory of a copy that could not start; the tensor stays on the device. */
static int not_copied(struct on_device *on, struct spw_cache *cache, uint64_t number)
{
	PyObject *type, *value, *traceback, *result;

	if (!port_is_copying_out(on->port, number)) {
		(void)library.copied(cache, (spw_tensor){number}, -EIO);
		on->is_due = true;
	}
	if (!PyErr_ExceptionMatches(PyExc_RuntimeError))
		return -1;
	PyErr_Fetch(&type, &value, &traceback);
	PyErr_NormalizeException(&type, &value, &traceback);
	result = PyObject_CallMethodObjArgs((PyObject *)on, names.not_copied, value, NULL);
	Py_XDECREF(type);
	Py_XDECREF(value);
	Py_XDECREF(traceback);
	return ignore(result);
}

/* Record an event after the computation of the tensor. */
static int mark_produced(struct on_device *on, struct offering *offering)
{
	struct owner *owner;

	SPW_ASSERT(!offering->produced);
	offering->produced = PyObject_CallMethodObjArgs(on->port->table, names.mark_event,
							offering->stream, NULL);
	if (!offering->produced)
		return -1;
	owner = owner_of(&on->owners, offering->offer.owner);
	if (owner)
		set_ref(&owner->produced, new_ref(offering->produced));
	return 0;
}

/* Start the copy out that the cache asked for in its answer to the offer. */
static int copy_out(struct on_device *on, struct spw_cache *cache, struct offering *offering)
{
	struct saved *saved = offering->saved;
	struct users *users = users_of(on, saved);
	struct leaving leaving = {
		.tensor = offering->held,
		.stream = offering->stream,
		.part = offering->copy,
		.number = saved->id,
	};

	if (!users)
		return -1;
	if (leaving.part.offset_bytes == saved->offset_bytes &&
	    leaving.part.len_bytes == saved->len_bytes)
		leaving.shape = saved->shape;
	users->begin = leaving.part.offset_bytes;
	set_ref(&users->shape, leaving.shape ? new_ref(leaving.shape) : NULL);
	Py_DECREF((PyObject *)users);
	if (mark_produced(on, offering))
		return not_copied(on, cache, saved->id);
	leaving.after = offering->produced;
	if (port_copy_out(on->port, saved->device, &leaving))
		return not_copied(on, cache, saved->id);
	if (on->notifies &&
	    ignore(PyObject_CallMethodObjArgs((PyObject *)on, names.notify, saved->device->device,
					      saved->device->out.last->event, NULL)))
		return -1;
	return 0;
}

/* Compute the tensor's checksums, once for all users. Return: 1; 0 no memory for them; -1 */
static int note_checksums(struct on_device *on, const struct offering *offering)
{
	struct users *users = users_of(on, offering->saved);
	PyObject *begin = PyLong_FromUnsignedLongLong(offering->copy.offset_bytes),
		 *length = PyLong_FromUnsignedLongLong(offering->copy.len_bytes);
	bool has_none;

	if (users && !users->checksums && begin && length)
		users->checksums = PyObject_CallMethodObjArgs((PyObject *)on, names.checksums_of,
							      offering->held, begin, length, NULL);
	Py_XDECREF(begin);
	Py_XDECREF(length);
	has_none = users && users->checksums == Py_None;
	if (has_none)
		Py_CLEAR(users->checksums);
	Py_XDECREF((PyObject *)users);
	return PyErr_Occurred() ? -1 : !has_none;
}

/*
 * Discard the tensor and keep its checksums, to check the recomputation; keep the tensor if memory
 * for checksums is lacking. Return: the result of the offer; -1
 */
static int discard(struct on_device *on, struct spw_cache *cache, const struct offering *offering,
		   const struct seen *seen)
{
	int rc = note_checksums(on, offering), result = SPW_OFFER_AGAIN;

	if (rc == 0) {
		result =
			library.restore(cache, (spw_tensor){offering->saved->id}, &offering->offer);
		if (result == 0)
			return SPW_OFFER_KEEP;
		if (result < 0)
			raise_error(result);
		result = SPW_OFFER_KEEP; /* the entry has its bytes already, from another user */
	}
	owner_end(&on->owners, owner_of(&on->owners, offering->offer.owner));
	if (PyErr_Occurred())
		return -1;
	if (result == SPW_OFFER_AGAIN && seen_may_go(offering->saved->session, seen) &&
	    saved_discard(offering->saved, seen))
		return -1;
	return result;
}

int offering_own(struct on_device *on, struct offering *offering, const struct seen *seen,
		 struct record *record, struct version *version)
{
	const struct saved *saved = offering->saved;
	struct owner *owner;

	offering->held = seen_plain(seen, saved->conj, saved->neg);
	offering->stream = offering->held ? port_stream(on->port, saved->device) : NULL;
	if (!offering->stream)
		return -1;
	offering->offer.owner = owner_add(&on->owners, offering->held, version, record, 0);
	owner = owner_of(&on->owners, offering->offer.owner);
	if (!owner)
		return -1;
	SPW_ASSERT(!owner->is_held && saved->device);
	owner->is_held = true;
	owner->nothing = new_ref(saved->device->nothing);
	owner->stream = new_ref(offering->stream);
	return 0;
}

/* From now on detect modifications of a tensor that may leave the device. */
static void offering_watch(struct offering *offering, bool is_held)
{
	struct version *version = offering->saved->version;

	if (version->counter)
		return;
	version_watch(version, offering->held);
	if (!is_held)
		version_part(version, offering->held, true, offering->saved->device->nothing);
}

static enum spw_cache_hint hint_there(const struct saved *saved, const struct seen *seen,
				      const struct spw_offer *offer)
{
	enum spw_cache_hint hint = hint_of(saved, seen);

	/* The device cannot compute checksums of words that are not aligned. */
	if ((hint == SPW_HINT_AGAIN || hint == SPW_HINT_GIVE_UP) &&
	    (uintptr_t)offer->storage_bytes % WORD_BYTES != 0)
		return SPW_HINT_NONE;
	return hint;
}

/* The caller holds on->lock. Return: the offer's result; a negative errno; -1 with an exception */
static int offer_make(struct on_device *on, struct spw_cache *cache, struct offering *offering,
		      const struct seen *seen, struct record *record)
{
	struct saved *saved = offering->saved;
	spw_tensor id = {0};
	bool is_held;
	int result;

	SPW_ASSERT(saved->id == 0 && saved->token == 0 && offering->offer.owner == 0);
	if (on_tell(on, cache, false) || offering_own(on, offering, seen, record, saved->version))
		return -1;
	result = library.offer_device(cache, &offering->offer, saved->device->number,
				      hint_there(saved, seen, &offering->offer), &id,
				      &offering->copy);
	is_held = result >= 0 && result != SPW_OFFER_DEDUP && result != SPW_OFFER_COPY_AGAIN;
	if (is_held)
		saved->token = offering->offer.owner;
	else
		owner_end(&on->owners, owner_of(&on->owners, offering->offer.owner));
	if (result < 0)
		return result;
	SPW_ASSERT(id.value != 0);
	if (user_note(on, saved, id.value, offering->stream)) {
		(void)library.release(cache, id);
		return -1;
	}
	if (result == SPW_OFFER_AGAIN)
		return discard(on, cache, offering, seen);
	if (result != SPW_OFFER_KEEP)
		offering_watch(offering, is_held);
	if ((result == SPW_OFFER_COPY || result == SPW_OFFER_COPY_AGAIN) &&
	    copy_out(on, cache, offering))
		return -1;
	return on_order(on, cache, offering->copy.order, offering->stream) ? -1 : result;
}

static int finish_event(struct on_device *on, PyObject *event)
{
	PyObject *done =
		PyObject_CallMethodObjArgs(on->port->table, names.finish_event, event, NULL);

	if (!done && PyErr_ExceptionMatches(PyExc_RuntimeError)) {
		PyErr_Clear(); /* port_ended() reports it */
		return 0;
	}
	return ignore(done);
}

/*
 * Wait for a copy, or else for a write; or, where the step must not wait for drives, until the
 * device has come to the event @here. As long as it has work, waiting costs the host only its lead.
 * Return: 1 waited; 0 the device has come there; -1
 */
static int wait_for_staging(struct on_device *on, struct spw_cache *cache, PyObject *here)
{
	PyObject *oldest;
	int rc;

	if (on_lock(on))
		return -1;
	oldest = port_oldest_out(on->port);
	on_unlock(on);
	if (oldest) {
		rc = finish_event(on, oldest);
		Py_DECREF(oldest);
		return rc ? -1 : 1;
	}
	Py_BEGIN_ALLOW_THREADS;
	rc = library.wait_write(cache);
	Py_END_ALLOW_THREADS;
	if (rc)
		return rc;
	return finish_event(on, here);
}

/* The stream gets work again. */
static int feed(struct on_device *on, const struct offering *offering)
{
	return ignore(
		PyObject_CallMethodObjArgs(on->port->times, names.feed, offering->stream, NULL));
}

/* After an exception, which stays. */
static void give_up_waiting(struct on_device *on, const struct offering *offering)
{
	PyObject *type, *value, *traceback;

	PyErr_Fetch(&type, &value, &traceback);
	if (on_lock(on) == 0) {
		if (feed(on, offering))
			PyErr_WriteUnraisable((PyObject *)on);
		on_unlock(on);
	} else {
		PyErr_WriteUnraisable((PyObject *)on);
	}
	PyErr_Restore(type, value, traceback);
}

/* Ask again, with on->lock held. @last: for the last time. Return: the result; -1 */
static int offer_again(struct on_device *on, struct spw_cache *cache, struct offering *offering,
		       bool last)
{
	const spw_tensor tensor = {offering->saved->id};
	int result;

	if (on_go_on(on))
		return -1;
	result = last ? library.copy_last(cache, tensor, &offering->copy)
		      : library.copy_retry(cache, tensor, &offering->copy);
	if (result != SPW_OFFER_WAIT && feed(on, offering))
		return -1;
	if (result == SPW_OFFER_COPY &&
	    (copy_out(on, cache, offering) ||
	     on_order(on, cache, offering->copy.order, offering->stream)))
		return -1;
	return on_finish_if_closing(on) ? -1 : result;
}

/* Wait until there is staging memory for the copy, or the cache keeps the tensor. Return: 0; -1 */
static int offer_waiting(struct on_device *on, struct spw_cache *cache, struct offering *offering)
{
	PyObject *here = NULL;
	int result = SPW_OFFER_WAIT;

	if (on_lock(on))
		return -1;
	here = PyObject_CallMethodObjArgs(on->port->times, names.starve, offering->stream, NULL);
	on_unlock(on);
	if (!here)
		return -1;
	while (result == SPW_OFFER_WAIT) {
		int waited = wait_for_staging(on, cache, here);

		if (waited >= 0 && on_lock(on) == 0) {
			result = offer_again(on, cache, offering, waited == 0);
			on_unlock(on);
		}
		if (PyErr_Occurred())
			break;
	}
	Py_DECREF(here);
	if (!PyErr_Occurred())
		return 0;
	give_up_waiting(on, offering);
	return -1;
}

/* Return: 0; 1 the caller has to keep the tensor; -1 */
static int offer(struct on_device *on, struct offering *offering, const struct seen *seen,
		 struct record *record)
{
	struct spw_cache *cache = on_cache_begin(on);
	int result;

	if (!cache)
		return -1;
	if (on_lock(on)) {
		on_cache_end(on);
		return -1;
	}
	result = offer_make(on, cache, offering, seen, record);
	if (!PyErr_Occurred())
		(void)on_finish_if_closing(on);
	on_unlock(on);
	if (result == SPW_OFFER_WAIT && !PyErr_Occurred())
		(void)offer_waiting(on, cache, offering);
	on_cache_end(on);
	if (PyErr_Occurred())
		return -1;
	return result < 0 ||
	       (result == SPW_OFFER_AGAIN && !seen_may_go(offering->saved->session, seen));
}

/*
 * Return: (type, size, stride) if the tensor's elements fill its range of the storage without gaps;
 * None if not; NULL
 */
static PyObject *shape_of(const struct saved *saved, const struct seen *seen)
{
	Py_ssize_t dims = saved_dims(saved);
	int64_t expected = 1;

	if (saved_is_part(saved))
		return new_ref(Py_None);
	for (Py_ssize_t i = dims; i-- > 0;) {
		if (saved->sizes[i] != 1 && saved->sizes[dims + i] != expected)
			return new_ref(Py_None);
		expected *= saved->sizes[i];
	}
	return PyTuple_Pack(3, saved->dtype->dtype, seen->shape, seen->stride);
}

/* Return: 0; 1 the caller has to keep the tensor; -1 */
static int saved_place(struct saved *saved, struct on_device *on, struct seen *seen,
		       struct spw_offer *filled)
{
	int rc;

	SPW_ASSERT(!saved->on && seen->device);
	saved->on = new_ref(on);
	saved->device = seen->device;
	saved->scope = on->scope;
	rc = offer_fill(filled, saved, seen);
	if (rc == 0) {
		saved->shape = shape_of(saved, seen);
		rc = saved->shape ? 0 : -1;
		if (saved->shape == Py_None)
			Py_CLEAR(saved->shape);
	}
	return rc;
}

PyObject *on_device_save(struct on_device *on, struct session *session, struct seen *seen)
{
	struct offering offering = {0};
	struct record *record = NULL;
	int rc = port_captures(on->port);

	if (rc == 0)
		rc = atomic_load(&on->leases->cache) ? is_skipped(session, seen) : 1;
	if (rc == 0) {
		record = session_record(session, seen);
		offering.offer.storage_key = record ? record->key : 0;
		offering.saved = record ? saved_of(session, seen, record) : NULL;
		rc = offering.saved ? version_witnessed(offering.saved->version, seen->tensor) : -1;
		if (rc == 0)
			rc = saved_place(offering.saved, on, seen, &offering.offer);
		if (rc < 0 && was_refused())
			rc = 1;
	}
	if (rc == 0)
		rc = offer(on, &offering, seen, record);
	Py_XDECREF((PyObject *)record);
	Py_XDECREF(offering.held);
	Py_XDECREF(offering.stream);
	Py_XDECREF(offering.produced);
	if (rc == 0)
		return (PyObject *)offering.saved;
	Py_XDECREF((PyObject *)offering.saved);
	return rc < 0 ? NULL : new_ref(Py_None);
}
