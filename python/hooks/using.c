/* SPDX-License-Identifier: MIT */
/* hooks/using.c - use a saved tensor of a device: copy it in, or recompute it */
#include "using.h"
#include "offering.h"
#include "part.h"
#include "recompute.h"

/* ---- Using ---- */

static PyObject *used(struct on_device *on, const struct saved *saved, struct users *users,
		      PyObject *stream, PyObject *since)
{
	struct copy *copy = new_ref(users->copy);
	PyObject *base = new_ref(users->base), *tensor = NULL;
	bool is_all = users->count <= 1 && saved->shape && copy->shape == saved->shape;

	SPW_ASSERT(users->count > 0 && users->begin <= saved->offset_bytes);
	if (port_use(on->port, copy, base, stream, since))
		goto end;
	copy->taken = true;
	users->unused -= users->unused > 0;
	if (users->count <= 1) { /* other users still need it */
		Py_CLEAR(users->base);
		Py_DECREF((PyObject *)users->copy);
		users->copy = NULL;
	}
	tensor = tensor_lent(saved->version->counter, new_ref(base));
	if (tensor && !is_all)
		set_ref(&tensor, saved_on(saved, tensor, users->begin));
	else if (tensor && (saved->conj || saved->neg))
		set_ref(&tensor, PyObject_CallFunction(torch.flagged, "Oii", tensor, saved->conj,
						       saved->neg));
end:
	Py_DECREF(base);
	Py_DECREF((PyObject *)copy);
	return tensor;
}

/*
 * Make a tensor usable on a stream other than the one that computed it. Without an event of then,
 * one after all that this stream has been given until now will do.
 */
static int used_elsewhere(struct on_device *on, const struct owner *owner, PyObject *stream)
{
	PyObject *tensor = new_ref(owner->tensor), *table = on->port->table;
	PyObject *produced = owner->produced ? new_ref(owner->produced)
					     : PyObject_CallMethodObjArgs(table, names.mark_event,
									  owner->stream, NULL);
	int rc = produced ? ignore(PyObject_CallMethodObjArgs(table, names.wait, stream, produced,
							      NULL))
			  : -1;

	if (rc == 0)
		rc = ignore(PyObject_CallMethodObjArgs(on->port->table, names.keep, tensor, stream,
						       NULL));
	Py_DECREF(tensor);
	Py_XDECREF(produced);
	return rc;
}

/*
 * Get the tensor that the owner still has. Return: NULL without an exception if another thread has
 * reaped the token.
 */
static PyObject *tensor_of_owner(struct on_device *on, struct saved *saved, struct users *users,
				 PyObject *stream, uint64_t token)
{
	struct owner *owner = owner_of(&on->owners, token);
	PyObject *tensor;
	int64_t number;
	int is_same;

	if (!owner || version_number(owner->tensor, &number))
		return NULL;
	SPW_ASSERT(owner->stream);
	if (number != owner->version->number)
		saved->version->modified = true;
	owner->is_shown = true;
	tensor = new_ref(owner->tensor);
	is_same = PyObject_RichCompareBool(stream, owner->stream, Py_EQ);
	if (is_same < 0 || (is_same == 0 && used_elsewhere(on, owner, stream))) {
		Py_DECREF(tensor);
		return NULL;
	}
	users->unused -= users->unused > 0;
	if (token != saved->token || saved->conj || saved->neg)
		set_ref(&tensor, saved_on(saved, tensor, 0));
	return tensor;
}

/*
 * Get the tensor for what spw_cache_take() returned. The caller holds on->lock. Return: NULL
 * without an exception if the caller must take again.
 */
static PyObject *tensor_of(struct on_device *on, struct saved *saved, struct users *users,
			   PyObject *stream, PyObject *since, struct spw_taken *taken)
{
	PyObject *tensor;

	SPW_ASSERT(!taken->owner || !taken->bytes);
	if (taken->owner)
		return tensor_of_owner(on, saved, users, stream, taken->owner);
	if (taken->bytes && on_bring(on, users, stream, taken, saved->id))
		return NULL;
	if (!users->base)
		return NULL; /* the prefetched copy could not start */
	SPW_ASSERT(users->copy);
	tensor = used(on, saved, users, stream, since);
	if (tensor && on_finish_if_closing(on))
		Py_CLEAR(tensor);
	return tensor;
}

/*
 * Take the bytes from the cache. @recompute: set, and NULL returned without an exception, if the
 * scope has to be recomputed first
 */
static PyObject *take(struct on_device *on, struct spw_cache *cache, struct saved *saved,
		      struct users *users, PyObject *stream, PyObject *since, bool *recompute)
{
	PyObject *tensor = NULL;

	while (!tensor && !PyErr_Occurred()) {
		struct spw_taken taken = {0};
		int result;

		Py_BEGIN_ALLOW_THREADS;
		result = library.take(cache, (spw_tensor){saved->id}, 0, saved->storage_len_bytes,
				      &taken);
		Py_END_ALLOW_THREADS;
		on->is_due = true;
		*recompute = result == SPW_TAKE_AGAIN;
		if (*recompute)
			return NULL;
		if (result < 0) {
			raise_error(result);
			return NULL;
		}
		if (on_lock(on) == 0) {
			tensor = tensor_of(on, saved, users, stream, since, &taken);
			on_unlock(on);
		}
		if (taken.lease) /* no copy reads the lease */
			library.give_back(cache, taken.lease);
	}
	return tensor;
}

/* Note that the backward pass has reached the tensors of another scope. Return: 0; -1 */
static int moves_on(struct on_device *on, struct spw_cache *cache, const struct saved *saved)
{
	PyObject *times = on->port->times, *timed;
	int rc;

	if (saved->scope == on->used_scope)
		return 0;
	rc = to_bool(PyObject_GetAttr(times, names.stands));
	if (rc)
		return rc < 0 ? -1 : 0;
	timed = PyObject_GetAttr(times, names.device);
	rc = timed ? PyObject_RichCompareBool(timed, saved->device->device, Py_EQ) : -1;
	Py_XDECREF(timed);
	if (rc <= 0)
		return rc;
	on->used_scope = saved->scope;
	return on_call_times(on, cache, names.border);
}

/*
 * The host may have to wait for a drive. Until it goes on, a thread returns the staging memory of
 * copies that end, or there would be none for the reads after this one. Return: 0; -1
 */
static int watch_copies(struct on_device *on)
{
	for (uint32_t i = 0; on->notifies && i < on->port->count; i++) {
		struct device *device = on->port->devices[i];

		for (struct copy *copy = device->in.first; copy; copy = copy->next) {
			if (copy->watched)
				continue;
			copy->watched = true;
			if (ignore(PyObject_CallMethodObjArgs((PyObject *)on, names.notify,
							      device->device, copy->event, NULL)))
				return -1;
		}
	}
	return 0;
}

/*
 * Prepare a use, before the bytes are requested. The caller holds on->lock. @since: set to an event
 * before any wait for the bytes
 */
static int use_begin(struct on_device *on, struct spw_cache *cache, const struct saved *saved,
		     struct users *users, PyObject **stream, PyObject **since)
{
	if (moves_on(on, cache, saved) || on_tell(on, cache, true))
		return -1;
	*stream = port_stream(on->port, saved->device);
	if (!*stream)
		return -1;
	/* The host has seen the copy end; or the tensor has stayed where it is: nothing waits. */
	if (users->copy ? users->copy->ended : owner_of(&on->owners, saved->token) != NULL)
		return 0;
	*since = PyObject_CallMethodObjArgs(on->port->times, names.mark_event, *stream, NULL);
	return *since && (users->base || watch_copies(on) == 0) ? 0 : -1;
}

static int order_now(struct on_device *on, struct spw_cache *cache, PyObject *stream)
{
	int rc = on_lock(on);

	if (rc)
		return -1;
	rc = on_order_now(on, cache, stream);
	on_unlock(on);
	return rc;
}

static PyObject *load(struct on_device *on, struct spw_cache *cache, struct saved *saved,
		      struct users *users, bool *recompute)
{
	PyObject *stream = NULL, *since = NULL, *tensor = NULL;
	int rc;

	if (on_lock(on))
		return NULL;
	rc = use_begin(on, cache, saved, users, &stream, &since);
	if (rc == 0 && users->base && users->copy && users->copy->taken) {
		tensor = used(on, saved, users, stream, since);
		rc = 1;
	}
	on_unlock(on);
	if (rc == 0)
		tensor = take(on, cache, saved, users, stream, since, recompute);
	/* Not before: the tensor's own copy may be the next, and its memory is wanted. */
	if (tensor && port_is_copying(on->port) && order_now(on, cache, stream))
		Py_CLEAR(tensor);
	Py_XDECREF(stream);
	Py_XDECREF(since);
	return tensor;
}

static PyObject *use(struct on_device *on, struct saved *saved, struct users *users)
{
	PyObject *tensor = NULL;
	bool recompute = true;

	while (recompute) {
		struct spw_cache *cache = on_cache_begin(on);

		recompute = false;
		if (!cache)
			return NULL;
		tensor = load(on, cache, saved, users, &recompute);
		on_cache_end(on);
		if (recompute && saved_recompute(saved))
			return NULL;
	}
	if (tensor && users->verdict &&
	    ignore(PyObject_CallMethodObjArgs(users->verdict, names.expect, NULL)))
		Py_CLEAR(tensor);
	return tensor;
}

PyObject *on_device_use(struct saved *saved)
{
	struct on_device *on = saved->on;
	struct users *users;
	PyObject *tensor;
	int captures = port_captures(on->port);

	if (captures > 0)
		(void)ignore(PyObject_CallMethodObjArgs((PyObject *)on, names.refuse, NULL));
	if (captures || !leases_cache(on->leases, on->cache))
		return NULL;
	users = users_of(on, saved);
	tensor = users ? use(on, saved, users) : NULL;
	Py_XDECREF((PyObject *)users);
	return tensor;
}

/* ---- Recomputation ---- */

/* Start the comparison of checksums, and give the memory to the cache. Return: 0; -1 */
static int restored(struct on_device *on, struct saved *saved, struct users *users,
		    struct offering *offering, const struct seen *seen, PyObject *frame)
{
	struct record *record = session_record(saved->session, seen);
	struct version *version =
		record ? record_version(record, seen->tensor, saved->session->steps) : NULL;
	struct spw_cache *cache = version && version_witnessed(version, seen->tensor) == 0
					  ? on_cache_begin(on)
					  : NULL;
	int result = cache ? offering_own(on, offering, seen, record, version) : -1;

	/* Compare before restore(), after which other threads may take the tensor. */
	if (result == 0 && !users->verdict)
		users->verdict = PyObject_CallMethodObjArgs((PyObject *)on, names.compare, frame,
							    users->checksums, offering->held, NULL);
	if (result == 0)
		result = users->verdict
				 ? library.restore(cache, (spw_tensor){saved->id}, &offering->offer)
				 : -1;
	if (result && owner_of(&on->owners, offering->offer.owner))
		owner_end(&on->owners, owner_of(&on->owners, offering->offer.owner));
	if (result < 0 && !PyErr_Occurred())
		raise_error(result);
	if (cache)
		on_cache_end(on);
	Py_XDECREF((PyObject *)record);
	return result < 0 ? -1 : 0;
}

int on_device_restore(struct on_device *on, struct saved *saved, PyObject *tensor, PyObject *frame)
{
	struct seen seen = {.tensor = tensor};
	struct offering offering = {.saved = saved};
	struct users *users = users_of(on, saved);
	int rc = users ? port_find(on->port, tensor, &seen.device) : -1;

	if (rc == 0 && users->verdict)
		goto end; /* already restored, with another tensor on the same memory */
	if (rc == 0 && seen.device != saved->device) {
		PyErr_SetString(PyExc_ValueError, "a tensor has become one of another device");
		rc = -1;
	}
	if (rc == 0)
		rc = saved_is_like(saved, &seen, &offering.offer);
	if (rc == 0)
		rc = restored(on, saved, users, &offering, &seen, frame);
end:
	seen_end(&seen);
	Py_XDECREF(offering.held);
	Py_XDECREF(offering.stream);
	Py_XDECREF(offering.produced);
	Py_XDECREF((PyObject *)users);
	return rc;
}
