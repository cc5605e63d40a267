/* SPDX-License-Identifier: MIT */
/*
 * hooks/tensor.c - what a tensor is: read from PyTorch's own structures where that can be had, else
 * asked of it
 */
#include "hooks.h"

struct reader reader;

/* Those whose attributes are no others' business. */
static bool is_own_type(PyObject *tensor)
{
	PyObject *type = (PyObject *)Py_TYPE(tensor);

	return type == torch.tensor_type || type == torch.parameter_type;
}

int version_number(PyObject *tensor, int64_t *number)
{
	if (reader.version && is_own_type(tensor) && reader.version(tensor, number))
		return 0;
	return to_int64(get(torch.version, tensor), number);
}

int tensor_state(PyObject *tensor, int64_t *number, uint64_t *address)
{
	struct tensor_read read;
	const struct dtype *dtype;

	if (reader.read && is_own_type(tensor) && reader.read(tensor, &read)) {
		dtype = dtype_of_number(read.type);
		if (dtype) {
			*number = read.version;
			*address = read.storage_address + (uint64_t)read.offset * dtype->itemsize;
			return 0;
		}
	}
	return version_number(tensor, number)
		       ? -1
		       : to_uint64(PyObject_CallOneArg(torch.address, tensor), address);
}

/* ---- What a save asks ---- */

/* Return: 1 the object has it; 0; -1 with an exception. */
static int has(PyObject *object, PyObject *name)
{
	PyObject *value = NULL;
	int rc;

#if PY_VERSION_HEX >= 0x030D0000
	rc = PyObject_GetOptionalAttr(object, name, &value);
#else
	rc = _PyObject_LookupAttr(object, name, &value);
#endif
	Py_XDECREF(value);
	return rc;
}

/* A leaf that requires a gradient. Return: 1; 0; -1 with an exception. */
static int is_trained(PyObject *tensor)
{
	int rc = to_bool(get(torch.is_leaf, tensor));

	return rc > 0 ? to_bool(get(torch.requires_grad, tensor)) : rc;
}

int seen_passes_by(struct seen *seen)
{
	PyObject *tensor = seen->tensor;
	int rc;

	if ((PyObject *)Py_TYPE(tensor) != torch.tensor_type)
		return 1;
	seen->is_read = reader.read && reader.read(tensor, &seen->read);
	if (!seen->is_read) {
		rc = to_bool(get(torch.is_cpu, tensor));
		if (rc <= 0)
			return rc < 0 ? -1 : 1;
	}
	seen->dtype = seen->is_read ? dtype_of_number(seen->read.type) : dtype_of(tensor);
	if (!seen->dtype)
		return PyErr_Occurred() ? -1 : 1; /* quantized */
	rc = seen->is_read ? seen->read.is_trained : is_trained(tensor);
	return rc ? rc : has(tensor, names.mark);
}

int seen_is_parameter(const struct seen *seen)
{
	PyObject *tensor = seen->tensor, *base;
	int rc;

	if (seen->is_read)
		return seen->read.is_trained && !seen->read.is_view;
	rc = to_bool(get(torch.is_leaf, tensor));
	if (rc <= 0)
		return rc;
	rc = to_bool(get(torch.requires_grad, tensor));
	if (rc == 0 && (PyObject *)Py_TYPE(tensor) != torch.tensor_type)
		rc = PyObject_IsInstance(tensor, torch.parameter_type);
	if (rc <= 0)
		return rc;
	base = get(torch.base, tensor);
	Py_XDECREF(base);
	return base ? base == Py_None : -1;
}

PyObject *seen_detached(const struct seen *seen)
{
	return seen->is_read ? reader.detached(seen->tensor)
			     : PyObject_CallOneArg(torch.detach, seen->tensor);
}

int seen_storage(struct seen *seen)
{
	if (seen->is_read) {
		seen->identity = PyLong_FromVoidPtr(seen->read.storage);
	} else {
		seen->storage = PyObject_CallOneArg(torch.storage, seen->tensor);
		seen->identity = seen->storage ? get(torch.cdata, seen->storage) : NULL;
	}
	return seen->identity ? 0 : -1;
}

/*
 * What was read may be old: making an object may collect garbage, which may run anything, another
 * thread also. With the same storage all is well; with another the tensor passes by, as all do that
 * fail in this way.
 */
static int read_again(struct seen *seen)
{
	const void *storage = seen->read.storage;

	if (reader.read(seen->tensor, &seen->read) && seen->read.storage == storage)
		return 0;
	PyErr_SetString(PyExc_RuntimeError, "a tensor was given other memory while it was saved");
	return -1;
}

PyObject *seen_storage_weak(struct seen *seen)
{
	if (!seen->is_read)
		return PyObject_CallOneArg(torch.weak_ref, seen->storage);
	return read_again(seen) ? NULL : reader.weak(seen->read.storage);
}

int seen_base(struct seen *seen)
{
	if (seen->is_read && !seen->read.is_view)
		seen->base = new_ref(Py_None);
	else
		seen->base = get(torch.base, seen->tensor);
	return seen->base ? 0 : -1;
}

Py_ssize_t seen_dims(struct seen *seen)
{
	if (seen->is_read)
		return read_again(seen) ? -1 : (Py_ssize_t)seen->read.dims;
	seen->shape = get(torch.shape, seen->tensor);
	seen->stride = seen->shape ? PyObject_CallOneArg(torch.stride, seen->tensor) : NULL;
	if (!seen->stride)
		return -1;
	if (PyTuple_GET_SIZE(seen->stride) != PyTuple_GET_SIZE(seen->shape)) {
		PyErr_SetString(PyExc_ValueError, "a tensor has as many strides as sizes");
		return -1;
	}
	return PyTuple_GET_SIZE(seen->shape);
}

static int fill_from(int64_t values[], PyObject *tuple, Py_ssize_t count)
{
	for (Py_ssize_t i = 0; i < count; i++) {
		values[i] = PyLong_AsLongLong(PyTuple_GET_ITEM(tuple, i));
		if (values[i] == -1 && PyErr_Occurred())
			return -1;
	}
	return 0;
}

int seen_shape(const struct seen *seen, int64_t sizes[])
{
	Py_ssize_t dims;

	if (seen->is_read) {
		for (int64_t i = 0; i < seen->read.dims; i++) {
			sizes[i] = seen->read.sizes[i];
			sizes[seen->read.dims + i] = seen->read.strides[i];
		}
		return 0;
	}
	dims = PyTuple_GET_SIZE(seen->shape);
	return fill_from(sizes, seen->shape, dims) || fill_from(sizes + dims, seen->stride, dims)
		       ? -1
		       : 0;
}

int seen_place(const struct seen *seen, struct place *place)
{
	if (seen->is_read) {
		*place = (struct place){.offset = seen->read.offset,
					.storage_address = seen->read.storage_address,
					.storage_len_bytes = seen->read.storage_len_bytes};
		return 0;
	}
	return to_int64(PyObject_CallOneArg(torch.storage_offset, seen->tensor), &place->offset) ||
			       to_uint64(PyObject_CallOneArg(torch.nbytes, seen->storage),
					 &place->storage_len_bytes) ||
			       to_uint64(PyObject_CallOneArg(torch.data_ptr, seen->storage),
					 &place->storage_address)
		       ? -1
		       : 0;
}

int seen_flags(const struct seen *seen, bool *conj, bool *neg)
{
	int is_conj = 0, is_neg;

	if (seen->is_read) {
		*conj = seen->read.conj;
		*neg = seen->read.neg;
		return 0;
	}
	is_neg = to_bool(PyObject_CallOneArg(torch.is_neg, seen->tensor));
	if (is_neg >= 0 && seen->dtype->is_complex)
		is_conj = to_bool(PyObject_CallOneArg(torch.is_conj, seen->tensor));
	if (is_neg < 0 || is_conj < 0)
		return -1;
	*conj = is_conj;
	*neg = is_neg;
	return 0;
}

void seen_end(struct seen *seen)
{
	Py_XDECREF(seen->storage);
	Py_XDECREF(seen->identity);
	Py_XDECREF(seen->base);
	Py_XDECREF(seen->shape);
	Py_XDECREF(seen->stride);
}
