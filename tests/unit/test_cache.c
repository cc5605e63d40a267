/* SPDX-License-Identifier: MIT */
/*
 * tests/unit/test_cache.c - the tensor cache over a store that the test controls: every state,
 * identity, what is kept, the end
 */
/* link: tools/replay/simstore libspillway */
#include "tests/unit/cache_rig.h"

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

/* The last small write waits for the next call: taken at once, the store never hears of it. */
static void test_held_write_is_forwarded(void **state)
{
	struct rig rig;
	struct piece first;
	struct spw_cache_stats stats;

	(void)state;
	rig_default(&rig);
	rig.cache->hold_bytes = 4096;
	first = offered(&rig, 1, 4096, SPW_OFFER_SPILL);
	assert_int_equal(rig_stats(&rig).staging_bytes, 4096);
	taken_from_owner(&rig, &first);
	stats = rig_stats(&rig);
	assert_int_equal(rig.store->puts, 0);
	assert_int_equal(stats.writes_cancelled, 1);
	assert_int_equal(stats.bytes_forwarded, 4096);
	assert_int_equal(stats.staging_bytes, 0);
	released(&rig, &first);
	drained(&rig, &first);

	spw_cache_stage(rig.cache, 0, SPW_STAGE_FORWARD); /* the take began a backward stage */
	first = offered(&rig, 2, 4096, SPW_OFFER_SPILL);  /* gone before it was written */
	released(&rig, &first);
	assert_int_equal(rig.store->puts, 0);
	drained(&rig, &first);
	rig_end(&rig);
}

/*
 * Until the next call, or the end of some I/O; one that takes long to write only while others are
 * written.
 */
static void test_held_write_is_written(void **state)
{
	struct rig rig;
	struct piece first, second, third;

	(void)state;
	rig_default(&rig);
	rig.cache->hold_bytes = 4096;
	/* too large to wait while the drives are idle, */
	first = offered(&rig, 3, 4097, SPW_OFFER_SPILL);
	assert_int_equal(rig.store->puts, 1);
	second = offered(&rig, 4, 4097, SPW_OFFER_SPILL); /* but not while they are busy */
	assert_int_equal(rig.store->puts, 1);
	third = offered(&rig, 5, 64, SPW_OFFER_SPILL);
	assert_int_equal(rig.store->puts, 2);
	fake_end_oldest(rig.store, FAKE_WRITE, 0);
	assert_int_equal(rig.store->puts, 3);
	fake_end_oldest(rig.store, FAKE_WRITE, 0);
	fake_end_oldest(rig.store, FAKE_WRITE, 0);
	drained(&rig, &first);
	drained(&rig, &second);
	drained(&rig, &third);
	released(&rig, &third);
	released(&rig, &second);
	released(&rig, &first);
	rig_end(&rig);
}

/* It fails when it is given to the store: the tensor is kept. */
static void test_held_write_fails(void **state)
{
	struct rig rig;
	struct piece piece;

	(void)state;
	rig_default(&rig);
	rig.cache->hold_bytes = 4096;
	piece = offered(&rig, 1, 4096, SPW_OFFER_SPILL);
	rig.store->put_error = -ENOSPC;
	nothing_drained(&rig);
	assert_int_equal(rig_stats(&rig).tensors_kept_no_space, 1);
	assert_int_equal(rig_stats(&rig).staging_bytes, 0);
	taken_from_owner(&rig, &piece);
	released(&rig, &piece);
	drained(&rig, &piece);
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
	assert_string_equal(spw_last_error(), SIMSTORE_ERROR_TEXT);
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

/* Whether they share a bucket or not. */
static void test_versions_are_told_apart(void **state)
{
	struct piece piece = piece_make(1, 64);
	spw_tensor tensors[64];
	struct rig rig;

	(void)state;
	rig_default(&rig);
	for (unsigned i = 0; i < SPW_ARRAY_LEN(tensors); i++)
		assert_int_equal(offer_range(&rig, &piece, i, 0, 64, 1 + i, &tensors[i]),
				 SPW_OFFER_SPILL);
	for (unsigned i = 0; i < SPW_ARRAY_LEN(tensors); i++)
		released(&rig, &(struct piece){.tensor = tensors[i]});
	fake_end_all(rig.store);
	assert_int_equal(spw_cache_drain(rig.cache, (uint64_t[64]){0}, 64), 64);
	free(piece.bytes);
	rig_end(&rig);
}

/* What changed without a new version: one storage of one value, offered again and again. */
struct changing {
	struct rig rig;
	uint8_t bytes[4096];
	struct piece piece;
	uint64_t owner;
};

static void changing_begin(struct changing *changing)
{
	rig_default(&changing->rig);
	changing->piece =
		(struct piece){.key = 1, .bytes = changing->bytes, .len = sizeof(changing->bytes)};
	changing->owner = 100;
}

static int changing_offer(struct changing *changing, uint8_t value, spw_tensor *tensor)
{
	memset(changing->bytes, value, sizeof(changing->bytes));
	return offer_range(&changing->rig, &changing->piece, 0, 0, sizeof(changing->bytes),
			   ++changing->owner, tensor);
}

static void changing_drained(struct changing *changing, uint64_t expected)
{
	uint64_t owner = 0;

	assert_int_equal(spw_cache_drain(changing->rig.cache, &owner, 1), expected != 0);
	assert_int_equal(owner, expected);
}

/* Read back, with this value. */
static void changing_taken(struct changing *changing, spw_tensor tensor, uint8_t value)
{
	struct spw_taken taken;

	fake_end_all(changing->rig.store); /* what is read ahead */
	assert_int_equal(
		spw_cache_take(changing->rig.cache, tensor, 0, sizeof(changing->bytes), &taken), 0);
	assert_non_null(taken.bytes);
	for (size_t i = 0; i < sizeof(changing->bytes); i++)
		assert_int_equal(((const uint8_t *)taken.bytes)[i], value);
	spw_cache_return(changing->rig.cache, taken.lease);
}

static void changing_end(struct changing *changing, const spw_tensor tensors[], unsigned count)
{
	for (unsigned i = 0; i < count; i++)
		assert_int_equal(spw_cache_release(changing->rig.cache, tensors[i]), 0);
	fake_end_all(changing->rig.store);
	(void)spw_cache_drain(changing->rig.cache, (uint64_t[8]){0}, 8);
	rig_end(&changing->rig);
}

/* Written and held, written and given back, read back: it is compared each time. */
static void test_changed_is_no_duplicate(void **state)
{
	struct changing changing;
	struct spw_cache_stats stats;
	spw_tensor tensors[4];

	(void)state;
	changing_begin(&changing);
	assert_int_equal(changing_offer(&changing, 1, &tensors[0]), SPW_OFFER_SPILL);
	fake_end_oldest(changing.rig.store, FAKE_WRITE, 0);
	assert_int_equal(changing_offer(&changing, 2, &tensors[1]), SPW_OFFER_SPILL);
	changing_drained(&changing, 101);
	fake_end_oldest(changing.rig.store, FAKE_WRITE, 0);
	changing_drained(&changing, 102);
	assert_int_equal(changing_offer(&changing, 3, &tensors[2]), SPW_OFFER_SPILL);
	fake_end_oldest(changing.rig.store, FAKE_WRITE, 0);
	changing_drained(&changing, 103);
	changing_taken(&changing, tensors[2], 3);
	assert_int_equal(changing_offer(&changing, 4, &tensors[3]), SPW_OFFER_KEEP);
	for (uint8_t i = 0; i < 3; i++)
		changing_taken(&changing, tensors[i], i + 1);
	stats = rig_stats(&changing.rig);
	assert_int_equal(stats.offers_changed, 3);
	assert_int_equal(stats.bytes_compared, 3 * 4096);
	assert_int_equal(stats.tensors_deduplicated, 0);
	changing_end(&changing, tensors, 4);
}

/* The drives have the bytes before, those of the second offer come after: the memory stays. */
static void test_changed_during_the_write(void **state)
{
	struct changing changing;
	struct spw_cache_stats stats;
	struct spw_taken taken;
	spw_tensor tensors[2];

	(void)state;
	changing_begin(&changing);
	assert_int_equal(changing_offer(&changing, 1, &tensors[0]), SPW_OFFER_SPILL);
	fake_copy(fake_pending(changing.rig.store, FAKE_WRITE, 0));
	assert_int_equal(changing_offer(&changing, 2, &tensors[1]), SPW_OFFER_DEDUP);
	fake_end_oldest(changing.rig.store, FAKE_WRITE, 0);
	changing_drained(&changing, 0);
	assert_int_equal(spw_cache_take(changing.rig.cache, tensors[1], 0, 4096, &taken), 0);
	assert_int_equal(taken.owner, 101);
	stats = rig_stats(&changing.rig);
	assert_int_equal(stats.tensors_kept_changed, 1);
	assert_int_equal(stats.bytes_kept_changed, 4096);
	assert_int_equal(stats.writes_failed, 0);
	assert_int_equal(changing.rig.store->objects_used, 0);
	assert_non_null(strstr(changing.rig.log_text, "changed"));
	changing_end(&changing, tensors, 2);
}

/* Nobody has changed it: the duplicate is compared once, at the end of the write. */
static void test_offered_again_during_the_write(void **state)
{
	struct changing changing;
	struct spw_cache_stats stats;
	spw_tensor tensors[3];

	(void)state;
	changing_begin(&changing);
	assert_int_equal(changing_offer(&changing, 1, &tensors[0]), SPW_OFFER_SPILL);
	assert_int_equal(changing_offer(&changing, 1, &tensors[1]), SPW_OFFER_DEDUP);
	assert_int_equal(changing_offer(&changing, 1, &tensors[2]), SPW_OFFER_DEDUP);
	fake_end_oldest(changing.rig.store, FAKE_WRITE, 0);
	changing_drained(&changing, 101);
	stats = rig_stats(&changing.rig);
	assert_int_equal(stats.bytes_compared, 4096);
	assert_int_equal(stats.tensors_spilled, 1);
	changing_end(&changing, tensors, 3);
}

/* What has no checksums cannot be compared: only what nobody has been given yet has duplicates. */
static void test_no_duplicates_without_checksums(void **state)
{
	struct changing changing;
	spw_tensor tensors[3];

	(void)state;
	changing_begin(&changing);
	changing.rig.store->no_checksums = true;
	for (unsigned i = 0; i < 3; i++) {
		assert_int_equal(changing_offer(&changing, 1, &tensors[i]), SPW_OFFER_SPILL);
		if (i == 1)
			fake_end_oldest(changing.rig.store, FAKE_WRITE, 0);
	}
	changing_end(&changing, tensors, 3);
}

/* Kept in one memory, offered from another, as of a storage that was resized. */
static void test_kept_elsewhere_is_compared(void **state)
{
	struct piece pieces[2];
	struct rig rig;

	(void)state;
	rig_default(&rig);
	spw_cache_stage(rig.cache, 0, SPW_STAGE_BACKWARD);
	for (unsigned i = 0; i < 2; i++) {
		pieces[i] = piece_make(1, 100);
		pieces[i].bytes[99] = (uint8_t)i;
		assert_int_equal(offer_range(&rig, &pieces[i], 0, 0, 100, i + 1, &pieces[i].tensor),
				 SPW_OFFER_KEEP);
	}
	for (unsigned i = 0; i < 2; i++) {
		released(&rig, &pieces[i]);
		assert_int_equal(spw_cache_drain(rig.cache, (uint64_t[1]){0}, 1), 1);
		free(pieces[i].bytes);
	}
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
	assert_int_equal(spw_cache_take(rig.cache, (spw_tensor){UINT64_MAX}, 0, 8, &taken),
			 -ENOENT);
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
	/* No memory is that large: sums of such sizes would not fit in 64 bits. */
	piece.len = (UINT64_C(1) << 56) + 1;
	assert_int_equal(offer_range(&rig, &piece, 0, 0, piece.len, 1, &tensor), -EINVAL);
	assert_int_equal(offer_range(&rig, &piece, 0, 0, 64, 1, &tensor), -EINVAL);
	piece.len = UINT64_MAX;
	assert_int_equal(offer_range(&rig, &piece, 0, 0, UINT64_MAX, 1, &tensor), -EINVAL);
	assert_int_equal(tensor.value, 0);
	piece.len = 64;
	assert_int_equal(spw_cache_offer(rig.cache, NULL, &tensor), -EINVAL);
	assert_int_equal(spw_cache_take(rig.cache, tensor, 0, 1, NULL), -EINVAL);
	assert_int_equal(spw_cache_drain(rig.cache, NULL, 1), -EINVAL);
	assert_int_equal(spw_cache_drain(rig.cache, NULL, 0), 0);
	assert_int_equal(spw_cache_open(NULL, NULL, &cache), -EINVAL);
	assert_null(cache);
	spw_cache_opts_init(&opts, sizeof(opts));
	opts.tensors_max = 0;
	assert_int_equal(fake_open_cache(rig.store, &opts, &cache), -EINVAL);
	opts.tensors_max = UINT32_MAX;
	assert_int_equal(fake_open_cache(rig.store, &opts, &cache), -EINVAL);
	opts.tensors_max = 1;
	opts.mode = (enum spw_cache_mode)7;
	assert_int_equal(fake_open_cache(rig.store, &opts, &cache), -EINVAL);
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
		assert_int_equal(offer_range(&rig, &pieces[i], 7, 0, 8, i + 1, &pieces[i].tensor),
				 SPW_OFFER_KEEP);
		assert_int_equal(offer_range(&rig, &pieces[32 + i], i, 0, 8, 32 + i + 1,
					     &pieces[32 + i].tensor),
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

/*
 * What was used before is used again: a table for many tensors takes memory for those that there
 * are at once.
 */
static void test_entries_that_are_not_needed_are_not_touched(void **state)
{
	struct piece first, second;
	struct rig rig;

	(void)state;
	rig_default(&rig);
	assert_int_equal(rig.cache->entries_touched, 0);
	for (uint64_t key = 1; key <= 3; key++) {
		first = offered(&rig, 2 * key, 100, SPW_OFFER_SPILL);
		second = offered(&rig, 2 * key + 1, 100, SPW_OFFER_SPILL);
		released(&rig, &first);
		released(&rig, &second);
		fake_end_all(rig.store);
		drained(&rig, &first);
		drained(&rig, &second);
		assert_int_equal(rig.cache->entries_touched, 2);
	}
	rig_end(&rig);
}

/* The table of buckets grows with the entries, and only with them. */
static void test_each_of_many_is_found(void **state)
{
	enum { MANY = 5000 };
	struct piece *pieces = calloc(MANY, sizeof(*pieces));
	struct rig rig;

	(void)state;
	assert_non_null(pieces);
	rig_begin(&rig);
	rig.opts.tensors_max = MANY;
	rig_open(&rig);
	for (uint64_t i = 0; i < MANY; i++) {
		spw_tensor again;

		pieces[i] = offered(&rig, i + 1, 15, SPW_OFFER_KEEP);
		assert_true(rig.cache->bucket_mask >= i);
		assert_true(rig.cache->bucket_mask < 1024 || rig.cache->bucket_mask < 2 * i);
		assert_int_equal(offer_range(&rig, &pieces[i / 2], 0, 0, 15, UINT64_MAX, &again),
				 SPW_OFFER_DEDUP);
		assert_int_equal(again.value, pieces[i / 2].tensor.value);
		assert_int_equal(spw_cache_release(rig.cache, again), 0);
	}
	for (uint64_t i = 0; i < MANY; i++) {
		taken_from_owner(&rig, &pieces[i]);
		released(&rig, &pieces[i]);
		drained(&rig, &pieces[i]);
	}
	free(pieces);
	rig_end(&rig);
}

/* 0 is no tensor, not the next use of the first slot. */
static void test_no_id_is_none(void **state)
{
	struct piece piece;
	struct rig rig;

	(void)state;
	rig_default(&rig);
	for (uint64_t key = 1; key <= 3; key++) {
		piece = offered(&rig, key, 100, SPW_OFFER_SPILL);
		assert_int_equal((uint32_t)piece.tensor.value, 0);
		assert_int_not_equal(piece.tensor.value, 0);
		if (key == 1)
			rig.cache->entries[0].generation = UINT32_MAX - 1;
		piece.tensor = spw_entry_id(&rig.cache->entries[0]);
		released(&rig, &piece);
		fake_end_all(rig.store);
		drained(&rig, &piece);
	}
	rig_end(&rig);
}

/* The backward pass uses the order of the offers: what it offers again has its place already. */
static void test_duplicates_in_the_backward_stage_keep_the_order(void **state)
{
	struct piece pieces[2];
	struct rig rig;
	spw_tensor again;

	(void)state;
	rig_default(&rig);
	spw_cache_step(rig.cache);
	for (unsigned i = 0; i < 2; i++)
		pieces[i] = offered(&rig, i + 1, 100, SPW_OFFER_SPILL);
	spw_cache_stage(rig.cache, 0, SPW_STAGE_BACKWARD);
	assert_int_equal(offer_range(&rig, &pieces[0], 0, 0, 100, 9, &again), SPW_OFFER_DEDUP);
	assert_int_equal(spw_entry_id(ENTRY_OF(rig.cache->order.previous, order)).value,
			 pieces[1].tensor.value);
	assert_int_equal(spw_cache_release(rig.cache, again), 0);
	for (unsigned i = 0; i < 2; i++)
		released(&rig, &pieces[i]);
	fake_end_all(rig.store);
	for (unsigned i = 0; i < 2; i++)
		drained(&rig, &pieces[i]);
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
	/* resident, with a lease; the others are read ahead */
	(void)taken_from_lease(&rig, &pieces[0]);
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
	simstore_lock(rig.store);
	while (rig.store->cancels < 2)
		SPW_ASSERT(pthread_cond_wait(&rig.store->changed, &rig.store->lock) == 0);
	simstore_unlock(rig.store);
	fake_end_all(rig.store);
	assert_int_equal(pthread_join(thread, NULL), 0);
	for (unsigned i = 3; i < 7; i++)
		free(pieces[i].bytes);
	simstore_close(rig.store);
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
	/* a caller that knows no more */
	rig.opts.size = offsetof(struct spw_cache_opts, staging_bytes);
	rig.opts.staging_bytes = 1;
	rig_open(&rig);
	spw_cache_step(rig.cache);
	spw_cache_stats(rig.cache, (struct spw_cache_stats *)(void *)&older,
			offsetof(typeof(older), untouched));
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
		cmocka_unit_test(test_held_write_is_forwarded),
		cmocka_unit_test(test_held_write_is_written),
		cmocka_unit_test(test_held_write_fails),
		cmocka_unit_test(test_forward_cancels_a_queued_write),
		cmocka_unit_test(test_forward_from_an_issued_write),
		cmocka_unit_test(test_forward_after_a_failing_write),
		cmocka_unit_test(test_forward_until_drained),
		cmocka_unit_test(test_failed_write_is_kept),
		cmocka_unit_test(test_failed_read_is_an_error_of_that_take),
		cmocka_unit_test(test_release_in_every_state),
		cmocka_unit_test(test_dedup_of_views),
		cmocka_unit_test(test_versions_are_told_apart),
		cmocka_unit_test(test_dedup_in_every_state),
		cmocka_unit_test(test_changed_is_no_duplicate),
		cmocka_unit_test(test_changed_during_the_write),
		cmocka_unit_test(test_offered_again_during_the_write),
		cmocka_unit_test(test_no_duplicates_without_checksums),
		cmocka_unit_test(test_kept_elsewhere_is_compared),
		cmocka_unit_test(test_ids_are_not_reused),
		cmocka_unit_test(test_identities_that_collide),
		cmocka_unit_test(test_bad_arguments),
		cmocka_unit_test(test_refused_writes_are_kept),
		cmocka_unit_test(test_backpressure),
		cmocka_unit_test(test_entries_that_are_not_needed_are_not_touched),
		cmocka_unit_test(test_each_of_many_is_found),
		cmocka_unit_test(test_no_id_is_none),
		cmocka_unit_test(test_duplicates_in_the_backward_stage_keep_the_order),
		cmocka_unit_test(test_entries_used_up),
		cmocka_unit_test(test_observe_keeps_all),
		cmocka_unit_test(test_backward_offers_are_kept),
		cmocka_unit_test(test_close_with_everything_under_way),
		cmocka_unit_test(test_sizes_of_other_versions),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
