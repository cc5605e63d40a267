/* SPDX-License-Identifier: MIT */
/*
 * tests/unit/test_commit.c - commit blocks and manifests: golden bytes, round trip, every damaged
 * bit and every impossible field
 */
/* link: util layout */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include <xxhash.h>

#include "layout/commit.h"
#include "tests/case.h"
#include "util/util.h"

#define CHECKSUM_OFFSET 0xff8

struct line {
	size_t at;
	const char *bytes;
};

/* The examples of docs/FORMAT.md, made by another program than ours, from the document alone. */
static const struct line golden_block[] = {
	{0x000, "53 50 57 43 4f 4d 49 54 01 00 00 00 01 00 00 00"},
	{0x010, "10 11 12 13 14 15 16 17 18 19 1a 1b 1c 1d 1e 1f"},
	{0x020, "01 00 00 00 01 00 00 00 06 00 00 00 00 00 00 00"},
	{0x030, "e8 03 00 00 00 00 00 00 84 03 00 00 00 00 00 00"},
	{0x040, "88 13 00 00 00 00 00 00 02 00 00 00 00 00 00 00"},
	{0x080, "34 12 00 00 00 00 00 00 88 77 66 55 44 33 22 11"},
	{0x090, "00 10 00 00 01 00 00 00 77 00 00 00 00 00 00 00"},
	{0x0a0, "00 ff ee dd cc bb aa 99 88 03 00 00 00 00 00 00"},
	{0xff0, "00 00 00 00 00 00 00 00 bc 1b 4a 06 47 75 50 20"},
};

static const struct line golden_manifest[] = {
	{0x00, "53 50 57 4d 41 4e 49 46 01 00 00 00 01 00 00 00"},
	{0x10, "10 11 12 13 14 15 16 17 18 19 1a 1b 1c 1d 1e 1f"},
	{0x20, "01 00 00 00 00 00 00 00 06 00 00 00 00 00 00 00"},
	{0x30, "e8 03 00 00 00 00 00 00 02 00 00 00 00 00 00 00"},
	{0x40, "03 00 00 00 00 00 00 00 64 10 00 00 00 00 00 00"},
	{0x50, "02 00 00 00 00 00 00 00 05 00 00 00 00 00 00 00"},
	{0x60, "08 07 06 05 04 03 02 01 00 10 00 00 00 00 00 00"},
	{0x70, "09 00 00 00 00 00 00 00 18 17 16 15 14 13 12 11"},
	{0x80, "64 00 00 00 01 00 00 00 61 62 63 00 00 00 00 00"},
};
#define MANIFEST_BYTES 0x8b

static const struct spw_commit_place place = {
	.store_uuid = {0x10, 0x11, 0x12, 0x13, 0x14, 0x15, 0x16, 0x17, 0x18, 0x19, 0x1a, 0x1b, 0x1c,
		       0x1d, 0x1e, 0x1f},
	.partition = 1,
	.drive_count = 2,
	.block_bytes = 4096,
	.chunk_bytes = 65536,
};

static const struct spw_commit a_commit = {
	.slot = 1,
	.sequence = 6,
	.number = 1000,
	.has_previous = true,
	.previous = 900,
	.manifest_bytes = 5000,
	.piece_count = 2,
	.pieces = {{0x1234, 0x1122334455667788, 4096, 1}, {0x77, 0x99aabbccddeeff00, 904, 0}},
};

static const struct spw_commit_object an_object = {.len_bytes = 4196, .pieces = 2};
static const struct spw_commit_piece its_pieces[] = {{5, 0x0102030405060708, 4096, 0},
						     {9, 0x1112131415161718, 100, 1}};
static const struct spw_manifest a_manifest = {
	.sequence = 6,
	.number = 1000,
	.object_count = 1,
	.piece_count = 2,
	.record_bytes = 3,
	.objects = &an_object,
	.pieces = its_pieces,
	.record = (const uint8_t *)"abc",
};

static void fill(uint8_t *bytes, size_t len, const struct line *lines, size_t count)
{
	memset(bytes, 0, len);
	for (size_t i = 0; i < count; i++)
		for (unsigned j = 0; j < 16 && lines[i].at + j < len; j++)
			bytes[lines[i].at + j] =
				(uint8_t)strtoul(lines[i].bytes + 3 * (size_t)j, NULL, 16);
}

static void make_block(uint8_t block[SPW_COMMIT_BLOCK_BYTES])
{
	fill(block, SPW_COMMIT_BLOCK_BYTES, golden_block, SPW_ARRAY_LEN(golden_block));
}

/* Aligned, as an allocation is, and of exact length, so that a sanitizer sees what lies beyond. */
static uint8_t *make_manifest(void)
{
	uint8_t *bytes = malloc(MANIFEST_BYTES);

	assert_non_null(bytes);
	fill(bytes, MANIFEST_BYTES, golden_manifest, SPW_ARRAY_LEN(golden_manifest));
	return bytes;
}

static void seal(uint8_t block[SPW_COMMIT_BLOCK_BYTES])
{
	uint64_t checksum = XXH3_64bits(block, CHECKSUM_OFFSET);

	memcpy(block + CHECKSUM_OFFSET, &checksum, sizeof(checksum));
}

/* ---- The block ---- */

CASE(test_golden_block)
{
	uint8_t wanted[SPW_COMMIT_BLOCK_BYTES], block[SPW_COMMIT_BLOCK_BYTES];
	struct spw_commit commit;
	const char *why = "unset";

	make_block(wanted);
	spw_layout__commit_encode(&a_commit, &place, block);
	assert_memory_equal(block, wanted, sizeof(block));
	assert_int_equal(spw_layout__commit_decode(wanted, &place, 1, &commit, &why), 0);
	assert_null(why);
	assert_memory_equal(&commit, &a_commit, sizeof(commit));
}

CASE(test_largest_block)
{
	struct spw_commit full = a_commit, commit;
	uint8_t block[SPW_COMMIT_BLOCK_BYTES];
	const char *why;

	full.has_previous = false;
	full.previous = 0;
	full.sequence = SPW_COMMIT_SEQUENCE_MAX;
	full.number = UINT64_MAX >> 1;
	full.piece_count = SPW_COMMIT_PIECES_MAX;
	full.manifest_bytes = 0;
	for (unsigned i = 0; i < SPW_COMMIT_PIECES_MAX; i++) {
		full.pieces[i] = (struct spw_commit_piece){UINT64_MAX - i, i, 65536, i % 2};
		full.manifest_bytes += 65536;
	}
	spw_layout__commit_encode(&full, &place, block);
	assert_int_equal(spw_layout__commit_decode(block, &place, 1, &commit, &why), 0);
	assert_memory_equal(&commit, &full, sizeof(commit));
}

CASE(test_every_flipped_bit_is_found)
{
	uint8_t block[SPW_COMMIT_BLOCK_BYTES];
	struct spw_commit commit;
	const char *why;

	make_block(block);
	for (size_t bit = 0; bit < 8 * sizeof(block); bit++) {
		int rc;

		block[bit / 8] ^= (uint8_t)(1 << bit % 8);
		rc = spw_layout__commit_decode(block, &place, 1, &commit, &why);
		assert_int_equal(rc, bit < 64 ? -EMEDIUMTYPE : -EUCLEAN);
		assert_non_null(why);
		block[bit / 8] ^= (uint8_t)(1 << bit % 8);
	}
}

/* With a checksum that is right: it was written so. */
static const struct {
	const char *invariant;
	size_t offset, len;
	uint64_t value;
	int error;
} impossible_fields[] = {
	{"version 0", 0x08, 4, 0, -EUCLEAN},
	{"a newer version", 0x08, 4, 3, -EPROTONOSUPPORT},
	{"COMMIT-8 version 2 without members", 0x08, 4, 2, -EUCLEAN},
	{"COMMIT-8 members in version 1", 0x50, 8, 3, -EUCLEAN},
	{"an unknown flag", 0x0c, 4, 5, -EUCLEAN},
	{"COMMIT-8 pairs in version 1", 0x0c, 4, 3, -EUCLEAN},
	{"COMMIT-2 another store", 0x1f, 1, 0, -EMEDIUMTYPE},
	{"COMMIT-2 another partition", 0x20, 4, 0, -EUCLEAN},
	{"COMMIT-2 another slot", 0x24, 4, 0, -EUCLEAN},
	{"COMMIT-3 sequence 0", 0x28, 8, 0, -EUCLEAN},
	{"COMMIT-3 sequence too high", 0x28, 8, SPW_COMMIT_SEQUENCE_MAX + 1, -EUCLEAN},
	{"COMMIT-3 number too high", 0x30, 8, UINT64_C(1) << 63, -EUCLEAN},
	{"COMMIT-3 number not above the previous", 0x38, 8, 1000, -EUCLEAN},
	{"COMMIT-3 a previous that is not one", 0x0c, 4, 0, -EUCLEAN},
	{"COMMIT-4 no drive", 0x94, 4, 2, -EUCLEAN},
	{"COMMIT-4 empty", 0x90, 4, 0, -EUCLEAN},
	{"COMMIT-4 longer than a chunk", 0x90, 4, 65536 + 4096, -EUCLEAN},
	{"COMMIT-4 ends within a block", 0x90, 4, 4095, -EUCLEAN},
	{"COMMIT-5 shorter than the manifest", 0x90, 4, 8192, -EUCLEAN},
	{"COMMIT-5 manifest longer than its pieces", 0x40, 8, 5001, -EUCLEAN},
	{"COMMIT-5 no pieces", 0x48, 4, 0, -EUCLEAN},
	{"COMMIT-5 fewer pieces than there are", 0x48, 4, 1, -EUCLEAN},
	{"COMMIT-5 too many pieces", 0x48, 4, SPW_COMMIT_PIECES_MAX + 1, -EUCLEAN},
	{"COMMIT-5 far too many pieces", 0x48, 4, UINT32_MAX, -EUCLEAN},
	{"COMMIT-5 first reserved byte", 0x4c, 1, 1, -EUCLEAN},
	{"COMMIT-5 last reserved byte", 0x7f, 1, 1, -EUCLEAN},
	{"COMMIT-5 behind the pieces", 0xb0, 1, 1, -EUCLEAN},
	{"COMMIT-5 the last piece", 0xff7, 1, 1, -EUCLEAN},
};

CASE(test_every_impossible_field_is_refused)
{
	for (size_t i = 0; i < SPW_ARRAY_LEN(impossible_fields); i++) {
		uint8_t block[SPW_COMMIT_BLOCK_BYTES];
		struct spw_commit commit, none = {0};
		const char *why = NULL;
		int rc;

		make_block(block);
		memcpy(block + impossible_fields[i].offset, &impossible_fields[i].value,
		       impossible_fields[i].len);
		seal(block);
		rc = spw_layout__commit_decode(block, &place, 1, &commit, &why);
		if (rc != impossible_fields[i].error || !why)
			fail_msg("%s: %d (%s)", impossible_fields[i].invariant, rc,
				 why ? why : "no reason");
		assert_memory_equal(&commit, &none, sizeof(none));
	}
}

/* ---- With two copies ---- */

/* The other example of docs/FORMAT.md: a mirrored commit whose manifest has one copy. */
static const struct line golden_mirror[] = {
	{0x000, "53 50 57 43 4f 4d 49 54 02 00 00 00 02 00 00 00"},
	{0x010, "10 11 12 13 14 15 16 17 18 19 1a 1b 1c 1d 1e 1f"},
	{0x020, "01 00 00 00 01 00 00 00 07 00 00 00 01 00 00 00"},
	{0x030, "e9 03 00 00 00 00 00 00 00 00 00 00 00 00 00 00"},
	{0x040, "d0 00 00 00 00 00 00 00 02 00 00 00 00 00 00 00"},
	{0x050, "02 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00"},
	{0x080, "34 12 00 00 00 00 00 00 88 77 66 55 44 33 22 11"},
	{0x090, "d0 00 00 00 01 00 00 00 00 00 00 00 00 00 00 00"},
	{0x0a0, "88 77 66 55 44 33 22 11 d0 00 00 00 ff ff ff ff"},
	{0xff0, "00 00 00 00 00 00 00 00 43 94 1a dd bd 5a 73 ca"},
};

static const struct spw_commit a_mirrored_commit = {
	.slot = 1,
	.sequence = (UINT64_C(1) << 32) + 7,
	.number = 1001,
	.manifest_bytes = 208,
	.members = 2,
	.mirrored = true,
	.piece_count = 2,
	.pieces = {{0x1234, 0x1122334455667788, 208, 1},
		   {0, 0x1122334455667788, 208, SPW_COMMIT_NO_DRIVE}},
};

CASE(test_golden_mirror)
{
	uint8_t wanted[SPW_COMMIT_BLOCK_BYTES], block[SPW_COMMIT_BLOCK_BYTES];
	struct spw_commit commit;
	const char *why = "unset";

	fill(wanted, sizeof(wanted), golden_mirror, SPW_ARRAY_LEN(golden_mirror));
	spw_layout__commit_encode(&a_mirrored_commit, &place, block);
	assert_memory_equal(block, wanted, sizeof(block));
	assert_int_equal(spw_layout__commit_decode(wanted, &place, 1, &commit, &why), 0);
	assert_null(why);
	assert_memory_equal(&commit, &a_mirrored_commit, sizeof(commit));
}

/* COMMIT-8: with as many drives as can be, each bit is one. */
CASE(test_all_drives_are_members)
{
	struct spw_commit commit, all = a_mirrored_commit;
	uint8_t block[SPW_COMMIT_BLOCK_BYTES];
	struct spw_commit_place many = place;
	const char *why;

	many.drive_count = 64;
	all.members = UINT64_MAX;
	spw_layout__commit_encode(&all, &many, block);
	assert_int_equal(spw_layout__commit_decode(block, &many, 1, &commit, &why), 0);
	assert_true(commit.members == UINT64_MAX);
	many.drive_count = 63;
	assert_int_equal(spw_layout__commit_decode(block, &many, 1, &commit, &why), -EUCLEAN);
}

static const struct {
	const char *invariant;
	size_t offset, len;
	uint64_t value;
} impossible_mirrors[] = {
	{"COMMIT-8 no members", 0x50, 8, 0},
	{"COMMIT-8 a member that the store has not", 0x50, 8, 4},
	{"COMMIT-8 half a pair", 0x48, 4, 1},
	{"COMMIT-4 copies of other lengths", 0xa8, 4, 207},
	{"COMMIT-4 copies of other bytes", 0xa0, 1, 0},
	{"COMMIT-4 both on one drive", 0xac, 4, 1},
	{"COMMIT-4 a drive that the store has not", 0xac, 4, 2},
	{"COMMIT-4 the first on none", 0x94, 4, UINT32_MAX},
	{"COMMIT-4 on none, and at a place", 0x98, 8, 1},
	{"COMMIT-5 as long as both copies", 0x40, 8, 416},
	{"COMMIT-5 first reserved byte", 0x58, 1, 1},
};

CASE(test_every_impossible_mirror_is_refused)
{
	for (size_t i = 0; i < SPW_ARRAY_LEN(impossible_mirrors); i++) {
		uint8_t block[SPW_COMMIT_BLOCK_BYTES];
		struct spw_commit commit;
		const char *why = NULL;

		fill(block, sizeof(block), golden_mirror, SPW_ARRAY_LEN(golden_mirror));
		memcpy(block + impossible_mirrors[i].offset, &impossible_mirrors[i].value,
		       impossible_mirrors[i].len);
		seal(block);
		if (spw_layout__commit_decode(block, &place, 1, &commit, &why) != -EUCLEAN || !why)
			fail_msg("%s: %s", impossible_mirrors[i].invariant, why ? why : "accepted");
	}
}

/* ---- The manifest ---- */

static int decode(const uint8_t *bytes, size_t len, struct spw_manifest *manifest)
{
	struct spw_commit commit = a_commit;
	const char *why = NULL;
	int rc;

	commit.manifest_bytes = MANIFEST_BYTES;
	rc = spw_layout__manifest_decode(bytes, len, &place, &commit, manifest, &why);
	assert_true(rc == 0 ? !why : why != NULL);
	return rc;
}

CASE(test_golden_manifest)
{
	uint8_t *wanted = make_manifest(), bytes[MANIFEST_BYTES];
	struct spw_manifest manifest;

	assert_int_equal(spw_layout__manifest_bytes(&a_manifest), MANIFEST_BYTES);
	spw_layout__manifest_encode(&a_manifest, &place, bytes);
	assert_memory_equal(bytes, wanted, sizeof(bytes));
	assert_int_equal(decode(wanted, MANIFEST_BYTES, &manifest), 0);
	assert_true(manifest.object_count == 1 && manifest.piece_count == 2 &&
		    manifest.record_bytes == 3 && manifest.number == 1000);
	assert_memory_equal(manifest.objects, &an_object, sizeof(an_object));
	assert_memory_equal(manifest.pieces, its_pieces, sizeof(its_pieces));
	assert_memory_equal(manifest.record, "abc", 3);
	free(wanted);
}

CASE(test_empty_manifest)
{
	struct spw_manifest empty = {.sequence = 6, .number = 1000}, manifest;
	struct spw_commit commit = a_commit;
	uint8_t *bytes = malloc(spw_layout__manifest_bytes(&empty));
	const char *why;

	assert_non_null(bytes);
	commit.manifest_bytes = spw_layout__manifest_bytes(&empty);
	spw_layout__manifest_encode(&empty, &place, bytes);
	assert_int_equal(spw_layout__manifest_decode(bytes, commit.manifest_bytes, &place, &commit,
						     &manifest, &why),
			 0);
	assert_true(manifest.object_count == 0 && manifest.record_bytes == 0);
	free(bytes);
}

CASE(test_every_length_is_checked)
{
	struct spw_commit commit = a_commit;
	struct spw_manifest manifest;
	const char *why;

	for (size_t len = 0; len < MANIFEST_BYTES; len++) {
		uint8_t *whole = make_manifest(), *bytes = malloc(len > 0 ? len : 1);

		assert_non_null(bytes);
		memcpy(bytes, whole, len);
		commit.manifest_bytes = len;
		assert_int_equal(
			spw_layout__manifest_decode(bytes, len, &place, &commit, &manifest, &why),
			-EUCLEAN);
		assert_int_equal(decode(bytes, len, &manifest), -EUCLEAN);
		free(bytes);
		free(whole);
	}
}

/* Its checksum is the commit block's. All but the places and sums of pieces and the record. */
static const struct {
	const char *invariant;
	size_t offset, len;
	uint64_t value;
} impossible_manifests[] = {
	{"COMMIT-6 magic", 0x00, 1, 0},
	{"COMMIT-6 version", 0x08, 4, 3},
	{"COMMIT-8 not the block's version", 0x08, 4, 2},
	{"COMMIT-6 another store", 0x10, 1, 0},
	{"COMMIT-6 another partition", 0x20, 4, 0},
	{"COMMIT-6 reserved", 0x24, 4, 1},
	{"COMMIT-6 another sequence", 0x28, 8, 5},
	{"COMMIT-6 another number", 0x30, 8, 999},
	{"COMMIT-7 no object", 0x0c, 4, 0},
	{"COMMIT-7 more objects", 0x0c, 4, 2},
	{"COMMIT-7 2^32-1 objects", 0x0c, 4, UINT32_MAX},
	{"COMMIT-7 one piece", 0x38, 8, 1},
	{"COMMIT-7 2^64-1 pieces", 0x38, 8, UINT64_MAX},
	{"COMMIT-7 pieces that overflow", 0x38, 8, UINT64_MAX / 24 + 3},
	{"COMMIT-7 record", 0x40, 8, 4},
	{"COMMIT-7 record of 2^64-1", 0x40, 8, UINT64_MAX},
	{"COMMIT-7 object of no bytes", 0x48, 8, 0},
	{"COMMIT-7 object longer than its pieces", 0x48, 8, 4197},
	{"COMMIT-7 object with fewer pieces", 0x50, 4, 1},
	{"COMMIT-7 object with more pieces", 0x50, 4, 3},
	{"COMMIT-8 mirrored in version 1", 0x54, 4, 1},
	{"COMMIT-4 ends within a block", 0x68, 4, 4095},
	{"COMMIT-4 empty", 0x68, 4, 0},
	{"COMMIT-4 too long", 0x68, 4, 65537},
	{"COMMIT-4 no drive", 0x6c, 4, 2},
};

CASE(test_every_impossible_manifest_is_refused)
{
	for (size_t i = 0; i < SPW_ARRAY_LEN(impossible_manifests); i++) {
		struct spw_manifest manifest, none = {0};
		uint8_t *bytes = make_manifest();

		memcpy(bytes + impossible_manifests[i].offset, &impossible_manifests[i].value,
		       impossible_manifests[i].len);
		if (decode(bytes, MANIFEST_BYTES, &manifest) != -EUCLEAN)
			fail_msg("%s", impossible_manifests[i].invariant);
		assert_memory_equal(&manifest, &none, sizeof(none));
		free(bytes);
	}
}

/* One object of each kind: the pieces of the mirrored one come in pairs. */
CASE(test_mirrored_manifest)
{
	static const struct spw_commit_object objects[] = {
		{.len_bytes = 4196, .pieces = 4, .mirrored = 1}, {.len_bytes = 5, .pieces = 1}};
	static const struct spw_commit_piece pieces[] = {{5, 1, 4096, 0},
							 {9, 1, 4096, 1},
							 {0, 2, 100, 1},
							 {0, 2, 100, SPW_COMMIT_NO_DRIVE},
							 {7, 3, 5, 1}};
	struct spw_manifest manifest = {.sequence = (UINT64_C(1) << 32) + 7,
					.number = 1001,
					.object_count = 2,
					.piece_count = SPW_ARRAY_LEN(pieces),
					.mirrors = true,
					.objects = objects,
					.pieces = pieces};
	struct spw_commit commit = a_mirrored_commit;
	struct spw_manifest decoded;
	uint8_t *bytes = malloc(spw_layout__manifest_bytes(&manifest));
	const char *why;

	assert_non_null(bytes);
	commit.manifest_bytes = spw_layout__manifest_bytes(&manifest);
	spw_layout__manifest_encode(&manifest, &place, bytes);
	assert_int_equal(spw_layout__manifest_decode(bytes, commit.manifest_bytes, &place, &commit,
						     &decoded, &why),
			 0);
	assert_true(decoded.mirrors && decoded.object_count == 2);
	assert_memory_equal(decoded.pieces, pieces, sizeof(pieces));
	/* A block of version 1 has no such manifest, and nothing is mirrored twice. */
	commit.members = 0;
	assert_int_equal(spw_layout__manifest_decode(bytes, commit.manifest_bytes, &place, &commit,
						     &decoded, &why),
			 -EUCLEAN);
	commit.members = 2;
	bytes[0x48 + 12] = 2;
	assert_int_equal(spw_layout__manifest_decode(bytes, commit.manifest_bytes, &place, &commit,
						     &decoded, &why),
			 -EUCLEAN);
	bytes[0x48 + 12] = 1;
	bytes[0x48 + 8] = 3; /* a pair and a half */
	assert_int_equal(spw_layout__manifest_decode(bytes, commit.manifest_bytes, &place, &commit,
						     &decoded, &why),
			 -EUCLEAN);
	assert_string_equal(why, "a piece has no second copy");
	free(bytes);
}

/* COMMIT-7: what takes two fields to go wrong. */
CASE(test_pieces_of_no_object_are_refused)
{
	static const struct spw_commit_object shorter = {.len_bytes = 4096, .pieces = 1};
	struct spw_manifest manifest = a_manifest, decoded;
	uint8_t *bytes = malloc(MANIFEST_BYTES);

	assert_non_null(bytes);
	manifest.objects = &shorter;
	spw_layout__manifest_encode(&manifest, &place, bytes);
	assert_int_equal(decode(bytes, MANIFEST_BYTES, &decoded), -EUCLEAN);
	free(bytes);
}

RUN_CASES(NULL, NULL)
