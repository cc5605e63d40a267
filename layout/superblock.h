/* SPDX-License-Identifier: MIT */
/*
 * layout/superblock.h - the superblock and the partitions of a drive; docs/FORMAT.md is normative
 *
 * No I/O, any thread. Decoding checks the fields against each other. The caller checks them against
 * the device: its present size and block size, and where a copy was found.
 */
#ifndef SPW_SUPERBLOCK_H
#define SPW_SUPERBLOCK_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define SPW_SUPERBLOCK_BYTES  4096u
#define SPW_FORMAT_VERSION    1u /* of the disk format; independent of the library's version */
#define SPW_LAYOUT_DRIVES_MAX 64u
/* unit of allocation unless a drive has larger logical blocks */
#define SPW_LAYOUT_BLOCK_BYTES 4096u

#define SPW_LAYOUT_PARTITIONS_MAX   256u
#define SPW_LAYOUT_CHUNK_BYTES_MIN  (64u << 10)
#define SPW_LAYOUT_CHUNK_BYTES_MAX  (64u << 20)
#define SPW_LAYOUT_DEVICE_BYTES_MIN (16u << 20)
/* every offset fits in an off_t */
#define SPW_LAYOUT_DEVICE_BYTES_MAX  (UINT64_C(1) << 62)
#define SPW_LAYOUT_SEQUENCE_MAX      (UINT64_C(1) << 62)
#define SPW_LAYOUT_UUID_TEXT_BYTES   37         /* 36 and the NUL */
#define SPW_LAYOUT_RESERVED_BYTES    (1u << 20) /* at each end: one superblock copy, then zeros */
#define SPW_LAYOUT_LOGICAL_BYTES_MIN 512u

/*
 * The last two blocks of each partition are for commits (layout/commit.h). Older stores lack them.
 */
#define SPW_FEATURE_COMMITS UINT64_C(1)
#define SPW_COMMIT_SLOTS    2u

/*
 * Features that this version knows. With an unknown incompatible feature a store cannot be opened,
 * with an unknown read-only-compatible one it cannot be written.
 */
#define SPW_FEATURES_INCOMPATIBLE         SPW_FEATURE_COMMITS
#define SPW_FEATURES_READ_ONLY_COMPATIBLE UINT64_C(0)
#define SPW_FEATURES_COMPATIBLE           UINT64_C(0)

/* A superblock in memory. Both copies on a drive have the same fields. */
struct spw_superblock {
	uint64_t sequence; /* the intact copy with the higher number is valid */
	uint64_t features_incompatible;
	uint64_t features_read_only_compatible;
	uint64_t features_compatible;
	uint8_t store_uuid[16];
	/* UUIDs of all drives of the store, by index; unused entries are zero */
	uint8_t drive_uuids[SPW_LAYOUT_DRIVES_MAX][16];
	uint32_t drive_index;
	uint32_t drive_count;
	uint32_t block_bytes;         /* unit of allocation, a power of two of at least 4096 */
	uint32_t logical_block_bytes; /* of the device when it was formatted */
	uint64_t chunk_bytes;
	uint64_t device_bytes;      /* usable size when formatted; both copies lie within it */
	uint64_t data_offset_bytes; /* of partition 0 */
	uint64_t partition_bytes;   /* of each partition on this drive */
	uint32_t partition_count;
	bool complete; /* false until the format has finished */
	uint64_t created_unix_s;
};

/* Copy 0 is the first SPW_SUPERBLOCK_BYTES of the device, copy 1 the last whole ones. */
uint64_t spw_layout__copy_offset(uint64_t device_bytes, unsigned copy);

/* Where partition @partition begins; its first byte is the one that its owner locks. */
uint64_t spw_layout__partition_offset(const struct spw_superblock *sb, unsigned partition);

/* Bytes of a partition for data: all but the blocks for commits. */
uint64_t spw_layout__partition_capacity(const struct spw_superblock *sb);

/* Offset on the drive of a partition's commit block. */
uint64_t spw_layout__commit_offset(const struct spw_superblock *sb, unsigned partition,
				   unsigned slot);

/**
 * spw_layout__plan - fill in the fields that follow from a device's size
 *
 * Reads sb->chunk_bytes, block_bytes, logical_block_bytes, partition_count; sets device_bytes
 * (rounded down), data_offset_bytes, partition_bytes. Return: 0; -EINVAL a parameter is out of
 * range; -ENOSPC the device is too small for the partitions.
 */
int spw_layout__plan(struct spw_superblock *sb, uint64_t device_size_bytes);

void spw_layout__encode(const struct spw_superblock *sb, unsigned copy,
			uint8_t block[SPW_SUPERBLOCK_BYTES]);

/**
 * spw_layout__decode - read one copy
 *
 * Return: 0; -EMEDIUMTYPE no spillway superblock (the magic is missing); -EUCLEAN damaged:
 * checksum, a reserved byte, or fields that contradict each other; -EPROTONOSUPPORT a newer format
 * or an unknown incompatible feature. *why (if @why is not NULL) is set to a text that says what is
 * wrong, NULL on success. *sb is all zero unless 0 is returned.
 */
int spw_layout__decode(const uint8_t block[SPW_SUPERBLOCK_BYTES], unsigned copy,
		       struct spw_superblock *sb, const char **why);

/**
 * spw_layout__choose_copy - decide which of a drive's two copies is valid
 * @results:  for each copy, the result of spw_layout__decode(), or the -errno of reading it
 *
 * Return: 0 or 1, the intact copy with the higher sequence (0 when equal); or, when neither is
 * intact, the more informative errno: -EPROTONOSUPPORT, else -EUCLEAN, else the errno of a failed
 * read, else -EMEDIUMTYPE.
 */
int spw_layout__choose_copy(const struct spw_superblock copies[2], const int results[2]);

/**
 * spw_layout__foreign - find bytes of other software in a damaged copy: bytes that no interrupted
 * format or wipe of this drive leaves there (LAYOUT-14)
 * @sb:     the other copy, which is intact
 * @copy:   index of the copy that should be in @block and is not intact
 *
 * Return: the offset in @block of the first such byte; SPW_SUPERBLOCK_BYTES: there is none.
 */
size_t spw_layout__foreign(const struct spw_superblock *sb, unsigned copy,
			   const uint8_t block[SPW_SUPERBLOCK_BYTES]);

/* Format a UUID as "0f8fad5b-d9cb-469f-a165-70867728950e". Return: @text. */
const char *spw_layout__uuid_text(const uint8_t uuid[16], char text[SPW_LAYOUT_UUID_TEXT_BYTES]);

#endif
