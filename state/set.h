/* SPDX-License-Identifier: MIT */
/* state/set.h - read what a store has committed: its manifest and objects, checked */
#ifndef SPW_STATE_SET_H
#define SPW_STATE_SET_H

#include "state/manifest.h"
#include "state/ports.h"

struct state_set {
	struct spw_commit_info info;
	uint8_t *bytes; /* of the manifest */
	struct spw_state_manifest manifest;
	spw_object *objects; /* of the manifest, which calls the first one number 1 */
	uint64_t *lens;
};

/**
 * spw_state__set_read - read and check the commit that opening the store has restored
 * @set:  pass it to spw_state__set_free(), even after an error
 *
 * Return: 0; -ENODATA nothing is committed; -EALREADY its objects were freed since; -EUCLEAN it is
 * damaged or not a state; -EPROTONOSUPPORT a newer version wrote it; -ENOMEM.
 */
int spw_state__set_read(struct spw_store *store, const struct spw_state_ports *ports,
			struct state_set *set);
void spw_state__set_free(struct state_set *set);

/* Copy the extra bytes of a commit, by the contract of spw_state_extra(). Return: 0; -ERANGE. */
int spw_state__extra_copy(const void *extra, size_t extra_len, void *to, size_t *len);

#endif
