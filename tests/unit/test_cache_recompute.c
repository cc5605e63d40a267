/* SPDX-License-Identifier: MIT */
/*
 * tests/unit/test_cache_recompute.c - what is discarded: recomputed, offered again, or never used
 */
/* link: simstore libspillway */
#include <spillway/trace.h>

#include <unistd.h>

#include "tests/unit/cache_rig.h"

#define LEN 4096u

static struct spw_offer offer_of(const struct piece *piece)
{
	return (struct spw_offer){
		.storage_key = piece->key,
		.storage_bytes = piece->bytes,
		.storage_len_bytes = piece->len,
		.len_bytes = piece->len,
		.owner = piece->key,
	};
}

static int offer_hint(struct piece *piece, enum spw_cache_hint hint)
{
	struct spw_offer offer = offer_of(piece);
	int result = spw_cache_offer_hint(rig.cache, &offer, hint, &piece->tensor);

	if (result != SPW_OFFER_AGAIN)
		return noted(result, piece->tensor, offer.owner);
	bag_put(&rig.users, piece->tensor.value);
	return result;
}

/* Its memory is destroyed at once: nothing may count on it. */
static void lost(struct piece *piece)
{
	bag_take(&rig.memory, (uintptr_t)piece->bytes);
	memset(piece->bytes, 0xdd, piece->len);
	free(piece->bytes);
	piece->bytes = NULL;
}

static struct piece given_up(uint64_t key)
{
	struct piece piece = piece_make(key, LEN);

	assert_int_equal(offer_hint(&piece, SPW_HINT_GIVE_UP), SPW_OFFER_AGAIN);
	lost(&piece);
	return piece;
}

static int taken(const struct piece *piece)
{
	struct spw_taken taken;

	return spw_cache_take(rig.cache, piece->tensor, 0, piece->len, &taken);
}

/* The same bytes in other memory, by another storage and token. */
static struct piece copied(const struct piece *piece, uint64_t key)
{
	struct piece copy = piece_make(key, piece->len);

	for (size_t i = 0; i < copy.len; i++)
		copy.bytes[i] = pattern(piece->key, i);
	copy.tensor = piece->tensor;
	return copy;
}

static int restored(const struct piece *copy)
{
	struct spw_offer offer = offer_of(copy);
	int rc = spw_cache_restore(rig.cache, copy->tensor, &offer);

	if (rc == 0)
		bag_put(&rig.owners, offer.owner);
	return rc;
}

RIG_CASE(test_given_up_and_restored)
{
	struct piece piece, copy;

	spw_cache_scope_enter(rig.cache, 1);
	piece = given_up(1);
	STAT_IS(activation_bytes, 0);
	STAT_IS(activation_bytes_max, LEN);
	STAT_IS(bytes_given_up, LEN);
	STAT_IS(tensors_given_up, 1);
	nothing_drained();
	assert_int_equal(rig.store->puts, 0);
	spw_cache_scope_leave(rig.cache);
	assert_int_equal(taken(&piece), SPW_TAKE_AGAIN);
	assert_int_equal(taken(&piece), SPW_TAKE_AGAIN);
	STAT_IS(takes, 0);
	copy = copied(&piece, 2);
	assert_int_equal(restored(&copy), 0);
	STAT_IS(activation_bytes, LEN);
	STAT_IS(bytes_restored, LEN);
	STAT_IS(tensors_restored, 1);
	STAT_IS(bytes_checked, 2 * LEN);
	taken_from_owner(&copy);
	taken_from_owner(&copy);
	/* A kept one like any other: the token comes back with the last release. */
	nothing_drained();
	assert_int_equal(restored(&copy), 1);
	gone(&copy);
	STAT_IS(restores_refused, 0);
}

/* Addresses of a device cannot be read from: the caller compares. */
RIG_CASE(test_given_up_on_a_device_and_restored)
{
	uint8_t *far = (uint8_t *)(UINTPTR_MAX / 2);
	struct spw_offer offer = {.storage_key = 1,
				  .storage_bytes = far,
				  .storage_len_bytes = 4 * LEN,
				  .offset_bytes = LEN + 24,
				  .len_bytes = LEN,
				  .owner = 1};
	struct piece piece = {.key = 1, .len = LEN}, twice;
	struct spw_copy copy;
	struct spw_taken taken;
	uint64_t owner = 0;

	spw_cache_scope_enter(rig.cache, 1);
	assert_int_equal(spw_cache_offer_device(rig.cache, &offer, 1, SPW_HINT_GIVE_UP,
						&piece.tensor, &copy),
			 SPW_OFFER_AGAIN);
	/* As it lies in its storage, from where elements may begin. */
	assert_int_equal(copy.offset_bytes, LEN + 16);
	assert_int_equal(copy.len_bytes, LEN + 8);
	STAT_IS(device_bytes, 0);
	/* Saved once more by the same scope, it stays given up; another device's is another. */
	twice = piece;
	assert_int_equal(
		spw_cache_offer_device(rig.cache, &offer, 1, SPW_HINT_AGAIN, &twice.tensor, &copy),
		SPW_OFFER_AGAIN);
	assert_int_equal(twice.tensor.value, piece.tensor.value);
	assert_int_equal(spw_cache_release(rig.cache, twice.tensor), 0);
	spw_cache_scope_leave(rig.cache);
	assert_int_equal(spw_cache_take(rig.cache, piece.tensor, offer.offset_bytes, LEN, &taken),
			 SPW_TAKE_AGAIN);
	offer.storage_key = 2;
	offer.storage_bytes = far + 64 * LEN;
	offer.owner = 2;
	assert_int_equal(spw_cache_restore(rig.cache, piece.tensor, &offer), 0);
	STAT_IS(device_bytes, LEN + 8);
	STAT_IS(bytes_restored, LEN + 8);
	assert_int_equal(spw_cache_take(rig.cache, piece.tensor, offer.offset_bytes, LEN, &taken),
			 0);
	assert_int_equal(taken.owner, 2);
	assert_int_equal(spw_cache_restore(rig.cache, piece.tensor, &offer), 1);
	assert_int_equal(spw_cache_release(rig.cache, piece.tensor), 0);
	assert_int_equal(spw_cache_drain_device(rig.cache, &owner, 1), 1);
	assert_int_equal(owner, 2);
	STAT_IS(device_bytes, 0);
}

RIG_CASE(test_other_bytes_are_refused)
{
	struct piece piece, copy;

	spw_cache_scope_enter(rig.cache, 1);
	piece = given_up(1);
	copy = copied(&piece, 2);
	copy.bytes[LEN - 1] ^= 1;
	expect_refusal(-ESTALE, "not the same", restored(&copy));
	STAT_IS(restores_refused, 1);
	STAT_IS(activation_bytes, 0);
	assert_int_equal(taken(&piece), SPW_TAKE_AGAIN);
	copy.bytes[LEN - 1] ^= 1;
	assert_int_equal(restored(&copy), 0);
	taken_from_owner(&copy);
}

RIG_CASE(test_what_is_no_offer_is_refused)
{
	struct piece piece, copy;
	struct spw_offer offer;

	spw_cache_scope_enter(rig.cache, 1);
	piece = given_up(1);
	copy = copied(&piece, 2);
	offer = offer_of(&copy);
	offer.storage_len_bytes = LEN - 1;
	assert_int_equal(spw_cache_restore(rig.cache, piece.tensor, &offer), -ERANGE);
	offer = offer_of(&copy);
	offer.owner = 0;
	assert_int_equal(spw_cache_restore(rig.cache, piece.tensor, &offer), -EINVAL);
	assert_int_equal(spw_cache_restore(rig.cache, piece.tensor, NULL), -EINVAL);
	offer.owner = 2;
	assert_int_equal(spw_cache_restore(rig.cache, (spw_tensor){0}, &offer), -ENOENT);
	released(&piece);
	assert_int_equal(spw_cache_restore(rig.cache, piece.tensor, &offer), -ENOENT);
}

/* A graph is dropped without being recomputed. */
RIG_CASE(test_released_without_restore)
{
	struct piece piece;

	spw_cache_scope_enter(rig.cache, 1);
	piece = given_up(1);
	STAT_IS(entries, 1);
	released(&piece);
	nothing_drained();
	STAT_IS(entries, 0);
	assert_int_equal(taken(&piece), -ENOENT);
}

RIG_CASE(test_small_or_in_backward_is_kept)
{
	struct piece small = piece_make(2, 15), backward = piece_make(3, LEN);

	spw_cache_scope_enter(rig.cache, 1);
	assert_int_equal(offer_hint(&small, SPW_HINT_GIVE_UP), SPW_OFFER_KEEP);
	spw_cache_stage(rig.cache, 0, SPW_STAGE_BACKWARD);
	assert_int_equal(offer_hint(&backward, SPW_HINT_GIVE_UP), SPW_OFFER_KEEP);
	/* Without a plan nothing is discarded that may be. */
	STAT_IS(tensors_given_up, 0);
}

/* One operation can be recomputed without a scope. */
RIG_CASE(test_outside_of_scopes)
{
	struct piece may = piece_make(2, LEN), decided = given_up(1), copy;

	assert_int_equal(offer_hint(&may, SPW_HINT_AGAIN), SPW_OFFER_SPILL);
	STAT_IS(tensors_given_up, 1);
	assert_int_equal(taken(&decided), SPW_TAKE_AGAIN);
	copy = copied(&decided, 3);
	assert_int_equal(restored(&copy), 0);
	taken_from_owner(&copy);
	gone(&copy);
}

RIG_CASE(test_that_it_may_be_is_no_order)
{
	struct piece piece = piece_make(1, LEN);

	spw_cache_scope_enter(rig.cache, 1);
	assert_int_equal(offer_hint(&piece, SPW_HINT_AGAIN), SPW_OFFER_SPILL);
	STAT_IS(tensors_given_up, 0);
}

/* ---- The same bytes once more ---- */

RIG_CASE(test_duplicate_in_its_scope)
{
	struct piece piece = piece_make(1, LEN), twice, copy;

	spw_cache_scope_enter(rig.cache, 1);
	assert_int_equal(offer_hint(&piece, SPW_HINT_GIVE_UP), SPW_OFFER_AGAIN);
	twice = piece;
	assert_int_equal(offer_hint(&twice, SPW_HINT_GIVE_UP), SPW_OFFER_AGAIN);
	assert_int_equal(twice.tensor.value, piece.tensor.value);
	STAT_IS(tensors_given_up, 1);
	lost(&piece);
	copy = copied(&piece, 2);
	assert_int_equal(restored(&copy), 0);
	released(&piece);
	taken_from_owner(&copy);
	gone(&copy);
}

/* Which may not be able to recompute it: it has the bytes, and they stay. */
RIG_CASE(test_duplicate_in_another_scope)
{
	struct piece piece = piece_make(1, LEN);
	spw_tensor first;

	spw_cache_scope_enter(rig.cache, 1);
	assert_int_equal(offer_hint(&piece, SPW_HINT_GIVE_UP), SPW_OFFER_AGAIN);
	first = piece.tensor;
	spw_cache_scope_leave(rig.cache);
	spw_cache_scope_enter(rig.cache, 1);
	assert_int_equal(offer_hint(&piece, SPW_HINT_GIVE_UP), SPW_OFFER_KEEP);
	assert_int_equal(piece.tensor.value, first.value);
	STAT_IS(tensors_restored, 1);
	STAT_IS(activation_bytes, LEN);
	taken_from_owner(&piece);
	tensor_released(first);
	gone(&piece);
}

/* By .data or the like: the version does not tell. */
RIG_CASE(test_changed_since_it_was_given_up)
{
	struct piece piece = piece_make(1, LEN);
	spw_tensor first;

	spw_cache_scope_enter(rig.cache, 1);
	assert_int_equal(offer_hint(&piece, SPW_HINT_GIVE_UP), SPW_OFFER_AGAIN);
	first = piece.tensor;
	piece.bytes[0] ^= 1;
	assert_int_equal(offer_hint(&piece, SPW_HINT_GIVE_UP), SPW_OFFER_AGAIN);
	assert_int_not_equal(piece.tensor.value, first.value);
	STAT_IS(offers_changed, 1);
	STAT_IS(tensors_given_up, 2);
}

/* An input that another scope needs for recomputing does not come back for that. */
RIG_CASE(test_input_that_was_given_up)
{
	struct piece piece = piece_make(1, LEN);

	spw_cache_scope_enter(rig.cache, 1);
	assert_int_equal(offer_hint(&piece, SPW_HINT_GIVE_UP), SPW_OFFER_AGAIN);
	spw_cache_scope_leave(rig.cache);
	spw_cache_scope_enter(rig.cache, 2);
	assert_int_equal(offer_hint(&piece, SPW_HINT_INPUT), SPW_OFFER_AGAIN);
	STAT_IS(tensors_restored, 0);
	STAT_IS(activation_bytes, 0);
}

/* ---- Time ---- */

RIG_CASE(test_time_of_computing_again)
{
	spw_cache_step(rig.cache);
	spw_cache_again_begin(rig.cache);
	spw_cache_again_begin(rig.cache);
	spw_cache_again_end(rig.cache);
	STAT_IS(scopes_again, 0);
	spw_cache_again_end(rig.cache);
	spw_cache_again_end(rig.cache); /* more often than it began: nothing */
	STAT_IS(scopes_again, 0);       /* a trial, in the forward pass */
	spw_cache_stage(rig.cache, 0, SPW_STAGE_BACKWARD);
	spw_cache_again_begin(rig.cache);
	spw_cache_again_end(rig.cache);
	STAT_IS(scopes_again, 1);
	/* A step that begins ends what an interrupt has left. */
	spw_cache_again_begin(rig.cache);
	spw_cache_step(rig.cache);
	spw_cache_again_end(rig.cache);
	STAT_IS(scopes_again, 1);
	assert_true(rig_stats().again_ns > 0);
	assert_true(rig_stats().step_again_ns > 0);
}

/* ---- The trace ---- */

static void traced_step(void)
{
	struct piece piece, copy, input = piece_make(7, LEN);
	struct spw_taken taken_input;

	spw_cache_step(rig.cache);
	spw_cache_scope_enter(rig.cache, 1);
	piece = piece_make(1, LEN);
	assert_int_equal(offer_hint(&piece, SPW_HINT_GIVE_UP), SPW_OFFER_AGAIN);
	assert_int_equal(offer_hint(&input, SPW_HINT_INPUT), SPW_OFFER_SPILL);
	spw_cache_scope_leave(rig.cache);
	spw_cache_stage(rig.cache, 0, SPW_STAGE_BACKWARD);
	assert_int_equal(taken(&piece), SPW_TAKE_AGAIN);
	spw_cache_again_begin(rig.cache);
	assert_int_equal(spw_cache_take(rig.cache, input.tensor, 0, LEN, &taken_input), 0);
	copy = copied(&piece, 2);
	assert_int_equal(restored(&copy), 0);
	released(&input);
	spw_cache_again_end(rig.cache);
	taken_from_owner(&copy);
}

/* As if it had been kept: it is of the model. Recomputing does not count as compute time. */
CASE(test_trace_is_of_the_model)
{
	static const enum spw_trace_kind kinds[] = {
		SPW_TRACE_STEP,        SPW_TRACE_SCOPE_ENTER, SPW_TRACE_OFFER, SPW_TRACE_OFFER,
		SPW_TRACE_SCOPE_LEAVE, SPW_TRACE_STAGE,       SPW_TRACE_AGAIN, SPW_TRACE_RELEASE,
		SPW_TRACE_AGAIN,       SPW_TRACE_TAKE,
	};
	const char *folder = getenv("TMPDIR");
	uint64_t again_ns;
	struct spw_trace *trace;
	char path[4096];

	(void)snprintf(path, sizeof(path), "%s/cache-again-%d.jsonl", folder ? folder : "/tmp",
		       (int)getpid());
	rig_begin();
	assert_int_equal(spw_trace_create(path, NULL, &rig.opts.trace), 0);
	rig_open();
	traced_step();
	again_ns = rig_stats().again_ns;
	rig_end();
	assert_int_equal(spw_trace_finish(rig.opts.trace), 0);
	assert_int_equal(spw_trace_read(path, &trace), 0);
	assert_int_equal(unlink(path), 0);
	assert_true(trace->count >= SPW_ARRAY_LEN(kinds));
	for (unsigned i = 0; i < SPW_ARRAY_LEN(kinds); i++)
		assert_int_equal(trace->events[i].kind, kinds[i]);
	assert_int_equal(trace->events[2].result, SPW_TRACE_RESULT_KEEP);
	assert_int_equal(trace->events[2].hint, SPW_TRACE_HINT_NONE);
	assert_int_equal(trace->events[3].hint, SPW_TRACE_HINT_NONE);
	assert_true(trace->events[6].wait_ns > 0);
	assert_int_equal(trace->events[6].wait_ns + trace->events[8].wait_ns, again_ns);
	assert_int_equal(trace->events[9].tensor, trace->events[2].tensor);
	assert_int_equal(trace->events[9].wait_ns, 0);
	spw_trace_free(trace);
}

RUN_CASES(NULL, NULL)
