/* SPDX-License-Identifier: MIT */
/*
 * layout/layout.c - encode, decode and choose superblocks
 *
 * Invariants of an intact copy; decode refuses a copy that breaks one, and the tests name them by
 * number.
 *
 *   LAYOUT-1   The encoded superblock is exactly 4096 bytes of little-endian fixed-width fields
 *              without implicit padding.
 *   LAYOUT-2   It begins with the magic and ends with the XXH3-64 of all bytes before. Both, and
 *              the version, stay where they are in every version of the format, so that damage and
 *              age can be told apart.
 *   LAYOUT-3   version is 1 to SPW_FORMAT_VERSION, header_bytes is 4096.
 *   LAYOUT-4   copy_index is the place where the copy was found.
 *   LAYOUT-5   Reserved bytes and unknown flags are zero.
 *   LAYOUT-6   No incompatible feature is set that this version does not know.
 *   LAYOUT-7   sequence is 1 to SPW_LAYOUT_SEQUENCE_MAX.
 *   LAYOUT-8   drive_count is 1 to 64, drive_index below it.
 *   LAYOUT-9   The UUIDs of the store and of its drives are not zero and all different; those
 *              beyond drive_count are zero.
 *   LAYOUT-10  logical_block_bytes <= block_bytes <= chunk_bytes, all powers of two, at least 512,
 *              4096 and 64 KiB; chunk_bytes at most 64 MiB.
 *   LAYOUT-11  device_bytes is a multiple of 4096 and of logical_block_bytes, between 16 MiB and
 *              2^62.
 *   LAYOUT-12  partition_count is 1 to 256. data_offset_bytes and partition_bytes are multiples of
 *              block_bytes, and a partition holds at least one chunk.
 *   LAYOUT-13  The partitions lie between the reserved areas: data_offset_bytes >= 1 MiB, and
 *              data_offset_bytes + partition_count x partition_bytes <= device_bytes - 1 MiB. No
 *              sum overflows on the way.
 *
 * And of the place of a copy that is not intact, beside one that is
 *   LAYOUT-14  Each byte is zero or as the intact copy has it, but for copy_index, flags, sequence
 *              and checksum, which may be anything: so a write of that copy, or of zeros over it,
 *              looks that was cut off. Any other byte was written by somebody else.
 */
#include "layout/layout.h"

#include <assert.h>
#include <endian.h>
#include <errno.h>
#include <linux/types.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include <xxhash.h>

#include "util/util.h"

#define FLAG_COMPLETE 1u

static const char magic[8] = {'S', 'P', 'I', 'L', 'L', 'W', 'A', 'Y'};

/*
 * On the drive. The UUIDs stand behind a long run of zeros on purpose: boot records, partition
 * tables and many file systems have their magic in the first 2 KiB, and random bytes there would
 * imitate a two-byte one sooner or later.
 */
struct disk_superblock {
	char magic[8];                               /* 0x000 */
	__le32 version;                              /* 0x008 */
	__le32 header_bytes;                         /* 0x00c */
	__le32 copy_index;                           /* 0x010 */
	__le32 flags;                                /* 0x014 */
	__le64 sequence;                             /* 0x018 */
	__le64 features_incompatible;                /* 0x020 */
	__le64 features_read_only_compatible;        /* 0x028 */
	__le64 features_compatible;                  /* 0x030 */
	__le64 created_unix_s;                       /* 0x038 */
	__u8 store_uuid[16];                         /* 0x040 */
	__le32 drive_index;                          /* 0x050 */
	__le32 drive_count;                          /* 0x054 */
	__le32 block_bytes;                          /* 0x058 */
	__le32 logical_block_bytes;                  /* 0x05c */
	__le64 chunk_bytes;                          /* 0x060 */
	__le64 device_bytes;                         /* 0x068 */
	__le64 data_offset_bytes;                    /* 0x070 */
	__le64 partition_bytes;                      /* 0x078 */
	__le32 partition_count;                      /* 0x080 */
	__u8 reserved0[0x800 - 0x084];               /* 0x084 */
	__u8 drive_uuids[SPW_LAYOUT_DRIVES_MAX][16]; /* 0x800 */
	__u8 reserved1[0xff8 - 0xc00];               /* 0xc00 */
	__le64 checksum;                             /* 0xff8 */
} __attribute__((packed));

/* LAYOUT-1 */
static_assert(sizeof(struct disk_superblock) == SPW_SUPERBLOCK_BYTES, "size of the superblock");
static_assert(offsetof(struct disk_superblock, version) == 0x008, "version");
static_assert(offsetof(struct disk_superblock, header_bytes) == 0x00c, "header_bytes");
static_assert(offsetof(struct disk_superblock, copy_index) == 0x010, "copy_index");
static_assert(offsetof(struct disk_superblock, flags) == 0x014, "flags");
static_assert(offsetof(struct disk_superblock, sequence) == 0x018, "sequence");
static_assert(offsetof(struct disk_superblock, features_incompatible) == 0x020,
	      "features_incompatible");
static_assert(offsetof(struct disk_superblock, features_read_only_compatible) == 0x028,
	      "features_read_only_compatible");
static_assert(offsetof(struct disk_superblock, features_compatible) == 0x030,
	      "features_compatible");
static_assert(offsetof(struct disk_superblock, created_unix_s) == 0x038, "created_unix_s");
static_assert(offsetof(struct disk_superblock, store_uuid) == 0x040, "store_uuid");
static_assert(offsetof(struct disk_superblock, drive_index) == 0x050, "drive_index");
static_assert(offsetof(struct disk_superblock, drive_count) == 0x054, "drive_count");
static_assert(offsetof(struct disk_superblock, block_bytes) == 0x058, "block_bytes");
static_assert(offsetof(struct disk_superblock, logical_block_bytes) == 0x05c,
	      "logical_block_bytes");
static_assert(offsetof(struct disk_superblock, chunk_bytes) == 0x060, "chunk_bytes");
static_assert(offsetof(struct disk_superblock, device_bytes) == 0x068, "device_bytes");
static_assert(offsetof(struct disk_superblock, data_offset_bytes) == 0x070, "data_offset_bytes");
static_assert(offsetof(struct disk_superblock, partition_bytes) == 0x078, "partition_bytes");
static_assert(offsetof(struct disk_superblock, partition_count) == 0x080, "partition_count");
static_assert(offsetof(struct disk_superblock, reserved0) == 0x084, "reserved0");
static_assert(offsetof(struct disk_superblock, drive_uuids) == 0x800, "drive_uuids");
static_assert(offsetof(struct disk_superblock, reserved1) == 0xc00, "reserved1");
static_assert(offsetof(struct disk_superblock, checksum) == 0xff8, "checksum");
static_assert(SPW_LAYOUT_BLOCK_BYTES >= SPW_SUPERBLOCK_BYTES, "a superblock copy fits a block");
static_assert(SPW_LAYOUT_DEVICE_BYTES_MIN > 2 * SPW_LAYOUT_RESERVED_BYTES,
	      "the smallest drive has room for data");

uint64_t spw_layout_copy_offset(uint64_t device_bytes, unsigned copy)
{
	SPW_ASSERT(copy < 2 && device_bytes >= 2 * SPW_SUPERBLOCK_BYTES);
	return copy == 0
		       ? 0
		       : spw_round_down(device_bytes, SPW_SUPERBLOCK_BYTES) - SPW_SUPERBLOCK_BYTES;
}

uint64_t spw_layout_partition_offset(const struct spw_superblock *sb, unsigned partition)
{
	SPW_ASSERT(partition < sb->partition_count);
	return sb->data_offset_bytes + partition * sb->partition_bytes;
}

static uint64_t checksum_of(const struct disk_superblock *disk)
{
	return XXH3_64bits(disk, offsetof(struct disk_superblock, checksum));
}

static bool is_zero(const uint8_t *bytes, size_t len)
{
	while (len > 0 && *bytes == 0) {
		bytes++;
		len--;
	}
	return len == 0;
}

/* The checks return NULL, or what is wrong. */

/* LAYOUT-10 */
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

int spw_layout_plan(struct spw_superblock *sb, uint64_t device_size_bytes)
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
	/* Units of allocation may be larger than the reserved area. */
	sb->data_offset_bytes = spw_round_up(SPW_LAYOUT_RESERVED_BYTES, sb->block_bytes);
	if (sb->data_offset_bytes > sb->device_bytes - SPW_LAYOUT_RESERVED_BYTES)
		return -ENOSPC;
	data_bytes = sb->device_bytes - SPW_LAYOUT_RESERVED_BYTES - sb->data_offset_bytes;
	/*
	 * Partitions begin on the drive's own large units (erase blocks, stripes), if chunks are as
	 * large.
	 */
	align_bytes = sb->chunk_bytes < SPW_LAYOUT_RESERVED_BYTES ? sb->chunk_bytes
								  : SPW_LAYOUT_RESERVED_BYTES;
	if (align_bytes < sb->block_bytes)
		align_bytes = sb->block_bytes;
	sb->partition_bytes = spw_round_down(data_bytes / sb->partition_count, align_bytes);
	return sb->partition_bytes < sb->chunk_bytes ? -ENOSPC : 0;
}

void spw_layout_encode(const struct spw_superblock *sb, unsigned copy,
		       uint8_t block[SPW_SUPERBLOCK_BYTES])
{
	struct disk_superblock disk = {
		.version = htole32(SPW_FORMAT_VERSION),
		.header_bytes = htole32(SPW_SUPERBLOCK_BYTES),
		.copy_index = htole32(copy),
		.flags = htole32(sb->complete ? FLAG_COMPLETE : 0),
		.sequence = htole64(sb->sequence),
		.features_incompatible = htole64(sb->features_incompatible),
		.features_read_only_compatible = htole64(sb->features_read_only_compatible),
		.features_compatible = htole64(sb->features_compatible),
		.created_unix_s = htole64(sb->created_unix_s),
		.drive_index = htole32(sb->drive_index),
		.drive_count = htole32(sb->drive_count),
		.block_bytes = htole32(sb->block_bytes),
		.logical_block_bytes = htole32(sb->logical_block_bytes),
		.chunk_bytes = htole64(sb->chunk_bytes),
		.device_bytes = htole64(sb->device_bytes),
		.data_offset_bytes = htole64(sb->data_offset_bytes),
		.partition_bytes = htole64(sb->partition_bytes),
		.partition_count = htole32(sb->partition_count),
	};

	memcpy(disk.magic, magic, sizeof(magic));
	memcpy(disk.store_uuid, sb->store_uuid, sizeof(disk.store_uuid));
	memcpy(disk.drive_uuids, sb->drive_uuids, sizeof(disk.drive_uuids));
	disk.checksum = htole64(checksum_of(&disk));
	memcpy(block, &disk, sizeof(disk));
}

/* Everything as it stands; what it means is checked afterwards. */
static void copy_fields(const struct disk_superblock *disk, struct spw_superblock *sb)
{
	*sb = (struct spw_superblock){
		.sequence = le64toh(disk->sequence),
		.features_incompatible = le64toh(disk->features_incompatible),
		.features_read_only_compatible = le64toh(disk->features_read_only_compatible),
		.features_compatible = le64toh(disk->features_compatible),
		.drive_index = le32toh(disk->drive_index),
		.drive_count = le32toh(disk->drive_count),
		.block_bytes = le32toh(disk->block_bytes),
		.logical_block_bytes = le32toh(disk->logical_block_bytes),
		.chunk_bytes = le64toh(disk->chunk_bytes),
		.device_bytes = le64toh(disk->device_bytes),
		.data_offset_bytes = le64toh(disk->data_offset_bytes),
		.partition_bytes = le64toh(disk->partition_bytes),
		.partition_count = le32toh(disk->partition_count),
		.complete = (le32toh(disk->flags) & FLAG_COMPLETE) != 0,
		.created_unix_s = le64toh(disk->created_unix_s),
	};
	memcpy(sb->store_uuid, disk->store_uuid, sizeof(sb->store_uuid));
	memcpy(sb->drive_uuids, disk->drive_uuids, sizeof(sb->drive_uuids));
}

/* LAYOUT-3, LAYOUT-4, LAYOUT-5, once it is known that the version is not newer */
static const char *header_fault(const struct disk_superblock *disk, unsigned copy)
{
	if (disk->version == 0)
		return "its format version is 0";
	if (le32toh(disk->header_bytes) != SPW_SUPERBLOCK_BYTES)
		return "its header has another length";
	if (le32toh(disk->copy_index) != copy)
		return "it is the other copy, at the wrong place";
	if ((le32toh(disk->flags) & ~FLAG_COMPLETE) != 0)
		return "an unknown flag is set";
	if (!is_zero(disk->reserved0, sizeof(disk->reserved0)) ||
	    !is_zero(disk->reserved1, sizeof(disk->reserved1)))
		return "a reserved byte is not zero";
	return NULL;
}

static bool uuids_equal(const uint8_t *a, const uint8_t *b)
{
	return memcmp(a, b, 16) == 0;
}

/* LAYOUT-9 for drive @index: its UUID is not zero and not one that came before. */
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

/* LAYOUT-7, LAYOUT-8, LAYOUT-9 */
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

/* LAYOUT-11, LAYOUT-12, LAYOUT-13 */
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
	if (sb->partition_bytes < sb->chunk_bytes)
		return "its partitions do not hold a chunk";
	if (sb->data_offset_bytes < SPW_LAYOUT_RESERVED_BYTES)
		return "its partitions begin inside the reserved area";
	if (sb->data_offset_bytes > sb->device_bytes - SPW_LAYOUT_RESERVED_BYTES)
		return "its partitions begin behind the end of the drive";
	data_bytes = sb->device_bytes - SPW_LAYOUT_RESERVED_BYTES - sb->data_offset_bytes;
	/* Divided, not multiplied: the product of two fields may overflow. */
	if (sb->partition_bytes > data_bytes / sb->partition_count)
		return "its partitions do not fit the drive";
	return NULL;
}

static int decode_fields(const struct disk_superblock *disk, unsigned copy,
			 struct spw_superblock *sb, const char **why)
{
	/*
	 * LAYOUT-2 first: until the checksum is right, no field says anything, the version neither.
	 */
	*why = "it has no magic";
	if (memcmp(disk->magic, magic, sizeof(magic)) != 0)
		return -EMEDIUMTYPE;
	*why = "its checksum is wrong";
	if (le64toh(disk->checksum) != checksum_of(disk))
		return -EUCLEAN;
	*why = "its format version is newer";
	if (le32toh(disk->version) > SPW_FORMAT_VERSION)
		return -EPROTONOSUPPORT;
	*why = header_fault(disk, copy);
	if (*why)
		return -EUCLEAN;
	copy_fields(disk, sb);
	/* LAYOUT-6 before the fields, whose meaning an unknown feature may change. */
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

int spw_layout_decode(const uint8_t block[SPW_SUPERBLOCK_BYTES], unsigned copy,
		      struct spw_superblock *sb, const char **why)
{
	struct disk_superblock disk;
	const char *reason;
	int rc;

	memcpy(&disk, block, sizeof(disk));
	rc = decode_fields(&disk, copy, sb, &reason);
	if (rc != 0)
		memset(sb, 0, sizeof(*sb));
	if (why)
		*why = reason;
	return rc;
}

/* How much an errno says about a drive whose copies are both unusable. */
static int weight_of(int error)
{
	switch (error) {
	case -EPROTONOSUPPORT: return 3;
	case -EUCLEAN: return 2;
	case -EMEDIUMTYPE: return 0;
	default: return 1;
	}
}

int spw_layout_choose(const struct spw_superblock copies[2], const int results[2])
{
	if (results[0] == 0 && results[1] == 0)
		return copies[1].sequence > copies[0].sequence ? 1 : 0;
	if (results[0] == 0)
		return 0;
	if (results[1] == 0)
		return 1;
	return weight_of(results[1]) > weight_of(results[0]) ? results[1] : results[0];
}

/* LAYOUT-14 */
static bool may_differ(size_t at)
{
	return (at >= offsetof(struct disk_superblock, copy_index) &&
		at < offsetof(struct disk_superblock, features_incompatible)) ||
	       at >= offsetof(struct disk_superblock, checksum);
}

static_assert(offsetof(struct disk_superblock, features_incompatible) ==
		      offsetof(struct disk_superblock, copy_index) + 4 + 4 + 8,
	      "copy_index, flags and sequence");

size_t spw_layout_foreign(const struct spw_superblock *sb, unsigned copy,
			  const uint8_t block[SPW_SUPERBLOCK_BYTES])
{
	uint8_t ours[SPW_SUPERBLOCK_BYTES];
	size_t at = 0;

	spw_layout_encode(sb, copy, ours);
	while (at < sizeof(ours) && (block[at] == 0 || block[at] == ours[at] || may_differ(at)))
		at++;
	return at;
}

const char *spw_layout_uuid_text(const uint8_t uuid[16], char text[SPW_LAYOUT_UUID_TEXT_BYTES])
{
	char *end = text;

	for (unsigned i = 0; i < 16; i++) {
		if (i == 4 || i == 6 || i == 8 || i == 10)
			*end++ = '-';
		end += snprintf(end, 3, "%02x", uuid[i]);
	}
	return text;
}
