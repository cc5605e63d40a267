/* SPDX-License-Identifier: MIT */
/*
 * tests/fuzz/fuzz_superblock.c - any bytes as a superblock: refused, or such that the encoder would
 * write the same, and its parts lie inside the device
 */
/* link: util layout */
#include <errno.h>
#include <xxhash.h>

#include "layout/superblock.h"
#include "tests/fuzz/fuzz.h"

#define CHECKSUM_OFFSET 4088u /* docs/FORMAT.md: the last 8 bytes */

/* Return: whether it was accepted. */
static bool decode(const uint8_t block[SPW_SUPERBLOCK_BYTES], unsigned copy,
		   struct spw_superblock *sb)
{
	static const struct spw_superblock zero;
	uint8_t again[SPW_SUPERBLOCK_BYTES];
	const char *why = "";
	uint64_t end;
	int rc = spw_layout__decode(block, copy, sb, &why);

	FUZZ_REQUIRE(rc == 0 || rc == -EMEDIUMTYPE || rc == -EUCLEAN || rc == -EPROTONOSUPPORT);
	FUZZ_REQUIRE((rc == 0) == (why == NULL));
	if (rc != 0) {
		FUZZ_REQUIRE(memcmp(sb, &zero, sizeof(zero)) == 0);
		return false;
	}
	spw_layout__encode(sb, copy, again);
	FUZZ_REQUIRE(memcmp(again, block, sizeof(again)) == 0);
	FUZZ_REQUIRE(sb->drive_index < sb->drive_count && sb->drive_count <= SPW_LAYOUT_DRIVES_MAX);
	FUZZ_REQUIRE(sb->partition_count > 0 && sb->partition_count <= SPW_LAYOUT_PARTITIONS_MAX);
	end = spw_layout__partition_offset(sb, sb->partition_count - 1) + sb->partition_bytes;
	FUZZ_REQUIRE(sb->data_offset_bytes >= SPW_SUPERBLOCK_BYTES && end > sb->data_offset_bytes);
	FUZZ_REQUIRE(end <= spw_layout__copy_offset(sb->device_bytes, 1) &&
		     sb->device_bytes <= SPW_LAYOUT_DEVICE_BYTES_MAX);
	FUZZ_REQUIRE(sb->partition_bytes % sb->block_bytes == 0 &&
		     sb->data_offset_bytes % sb->block_bytes == 0);
	return true;
}

/*
 * Numbers that fit each other but for some: of the bytes of a superblock most are UUIDs and zeros,
 * where any change is refused at once.
 */
static void encode_any(struct fuzz_bytes *bytes, unsigned copy, uint8_t block[SPW_SUPERBLOCK_BYTES])
{
	uint8_t how = fuzz_byte(bytes);
	struct spw_superblock sb = {
		.sequence = fuzz_number(bytes),
		.drive_count = (uint32_t)fuzz_number(bytes) % (SPW_LAYOUT_DRIVES_MAX + 2),
		.drive_index = (uint32_t)fuzz_number(bytes),
		.logical_block_bytes = 512u << fuzz_byte(bytes) % 12,
		.block_bytes = 2048u << fuzz_byte(bytes) % 12,
		.chunk_bytes = UINT64_C(32768) << fuzz_byte(bytes) % 13,
		.partition_count = (uint32_t)fuzz_number(bytes),
		.complete = how & 1,
		.created_unix_s = fuzz_number(bytes),
	};

	(void)spw_layout__plan(&sb, (1 + fuzz_number(bytes)) << fuzz_byte(bytes) % 64);
	memset(sb.store_uuid, 0xab, sizeof(sb.store_uuid));
	for (unsigned i = 0; i < sb.drive_count && i < SPW_LAYOUT_DRIVES_MAX; i++)
		memset(sb.drive_uuids[i], 1 + (int)i, sizeof(sb.drive_uuids[i]));
	if (how & 2)
		memset(sb.drive_uuids[fuzz_byte(bytes) % SPW_LAYOUT_DRIVES_MAX], fuzz_byte(bytes),
		       16);
	if (how & 4)
		sb.features_incompatible = fuzz_number(bytes);
	if (how & 8)
		sb.device_bytes = fuzz_number(bytes) << fuzz_byte(bytes) % 64;
	if (how & 16)
		sb.data_offset_bytes = fuzz_number(bytes) << fuzz_byte(bytes) % 64;
	if (how & 32)
		sb.partition_bytes = fuzz_number(bytes) << fuzz_byte(bytes) % 64;
	if (how & 64)
		sb.block_bytes = (uint32_t)fuzz_number(bytes);
	if (how & 128)
		sb.chunk_bytes = fuzz_number(bytes);
	spw_layout__encode(&sb, copy, block);
}

/*
 * The first byte says which copy, whether the checksum is made right (no fuzzer finds that by
 * itself), and whether the rest is numbers.
 */
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct spw_superblock copies[2];
	uint8_t block[SPW_SUPERBLOCK_BYTES] = {0};
	uint64_t checksum;
	int results[2];
	bool accepted;

	if (size == 0)
		return 0;
	if (data[0] & 4)
		encode_any(&(struct fuzz_bytes){data + 1, size - 1}, data[0] & 1, block);
	else
		memcpy(block, data + 1, size - 1 < sizeof(block) ? size - 1 : sizeof(block));
	if (data[0] & 2) {
		checksum = XXH3_64bits(block, CHECKSUM_OFFSET);
		for (unsigned i = 0; i < 8; i++)
			block[CHECKSUM_OFFSET + i] = (uint8_t)(checksum >> 8 * i);
	}
	accepted = decode(block, data[0] & 1, &copies[0]);
	results[0] = accepted ? 0 : -EUCLEAN;
	/* In the other place it is misplaced. */
	FUZZ_REQUIRE(!decode(block, !(data[0] & 1), &copies[1]) || !accepted);
	results[1] = -EMEDIUMTYPE;
	FUZZ_REQUIRE(spw_layout__choose_copy(copies, results) == (accepted ? 0 : -EUCLEAN));
	return 0;
}
