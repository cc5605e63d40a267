/* SPDX-License-Identifier: MIT */
/*
 * tests/unit/nvme_tags.h - protection information of type 1, as a drive makes, keeps and checks it
 *
 * Eight bytes for each block: a checksum (guard), an application tag and a reference tag, which is
 * the low half of the block's number. An application tag of all ones switches the checks off: so
 * blocks are before they are written.
 */
#ifndef SPW_TESTS_NVME_TAGS_H
#define SPW_TESTS_NVME_TAGS_H

#include <stdint.h>
#include <string.h>

/* Dword 12. */
#define TAGS_PRACT           (1u << 29)
#define TAGS_CHECK_GUARD     (1u << 28)
#define TAGS_CHECK_REFERENCE (1u << 26)
#define TAGS_CHECKS          (7u << 26)

enum tags_op { TAGS_READ, TAGS_WRITE, TAGS_ZEROES };

struct block_tags {
	uint16_t guard, application;
	uint32_t reference;
};

/* CRC-16/T10-DIF */
static inline uint16_t tags_guard(const char *bytes, size_t len)
{
	uint16_t crc = 0;

	for (size_t i = 0; i < len; i++) {
		crc ^= (uint16_t)((uint8_t)bytes[i] << 8);
		for (unsigned bit = 0; bit < 8; bit++)
			crc = (uint16_t)(crc << 1 ^ (crc & 0x8000 ? 0x8bb7 : 0));
	}
	return crc;
}

static inline void tags_forget(struct block_tags *tags, uint64_t blocks)
{
	memset(tags, 0xff, blocks * sizeof(*tags));
}

static inline uint16_t tags_check(const struct block_tags *tags, uint32_t cdw12, uint32_t expected,
				  const char *block, size_t block_bytes)
{
	if (tags->application == 0xffff)
		return 0;
	if (cdw12 & TAGS_CHECK_GUARD && tags->guard != tags_guard(block, block_bytes))
		return 0x4282;
	return cdw12 & TAGS_CHECK_REFERENCE && tags->reference != expected ? 0x4284 : 0;
}

/*
 * What becomes of a command for @count blocks from @first on: @tags are all of the drive's, @bytes
 * the blocks' as they are stored, after a write. Return: its status.
 */
static inline uint16_t tags_obey(struct block_tags *tags, enum tags_op op, uint32_t cdw12,
				 uint32_t cdw14, uint64_t first, uint64_t count, const char *bytes,
				 size_t block_bytes)
{
	uint16_t status = 0;

	/* Who has the controller make none hands over eight bytes for each block. */
	if (!(cdw12 & TAGS_PRACT))
		return 0x4002;
	if ((op == TAGS_ZEROES && cdw12 & TAGS_CHECKS) || cdw14 != (uint32_t)first)
		return 0x4181;
	for (uint64_t i = 0; i < count && status == 0; i++, bytes += block_bytes) {
		struct block_tags *of = &tags[first + i];
		uint32_t reference = cdw14 + (uint32_t)i;

		if (op == TAGS_READ)
			status = tags_check(of, cdw12, reference, bytes, block_bytes);
		else
			*of = (struct block_tags){.guard = tags_guard(bytes, block_bytes),
						  .reference = reference};
	}
	return status;
}

#endif
