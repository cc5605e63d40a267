/* SPDX-License-Identifier: MIT */
/* hooks/recompute.h - scopes that can be recomputed, and the tensors discarded because of that */
#ifndef SPW_HOOKS_RECOMPUTE_H
#define SPW_HOOKS_RECOMPUTE_H

#include "session.h"

/*
 * One run of a scope, or of an operation. The package derives its own types, which know how to run
 * it again.
 */
struct frame {
	PyObject_HEAD struct saved *discarded, **discarded_end; /* in the order of saving */
	uint32_t saves, seen; /* tensors saved: in the forward pass, and in recomputation */
	bool is_decided;      /* what it saves is discarded, whatever the plan says */
};

extern PyTypeObject *frame_type;
extern PyType_Spec frame_spec;

/* NULL: the running scope cannot be recomputed. */
struct frame *frame_now(const struct session *session);
/* The cache has discarded it. Return: 0; -1 with an exception. */
int saved_discard(struct saved *saved, const struct seen *seen);
/* It has its bytes again, or is no longer needed. */
void saved_undiscard(struct saved *saved);
/* Recomputes its scope. Return: 0: take it again; -1 with an exception. */
int saved_recompute(struct saved *saved);
/*
 * Whether what was recomputed has the same kind, shape and place, which goes into @offer. Return:
 * 0; -1 with an exception that says what differs.
 */
int saved_is_like(const struct saved *saved, struct seen *seen, struct spw_offer *offer);

#endif
