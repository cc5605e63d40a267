/* SPDX-License-Identifier: MIT */
/* tests/unit/test_cache_ahead.c - the tensor cache: scopes, stages, prefetching, waiting */
/* link: simstore libspillway */
#include "tests/unit/cache_rig.h"

/* ---- Scopes ---- */

#define SAME_KEYS 50 /* as @key: all scopes have this one */

/* Offer the next tensor of a model. Return: 1: it was kept. */
static unsigned kept_of_model(struct piece *piece)
{
	static uint64_t key;

	*piece = piece_make(++key, 200);
	return offer(piece) == SPW_OFFER_KEEP;
}

/*
 * A model of scopes: outer(1), blocks, and a loss after them. Returns the tensors that were kept as
 * bits: embedding, blocks, head, loss.
 */
static unsigned forward_of_model(struct piece *pieces, unsigned blocks, uint64_t key)
{
	unsigned kept, i = 0;

	spw_cache_scope_enter(rig.cache, key);
	kept = kept_of_model(&pieces[i++]);
	for (; i <= blocks; i++) {
		spw_cache_scope_enter(rig.cache, key == SAME_KEYS ? key : key + i);
		kept |= kept_of_model(&pieces[i]) << i;
		spw_cache_scope_leave(rig.cache);
	}
	kept |= kept_of_model(&pieces[i]) << i;
	spw_cache_scope_leave(rig.cache);
	i++;
	return kept | kept_of_model(&pieces[i]) << i;
}

static void backward_of_model(struct piece *pieces, unsigned blocks)
{
	for (unsigned i = blocks + 3; i-- > 0;) {
		struct spw_taken taken;

		while (fake_pending(rig.store, FAKE_READ, 0))
			fake_end_oldest(rig.store, FAKE_READ, 0);
		assert_int_equal(
			spw_cache_take(rig.cache, pieces[i].tensor, 0, pieces[i].len, &taken), 0);
		released(&pieces[i]);
		if (taken.lease)
			spw_cache_return(rig.cache, taken.lease);
	}
	fake_end_all(rig.store);
	(void)drain_all();
}

/* A step whose backward stage is announced, or shows in the first take. */
static void step_of_model(unsigned blocks, uint64_t key, bool announced, unsigned kept)
{
	struct piece pieces[8];

	spw_cache_step(rig.cache);
	assert_int_equal(forward_of_model(pieces, blocks, key), kept);
	if (announced)
		spw_cache_stage(rig.cache, 0, SPW_STAGE_BACKWARD);
	backward_of_model(pieces, blocks);
}

RIG_CASE(test_last_scope_is_kept_from_the_second_step)
{
	step_of_model(3, 1, false, 0);
	/* The last block, the head, the loss. */
	step_of_model(3, 1, false, 0x38);
	STAT_IS(bytes_kept_last_scope, 600);
	STAT_IS(tensors_kept_last_scope, 3);
	/* Learned again in each step. */
	step_of_model(3, 1, true, 0x38);
	/* Another model is not known. With a block more the same place counts. */
	step_of_model(3, 11, true, 0);
	step_of_model(4, 11, true, 0x78);
	step_of_model(4, 11, true, 0x70);
}

/* Heads that are in no scope, as of a detector, are not kept because a short one came before. */
RIG_CASE(test_last_scope_before_long_heads)
{
	enum { SCOPES = 3, PIECES = 12, KEPT = 3 };
	struct piece pieces[PIECES];

	for (unsigned step = 0; step < 3; step++) {
		spw_cache_step(rig.cache);
		for (unsigned i = 0; i < PIECES; i++) {
			if (i < SCOPES)
				spw_cache_scope_enter(rig.cache, i);
			pieces[i] = offered(PIECES * step + i + 1, 200,
					    step > 0 && i >= PIECES - KEPT ? SPW_OFFER_KEEP
									   : SPW_OFFER_SPILL);
			if (i < SCOPES)
				spw_cache_scope_leave(rig.cache);
		}
		spw_cache_stage(rig.cache, 0, SPW_STAGE_BACKWARD);
		fake_end_all(rig.store);
		for (unsigned i = 0; i < PIECES; i++)
			released(&pieces[i]);
		(void)drain_all();
	}
	STAT_IS(tensors_kept_last_scope, 2 * KEPT);
}

/* One that offers nothing, as dropout that does nothing, is not it. */
RIG_CASE(test_last_scope_is_not_an_empty_one)
{
	struct piece pieces[2];

	for (unsigned step = 0; step < 2; step++) {
		spw_cache_step(rig.cache);
		for (unsigned i = 0; i < 3; i++) {
			spw_cache_scope_enter(rig.cache, i);
			if (i < 2)
				pieces[i] = offered(10 * step + i + 1, 200,
						    step == 1 && i == 1 ? SPW_OFFER_KEEP
									: SPW_OFFER_SPILL);
			spw_cache_scope_leave(rig.cache);
		}
		spw_cache_stage(rig.cache, 0, SPW_STAGE_BACKWARD);
		fake_end_all(rig.store);
		for (unsigned i = 0; i < 2; i++)
			released(&pieces[i]);
		(void)drain_all();
	}
	STAT_IS(tensors_kept_last_scope, 1);
}

RIG_CASE(test_last_scope_by_place)
{
	struct piece piece;

	/* Only the place tells scopes of one key apart. */
	step_of_model(3, SAME_KEYS, false, 0);
	step_of_model(3, SAME_KEYS, false, 0x38);
	/* A step without scopes: nothing is known any more. */
	spw_cache_step(rig.cache);
	piece = offered(UINT64_MAX, 200, SPW_OFFER_SPILL);
	spw_cache_stage(rig.cache, 0, SPW_STAGE_BACKWARD);
	taken_from_owner(&piece);
	fake_end_all(rig.store);
	gone(&piece);
	step_of_model(3, SAME_KEYS, true, 0);
}

OPENED_CASE(test_last_scope_spilled_on_request)
{
	rig.opts.spill_last_scope = true;
	rig_open();
	for (unsigned i = 0; i < 3; i++)
		step_of_model(3, 1, false, 0);
}

/* Forward stages of two micro-batches; one scope is open while the second begins, or is not. */
static unsigned forward_of_two(struct piece pieces[], uint64_t key, bool open)
{
	enum { FIRST = 3, SECOND = 9 };
	unsigned count = 0;

	spw_cache_step(rig.cache);
	spw_cache_stage(rig.cache, 0, SPW_STAGE_FORWARD);
	for (; count < FIRST; count++)
		pieces[count] = offered(key + count, 200, SPW_OFFER_SPILL);
	if (open)
		spw_cache_scope_enter(rig.cache, 7);
	spw_cache_stage(rig.cache, 1, SPW_STAGE_FORWARD);
	for (; count < FIRST + (open ? 1 : SECOND); count++)
		pieces[count] = offered(key + count, 200, SPW_OFFER_SPILL);
	if (!open)
		spw_cache_scope_enter(rig.cache, 7);
	pieces[count] = offered(key + count, 200, SPW_OFFER_SPILL);
	return count + 1;
}

/* What a scope offered in the stage before says nothing of the stage in which it is still open. */
RIG_CASE(test_last_scope_is_of_its_own_stage)
{
	struct piece pieces[16];

	for (unsigned step = 0; step < 2; step++) {
		unsigned count = forward_of_two(pieces, 100 * step + 1, step == 0);

		spw_cache_stage(rig.cache, 1, SPW_STAGE_BACKWARD);
		spw_cache_scope_leave(rig.cache);
		fake_end_all(rig.store);
		for (unsigned i = 0; i < count; i++)
			released(&pieces[i]);
		(void)drain_all();
	}
	STAT_IS(tensors_kept_last_scope, 0);
}

/* Two micro-batches under way: the first backward stage is not that of the last forward one. */
RIG_CASE(test_last_scope_of_micro_batches)
{
	struct piece first[8], second[8];

	for (unsigned step = 0; step < 3; step++) {
		spw_cache_step(rig.cache);
		spw_cache_stage(rig.cache, 0, SPW_STAGE_FORWARD);
		assert_int_equal(forward_of_model(first, 3, 1), 0);
		spw_cache_stage(rig.cache, 1, SPW_STAGE_FORWARD);
		assert_int_equal(forward_of_model(second, 3, 1), 0);
		spw_cache_stage(rig.cache, 0, SPW_STAGE_BACKWARD);
		backward_of_model(first, 3);
		spw_cache_stage(rig.cache, 1, SPW_STAGE_BACKWARD);
		backward_of_model(second, 3);
		STAT_IS(bytes_kept_last_scope, 0);
	}
	/* One after the other: each has its own. */
	for (unsigned step = 0; step < 2; step++) {
		spw_cache_step(rig.cache);
		for (uint32_t micro_batch = 0; micro_batch < 2; micro_batch++) {
			spw_cache_stage(rig.cache, micro_batch, SPW_STAGE_FORWARD);
			assert_int_equal(forward_of_model(first, 3, 1), step ? 0x38 : 0);
			spw_cache_stage(rig.cache, micro_batch, SPW_STAGE_BACKWARD);
			backward_of_model(first, 3);
		}
	}
}

RIG_CASE(test_scopes_too_deep_or_unbalanced)
{
	struct piece piece;

	spw_cache_scope_leave(rig.cache);
	for (unsigned i = 0; i < 200; i++)
		spw_cache_scope_enter(rig.cache, i);
	piece = offered(1, 100, SPW_OFFER_SPILL);
	for (unsigned i = 0; i < 300; i++)
		spw_cache_scope_leave(rig.cache);
	taken_from_owner(&piece);
}

/* ---- Prefetching ---- */

/* Let this much be prefetched. */
static void open_window(uint64_t bytes)
{
	rig.opts.prefetch_bytes = bytes;
	rig_open();
}

static void all_stored(struct piece *pieces, unsigned count, size_t len)
{
	for (unsigned i = 0; i < count; i++)
		pieces[i] = stored(i + 1, len);
}

/* When what is under way has ended. */
static void taken_when_read(const struct piece *piece)
{
	fake_end_all(rig.store);
	taken_and_gone(piece);
}

static void all_taken_and_gone(struct piece *pieces, unsigned count)
{
	while (count-- > 0)
		taken_when_read(&pieces[count]);
}

OPENED_CASE(test_prefetch_order_and_budget)
{
	struct piece pieces[6];

	open_window(250);
	all_stored(pieces, 6, 100);
	assert_int_equal(rig.store->gets, 0);
	spw_cache_stage(rig.cache, 0, SPW_STAGE_BACKWARD);
	assert_int_equal(rig.store->gets, 2);
	STAT_IS(prefetched_bytes, 200);
	STAT_IS(prefetch_budget_bytes, 250);
	assert_int_equal(fake_pending(rig.store, FAKE_READ, 0)->cls, SPW_PREFETCH);
	for (unsigned i = 6; i-- > 0;) {
		/* Two ahead, and each take makes room for one more. */
		while (fake_pending(rig.store, FAKE_READ, 0))
			fake_end_oldest(rig.store, FAKE_READ, 0);
		(void)taken_from_lease(&pieces[i]);
		assert_int_equal(rig.store->gets, i >= 2 ? 9 - i - 1 : 6);
	}
	STAT_IS(prefetches, 6);
	STAT_IS(prefetch_hits, 6);
	STAT_IS(misses, 0);
	STAT_IS(prefetch_late, 0);
	STAT_IS(stall_ns, 0);
	STAT_IS(prefetched_bytes_max, 200);
	STAT_IS(activation_bytes, 600);
}

OPENED_CASE(test_window_holds_back_what_is_in_memory)
{
	struct piece far, written, issued, queued;

	open_window(300);
	far = offered(1, 100, SPW_OFFER_SPILL);
	written = offered(2, 100, SPW_OFFER_SPILL);
	simstore_end(fake_pending(rig.store, FAKE_WRITE, 1), 0);
	issued = offered(3, 100, SPW_OFFER_SPILL);
	fake_issue(fake_pending(rig.store, FAKE_WRITE, 1));
	queued = offered(4, 100, SPW_OFFER_SPILL);
	spw_cache_stage(rig.cache, 0, SPW_STAGE_BACKWARD);
	STAT_IS(prefetched_bytes, 300);
	STAT_IS(prefetches, 0);
	STAT_IS(writes_cancelled, 1);
	STAT_IS(bytes_forwarded, 0); /* not taken yet */
	fake_end_all(rig.store);
	drained(&far); /* it alone was beyond the window */
	nothing_drained();
	taken_from_owner(&queued); /* makes room for the one beyond */
	STAT_IS(prefetches, 1);
	fake_end_all(rig.store);
	taken_from_owner(&issued);
	taken_from_owner(&written);
	taken_and_gone(&far);
	STAT_IS(bytes_forwarded, 300);
	STAT_IS(prefetch_hits, 1);
}

OPENED_CASE(test_window_follows_the_last_offer)
{
	struct piece first, second;

	open_window(100);
	first = stored(1, 100);
	second = stored(2, 100);
	first = piece_make(1, 100);
	assert_int_equal(offer(&first), SPW_OFFER_DEDUP);
	spw_cache_stage(rig.cache, 0, SPW_STAGE_BACKWARD);
	fake_end_all(rig.store);
	STAT_IS(prefetched_bytes, 100);
	released(&first);
	taken_and_gone(&first);
	STAT_IS(prefetch_hits, 1);
	taken_when_read(&second);
	STAT_IS(prefetch_hits, 2);
}

RIG_CASE(test_window_of_micro_batch_and_step)
{
	struct piece left, first, second;

	left = stored(1, 100);
	spw_cache_step(rig.cache);
	spw_cache_stage(rig.cache, 0, SPW_STAGE_FORWARD);
	first = stored(2, 100);
	spw_cache_stage(rig.cache, 1, SPW_STAGE_FORWARD);
	second = stored(3, 100);
	spw_cache_stage(rig.cache, 0, SPW_STAGE_BACKWARD);
	assert_int_equal(rig.store->gets, 1);
	taken_when_read(&first);
	STAT_IS(prefetch_hits, 1);
	spw_cache_stage(rig.cache, 1, SPW_STAGE_BACKWARD);
	assert_int_equal(rig.store->gets, 2);
	taken_when_read(&second);
	STAT_IS(prefetch_hits, 2);
	taken_and_gone(&left);
	STAT_IS(misses, 1);
}

/* What was prefetched for a backward pass that broke off does not hinder the next step. */
OPENED_CASE(test_window_of_a_step_that_broke_off)
{
	struct piece left[3], first, second;

	open_window(250);
	spw_cache_step(rig.cache);
	all_stored(left, 3, 100);
	spw_cache_stage(rig.cache, 0, SPW_STAGE_BACKWARD);
	assert_int_equal(rig.store->gets, 2);
	fake_end_oldest(rig.store, FAKE_READ, 0); /* the other is still under way */
	spw_cache_step(rig.cache);
	STAT_IS(prefetched_bytes, 0);
	first = stored(4, 100);
	second = stored(5, 100);
	spw_cache_stage(rig.cache, 0, SPW_STAGE_BACKWARD);
	assert_int_equal(rig.store->gets, 4);
	STAT_IS(prefetched_bytes, 200);
	taken_when_read(&second);
	taken_and_gone(&first);
	STAT_IS(prefetch_hits, 2);
	STAT_IS(misses, 0);
	all_taken_and_gone(left, 3);
	STAT_IS(prefetch_hits, 4);
	STAT_IS(misses, 1);
}

RIG_CASE(test_automatic_window)
{
	struct piece pieces[5];

	spw_cache_step(rig.cache);
	spw_cache_scope_enter(rig.cache, 1);
	pieces[0] = stored(1, 1000);
	spw_cache_scope_enter(rig.cache, 2);
	pieces[1] = stored(2, 2000);
	pieces[2] = stored(3, 2500);
	spw_cache_scope_leave(rig.cache);
	pieces[3] = stored(4, 1000);
	spw_cache_scope_leave(rig.cache);
	spw_cache_stage(rig.cache, 0, SPW_STAGE_BACKWARD);
	/* twice the largest tensor is more than 4500 */
	STAT_IS(prefetch_budget_bytes, 5000);
	spw_cache_step(rig.cache);
	spw_cache_stage(rig.cache, 0, SPW_STAGE_BACKWARD);
	STAT_IS(prefetch_budget_bytes, 2048); /* two chunks */
	all_taken_and_gone(pieces, 4);
	spw_cache_step(rig.cache);
	spw_cache_scope_enter(rig.cache, 1);
	all_stored(pieces, 5, 600);
	spw_cache_scope_leave(rig.cache);
	spw_cache_stage(rig.cache, 0, SPW_STAGE_BACKWARD);
	STAT_IS(prefetch_budget_bytes, 3000);
	all_taken_and_gone(pieces, 5);
	/* A scope that was never left ends with the step. */
	spw_cache_scope_enter(rig.cache, 1);
	spw_cache_step(rig.cache);
	all_stored(pieces, 5, 600);
	spw_cache_stage(rig.cache, 0, SPW_STAGE_BACKWARD);
	STAT_IS(prefetch_budget_bytes, 2048);
}

/* The window stopped at a tensor for want of room; then that tensor goes. */
OPENED_CASE(test_release_where_the_window_stopped)
{
	struct piece pieces[3];

	open_window(100);
	all_stored(pieces, 3, 100);
	spw_cache_stage(rig.cache, 0, SPW_STAGE_BACKWARD);
	released(&pieces[1]);
	taken_when_read(&pieces[2]);
	taken_when_read(&pieces[0]);
	STAT_IS(prefetch_hits, 2);
}

/* The store's requests were used up by writes: prefetching goes on when they end. */
OPENED_CASE(test_window_waits_for_a_request)
{
	struct piece small;

	open_window(100);
	small = stored(1, 100);
	rig.store->requests_max = 2;
	(void)offered(2, 200, SPW_OFFER_SPILL);
	(void)offered(3, 200, SPW_OFFER_SPILL);
	spw_cache_stage(rig.cache, 0, SPW_STAGE_BACKWARD);
	STAT_IS(prefetches, 0);
	fake_end_oldest(rig.store, FAKE_WRITE, 0);
	fake_end_oldest(rig.store, FAKE_WRITE, 0);
	STAT_IS(prefetches, 1);
	taken_when_read(&small);
	STAT_IS(prefetch_hits, 1);
}

OPENED_CASE(test_larger_than_the_window)
{
	struct piece small, large;

	open_window(150);
	small = stored(1, 100);
	large = stored(2, 200);
	spw_cache_stage(rig.cache, 0, SPW_STAGE_BACKWARD);
	STAT_IS(prefetches, 1); /* past it, to the small one */
	taken_when_read(&large);
	taken_and_gone(&small);
	STAT_IS(misses, 1);
	STAT_IS(prefetch_hits, 1);
}

RIG_CASE(test_failed_prefetch_is_read_again)
{
	struct piece piece = stored(1, 100);
	struct spw_taken taken;

	spw_cache_stage(rig.cache, 0, SPW_STAGE_BACKWARD);
	fake_end_oldest(rig.store, FAKE_READ, -EIO);
	STAT_IS(prefetches_failed, 1);
	STAT_IS(prefetched_bytes, 0);
	STAT_IS(activation_bytes, 0);
	rig.store->wait_res = -EIO;
	assert_int_equal(spw_cache_take(rig.cache, piece.tensor, 0, 100, &taken), -EIO);
	assert_int_equal(rig.logged, 1); /* of the prefetch */
	rig.store->wait_res = 0;
	taken_and_gone(&piece);
}

RIG_CASE(test_release_while_reading_ahead)
{
	struct piece queued = stored(1, 100);
	struct piece issued = stored(2, 100);

	spw_cache_stage(rig.cache, 0, SPW_STAGE_BACKWARD);
	fake_issue(fake_pending(rig.store, FAKE_READ, 0));
	released(&queued);
	released(&issued);
	assert_int_equal(rig.store->cancels, 1);
	STAT_IS(prefetched_bytes, 0);
	/* the drives may still write into it */
	STAT_IS(activation_bytes, 200);
	assert_int_equal(rig.store->objects_used, 2);
	fake_end_all(rig.store);
	STAT_IS(prefetches_failed, 0);
}

RIG_CASE(test_arena_full)
{
	struct piece pieces[3];

	rig.store->arena = 150;
	all_stored(pieces, 3, 100);
	spw_cache_stage(rig.cache, 0, SPW_STAGE_BACKWARD);
	STAT_IS(read_memory_outside_arena_bytes, 200);
	assert_int_equal(rig.logged, 1);
	assert_non_null(strstr(rig.log_text, "arena"));
	all_taken_and_gone(pieces, 3);
	/* The next step takes the same path, and reports nothing new. */
	spw_cache_step(rig.cache);
	all_stored(pieces, 3, 100);
	spw_cache_stage(rig.cache, 0, SPW_STAGE_BACKWARD);
	STAT_IS(read_memory_outside_arena_bytes, 400);
	assert_int_equal(rig.logged, 1);
	all_taken_and_gone(pieces, 3);
}

/* ---- Threads ---- */

/* Ends the oldest request of a kind as soon as the store's @what counter has risen. */
struct ender {
	const unsigned *what;
	enum fake_kind kind;
	int res;
};

static void *ender_run(void *context)
{
	struct ender *ender = context;
	struct spw_store *store = rig.store;

	simstore_lock(store);
	while (*ender->what == 0)
		SPW_MUST(pthread_cond_wait(&store->changed, &store->lock));
	simstore_unlock(store);
	fake_end_oldest(store, ender->kind, ender->res);
	return NULL;
}

static void taken_meanwhile(const struct piece *piece, struct ender ender)
{
	pthread_t thread;

	assert_int_equal(pthread_create(&thread, NULL, ender_run, &ender), 0);
	taken_and_gone(piece);
	assert_int_equal(pthread_join(thread, NULL), 0);
}

/* One that fails is read again. */
CASE(test_late_prefetch_is_raised)
{
	for (int res = 0; res >= -EIO; res -= EIO) {
		struct piece piece;

		rig_default();
		piece = stored(1, 100);
		spw_cache_stage(rig.cache, 0, SPW_STAGE_BACKWARD);
		taken_meanwhile(&piece, (struct ender){&rig.store->raises, FAKE_READ, res});
		assert_int_equal(rig.store->gets, res ? 2 : 1);
		STAT_IS(prefetch_late, 1);
		STAT_IS(prefetch_hits, 0);
		STAT_IS(misses, 0);
		STAT_IS(prefetches_failed, res ? 1 : 0);
		STAT_IS(reads_failed, 0);
		assert_true(rig_stats().stall_ns > 0);
		rig_end();
	}
}

OPENED_CASE(test_take_waits_for_a_request)
{
	struct piece piece;

	open_window(1); /* nothing fits */
	piece = stored(1, 100);
	(void)offered(2, 100, SPW_OFFER_SPILL);
	fake_issue(fake_pending(rig.store, FAKE_WRITE, 0));
	rig.store->requests_max = 1;
	taken_meanwhile(&piece, (struct ender){&rig.store->urgent_refused, FAKE_WRITE, 0});
}

struct taker {
	const struct piece *piece;
	struct spw_taken taken;
	int rc;
	pthread_t thread;
};

static void *taker_run(void *context)
{
	struct taker *taker = context;

	taker->rc = spw_cache_take(rig.cache, taker->piece->tensor, 0, taker->piece->len,
				   &taker->taken);
	return NULL;
}

static void taker_begin(struct taker *taker, const struct piece *piece)
{
	taker->piece = piece;
	assert_int_equal(pthread_create(&taker->thread, NULL, taker_run, taker), 0);
}

static struct spw_request *wait_for_read(void)
{
	struct spw_store *store = rig.store;
	struct spw_request *request;

	simstore_lock(store);
	while (!(request = fake_pending_locked(store, FAKE_READ, 0)))
		SPW_MUST(pthread_cond_wait(&store->changed, &store->lock));
	simstore_unlock(store);
	return request;
}

/* It sleeps once, until a request of another user of the store is free, and is refused once. */
OPENED_CASE(test_take_waits_for_a_request_of_others)
{
	struct spw_store *store = rig.store;
	struct piece piece;
	struct taker taker;

	open_window(1);
	piece = stored(1, 100);
	store->requests_max = store->requests_used = 1;
	taker_begin(&taker, &piece);
	simstore_lock(store);
	while (store->request_waits == 0)
		SPW_MUST(pthread_cond_wait(&store->changed, &store->lock));
	store->requests_used = 0;
	simstore_unlock(store);
	assert_int_equal(pthread_join(taker.thread, NULL), 0);
	assert_int_equal(taker.rc, 0);
	assert_int_equal(store->request_waits, 1);
	assert_int_equal(store->urgent_refused, 1);
	spw_cache_return(rig.cache, taker.taken.lease);
}

OPENED_CASE(test_takes_share_one_read)
{
	struct piece piece;
	struct taker takers[3];

	open_window(1);
	rig.store->wait_for_test = true;
	piece = stored(1, 100);
	for (unsigned i = 0; i < 3; i++)
		taker_begin(&takers[i], &piece);
	simstore_end(wait_for_read(), 0);
	for (unsigned i = 0; i < 3; i++) {
		assert_int_equal(pthread_join(takers[i].thread, NULL), 0);
		assert_int_equal(takers[i].rc, 0);
		assert_int_equal(takers[i].taken.lease, takers[0].taken.lease);
		spw_cache_return(rig.cache, takers[i].taken.lease);
	}
	assert_int_equal(rig.store->gets, 1);
}

#define OTHERS 64u

static atomic_uint wakes;

static int sleep_counted(pthread_cond_t *io_ended, pthread_mutex_t *lock)
{
	int rc = pthread_cond_wait(io_ended, lock);

	atomic_fetch_add(&wakes, 1);
	return rc;
}

/* It waits for its own read: what ends beside that is nothing to it. */
OPENED_CASE(test_take_is_not_woken_for_others)
{
	struct piece pieces[OTHERS + 1];
	struct taker taker;

	rig.opts.tensors_max = OTHERS + 1;
	open_window((OTHERS + 1) * 100);
	for (unsigned i = 0; i <= OTHERS; i++)
		pieces[i] = stored(i + 1, 100);
	spw_cache_stage(rig.cache, 0, SPW_STAGE_BACKWARD);
	STAT_IS(prefetches, OTHERS + 1);
	atomic_store(&wakes, 0);
	rig.cache->ports.sleep = sleep_counted;
	taker_begin(&taker, &pieces[0]); /* which is read last */
	simstore_lock(rig.store);
	while (rig.store->raises == 0)
		SPW_MUST(pthread_cond_wait(&rig.store->changed, &rig.store->lock));
	simstore_unlock(rig.store);
	for (unsigned i = 0; i <= OTHERS; i++)
		fake_end_oldest(rig.store, FAKE_READ, 0);
	assert_int_equal(pthread_join(taker.thread, NULL), 0);
	assert_int_equal(taker.rc, 0);
	spw_cache_return(rig.cache, taker.taken.lease);
	assert_in_range(atomic_load(&wakes), 1, 2);
}

OPENED_CASE(test_released_while_taken)
{
	struct piece piece;
	struct taker taker;
	struct spw_request *request;

	open_window(1);
	rig.store->wait_for_test = true;
	piece = stored(1, 100);
	taker_begin(&taker, &piece);
	request = wait_for_read();
	released(&piece);
	simstore_end(request, 0);
	assert_int_equal(pthread_join(taker.thread, NULL), 0);
	assert_int_equal(taker.rc, -ENOENT);
}

RUN_CASES(NULL, NULL)
