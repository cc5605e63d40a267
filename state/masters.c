/* SPDX-License-Identifier: MIT */
/*
 * state/masters.c - what float32 masters have beyond their bfloat16 weights: 17 bits each
 *
 * A bfloat16 number is the high half of a float32. A weight is its master rounded, so it is that
 * half, or one more where rounding went away from zero: one bit says which. The low half is kept as
 * it is. Rounding loses all bits of a NaN, but for being one: of these the high half is kept in
 * place of the low one, which is zero in every NaN that arithmetic makes of bfloat16 gradients.
 *
 * Loops are over blocks of a fixed length, so that compilers vectorize them.
 */
#include <string.h>

#include <spillway/state.h>

#include "util/checksum.h"
#include "util/util.h"

#define BLOCK    64u
#define INFINITE 0x7f80u
#define QUIET    0x40u

/* The loops are compiled once more, for the vectors that most CPUs have: in half the time. */
#define INLINE static inline __attribute__((always_inline))
#ifdef __x86_64__
#define WIDE       __attribute__((target("avx2")))
#define HAS_WIDE() __builtin_cpu_supports("avx2")
#else
#define WIDE
#define HAS_WIDE() false
#endif

/* 64 elements: @carries has 0 or 1 for each. */
INLINE void unpack_block(uint32_t *restrict masters, const uint16_t *restrict weights,
			 const uint16_t *restrict low, const uint8_t *restrict carries)
{
	for (size_t i = 0; i < BLOCK; i++) {
		uint32_t weight = weights[i], bits = low[i];
		uint32_t number = (weight - carries[i]) << 16 | bits;

		masters[i] = (weight & 0x7fff) > INFINITE ? bits << 16 : number;
	}
}

/* Return: how many are not exact, without odd NaNs, which are added to @nans. */
INLINE uint32_t pack_block(const uint32_t *restrict masters, const uint16_t *restrict weights,
			   uint16_t *restrict low, uint8_t *restrict carries, uint32_t *nans)
{
	uint32_t wrong = 0, odd = 0;

	for (size_t i = 0; i < BLOCK; i++) {
		uint32_t high = masters[i] >> 16, bits = masters[i] & 0xffff, weight = weights[i];
		uint32_t ahead = (weight - high) & 0xffff;
		uint32_t is_nan = (weight & 0x7fff) > INFINITE;
		uint32_t was_nan = (masters[i] & 0x7fffffff) > INFINITE << 16;
		uint32_t is_odd = is_nan & (bits != 0);

		low[i] = (uint16_t)(is_nan ? high | (is_odd ? QUIET : 0) : bits);
		carries[i] = (uint8_t)(is_nan ? 0 : ahead & 1);
		wrong += is_nan ? !was_nan : ahead > 1;
		odd += is_odd & was_nan;
	}
	*nans += odd;
	return wrong;
}

/* Bits of a byte to bytes of 0 or 1, and back. */
INLINE void spread(uint8_t bits, uint8_t *carries)
{
	uint64_t apart = (bits * 0x0101010101010101u) & 0x8040201008040201u;

	apart = ((apart + 0x7f7f7f7f7f7f7f7fu) >> 7) & 0x0101010101010101u;
	memcpy(carries, &apart, sizeof(apart));
}

INLINE uint8_t gather(const uint8_t *carries)
{
	uint64_t apart;

	memcpy(&apart, carries, sizeof(apart));
	return (uint8_t)((apart * 0x0102040810204080u) >> 56);
}

INLINE void unpack_blocks(uint32_t *masters, const uint16_t *weights, size_t blocks,
			  const uint16_t *low, const uint8_t *carry)
{
	for (size_t at = 0; at < blocks * BLOCK; at += BLOCK) {
		uint8_t carries[BLOCK];

		for (size_t i = 0; i < BLOCK / 8; i++)
			spread(carry[at / 8 + i], &carries[8 * i]);
		unpack_block(masters + at, weights + at, low + at, carries);
	}
}

INLINE uint64_t pack_blocks(const uint32_t *masters, const uint16_t *weights, size_t blocks,
			    uint16_t *low, uint8_t *carry, uint64_t *nans)
{
	uint64_t wrong = 0;

	for (size_t at = 0; at < blocks * BLOCK; at += BLOCK) {
		uint8_t carries[BLOCK];
		uint32_t odd = 0;

		wrong += pack_block(masters + at, weights + at, low + at, carries, &odd);
		*nans += odd;
		for (size_t i = 0; i < BLOCK / 8; i++)
			carry[at / 8 + i] = gather(&carries[8 * i]);
	}
	return wrong;
}

WIDE static void unpack_wide(uint32_t *masters, const uint16_t *weights, size_t blocks,
			     const uint16_t *low, const uint8_t *carry)
{
	unpack_blocks(masters, weights, blocks, low, carry);
}

WIDE static uint64_t pack_wide(const uint32_t *masters, const uint16_t *weights, size_t blocks,
			       uint16_t *low, uint8_t *carry, uint64_t *nans)
{
	return pack_blocks(masters, weights, blocks, low, carry, nans);
}

/* Fewer than a block, from any bit on. */
static void unpack_few(uint32_t *masters, const uint16_t *weights, size_t count,
		       const uint16_t *low, const uint8_t *carry, size_t first)
{
	uint32_t whole[BLOCK];
	uint16_t of_weights[BLOCK] = {0}, of_low[BLOCK] = {0};
	uint8_t carries[BLOCK] = {0};

	if (count == 0)
		return;
	memcpy(of_weights, weights, count * sizeof(*weights));
	memcpy(of_low, low, count * sizeof(*low));
	for (size_t i = 0; i < count; i++)
		carries[i] = carry[(first + i) / 8] >> (first + i) % 8 & 1;
	unpack_block(whole, of_weights, of_low, carries);
	memcpy(masters, whole, count * sizeof(*masters));
}

static uint32_t pack_few(const uint32_t *masters, const uint16_t *weights, size_t count,
			 uint16_t *low, uint8_t *carry, size_t first, uint32_t *nans)
{
	uint32_t whole[BLOCK] = {0}, wrong;
	uint16_t of_weights[BLOCK] = {0}, of_low[BLOCK];
	uint8_t carries[BLOCK];

	if (count == 0)
		return 0;
	memcpy(whole, masters, count * sizeof(*masters));
	memcpy(of_weights, weights, count * sizeof(*weights));
	wrong = pack_block(whole, of_weights, of_low, carries, nans);
	memcpy(low, of_low, count * sizeof(*low));
	for (size_t i = 0; i < count; i++) {
		uint8_t *byte = &carry[(first + i) / 8];
		unsigned int bit = (first + i) % 8;

		*byte = (uint8_t)((*byte & ~(1u << bit)) | (unsigned int)carries[i] << bit);
	}
	return wrong;
}

/* How many elements come before the next byte of carry bits. */
static size_t before_byte(size_t first, size_t count)
{
	return SPW_MIN((8 - first % 8) % 8, count);
}

int spw_state_masters_unpack(uint32_t *masters, const uint16_t *weights, size_t count,
			     const uint16_t *low, const uint8_t *carry, size_t first, uint64_t sum)
{
	size_t head = before_byte(first, count);
	size_t blocks = (count - head) / BLOCK, tail = head + blocks * BLOCK;
	bool same = spw_checksum(weights, count * sizeof(*weights)) == sum;

	if (!same)
		for (size_t i = 0; masters && i < count; i++)
			masters[i] = (uint32_t)weights[i] << 16;
	if (!same || !masters)
		return same;
	unpack_few(masters, weights, head, low, carry, first);
	if (HAS_WIDE())
		unpack_wide(masters + head, weights + head, blocks, low + head,
			    carry + (first + head) / 8);
	else
		unpack_blocks(masters + head, weights + head, blocks, low + head,
			      carry + (first + head) / 8);
	unpack_few(masters + tail, weights + tail, count - tail, low + tail, carry, first + tail);
	return 1;
}

uint64_t spw_state_masters_pack(const uint32_t *masters, const uint16_t *weights, size_t count,
				uint16_t *low, uint8_t *carry, size_t first, uint64_t *sum,
				uint64_t *odd_nans)
{
	size_t head = before_byte(first, count);
	size_t blocks = (count - head) / BLOCK, tail = head + blocks * BLOCK;
	uint64_t wrong, nans = 0;
	uint32_t odd = 0;

	wrong = pack_few(masters, weights, head, low, carry, first, &odd);
	if (HAS_WIDE())
		wrong += pack_wide(masters + head, weights + head, blocks, low + head,
				   carry + (first + head) / 8, &nans);
	else
		wrong += pack_blocks(masters + head, weights + head, blocks, low + head,
				     carry + (first + head) / 8, &nans);
	wrong += pack_few(masters + tail, weights + tail, count - tail, low + tail, carry,
			  first + tail, &odd);
	*sum = spw_checksum(weights, count * sizeof(*weights));
	*odd_nans = nans + odd;
	return wrong;
}
