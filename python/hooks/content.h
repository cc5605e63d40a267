/* SPDX-License-Identifier: MIT */
/*
 * hooks/content.h - struct record of a storage, struct version of its content, and checks for
 * in-place modification
 */
#ifndef SPW_HOOKS_CONTENT_H
#define SPW_HOOKS_CONTENT_H

#include "tensor.h"

/* The content of a storage between two modifications, shared by all tensors saved from it. */
struct version {
	uint32_t references;
	bool modified;  /* in place, before its bytes were written or copied */
	int64_t number; /* the tensor's version counter when it was saved */
	uint64_t epoch; /* the number of this content in offers to the cache */
	uint64_t step;  /* the step in which it was first saved */
	/* a tensor that has the bytes if the storage was moved to other memory since; or NULL */
	PyObject *moved;
	/* weak: a tensor that shares the version counter; or NULL */
	PyObject *witness;
	/*
	 * A second tensor with this version counter, of what the cache holds; or NULL. It is the
	 * owner's tensor, whose memory is taken away when the owner ends. Tensors that are
	 * read back share the counter too, because later uses may be handed the same memory.
	 */
	PyObject *counter;
};

/* A known storage, which may be freed by now. The weak reference prevents reuse of its identity. */
struct record {
	PyObject_HEAD uint64_t key, epochs;
	PyObject *weak;
	PyObject *identity;
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

/* Drop a reference. @version: or NULL */
void version_drop(struct version *version);
/*
 * Detect modifications as long as @tensor is there, the one that is saved. For a content without a
 * counter: it is not watched otherwise, and later saves do not take it for theirs. Return: 0; -1
 */
int version_witnessed(struct version *version, PyObject *tensor);
/* Raise PyTorch's error if the content was modified. @shown: the tensor to hand out; or NULL */
int version_check(const struct version *version, PyObject *shown);
/*
 * Detect modifications from now on, by the version counter of the owner's tensor. @held: that
 * tensor, with the content
 */
void version_watch(struct version *version, PyObject *held);
/*
 * The owner ends: take the memory away from @held, unless it was handed out. Its version counter
 * stays. @nothing: an empty tensor on the same device
 */
void version_part(struct version *version, PyObject *held, bool is_shown, PyObject *nothing);
/* Make a tensor with the version counter of @counter and the memory, type and shape of @memory. */
PyObject *tensor_counted_by(PyObject *counter, PyObject *memory);
/*
 * Make the tensor to hand out for bytes that were read back. It shares @counter, that of the saved
 * tensor, if that is not NULL and PyTorch allows it. Consumes @memory.
 */
PyObject *tensor_lent(PyObject *counter, PyObject *memory);
/* Raise the exception of PyTorch's own check. @tensor: the modified one; or NULL. Return: -1 */
int raise_modified(PyObject *tensor, int64_t now, int64_t expected);

struct record *record_new(const struct seen *seen, uint64_t key);
/*
 * Get the version of the current content of @tensor's storage, a borrowed reference. Each step
 * begins new versions, since memory may be refilled between steps in ways that PyTorch does not
 * count, such as through NumPy.
 */
struct version *record_version(struct record *record, PyObject *tensor, uint64_t step);
/*
 * An owner of @version goes, of which it holds a reference. Return: whether no saved tensor has
 * that content: then the record forgets it
 */
bool record_forgets(struct record *record, struct version *version);
/* The storage has moved: @held has the bytes of @version, and the written copy may be wrong. */
void record_moved(struct record *record, struct version *version, PyObject *held);

#endif
