/* SPDX-License-Identifier: MIT */
/*
 * layout/commit.h - commit block and manifest, which describe a durable set of objects: encode,
 * decode; docs/FORMAT.md is normative
 *
 * No I/O, any thread. Decoding checks every field. Two things are left to the caller: that the
 * blocks of the pieces are free, and that they still hold the bytes that were written (the
 * checksums).
 */
#ifndef SPW_LAYOUT_COMMIT_H
#define SPW_LAYOUT_COMMIT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "layout/superblock.h"

#define SPW_COMMIT_BLOCK_BYTES 4096u
/* how many pieces fit in a commit block */
#define SPW_COMMIT_PIECES_MAX 165u
/* drive of the second piece of a pair when only one copy exists */
#define SPW_COMMIT_NO_DRIVE     UINT32_MAX
#define SPW_COMMIT_SEQUENCE_MAX (UINT64_C(1) << 62)

/* Where a run of an object's bytes is stored. The same layout in memory and on the drive. */
struct spw_commit_piece {
	uint64_t start_block; /* within the partition on that drive */
	uint64_t checksum;    /* XXH3-64 of the bytes */
	uint32_t len_bytes;
	uint32_t drive;
};

/*
 * An object in a manifest. Its pieces follow those of the previous object, in order of offset.
 * Those of a mirrored object come in pairs: the same bytes on two drives.
 */
struct spw_commit_object {
	uint64_t len_bytes;
	uint32_t pieces;
	uint32_t mirrored; /* 0 or 1 */
};

/* The store and partition to which a commit must belong. */
struct spw_commit_place {
	uint8_t store_uuid[16];
	uint32_t partition;
	uint32_t drive_count;
	uint32_t block_bytes;
	uint64_t chunk_bytes;
};

struct spw_commit {
	uint32_t slot;
	uint64_t sequence; /* the intact block with the highest one is valid */
	uint64_t number;
	bool has_previous;
	uint64_t previous; /* number of the commit that was held when this one was made */
	uint64_t manifest_bytes;
	/* bit per drive that has this block; 0: format version 1, which does not record it */
	uint64_t members;
	bool mirrored;        /* the pieces of the manifest come in pairs; only in version 2 */
	uint32_t piece_count; /* of the manifest */
	struct spw_commit_piece pieces[SPW_COMMIT_PIECES_MAX];
};

void spw_layout__commit_encode(const struct spw_commit *commit,
			       const struct spw_commit_place *place,
			       uint8_t block[SPW_COMMIT_BLOCK_BYTES]);

/**
 * spw_layout__commit_decode - read a commit block
 * @slot:  the slot in which the block was found
 *
 * Return: 0; -EMEDIUMTYPE no commit, or a commit of another store; -EUCLEAN damaged;
 * -EPROTONOSUPPORT of a newer version. *why is set to a text that says what is wrong.
 */
int spw_layout__commit_decode(const uint8_t block[SPW_COMMIT_BLOCK_BYTES],
			      const struct spw_commit_place *place, unsigned slot,
			      struct spw_commit *commit, const char **why);

/* A manifest. When decoded, the arrays point into the decoded bytes. */
struct spw_manifest {
	uint64_t sequence, number;
	uint32_t object_count;
	bool mirrors; /* objects may be mirrored; version 2, like a block with members */
	uint64_t piece_count;
	uint64_t record_bytes;
	const struct spw_commit_object *objects;
	const struct spw_commit_piece *pieces;
	const uint8_t *record;
};

/* Length of the encoded manifest. */
uint64_t spw_layout__manifest_bytes(const struct spw_manifest *manifest);

/* Encode a manifest. @bytes: room for spw_layout__manifest_bytes(). */
void spw_layout__manifest_encode(const struct spw_manifest *manifest,
				 const struct spw_commit_place *place, uint8_t *bytes);

/**
 * spw_layout__manifest_decode - read the manifest that a commit block names
 * @bytes:  @len bytes, aligned to 8, which must outlive @manifest
 *
 * Return: 0; -EUCLEAN damaged, @len differs from commit->manifest_bytes, or it is of another
 * commit; *why says what is wrong.
 */
int spw_layout__manifest_decode(const uint8_t *bytes, size_t len,
				const struct spw_commit_place *place,
				const struct spw_commit *commit, struct spw_manifest *manifest,
				const char **why);

#endif
