/* SPDX-License-Identifier: MIT */
/* hooks/recompute.h - frames: runs of scopes that can be recomputed, and tensors they discarded */
#ifndef SPW_HOOKS_RECOMPUTE_H
#define SPW_HOOKS_RECOMPUTE_H

#include "session.h"

/*
 * One run of a scope (a module that can be recomputed) or of an operation, with the tensors that it
 * has saved and that were discarded. The package derives types that know how to rerun it.
 */
struct frame {
	PyObject_HEAD struct saved *discarded, **discarded_end; /* in the order of their saves */
	uint32_t saves, seen; /* tensors saved in the forward pass; in the recomputation */
	bool is_decided;      /* its saves are discarded, whatever the plan says */
};

extern PyTypeObject *frame_type;
extern PyType_Spec frame_spec;

/* Get the frame of the running scope. Return: NULL if the scope cannot be recomputed. */
struct frame *frame_now(const struct session *session);
/*
 * Whether the tensor may be discarded: the input of a scope only if an operation makes it again,
 * whose frame is the running one.
 */
bool seen_may_go(const struct session *session, const struct seen *seen);
/*
 * The cache has decided to discard the tensor: add it to its frame, and drop its memory. Return: 0;
 * -1 with an exception.
 */
int saved_discard(struct saved *saved, const struct seen *seen);
/* Remove a tensor from its frame's list: it was recomputed, or is no longer needed. */
void saved_undiscard(struct saved *saved);
/* Recompute a discarded tensor's scope. Return: 0 it can be taken now; -1 with an exception. */
int saved_recompute(struct saved *saved);
/*
 * Check that a recomputed tensor has the type and shape of the saved one, and fill @offer with its
 * memory. Return: 0; -1 with an exception that says what differs.
 */
int saved_is_like(const struct saved *saved, struct seen *seen, struct spw_offer *offer);

#endif
