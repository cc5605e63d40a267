/* SPDX-License-Identifier: MIT */
/*
 * layout/superblock.c - encode, decode and choose superblocks
 *
 * Invariants of an intact copy; decoding fails if one is violated, and the tests name them by
 * number. docs/FORMAT.md has each field's range.
 *
 *   LAYOUT-1   4096 bytes of little-endian fields of fixed width, without implicit padding.
 *   LAYOUT-2   It begins with the magic and ends with the XXH3-64 of all bytes before. Both, and
 *              the version, have the same offsets in every version, so that damage and a newer
 *              version can be told apart.
 *   LAYOUT-3   version is 1 to SPW_FORMAT_VERSION, header_bytes is 4096.
 *   LAYOUT-4   copy_index is the slot in which the copy was found.
 *   LAYOUT-5   Reserved bytes and unknown flags are zero.
 *   LAYOUT-6   No incompatible feature is set that this version does not know.
 *   LAYOUT-7   sequence is 1 to SPW_LAYOUT_SEQUENCE_MAX.
 *   LAYOUT-8   drive_count is 1 to 64, drive_index below it.
 *   LAYOUT-9   The UUIDs of store and drives are not zero and all different, unused ones are zero.
 *   LAYOUT-10  logical_block_bytes <= block_bytes <= chunk_bytes, powers of two in their ranges.
 *   LAYOUT-11  device_bytes is in its range, a multiple of 4096 and of logical_block_bytes.
 *   LAYOUT-12  partition_count is 1 to 256. data_offset_bytes and partition_bytes are multiples of
 *              block_bytes, and a partition holds at least one chunk, and the blocks for commits.
 *   LAYOUT-13  The partitions lie between the reserved areas, 1 MiB at each end; no sum overflows.
 *
 * Invariant of a damaged copy whose other copy is intact
 *   LAYOUT-14  Each byte is zero or as in the intact copy, except for copy_index, flags, sequence
 *              and checksum, drive_count and the UUIDs of that many drives and one more, which are
 *              others once drives have been replaced or one was added: that is what an interrupted
 *              write of the copy, or of zeros, leaves behind. Any other byte was written by other
 *              software.
 */
#include "layout/superblock.h"

#include <assert.h>
#include <errno.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include <xxhash.h>

#include "util/util.h"

#define FLAG_COMPLETE 1u

static const char magic[8] = {'S', 'P', 'I', 'L', 'L', 'W', 'A', 'Y'};

/*
 * Offsets of the fields (LAYOUT-1). The random bytes of UUIDs lie beyond the first 2 KiB, where
 * they could be mistaken for a file system's magic number.
 */
enum place {
	AT_MAGIC = 0x000,
	AT_VERSION = 0x008,
	AT_HEADER_BYTES = 0x00c,
	AT_COPY_INDEX = 0x010,
	AT_FLAGS = 0x014,
	AT_SEQUENCE = 0x018,
	AT_FEATURES = 0x020,
	AT_DRIVE_COUNT = 0x054,
	AT_RESERVED0 = 0x084,
	AT_DRIVE_UUIDS = 0x800,
	AT_RESERVED1 = 0xc00,
	AT_CHECKSUM = 0xff8,
};

/* The fields that are copied as they are between drive and memory. */
#define FIELD(at, name)                                            \
	{                                                          \
		at, offsetof(struct spw_superblock, name),         \
			sizeof(((struct spw_superblock *)0)->name) \
	}
static const struct {
	uint16_t at, in_memory, bytes;
} fields[] = {
	FIELD(AT_SEQUENCE, sequence),
	FIELD(AT_FEATURES, features_incompatible),
	FIELD(0x028, features_read_only_compatible),
	FIELD(0x030, features_compatible),
	FIELD(0x038, created_unix_s),
	FIELD(0x040, store_uuid),
	FIELD(0x050, drive_index),
	FIELD(AT_DRIVE_COUNT, drive_count),
	FIELD(0x058, block_bytes),
	FIELD(0x05c, logical_block_bytes),
	FIELD(0x060, chunk_bytes),
	FIELD(0x068, device_bytes),
	FIELD(0x070, data_offset_bytes),
	FIELD(0x078, partition_bytes),
	FIELD(0x080, partition_count),
	FIELD(AT_DRIVE_UUIDS, drive_uuids),
};

static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "fields are copied as they are");
static_assert(AT_CHECKSUM + sizeof(uint64_t) == SPW_SUPERBLOCK_BYTES, "size of the superblock");
static_assert(SPW_LAYOUT_BLOCK_BYTES >= SPW_SUPERBLOCK_BYTES, "a superblock copy fits a block");
static_assert(SPW_LAYOUT_DEVICE_BYTES_MIN > 2 * SPW_LAYOUT_RESERVED_BYTES,
	      "the smallest drive has room for data");

static uint32_t get32(const uint8_t *block, enum place at)
{
	uint32_t value;

	memcpy(&value, block + at, sizeof(value));
	return value;
}

static void put32(uint8_t *block, enum place at, uint32_t value)
{
	memcpy(block + at, &value, sizeof(value));
}

uint64_t spw_layout__copy_offset(uint64_t device_bytes, unsigned copy)
{
	SPW_ASSERT(copy < 2 && device_bytes >= 2 * SPW_SUPERBLOCK_BYTES);
	return copy == 0
		       ? 0
		       : spw_round_down(device_bytes, SPW_SUPERBLOCK_BYTES) - SPW_SUPERBLOCK_BYTES;
}

uint64_t spw_layout__partition_offset(const struct spw_superblock *sb, unsigned partition)
{
	SPW_ASSERT(partition < sb->partition_count);
	return sb->data_offset_bytes + partition * sb->partition_bytes;
}

uint64_t spw_layout__partition_capacity(const struct spw_superblock *sb)
{
	return sb->partition_bytes - SPW_COMMIT_SLOTS * sb->block_bytes;
}

uint64_t spw_layout__commit_offset(const struct spw_superblock *sb, unsigned partition,
				   unsigned slot)
{
	SPW_ASSERT(slot < SPW_COMMIT_SLOTS);
	return spw_layout__partition_offset(sb, partition) + spw_layout__partition_capacity(sb) +
	       slot * sb->block_bytes;
}

static uint64_t checksum_of(const uint8_t *block)
{
	return XXH3_64bits(block, AT_CHECKSUM);
}

static bool is_zero(const uint8_t *bytes, size_t len)
{
	while (len > 0 && *bytes == 0) {
		bytes++;
		len--;
	}
	return len == 0;
}

/* Each of the checks below returns NULL, or what is wrong. */

/* Block and chunk sizes are powers of two within their ranges (LAYOUT-10). */
static const char *units_fault(const struct spw_superblock *sb)
{
	if (!spw_is_power_of_two(sb->block_bytes) || sb->block_bytes < SPW_LAYOUT_BLOCK_BYTES)
		return "its block size is not valid";
	if (!spw_is_power_of_two(sb->chunk_bytes) || sb->chunk_bytes < SPW_LAYOUT_CHUNK_BYTES_MIN ||
	    sb->chunk_bytes > SPW_LAYOUT_CHUNK_BYTES_MAX)
		return "its chunk size is not valid";
	if (sb->block_bytes > sb->chunk_bytes)
		return "its blocks are larger than its chunks";
	if (!spw_is_power_of_two(sb->logical_block_bytes) ||
	    sb->logical_block_bytes < SPW_LAYOUT_LOGICAL_BYTES_MIN ||
	    sb->logical_block_bytes > sb->block_bytes)
		return "its logical block size is not valid";
	return NULL;
}

/* A partition holds at least one chunk and the blocks for commits (LAYOUT-12). */
static uint64_t partition_bytes_min(const struct spw_superblock *sb)
{
	bool commits = (sb->features_incompatible & SPW_FEATURE_COMMITS) != 0;

	return sb->chunk_bytes + (commits ? SPW_COMMIT_SLOTS * sb->block_bytes : 0);
}

int spw_layout__plan(struct spw_superblock *sb, uint64_t device_size_bytes)
{
	uint64_t data_bytes, align_bytes, unit_bytes;

	if (units_fault(sb))
		return -EINVAL;
	if (sb->partition_count == 0 || sb->partition_count > SPW_LAYOUT_PARTITIONS_MAX)
		return -EINVAL;
	if (device_size_bytes > SPW_LAYOUT_DEVICE_BYTES_MAX)
		return -EINVAL;
	unit_bytes = sb->logical_block_bytes > SPW_SUPERBLOCK_BYTES ? sb->logical_block_bytes
								    : SPW_SUPERBLOCK_BYTES;
	sb->device_bytes = spw_round_down(device_size_bytes, unit_bytes);
	if (sb->device_bytes < SPW_LAYOUT_DEVICE_BYTES_MIN)
		return -ENOSPC;
	/* A unit of allocation may be larger than the reserved area. */
	sb->data_offset_bytes = spw_round_up(SPW_LAYOUT_RESERVED_BYTES, sb->block_bytes);
	if (sb->data_offset_bytes > sb->device_bytes - SPW_LAYOUT_RESERVED_BYTES)
		return -ENOSPC;
	data_bytes = sb->device_bytes - SPW_LAYOUT_RESERVED_BYTES - sb->data_offset_bytes;
	/* Align partitions to 1 MiB, for a drive's internal units, if chunks are that large. */
	align_bytes = sb->chunk_bytes < SPW_LAYOUT_RESERVED_BYTES ? sb->chunk_bytes
								  : SPW_LAYOUT_RESERVED_BYTES;
	if (align_bytes < sb->block_bytes)
		align_bytes = sb->block_bytes;
	sb->partition_bytes = spw_round_down(data_bytes / sb->partition_count, align_bytes);
	return sb->partition_bytes < partition_bytes_min(sb) ? -ENOSPC : 0;
}

void spw_layout__encode(const struct spw_superblock *sb, unsigned copy,
			uint8_t block[SPW_SUPERBLOCK_BYTES])
{
	uint64_t checksum;

	memset(block, 0, SPW_SUPERBLOCK_BYTES);
	memcpy(block + AT_MAGIC, magic, sizeof(magic));
	put32(block, AT_VERSION, SPW_FORMAT_VERSION);
	put32(block, AT_HEADER_BYTES, SPW_SUPERBLOCK_BYTES);
	put32(block, AT_COPY_INDEX, copy);
	put32(block, AT_FLAGS, sb->complete ? FLAG_COMPLETE : 0);
	for (size_t i = 0; i < SPW_ARRAY_LEN(fields); i++)
		memcpy(block + fields[i].at, (const char *)sb + fields[i].in_memory,
		       fields[i].bytes);
	checksum = checksum_of(block);
	memcpy(block + AT_CHECKSUM, &checksum, sizeof(checksum));
}

static void copy_fields(const uint8_t *block, struct spw_superblock *sb)
{
	memset(sb, 0, sizeof(*sb));
	sb->complete = (get32(block, AT_FLAGS) & FLAG_COMPLETE) != 0;
	for (size_t i = 0; i < SPW_ARRAY_LEN(fields); i++)
		memcpy((char *)sb + fields[i].in_memory, block + fields[i].at, fields[i].bytes);
}

/* Check the header (LAYOUT-3 to 5) of a version that is known not to be newer. */
static const char *header_fault(const uint8_t *block, unsigned copy)
{
	if (get32(block, AT_VERSION) == 0)
		return "its format version is 0";
	if (get32(block, AT_HEADER_BYTES) != SPW_SUPERBLOCK_BYTES)
		return "its header has another length";
	if (get32(block, AT_COPY_INDEX) != copy)
		return "it is the other copy, at the wrong place";
	if ((get32(block, AT_FLAGS) & ~FLAG_COMPLETE) != 0)
		return "an unknown flag is set";
	if (!is_zero(block + AT_RESERVED0, AT_DRIVE_UUIDS - AT_RESERVED0) ||
	    !is_zero(block + AT_RESERVED1, AT_CHECKSUM - AT_RESERVED1))
		return "a reserved byte is not zero";
	return NULL;
}

static bool uuids_equal(const uint8_t *a, const uint8_t *b)
{
	return memcmp(a, b, 16) == 0;
}

/* The UUID of drive @index is not zero, the store's or a previous drive's (LAYOUT-9). */
static bool drive_uuid_is_valid(const struct spw_superblock *sb, unsigned index)
{
	const uint8_t *uuid = sb->drive_uuids[index];

	if (is_zero(uuid, 16) || uuids_equal(uuid, sb->store_uuid))
		return false;
	for (unsigned before = 0; before < index; before++)
		if (uuids_equal(uuid, sb->drive_uuids[before]))
			return false;
	return true;
}

/* Sequence, drive count and index, and UUIDs are in range (LAYOUT-7 to 9). */
static const char *identity_fault(const struct spw_superblock *sb)
{
	if (sb->sequence == 0 || sb->sequence > SPW_LAYOUT_SEQUENCE_MAX)
		return "its sequence number is out of range";
	if (sb->drive_count == 0 || sb->drive_count > SPW_LAYOUT_DRIVES_MAX)
		return "its number of drives is out of range";
	if (sb->drive_index >= sb->drive_count)
		return "its drive index is not below the number of drives";
	if (is_zero(sb->store_uuid, sizeof(sb->store_uuid)))
		return "the store has no UUID";
	for (unsigned index = 0; index < sb->drive_count; index++)
		if (!drive_uuid_is_valid(sb, index))
			return "a drive's UUID is zero or not unique";
	if (!is_zero((const uint8_t *)sb->drive_uuids +
			     sb->drive_count * sizeof(sb->drive_uuids[0]),
		     (SPW_LAYOUT_DRIVES_MAX - sb->drive_count) * sizeof(sb->drive_uuids[0])))
		return "it names more drives than it counts";
	return NULL;
}

/* Device size and partitions fit each other (LAYOUT-11 to 13). */
static const char *geometry_fault(const struct spw_superblock *sb)
{
	uint64_t data_bytes;

	if (sb->device_bytes < SPW_LAYOUT_DEVICE_BYTES_MIN ||
	    sb->device_bytes > SPW_LAYOUT_DEVICE_BYTES_MAX)
		return "its device size is out of range";
	if (sb->device_bytes % SPW_SUPERBLOCK_BYTES != 0 ||
	    sb->device_bytes % sb->logical_block_bytes != 0)
		return "its device size is not a multiple of its blocks";
	if (sb->partition_count == 0 || sb->partition_count > SPW_LAYOUT_PARTITIONS_MAX)
		return "its number of partitions is out of range";
	if (sb->data_offset_bytes % sb->block_bytes != 0 ||
	    sb->partition_bytes % sb->block_bytes != 0)
		return "its partitions do not begin on a block";
	if (sb->partition_bytes < partition_bytes_min(sb))
		return "its partitions do not hold a chunk";
	if (sb->data_offset_bytes < SPW_LAYOUT_RESERVED_BYTES)
		return "its partitions begin inside the reserved area";
	if (sb->data_offset_bytes > sb->device_bytes - SPW_LAYOUT_RESERVED_BYTES)
		return "its partitions begin behind the end of the drive";
	data_bytes = sb->device_bytes - SPW_LAYOUT_RESERVED_BYTES - sb->data_offset_bytes;
	/* Divide: the product of the two fields could overflow. */
	if (sb->partition_bytes > data_bytes / sb->partition_count)
		return "its partitions do not fit the drive";
	return NULL;
}

static int decode_fields(const uint8_t *block, unsigned copy, struct spw_superblock *sb,
			 const char **why)
{
	uint64_t checksum = checksum_of(block);

	/* Magic number and checksum first (LAYOUT-2): the fields of a damaged copy mean nothing. */
	*why = "it has no magic";
	if (memcmp(block + AT_MAGIC, magic, sizeof(magic)) != 0)
		return -EMEDIUMTYPE;
	*why = "its checksum is wrong";
	if (memcmp(block + AT_CHECKSUM, &checksum, sizeof(checksum)) != 0)
		return -EUCLEAN;
	*why = "its format version is newer";
	if (get32(block, AT_VERSION) > SPW_FORMAT_VERSION)
		return -EPROTONOSUPPORT;
	*why = header_fault(block, copy);
	if (*why)
		return -EUCLEAN;
	copy_fields(block, sb);
	/* Unknown features before the fields, whose meaning they may change (LAYOUT-6). */
	*why = "it uses a feature that this version does not know";
	if ((sb->features_incompatible & ~SPW_FEATURES_INCOMPATIBLE) != 0)
		return -EPROTONOSUPPORT;
	*why = identity_fault(sb);
	if (!*why)
		*why = units_fault(sb);
	if (!*why)
		*why = geometry_fault(sb);
	return *why ? -EUCLEAN : 0;
}

int spw_layout__decode(const uint8_t block[SPW_SUPERBLOCK_BYTES], unsigned copy,
		       struct spw_superblock *sb, const char **why)
{
	const char *reason;
	int rc = decode_fields(block, copy, sb, &reason);

	if (rc != 0)
		memset(sb, 0, sizeof(*sb));
	if (why)
		*why = reason;
	return rc;
}

/* How informative an errno is about a drive whose copies are both unusable. */
static int weight_of(int error)
{
	switch (error) {
	case -EPROTONOSUPPORT: return 3;
	case -EUCLEAN: return 2;
	case -EMEDIUMTYPE: return 0;
	default: return 1;
	}
}

int spw_layout__choose_copy(const struct spw_superblock copies[2], const int results[2])
{
	if (results[0] == 0 && results[1] == 0)
		return copies[1].sequence > copies[0].sequence ? 1 : 0;
	if (results[0] == 0)
		return 0;
	if (results[1] == 0)
		return 1;
	return weight_of(results[1]) > weight_of(results[0]) ? results[1] : results[0];
}

/* Bytes in which copies of one drive may differ (LAYOUT-14), with @uuids drives. */
static bool may_differ(size_t at, size_t uuids)
{
	return (at >= AT_COPY_INDEX && at < AT_FEATURES) ||
	       (at >= AT_DRIVE_COUNT && at < AT_DRIVE_COUNT + sizeof(uint32_t)) ||
	       (at >= AT_DRIVE_UUIDS &&
		at < AT_DRIVE_UUIDS +
				uuids * sizeof(((struct spw_superblock *)0)->drive_uuids[0])) ||
	       at >= AT_CHECKSUM;
}

size_t spw_layout__foreign(const struct spw_superblock *sb, unsigned copy,
			   const uint8_t block[SPW_SUPERBLOCK_BYTES])
{
	size_t at = 0, uuids = SPW_MIN(sb->drive_count + 1, SPW_LAYOUT_DRIVES_MAX);
	uint8_t ours[SPW_SUPERBLOCK_BYTES];

	spw_layout__encode(sb, copy, ours);
	while (at < sizeof(ours) &&
	       (block[at] == 0 || block[at] == ours[at] || may_differ(at, uuids)))
		at++;
	return at;
}

const char *spw_layout__uuid_text(const uint8_t uuid[16], char text[SPW_LAYOUT_UUID_TEXT_BYTES])
{
	char *end = text;

	for (unsigned i = 0; i < 16; i++) {
		if (i == 4 || i == 6 || i == 8 || i == 10)
			*end++ = '-';
		end += snprintf(end, 3, "%02x", uuid[i]);
	}
	return text;
}
