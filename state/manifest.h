/* SPDX-License-Identifier: MIT */
/*
 * state/manifest.h - encode and decode the manifest of a commit, the list of its records;
 * docs/FORMAT.md, "The record of a state", is normative
 *
 * Pure: no I/O, any thread. Bytes from a drive are used only after all of them have been checked.
 */
#ifndef SPW_STATE_MANIFEST_H
#define SPW_STATE_MANIFEST_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* A record's entry. Name and shape point into the manifest; the name has no zero at its end. */
struct spw_state_entry {
	const char *name;
	const uint8_t *shape;
	uint32_t name_len, shape_len;
	uint32_t object; /* its place among the commit's objects, from 1; 0: all bytes are zero */
	uint64_t len_bytes;
};

struct spw_state_manifest {
	uint32_t records, objects;
	const uint8_t *extra;
	uint64_t extra_len;
	const uint8_t *next; /* the entry that spw_state__manifest_next() decodes next */
	uint32_t left;       /* entries */
};

/* Length of a manifest without its entries; and of one entry. */
uint64_t spw_state__manifest_bytes(uint64_t extra_len);
uint64_t spw_state__entry_bytes(uint64_t name_len, uint64_t shape_len);

/*
 * Encode a manifest: begin, add each entry in order, end. Begin and add return where the next part
 * goes. @total_bytes must be the sum of the lengths that the functions above return. Of @manifest
 * only the numbers of records and objects and the extra bytes are used.
 */
uint8_t *spw_state__manifest_begin(uint8_t *bytes, uint64_t total_bytes,
				   const struct spw_state_manifest *manifest);
uint8_t *spw_state__manifest_add(uint8_t *at, const struct spw_state_entry *entry);
void spw_state__manifest_end(uint8_t *at, uint8_t *bytes, uint64_t total_bytes,
			     const struct spw_state_manifest *manifest);

/**
 * spw_state__manifest_decode - check all of a manifest
 * @bytes:     must outlive @manifest
 * @manifest:  set; on error all zero
 * @why:       set to a message, valid only on error
 *
 * Return: 0; -EMEDIUMTYPE not the manifest of a state; -EUCLEAN damaged; -EPROTONOSUPPORT written
 * by a newer version.
 */
int spw_state__manifest_decode(const void *bytes, size_t len, struct spw_state_manifest *manifest,
			       const char **why);

/* Get the next entry of a decoded manifest. Return: false at its end. */
bool spw_state__manifest_next(struct spw_state_manifest *manifest, struct spw_state_entry *entry);

#endif
