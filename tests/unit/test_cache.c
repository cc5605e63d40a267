/* SPDX-License-Identifier: MIT */
/*
 * tests/unit/test_cache.c - the tensor cache over a store that the test controls: every state, every rule, every
 * counter
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include <spillway/cache.h>

#include "tests/unit/cache_fake.h"

#define KIB 1024u

/* One cache over one fake store, with small limits, and what its log said. */
struct rig {
	struct spw_store *store;
	struct spw_cache *cache;
	struct spw_cache_opts opts;
	uint64_t next_key; /* of forward_of_model() */
	unsigned logged;
	char log_text[512];
};

static void rig_log(void *context, enum spw_log_level level, const char *message)
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

static void rig_begin(struct rig *rig)
{
	*rig = (struct rig){.store = fake_open()};
	spw_cache_opts_init(&rig->opts, sizeof(rig->opts));
	rig->opts.mode = SPW_CACHE_SPILL;
	rig->opts.min_bytes = 16;
	rig->opts.tensors_max = 64;
	rig->opts.log = (struct spw_log){.write = rig_log, .context = rig};
}

static void rig_open(struct rig *rig)
{
	assert_int_equal(spw_cache_open(rig->store, &rig->opts, &rig->cache), 0);
}

static void rig_default(struct rig *rig)
{
	rig_begin(rig);
	rig_open(rig);
}

static struct spw_cache_stats rig_stats(struct rig *rig)
{
	struct spw_cache_stats stats;

	spw_cache_stats(rig->cache, &stats, sizeof(stats));
	return stats;
}

/* Nothing is left anywhere. */
static void rig_end(struct rig *rig)
{
	struct spw_cache_stats stats = rig_stats(rig);

	assert_int_equal(stats.entries, 0);
	assert_int_equal(stats.activation_bytes, 0);
	assert_int_equal(stats.staging_bytes, 0);
	assert_int_equal(stats.prefetched_bytes, 0);
	spw_cache_close(rig->cache);
	fake_close(rig->store);
}

/* A storage and its offer; the token is the key. */
struct piece {
	uint64_t key;
	uint8_t *bytes;
	size_t len;
	spw_tensor tensor;
};

static uint8_t pattern(uint64_t key, size_t i)
{
	return (uint8_t)(key * 131 + i * 7 + (i >> 8));
}

static struct piece piece_make(uint64_t key, size_t len)
{
	struct piece piece = {.key = key, .bytes = malloc(len), .len = len};

	assert_non_null(piece.bytes);
	for (size_t i = 0; i < len; i++)
		piece.bytes[i] = pattern(key, i);
	return piece;
}

static int offer_range(struct rig *rig, const struct piece *piece, uint64_t version, uint64_t offset, uint64_t len,
		       uint64_t owner, spw_tensor *tensor)
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

static int offer(struct rig *rig, struct piece *piece)
{
	return offer_range(rig, piece, 0, 0, piece->len, piece->key, &piece->tensor);
}

static struct piece offered(struct rig *rig, uint64_t key, size_t len, int result)
{
	struct piece piece = piece_make(key, len);

	assert_int_equal(offer(rig, &piece), result);
	assert_int_not_equal(piece.tensor.value, 0);
	return piece;
}

/* The token comes back: the memory is destroyed and freed. */
static void drained(struct rig *rig, struct piece *piece)
{
	uint64_t owner = 0;

	assert_int_equal(spw_cache_drain(rig->cache, &owner, 1), 1);
	assert_int_equal(owner, piece->key);
	memset(piece->bytes, 0xdd, piece->len);
	free(piece->bytes);
	piece->bytes = NULL;
}

static void nothing_drained(struct rig *rig)
{
	uint64_t owner;

	assert_int_equal(spw_cache_drain(rig->cache, &owner, 1), 0);
}

/* Written, and the memory given back. */
static struct piece stored(struct rig *rig, uint64_t key, size_t len)
{
	struct piece piece = offered(rig, key, len, SPW_OFFER_SPILL);

	fake_end_oldest(rig->store, FAKE_WRITE, 0);
	drained(rig, &piece);
	return piece;
}

static void taken_from_owner(struct rig *rig, const struct piece *piece)
{
	struct spw_taken taken;

	assert_int_equal(spw_cache_take(rig->cache, piece->tensor, 0, piece->len, &taken), 0);
	assert_null(taken.bytes);
	assert_int_equal(taken.owner, piece->key);
	assert_int_equal(taken.lease, 0);
}

static uint64_t taken_from_lease(struct rig *rig, const struct piece *piece)
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

static void released(struct rig *rig, const struct piece *piece)
{
	assert_int_equal(spw_cache_release(rig->cache, piece->tensor), 0);
}

static void taken_and_gone(struct rig *rig, const struct piece *piece)
{
	uint64_t lease = taken_from_lease(rig, piece);

	released(rig, piece);
	spw_cache_return(rig->cache, lease);
}

/* ---- The course of an entry's life ---- */

static void test_small_is_kept(void **state)
{
	struct rig rig;
	struct piece piece;
	struct spw_cache_stats stats;

	(void)state;
	rig_default(&rig);
	piece = offered(&rig, 1, 15, SPW_OFFER_KEEP);
	taken_from_owner(&rig, &piece);
	taken_from_owner(&rig, &piece);
	stats = rig_stats(&rig);
	assert_int_equal(stats.bytes_kept_small, 15);
	assert_int_equal(stats.tensors_kept_small, 1);
	assert_int_equal(stats.activation_bytes, 15);
	assert_int_equal(stats.bytes_forwarded, 0);
	assert_int_equal(stats.takes, 2);
	nothing_drained(&rig);
	released(&rig, &piece);
	assert_int_equal(rig_stats(&rig).activation_bytes, 15); /* until the caller lets go */
	drained(&rig, &piece);
	assert_int_equal(rig.store->puts, 0);
	rig_end(&rig);
}

static void test_spill_and_read_back(void **state)
{
	struct rig rig;
	struct piece piece;
	struct spw_cache_stats stats;
	uint64_t first, second;

	(void)state;
	rig_default(&rig);
	piece = offered(&rig, 1, 4096, SPW_OFFER_SPILL);
	assert_int_equal(rig_stats(&rig).staging_bytes, 4096);
	nothing_drained(&rig);
	fake_end_oldest(rig.store, FAKE_WRITE, 0);
	stats = rig_stats(&rig);
	assert_int_equal(stats.staging_bytes, 0);
	assert_int_equal(stats.bytes_spilled, 4096);
	assert_int_equal(stats.tensors_spilled, 1);
	assert_int_equal(stats.activation_bytes, 4096); /* still in use: not drained */
	drained(&rig, &piece);
	assert_int_equal(rig_stats(&rig).activation_bytes, 0);
	first = taken_from_lease(&rig, &piece);
	second = taken_from_lease(&rig, &piece);
	stats = rig_stats(&rig);
	assert_int_equal(first, second);
	assert_int_equal(rig.store->gets, 1);
	assert_int_equal(stats.misses, 1);
	assert_int_equal(stats.bytes_read, 4096);
	assert_int_equal(stats.activation_bytes, 4096);
	assert_true(stats.stall_ns > 0);
	spw_cache_return(rig.cache, first);
	spw_cache_return(rig.cache, second);
	assert_int_equal(rig_stats(&rig).activation_bytes, 4096); /* a user is left */
	assert_int_equal(rig.store->objects_used, 1);
	released(&rig, &piece);
	assert_int_equal(rig_stats(&rig).activation_bytes_max, 4096);
	rig_end(&rig);
}

static void test_lease_outlives_entry(void **state)
{
	struct rig rig;
	struct piece piece;
	struct spw_taken taken, none;

	(void)state;
	rig_default(&rig);
	piece = stored(&rig, 1, 4096);
	assert_int_equal(spw_cache_take(rig.cache, piece.tensor, 100, 200, &taken), 0);
	assert_int_equal(taken.storage_bytes_before, 100);
	assert_int_equal(taken.storage_bytes_total, 4096);
	released(&rig, &piece);
	assert_int_equal(rig.store->objects_used, 0); /* the extents go at once */
	assert_int_equal(rig_stats(&rig).activation_bytes, 4096);
	for (size_t i = 0; i < 200; i++)
		assert_int_equal(((const uint8_t *)taken.bytes)[i], pattern(1, 100 + i));
	assert_int_equal(spw_cache_take(rig.cache, piece.tensor, 0, 1, &none), -ENOENT);
	assert_int_equal(spw_cache_release(rig.cache, piece.tensor), -ENOENT);
	spw_cache_return(rig.cache, taken.lease);
	assert_int_equal(rig.logged, 0);
	spw_cache_return(rig.cache, taken.lease);
	assert_int_equal(rig.logged, 1);
	assert_non_null(strstr(rig.log_text, "lease"));
	rig_end(&rig);
}

static void test_forward_cancels_a_queued_write(void **state)
{
	struct rig rig;
	struct piece piece;
	struct spw_cache_stats stats;

	(void)state;
	rig_default(&rig);
	piece = offered(&rig, 1, 4096, SPW_OFFER_SPILL);
	taken_from_owner(&rig, &piece);
	taken_from_owner(&rig, &piece);
	assert_int_equal(rig.store->cancels, 1);
	fake_end_oldest(rig.store, FAKE_WRITE, 0); /* with -ECANCELED */
	assert_int_equal(rig.store->objects_used, 0);
	nothing_drained(&rig);
	stats = rig_stats(&rig);
	assert_int_equal(stats.writes_cancelled, 1);
	assert_int_equal(stats.bytes_writes_cancelled, 4096);
	assert_int_equal(stats.bytes_forwarded, 4096); /* once */
	assert_int_equal(stats.tensors_forwarded, 1);
	assert_int_equal(stats.bytes_spilled, 0);
	assert_int_equal(stats.writes_failed, 0);
	assert_int_equal(stats.bytes_kept_error, 0);
	taken_from_owner(&rig, &piece);
	released(&rig, &piece);
	drained(&rig, &piece);
	assert_int_equal(rig.store->gets, 0);
	rig_end(&rig);
}

static void test_forward_from_an_issued_write(void **state)
{
	struct rig rig;
	struct piece piece;
	struct spw_cache_stats stats;

	(void)state;
	rig_default(&rig);
	piece = offered(&rig, 1, 4096, SPW_OFFER_SPILL);
	fake_issue(fake_pending(rig.store, FAKE_WRITE, 0));
	taken_from_owner(&rig, &piece);
	released(&rig, &piece);
	nothing_drained(&rig); /* the drives still read from the memory */
	fake_end_oldest(rig.store, FAKE_WRITE, 0);
	drained(&rig, &piece);
	stats = rig_stats(&rig);
	assert_int_equal(stats.writes_cancelled, 0);
	assert_int_equal(stats.bytes_forwarded, 4096);
	assert_int_equal(stats.bytes_spilled, 4096);
	rig_end(&rig);
}

static void test_forward_after_a_failing_write(void **state)
{
	struct rig rig;
	struct piece piece;

	(void)state;
	rig_default(&rig);
	piece = offered(&rig, 1, 4096, SPW_OFFER_SPILL);
	fake_issue(fake_pending(rig.store, FAKE_WRITE, 0));
	taken_from_owner(&rig, &piece);
	fake_end_oldest(rig.store, FAKE_WRITE, -EIO);
	taken_from_owner(&rig, &piece);
	assert_int_equal(rig_stats(&rig).writes_failed, 1);
	assert_int_equal(rig_stats(&rig).bytes_kept_error, 0);
	released(&rig, &piece);
	drained(&rig, &piece);
	rig_end(&rig);
}

static void test_forward_until_drained(void **state)
{
	struct rig rig;
	struct piece piece;

	(void)state;
	rig_default(&rig);
	piece = offered(&rig, 1, 4096, SPW_OFFER_SPILL);
	fake_end_oldest(rig.store, FAKE_WRITE, 0);
	taken_from_owner(&rig, &piece); /* written, but nobody has given the memory up */
	nothing_drained(&rig);
	assert_int_equal(rig.store->objects_used, 0);
	assert_int_equal(rig_stats(&rig).bytes_forwarded, 4096);
	released(&rig, &piece);
	drained(&rig, &piece);
	assert_int_equal(rig.store->gets, 0);
	rig_end(&rig);
}

static void test_failed_write_is_kept(void **state)
{
	struct rig rig;
	struct piece first, second;
	struct spw_cache_stats stats;

	(void)state;
	rig_default(&rig);
	first = offered(&rig, 1, 4096, SPW_OFFER_SPILL);
	second = offered(&rig, 2, 2048, SPW_OFFER_SPILL);
	fake_end_oldest(rig.store, FAKE_WRITE, -EIO);
	fake_end_oldest(rig.store, FAKE_WRITE, -ENOSPC);
	assert_int_equal(rig.store->objects_used, 0);
	taken_from_owner(&rig, &first);
	taken_from_owner(&rig, &second);
	stats = rig_stats(&rig);
	assert_int_equal(stats.writes_failed, 2);
	assert_int_equal(stats.bytes_kept_error, 4096);
	assert_int_equal(stats.tensors_kept_error, 1);
	assert_int_equal(stats.bytes_kept_no_space, 2048);
	assert_int_equal(stats.bytes_forwarded, 0);
	assert_int_equal(rig.logged, 2);
	nothing_drained(&rig);
	released(&rig, &first);
	drained(&rig, &first);
	released(&rig, &second);
	drained(&rig, &second);
	rig_end(&rig);
}

static void test_failed_read_is_an_error_of_that_take(void **state)
{
	struct rig rig;
	struct piece piece;
	struct spw_taken taken;

	(void)state;
	rig_default(&rig);
	piece = stored(&rig, 1, 4096);
	rig.store->wait_res = -EBADMSG;
	assert_int_equal(spw_cache_take(rig.cache, piece.tensor, 0, 4096, &taken), -EBADMSG);
	assert_string_equal(spw_last_error(), FAKE_WORDS);
	assert_null(taken.bytes);
	assert_int_equal(taken.lease, 0);
	assert_int_equal(rig_stats(&rig).reads_failed, 1);
	assert_int_equal(rig_stats(&rig).activation_bytes, 0);
	rig.store->wait_res = 0;
	taken_and_gone(&rig, &piece);
	assert_int_equal(rig_stats(&rig).misses, 2);
	rig_end(&rig);
}

static void test_release_in_every_state(void **state)
{
	struct rig rig;
	struct piece queued, issued, written, on_drive;

	(void)state;
	rig_default(&rig);
	on_drive = stored(&rig, 1, 512);
	written = offered(&rig, 2, 512, SPW_OFFER_SPILL);
	fake_end_oldest(rig.store, FAKE_WRITE, 0);
	issued = offered(&rig, 3, 512, SPW_OFFER_SPILL);
	fake_issue(fake_pending(rig.store, FAKE_WRITE, 0));
	queued = offered(&rig, 4, 512, SPW_OFFER_SPILL);
	released(&rig, &on_drive);
	released(&rig, &written);
	released(&rig, &issued);
	released(&rig, &queued);
	assert_int_equal(rig.store->objects_used, 2); /* of the two writes in flight */
	assert_int_equal(rig.store->cancels, 1);
	drained(&rig, &written);
	nothing_drained(&rig);
	fake_end_oldest(rig.store, FAKE_WRITE, 0);
	drained(&rig, &issued);
	fake_end_oldest(rig.store, FAKE_WRITE, 0);
	drained(&rig, &queued);
	assert_int_equal(rig_stats(&rig).writes_cancelled, 1);
	assert_int_equal(rig_stats(&rig).releases, 4);
	rig_end(&rig);
}

/* ---- Identity ---- */

static void test_dedup_of_views(void **state)
{
	struct rig rig;
	struct piece piece;
	struct spw_taken taken;
	struct spw_cache_stats stats;
	spw_tensor half, part, newer, other;

	(void)state;
	rig_default(&rig);
	piece = piece_make(1, 4096);
	/* At least half: the whole storage is stored, and every part of it is found. */
	assert_int_equal(offer_range(&rig, &piece, 0, 2048, 2048, 1, &half), SPW_OFFER_SPILL);
	assert_int_equal(offer_range(&rig, &piece, 0, 0, 100, 1, &part), SPW_OFFER_DEDUP);
	assert_int_equal(part.value, half.value);
	assert_int_equal(rig_stats(&rig).staging_bytes, 4096);
	/* Another version is another tensor. */
	assert_int_equal(offer_range(&rig, &piece, 1, 0, 100, 7, &newer), SPW_OFFER_SPILL);
	assert_int_not_equal(newer.value, half.value);
	/* Less than half: that part alone. What is not within it is stored by itself. */
	assert_int_equal(offer_range(&rig, &piece, 1, 10, 90, 8, &part), SPW_OFFER_DEDUP);
	assert_int_equal(offer_range(&rig, &piece, 1, 50, 100, 9, &other), SPW_OFFER_SPILL);
	assert_int_equal(rig_stats(&rig).staging_bytes, 4096 + 100 + 100);
	assert_int_equal(spw_cache_take(rig.cache, newer, 0, 101, &taken), -ERANGE);
	assert_int_equal(spw_cache_take(rig.cache, other, 49, 1, &taken), -ERANGE);
	assert_int_equal(spw_cache_take(rig.cache, other, 150, 1, &taken), -ERANGE);
	assert_int_equal(spw_cache_take(rig.cache, other, 50, 0, &taken), -ERANGE);
	assert_int_equal(spw_cache_take(rig.cache, other, 60, UINT64_MAX, &taken), -ERANGE);
	assert_int_equal(spw_cache_take(rig.cache, other, 149, 1, &taken), 0);
	assert_int_equal(taken.owner, 9);
	stats = rig_stats(&rig);
	assert_int_equal(stats.offers, 5);
	assert_int_equal(stats.bytes_offered, 2048 + 100 + 100 + 90 + 100);
	assert_int_equal(stats.bytes_deduplicated, 190);
	assert_int_equal(stats.tensors_deduplicated, 2);
	assert_int_equal(stats.entries, 3);
	/* Each offer is a user. */
	assert_int_equal(spw_cache_release(rig.cache, half), 0);
	assert_int_equal(spw_cache_take(rig.cache, half, 0, 4096, &taken), 0);
	assert_int_equal(spw_cache_release(rig.cache, half), 0);
	assert_int_equal(spw_cache_release(rig.cache, half), -ENOENT);
	assert_int_equal(spw_cache_release(rig.cache, newer), 0);
	assert_int_equal(spw_cache_release(rig.cache, part), 0);
	assert_int_equal(spw_cache_release(rig.cache, other), 0);
	fake_end_all(rig.store);
	assert_int_equal(spw_cache_drain(rig.cache, (uint64_t[8]){0}, 8), 3);
	free(piece.bytes);
	rig_end(&rig);
}

static void test_dedup_in_every_state(void **state)
{
	struct rig rig;
	struct piece piece;
	uint64_t lease;

	(void)state;
	rig_default(&rig);
	piece = offered(&rig, 1, 4096, SPW_OFFER_SPILL);
	assert_int_equal(offer(&rig, &piece), SPW_OFFER_DEDUP);
	fake_end_oldest(rig.store, FAKE_WRITE, 0);
	assert_int_equal(offer(&rig, &piece), SPW_OFFER_DEDUP);
	assert_int_equal(spw_cache_drain(rig.cache, (uint64_t[1]){0}, 1), 1);
	assert_int_equal(offer(&rig, &piece), SPW_OFFER_DEDUP);
	lease = taken_from_lease(&rig, &piece);
	assert_int_equal(offer(&rig, &piece), SPW_OFFER_DEDUP);
	for (unsigned i = 0; i < 5; i++)
		released(&rig, &piece);
	/* The last user is gone: a new entry, though the lease of the old one is still out. */
	assert_int_equal(offer(&rig, &piece), SPW_OFFER_KEEP);
	assert_int_equal(rig_stats(&rig).bytes_kept_backward, 4096);
	released(&rig, &piece);
	drained(&rig, &piece);
	spw_cache_return(rig.cache, lease);
	rig_end(&rig);
}

static void test_ids_are_not_reused(void **state)
{
	struct rig rig;
	struct piece piece;
	spw_tensor first;
	struct spw_taken taken;

	(void)state;
	rig_begin(&rig);
	rig.opts.tensors_max = 1;
	rig_open(&rig);
	piece = offered(&rig, 1, 8, SPW_OFFER_KEEP);
	first = piece.tensor;
	released(&rig, &piece);
	drained(&rig, &piece);
	piece = offered(&rig, 2, 8, SPW_OFFER_KEEP);
	assert_int_not_equal(piece.tensor.value, first.value);
	assert_int_equal(spw_cache_take(rig.cache, first, 0, 8, &taken), -ENOENT);
	assert_int_equal(spw_cache_release(rig.cache, first), -ENOENT);
	assert_int_equal(spw_cache_take(rig.cache, (spw_tensor){0}, 0, 8, &taken), -ENOENT);
	assert_int_equal(spw_cache_take(rig.cache, (spw_tensor){UINT64_MAX}, 0, 8, &taken), -ENOENT);
	released(&rig, &piece);
	drained(&rig, &piece);
	rig_end(&rig);
}

static void test_bad_arguments(void **state)
{
	struct rig rig;
	struct piece piece = piece_make(1, 64);
	struct spw_cache *cache;
	struct spw_cache_opts opts;
	spw_tensor tensor = {.value = 7};

	(void)state;
	rig_default(&rig);
	assert_int_equal(offer_range(&rig, &piece, 0, 0, 0, 1, &tensor), -EINVAL);
	assert_int_equal(tensor.value, 0);
	assert_int_equal(offer_range(&rig, &piece, 0, 0, 64, 0, &tensor), -EINVAL);
	assert_int_equal(offer_range(&rig, &piece, 0, 1, 64, 1, &tensor), -EINVAL);
	assert_int_equal(offer_range(&rig, &piece, 0, 65, 1, 1, &tensor), -EINVAL);
	assert_int_equal(offer_range(&rig, &piece, 0, 2, UINT64_MAX, 1, &tensor), -EINVAL);
	assert_int_equal(spw_cache_offer(rig.cache, NULL, &tensor), -EINVAL);
	assert_int_equal(spw_cache_take(rig.cache, tensor, 0, 1, NULL), -EINVAL);
	assert_int_equal(spw_cache_drain(rig.cache, NULL, 1), -EINVAL);
	assert_int_equal(spw_cache_drain(rig.cache, NULL, 0), 0);
	assert_int_equal(spw_cache_open(NULL, NULL, &cache), -EINVAL);
	assert_null(cache);
	spw_cache_opts_init(&opts, sizeof(opts));
	opts.tensors_max = 0;
	assert_int_equal(spw_cache_open(rig.store, &opts, &cache), -EINVAL);
	opts.tensors_max = UINT32_MAX;
	assert_int_equal(spw_cache_open(rig.store, &opts, &cache), -EINVAL);
	opts.tensors_max = 1;
	opts.mode = (enum spw_cache_mode)7;
	assert_int_equal(spw_cache_open(rig.store, &opts, &cache), -EINVAL);
	spw_cache_close(NULL);
	free(piece.bytes);
	rig_end(&rig);
}

/* Far more identities than places in the table's hash: none is taken for another. */
static void test_identities_that_collide(void **state)
{
	struct rig rig;
	struct piece pieces[64];

	(void)state;
	rig_default(&rig);
	for (unsigned i = 0; i < 32; i++) {
		pieces[i] = piece_make(1000 + i, 8);
		pieces[32 + i] = piece_make(1, 8);
		assert_int_equal(offer_range(&rig, &pieces[i], 7, 0, 8, i + 1, &pieces[i].tensor), SPW_OFFER_KEEP);
		assert_int_equal(offer_range(&rig, &pieces[32 + i], i, 0, 8, 32 + i + 1, &pieces[32 + i].tensor),
				 SPW_OFFER_KEEP);
	}
	for (unsigned i = 0; i < 64; i++) {
		struct spw_taken taken;

		assert_int_equal(spw_cache_take(rig.cache, pieces[i].tensor, 0, 8, &taken), 0);
		assert_int_equal(taken.owner, i + 1);
		released(&rig, &pieces[i]);
		free(pieces[i].bytes);
	}
	assert_int_equal(spw_cache_drain(rig.cache, (uint64_t[65]){0}, 65), 64);
	rig_end(&rig);
}

/* ---- The keep rule ---- */

static void test_refused_writes_are_kept(void **state)
{
	struct rig rig;
	struct piece pieces[3];
	static const int errors[3] = {-ENOSPC, -ENOBUFS, -EIO};
	struct spw_cache_stats stats;

	(void)state;
	rig_default(&rig);
	for (unsigned i = 0; i < 3; i++) {
		rig.store->put_error = errors[i];
		pieces[i] = offered(&rig, i + 1, 100 * (i + 1), SPW_OFFER_KEEP);
		taken_from_owner(&rig, &pieces[i]);
		/* Taking began the backward stage. */
		spw_cache_stage(rig.cache, 0, SPW_STAGE_FORWARD);
	}
	assert_int_equal(rig.logged, 3);
	stats = rig_stats(&rig);
	assert_int_equal(stats.bytes_kept_no_space, 100);
	assert_int_equal(stats.bytes_kept_backpressure, 200);
	assert_int_equal(stats.bytes_kept_error, 300);
	assert_int_equal(stats.tensors_kept_no_space, 1);
	assert_int_equal(stats.tensors_kept_backpressure, 1);
	assert_int_equal(stats.tensors_kept_error, 1);
	assert_int_equal(stats.staging_bytes_max, 0);
	for (unsigned i = 0; i < 3; i++) {
		released(&rig, &pieces[i]);
		drained(&rig, &pieces[i]);
	}
	rig_end(&rig);
}

static void test_backpressure(void **state)
{
	struct rig rig;
	struct piece fits, over, large, again;
	struct spw_cache_stats stats;

	(void)state;
	rig_begin(&rig);
	rig.opts.staging_bytes = 1000;
	rig_open(&rig);
	fits = offered(&rig, 1, 600, SPW_OFFER_SPILL);
	over = offered(&rig, 2, 401, SPW_OFFER_KEEP);
	large = offered(&rig, 3, 1001, SPW_OFFER_KEEP);
	assert_int_equal(rig.logged, 1); /* once a step */
	fake_end_oldest(rig.store, FAKE_WRITE, 0);
	again = offered(&rig, 4, 1000, SPW_OFFER_SPILL);
	stats = rig_stats(&rig);
	assert_int_equal(stats.bytes_kept_backpressure, 1402);
	assert_int_equal(stats.tensors_kept_backpressure, 2);
	assert_int_equal(stats.staging_bytes_max, 1000);
	spw_cache_step(rig.cache);
	released(&rig, &over);
	drained(&rig, &fits);
	over.key = 2;
	drained(&rig, &over);
	over = offered(&rig, 5, 401, SPW_OFFER_KEEP);
	assert_int_equal(rig.logged, 2);
	fake_end_all(rig.store);
	drained(&rig, &again);
	released(&rig, &fits);
	released(&rig, &again);
	released(&rig, &over);
	released(&rig, &large);
	drained(&rig, &over);
	drained(&rig, &large);
	rig_end(&rig);
}

static void test_entries_used_up(void **state)
{
	struct rig rig;
	struct piece one, two;

	(void)state;
	rig_begin(&rig);
	rig.opts.tensors_max = 1;
	rig_open(&rig);
	one = offered(&rig, 1, 100, SPW_OFFER_SPILL);
	two = piece_make(2, 300);
	assert_int_equal(offer(&rig, &two), -ENOBUFS);
	assert_int_equal(two.tensor.value, 0);
	assert_non_null(strstr(spw_last_error(), "tensors_max"));
	assert_int_equal(rig_stats(&rig).bytes_kept_entries, 300);
	assert_int_equal(rig_stats(&rig).tensors_kept_entries, 1);
	assert_int_equal(rig_stats(&rig).activation_bytes, 100);
	assert_int_equal(rig.logged, 1);
	free(two.bytes);
	fake_end_all(rig.store);
	drained(&rig, &one);
	released(&rig, &one);
	rig_end(&rig);
}

static void test_observe_keeps_all(void **state)
{
	struct rig rig;
	struct piece piece, small;

	(void)state;
	rig_begin(&rig);
	rig.opts.mode = SPW_CACHE_OBSERVE;
	assert_int_equal(spw_cache_open(NULL, &rig.opts, &rig.cache), 0);
	spw_cache_step(rig.cache);
	piece = offered(&rig, 1, 4096, SPW_OFFER_KEEP);
	small = offered(&rig, 2, 8, SPW_OFFER_KEEP);
	spw_cache_stage(rig.cache, 0, SPW_STAGE_BACKWARD);
	taken_from_owner(&rig, &piece);
	assert_int_equal(rig_stats(&rig).bytes_kept_observed, 4096);
	assert_int_equal(rig_stats(&rig).tensors_kept_observed, 1);
	assert_int_equal(rig_stats(&rig).bytes_kept_small, 8);
	assert_int_equal(rig_stats(&rig).activation_bytes_max, 4104);
	released(&rig, &small);
	drained(&rig, &small);
	assert_int_equal(rig_stats(&rig).activation_bytes_max, 4104);
	spw_cache_reset_peak(rig.cache);
	assert_int_equal(rig_stats(&rig).activation_bytes_max, 4096);
	released(&rig, &piece);
	drained(&rig, &piece);
	rig_end(&rig);
}

static void test_backward_offers_are_kept(void **state)
{
	struct rig rig;
	struct piece piece, other;

	(void)state;
	rig_default(&rig);
	spw_cache_stage(rig.cache, 0, SPW_STAGE_BACKWARD);
	piece = offered(&rig, 1, 100, SPW_OFFER_KEEP);
	assert_int_equal(rig_stats(&rig).bytes_kept_backward, 100);
	spw_cache_stage(rig.cache, 0, SPW_STAGE_FORWARD);
	/* Who says when the backward stage begins may take in the forward stage. */
	taken_from_owner(&rig, &piece);
	other = offered(&rig, 2, 100, SPW_OFFER_SPILL);
	released(&rig, &piece);
	released(&rig, &other);
	drained(&rig, &piece);
	fake_end_all(rig.store);
	drained(&rig, &other);
	rig_end(&rig);
}

/* ---- Scopes ---- */

#define SAME_KEYS 50 /* as @key: all scopes have this one */

/*
 * A model of scopes: outer(1), blocks, and a loss after them. Returns the tensors that were kept as bits: embedding,
 * blocks, head, loss.
 */
static unsigned forward_of_model(struct rig *rig, struct piece *pieces, unsigned blocks, uint64_t key)
{
	unsigned kept = 0, count = 0;

	spw_cache_scope_enter(rig->cache, key);
	pieces[count] = piece_make(++rig->next_key, 200);
	kept |= (unsigned)(offer(rig, &pieces[count]) == SPW_OFFER_KEEP) << count;
	count++;
	for (unsigned i = 0; i < blocks; i++, count++) {
		spw_cache_scope_enter(rig->cache, key == SAME_KEYS ? key : key + 1 + i);
		pieces[count] = piece_make(++rig->next_key, 200);
		kept |= (unsigned)(offer(rig, &pieces[count]) == SPW_OFFER_KEEP) << count;
		spw_cache_scope_leave(rig->cache);
	}
	pieces[count] = piece_make(++rig->next_key, 200);
	kept |= (unsigned)(offer(rig, &pieces[count]) == SPW_OFFER_KEEP) << count;
	count++;
	spw_cache_scope_leave(rig->cache);
	pieces[count] = piece_make(++rig->next_key, 200);
	kept |= (unsigned)(offer(rig, &pieces[count]) == SPW_OFFER_KEEP) << count;
	return kept;
}

static void backward_of_model(struct rig *rig, struct piece *pieces, unsigned blocks)
{
	for (unsigned i = blocks + 3; i-- > 0;) {
		struct spw_taken taken;

		while (fake_pending(rig->store, FAKE_READ, 0))
			fake_end_oldest(rig->store, FAKE_READ, 0);
		assert_int_equal(spw_cache_take(rig->cache, pieces[i].tensor, 0, pieces[i].len, &taken), 0);
		released(rig, &pieces[i]);
		if (taken.lease)
			spw_cache_return(rig->cache, taken.lease);
	}
	fake_end_all(rig->store);
	while (spw_cache_drain(rig->cache, (uint64_t[1]){0}, 1) == 1)
		;
	for (unsigned i = 0; i < blocks + 3; i++)
		free(pieces[i].bytes);
}

static void test_last_scope_is_kept_from_the_second_step(void **state)
{
	struct piece pieces[8];
	struct rig rig;

	(void)state;
	rig_default(&rig);
	spw_cache_step(rig.cache);
	assert_int_equal(forward_of_model(&rig, pieces, 3, 1), 0);
	backward_of_model(&rig, pieces, 3);
	/* The last block, the head, the loss. */
	spw_cache_step(rig.cache);
	assert_int_equal(forward_of_model(&rig, pieces, 3, 1), 0x38);
	assert_int_equal(rig_stats(&rig).bytes_kept_last_scope, 600);
	assert_int_equal(rig_stats(&rig).tensors_kept_last_scope, 3);
	backward_of_model(&rig, pieces, 3);
	/* Learned anew in each step, told or not. */
	spw_cache_step(rig.cache);
	assert_int_equal(forward_of_model(&rig, pieces, 3, 1), 0x38);
	spw_cache_stage(rig.cache, 0, SPW_STAGE_BACKWARD);
	backward_of_model(&rig, pieces, 3);
	/* Another model: nothing is known of it. A block more: at the same place the same scope, kept from there. */
	spw_cache_step(rig.cache);
	assert_int_equal(forward_of_model(&rig, pieces, 3, 11), 0);
	spw_cache_stage(rig.cache, 0, SPW_STAGE_BACKWARD);
	backward_of_model(&rig, pieces, 3);
	spw_cache_step(rig.cache);
	assert_int_equal(forward_of_model(&rig, pieces, 4, 11), 0x78);
	spw_cache_stage(rig.cache, 0, SPW_STAGE_BACKWARD);
	backward_of_model(&rig, pieces, 4);
	spw_cache_step(rig.cache);
	assert_int_equal(forward_of_model(&rig, pieces, 4, 11), 0x70);
	spw_cache_stage(rig.cache, 0, SPW_STAGE_BACKWARD);
	backward_of_model(&rig, pieces, 4);
	rig_end(&rig);
}

static void test_last_scope_by_place(void **state)
{
	struct piece pieces[8];
	struct rig rig;

	(void)state;
	rig_default(&rig);
	/* Only the place tells scopes of one key apart. */
	spw_cache_step(rig.cache);
	assert_int_equal(forward_of_model(&rig, pieces, 3, SAME_KEYS), 0);
	backward_of_model(&rig, pieces, 3);
	spw_cache_step(rig.cache);
	assert_int_equal(forward_of_model(&rig, pieces, 3, SAME_KEYS), 0x38);
	backward_of_model(&rig, pieces, 3);
	/* A step without scopes: nothing is known any more. */
	spw_cache_step(rig.cache);
	pieces[0] = offered(&rig, 1000, 200, SPW_OFFER_SPILL);
	spw_cache_stage(rig.cache, 0, SPW_STAGE_BACKWARD);
	taken_from_owner(&rig, &pieces[0]);
	released(&rig, &pieces[0]);
	fake_end_all(rig.store);
	drained(&rig, &pieces[0]);
	spw_cache_step(rig.cache);
	assert_int_equal(forward_of_model(&rig, pieces, 3, SAME_KEYS), 0);
	spw_cache_stage(rig.cache, 0, SPW_STAGE_BACKWARD);
	backward_of_model(&rig, pieces, 3);
	rig_end(&rig);
}

static void test_last_scope_spilled_on_request(void **state)
{
	struct piece pieces[8];
	struct rig rig;

	(void)state;
	rig_begin(&rig);
	rig.opts.spill_last_scope = true;
	rig_open(&rig);
	for (unsigned i = 0; i < 3; i++) {
		spw_cache_step(rig.cache);
		assert_int_equal(forward_of_model(&rig, pieces, 3, 1), 0);
		backward_of_model(&rig, pieces, 3);
	}
	rig_end(&rig);
}

/* Two micro-batches under way: the backward stage after the second forward stage is that of the first. */
static void test_last_scope_of_micro_batches(void **state)
{
	struct piece first[8], second[8];
	struct rig rig;

	(void)state;
	rig_default(&rig);
	for (unsigned step = 0; step < 3; step++) {
		spw_cache_step(rig.cache);
		spw_cache_stage(rig.cache, 0, SPW_STAGE_FORWARD);
		assert_int_equal(forward_of_model(&rig, first, 3, 1), 0);
		spw_cache_stage(rig.cache, 1, SPW_STAGE_FORWARD);
		assert_int_equal(forward_of_model(&rig, second, 3, 1), 0);
		spw_cache_stage(rig.cache, 0, SPW_STAGE_BACKWARD);
		backward_of_model(&rig, first, 3);
		spw_cache_stage(rig.cache, 1, SPW_STAGE_BACKWARD);
		backward_of_model(&rig, second, 3);
		assert_int_equal(rig_stats(&rig).bytes_kept_last_scope, 0);
	}
	/* One after the other: each has its own. */
	for (unsigned step = 0; step < 2; step++) {
		spw_cache_step(rig.cache);
		for (uint32_t micro_batch = 0; micro_batch < 2; micro_batch++) {
			spw_cache_stage(rig.cache, micro_batch, SPW_STAGE_FORWARD);
			assert_int_equal(forward_of_model(&rig, first, 3, 1), step ? 0x38 : 0);
			spw_cache_stage(rig.cache, micro_batch, SPW_STAGE_BACKWARD);
			backward_of_model(&rig, first, 3);
		}
	}
	rig_end(&rig);
}

static void test_scopes_too_deep_or_unbalanced(void **state)
{
	struct rig rig;
	struct piece piece;

	(void)state;
	rig_default(&rig);
	spw_cache_scope_leave(rig.cache);
	for (unsigned i = 0; i < 200; i++)
		spw_cache_scope_enter(rig.cache, i);
	piece = offered(&rig, 1, 100, SPW_OFFER_SPILL);
	for (unsigned i = 0; i < 300; i++)
		spw_cache_scope_leave(rig.cache);
	taken_from_owner(&rig, &piece);
	released(&rig, &piece);
	fake_end_all(rig.store);
	drained(&rig, &piece);
	rig_end(&rig);
}

/* ---- Reading ahead ---- */

static void test_prefetch_order_and_budget(void **state)
{
	struct rig rig;
	struct piece pieces[6];
	uint64_t leases[6];

	(void)state;
	rig_begin(&rig);
	rig.opts.prefetch_bytes = 250;
	rig_open(&rig);
	for (unsigned i = 0; i < 6; i++)
		pieces[i] = stored(&rig, i + 1, 100);
	assert_int_equal(rig.store->gets, 0);
	spw_cache_stage(rig.cache, 0, SPW_STAGE_BACKWARD);
	assert_int_equal(rig.store->gets, 2);
	assert_int_equal(rig_stats(&rig).prefetched_bytes, 200);
	assert_int_equal(rig_stats(&rig).prefetch_budget_bytes, 250);
	assert_int_equal(fake_pending(rig.store, FAKE_READ, 0)->cls, SPW_PREFETCH);
	for (unsigned i = 6; i-- > 0;) {
		/* Two ahead, and each take makes room for one more. */
		while (fake_pending(rig.store, FAKE_READ, 0))
			fake_end_oldest(rig.store, FAKE_READ, 0);
		leases[i] = taken_from_lease(&rig, &pieces[i]);
		assert_int_equal(rig.store->gets, i >= 2 ? 9 - i - 1 : 6);
	}
	assert_int_equal(rig_stats(&rig).prefetches, 6);
	assert_int_equal(rig_stats(&rig).prefetch_hits, 6);
	assert_int_equal(rig_stats(&rig).misses, 0);
	assert_int_equal(rig_stats(&rig).prefetch_late, 0);
	assert_int_equal(rig_stats(&rig).stall_ns, 0);
	assert_int_equal(rig_stats(&rig).prefetched_bytes_max, 200);
	assert_int_equal(rig_stats(&rig).activation_bytes, 600);
	for (unsigned i = 0; i < 6; i++) {
		released(&rig, &pieces[i]);
		spw_cache_return(rig.cache, leases[i]);
	}
	rig_end(&rig);
}

static void test_window_holds_back_what_is_in_memory(void **state)
{
	struct rig rig;
	struct piece far, written, issued, queued;
	struct spw_cache_stats stats;

	(void)state;
	rig_begin(&rig);
	rig.opts.prefetch_bytes = 300;
	rig_open(&rig);
	far = offered(&rig, 1, 100, SPW_OFFER_SPILL);
	written = offered(&rig, 2, 100, SPW_OFFER_SPILL);
	fake_end(fake_pending(rig.store, FAKE_WRITE, 1), 0);
	issued = offered(&rig, 3, 100, SPW_OFFER_SPILL);
	fake_issue(fake_pending(rig.store, FAKE_WRITE, 1));
	queued = offered(&rig, 4, 100, SPW_OFFER_SPILL);
	spw_cache_stage(rig.cache, 0, SPW_STAGE_BACKWARD);
	stats = rig_stats(&rig);
	assert_int_equal(stats.prefetched_bytes, 300);
	assert_int_equal(stats.prefetches, 0);
	assert_int_equal(stats.writes_cancelled, 1);
	assert_int_equal(stats.bytes_forwarded, 0); /* not taken yet */
	fake_end_all(rig.store);
	drained(&rig, &far); /* it alone was beyond the window */
	nothing_drained(&rig);
	taken_from_owner(&rig, &queued); /* makes room for the one beyond */
	assert_int_equal(rig_stats(&rig).prefetches, 1);
	fake_end_all(rig.store);
	taken_from_owner(&rig, &issued);
	taken_from_owner(&rig, &written);
	taken_and_gone(&rig, &far);
	stats = rig_stats(&rig);
	assert_int_equal(stats.bytes_forwarded, 300);
	assert_int_equal(stats.prefetch_hits, 1);
	released(&rig, &queued);
	drained(&rig, &queued);
	released(&rig, &issued);
	drained(&rig, &issued);
	released(&rig, &written);
	drained(&rig, &written);
	rig_end(&rig);
}

static void test_window_follows_the_last_offer(void **state)
{
	struct rig rig;
	struct piece first, second;

	(void)state;
	rig_begin(&rig);
	rig.opts.prefetch_bytes = 100;
	rig_open(&rig);
	first = stored(&rig, 1, 100);
	second = stored(&rig, 2, 100);
	first.bytes = second.bytes = malloc(100);
	assert_int_equal(offer(&rig, &first), SPW_OFFER_DEDUP);
	free(first.bytes);
	spw_cache_stage(rig.cache, 0, SPW_STAGE_BACKWARD);
	fake_end_all(rig.store);
	assert_int_equal(rig_stats(&rig).prefetched_bytes, 100);
	released(&rig, &first);
	taken_and_gone(&rig, &first);
	assert_int_equal(rig_stats(&rig).prefetch_hits, 1);
	fake_end_all(rig.store);
	taken_and_gone(&rig, &second);
	assert_int_equal(rig_stats(&rig).prefetch_hits, 2);
	rig_end(&rig);
}

static void test_window_of_micro_batch_and_step(void **state)
{
	struct rig rig;
	struct piece left, first, second;

	(void)state;
	rig_default(&rig);
	left = stored(&rig, 1, 100);
	spw_cache_step(rig.cache);
	spw_cache_stage(rig.cache, 0, SPW_STAGE_FORWARD);
	first = stored(&rig, 2, 100);
	spw_cache_stage(rig.cache, 1, SPW_STAGE_FORWARD);
	second = stored(&rig, 3, 100);
	spw_cache_stage(rig.cache, 0, SPW_STAGE_BACKWARD);
	assert_int_equal(rig.store->gets, 1);
	fake_end_all(rig.store);
	taken_and_gone(&rig, &first);
	assert_int_equal(rig_stats(&rig).prefetch_hits, 1);
	spw_cache_stage(rig.cache, 1, SPW_STAGE_BACKWARD);
	assert_int_equal(rig.store->gets, 2);
	fake_end_all(rig.store);
	taken_and_gone(&rig, &second);
	assert_int_equal(rig_stats(&rig).prefetch_hits, 2);
	taken_and_gone(&rig, &left);
	assert_int_equal(rig_stats(&rig).misses, 1);
	rig_end(&rig);
}

static void test_automatic_window(void **state)
{
	struct rig rig;
	struct piece pieces[5];

	(void)state;
	rig_default(&rig);
	spw_cache_step(rig.cache);
	spw_cache_scope_enter(rig.cache, 1);
	pieces[0] = stored(&rig, 1, 1000);
	spw_cache_scope_enter(rig.cache, 2);
	pieces[1] = stored(&rig, 2, 2000);
	pieces[2] = stored(&rig, 3, 2500);
	spw_cache_scope_leave(rig.cache);
	pieces[3] = stored(&rig, 4, 1000);
	spw_cache_scope_leave(rig.cache);
	spw_cache_stage(rig.cache, 0, SPW_STAGE_BACKWARD);
	assert_int_equal(rig_stats(&rig).prefetch_budget_bytes, 5000); /* twice the largest tensor is more than 4500 */
	spw_cache_step(rig.cache);
	spw_cache_stage(rig.cache, 0, SPW_STAGE_BACKWARD);
	assert_int_equal(rig_stats(&rig).prefetch_budget_bytes, 2048); /* two chunks */
	fake_end_all(rig.store);
	for (unsigned i = 4; i-- > 0;)
		taken_and_gone(&rig, &pieces[i]);
	spw_cache_step(rig.cache);
	spw_cache_scope_enter(rig.cache, 1);
	for (unsigned i = 0; i < 5; i++)
		pieces[i] = stored(&rig, i + 1, 600);
	spw_cache_scope_leave(rig.cache);
	spw_cache_stage(rig.cache, 0, SPW_STAGE_BACKWARD);
	assert_int_equal(rig_stats(&rig).prefetch_budget_bytes, 3000);
	fake_end_all(rig.store);
	for (unsigned i = 5; i-- > 0;)
		taken_and_gone(&rig, &pieces[i]);
	/* A scope that was never left ends with the step. */
	spw_cache_scope_enter(rig.cache, 1);
	spw_cache_step(rig.cache);
	for (unsigned i = 0; i < 5; i++)
		pieces[i] = stored(&rig, i + 1, 600);
	spw_cache_stage(rig.cache, 0, SPW_STAGE_BACKWARD);
	assert_int_equal(rig_stats(&rig).prefetch_budget_bytes, 2048);
	for (unsigned i = 5; i-- > 0;) {
		fake_end_all(rig.store);
		taken_and_gone(&rig, &pieces[i]);
	}
	rig_end(&rig);
}

/* The window stopped at a tensor for want of room; then that tensor goes. */
static void test_release_where_the_window_stopped(void **state)
{
	struct rig rig;
	struct piece pieces[3];

	(void)state;
	rig_begin(&rig);
	rig.opts.prefetch_bytes = 100;
	rig_open(&rig);
	for (unsigned i = 0; i < 3; i++)
		pieces[i] = stored(&rig, i + 1, 100);
	spw_cache_stage(rig.cache, 0, SPW_STAGE_BACKWARD);
	released(&rig, &pieces[1]);
	fake_end_all(rig.store);
	taken_and_gone(&rig, &pieces[2]);
	fake_end_all(rig.store);
	taken_and_gone(&rig, &pieces[0]);
	assert_int_equal(rig_stats(&rig).prefetch_hits, 2);
	rig_end(&rig);
}

/* The store's requests were used up by writes: reading ahead goes on when they end. */
static void test_window_waits_for_a_request(void **state)
{
	struct rig rig;
	struct piece small, large[2];

	(void)state;
	rig_begin(&rig);
	rig.opts.prefetch_bytes = 100;
	rig_open(&rig);
	small = stored(&rig, 1, 100);
	rig.store->requests_max = 2;
	large[0] = offered(&rig, 2, 200, SPW_OFFER_SPILL);
	large[1] = offered(&rig, 3, 200, SPW_OFFER_SPILL);
	spw_cache_stage(rig.cache, 0, SPW_STAGE_BACKWARD);
	assert_int_equal(rig_stats(&rig).prefetches, 0);
	fake_end_oldest(rig.store, FAKE_WRITE, 0);
	fake_end_oldest(rig.store, FAKE_WRITE, 0);
	assert_int_equal(rig_stats(&rig).prefetches, 1);
	fake_end_all(rig.store);
	taken_and_gone(&rig, &small);
	for (unsigned i = 0; i < 2; i++) {
		drained(&rig, &large[i]);
		released(&rig, &large[i]);
	}
	assert_int_equal(rig_stats(&rig).prefetch_hits, 1);
	rig_end(&rig);
}

static void test_larger_than_the_window(void **state)
{
	struct rig rig;
	struct piece small, large;

	(void)state;
	rig_begin(&rig);
	rig.opts.prefetch_bytes = 150;
	rig_open(&rig);
	small = stored(&rig, 1, 100);
	large = stored(&rig, 2, 200);
	spw_cache_stage(rig.cache, 0, SPW_STAGE_BACKWARD);
	assert_int_equal(rig_stats(&rig).prefetches, 1); /* past it, to the small one */
	fake_end_all(rig.store);
	taken_and_gone(&rig, &large);
	taken_and_gone(&rig, &small);
	assert_int_equal(rig_stats(&rig).misses, 1);
	assert_int_equal(rig_stats(&rig).prefetch_hits, 1);
	rig_end(&rig);
}

static void test_failed_prefetch_is_read_again(void **state)
{
	struct rig rig;
	struct piece piece;
	struct spw_taken taken;

	(void)state;
	rig_default(&rig);
	piece = stored(&rig, 1, 100);
	spw_cache_stage(rig.cache, 0, SPW_STAGE_BACKWARD);
	fake_end_oldest(rig.store, FAKE_READ, -EIO);
	assert_int_equal(rig_stats(&rig).prefetches_failed, 1);
	assert_int_equal(rig_stats(&rig).prefetched_bytes, 0);
	assert_int_equal(rig_stats(&rig).activation_bytes, 0);
	rig.store->wait_res = -EIO;
	assert_int_equal(spw_cache_take(rig.cache, piece.tensor, 0, 100, &taken), -EIO);
	assert_int_equal(rig.logged, 1); /* of the prefetch */
	rig.store->wait_res = 0;
	taken_and_gone(&rig, &piece);
	rig_end(&rig);
}

static void test_release_while_reading_ahead(void **state)
{
	struct rig rig;
	struct piece queued, issued;

	(void)state;
	rig_default(&rig);
	queued = stored(&rig, 1, 100);
	issued = stored(&rig, 2, 100);
	spw_cache_stage(rig.cache, 0, SPW_STAGE_BACKWARD);
	fake_issue(fake_pending(rig.store, FAKE_READ, 0));
	released(&rig, &queued);
	released(&rig, &issued);
	assert_int_equal(rig.store->cancels, 1);
	assert_int_equal(rig_stats(&rig).prefetched_bytes, 0);
	assert_int_equal(rig_stats(&rig).activation_bytes, 200); /* the drives may still write into it */
	assert_int_equal(rig.store->objects_used, 2);
	fake_end_all(rig.store);
	assert_int_equal(rig_stats(&rig).prefetches_failed, 0);
	rig_end(&rig);
}

static void test_arena_full(void **state)
{
	struct rig rig;
	struct piece pieces[3];

	(void)state;
	rig_default(&rig);
	rig.store->arena = 150;
	for (unsigned i = 0; i < 3; i++)
		pieces[i] = stored(&rig, i + 1, 100);
	spw_cache_stage(rig.cache, 0, SPW_STAGE_BACKWARD);
	assert_int_equal(rig_stats(&rig).read_memory_outside_arena_bytes, 200);
	assert_int_equal(rig.logged, 1);
	assert_non_null(strstr(rig.log_text, "arena"));
	fake_end_all(rig.store);
	for (unsigned i = 3; i-- > 0;)
		taken_and_gone(&rig, &pieces[i]);
	rig_end(&rig);
}

/* ---- Threads ---- */

/* Ends the oldest read as soon as the store's @what counter has risen. */
struct ender {
	struct rig *rig;
	const unsigned *what;
	enum fake_kind kind;
	int res;
	pthread_t thread;
};

static void *ender_run(void *context)
{
	struct ender *ender = context;
	struct spw_store *store = ender->rig->store;

	fake_lock(store);
	while (*ender->what == 0)
		SPW_ASSERT(pthread_cond_wait(&store->changed, &store->lock) == 0);
	fake_unlock(store);
	fake_end_oldest(store, ender->kind, ender->res);
	return NULL;
}

static void ender_begin(struct ender *ender)
{
	assert_int_equal(pthread_create(&ender->thread, NULL, ender_run, ender), 0);
}

static void ender_end(struct ender *ender)
{
	assert_int_equal(pthread_join(ender->thread, NULL), 0);
}

static void test_late_prefetch_is_raised(void **state)
{
	struct rig rig;
	struct piece piece;
	struct ender ender = {.rig = &rig, .kind = FAKE_READ};

	(void)state;
	rig_default(&rig);
	piece = stored(&rig, 1, 100);
	spw_cache_stage(rig.cache, 0, SPW_STAGE_BACKWARD);
	ender.what = &rig.store->raises;
	ender_begin(&ender);
	taken_and_gone(&rig, &piece);
	ender_end(&ender);
	assert_int_equal(rig.store->gets, 1);
	assert_int_equal(rig_stats(&rig).prefetch_late, 1);
	assert_int_equal(rig_stats(&rig).prefetch_hits, 0);
	assert_int_equal(rig_stats(&rig).misses, 0);
	assert_true(rig_stats(&rig).stall_ns > 0);
	rig_end(&rig);
}

static void test_late_prefetch_that_fails_is_read_again(void **state)
{
	struct rig rig;
	struct piece piece;
	struct ender ender = {.rig = &rig, .kind = FAKE_READ, .res = -EIO};

	(void)state;
	rig_default(&rig);
	piece = stored(&rig, 1, 100);
	spw_cache_stage(rig.cache, 0, SPW_STAGE_BACKWARD);
	ender.what = &rig.store->raises;
	ender_begin(&ender);
	taken_and_gone(&rig, &piece);
	ender_end(&ender);
	assert_int_equal(rig.store->gets, 2);
	assert_int_equal(rig_stats(&rig).prefetches_failed, 1);
	assert_int_equal(rig_stats(&rig).reads_failed, 0);
	rig_end(&rig);
}

static void test_take_waits_for_a_request(void **state)
{
	struct rig rig;
	struct piece piece, other;
	struct ender ender = {.rig = &rig, .kind = FAKE_WRITE};

	(void)state;
	rig_begin(&rig);
	rig.opts.prefetch_bytes = 1; /* nothing fits */
	rig_open(&rig);
	piece = stored(&rig, 1, 100);
	other = offered(&rig, 2, 100, SPW_OFFER_SPILL);
	fake_issue(fake_pending(rig.store, FAKE_WRITE, 0));
	rig.store->requests_max = 1;
	ender.what = &rig.store->urgent_refused;
	ender_begin(&ender);
	taken_and_gone(&rig, &piece);
	ender_end(&ender);
	drained(&rig, &other);
	released(&rig, &other);
	rig_end(&rig);
}

struct taker {
	struct rig *rig;
	const struct piece *piece;
	struct spw_taken taken;
	int rc;
	pthread_t thread;
};

static void *taker_run(void *context)
{
	struct taker *taker = context;

	taker->rc = spw_cache_take(taker->rig->cache, taker->piece->tensor, 0, taker->piece->len, &taker->taken);
	return NULL;
}

static struct spw_request *wait_for_read(struct spw_store *store)
{
	struct spw_request *request;

	fake_lock(store);
	while (!(request = fake_pending_locked(store, FAKE_READ, 0)))
		SPW_ASSERT(pthread_cond_wait(&store->changed, &store->lock) == 0);
	fake_unlock(store);
	return request;
}

static void test_takes_share_one_read(void **state)
{
	struct rig rig;
	struct piece piece;
	struct taker takers[3];

	(void)state;
	rig_begin(&rig);
	rig.opts.prefetch_bytes = 1;
	rig_open(&rig);
	rig.store->wait_for_test = true;
	piece = stored(&rig, 1, 100);
	for (unsigned i = 0; i < 3; i++) {
		takers[i] = (struct taker){.rig = &rig, .piece = &piece};
		assert_int_equal(pthread_create(&takers[i].thread, NULL, taker_run, &takers[i]), 0);
	}
	fake_end(wait_for_read(rig.store), 0);
	for (unsigned i = 0; i < 3; i++) {
		assert_int_equal(pthread_join(takers[i].thread, NULL), 0);
		assert_int_equal(takers[i].rc, 0);
		assert_int_equal(takers[i].taken.lease, takers[0].taken.lease);
		spw_cache_return(rig.cache, takers[i].taken.lease);
	}
	assert_int_equal(rig.store->gets, 1);
	released(&rig, &piece);
	rig_end(&rig);
}

static void test_released_while_taken(void **state)
{
	struct rig rig;
	struct piece piece;
	struct taker taker = {.rig = &rig, .piece = &piece};
	struct spw_request *request;

	(void)state;
	rig_begin(&rig);
	rig.opts.prefetch_bytes = 1;
	rig_open(&rig);
	rig.store->wait_for_test = true;
	piece = stored(&rig, 1, 100);
	assert_int_equal(pthread_create(&taker.thread, NULL, taker_run, &taker), 0);
	request = wait_for_read(rig.store);
	released(&rig, &piece);
	fake_end(request, 0);
	assert_int_equal(pthread_join(taker.thread, NULL), 0);
	assert_int_equal(taker.rc, -ENOENT);
	rig_end(&rig);
}

/* ---- The end ---- */

static void *close_run(void *context)
{
	struct rig *rig = context;

	spw_cache_close(rig->cache);
	return NULL;
}

static void test_close_with_everything_under_way(void **state)
{
	struct rig rig;
	struct piece pieces[7];
	pthread_t thread;

	(void)state;
	rig_begin(&rig);
	rig.opts.prefetch_bytes = 200;
	rig_open(&rig);
	pieces[0] = stored(&rig, 1, 100);
	pieces[1] = stored(&rig, 2, 100);
	pieces[2] = stored(&rig, 3, 100);
	(void)taken_from_lease(&rig, &pieces[0]); /* resident, with a lease; the others are read ahead */
	spw_cache_stage(rig.cache, 0, SPW_STAGE_FORWARD);
	fake_issue(fake_pending(rig.store, FAKE_READ, 0));
	pieces[3] = offered(&rig, 4, 100, SPW_OFFER_SPILL);
	fake_end_oldest(rig.store, FAKE_WRITE, 0); /* written */
	pieces[4] = offered(&rig, 5, 100, SPW_OFFER_SPILL);
	fake_issue(fake_pending(rig.store, FAKE_WRITE, 0)); /* issued */
	pieces[5] = offered(&rig, 6, 100, SPW_OFFER_SPILL); /* queued */
	pieces[6] = offered(&rig, 7, 8, SPW_OFFER_KEEP);
	assert_int_equal(pthread_create(&thread, NULL, close_run, &rig), 0);
	/* Both unissued ones are cancelled; the issued ones have to be waited for. */
	fake_lock(rig.store);
	while (rig.store->cancels < 2)
		SPW_ASSERT(pthread_cond_wait(&rig.store->changed, &rig.store->lock) == 0);
	fake_unlock(rig.store);
	fake_end_all(rig.store);
	assert_int_equal(pthread_join(thread, NULL), 0);
	for (unsigned i = 3; i < 7; i++)
		free(pieces[i].bytes);
	fake_close(rig.store);
}

static void test_sizes_of_other_versions(void **state)
{
	struct rig rig;
	struct {
		struct spw_cache_stats stats;
		uint64_t appended;
	} newer;
	struct {
		size_t size;
		uint64_t steps;
		uint64_t untouched;
	} older = {.untouched = 77};

	(void)state;
	rig_begin(&rig);
	rig.opts.size = offsetof(struct spw_cache_opts, staging_bytes); /* a caller that knows no more */
	rig.opts.staging_bytes = 1;
	rig_open(&rig);
	spw_cache_step(rig.cache);
	spw_cache_stats(rig.cache, (struct spw_cache_stats *)(void *)&older, offsetof(typeof(older), untouched));
	assert_int_equal(older.steps, 1);
	assert_int_equal(older.untouched, 77);
	memset(&newer, 0xff, sizeof(newer));
	spw_cache_stats(rig.cache, &newer.stats, sizeof(newer));
	assert_int_equal(newer.stats.steps, 1);
	assert_int_equal(newer.appended, 0);
	rig_end(&rig);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_small_is_kept),
		cmocka_unit_test(test_spill_and_read_back),
		cmocka_unit_test(test_lease_outlives_entry),
		cmocka_unit_test(test_forward_cancels_a_queued_write),
		cmocka_unit_test(test_forward_from_an_issued_write),
		cmocka_unit_test(test_forward_after_a_failing_write),
		cmocka_unit_test(test_forward_until_drained),
		cmocka_unit_test(test_failed_write_is_kept),
		cmocka_unit_test(test_failed_read_is_an_error_of_that_take),
		cmocka_unit_test(test_release_in_every_state),
		cmocka_unit_test(test_dedup_of_views),
		cmocka_unit_test(test_dedup_in_every_state),
		cmocka_unit_test(test_ids_are_not_reused),
		cmocka_unit_test(test_identities_that_collide),
		cmocka_unit_test(test_bad_arguments),
		cmocka_unit_test(test_refused_writes_are_kept),
		cmocka_unit_test(test_backpressure),
		cmocka_unit_test(test_entries_used_up),
		cmocka_unit_test(test_observe_keeps_all),
		cmocka_unit_test(test_backward_offers_are_kept),
		cmocka_unit_test(test_last_scope_is_kept_from_the_second_step),
		cmocka_unit_test(test_last_scope_by_place),
		cmocka_unit_test(test_last_scope_spilled_on_request),
		cmocka_unit_test(test_last_scope_of_micro_batches),
		cmocka_unit_test(test_scopes_too_deep_or_unbalanced),
		cmocka_unit_test(test_prefetch_order_and_budget),
		cmocka_unit_test(test_window_holds_back_what_is_in_memory),
		cmocka_unit_test(test_window_follows_the_last_offer),
		cmocka_unit_test(test_window_of_micro_batch_and_step),
		cmocka_unit_test(test_automatic_window),
		cmocka_unit_test(test_release_where_the_window_stopped),
		cmocka_unit_test(test_window_waits_for_a_request),
		cmocka_unit_test(test_larger_than_the_window),
		cmocka_unit_test(test_failed_prefetch_is_read_again),
		cmocka_unit_test(test_release_while_reading_ahead),
		cmocka_unit_test(test_arena_full),
		cmocka_unit_test(test_late_prefetch_is_raised),
		cmocka_unit_test(test_late_prefetch_that_fails_is_read_again),
		cmocka_unit_test(test_take_waits_for_a_request),
		cmocka_unit_test(test_takes_share_one_read),
		cmocka_unit_test(test_released_while_taken),
		cmocka_unit_test(test_close_with_everything_under_way),
		cmocka_unit_test(test_sizes_of_other_versions),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
