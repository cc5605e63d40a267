/* SPDX-License-Identifier: MIT */
/*
 * tests/unit/test_superblock.c - the superblock: round trip, golden bytes, every damaged bit and
 * every impossible field refused
 */
/* link: util layout */
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/case.h"
#include <xxhash.h>

#include "layout/superblock.h"
#include "util/util.h"

#define CHECKSUM_OFFSET 0xff8

/*
 * The golden superblock of docs/FORMAT.md: copy 1 of drive 1 of 2. Made by another program than
 * ours, from the document alone.
 */
static const struct {
	size_t at;
	const char *bytes;
} golden[] = {
	{0x000, "53 50 49 4c 4c 57 41 59 01 00 00 00 00 10 00 00"},
	{0x010, "01 00 00 00 01 00 00 00 08 07 06 05 04 03 02 01"},
	{0x020, "01 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00"},
	{0x030, "00 00 00 00 00 00 00 00 80 66 1e 69 00 00 00 00"},
	{0x040, "10 11 12 13 14 15 16 17 18 19 1a 1b 1c 1d 1e 1f"},
	{0x050, "01 00 00 00 02 00 00 00 00 10 00 00 00 02 00 00"},
	{0x060, "00 00 10 00 00 00 00 00 00 00 00 40 00 00 00 00"},
	{0x070, "00 00 10 00 00 00 00 00 00 00 f0 1f 00 00 00 00"},
	{0x080, "02 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00"},
	{0x800, "20 21 22 23 24 25 26 27 28 29 2a 2b 2c 2d 2e 2f"},
	{0x810, "30 31 32 33 34 35 36 37 38 39 3a 3b 3c 3d 3e 3f"},
	{0xff0, "00 00 00 00 00 00 00 00 23 ee 34 91 f7 2e d3 ae"},
};

static void golden_block(uint8_t block[SPW_SUPERBLOCK_BYTES])
{
	memset(block, 0, SPW_SUPERBLOCK_BYTES);
	for (size_t i = 0; i < SPW_ARRAY_LEN(golden); i++)
		for (unsigned j = 0; j < 16; j++)
			block[golden[i].at + j] =
				(uint8_t)strtoul(golden[i].bytes + 3 * (size_t)j, NULL, 16);
}

static struct spw_superblock golden_superblock(void)
{
	struct spw_superblock sb = {
		.sequence = 0x0102030405060708,
		.drive_index = 1,
		.drive_count = 2,
		.block_bytes = 4096,
		.logical_block_bytes = 512,
		.chunk_bytes = 1u << 20,
		.device_bytes = 1u << 30,
		.data_offset_bytes = 1u << 20,
		.partition_bytes = 511u << 20,
		.partition_count = 2,
		.features_incompatible = SPW_FEATURE_COMMITS,
		.complete = true,
		.created_unix_s = 1763600000,
	};

	for (unsigned i = 0; i < 16; i++) {
		sb.store_uuid[i] = (uint8_t)(0x10 + i);
		sb.drive_uuids[0][i] = (uint8_t)(0x20 + i);
		sb.drive_uuids[1][i] = (uint8_t)(0x30 + i);
	}
	return sb;
}

/* By what is written of them: the struct has padding. */
static void assert_equal_superblocks(const struct spw_superblock *a, const struct spw_superblock *b)
{
	uint8_t of_a[SPW_SUPERBLOCK_BYTES], of_b[SPW_SUPERBLOCK_BYTES];

	spw_layout__encode(a, 0, of_a);
	spw_layout__encode(b, 0, of_b);
	assert_memory_equal(of_a, of_b, sizeof(of_a));
}

/* So that a changed field meets its own check and not that of the checksum. */
static void seal(uint8_t block[SPW_SUPERBLOCK_BYTES])
{
	uint64_t checksum = XXH3_64bits(block, CHECKSUM_OFFSET);

	for (unsigned i = 0; i < 8; i++)
		block[CHECKSUM_OFFSET + i] = (uint8_t)(checksum >> (8 * i));
}

static void put_le(uint8_t *bytes, size_t len, uint64_t value)
{
	for (size_t i = 0; i < len; i++)
		bytes[i] = i < 8 ? (uint8_t)(value >> (8 * i)) : 0;
}

CASE(test_golden)
{
	struct spw_superblock sb = golden_superblock(), decoded;
	uint8_t wanted[SPW_SUPERBLOCK_BYTES], block[SPW_SUPERBLOCK_BYTES];
	const char *why = "unset";

	golden_block(wanted);
	spw_layout__encode(&sb, 1, block);
	assert_memory_equal(block, wanted, sizeof(block));
	assert_int_equal(spw_layout__decode(wanted, 1, &decoded, &why), 0);
	assert_null(why);
	assert_equal_superblocks(&decoded, &sb);
}

/* Every drive of stores of 1 to 64 drives, both copies, complete and not. */
CASE(test_round_trip)
{
	for (unsigned count = 1; count <= SPW_LAYOUT_DRIVES_MAX; count += 7) {
		for (unsigned variant = 0; variant < 4; variant++) {
			struct spw_superblock sb = golden_superblock(), decoded;
			uint8_t block[SPW_SUPERBLOCK_BYTES];

			memset(sb.drive_uuids, 0, sizeof(sb.drive_uuids));
			for (unsigned i = 0; i < count; i++)
				memset(sb.drive_uuids[i], (int)(0x80 + i), 16);
			sb.drive_count = count;
			sb.drive_index = count - 1;
			sb.complete = variant >= 2;
			sb.features_compatible = UINT64_MAX; /* unknown ones are allowed */
			/* these, too: a writer has to look at them */
			sb.features_read_only_compatible = 5;
			spw_layout__encode(&sb, variant & 1, block);
			assert_int_equal(spw_layout__decode(block, variant & 1, &decoded, NULL), 0);
			assert_equal_superblocks(&decoded, &sb);
		}
	}
}

CASE(test_every_flipped_bit_is_found)
{
	struct spw_superblock zero, decoded;
	uint8_t block[SPW_SUPERBLOCK_BYTES];

	memset(&zero, 0, sizeof(zero));
	golden_block(block);
	for (unsigned bit = 0; bit < SPW_SUPERBLOCK_BYTES * CHAR_BIT; bit++) {
		uint8_t mask = (uint8_t)(1u << (bit % CHAR_BIT));
		const char *why = NULL;
		int rc;

		block[bit / CHAR_BIT] ^= mask;
		rc = spw_layout__decode(block, 1, &decoded, &why);
		if (bit < 64)
			assert_int_equal(rc, -EMEDIUMTYPE);
		else
			assert_int_equal(rc, -EUCLEAN);
		assert_non_null(why);
		assert_memory_equal(&decoded, &zero, sizeof(zero));
		block[bit / CHAR_BIT] ^= mask;
	}
	assert_int_equal(spw_layout__decode(block, 1, &decoded, NULL), 0);
}

/*
 * What a power cut in the middle of a superblock write leaves: some 512-byte sectors new, some old.
 */
CASE(test_torn_write_is_found)
{
	struct spw_superblock sb = golden_superblock(), decoded;
	uint8_t old_block[SPW_SUPERBLOCK_BYTES], new_block[SPW_SUPERBLOCK_BYTES];

	golden_block(old_block);
	sb.sequence++;
	memset(sb.drive_uuids[0], 0x77, 16);
	spw_layout__encode(&sb, 1, new_block);
	for (unsigned sectors = 1; sectors < 255; sectors++) { /* bit n: sector n is new */
		uint8_t torn[SPW_SUPERBLOCK_BYTES];

		memcpy(torn, old_block, sizeof(torn));
		for (unsigned i = 0; i < 8; i++)
			if (sectors & (1u << i))
				memcpy(torn + i * 512, new_block + i * 512, 512);
		if (memcmp(torn, old_block, sizeof(torn)) != 0 &&
		    memcmp(torn, new_block, sizeof(torn)) != 0)
			assert_int_equal(spw_layout__decode(torn, 1, &decoded, NULL), -EUCLEAN);
	}
}

CASE(test_zeros_and_noise_are_no_superblock)
{
	struct spw_superblock decoded;
	uint8_t block[SPW_SUPERBLOCK_BYTES] = {0};
	const char *why = NULL;

	assert_int_equal(spw_layout__decode(block, 0, &decoded, &why), -EMEDIUMTYPE);
	assert_string_equal(why, "it has no magic");
	memset(block, 0xff, sizeof(block));
	assert_int_equal(spw_layout__decode(block, 0, &decoded, NULL), -EMEDIUMTYPE);
	memcpy(block, "SPILLWAY", 8);
	assert_int_equal(spw_layout__decode(block, 0, &decoded, &why), -EUCLEAN);
	assert_string_equal(why, "its checksum is wrong");
}

/* One field set to what it must not be, the checksum made right again. */
struct impossible {
	const char *invariant;
	size_t offset, len;
	uint64_t value;
	int error;
};

static const struct impossible impossible_fields[] = {
	{"LAYOUT-3 version 0", 0x08, 4, 0, -EUCLEAN},
	{"LAYOUT-3 version newer", 0x08, 4, SPW_FORMAT_VERSION + 1, -EPROTONOSUPPORT},
	{"LAYOUT-3 version much newer", 0x08, 4, UINT32_MAX, -EPROTONOSUPPORT},
	{"LAYOUT-3 header 0", 0x0c, 4, 0, -EUCLEAN},
	{"LAYOUT-3 header 8192", 0x0c, 4, 8192, -EUCLEAN},
	{"LAYOUT-4 other copy", 0x10, 4, 0, -EUCLEAN},
	{"LAYOUT-4 no copy", 0x10, 4, 2, -EUCLEAN},
	{"LAYOUT-5 flag 1", 0x14, 4, 3, -EUCLEAN},
	{"LAYOUT-5 flag 31", 0x14, 4, 0x80000001, -EUCLEAN},
	{"LAYOUT-5 first reserved byte", 0x84, 1, 1, -EUCLEAN},
	{"LAYOUT-5 last reserved byte before the UUIDs", 0x7ff, 1, 0x80, -EUCLEAN},
	{"LAYOUT-5 first reserved byte behind the UUIDs", 0xc00, 1, 1, -EUCLEAN},
	{"LAYOUT-5 last reserved byte", 0xff7, 1, 1, -EUCLEAN},
	{"LAYOUT-6 feature 1", 0x20, 8, 2, -EPROTONOSUPPORT},
	{"LAYOUT-6 feature 63", 0x20, 8, UINT64_C(1) << 63, -EPROTONOSUPPORT},
	{"LAYOUT-7 sequence 0", 0x18, 8, 0, -EUCLEAN},
	{"LAYOUT-7 sequence too high", 0x18, 8, SPW_LAYOUT_SEQUENCE_MAX + 1, -EUCLEAN},
	{"LAYOUT-8 no drives", 0x54, 4, 0, -EUCLEAN},
	{"LAYOUT-8 65 drives", 0x54, 4, 65, -EUCLEAN},
	{"LAYOUT-8 2^32-1 drives", 0x54, 4, UINT32_MAX, -EUCLEAN},
	{"LAYOUT-8 index = count", 0x50, 4, 2, -EUCLEAN},
	{"LAYOUT-9 store UUID zero", 0x40, 16, 0, -EUCLEAN},
	{"LAYOUT-9 drive 0 UUID zero", 0x800, 16, 0, -EUCLEAN},
	{"LAYOUT-9 own UUID zero", 0x810, 16, 0, -EUCLEAN},
	{"LAYOUT-9 more drives counted than named", 0x54, 4, 3, -EUCLEAN},
	{"LAYOUT-9 more drives named than counted", 0x820, 16, 1, -EUCLEAN},
	{"LAYOUT-9 last UUID slot", 0xbff, 1, 1, -EUCLEAN},
	{"LAYOUT-10 block 0", 0x58, 4, 0, -EUCLEAN},
	{"LAYOUT-10 block 2048", 0x58, 4, 2048, -EUCLEAN},
	{"LAYOUT-10 block not a power of two", 0x58, 4, 12288, -EUCLEAN},
	{"LAYOUT-10 block above chunk", 0x58, 4, 2u << 20, -EUCLEAN},
	{"LAYOUT-10 logical block 0", 0x5c, 4, 0, -EUCLEAN},
	{"LAYOUT-10 logical block 256", 0x5c, 4, 256, -EUCLEAN},
	{"LAYOUT-10 logical block 520", 0x5c, 4, 520, -EUCLEAN},
	{"LAYOUT-10 logical block above block", 0x5c, 4, 8192, -EUCLEAN},
	{"LAYOUT-10 chunk 0", 0x60, 8, 0, -EUCLEAN},
	{"LAYOUT-10 chunk 32 KiB", 0x60, 8, 32u << 10, -EUCLEAN},
	{"LAYOUT-10 chunk 128 MiB", 0x60, 8, 128u << 20, -EUCLEAN},
	{"LAYOUT-10 chunk not a power of two", 0x60, 8, 3u << 20, -EUCLEAN},
	{"LAYOUT-10 chunk 2^63", 0x60, 8, UINT64_C(1) << 63, -EUCLEAN},
	{"LAYOUT-11 device 0", 0x68, 8, 0, -EUCLEAN},
	{"LAYOUT-11 device below the minimum", 0x68, 8, SPW_LAYOUT_DEVICE_BYTES_MIN - 4096,
	 -EUCLEAN},
	{"LAYOUT-11 device not a multiple of 4096", 0x68, 8, (1u << 30) + 512, -EUCLEAN},
	{"LAYOUT-11 device 2^62 + 4096", 0x68, 8, (UINT64_C(1) << 62) + 4096, -EUCLEAN},
	{"LAYOUT-11 device 2^64 - 4096", 0x68, 8, UINT64_MAX - 4095, -EUCLEAN},
	{"LAYOUT-12 no partitions", 0x80, 4, 0, -EUCLEAN},
	{"LAYOUT-12 257 partitions", 0x80, 4, 257, -EUCLEAN},
	{"LAYOUT-12 2^32-1 partitions", 0x80, 4, UINT32_MAX, -EUCLEAN},
	{"LAYOUT-12 offset not on a block", 0x70, 8, (1u << 20) + 512, -EUCLEAN},
	{"LAYOUT-12 partition not whole blocks", 0x78, 8, (511u << 20) - 512, -EUCLEAN},
	{"LAYOUT-12 partition 0", 0x78, 8, 0, -EUCLEAN},
	{"LAYOUT-12 partition below a chunk", 0x78, 8, (1u << 20) - 4096, -EUCLEAN},
	{"LAYOUT-12 partition without room for commits", 0x78, 8, (1u << 20) + 4096, -EUCLEAN},
	{"LAYOUT-13 data in the first reserved area", 0x70, 8, 4096, -EUCLEAN},
	{"LAYOUT-13 data behind the end", 0x70, 8, 1u << 30, -EUCLEAN},
	{"LAYOUT-13 data at 2^64 - 4096", 0x70, 8, UINT64_MAX - 4095, -EUCLEAN},
	{"LAYOUT-13 data one block too far", 0x70, 8, (1u << 20) + 4096, -EUCLEAN},
	{"LAYOUT-13 partitions one block too long", 0x78, 8, (511u << 20) + 4096, -EUCLEAN},
	{"LAYOUT-13 count x bytes overflows to 0", 0x78, 8, UINT64_C(1) << 63, -EUCLEAN},
	{"LAYOUT-13 one partition too many", 0x80, 4, 3, -EUCLEAN},
};

CASE(test_every_impossible_field_is_refused)
{
	for (size_t i = 0; i < SPW_ARRAY_LEN(impossible_fields); i++) {
		const struct impossible *field = &impossible_fields[i];
		struct spw_superblock decoded;
		uint8_t block[SPW_SUPERBLOCK_BYTES];
		const char *why = NULL;
		int rc;

		golden_block(block);
		put_le(block + field->offset, field->len, field->value);
		seal(block);
		rc = spw_layout__decode(block, 1, &decoded, &why);
		if (rc != field->error || !why)
			fail_msg("%s: %d (%s), expected %d", field->invariant, rc,
				 why ? why : "no reason", field->error);
	}
}

/* What takes more than one field to go wrong. */
CASE(test_repeated_uuids_are_refused)
{
	struct spw_superblock decoded;
	uint8_t block[SPW_SUPERBLOCK_BYTES];

	golden_block(block);
	memcpy(block + 0x810, block + 0x800, 16); /* LAYOUT-9 */
	seal(block);
	assert_int_equal(spw_layout__decode(block, 1, &decoded, NULL), -EUCLEAN);
	golden_block(block);
	memcpy(block + 0x800, block + 0x40, 16);
	seal(block);
	assert_int_equal(spw_layout__decode(block, 1, &decoded, NULL), -EUCLEAN);
}

CASE(test_large_logical_blocks)
{
	struct spw_superblock sb = golden_superblock(), decoded;
	uint8_t block[SPW_SUPERBLOCK_BYTES];

	sb.block_bytes = 16384;
	sb.logical_block_bytes = 16384;
	assert_int_equal(spw_layout__plan(&sb, (1u << 30) + 4096), 0);
	assert_int_equal(sb.device_bytes, 1u << 30);
	spw_layout__encode(&sb, 0, block);
	assert_int_equal(spw_layout__decode(block, 0, &decoded, NULL), 0);
	sb.device_bytes += 4096; /* LAYOUT-11 */
	spw_layout__encode(&sb, 0, block);
	assert_int_equal(spw_layout__decode(block, 0, &decoded, NULL), -EUCLEAN);
}

/* Whatever is planned can be decoded, and the copies and partitions do not overlap. */
static void check_plan(uint64_t size, uint32_t partitions, uint64_t chunk_bytes,
		       uint32_t block_bytes)
{
	struct spw_superblock sb = golden_superblock(), decoded;
	uint8_t block[SPW_SUPERBLOCK_BYTES];
	uint64_t end, copy;

	sb.partition_count = partitions;
	sb.chunk_bytes = chunk_bytes;
	sb.block_bytes = block_bytes;
	if (spw_layout__plan(&sb, size) != 0)
		fail_msg("size %llu partitions %u chunk %llu: no plan", (unsigned long long)size,
			 partitions, (unsigned long long)chunk_bytes);
	assert_true(sb.device_bytes <= size && size - sb.device_bytes < SPW_SUPERBLOCK_BYTES);
	copy = spw_layout__copy_offset(sb.device_bytes, 1);
	end = spw_layout__partition_offset(&sb, partitions - 1) + sb.partition_bytes;
	assert_int_equal(copy + SPW_SUPERBLOCK_BYTES, sb.device_bytes);
	assert_int_equal(spw_layout__copy_offset(size, 1), copy);
	assert_true(end <= sb.device_bytes - SPW_LAYOUT_RESERVED_BYTES);
	assert_true(spw_layout__partition_offset(&sb, 0) >= SPW_LAYOUT_RESERVED_BYTES);
	/* Nothing but rounding is given away. */
	assert_true(sb.device_bytes - end <
		    SPW_LAYOUT_RESERVED_BYTES * (uint64_t)(partitions + 1) + block_bytes);
	spw_layout__encode(&sb, 0, block);
	assert_int_equal(spw_layout__decode(block, 0, &decoded, NULL), 0);
	assert_equal_superblocks(&decoded, &sb);
}

CASE(test_plan)
{
	static const uint64_t sizes[] = {
		SPW_LAYOUT_DEVICE_BYTES_MIN,
		SPW_LAYOUT_DEVICE_BYTES_MIN + 511,
		(100u << 20) + 512,
		(UINT64_C(1) << 30) - 512,
		UINT64_C(3840755982336),
		UINT64_C(1) << 50,
		SPW_LAYOUT_DEVICE_BYTES_MAX - 1,
		SPW_LAYOUT_DEVICE_BYTES_MAX,
	};

	for (size_t i = 0; i < SPW_ARRAY_LEN(sizes); i++) {
		check_plan(sizes[i], 1, 1u << 20, 4096);
		check_plan(sizes[i], 7, 1u << 20, 4096);
		check_plan(sizes[i], 100, 64u << 10, 4096);
		check_plan(sizes[i], 2, 4u << 20, 65536);
		if (sizes[i] >= (UINT64_C(1) << 29)) /* blocks larger than the reserved area */
			check_plan(sizes[i], 2, 4u << 20, 2u << 20);
		if (sizes[i] >= (UINT64_C(1) << 40))
			check_plan(sizes[i], SPW_LAYOUT_PARTITIONS_MAX, SPW_LAYOUT_CHUNK_BYTES_MAX,
				   4096);
	}
}

static void expect_plan(int expected, uint64_t size, uint32_t partitions, uint64_t chunk_bytes,
			uint32_t block_bytes)
{
	struct spw_superblock sb = golden_superblock();

	sb.partition_count = partitions;
	sb.chunk_bytes = chunk_bytes;
	sb.block_bytes = block_bytes;
	assert_int_equal(spw_layout__plan(&sb, size), expected);
}

CASE(test_plan_refuses)
{
	uint64_t size = 1u << 30;

	expect_plan(-EINVAL, size, 0, 1u << 20, 4096);
	expect_plan(-EINVAL, size, SPW_LAYOUT_PARTITIONS_MAX + 1, 1u << 20, 4096);
	expect_plan(-EINVAL, size, 1, 0, 4096);
	expect_plan(-EINVAL, size, 1, 3u << 20, 4096);
	expect_plan(-EINVAL, size, 1, 1u << 20, 1024);
	expect_plan(-EINVAL, SPW_LAYOUT_DEVICE_BYTES_MAX + 1, 1, 1u << 20, 4096);
	expect_plan(-ENOSPC, 0, 1, 1u << 20, 4096);
	expect_plan(-ENOSPC, SPW_LAYOUT_DEVICE_BYTES_MIN - 1, 1, 1u << 20, 4096);
	expect_plan(-ENOSPC, SPW_LAYOUT_DEVICE_BYTES_MIN, 1, 16u << 20, 4096);
	expect_plan(-ENOSPC, SPW_LAYOUT_DEVICE_BYTES_MIN, 15, 1u << 20, 4096);
	/* A chunk in each, and no room for commits. */
	expect_plan(-ENOSPC, SPW_LAYOUT_DEVICE_BYTES_MIN, 200, 64u << 10, 4096);
	/* Blocks so large that the first one behind the reserved area is behind the end. */
	expect_plan(-ENOSPC, SPW_LAYOUT_DEVICE_BYTES_MIN, 1, 64u << 20, 64u << 20);
}

static void expect_choice(int expected, int result0, uint64_t sequence0, int result1,
			  uint64_t sequence1)
{
	struct spw_superblock copies[2] = {golden_superblock(), golden_superblock()};
	int results[2] = {result0, result1};

	copies[0].sequence = sequence0;
	copies[1].sequence = sequence1;
	assert_int_equal(spw_layout__choose_copy(copies, results), expected);
}

CASE(test_choose)
{
	expect_choice(0, 0, 5, 0, 5);
	expect_choice(0, 0, 6, 0, 5);
	expect_choice(1, 0, 5, 0, 6);
	expect_choice(0, 0, 1, -EUCLEAN, 9);
	expect_choice(1, -EUCLEAN, 9, 0, 1);
	expect_choice(1, -EMEDIUMTYPE, 0, 0, 1);
	expect_choice(0, 0, 1, -EIO, 0);
	expect_choice(-EMEDIUMTYPE, -EMEDIUMTYPE, 0, -EMEDIUMTYPE, 0);
	expect_choice(-EUCLEAN, -EMEDIUMTYPE, 0, -EUCLEAN, 0);
	expect_choice(-EUCLEAN, -EUCLEAN, 0, -EMEDIUMTYPE, 0);
	expect_choice(-EPROTONOSUPPORT, -EUCLEAN, 0, -EPROTONOSUPPORT, 0);
	expect_choice(-EPROTONOSUPPORT, -EPROTONOSUPPORT, 0, -EIO, 0);
	expect_choice(-EIO, -EIO, 0, -EMEDIUMTYPE, 0);
	expect_choice(-EUCLEAN, -EIO, 0, -EUCLEAN, 0);
}

/*
 * LAYOUT-14: what a write of a copy, or of zeros over it, leaves at any moment is ours, byte by
 * byte, also if drives were replaced or one was added; nothing else is.
 */
CASE(test_foreign_bytes)
{
	struct spw_superblock sb = golden_superblock();
	uint8_t ours[SPW_SUPERBLOCK_BYTES], block[SPW_SUPERBLOCK_BYTES];

	spw_layout__encode(&sb, 1, ours);
	for (size_t torn = 0; torn <= sizeof(block); torn += 7) {
		sb.complete = !sb.complete;
		sb.sequence = 1 + torn;
		memset(block, 0, sizeof(block));
		memcpy(block, ours, torn);
		assert_int_equal(spw_layout__foreign(&sb, 1, block), sizeof(block));
		memcpy(block, ours, sizeof(block));
		memset(block, 0, torn);
		assert_int_equal(spw_layout__foreign(&sb, 0, block), sizeof(block));
	}
	for (size_t at = 0; at < sizeof(block); at++) {
		bool may_differ = (at >= 0x10 && at < 0x20) || at >= CHECKSUM_OFFSET ||
				  (at >= 0x54 && at < 0x58) ||
				  (at >= 0x800 && at < 0x800 + (sb.drive_count + 1) * 16);

		memcpy(block, ours, sizeof(block));
		block[at] = (uint8_t)(ours[at] == 0x77 ? 0x78 : 0x77);
		assert_int_equal(spw_layout__foreign(&sb, 1, block),
				 may_differ ? sizeof(block) : at);
	}
	/* All UUIDs may be others: a drive that was away is told of several at once. */
	memcpy(block, ours, sizeof(block));
	memset(block + 0x800, 0x77, (sb.drive_count + 1) * 16);
	assert_int_equal(spw_layout__foreign(&sb, 1, block), sizeof(block));
	/* With as many drives as there can be, there is no room for one more. */
	sb.drive_count = SPW_LAYOUT_DRIVES_MAX;
	spw_layout__encode(&sb, 1, block);
	block[0xc00] = 1;
	assert_int_equal(spw_layout__foreign(&sb, 1, block), 0xc00);
}

CASE(test_uuid_text)
{
	static const uint8_t uuid[16] = {0x0f, 0x8f, 0xad, 0x5b, 0xd9, 0xcb, 0x46, 0x9f,
					 0xa1, 0x65, 0x70, 0x86, 0x77, 0x28, 0x95, 0x0e};
	char text[SPW_LAYOUT_UUID_TEXT_BYTES];

	assert_string_equal(spw_layout__uuid_text(uuid, text),
			    "0f8fad5b-d9cb-469f-a165-70867728950e");
}

RUN_CASES(NULL, NULL)
