/* SPDX-License-Identifier: MIT */
/*
 * tests/fuzz/fuzz_state_manifest.c - any bytes as the record of a state: refused, or such that the
 * encoder would write the same, and its parts lie inside
 */
/* link: util state/manifest */
#include <errno.h>
#include <xxhash.h>

#include <spillway/state.h>

#include "state/manifest.h"
#include "tests/fuzz/fuzz.h"

static void check_entry(const struct spw_state_entry *entry, const uint8_t *bytes, size_t len)
{
	const uint8_t *name = (const uint8_t *)entry->name, *end = bytes + len;

	FUZZ_REQUIRE(entry->len_bytes > 0);
	FUZZ_REQUIRE(entry->name_len > 0 && entry->name_len <= SPW_STATE_NAME_BYTES_MAX);
	FUZZ_REQUIRE(entry->shape_len <= SPW_STATE_SHAPE_BYTES_MAX);
	FUZZ_REQUIRE(name >= bytes && entry->name_len <= (size_t)(end - name));
	FUZZ_REQUIRE(entry->shape >= bytes && entry->shape_len <= (size_t)(end - entry->shape));
	FUZZ_REQUIRE(!memchr(name, 0, entry->name_len));
}

/* What was accepted, encoded again, is the same. */
static void check_accepted(struct spw_state_manifest *manifest, const uint8_t *bytes, size_t len)
{
	uint8_t *again = malloc(len), *at;
	struct spw_state_entry entry;
	uint32_t records = 0, objects = 0;

	FUZZ_REQUIRE(again);
	at = spw_state__manifest_begin(again, len, manifest);
	while (spw_state__manifest_next(manifest, &entry)) {
		check_entry(&entry, bytes, len);
		FUZZ_REQUIRE(entry.object == 0 || entry.object == ++objects);
		FUZZ_REQUIRE(spw_state__entry_bytes(entry.name_len, entry.shape_len) <=
			     len - (size_t)(at - again));
		at = spw_state__manifest_add(at, &entry);
		records++;
	}
	spw_state__manifest_end(at, again, len, manifest);
	FUZZ_REQUIRE(memcmp(again, bytes, len) == 0);
	FUZZ_REQUIRE(records == manifest->records && objects == manifest->objects);
	free(again);
}

/* The first byte says whether the checksum is made right: no fuzzer finds that by itself. */
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	static const struct spw_state_manifest zero;
	struct spw_state_manifest manifest;
	const char *why = "";
	uint64_t checksum;
	uint8_t *bytes;
	int rc;

	if (size < 2)
		return 0;
	size--;
	bytes = malloc(size);
	FUZZ_REQUIRE(bytes);
	memcpy(bytes, data + 1, size);
	if ((data[0] & 1) && size >= sizeof(checksum)) {
		checksum = XXH3_64bits(bytes, size - sizeof(checksum));
		memcpy(bytes + size - sizeof(checksum), &checksum, sizeof(checksum));
	}
	rc = spw_state__manifest_decode(bytes, size, &manifest, &why);
	FUZZ_REQUIRE(rc == 0 || rc == -EMEDIUMTYPE || rc == -EUCLEAN || rc == -EPROTONOSUPPORT);
	FUZZ_REQUIRE((rc == 0) == (why == NULL));
	if (rc == 0)
		check_accepted(&manifest, bytes, size);
	else
		FUZZ_REQUIRE(memcmp(&manifest, &zero, sizeof(zero)) == 0);
	free(bytes);
	return 0;
}
