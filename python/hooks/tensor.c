/* SPDX-License-Identifier: MIT */
/* hooks/tensor.c - ask PyTorch for the properties of a tensor */
#include "tensor.h"

/*
 * PyTorch raises a RuntimeError if asked for the storage of a sparse tensor or inside a torch.func
 * transform, and for the address of a ZeroTensor.
 */
bool was_refused(void)
{
	SPW_ASSERT(PyErr_Occurred());
	if (!PyErr_ExceptionMatches(PyExc_RuntimeError))
		return false;
	PyErr_Clear();
	return true;
}

int version_number(PyObject *tensor, int64_t *number)
{
	return to_int64(get(&torch.version, tensor), number);
}

bool tensor_look(PyObject *tensor, struct dl_tensor *now)
{
	if (!exchange || (PyObject *)Py_TYPE(tensor) != torch.tensor_type)
		return false;
	if (exchange->look(tensor, now)) {
		PyErr_Clear(); /* its methods tell why */
		return false;
	}
	return now->data != NULL;
}

int tensor_address(PyObject *tensor, uint64_t *address)
{
	struct dl_tensor now;

	if (!tensor_look(tensor, &now))
		return to_uint64(call(torch.address, tensor), address);
	*address = (uint64_t)(uintptr_t)now.data + now.byte_offset;
	return 0;
}

int tensor_state(PyObject *tensor, int64_t *number, uint64_t *address)
{
	return version_number(tensor, number) ? -1 : tensor_address(tensor, address);
}

/* Whether a tensor is a leaf that requires a gradient. Return: 1; 0; -1 with an exception. */
static int is_trained(PyObject *tensor)
{
	int rc = to_bool(get(&torch.is_leaf, tensor));

	return rc > 0 ? to_bool(get(&torch.requires_grad, tensor)) : rc;
}

/* Return: 1; 0; -1 with an exception. */
static int is_on_host(PyObject *tensor)
{
	struct dl_tensor now;

	if (tensor_look(tensor, &now) && now.device.type == DLPACK_CPU)
		return 1;
	return to_bool(get(&torch.is_cpu, tensor));
}

int seen_is_strange(struct seen *seen)
{
	PyObject *tensor = seen->tensor;
	int rc;

	seen->is_other = (PyObject *)Py_TYPE(tensor) != torch.tensor_type;
	if (seen->is_other)
		return 1;
	rc = seen->device ? 1 : is_on_host(tensor);
	if (rc <= 0) {
		seen->is_elsewhere = rc == 0;
		return rc < 0 ? -1 : 1;
	}
	seen->dtype = dtype_of(tensor);
	seen->is_other = !seen->dtype; /* quantized */
	if (!seen->dtype)
		return PyErr_Occurred() ? -1 : 1;
	return 0;
}

int seen_is_skipped(struct seen *seen)
{
	int rc = seen_is_strange(seen);

	if (rc == 0)
		rc = is_trained(seen->tensor);
	return rc ? rc : PyObject_HasAttr(seen->tensor, names.mark);
}

int seen_is_parameter(const struct seen *seen)
{
	PyObject *tensor = seen->tensor, *base;
	int rc = to_bool(get(&torch.is_leaf, tensor));

	if (rc <= 0)
		return rc;
	rc = to_bool(get(&torch.requires_grad, tensor));
	if (rc == 0 && (PyObject *)Py_TYPE(tensor) != torch.tensor_type)
		rc = PyObject_IsInstance(tensor, torch.parameter_type);
	if (rc <= 0)
		return rc;
	base = get(&torch.base, tensor);
	Py_XDECREF(base);
	return base ? base == Py_None : -1;
}

int seen_storage(struct seen *seen)
{
	SPW_ASSERT(!seen->storage && !seen->identity);
	seen->storage = call(torch.storage, seen->tensor);
	seen->identity = seen->storage ? get(&torch.cdata, seen->storage) : NULL;
	return seen->identity ? 0 : -1;
}

int seen_base(struct seen *seen)
{
	SPW_ASSERT(!seen->base);
	seen->base = get(&torch.base, seen->tensor);
	return seen->base ? 0 : -1;
}

Py_ssize_t seen_dims(struct seen *seen)
{
	Py_ssize_t dims;

	SPW_ASSERT(!seen->shape && !seen->stride);
	seen->shape = get(&torch.shape, seen->tensor);
	seen->stride = seen->shape ? call(torch.stride, seen->tensor) : NULL;
	if (!seen->stride)
		return -1;
	dims = PyTuple_Size(seen->shape);
	if (dims >= 0 && PyTuple_Size(seen->stride) != dims) {
		PyErr_SetString(PyExc_ValueError, "a tensor has as many strides as sizes");
		return -1;
	}
	return dims;
}

static int fill_from(int64_t values[], PyObject *tuple, Py_ssize_t count)
{
	for (Py_ssize_t i = 0; i < count; i++) {
		values[i] = PyLong_AsLongLong(PyTuple_GetItem(tuple, i));
		if (values[i] == -1 && PyErr_Occurred())
			return -1;
	}
	return 0;
}

int seen_shape(const struct seen *seen, int64_t sizes[])
{
	Py_ssize_t dims = PyTuple_Size(seen->shape);

	return fill_from(sizes, seen->shape, dims) || fill_from(sizes + dims, seen->stride, dims)
		       ? -1
		       : 0;
}

/* The offset in the storage, which begins at @address: 0; -1 with an exception. */
static int offset_from(const struct seen *seen, uint64_t address, int64_t *offset)
{
	uint64_t itemsize = seen->dtype ? seen->dtype->itemsize : 0, first;
	struct dl_tensor now;

	if (itemsize > 0 && tensor_look(seen->tensor, &now)) {
		first = (uint64_t)(uintptr_t)now.data + now.byte_offset;
		if (first >= address && (first - address) % itemsize == 0) {
			*offset = (int64_t)((first - address) / itemsize);
			return 0;
		}
	}
	return to_int64(call(torch.storage_offset, seen->tensor), offset);
}

int seen_place(const struct seen *seen, int64_t *offset, struct spw_offer *offer)
{
	uint64_t address;

	SPW_ASSERT(seen->storage);
	if (to_uint64(call(torch.nbytes, seen->storage), &offer->storage_len_bytes) ||
	    to_uint64(call(torch.data_ptr, seen->storage), &address) ||
	    offset_from(seen, address, offset))
		return -1;
	offer->storage_bytes = (const void *)(uintptr_t)address;
	return 0;
}

int seen_flags(const struct seen *seen, bool *conj, bool *neg)
{
	int is_conj = 0, is_neg = to_bool(call(torch.is_neg, seen->tensor));

	SPW_ASSERT(seen->dtype);
	if (is_neg >= 0 && seen->dtype->is_complex)
		is_conj = to_bool(call(torch.is_conj, seen->tensor));
	if (is_neg < 0 || is_conj < 0)
		return -1;
	*conj = is_conj;
	*neg = is_neg;
	return 0;
}

PyObject *seen_plain(const struct seen *seen, bool conj, bool neg)
{
	if (conj || neg)
		return PyObject_CallFunction(torch.plain, "Oii", seen->tensor, conj, neg);
	return call(torch.detach, seen->tensor);
}

void seen_end(struct seen *seen)
{
	Py_XDECREF(seen->storage);
	Py_XDECREF(seen->identity);
	Py_XDECREF(seen->base);
	Py_XDECREF(seen->shape);
	Py_XDECREF(seen->stride);
}
