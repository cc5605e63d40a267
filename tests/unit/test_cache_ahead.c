/* SPDX-License-Identifier: MIT */
/*
 * tests/unit/test_cache_ahead.c - the tensor cache: what scopes and stages mean, what is read
 * ahead, takes that wait
 */
/* link: tools/replay/simstore libspillway */
#include "tests/unit/cache_rig.h"

/* ---- Scopes ---- */

#define SAME_KEYS 50 /* as @key: all scopes have this one */

/*
 * A model of scopes: outer(1), blocks, and a loss after them. Returns the tensors that were kept as
 * bits: embedding, blocks, head, loss.
 */
static unsigned forward_of_model(struct rig *rig, struct piece *pieces, unsigned blocks,
				 uint64_t key)
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
		assert_int_equal(
			spw_cache_take(rig->cache, pieces[i].tensor, 0, pieces[i].len, &taken), 0);
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
	/*
	 * Another model: nothing is known of it. A block more: at the same place the same scope,
	 * kept from there.
	 */
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

/* One that offers nothing, as dropout that does nothing, is not it. */
static void test_last_scope_is_not_an_empty_one(void **state)
{
	struct piece pieces[2];
	struct rig rig;

	(void)state;
	rig_default(&rig);
	for (unsigned step = 0; step < 2; step++) {
		spw_cache_step(rig.cache);
		for (unsigned i = 0; i < 3; i++) {
			spw_cache_scope_enter(rig.cache, i);
			if (i < 2)
				pieces[i] = offered(&rig, 10 * step + i + 1, 200,
						    step == 1 && i == 1 ? SPW_OFFER_KEEP
									: SPW_OFFER_SPILL);
			spw_cache_scope_leave(rig.cache);
		}
		spw_cache_stage(rig.cache, 0, SPW_STAGE_BACKWARD);
		fake_end_all(rig.store);
		for (unsigned i = 0; i < 2; i++)
			released(&rig, &pieces[i]);
		while (spw_cache_drain(rig.cache, (uint64_t[1]){0}, 1) == 1)
			;
		for (unsigned i = 0; i < 2; i++)
			free(pieces[i].bytes);
	}
	assert_int_equal(rig_stats(&rig).tensors_kept_last_scope, 1);
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

/*
 * Two micro-batches under way: the backward stage after the second forward stage is that of the
 * first.
 */
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
	simstore_end(fake_pending(rig.store, FAKE_WRITE, 1), 0);
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
	first = piece_make(1, 100);
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

/*
 * What a backward pass that broke off has read ahead does not stand in the way of the next step's.
 */
static void test_window_of_a_step_that_broke_off(void **state)
{
	struct piece left[3], first, second;
	struct rig rig;

	(void)state;
	rig_begin(&rig);
	rig.opts.prefetch_bytes = 250;
	rig_open(&rig);
	spw_cache_step(rig.cache);
	for (unsigned i = 0; i < 3; i++)
		left[i] = stored(&rig, i + 1, 100);
	spw_cache_stage(rig.cache, 0, SPW_STAGE_BACKWARD);
	assert_int_equal(rig.store->gets, 2);
	fake_end_oldest(rig.store, FAKE_READ, 0); /* the other is still under way */
	spw_cache_step(rig.cache);
	assert_int_equal(rig_stats(&rig).prefetched_bytes, 0);
	first = stored(&rig, 4, 100);
	second = stored(&rig, 5, 100);
	spw_cache_stage(rig.cache, 0, SPW_STAGE_BACKWARD);
	assert_int_equal(rig.store->gets, 4);
	assert_int_equal(rig_stats(&rig).prefetched_bytes, 200);
	fake_end_all(rig.store);
	taken_and_gone(&rig, &second);
	taken_and_gone(&rig, &first);
	assert_int_equal(rig_stats(&rig).prefetch_hits, 2);
	assert_int_equal(rig_stats(&rig).misses, 0);
	for (unsigned i = 3; i-- > 0;)
		taken_and_gone(&rig, &left[i]);
	assert_int_equal(rig_stats(&rig).prefetch_hits, 4);
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
	/* twice the largest tensor is more than 4500 */
	assert_int_equal(rig_stats(&rig).prefetch_budget_bytes, 5000);
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
	/* the drives may still write into it */
	assert_int_equal(rig_stats(&rig).activation_bytes, 200);
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
	/* The next step goes the same way, and there is nothing new to be told. */
	spw_cache_step(rig.cache);
	for (unsigned i = 0; i < 3; i++)
		pieces[i] = stored(&rig, i + 4, 100);
	spw_cache_stage(rig.cache, 0, SPW_STAGE_BACKWARD);
	assert_int_equal(rig_stats(&rig).read_memory_outside_arena_bytes, 400);
	assert_int_equal(rig.logged, 1);
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

	simstore_lock(store);
	while (*ender->what == 0)
		SPW_ASSERT(pthread_cond_wait(&store->changed, &store->lock) == 0);
	simstore_unlock(store);
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

	taker->rc = spw_cache_take(taker->rig->cache, taker->piece->tensor, 0, taker->piece->len,
				   &taker->taken);
	return NULL;
}

static struct spw_request *wait_for_read(struct spw_store *store)
{
	struct spw_request *request;

	simstore_lock(store);
	while (!(request = fake_pending_locked(store, FAKE_READ, 0)))
		SPW_ASSERT(pthread_cond_wait(&store->changed, &store->lock) == 0);
	simstore_unlock(store);
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
	simstore_end(wait_for_read(rig.store), 0);
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
	simstore_end(request, 0);
	assert_int_equal(pthread_join(taker.thread, NULL), 0);
	assert_int_equal(taker.rc, -ENOENT);
	rig_end(&rig);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_last_scope_is_kept_from_the_second_step),
		cmocka_unit_test(test_last_scope_is_not_an_empty_one),
		cmocka_unit_test(test_last_scope_by_place),
		cmocka_unit_test(test_last_scope_spilled_on_request),
		cmocka_unit_test(test_last_scope_of_micro_batches),
		cmocka_unit_test(test_scopes_too_deep_or_unbalanced),
		cmocka_unit_test(test_prefetch_order_and_budget),
		cmocka_unit_test(test_window_holds_back_what_is_in_memory),
		cmocka_unit_test(test_window_follows_the_last_offer),
		cmocka_unit_test(test_window_of_micro_batch_and_step),
		cmocka_unit_test(test_window_of_a_step_that_broke_off),
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
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
