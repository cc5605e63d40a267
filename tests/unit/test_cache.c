/* SPDX-License-Identifier: MIT */
/* tests/unit/test_cache.c - the tensor cache over a scripted store: states, identity, keeping */
/* link: simstore libspillway */
#include "tensor/entry.h"
#include "tests/unit/cache_rig.h"

/* ---- The course of an entry's life ---- */

RIG_CASE(test_small_is_kept)
{
	struct piece piece = offered(1, 15, SPW_OFFER_KEEP);

	taken_from_owner(&piece);
	taken_from_owner(&piece);
	STAT_IS(bytes_kept_small, 15);
	STAT_IS(tensors_kept_small, 1);
	STAT_IS(activation_bytes, 15);
	STAT_IS(bytes_forwarded, 0);
	STAT_IS(takes, 2);
	nothing_drained();
	released(&piece);
	STAT_IS(activation_bytes, 15); /* until the caller lets go */
	drained(&piece);
	assert_int_equal(rig.store->puts, 0);
}

RIG_CASE(test_spill_and_read_back)
{
	struct piece piece = offered(1, 4096, SPW_OFFER_SPILL);
	uint64_t first, second;

	STAT_IS(staging_bytes, 4096);
	nothing_drained();
	fake_end_oldest(rig.store, FAKE_WRITE, 0);
	STAT_IS(staging_bytes, 0);
	STAT_IS(bytes_spilled, 4096);
	STAT_IS(tensors_spilled, 1);
	STAT_IS(activation_bytes, 4096); /* still in use: not drained */
	drained(&piece);
	STAT_IS(activation_bytes, 0);
	first = taken_from_lease(&piece);
	second = taken_from_lease(&piece);
	assert_int_equal(first, second);
	assert_int_equal(rig.store->gets, 1);
	STAT_IS(misses, 1);
	STAT_IS(bytes_read, 4096);
	STAT_IS(activation_bytes, 4096);
	assert_true(rig_stats().stall_ns > 0);
	returned(first);
	returned(second);
	STAT_IS(activation_bytes, 4096); /* a user is left */
	assert_int_equal(rig.store->objects_used, 1);
	released(&piece);
	STAT_IS(activation_bytes_max, 4096);
}

RIG_CASE(test_lease_outlives_entry)
{
	struct piece piece = stored(1, 4096);
	struct spw_taken taken, none;

	assert_int_equal(spw_cache_take(rig.cache, piece.tensor, 100, 200, &taken), 0);
	assert_int_equal(taken.storage_bytes_before, 100);
	assert_int_equal(taken.storage_bytes_total, 4096);
	released(&piece);
	assert_int_equal(rig.store->objects_used, 0); /* the extents go at once */
	STAT_IS(activation_bytes, 4096);
	for (size_t i = 0; i < 200; i++)
		assert_int_equal(((const uint8_t *)taken.bytes)[i], pattern(1, 100 + i));
	assert_int_equal(spw_cache_take(rig.cache, piece.tensor, 0, 1, &none), -ENOENT);
	assert_int_equal(spw_cache_release(rig.cache, piece.tensor), -ENOENT);
	spw_cache_return(rig.cache, taken.lease);
	assert_int_equal(rig.logged, 0);
	spw_cache_return(rig.cache, taken.lease);
	assert_int_equal(rig.logged, 1);
	assert_non_null(strstr(rig.log_text, "lease"));
}

/* The last small write waits for the next call: taken at once, the store never hears of it. */
RIG_CASE(test_held_write_is_forwarded)
{
	struct piece first;

	rig.cache->defer_bytes = 4096;
	first = offered(1, 4096, SPW_OFFER_SPILL);
	STAT_IS(staging_bytes, 4096);
	taken_from_owner(&first);
	assert_int_equal(rig.store->puts, 0);
	STAT_IS(writes_cancelled, 1);
	STAT_IS(bytes_forwarded, 4096);
	STAT_IS(staging_bytes, 0);
	gone(&first);

	spw_cache_stage(rig.cache, 0, SPW_STAGE_FORWARD); /* the take began a backward stage */
	first = offered(2, 4096, SPW_OFFER_SPILL);        /* gone before it was written */
	released(&first);
	assert_int_equal(rig.store->puts, 0);
}

/* Until the next call, or the end of some I/O; a large one only while others are written. */
RIG_CASE(test_held_write_is_written)
{
	rig.cache->defer_bytes = 4096;
	/* too large to wait while the drives are idle, */
	(void)offered(3, 4097, SPW_OFFER_SPILL);
	assert_int_equal(rig.store->puts, 1);
	(void)offered(4, 4097, SPW_OFFER_SPILL); /* but not while they are busy */
	assert_int_equal(rig.store->puts, 1);
	(void)offered(5, 64, SPW_OFFER_SPILL);
	assert_int_equal(rig.store->puts, 2);
	fake_end_oldest(rig.store, FAKE_WRITE, 0);
	assert_int_equal(rig.store->puts, 3);
}

/* It fails when it is given to the store: the tensor is kept. */
RIG_CASE(test_held_write_fails)
{
	struct piece piece;

	rig.cache->defer_bytes = 4096;
	piece = offered(1, 4096, SPW_OFFER_SPILL);
	rig.store->put_error = -ENOSPC;
	nothing_drained();
	STAT_IS(tensors_kept_no_space, 1);
	STAT_IS(staging_bytes, 0);
	taken_from_owner(&piece);
}

/* Taken when its write is queued, issued, about to fail, or has ended but was not yet reaped. */
CASE(test_forwarded_from_every_write)
{
	static const struct {
		bool issued, ended;
		int res;
		unsigned cancelled, spilled, failed;
	} rows[] = {
		{false, false, 0, 1, 0, 0},
		{true, false, 0, 0, 1, 0},
		{true, false, -EIO, 0, 0, 1},
		{true, true, 0, 0, 1, 0},
	};

	for (unsigned i = 0; i < SPW_ARRAY_LEN(rows); i++) {
		struct piece piece;

		print_message("row %u\n", i);
		rig_default();
		piece = offered(1, 4096, SPW_OFFER_SPILL);
		if (rows[i].issued)
			fake_issue(fake_pending(rig.store, FAKE_WRITE, 0));
		if (rows[i].ended)
			fake_end_oldest(rig.store, FAKE_WRITE, 0);
		taken_from_owner(&piece);
		taken_from_owner(&piece);
		nothing_drained();
		assert_int_equal(rig.store->cancels, rows[i].cancelled);
		if (!rows[i].ended)
			fake_end_oldest(rig.store, FAKE_WRITE, rows[i].res);
		assert_int_equal(rig.store->objects_used, 0);
		STAT_IS(writes_cancelled, rows[i].cancelled);
		STAT_IS(bytes_writes_cancelled, rows[i].cancelled * 4096);
		STAT_IS(bytes_forwarded, 4096); /* once */
		STAT_IS(tensors_forwarded, 1);
		STAT_IS(bytes_spilled, rows[i].spilled * 4096);
		STAT_IS(writes_failed, rows[i].failed);
		STAT_IS(bytes_kept_error, 0);
		taken_from_owner(&piece);
		gone(&piece);
		assert_int_equal(rig.store->gets, 0);
		rig_end();
	}
}

RIG_CASE(test_forwarded_and_released_during_the_write)
{
	struct piece piece = offered(1, 4096, SPW_OFFER_SPILL);

	fake_issue(fake_pending(rig.store, FAKE_WRITE, 0));
	taken_from_owner(&piece);
	released(&piece);
	nothing_drained(); /* the drives still read from the memory */
	fake_end_oldest(rig.store, FAKE_WRITE, 0);
	drained(&piece);
}

RIG_CASE(test_failed_read_is_an_error_of_that_take)
{
	struct piece piece = stored(1, 4096);
	struct spw_taken taken;

	rig.store->wait_res = -EBADMSG;
	assert_int_equal(spw_cache_take(rig.cache, piece.tensor, 0, 4096, &taken), -EBADMSG);
	assert_string_equal(spw_last_error(), SIMSTORE_ERROR_TEXT);
	assert_null(taken.bytes);
	assert_int_equal(taken.lease, 0);
	STAT_IS(reads_failed, 1);
	STAT_IS(activation_bytes, 0);
	rig.store->wait_res = 0;
	taken_and_gone(&piece);
	STAT_IS(misses, 2);
}

RIG_CASE(test_release_in_every_state)
{
	struct piece queued, issued, written, on_drive;

	on_drive = stored(1, 512);
	written = offered(2, 512, SPW_OFFER_SPILL);
	fake_end_oldest(rig.store, FAKE_WRITE, 0);
	issued = offered(3, 512, SPW_OFFER_SPILL);
	fake_issue(fake_pending(rig.store, FAKE_WRITE, 0));
	queued = offered(4, 512, SPW_OFFER_SPILL);
	released(&on_drive);
	released(&written);
	released(&issued);
	released(&queued);
	assert_int_equal(rig.store->objects_used, 2); /* of the two writes in flight */
	assert_int_equal(rig.store->cancels, 1);
	drained(&written);
	nothing_drained();
	fake_end_oldest(rig.store, FAKE_WRITE, 0);
	drained(&issued);
	fake_end_oldest(rig.store, FAKE_WRITE, 0);
	drained(&queued);
	STAT_IS(writes_cancelled, 1);
	STAT_IS(releases, 4);
}

/* ---- Identity ---- */

RIG_CASE(test_dedup_of_views)
{
	struct piece piece = piece_make(1, 4096);
	struct spw_taken taken;
	spw_tensor half, part, newer, other;

	/* At least half: the whole storage is stored, and every part of it is found. */
	assert_int_equal(offer_range(&piece, 0, 2048, 2048, 1, &half), SPW_OFFER_SPILL);
	assert_int_equal(offer_range(&piece, 0, 0, 100, 1, &part), SPW_OFFER_DEDUP);
	assert_int_equal(part.value, half.value);
	STAT_IS(staging_bytes, 4096);
	/* Another version is another tensor. */
	assert_int_equal(offer_range(&piece, 1, 0, 100, 7, &newer), SPW_OFFER_SPILL);
	assert_int_not_equal(newer.value, half.value);
	/* Less than half: that part alone. What is not within it is stored by itself. */
	assert_int_equal(offer_range(&piece, 1, 10, 90, 8, &part), SPW_OFFER_DEDUP);
	assert_int_equal(offer_range(&piece, 1, 50, 100, 9, &other), SPW_OFFER_SPILL);
	STAT_IS(staging_bytes, 4096 + 100 + 100);
	assert_int_equal(spw_cache_take(rig.cache, newer, 0, 101, &taken), -ERANGE);
	assert_int_equal(spw_cache_take(rig.cache, other, 49, 1, &taken), -ERANGE);
	assert_int_equal(spw_cache_take(rig.cache, other, 150, 1, &taken), -ERANGE);
	assert_int_equal(spw_cache_take(rig.cache, other, 50, 0, &taken), -ERANGE);
	assert_int_equal(spw_cache_take(rig.cache, other, 60, UINT64_MAX, &taken), -ERANGE);
	assert_int_equal(spw_cache_take(rig.cache, other, 149, 1, &taken), 0);
	assert_int_equal(taken.owner, 9);
	STAT_IS(offers, 5);
	STAT_IS(bytes_offered, 2048 + 100 + 100 + 90 + 100);
	STAT_IS(bytes_deduplicated, 190);
	STAT_IS(tensors_deduplicated, 2);
	STAT_IS(entries, 3);
	/* Each offer is a user. */
	tensor_released(half);
	assert_int_equal(spw_cache_take(rig.cache, half, 0, 4096, &taken), 0);
	tensor_released(half);
	assert_int_equal(spw_cache_release(rig.cache, half), -ENOENT);
}

/* What changed without a new version: one storage of one value, offered again and again. */
static uint8_t changing[4096];

static int changing_offer(uint8_t value, spw_tensor *tensor)
{
	const struct piece piece = {.key = 1, .bytes = changing, .len = sizeof(changing)};

	memset(changing, value, sizeof(changing));
	return offer_range(&piece, 0, 0, sizeof(changing), 100 + value, tensor);
}

static void changing_drained(uint64_t expected)
{
	uint64_t owner = 0;

	assert_int_equal(spw_cache_drain(rig.cache, &owner, 1), 1);
	assert_int_equal(owner, expected);
	bag_take(&rig.owners, owner);
}

/* Read back, with this value. */
static void changing_taken(spw_tensor tensor, uint8_t value)
{
	struct spw_taken taken;

	fake_end_all(rig.store); /* what is prefetched */
	assert_int_equal(spw_cache_take(rig.cache, tensor, 0, sizeof(changing), &taken), 0);
	assert_non_null(taken.bytes);
	for (size_t i = 0; i < sizeof(changing); i++)
		assert_int_equal(((const uint8_t *)taken.bytes)[i], value);
	spw_cache_return(rig.cache, taken.lease);
}

/* Written and held, written and released, read back: it is compared each time. */
RIG_CASE(test_changed_is_no_duplicate)
{
	spw_tensor tensors[4];

	assert_int_equal(changing_offer(1, &tensors[0]), SPW_OFFER_SPILL);
	fake_end_oldest(rig.store, FAKE_WRITE, 0);
	for (uint8_t i = 1; i < 3; i++) {
		assert_int_equal(changing_offer(i + 1, &tensors[i]), SPW_OFFER_SPILL);
		changing_drained(100 + i);
		fake_end_oldest(rig.store, FAKE_WRITE, 0);
	}
	changing_drained(103);
	changing_taken(tensors[2], 3);
	assert_int_equal(changing_offer(4, &tensors[3]), SPW_OFFER_KEEP);
	for (uint8_t i = 0; i < 3; i++)
		changing_taken(tensors[i], i + 1);
	STAT_IS(offers_changed, 3);
	STAT_IS(bytes_compared, 3 * 4096);
	STAT_IS(tensors_deduplicated, 0);
}

/* The drives have the bytes before, those of the second offer come after: the memory stays. */
RIG_CASE(test_changed_during_the_write)
{
	struct spw_taken taken;
	spw_tensor tensors[2];

	assert_int_equal(changing_offer(1, &tensors[0]), SPW_OFFER_SPILL);
	fake_copy(fake_pending(rig.store, FAKE_WRITE, 0));
	assert_int_equal(changing_offer(2, &tensors[1]), SPW_OFFER_DEDUP);
	fake_end_oldest(rig.store, FAKE_WRITE, 0);
	nothing_drained();
	assert_int_equal(spw_cache_take(rig.cache, tensors[1], 0, 4096, &taken), 0);
	assert_int_equal(taken.owner, 101);
	STAT_IS(tensors_kept_changed, 1);
	STAT_IS(bytes_kept_changed, 4096);
	STAT_IS(writes_failed, 0);
	assert_int_equal(rig.store->objects_used, 0);
	assert_non_null(strstr(rig.log_text, "changed"));
}

/* It is unchanged: the duplicate is compared once, at the end of the write. */
RIG_CASE(test_offered_again_during_the_write)
{
	spw_tensor tensors[3];

	for (unsigned i = 0; i < 3; i++)
		assert_int_equal(changing_offer(1, &tensors[i]),
				 i == 0 ? SPW_OFFER_SPILL : SPW_OFFER_DEDUP);
	fake_end_oldest(rig.store, FAKE_WRITE, 0);
	changing_drained(101);
	STAT_IS(bytes_compared, 4096);
	STAT_IS(tensors_spilled, 1);
}

static struct {
	void *(*main)(void *);
	void *argument;
	unsigned starts;
} later;

static int start_later(void *(*main)(void *), void *argument)
{
	later.main = main;
	later.argument = argument;
	later.starts++;
	return 0;
}

static int start_never(void *(*main)(void *), void *argument)
{
	(void)main;
	(void)argument;
	return -EAGAIN;
}

/* Two that are offered twice each, and written: nothing is compared yet. */
static void written_to_be_compared(struct piece pieces[2])
{
	later.starts = 0;
	rig.cache->ports.start = start_later;
	for (unsigned i = 0; i < 2; i++) {
		pieces[i] = offered(i + 1, 4096, SPW_OFFER_SPILL);
		assert_int_equal(offer_range(&pieces[i], 0, 0, 4096, 100 + i, &pieces[i].tensor),
				 SPW_OFFER_DEDUP);
	}
	for (unsigned i = 0; i < 2; i++)
		fake_end_oldest(rig.store, FAKE_WRITE, 0);
	assert_int_equal(later.starts, 1);
	nothing_drained();
	STAT_IS(bytes_compared, 0);
}

/* The store's thread, which ends the write, has other transfers to attend to. */
RIG_CASE(test_compared_by_another_thread)
{
	struct piece pieces[2];

	written_to_be_compared(pieces);
	(void)later.main(later.argument);
	for (unsigned i = 0; i < 2; i++)
		drained(&pieces[i]);
	STAT_IS(bytes_compared, 2 * 4096);
	STAT_IS(tensors_spilled, 2);
	/* It is gone: the next needs one more. */
	pieces[0] = offered(3, 4096, SPW_OFFER_SPILL);
	assert_int_equal(offer_range(&pieces[0], 0, 0, 4096, 103, &pieces[0].tensor),
			 SPW_OFFER_DEDUP);
	fake_end_oldest(rig.store, FAKE_WRITE, 0);
	assert_int_equal(later.starts, 2);
	(void)later.main(later.argument);
	drained(&pieces[0]);
}

/* What is taken or released before stays in memory, or goes: it is not read for that. */
RIG_CASE(test_taken_and_released_before_it_is_compared)
{
	struct piece pieces[2];

	written_to_be_compared(pieces);
	taken_from_owner(&pieces[0]);
	released(&pieces[1]);
	released(&pieces[1]);
	nothing_drained();
	STAT_IS(writes_cancelled, 0);
	(void)later.main(later.argument);
	STAT_IS(bytes_compared, 0);
	drained(&pieces[1]);
	assert_int_equal(rig.store->objects_used, 0);
	taken_from_owner(&pieces[0]);
}

RIG_CASE(test_compared_where_no_thread_starts)
{
	struct piece piece = offered(1, 4096, SPW_OFFER_SPILL);

	rig.cache->ports.start = start_never;
	assert_int_equal(offer_range(&piece, 0, 0, 4096, 101, &piece.tensor), SPW_OFFER_DEDUP);
	fake_end_oldest(rig.store, FAKE_WRITE, 0);
	drained(&piece);
	STAT_IS(bytes_compared, 4096);
	assert_non_null(strstr(rig.log_text, "no thread to compare"));
}

/* Without checksums nothing can be compared: only what was not yet taken has duplicates. */
RIG_CASE(test_no_duplicates_without_checksums)
{
	spw_tensor tensors[3];

	rig.store->no_checksums = true;
	for (unsigned i = 0; i < 3; i++) {
		assert_int_equal(changing_offer(1, &tensors[i]), SPW_OFFER_SPILL);
		if (i == 1)
			fake_end_oldest(rig.store, FAKE_WRITE, 0);
	}
}

/* Kept in one memory, offered from another, as of a storage that was resized. */
RIG_CASE(test_kept_elsewhere_is_compared)
{
	struct piece pieces[2];

	spw_cache_stage(rig.cache, 0, SPW_STAGE_BACKWARD);
	for (unsigned i = 0; i < 2; i++) {
		pieces[i] = piece_make(1, 100);
		pieces[i].bytes[99] = (uint8_t)i;
		assert_int_equal(offer_range(&pieces[i], 0, 0, 100, i + 1, &pieces[i].tensor),
				 SPW_OFFER_KEEP);
	}
}

RIG_CASE(test_dedup_in_every_state)
{
	struct piece piece = offered(1, 4096, SPW_OFFER_SPILL);

	assert_int_equal(offer(&piece), SPW_OFFER_DEDUP);
	fake_end_oldest(rig.store, FAKE_WRITE, 0);
	assert_int_equal(offer(&piece), SPW_OFFER_DEDUP);
	assert_int_equal(drain_all(), 1);
	assert_int_equal(offer(&piece), SPW_OFFER_DEDUP);
	(void)taken_from_lease(&piece);
	assert_int_equal(offer(&piece), SPW_OFFER_DEDUP);
	for (unsigned i = 0; i < 5; i++)
		released(&piece);
	/* The last user is gone: a new entry, though the lease of the old one is still out. */
	assert_int_equal(offer(&piece), SPW_OFFER_KEEP);
	STAT_IS(bytes_kept_backward, 4096);
}

OPENED_CASE(test_ids_are_not_reused)
{
	struct piece piece;
	spw_tensor first;
	struct spw_taken taken;

	rig.opts.tensors_max = 1;
	rig_open();
	piece = offered(1, 8, SPW_OFFER_KEEP);
	first = piece.tensor;
	gone(&piece);
	piece = offered(2, 8, SPW_OFFER_KEEP);
	assert_int_not_equal(piece.tensor.value, first.value);
	assert_int_equal(spw_cache_take(rig.cache, first, 0, 8, &taken), -ENOENT);
	assert_int_equal(spw_cache_release(rig.cache, first), -ENOENT);
	assert_int_equal(spw_cache_take(rig.cache, (spw_tensor){0}, 0, 8, &taken), -ENOENT);
	assert_int_equal(spw_cache_take(rig.cache, (spw_tensor){UINT64_MAX}, 0, 8, &taken),
			 -ENOENT);
}

RIG_CASE(test_bad_arguments)
{
	struct piece piece = piece_make(1, 64);
	struct spw_cache *cache;
	struct spw_cache_opts opts;
	spw_tensor tensor = {.value = 7};

	assert_int_equal(offer_range(&piece, 0, 0, 0, 1, &tensor), -EINVAL);
	assert_int_equal(tensor.value, 0);
	assert_int_equal(offer_range(&piece, 0, 0, 64, 0, &tensor), -EINVAL);
	assert_int_equal(offer_range(&piece, 0, 1, 64, 1, &tensor), -EINVAL);
	assert_int_equal(offer_range(&piece, 0, 65, 1, 1, &tensor), -EINVAL);
	assert_int_equal(offer_range(&piece, 0, 2, UINT64_MAX, 1, &tensor), -EINVAL);
	/* No memory is that large: sums of such sizes would not fit in 64 bits. */
	piece.len = (UINT64_C(1) << 56) + 1;
	assert_int_equal(offer_range(&piece, 0, 0, piece.len, 1, &tensor), -EINVAL);
	assert_int_equal(offer_range(&piece, 0, 0, 64, 1, &tensor), -EINVAL);
	piece.len = UINT64_MAX;
	assert_int_equal(offer_range(&piece, 0, 0, UINT64_MAX, 1, &tensor), -EINVAL);
	assert_int_equal(tensor.value, 0);
	piece.len = 64;
	assert_int_equal(spw_cache_offer(rig.cache, NULL, &tensor), -EINVAL);
	for (unsigned i = 0; i < 2; i++) {
		struct spw_offer offer = {.storage_bytes = &piece,
					  .storage_len_bytes = 64,
					  .len_bytes = 64,
					  .owner = 1};

		offer.reserved[i] = 1;
		expect_refusal(-EINVAL, "reserved fields must be 0",
			       spw_cache_offer(rig.cache, &offer, &tensor));
	}
	assert_int_equal(spw_cache_take(rig.cache, tensor, 0, 1, NULL), -EINVAL);
	assert_int_equal(spw_cache_drain(rig.cache, NULL, 1), -EINVAL);
	assert_int_equal(spw_cache_drain(rig.cache, NULL, 0), 0);
	spw_cache_opts_init(&opts, sizeof(opts));
	opts.mode = SPW_CACHE_SPILL;
	assert_int_equal(spw_cache_open(NULL, &opts, &cache), -EINVAL);
	assert_null(cache);
	spw_cache_opts_init(&opts, sizeof(opts));
	opts.tensors_max = 0;
	assert_int_equal(fake_open_cache(rig.store, &opts, &cache), -EINVAL);
	opts.tensors_max = UINT32_MAX;
	assert_int_equal(fake_open_cache(rig.store, &opts, &cache), -EINVAL);
	opts.tensors_max = 1;
	for (unsigned mode = SPW_CACHE_BUDGET + 1; mode <= SPW_CACHE_BUDGET + 2; mode++) {
		opts.mode = (enum spw_cache_mode)mode;
		assert_int_equal(fake_open_cache(rig.store, &opts, &cache), -EINVAL);
		/* 4 was the positional rule, which is told what to use instead. */
		assert_int_equal(mode == 4, strstr(spw_last_error(), "SPW_CACHE_FASTEST") != NULL);
	}
	opts.mode = SPW_CACHE_BUDGET;
	expect_refusal(-EINVAL, "memory_bytes", fake_open_cache(rig.store, &opts, &cache));
	/* A budget can be met without drives, by recomputing. */
	opts.memory_bytes = 1;
	assert_int_equal(spw_cache_open(NULL, &opts, &cache), 0);
	spw_cache_close(cache);
	opts.mode = SPW_CACHE_SPILL;
	assert_int_equal(spw_cache_open(NULL, &opts, &cache), -EINVAL);
	assert_int_equal(fake_open_cache(rig.store, &opts, &cache), 0);
	spw_cache_close(cache);
	spw_cache_close(NULL);
}

/* Far more identities than places in the table's hash: none is taken for another. */
RIG_CASE(test_identities_that_collide)
{
	struct spw_taken taken;
	spw_tensor tensors[64];

	for (unsigned i = 0; i < 64; i++) {
		struct piece piece = piece_make(i < 32 ? 1000 + i : 1, 8);

		assert_int_equal(offer_range(&piece, i < 32 ? 7 : i, 0, 8, i + 1, &tensors[i]),
				 SPW_OFFER_KEEP);
	}
	for (unsigned i = 0; i < 64; i++) {
		assert_int_equal(spw_cache_take(rig.cache, tensors[i], 0, 8, &taken), 0);
		assert_int_equal(taken.owner, i + 1);
	}
}

/* ---- The keep rule ---- */

/* Writes that are refused, then writes that fail. */
RIG_CASE(test_failed_writes_are_kept)
{
	static const int errors[] = {-ENOSPC, -ENOBUFS, -EIO, -ENOSPC, -EIO};

	for (unsigned i = 0; i < SPW_ARRAY_LEN(errors); i++) {
		bool refused = i < 3;
		struct piece piece;

		rig.store->put_error = refused ? errors[i] : 0;
		piece = offered(i + 1, 100u << i, refused ? SPW_OFFER_KEEP : SPW_OFFER_SPILL);
		if (refused)
			STAT_IS(staging_bytes_max, 0);
		else
			fake_end_oldest(rig.store, FAKE_WRITE, errors[i]);
		assert_int_equal(rig.store->objects_used, 0);
		nothing_drained();
		taken_from_owner(&piece);
		assert_int_equal(rig.logged, i + 1);
		spw_cache_step(rig.cache); /* each cause is logged once a step */
		spw_cache_stage(rig.cache, 0, SPW_STAGE_FORWARD);
	}
	STAT_IS(bytes_kept_no_space, 100 + 800);
	STAT_IS(bytes_kept_backpressure, 200);
	STAT_IS(bytes_kept_error, 400 + 1600);
	STAT_IS(tensors_kept_no_space, 2);
	STAT_IS(tensors_kept_backpressure, 1);
	STAT_IS(tensors_kept_error, 2);
	STAT_IS(writes_failed, 2);
	STAT_IS(bytes_forwarded, 0);
}

OPENED_CASE(test_backpressure)
{
	struct piece fits, over;

	rig.opts.staging_bytes = 1000;
	rig_open();
	fits = offered(1, 600, SPW_OFFER_SPILL);
	over = offered(2, 401, SPW_OFFER_KEEP);
	(void)offered(3, 1001, SPW_OFFER_KEEP);
	assert_int_equal(rig.logged, 1); /* once a step */
	fake_end_oldest(rig.store, FAKE_WRITE, 0);
	(void)offered(4, 1000, SPW_OFFER_SPILL);
	STAT_IS(bytes_kept_backpressure, 1402);
	STAT_IS(tensors_kept_backpressure, 2);
	STAT_IS(staging_bytes_max, 1000);
	spw_cache_step(rig.cache);
	released(&over);
	drained(&fits);
	drained(&over);
	(void)offered(5, 401, SPW_OFFER_KEEP);
	assert_int_equal(rig.logged, 2);
}

/* Entries are used again: a large table takes memory for those in use at once. */
RIG_CASE(test_entries_that_are_not_needed_are_not_touched)
{
	assert_int_equal(rig.cache->entries_touched, 0);
	for (uint64_t key = 1; key <= 3; key++) {
		struct piece first = offered(2 * key, 100, SPW_OFFER_SPILL);
		struct piece second = offered(2 * key + 1, 100, SPW_OFFER_SPILL);

		released(&first);
		released(&second);
		fake_end_all(rig.store);
		drained(&first);
		drained(&second);
		assert_int_equal(rig.cache->entries_touched, 2);
	}
}

/* The table of buckets grows with the entries, and only with them. */
OPENED_CASE(test_each_of_many_is_found)
{
	enum { MANY = 5000 };
	struct piece *pieces = calloc(MANY, sizeof(*pieces));

	assert_non_null(pieces);
	rig.opts.tensors_max = MANY;
	rig_open();
	for (uint64_t i = 0; i < MANY; i++) {
		spw_tensor again;

		pieces[i] = offered(i + 1, 15, SPW_OFFER_KEEP);
		assert_true(rig.cache->bucket_mask >= i);
		assert_true(rig.cache->bucket_mask < 1024 || rig.cache->bucket_mask < 2 * i);
		assert_int_equal(offer_range(&pieces[i / 2], 0, 0, 15, UINT64_MAX, &again),
				 SPW_OFFER_DEDUP);
		assert_int_equal(again.value, pieces[i / 2].tensor.value);
		tensor_released(again);
	}
	for (uint64_t i = 0; i < MANY; i++) {
		taken_from_owner(&pieces[i]);
		gone(&pieces[i]);
	}
	free(pieces);
}

/* 0 does not name a tensor, nor the next use of the first slot. */
RIG_CASE(test_no_id_is_none)
{
	for (uint64_t key = 1; key <= 3; key++) {
		struct piece piece = offered(key, 15, SPW_OFFER_KEEP);

		assert_int_equal((uint32_t)piece.tensor.value, 0);
		assert_int_not_equal(piece.tensor.value, 0);
		gone(&piece);
		if (key == 1)
			rig.cache->entries[0].generation = UINT32_MAX;
	}
}

/* The backward pass uses the order of the offers: what it offers again has its place already. */
RIG_CASE(test_duplicates_in_the_backward_stage_keep_the_order)
{
	struct piece pieces[2];
	spw_tensor again;

	spw_cache_step(rig.cache);
	for (unsigned i = 0; i < 2; i++)
		pieces[i] = offered(i + 1, 100, SPW_OFFER_SPILL);
	spw_cache_stage(rig.cache, 0, SPW_STAGE_BACKWARD);
	assert_int_equal(offer_range(&pieces[0], 0, 0, 100, 9, &again), SPW_OFFER_DEDUP);
	assert_int_equal(spw_cache__entry_id(ENTRY_OF(rig.cache->order.previous, order)).value,
			 pieces[1].tensor.value);
}

OPENED_CASE(test_entries_used_up)
{
	struct piece two;

	rig.opts.tensors_max = 1;
	rig_open();
	(void)offered(1, 100, SPW_OFFER_SPILL);
	two = piece_make(2, 300);
	assert_int_equal(offer(&two), -ENOBUFS);
	assert_int_equal(two.tensor.value, 0);
	expect_words("tensors_max");
	STAT_IS(bytes_kept_entries, 300);
	STAT_IS(tensors_kept_entries, 1);
	STAT_IS(activation_bytes, 100);
	assert_int_equal(rig.logged, 1);
}

OPENED_CASE(test_observe_keeps_all)
{
	struct piece piece, small;

	rig.opts.mode = SPW_CACHE_OBSERVE;
	assert_int_equal(spw_cache_open(NULL, &rig.opts, &rig.cache), 0);
	spw_cache_step(rig.cache);
	piece = offered(1, 4096, SPW_OFFER_KEEP);
	small = offered(2, 8, SPW_OFFER_KEEP);
	spw_cache_stage(rig.cache, 0, SPW_STAGE_BACKWARD);
	taken_from_owner(&piece);
	STAT_IS(bytes_kept_observed, 4096);
	STAT_IS(tensors_kept_observed, 1);
	STAT_IS(bytes_kept_small, 8);
	STAT_IS(activation_bytes_max, 4104);
	gone(&small);
	STAT_IS(activation_bytes_max, 4104);
	spw_cache_reset_peak(rig.cache);
	STAT_IS(activation_bytes_max, 4096);
}

RIG_CASE(test_backward_offers_are_kept)
{
	struct piece piece;

	spw_cache_stage(rig.cache, 0, SPW_STAGE_BACKWARD);
	piece = offered(1, 100, SPW_OFFER_KEEP);
	STAT_IS(bytes_kept_backward, 100);
	spw_cache_stage(rig.cache, 0, SPW_STAGE_FORWARD);
	/* Who says when the backward stage begins may take in the forward stage. */
	taken_from_owner(&piece);
	(void)offered(2, 100, SPW_OFFER_SPILL);
}

/* ---- The end ---- */

static void *close_run(void *context)
{
	spw_cache_close(context);
	return NULL;
}

CASE(test_close_with_everything_under_way)
{
	struct piece first;
	pthread_t thread;

	rig_begin();
	rig.opts.prefetch_bytes = 200;
	rig_open();
	first = stored(1, 100);
	(void)stored(2, 100);
	(void)stored(3, 100);
	/* resident, with a lease; the others are prefetched */
	(void)taken_from_lease(&first);
	spw_cache_stage(rig.cache, 0, SPW_STAGE_FORWARD);
	fake_issue(fake_pending(rig.store, FAKE_READ, 0));
	(void)offered(4, 100, SPW_OFFER_SPILL);
	fake_end_oldest(rig.store, FAKE_WRITE, 0); /* written */
	(void)offered(5, 100, SPW_OFFER_SPILL);
	fake_issue(fake_pending(rig.store, FAKE_WRITE, 0)); /* issued */
	(void)offered(6, 100, SPW_OFFER_SPILL);             /* queued */
	(void)offered(7, 8, SPW_OFFER_KEEP);
	assert_int_equal(pthread_create(&thread, NULL, close_run, rig.cache), 0);
	/* Both unissued ones are cancelled; the issued ones have to be waited for. */
	simstore_lock(rig.store);
	while (rig.store->cancels < 2)
		SPW_MUST(pthread_cond_wait(&rig.store->changed, &rig.store->lock));
	simstore_unlock(rig.store);
	fake_end_all(rig.store);
	assert_int_equal(pthread_join(thread, NULL), 0);
	rig.cache = NULL; /* closed */
	rig_close();
}

OPENED_CASE(test_sizes_of_other_versions)
{
	struct {
		struct spw_cache_stats stats;
		uint64_t appended;
	} newer;
	struct {
		size_t size;
		uint64_t steps;
		uint64_t untouched;
	} older = {.untouched = 77};

	/* a caller that knows no more */
	rig.opts.size = offsetof(struct spw_cache_opts, staging_bytes);
	rig.opts.staging_bytes = 1;
	rig_open();
	spw_cache_step(rig.cache);
	spw_cache_stats(rig.cache, (struct spw_cache_stats *)(void *)&older,
			offsetof(typeof(older), untouched));
	assert_int_equal(older.steps, 1);
	assert_int_equal(older.untouched, 77);
	memset(&newer, 0xff, sizeof(newer));
	spw_cache_stats(rig.cache, &newer.stats, sizeof(newer));
	assert_int_equal(newer.stats.steps, 1);
	assert_int_equal(newer.appended, 0);
}

/* ---- The store's memory ---- */

static unsigned given_back;

static void count_give_back(struct spw_store *store)
{
	assert_ptr_equal(store, rig.store);
	given_back++;
}

/* What was read is used up when a forward pass follows a backward pass, and not before. */
CASE(test_memory_is_given_back_between_backward_and_forward)
{
	struct spw_cache_ports ports = simstore_ports;

	ports.give_back = count_give_back;
	given_back = 0;
	rig_begin();
	assert_ok(spw_cache__open_with(rig.store, &rig.opts, &ports, &rig.cache));
	for (unsigned i = 0; i < 3; i++) {
		spw_cache_step(rig.cache);
		spw_cache_stage(rig.cache, 0, SPW_STAGE_FORWARD);
		spw_cache_stage(rig.cache, 1, SPW_STAGE_FORWARD);
		assert_int_equal(given_back, 2 * i);
		spw_cache_stage(rig.cache, 0, SPW_STAGE_BACKWARD);
		spw_cache_stage(rig.cache, 1, SPW_STAGE_BACKWARD);
		assert_int_equal(given_back, 2 * i);
		spw_cache_stage(rig.cache, 2, SPW_STAGE_FORWARD);
		assert_int_equal(given_back, 2 * i + 1);
		spw_cache_stage(rig.cache, 2, SPW_STAGE_BACKWARD);
	}
	rig_close();
}

RUN_CASES(NULL, NULL)
