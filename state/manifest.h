/* SPDX-License-Identifier: MIT */
/*
 * state/manifest.h - which records a commit has: the bytes that go with its objects;
 * docs/FORMAT.md, "The record of a state", is normative
 *
 * Pure: no I/O, any thread. Nothing is believed of bytes that come from a drive before all of them
 * have been checked.
 */
#ifndef SPW_STATE_MANIFEST_H
#define SPW_STATE_MANIFEST_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* A record. Its name and shape lie in the manifest's bytes; the name has no zero at its end. */
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
	const uint8_t *next; /* entry that spw_state__manifest_next() gives */
	uint32_t left;       /* entries */
};

/* Of all but the entries; and of an entry. */
uint64_t spw_state__manifest_bytes(uint64_t extra_len);
uint64_t spw_state__entry_bytes(uint64_t name_len, uint64_t shape_len);

/*
 * Encode: the begin, each entry in order, the end. They return where the next goes, and fill
 * @total_bytes, the sum of what the functions above say. All bytes of @manifest but the numbers of
 * records and objects and the extra ones are ignored.
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
 * @why:       set to NULL, or to what is wrong in words
 *
 * Return: 0; -EMEDIUMTYPE it is not a state's; -EUCLEAN it is damaged; -EPROTONOSUPPORT of a newer
 * version.
 */
int spw_state__manifest_decode(const void *bytes, size_t len, struct spw_state_manifest *manifest,
			       const char **why);

/* The next entry of what was decoded. Return: false: there is none. */
bool spw_state__manifest_next(struct spw_state_manifest *manifest, struct spw_state_entry *entry);

#endif
