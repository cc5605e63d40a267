/* SPDX-License-Identifier: MIT */
/*
 * tests/unit/cache_rig.h - one cache over a fake store, storages to offer, and short words for what
 * tests do with them
 *
 * What a case leaves behind, users, leases and writes under way, is ended after it, and then every
 * owner must have got its memory back.
 */
#ifndef SPW_TEST_CACHE_RIG_H
#define SPW_TEST_CACHE_RIG_H

#include <stdio.h>

#include "tests/case.h"

#include <spillway/cache.h>

#include "tensor/internal.h"
#include "tests/unit/cache_fake.h"

/* Values in any order. */
struct bag {
	uint64_t values[8192];
	unsigned count;
};

static inline void bag_put(struct bag *bag, uint64_t value)
{
	assert_true(bag->count < SPW_ARRAY_LEN(bag->values));
	bag->values[bag->count++] = value;
}

static inline unsigned bag_find(const struct bag *bag, uint64_t value)
{
	unsigned at = 0;

	while (at < bag->count && bag->values[at] != value)
		at++;
	return at;
}

static inline bool bag_has(const struct bag *bag, uint64_t value)
{
	return bag_find(bag, value) < bag->count;
}

/* It is there, and is there once less. */
static inline void bag_take(struct bag *bag, uint64_t value)
{
	unsigned at = bag_find(bag, value);

	assert_true(at < bag->count);
	bag->values[at] = bag->values[--bag->count];
}

/* One cache over one fake store, with small limits, and what its log said. */
static struct rig {
	struct spw_store *store;
	struct spw_cache *cache;
	struct spw_cache_opts opts;
	unsigned logged;
	char log_text[512];
	/* tensors, a time for each user; tokens that the cache holds; leases; what to free */
	struct bag users, owners, leases, memory;
} rig;

static inline struct spw_cache_stats rig_stats(void)
{
	struct spw_cache_stats stats;

	spw_cache_stats(rig.cache, &stats, sizeof(stats));
	return stats;
}

/* A figure of the cache's is this one. */
#define STAT_IS(figure, value) assert_int_equal(rig_stats().figure, value)

static inline void rig_log(void *context, enum spw_log_level level, const char *message)
{
	(void)context;
	(void)level;
	rig.logged++;
	(void)snprintf(rig.log_text, sizeof(rig.log_text), "%s", message);
	/* The contract: a log function may call the cache. */
	if (rig.cache)
		(void)rig_stats();
}

static inline void rig_begin(void)
{
	memset(&rig, 0, sizeof(rig));
	rig.store = fake_open();
	spw_cache_opts_init(&rig.opts, sizeof(rig.opts));
	rig.opts.mode = SPW_CACHE_SPILL;
	rig.opts.min_bytes = 16;
	rig.opts.tensors_max = 64;
	rig.opts.log = (struct spw_log){.write = rig_log};
}

static inline void rig_open(void)
{
	assert_int_equal(fake_open_cache(rig.store, &rig.opts, &rig.cache), 0);
	rig.cache->defer_bytes = 0; /* each write is with the store at once, for the test to see */
}

static inline void rig_default(void)
{
	rig_begin();
	rig_open();
}

static inline void rig_close(void)
{
	spw_cache_close(rig.cache);
	simstore_close(rig.store);
	for (unsigned i = 0; i < rig.memory.count; i++)
		free((void *)(uintptr_t)rig.memory.values[i]);
}

/* What came back is its owners'. Return: how many. */
static inline unsigned drain_all(void)
{
	unsigned count = 0;
	uint64_t owner;

	for (; spw_cache_drain(rig.cache, &owner, 1) == 1 ||
	       spw_cache_drain_device(rig.cache, &owner, 1) == 1;
	     count++)
		bag_take(&rig.owners, owner);
	return count;
}

static inline void rig_end(void)
{
	while (rig.users.count > 0)
		assert_int_equal(
			spw_cache_release(rig.cache,
					  (spw_tensor){rig.users.values[--rig.users.count]}),
			0);
	while (rig.leases.count > 0)
		spw_cache_return(rig.cache, rig.leases.values[--rig.leases.count]);
	fake_end_all(rig.store);
	(void)drain_all();
	assert_int_equal(rig.owners.count, 0);
	STAT_IS(entries, 0);
	STAT_IS(activation_bytes, 0);
	STAT_IS(staging_bytes, 0);
	STAT_IS(prefetched_bytes, 0);
	STAT_IS(device_bytes, 0);
	STAT_IS(device_staging_bytes, 0);
	STAT_IS(host_bytes, 0);
	rig_close();
}

static inline int rig_set_up(void **state)
{
	(void)state;
	rig_begin();
	return 0;
}

static inline int rig_set_up_open(void **state)
{
	(void)state;
	rig_default();
	return 0;
}

static inline int rig_tear_down(void **state)
{
	(void)state;
	rig_end();
	return 0;
}

#define RIG_CASE(name)    CASE_WITH(name, rig_set_up_open, rig_tear_down)
#define OPENED_CASE(name) CASE_WITH(name, rig_set_up, rig_tear_down) /* sets options, and opens */

/* A storage and its offer; the token is the key. */
struct piece {
	uint64_t key;
	uint8_t *bytes;
	size_t len;
	spw_tensor tensor;
	struct spw_copy copy; /* of a device's */
};

static inline uint8_t pattern(uint64_t key, size_t i)
{
	return (uint8_t)(key * 131 + i * 7 + (i >> 8));
}

static inline struct piece piece_make(uint64_t key, size_t len)
{
	struct piece piece = {.key = key, .bytes = malloc(len), .len = len};

	assert_non_null(piece.bytes);
	bag_put(&rig.memory, (uintptr_t)piece.bytes);
	for (size_t i = 0; i < len; i++)
		piece.bytes[i] = pattern(key, i);
	return piece;
}

/* Note what came of an offer. Return: the same. */
static inline int noted(int result, spw_tensor tensor, uint64_t owner)
{
	if (result >= 0)
		bag_put(&rig.users, tensor.value);
	if (result >= 0 && result != SPW_OFFER_DEDUP && result != SPW_OFFER_COPY_AGAIN)
		bag_put(&rig.owners, owner);
	return result;
}

static inline int offer_range(const struct piece *piece, uint64_t version, uint64_t offset,
			      uint64_t len, uint64_t owner, spw_tensor *tensor)
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
	int result = spw_cache_offer(rig.cache, &offer, tensor);

	return noted(result, *tensor, owner);
}

static inline int offer(struct piece *piece)
{
	return offer_range(piece, 0, 0, piece->len, piece->key, &piece->tensor);
}

static inline struct piece offered(uint64_t key, size_t len, int result)
{
	struct piece piece = piece_make(key, len);

	assert_int_equal(offer(&piece), result);
	assert_int_not_equal(piece.tensor.value, 0);
	return piece;
}

/* The token comes back: the memory is destroyed and freed. */
static inline void drained(struct piece *piece)
{
	uint64_t owner = 0;

	assert_int_equal(spw_cache_drain(rig.cache, &owner, 1), 1);
	assert_int_equal(owner, piece->key);
	bag_take(&rig.owners, owner);
	bag_take(&rig.memory, (uintptr_t)piece->bytes);
	memset(piece->bytes, 0xdd, piece->len);
	free(piece->bytes);
	piece->bytes = NULL;
}

static inline void nothing_drained(void)
{
	uint64_t owner;

	assert_int_equal(spw_cache_drain(rig.cache, &owner, 1), 0);
}

/* Written, and the memory released. */
static inline struct piece stored(uint64_t key, size_t len)
{
	struct piece piece = offered(key, len, SPW_OFFER_SPILL);

	fake_end_oldest(rig.store, FAKE_WRITE, 0);
	drained(&piece);
	return piece;
}

static inline void taken_from_owner(const struct piece *piece)
{
	struct spw_taken taken;

	assert_int_equal(spw_cache_take(rig.cache, piece->tensor, 0, piece->len, &taken), 0);
	assert_null(taken.bytes);
	assert_int_equal(taken.owner, piece->key);
	assert_int_equal(taken.lease, 0);
}

static inline uint64_t taken_from_lease(const struct piece *piece)
{
	struct spw_taken taken;

	assert_int_equal(spw_cache_take(rig.cache, piece->tensor, 0, piece->len, &taken), 0);
	assert_non_null(taken.bytes);
	assert_int_equal(taken.owner, 0);
	assert_int_not_equal(taken.lease, 0);
	assert_int_equal(taken.storage_bytes_before, 0);
	assert_int_equal(taken.storage_bytes_total, piece->len);
	for (size_t i = 0; i < piece->len; i++)
		assert_int_equal(((const uint8_t *)taken.bytes)[i], pattern(piece->key, i));
	bag_put(&rig.leases, taken.lease);
	return taken.lease;
}

static inline void returned(uint64_t lease)
{
	bag_take(&rig.leases, lease);
	spw_cache_return(rig.cache, lease);
}

static inline void tensor_released(spw_tensor tensor)
{
	bag_take(&rig.users, tensor.value);
	assert_int_equal(spw_cache_release(rig.cache, tensor), 0);
}

static inline void released(const struct piece *piece)
{
	tensor_released(piece->tensor);
}

/* No user is left, then no owner. */
static inline void gone(struct piece *piece)
{
	released(piece);
	drained(piece);
}

static inline void taken_and_gone(const struct piece *piece)
{
	uint64_t lease = taken_from_lease(piece);

	released(piece);
	returned(lease);
}

#endif
