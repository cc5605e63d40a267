/* SPDX-License-Identifier: MIT */
/* tools/bench/verify.c - fill and check blocks whose headers prove offset, generation and seed */
#include "tools/bench/bench.h"

#include <errno.h>
#include <string.h>

#include <xxhash.h>
#if defined(__x86_64__)
#include <nmmintrin.h>
#endif

#include "util/util.h"

/* "spwblock"; the kind of checksum is added to the last letter. */
#define UNIT_MAGIC UINT64_C(0x6b636f6c62777073)

static uint64_t magic_of(enum bench_verify checksum)
{
	return UNIT_MAGIC + ((uint64_t)(checksum - BENCH_VERIFY_XXH3) << 56);
}

/* The header of a unit. The checksum covers the rest of the unit, then the header before it. */
struct unit_header {
	uint64_t magic;
	uint64_t offset_bytes;
	uint64_t seed;
	uint64_t generation;
	uint64_t unit_bytes;
	uint64_t checksum;
};

_Static_assert(sizeof(struct unit_header) == 48,
	       "a header fits the smallest unit, with payload left");

/* CRC-32C four bits at a time, for processors without an instruction for it. */
static uint32_t crc32c_by_hand(uint32_t crc, const unsigned char *bytes, size_t len)
{
	/* The table of the reflected Castagnoli polynomial, 0x82f63b78. */
	static const uint32_t table[16] = {
		0x00000000, 0x105ec76f, 0x20bd8ede, 0x30e349b1, 0x417b1dbc, 0x5125dad3,
		0x61c69362, 0x7198540d, 0x82f63b78, 0x92a8fc17, 0xa24bb5a6, 0xb21572c9,
		0xc38d26c4, 0xd3d3e1ab, 0xe330a81a, 0xf36e6f75,
	};

	for (; len > 0; len--) {
		crc ^= *bytes++;
		crc = crc >> 4 ^ table[crc & 15];
		crc = crc >> 4 ^ table[crc & 15];
	}
	return crc;
}

#if defined(__x86_64__)
__attribute__((target("sse4.2"))) static uint32_t crc32c_by_processor(uint32_t crc,
								      const unsigned char *bytes,
								      size_t len)
{
	uint64_t wide = crc, word;

	for (; len >= sizeof(word); bytes += sizeof(word), len -= sizeof(word)) {
		memcpy(&word, bytes, sizeof(word));
		wide = _mm_crc32_u64(wide, word);
	}
	crc = (uint32_t)wide;
	for (; len > 0; len--)
		crc = _mm_crc32_u8(crc, *bytes++);
	return crc;
}
#endif

uint32_t bench_crc32c(uint32_t crc, const void *bytes, size_t len)
{
#if defined(__x86_64__)
	if (__builtin_cpu_supports("sse4.2"))
		return ~crc32c_by_processor(~crc, bytes, len);
#endif
	return ~crc32c_by_hand(~crc, bytes, len);
}

static uint64_t checksum(const struct bench_units *units, const char *unit)
{
	size_t header_bytes = offsetof(struct unit_header, checksum);
	size_t payload_bytes = units->unit_bytes - sizeof(struct unit_header);
	const char *payload = unit + sizeof(struct unit_header);

	if (units->checksum == BENCH_VERIFY_CRC32C)
		return bench_crc32c(bench_crc32c(0, payload, payload_bytes), unit, header_bytes);
	return XXH3_64bits_withSeed(unit, header_bytes, XXH3_64bits(payload, payload_bytes));
}

void bench_verify_fill(const struct bench_units *units, void *buf, size_t len,
		       uint64_t offset_bytes, uint64_t generation)
{
	for (size_t at = 0; at < len; at += units->unit_bytes) {
		char *unit = (char *)buf + at;
		struct unit_header header = {
			.magic = magic_of(units->checksum),
			.offset_bytes = offset_bytes + at,
			.seed = units->seed,
			.generation = generation,
			.unit_bytes = units->unit_bytes,
		};

		if (units->pattern)
			bench_pattern_fill(units->pattern, unit + sizeof(header),
					   units->unit_bytes - sizeof(header));
		else
			bench_random_fill(bench_mix(units->seed ^ generation, offset_bytes + at),
					  unit + sizeof(header),
					  units->unit_bytes - sizeof(header));
		memcpy(unit, &header, sizeof(header));
		header.checksum = checksum(units, unit);
		memcpy(unit, &header, sizeof(header));
	}
}

static int check_unit(const struct bench_units *units, const char *unit, uint64_t offset_bytes,
		      uint64_t generation, const char *path)
{
	uintmax_t at = offset_bytes;
	struct unit_header header;

	memcpy(&header, unit, sizeof(header));
	if (header.magic != magic_of(units->checksum)) {
		if (header.magic == magic_of(BENCH_VERIFY_XXH3) ||
		    header.magic == magic_of(BENCH_VERIFY_CRC32C))
			return spw_error(-EBADMSG,
					 "%s: verify: byte %ju: written with another verify=", path,
					 at);
		return spw_error(-EBADMSG,
				 "%s: verify: byte %ju: this block was not written by a verify job",
				 path, at);
	}
	if (header.unit_bytes != units->unit_bytes)
		return spw_error(-EBADMSG,
				 "%s: verify: byte %ju: written in blocks of %ju bytes, read in "
				 "blocks of %zu",
				 path, at, (uintmax_t)header.unit_bytes, units->unit_bytes);
	if (header.checksum != checksum(units, unit))
		return spw_error(
			-EBADMSG,
			"%s: verify: byte %ju: the checksum is wrong: the block is torn or damaged",
			path, at);
	if (header.offset_bytes != offset_bytes)
		return spw_error(
			-EBADMSG,
			"%s: verify: byte %ju holds the block that was written to byte %ju", path,
			at, (uintmax_t)header.offset_bytes);
	if (header.seed != units->seed ||
	    (generation != BENCH_GENERATION_ANY && header.generation != generation))
		return spw_error(
			-EBADMSG,
			"%s: verify: byte %ju holds an older block: the last write to it was lost",
			path, at);
	return 0;
}

int bench_verify_check(const struct bench_units *units, const void *buf, size_t len,
		       uint64_t offset_bytes, uint64_t generation, const char *path)
{
	int result = 0;

	for (size_t at = 0; at < len && result == 0; at += units->unit_bytes)
		result = check_unit(units, (const char *)buf + at, offset_bytes + at, generation,
				    path);
	return result;
}
