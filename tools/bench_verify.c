/* SPDX-License-Identifier: MIT */
/* tools/bench_verify.c - blocks that prove where, when and by whom they were written */
#include "tools/bench.h"

#include <errno.h>
#include <string.h>

#include <xxhash.h>

#include "util/util.h"

#define UNIT_MAGIC UINT64_C(0x6b636f6c62777073)

/* At the start of every unit. The checksum covers the rest of the unit, then the header up to itself. */
struct unit_header {
	uint64_t magic;
	uint64_t offset_bytes;
	uint64_t seed;
	uint64_t generation;
	uint64_t unit_bytes;
	uint64_t checksum;
};

_Static_assert(sizeof(struct unit_header) == 48, "a header fits the smallest unit, with payload left");

static uint64_t checksum(const char *unit, size_t unit_bytes)
{
	XXH64_hash_t payload = XXH3_64bits(unit + sizeof(struct unit_header), unit_bytes - sizeof(struct unit_header));

	return XXH3_64bits_withSeed(unit, offsetof(struct unit_header, checksum), payload);
}

static void fill_payload(char *payload, size_t len, uint64_t key)
{
	struct bench_random random = {.state = key};
	uint64_t word = 0;

	for (size_t at = 0; at < len; at += sizeof(word)) {
		word = bench_random_next(&random);
		memcpy(payload + at, &word, len - at < sizeof(word) ? len - at : sizeof(word));
	}
}

void bench_verify_fill(void *buf, size_t len, size_t unit_bytes, uint64_t offset_bytes, uint64_t seed,
		       uint64_t generation)
{
	for (size_t at = 0; at < len; at += unit_bytes) {
		char *unit = (char *)buf + at;
		struct unit_header header = {
			.magic = UNIT_MAGIC,
			.offset_bytes = offset_bytes + at,
			.seed = seed,
			.generation = generation,
			.unit_bytes = unit_bytes,
		};

		fill_payload(unit + sizeof(header), unit_bytes - sizeof(header),
			     bench_mix(seed ^ generation, offset_bytes + at));
		memcpy(unit, &header, sizeof(header));
		header.checksum = checksum(unit, unit_bytes);
		memcpy(unit, &header, sizeof(header));
	}
}

static int check_unit(const char *unit, size_t unit_bytes, uint64_t offset_bytes, uint64_t seed, uint64_t generation,
		      const char *path)
{
	struct unit_header header;

	memcpy(&header, unit, sizeof(header));
	if (header.magic != UNIT_MAGIC)
		return spw_error(-EBADMSG, "%s: verify: byte %ju: this block was not written by a verify job", path,
				 (uintmax_t)offset_bytes);
	if (header.unit_bytes != unit_bytes)
		return spw_error(-EBADMSG,
				 "%s: verify: byte %ju: written in blocks of %ju bytes, read in blocks of %zu", path,
				 (uintmax_t)offset_bytes, (uintmax_t)header.unit_bytes, unit_bytes);
	if (header.checksum != checksum(unit, unit_bytes))
		return spw_error(-EBADMSG, "%s: verify: byte %ju: the checksum is wrong: the block is torn or damaged",
				 path, (uintmax_t)offset_bytes);
	if (header.offset_bytes != offset_bytes)
		return spw_error(-EBADMSG, "%s: verify: byte %ju holds the block that was written to byte %ju", path,
				 (uintmax_t)offset_bytes, (uintmax_t)header.offset_bytes);
	if (header.seed != seed || (generation != BENCH_GENERATION_ANY && header.generation != generation))
		return spw_error(-EBADMSG, "%s: verify: byte %ju holds an older block: the last write to it was lost",
				 path, (uintmax_t)offset_bytes);
	return 0;
}

int bench_verify_check(const void *buf, size_t len, size_t unit_bytes, uint64_t offset_bytes, uint64_t seed,
		       uint64_t generation, const char *path)
{
	int result = 0;

	for (size_t at = 0; at < len && result == 0; at += unit_bytes)
		result = check_unit((const char *)buf + at, unit_bytes, offset_bytes + at, seed, generation, path);
	return result;
}
