/* SPDX-License-Identifier: MIT */
/* hooks/tensor.h - struct seen: the properties of a tensor that decide how it is saved */
#ifndef SPW_HOOKS_TENSOR_H
#define SPW_HOOKS_TENSOR_H

#include "calls.h"
#include "dlpack.h"

struct device;

/* Why a tensor is saved. */
enum seen_as {
	SEEN_SAVED,   /* by autograd */
	SEEN_INPUT,   /* a scope is recomputed from it */
	SEEN_INNER,   /* the elements of a tensor subclass */
	SEEN_COUNTED, /* it stays in memory in any case and is only counted */
};

/* What a save needs to know about a tensor, filled in the order of the functions below. */
struct seen {
	PyObject *tensor;      /* borrowed */
	struct device *device; /* of the port; NULL: host memory, or not known to the port */
	enum seen_as as;
	bool is_view;              /* for SEEN_INNER: whether the subclass tensor is a view */
	bool is_other;             /* not a plain tensor with a storage; by is_skipped() */
	uint64_t number;           /* of the step's saves; 0: it is offered; by kept_by_plan() */
	bool is_fixed;             /* a part of a storage that stays in memory; by offer_fill() */
	const struct dtype *dtype; /* by seen_is_strange() */
	bool is_elsewhere;         /* not in host memory; by seen_is_strange() */
	PyObject *storage;         /* and its identity; by seen_storage() */
	PyObject *identity;
	PyObject *base;           /* what it is a view of, or None; by seen_base() */
	PyObject *shape, *stride; /* by seen_dims() */
};

/*
 * Clear the RuntimeError by which PyTorch refuses to tell a property of a tensor. Return: true;
 * false for another exception, which stays set.
 */
bool was_refused(void);
int version_number(PyObject *tensor, int64_t *number);
/*
 * Look at a tensor without making objects. @now: what it points to changes if any code runs.
 * Return: false if PyTorch cannot tell in this way: it has no such function, or the tensor has no
 * memory
 */
bool tensor_look(PyObject *tensor, struct dl_tensor *now);
/* Read the address of the first element. */
int tensor_address(PyObject *tensor, uint64_t *address);
/* Read the version counter and the address of the first element. */
int tensor_state(PyObject *tensor, int64_t *number, uint64_t *address);

/* Return: 1 if the tensor is not a plain tensor in host memory or on @seen->device; 0; -1 */
int seen_is_strange(struct seen *seen);
/* Return: 1 if the tensor is not offloaded, whatever its storage is; 0; -1 */
int seen_is_skipped(struct seen *seen);
/*
 * Whether the tensor itself must be held, as it is a parameter: its .data may be replaced, as
 * DeepSpeed does. All other tensors, also views of parameters, are held detached: an output that
 * holds its own node would never be freed. Return: 1; 0; -1 with an exception.
 */
int seen_is_parameter(const struct seen *seen);
int seen_storage(struct seen *seen);
int seen_base(struct seen *seen);
/* Return: the number of dimensions; -1. */
Py_ssize_t seen_dims(struct seen *seen);
/* @sizes: filled with sizes, then strides, in elements */
int seen_shape(const struct seen *seen, int64_t sizes[]);
/*
 * Find the storage. @offset: set to the tensor's offset in it, in elements. @offer: filled with its
 * memory and length
 */
int seen_place(const struct seen *seen, int64_t *offset, struct spw_offer *offer);
/* Read the flags of lazy conjugation and negation. */
int seen_flags(const struct seen *seen, bool *conj, bool *neg);
/* Make a tensor on the same memory, without graph and these flags. */
PyObject *seen_plain(const struct seen *seen, bool conj, bool neg);
void seen_end(struct seen *seen);

#endif
