/* SPDX-License-Identifier: MIT */
/*
 * hooks/reader.h - what tensors are, read from PyTorch's own structures instead of being asked for
 * attribute by attribute
 *
 * A dozen calls of PyTorch's methods take longer than all else that saving a tensor does. So where
 * PyTorch's headers are at hand, reader.cpp is compiled against them, as a module of its own: it is
 * of that one build of PyTorch, and spillway/_native.py takes it only with that one, and only if it
 * reads the same as PyTorch's methods say. It is C++ since the structures are. Without it, and of
 * tensors that are not plain, hooks/tensor.c asks.
 *
 * Threads    The interpreter's lock guards all of it.
 */
#ifndef SPW_PYTHON_READER_H
#define SPW_PYTHON_READER_H

#include <Python.h>

#include <stdbool.h>
#include <stdint.h>

/* What reader.cpp gives hooks/module.c. */
#define READER_CAPSULE "spillway._reader.calls"

/* A tensor: dense, in host memory, counted, of no transform. */
struct tensor_read {
	/* in elements; the tensor's own, there as long as it is not changed */
	const int64_t *sizes, *strides;
	int64_t dims, offset, version; /* offset: in elements */
	void *storage;                 /* its identity */
	uint64_t storage_address, storage_len_bytes;
	int type; /* of elements: PyTorch's number */
	bool is_trained, is_view, conj,
		/* is_trained: a leaf that requires a gradient; is_view: autograd knows of what */
		neg;
};

/*
 * Memory that a tensor is to use, which @end is called for when it is used no longer: by any
 * thread, without the lock.
 */
struct memory {
	void *address;
	uint64_t len_bytes;
	const int64_t *sizes, *strides; /* in elements */
	int64_t dims;
	int type;
	void (*end)(void *context);
	void *context;
};

struct reader {
	/* Return: false: it is not plain, or cannot be read. No exception */
	bool (*read)(PyObject *tensor, struct tensor_read *read);
	bool (*version)(PyObject *tensor, int64_t *version);
	/*
	 * The same memory and version counter without the graph, and without flags. NULL with an
	 * exception
	 */
	PyObject *(*detached)(PyObject *tensor);
	/*
	 * A tensor that counts its versions with @counter, or alone if that is NULL. NULL with an
	 * exception: @end was called
	 */
	PyObject *(*lent)(const struct memory *memory, PyObject *counter);
	/*
	 * Holds a storage weakly, to be let go of as what its _weak_ref() returns. A new reference
	 */
	PyObject *(*weak)(void *storage);
};

#endif
