/* SPDX-License-Identifier: MIT */
/*
 * tests/fuzz/fuzz_commit.c - any bytes as a commit block and a manifest: refused, or such that the
 * encoder would write the same, and all tables lie inside
 */
/* link: util layout */
#include <errno.h>
#include <xxhash.h>

#include "layout/commit.h"
#include "tests/fuzz/fuzz.h"

static const struct spw_commit_place place = {
	.partition = 1, .drive_count = 2, .block_bytes = 4096, .chunk_bytes = 65536};

/* Return: whether it was accepted. */
static bool try_block(const uint8_t *block, bool seal, struct spw_commit *commit)
{
	uint8_t bytes[SPW_COMMIT_BLOCK_BYTES], again[SPW_COMMIT_BLOCK_BYTES];
	const size_t at = sizeof(bytes) - sizeof(uint64_t);
	const char *why = "";
	uint64_t checksum;
	int rc;

	memcpy(bytes, block, sizeof(bytes));
	checksum = XXH3_64bits(bytes, at);
	if (seal)
		memcpy(bytes + at, &checksum, sizeof(checksum));
	rc = spw_layout__commit_decode(bytes, &place, 1, commit, &why);
	FUZZ_REQUIRE(rc == 0 || rc == -EMEDIUMTYPE || rc == -EUCLEAN || rc == -EPROTONOSUPPORT);
	FUZZ_REQUIRE((rc == 0) == (why == NULL));
	if (rc)
		return false;
	spw_layout__commit_encode(commit, &place, again);
	FUZZ_REQUIRE(memcmp(again, bytes, sizeof(bytes)) == 0);
	return true;
}

static void try_manifest(const uint8_t *data, size_t size, const struct spw_commit *commit)
{
	uint8_t *bytes = malloc(size > 0 ? size : 1), *again;
	struct spw_manifest manifest;
	const char *why = "";
	int rc;

	FUZZ_REQUIRE(bytes);
	memcpy(bytes, data, size);
	rc = spw_layout__manifest_decode(bytes, size, &place, commit, &manifest, &why);
	FUZZ_REQUIRE(rc == 0 || rc == -EUCLEAN);
	FUZZ_REQUIRE((rc == 0) == (why == NULL));
	if (rc == 0) {
		FUZZ_REQUIRE(spw_layout__manifest_bytes(&manifest) == size);
		again = malloc(size);
		FUZZ_REQUIRE(again);
		spw_layout__manifest_encode(&manifest, &place, again);
		FUZZ_REQUIRE(memcmp(again, bytes, size) == 0);
		free(again);
	}
	free(bytes);
}

/*
 * The first byte says whether the block's checksum is made right. What follows the block is a
 * manifest, of the block if that was accepted, else of one that has any bytes of it.
 */
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct spw_commit commit = {.sequence = 1};
	size_t rest;

	if (size < 1 + SPW_COMMIT_BLOCK_BYTES)
		return 0;
	rest = size - 1 - SPW_COMMIT_BLOCK_BYTES;
	if (!try_block(data + 1, data[0] & 1, &commit))
		memcpy(&commit.sequence, data + 1 + 0x28, sizeof(commit.sequence));
	commit.manifest_bytes = rest;
	try_manifest(data + 1 + SPW_COMMIT_BLOCK_BYTES, rest, &commit);
	return 0;
}
