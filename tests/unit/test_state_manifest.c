/* SPDX-License-Identifier: MIT */
/*
 * tests/unit/test_state_manifest.c - the record of a state: golden bytes, round trip, every damaged
 * byte, every length, every impossible field
 */
/* link: util state/manifest */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include <xxhash.h>

#include <spillway/state.h>

#include "state/manifest.h"
#include "tests/case.h"
#include "util/util.h"

#define MANIFEST_BYTES 0x88u

/* The example of docs/FORMAT.md, made by another program than ours, from the document alone. */
static const uint8_t golden[] = {
	0x53, 0x50, 0x57, 0x53, 0x54, 0x41, 0x54, 0x45, 0x01, 0x00, 0x00, 0x00, 0x30, 0x00,
	0x00, 0x00, 0x88, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x03, 0x00, 0x00, 0x00,
	0x00, 0x00, 0x00, 0x00, 0x02, 0x00, 0x00, 0x00, 0x01, 0x00, 0x00, 0x00, 0x00, 0x00,
	0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x02, 0x00, 0x00, 0x00, 0x00,
	0x00, 0x00, 0x00, 0x00, 0x06, 0x00, 0x00, 0x00, 0x0a, 0x00, 0x00, 0x00, 0x00, 0x00,
	0x00, 0x00, 0x74, 0x69, 0x6c, 0x65, 0x20, 0x30, 0x66, 0x6c, 0x6f, 0x61, 0x74, 0x33,
	0x32, 0x3a, 0x38, 0x4d, 0x00, 0x10, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x01, 0x00,
	0x00, 0x00, 0x06, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00,
	0x74, 0x69, 0x6c, 0x65, 0x20, 0x31, 0x00, 0x00, 0x61, 0x62, 0x63, 0x00, 0x00, 0x00,
	0x00, 0x00, 0x64, 0xe8, 0x1c, 0x5c, 0x00, 0xb7, 0x36, 0xb0,
};

static const struct spw_state_entry entries[] = {
	{.name = "tile 0",
	 .name_len = 6,
	 .shape = (const uint8_t *)"float32:8M",
	 .shape_len = 10,
	 .len_bytes = 32u << 20},
	{.name = "tile 1", .name_len = 6, .object = 1, .len_bytes = 4096},
};

static uint8_t bytes[MANIFEST_BYTES];

static int encode(void **state)
{
	const struct spw_state_manifest manifest = {
		.records = 2, .objects = 1, .extra = (const uint8_t *)"abc", .extra_len = 3};
	uint8_t *at;

	(void)state;
	memset(bytes, 0xEE, sizeof(bytes));
	assert_int_equal(spw_state__manifest_bytes(3) + spw_state__entry_bytes(6, 10) +
				 spw_state__entry_bytes(6, 0),
			 sizeof(bytes));
	at = spw_state__manifest_begin(bytes, sizeof(bytes), &manifest);
	for (size_t i = 0; i < SPW_ARRAY_LEN(entries); i++)
		at = spw_state__manifest_add(at, &entries[i]);
	spw_state__manifest_end(at, bytes, sizeof(bytes), &manifest);
	return 0;
}

#define MANIFEST_CASE(name) CASE_WITH(name, encode, NULL)

static int decode(const uint8_t *from, size_t len, const char **why)
{
	static const struct spw_state_manifest zero;
	struct spw_state_manifest manifest;
	/* Of its own: what is read behind the end shows. */
	uint8_t *copy = malloc(len + 1);
	int rc;

	assert_non_null(copy);
	memcpy(copy, from, len);
	rc = spw_state__manifest_decode(copy, len, &manifest, why);
	assert_int_equal(rc == 0, *why == NULL);
	if (rc)
		assert_memory_equal(&manifest, &zero, sizeof(zero));
	free(copy);
	return rc;
}

static void sign(size_t len)
{
	uint64_t checksum = XXH3_64bits(bytes, len - sizeof(checksum));

	memcpy(bytes + len - sizeof(checksum), &checksum, sizeof(checksum));
}

/* With a right checksum it is refused for what it says. */
static void refuse(int error, const char *words)
{
	const char *why;

	sign(sizeof(bytes));
	assert_int_equal(decode(bytes, sizeof(bytes), &why), error);
	assert_non_null(strstr(why, words));
	(void)encode(NULL);
}

static void set32(size_t at, uint32_t value)
{
	memcpy(bytes + at, &value, sizeof(value));
}

static void set64(size_t at, uint64_t value)
{
	memcpy(bytes + at, &value, sizeof(value));
}

MANIFEST_CASE(test_the_bytes_are_those_of_the_document)
{
	assert_int_equal(sizeof(golden), sizeof(bytes));
	assert_memory_equal(bytes, golden, sizeof(bytes));
}

MANIFEST_CASE(test_what_is_encoded_is_decoded)
{
	struct spw_state_manifest manifest;
	struct spw_state_entry entry;
	const char *why;

	assert_int_equal(spw_state__manifest_decode(bytes, sizeof(bytes), &manifest, &why), 0);
	assert_int_equal(manifest.records, 2);
	assert_int_equal(manifest.objects, 1);
	assert_int_equal(manifest.extra_len, 3);
	assert_memory_equal(manifest.extra, "abc", 3);
	for (size_t i = 0; i < SPW_ARRAY_LEN(entries); i++) {
		assert_true(spw_state__manifest_next(&manifest, &entry));
		assert_int_equal(entry.len_bytes, entries[i].len_bytes);
		assert_int_equal(entry.object, entries[i].object);
		assert_int_equal(entry.name_len, entries[i].name_len);
		assert_memory_equal(entry.name, entries[i].name, entry.name_len);
		assert_int_equal(entry.shape_len, entries[i].shape_len);
		if (entry.shape_len > 0)
			assert_memory_equal(entry.shape, entries[i].shape, entry.shape_len);
	}
	assert_false(spw_state__manifest_next(&manifest, &entry));
}

/* MANIFEST-1 */
MANIFEST_CASE(test_every_damaged_bit_is_refused)
{
	const char *why;

	for (size_t i = 0; i < 8 * sizeof(bytes); i++) {
		bytes[i / 8] ^= (uint8_t)(1u << i % 8);
		assert_int_equal(decode(bytes, sizeof(bytes), &why),
				 i / 8 < 8 ? -EMEDIUMTYPE : -EUCLEAN);
		bytes[i / 8] ^= (uint8_t)(1u << i % 8);
	}
	assert_int_equal(decode(bytes, sizeof(bytes), &why), 0);
}

/* MANIFEST-2: cut off anywhere, also where the checksum is right. */
MANIFEST_CASE(test_every_other_length_is_refused)
{
	const char *why;

	for (size_t len = 0; len < sizeof(bytes); len++) {
		assert_true(decode(bytes, len, &why) < 0);
		if (len < 8 + sizeof(uint64_t))
			continue;
		sign(len);
		assert_true(decode(bytes, len, &why) < 0);
		(void)encode(NULL);
	}
}

MANIFEST_CASE(test_a_newer_version_is_told_apart)
{
	set32(0x08, 2);
	refuse(-EPROTONOSUPPORT, "newer");
	set32(0x08, 0);
	refuse(-EUCLEAN, "version is 0");
}

/* MANIFEST-2 */
MANIFEST_CASE(test_lengths_that_do_not_fit_are_refused)
{
	set32(0x0c, 56);
	refuse(-EUCLEAN, "header");
	set64(0x10, sizeof(bytes) + 8);
	refuse(-EUCLEAN, "another length");
	set64(0x18, 11);
	refuse(-EUCLEAN, "do not fill");
	set64(0x18, 0);
	refuse(-EUCLEAN, "do not fill");
	set64(0x18, UINT64_MAX);
	refuse(-EUCLEAN, "do not fill");
	set32(0x20, 1);
	refuse(-EUCLEAN, "number of objects");
	set32(0x20, 3);
	refuse(-EUCLEAN, "ends before its last record");
	set32(0x30 + 0x10, 10 + 64);
	refuse(-EUCLEAN, "ends inside a record");
}

/* MANIFEST-3 */
MANIFEST_CASE(test_fields_beyond_their_range_are_refused)
{
	set32(0x20, 0);
	refuse(-EUCLEAN, "no records");
	set32(0x20, SPW_STATE_RECORDS_MAX + 1);
	refuse(-EUCLEAN, "too many");
	set32(0x30 + 0x0c, 0);
	refuse(-EUCLEAN, "name is empty");
	set32(0x30 + 0x0c, SPW_STATE_NAME_BYTES_MAX + 1);
	refuse(-EUCLEAN, "too long");
	set32(0x30 + 0x10, SPW_STATE_SHAPE_BYTES_MAX + 1);
	refuse(-EUCLEAN, "shape is too long");
	set64(0x30, 0);
	refuse(-EUCLEAN, "no bytes");
	bytes[0x30 + 0x18 + 3] = 0;
	refuse(-EUCLEAN, "zero byte");
}

/* MANIFEST-4 */
MANIFEST_CASE(test_objects_out_of_order_are_refused)
{
	set32(0x24, 3);
	refuse(-EUCLEAN, "more objects than records");
	set32(0x24, 2);
	refuse(-EUCLEAN, "another number of objects");
	set32(0x24, 0);
	refuse(-EUCLEAN, "another number of objects");
	set32(0x58 + 0x08, 2);
	refuse(-EUCLEAN, "not in order");
	set32(0x30 + 0x08, 1); /* twice */
	refuse(-EUCLEAN, "not in order");
}

/* MANIFEST-5 */
MANIFEST_CASE(test_reserved_bytes_are_zero)
{
	static const size_t places[] = {0x28, 0x2f, 0x44, 0x6c, 0x76, 0x77, 0x7b, 0x7f};

	for (size_t i = 0; i < SPW_ARRAY_LEN(places); i++) {
		bytes[places[i]] = 1;
		refuse(-EUCLEAN, "reserved");
	}
}

RUN_CASES(NULL, NULL)
