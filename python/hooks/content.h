/* SPDX-License-Identifier: MIT */
/* hooks/content.h - storages, their contents, and whether these were modified */
#ifndef SPW_HOOKS_CONTENT_H
#define SPW_HOOKS_CONTENT_H

#include "tensor.h"

/* One content of one storage, shared by all tensors that were saved from it. */
struct version {
	uint32_t references;
	bool modified;  /* in place, before its bytes were safe */
	int64_t number; /* the tensor's version counter when it was saved */
	uint64_t epoch; /* the version that the cache knows it by */
	uint64_t step;  /* in which it was first saved */
	/* has the bytes if the storage has been given other memory since; or NULL */
	PyObject *moved;
	PyObject *witness; /* weak: a tensor that shares the version counter */
	/*
	 * A tensor that shares the version counter too, or NULL: set for what may leave memory. It
	 * is the owner's, and is left without memory when the owner ends. What is read back gets
	 * the same counter, since the next use may be handed the same memory.
	 */
	PyObject *counter;
};

/* A storage that is or was alive. The weak reference keeps its identity from being reused. */
struct record {
	PyObject_HEAD uint64_t key, epochs;
	PyObject *weak;
	struct version *version;
};

extern PyTypeObject *record_type;
extern PyType_Spec record_spec;

static inline struct version *version_hold(struct version *version)
{
	SPW_ASSERT(version->references > 0);
	version->references++;
	return version;
}

/* @version: or NULL */
void version_drop(struct version *version);
/* Fails if the content was modified. @shown: the tensor to be handed out; or NULL */
int version_check(const struct version *version, PyObject *shown);
/* Modifications are noticed until the version ends. @held: the owner's tensor, with the content */
void version_watch(struct version *version, PyObject *held);
/*
 * The owner ends: takes the memory away from @held, unless it was handed out; the counter stays.
 * @nothing: an empty tensor on the same device
 */
void version_part(struct version *version, PyObject *held, bool is_shown, PyObject *nothing);
/* A tensor with the version counter of @counter, and the memory, type and shape of @memory. */
PyObject *tensor_counted_by(PyObject *counter, PyObject *memory);
/*
 * The tensor to hand out for what was read back: with the counter of what was saved, if there is
 * one and PyTorch allows it. Consumes @memory.
 */
PyObject *tensor_lent(PyObject *counter, PyObject *memory);
/* Sets the exception of PyTorch's own check. @tensor: that was modified; or NULL. Return: -1 */
int raise_modified(PyObject *tensor, int64_t now, int64_t expected);

struct record *record_new(const struct seen *seen, uint64_t key);
/*
 * The present content of the storage of @tensor. Borrowed. Each step has versions of its own: in
 * between, memory may be refilled in ways that PyTorch does not count, such as through NumPy.
 */
struct version *record_version(struct record *record, PyObject *tensor, uint64_t step);
/* @held has the bytes of @version, wherever its memory is now; what was written may be wrong. */
void record_moved(struct record *record, struct version *version, PyObject *held);

#endif
