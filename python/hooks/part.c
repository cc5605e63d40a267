/* SPDX-License-Identifier: MIT */
/* hooks/part.c - decide whether a tensor is offered, and find its part of the storage */
#include "part.h"
#include "recompute.h"

#include <string.h>

#define SMALL_PART 8 /* a part is small below 1/8 of its storage */

PyTypeObject *saved_type;

/* ---- What is not offloaded ---- */

/*
 * Whether a tensor is excluded: by the user, or as a view of a parameter or of another subclass,
 * whose memory may change after the model was entered, as FSDP frees and refills it. Return: 1; 0;
 * -1 with an exception.
 */
static int is_excluded(const struct session *session, struct seen *seen)
{
	int rc = PySet_Contains(session->excluded, seen->identity);

	if (rc)
		return rc;
	if (seen_base(seen))
		return -1;
	return seen->base != Py_None && (PyObject *)Py_TYPE(seen->base) != torch.tensor_type;
}

int is_skipped(struct session *session, struct seen *seen)
{
	int skipped = seen_is_skipped(seen);

	if (skipped == 0)
		skipped = !seen->identity && seen_storage(seen) ? -1 : is_excluded(session, seen);
	if (skipped >= 0 || !was_refused())
		return skipped;
	seen->is_other = true;
	return 1;
}

/* ---- The part of the storage with its elements ---- */

/*
 * Measure the range from the first to the last element. Return: false if the tensor has no
 * elements, or they do not fit into the storage.
 */
static bool saved_measure(struct saved *saved, int64_t offset, uint64_t storage_len_bytes)
{
	uint64_t last = 0, itemsize = saved->dtype->itemsize;
	Py_ssize_t dims = saved_dims(saved);

	SPW_ASSERT(itemsize > 0 && saved->id == 0);
	for (Py_ssize_t i = 0; i < dims; i++) {
		uint64_t reach;

		if (saved->sizes[i] <= 0 || saved->sizes[dims + i] < 0)
			return false;
		if (__builtin_mul_overflow((uint64_t)saved->sizes[i] - 1,
					   (uint64_t)saved->sizes[dims + i], &reach) ||
		    __builtin_add_overflow(last, reach, &last))
			return false;
	}
	if (offset < 0 || last >= storage_len_bytes / itemsize ||
	    (uint64_t)offset > storage_len_bytes / itemsize)
		return false;
	saved->offset_bytes = (uint64_t)offset * itemsize;
	saved->len_bytes = (last + 1) * itemsize;
	return saved->offset_bytes + saved->len_bytes <= storage_len_bytes;
}

/* Whether the base of a view is itself only a part of its storage. Return: 1; 0; -1 */
static int is_part(PyObject *base, uint64_t storage_len_bytes)
{
	const struct dtype *dtype = dtype_of(base);
	uint64_t elements;

	if (!dtype)
		return PyErr_Occurred() ? -1 : 1;
	if (to_uint64(call(torch.numel, base), &elements))
		return -1;
	return elements < storage_len_bytes / dtype->itemsize;
}

/*
 * A backward function may read the storage around a view, by as_strided() with an offset, so the
 * whole storage is offered. Every other part that is saved compares the whole storage again, or
 * copies it again while its write is in flight. For many small parts, such as time steps or batches
 * of a data set, that costs more than it saves: they are kept in memory, and counted if they were
 * computed. Return: 1; 0; -1 with an exception.
 */
static int is_small_part(const struct saved *saved, struct seen *seen, uint64_t storage_len_bytes)
{
	int is_computed;

	if (saved->len_bytes >= storage_len_bytes / SMALL_PART)
		return 0;
	is_computed = to_bool(get(&torch.requires_grad, seen->base));
	seen->is_fixed = is_computed > 0;
	return is_computed < 0 ? -1 : 1;
}

/*
 * Whether a tensor must be kept, since another tensor with the same bytes cannot replace it: a part
 * of a storage that is not a view, such as a gate of nn.LSTM, and a view of such a part (the rest
 * of the storage changes in place, and no version counter shows it); and a tensor without
 * dimensions that is not a view (it may be a Python number, which has its own rules of type
 * promotion). Return: 1; 0; -1 with an exception.
 */
static int is_kept_as_it_is(const struct saved *saved, struct seen *seen,
			    uint64_t storage_len_bytes)
{
	int rc;

	if (saved->len_bytes == storage_len_bytes && saved_dims(saved) > 0)
		return 0;
	rc = seen->base == Py_None;
	if (rc == 0 && saved->len_bytes == storage_len_bytes)
		return 0;
	if (rc == 0)
		rc = is_part(seen->base, storage_len_bytes);
	seen->is_fixed = rc > 0 && saved_dims(saved) > 0;
	return rc ? rc : is_small_part(saved, seen, storage_len_bytes);
}

int offer_fill(struct spw_offer *offer, struct saved *saved, struct seen *seen)
{
	int64_t offset;
	int kept;

	SPW_ASSERT(saved->version->references > 0 && seen->storage);
	if (seen_place(seen, &offset, offer))
		return -1;
	if (!saved_measure(saved, offset, offer->storage_len_bytes))
		return 1;
	kept = seen->as == SEEN_COUNTED || seen->is_view
		       ? 0
		       : is_kept_as_it_is(saved, seen, offer->storage_len_bytes);
	if (kept)
		return kept;
	offer->storage_version = saved->version->epoch;
	offer->offset_bytes = 0;
	offer->len_bytes = saved->storage_len_bytes = offer->storage_len_bytes;
	SPW_ASSERT(saved->len_bytes <= saved->storage_len_bytes);
	offer->number = saved_is_part(saved) ? 0 : seen->number;
	return seen_flags(seen, &saved->conj, &saved->neg);
}

struct saved *saved_of(struct session *session, struct seen *seen, struct record *record)
{
	struct version *version = record_version(record, seen->tensor, session->steps);
	struct dl_tensor now;
	/* The package makes tensors on devices of Python's shape. */
	bool looked = version && !seen->device && tensor_look(seen->tensor, &now);
	Py_ssize_t dims = looked ? now.ndim : version ? seen_dims(seen) : -1;
	struct saved *saved = dims < 0 ? NULL : PyObject_NewVar(struct saved, saved_type, 2 * dims);

	if (!saved)
		return NULL;
	saved->session = new_ref(session);
	saved->version = version_hold(version);
	saved->dtype = seen->dtype;
	saved->id = saved->token = 0;
	saved->borrowed = NULL;
	saved->frame = NULL;
	saved->on = NULL;
	saved->device = NULL;
	saved->shape = NULL;
	if (looked) {
		memcpy(saved->sizes, now.shape, (size_t)dims * sizeof(saved->sizes[0]));
		memcpy(saved->sizes + dims, now.strides, (size_t)dims * sizeof(saved->sizes[0]));
	} else if (seen_shape(seen, saved->sizes)) {
		Py_CLEAR(saved);
	}
	return saved;
}

/* Whether the tensor's elements fill its storage without gaps. */
static bool is_dense(const struct saved *saved)
{
	Py_ssize_t dims = saved_dims(saved);
	uint64_t reached = 1;

	for (Py_ssize_t pass = 0; pass < dims; pass++) {
		for (Py_ssize_t i = 0; i < dims; i++) {
			if (saved->sizes[i] > 1 && (uint64_t)saved->sizes[dims + i] == reached) {
				reached *= (uint64_t)saved->sizes[i];
				break;
			}
		}
	}
	return reached * saved->dtype->itemsize == saved->storage_len_bytes;
}

/*
 * Whether recomputation reproduces all bytes of the storage, against which it is checked. Around a
 * view there may be memory that was never written and differs each time, unless one operation known
 * to autograd made the base and nothing was written into it since. Return: 1; 0; -1 with an
 * exception.
 */
static int is_whole_known(const struct saved *saved, const struct seen *seen)
{
	if (is_dense(saved))
		return 1;
	if (saved->version->number != 0 || !seen->base || seen->base == Py_None)
		return 0;
	return to_bool(get(&torch.requires_grad, seen->base));
}

enum spw_cache_hint hint_of(const struct saved *saved, const struct seen *seen)
{
	const struct session *session = saved->session;
	int is_known;

	if (session->excluding > 0 || seen->as == SEEN_COUNTED)
		return SPW_HINT_PIN;
	if (seen->as == SEEN_INPUT)
		return SPW_HINT_INPUT;
	if (seen->as == SEEN_INNER || !frame_now(session))
		return SPW_HINT_NONE;
	is_known = is_whole_known(saved, seen);
	if (is_known < 0)
		PyErr_Clear(); /* no error: the tensor counts as one that cannot be recomputed */
	if (is_known <= 0)
		return SPW_HINT_NONE;
	return session->discards_all || frame_now(session)->is_decided ? SPW_HINT_GIVE_UP
								       : SPW_HINT_AGAIN;
}

/* ---- Make the tensor on memory that has its bytes ---- */

static PyObject *tuple_of(const int64_t values[], Py_ssize_t count)
{
	PyObject *tuple = PyTuple_New(count);

	for (Py_ssize_t i = 0; tuple && i < count; i++) {
		PyObject *value = PyLong_FromLongLong(values[i]);

		if (!value || PyTuple_SetItem(tuple, i, value))
			Py_CLEAR(tuple);
	}
	return tuple;
}

PyObject *saved_on(const struct saved *saved, PyObject *base, uint64_t begin_bytes)
{
	uint64_t offset_bytes = saved->offset_bytes - begin_bytes;
	Py_ssize_t dims = saved_dims(saved);
	PyObject *size = tuple_of(saved->sizes, dims),
		 *stride = tuple_of(saved->sizes + dims, dims);
	PyObject *dtype = get(&torch.dtype, base), *tensor = NULL;

	SPW_ASSERT(begin_bytes <= saved->offset_bytes);
	if (!size || !stride || !dtype)
		goto end;
	if (dtype == saved->dtype->dtype && !saved->conj && !saved->neg)
		tensor = PyObject_CallFunction(torch.as_strided, "OOOL", base, size, stride,
					       (long long)(offset_bytes / saved->dtype->itemsize));
	else
		tensor = PyObject_CallFunction(torch.on, "OOOOKii", base, saved->dtype->dtype, size,
					       stride, (unsigned long long)offset_bytes,
					       saved->conj, saved->neg);
end:
	Py_XDECREF(size);
	Py_XDECREF(stride);
	Py_XDECREF(dtype);
	return tensor;
}
