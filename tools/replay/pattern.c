/* SPDX-License-Identifier: MIT */
/* tools/replay/pattern.c - fill and compare the tensors of a replay */
#include "tools/replay/pattern.h"

#include <string.h>

#define STRIDE UINT64_C(0x9e3779b97f4a7c15)

uint64_t replay_pattern_seed(uint64_t key)
{
	key ^= key >> 30;
	key *= UINT64_C(0xbf58476d1ce4e5b9);
	key ^= key >> 27;
	return key * UINT64_C(0x94d049bb133111eb) + 1;
}

static uint64_t word_at(uint64_t seed, uint64_t index)
{
	return (seed + index) * STRIDE;
}

static uint8_t byte_at(uint64_t seed, uint64_t offset)
{
	uint64_t word = word_at(seed, offset / 8);
	uint8_t bytes[8];

	memcpy(bytes, &word, sizeof(bytes));
	return bytes[offset % 8];
}

void replay_pattern_fill(uint8_t *bytes, uint64_t len_bytes, uint64_t seed)
{
	uint64_t words = len_bytes / 8;

	for (uint64_t i = 0; i < words; i++) {
		uint64_t word = word_at(seed, i);

		memcpy(bytes + 8 * i, &word, 8);
	}
	for (uint64_t offset = 8 * words; offset < len_bytes; offset++)
		bytes[offset] = byte_at(seed, offset);
}

bool replay_pattern_matches(const uint8_t *bytes, uint64_t offset_bytes, uint64_t len_bytes,
			    uint64_t seed)
{
	uint64_t done = 0, differs = 0;

	for (; done < len_bytes && (offset_bytes + done) % 8 != 0; done++)
		differs |= (uint64_t)(bytes[done] ^ byte_at(seed, offset_bytes + done));
	for (; len_bytes - done >= 8; done += 8) {
		uint64_t word;

		memcpy(&word, bytes + done, 8);
		differs |= word ^ word_at(seed, (offset_bytes + done) / 8);
	}
	for (; done < len_bytes; done++)
		differs |= (uint64_t)(bytes[done] ^ byte_at(seed, offset_bytes + done));
	return differs == 0;
}
