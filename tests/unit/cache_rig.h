/* SPDX-License-Identifier: MIT */
/*
 * tests/unit/cache_rig.h - one cache over a fake store, storages to offer, and short words for what
 * tests do with them
 */
#ifndef SPW_TEST_CACHE_RIG_H
#define SPW_TEST_CACHE_RIG_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include <spillway/cache.h>

#include "tensor/internal.h"
#include "tests/unit/cache_fake.h"

/* One cache over one fake store, with small limits, and what its log said. */
struct rig {
	struct spw_store *store;
	struct spw_cache *cache;
	struct spw_cache_opts opts;
	uint64_t next_key; /* of forward_of_model() */
	unsigned logged;
	char log_text[512];
};

static inline void rig_log(void *context, enum spw_log_level level, const char *message)
{
	struct rig *rig = context;
	struct spw_cache_stats stats;

	(void)level;
	rig->logged++;
	(void)snprintf(rig->log_text, sizeof(rig->log_text), "%s", message);
	/* The contract: a log function may call the cache. */
	if (rig->cache)
		spw_cache_stats(rig->cache, &stats, sizeof(stats));
}

static inline void rig_begin(struct rig *rig)
{
	*rig = (struct rig){.store = fake_open()};
	spw_cache_opts_init(&rig->opts, sizeof(rig->opts));
	rig->opts.mode = SPW_CACHE_SPILL;
	rig->opts.min_bytes = 16;
	rig->opts.tensors_max = 64;
	rig->opts.log = (struct spw_log){.write = rig_log, .context = rig};
}

static inline void rig_open(struct rig *rig)
{
	assert_int_equal(fake_open_cache(rig->store, &rig->opts, &rig->cache), 0);
	rig->cache->hold_bytes = 0; /* each write is with the store at once, for the test to see */
}

static inline void rig_default(struct rig *rig)
{
	rig_begin(rig);
	rig_open(rig);
}

static inline struct spw_cache_stats rig_stats(struct rig *rig)
{
	struct spw_cache_stats stats;

	spw_cache_stats(rig->cache, &stats, sizeof(stats));
	return stats;
}

/* Nothing is left anywhere. */
static inline void rig_end(struct rig *rig)
{
	struct spw_cache_stats stats = rig_stats(rig);

	assert_int_equal(stats.entries, 0);
	assert_int_equal(stats.activation_bytes, 0);
	assert_int_equal(stats.staging_bytes, 0);
	assert_int_equal(stats.prefetched_bytes, 0);
	spw_cache_close(rig->cache);
	simstore_close(rig->store);
}

/* A storage and its offer; the token is the key. */
struct piece {
	uint64_t key;
	uint8_t *bytes;
	size_t len;
	spw_tensor tensor;
};

static inline uint8_t pattern(uint64_t key, size_t i)
{
	return (uint8_t)(key * 131 + i * 7 + (i >> 8));
}

static inline struct piece piece_make(uint64_t key, size_t len)
{
	struct piece piece = {.key = key, .bytes = malloc(len), .len = len};

	assert_non_null(piece.bytes);
	for (size_t i = 0; i < len; i++)
		piece.bytes[i] = pattern(key, i);
	return piece;
}

static inline int offer_range(struct rig *rig, const struct piece *piece, uint64_t version,
			      uint64_t offset, uint64_t len, uint64_t owner, spw_tensor *tensor)
{
	struct spw_offer offer = {
		.storage_key = piece->key,
		.storage_version = version,
		.storage_bytes = piece->bytes,
		.storage_len_bytes = piece->len,
		.offset_bytes = offset,
		.len_bytes = len,
		.owner = owner,
	};

	return spw_cache_offer(rig->cache, &offer, tensor);
}

static inline int offer(struct rig *rig, struct piece *piece)
{
	return offer_range(rig, piece, 0, 0, piece->len, piece->key, &piece->tensor);
}

static inline struct piece offered(struct rig *rig, uint64_t key, size_t len, int result)
{
	struct piece piece = piece_make(key, len);

	assert_int_equal(offer(rig, &piece), result);
	assert_int_not_equal(piece.tensor.value, 0);
	return piece;
}

/* The token comes back: the memory is destroyed and freed. */
static inline void drained(struct rig *rig, struct piece *piece)
{
	uint64_t owner = 0;

	assert_int_equal(spw_cache_drain(rig->cache, &owner, 1), 1);
	assert_int_equal(owner, piece->key);
	memset(piece->bytes, 0xdd, piece->len);
	free(piece->bytes);
	piece->bytes = NULL;
}

static inline void nothing_drained(struct rig *rig)
{
	uint64_t owner;

	assert_int_equal(spw_cache_drain(rig->cache, &owner, 1), 0);
}

/* Written, and the memory given back. */
static inline struct piece stored(struct rig *rig, uint64_t key, size_t len)
{
	struct piece piece = offered(rig, key, len, SPW_OFFER_SPILL);

	fake_end_oldest(rig->store, FAKE_WRITE, 0);
	drained(rig, &piece);
	return piece;
}

static inline void taken_from_owner(struct rig *rig, const struct piece *piece)
{
	struct spw_taken taken;

	assert_int_equal(spw_cache_take(rig->cache, piece->tensor, 0, piece->len, &taken), 0);
	assert_null(taken.bytes);
	assert_int_equal(taken.owner, piece->key);
	assert_int_equal(taken.lease, 0);
}

static inline uint64_t taken_from_lease(struct rig *rig, const struct piece *piece)
{
	struct spw_taken taken;

	assert_int_equal(spw_cache_take(rig->cache, piece->tensor, 0, piece->len, &taken), 0);
	assert_non_null(taken.bytes);
	assert_int_equal(taken.owner, 0);
	assert_int_not_equal(taken.lease, 0);
	assert_int_equal(taken.storage_bytes_before, 0);
	assert_int_equal(taken.storage_bytes_total, piece->len);
	for (size_t i = 0; i < piece->len; i++)
		assert_int_equal(((const uint8_t *)taken.bytes)[i], pattern(piece->key, i));
	return taken.lease;
}

static inline void released(struct rig *rig, const struct piece *piece)
{
	assert_int_equal(spw_cache_release(rig->cache, piece->tensor), 0);
}

static inline void taken_and_gone(struct rig *rig, const struct piece *piece)
{
	uint64_t lease = taken_from_lease(rig, piece);

	released(rig, piece);
	spw_cache_return(rig->cache, lease);
}

#endif
