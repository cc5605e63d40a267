/* SPDX-License-Identifier: MIT */
/*
 * layout/commit.h - what names a durable set of objects: the commit block and the manifest;
 * docs/FORMAT.md is normative
 *
 * No I/O, any thread. Nothing decoded is trusted before all of it was checked, but for two things,
 * which the caller checks: that the blocks named are free, and that they hold what was written.
 */
#ifndef SPW_LAYOUT_COMMIT_H
#define SPW_LAYOUT_COMMIT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "layout/layout.h"

#define SPW_COMMIT_BLOCK_BYTES 4096u
/* As many as a commit block holds. */
#define SPW_COMMIT_PIECES_MAX 165u
/* The drive of the second copy of a run that has only one. */
#define SPW_COMMIT_NO_DRIVE     UINT32_MAX
#define SPW_COMMIT_SEQUENCE_MAX (UINT64_C(1) << 62)

/* Where a run of an object's bytes is. Stands on the drive as it does in memory. */
struct spw_commit_piece {
	uint64_t start_block; /* of the partition on that drive */
	uint64_t checksum;    /* XXH3-64 of the bytes */
	uint32_t len_bytes;
	uint32_t drive;
};

/*
 * Its pieces follow those of the object before, in order of offset. Where it is mirrored they come
 * in pairs, of the same bytes on two drives.
 */
struct spw_commit_object {
	uint64_t len_bytes;
	uint32_t pieces;
	uint32_t mirrored; /* 0 or 1 */
};

/* What a commit has to fit. */
struct spw_commit_place {
	uint8_t store_uuid[16];
	uint32_t partition;
	uint32_t drive_count;
	uint32_t block_bytes;
	uint64_t chunk_bytes;
};

struct spw_commit {
	uint32_t slot;
	uint64_t sequence; /* the highest wins */
	uint64_t number;
	bool has_previous;
	uint64_t previous; /* number of the commit that was held when this one was made */
	uint64_t manifest_bytes;
	/* on which drives, by index, this block is; 0: of version 1, which does not say so */
	uint64_t members;
	bool mirrored;        /* the manifest: its pieces come in pairs; of version 2 alone */
	uint32_t piece_count; /* of the manifest */
	struct spw_commit_piece pieces[SPW_COMMIT_PIECES_MAX];
};

void spw_layout__commit_encode(const struct spw_commit *commit,
			       const struct spw_commit_place *place,
			       uint8_t block[SPW_COMMIT_BLOCK_BYTES]);

/**
 * spw_layout__commit_decode - read a commit block
 * @slot:  in which it was found
 *
 * Return: 0; -EMEDIUMTYPE no commit of this store, or none at all; -EUCLEAN damaged;
 * -EPROTONOSUPPORT of a newer version. *why says which, in words.
 */
int spw_layout__commit_decode(const uint8_t block[SPW_COMMIT_BLOCK_BYTES],
			      const struct spw_commit_place *place, unsigned slot,
			      struct spw_commit *commit, const char **why);

/* A manifest; the arrays lie in the bytes that it was decoded from, or are to be encoded into. */
struct spw_manifest {
	uint64_t sequence, number;
	uint32_t object_count;
	bool mirrors; /* its objects may be mirrored: of version 2, as a block with members */
	uint64_t piece_count;
	uint64_t record_bytes;
	const struct spw_commit_object *objects;
	const struct spw_commit_piece *pieces;
	const uint8_t *record;
};

/* How long all is. */
uint64_t spw_layout__manifest_bytes(const struct spw_manifest *manifest);

/* @bytes: spw_layout__manifest_bytes() of them */
void spw_layout__manifest_encode(const struct spw_manifest *manifest,
				 const struct spw_commit_place *place, uint8_t *bytes);

/**
 * spw_layout__manifest_decode - read the manifest that a commit block names
 * @bytes:  aligned to 8; @len of them, commit->manifest_bytes; must outlive @manifest
 *
 * Return: 0; -EUCLEAN, and *why in words.
 */
int spw_layout__manifest_decode(const uint8_t *bytes, size_t len,
				const struct spw_commit_place *place,
				const struct spw_commit *commit, struct spw_manifest *manifest,
				const char **why);

#endif
