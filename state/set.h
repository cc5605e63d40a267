/* SPDX-License-Identifier: MIT */
/* state/set.h - what a store has committed, read and checked */
#ifndef SPW_STATE_SET_H
#define SPW_STATE_SET_H

#include "state/manifest.h"
#include "state/ports.h"

struct state_set {
	struct spw_commit_info info;
	uint8_t *bytes; /* of the manifest */
	struct spw_state_manifest manifest;
	spw_object *objects; /* of the manifest, the first is number 1 */
	uint64_t *lens;
};

/**
 * spw_state__set_read - what opening the store has restored
 * @set:  to be given to spw_state__set_free() whatever this returns
 *
 * Return: 0; -ENODATA nothing is committed; -EALREADY its objects were dropped; -EUCLEAN it is not
 * a state's; -EPROTONOSUPPORT a newer version's; -ENOMEM.
 */
int spw_state__set_read(struct spw_store *store, const struct spw_state_ports *ports,
			struct state_set *set);
void spw_state__set_free(struct state_set *set);

/* As spw_state_extra() gives them. Return: 0; -ERANGE. */
int spw_state__extra_copy(const void *extra, size_t extra_len, void *to, size_t *len);

#endif
