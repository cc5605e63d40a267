/* SPDX-License-Identifier: MIT */
/*
 * tests/unit/test_cache_host.c - copies of a device's tensors that stay in host memory: what is not
 * written for that, how it comes back, and what finds no room
 */
/* link: simstore libspillway */
#include "tests/unit/cache_far.h"
#include "tests/unit/cache_host.h"

#define MIB (UINT64_C(1) << 20)

static struct spw_arena *pieces[SPW_CACHE_HOST_PIECES_MAX];
static unsigned piece_count;

static void host_add(uint64_t len_bytes)
{
	pieces[piece_count] = host_given(rig.cache, len_bytes);
	piece_count++;
}

static int host_tear_down(void **state)
{
	int rc = rig_tear_down(state);

	while (piece_count > 0)
		spw_arena_close(pieces[--piece_count]);
	return rc;
}

static int host_set_up(void **state)
{
	(void)rig_set_up_open(state);
	host_add(2 * MIB);
	return 0;
}

static int alone_set_up(void **state)
{
	(void)rig_set_up(state);
	rig.opts.mode = SPW_CACHE_FASTEST;
	assert_int_equal(fake_open_cache(NULL, &rig.opts, &rig.cache), 0);
	host_add(2 * MIB);
	return 0;
}

#define HOST_CASE(name)  CASE_WITH(name, host_set_up, host_tear_down)
#define ALONE_CASE(name) CASE_WITH(name, alone_set_up, host_tear_down) /* without drives */

/* Its copy stays in host memory, and nothing else has the bytes. */
static struct piece far_hosted(uint64_t key, size_t len)
{
	struct piece far = far_copied(key, len);

	far_drained(&far);
	state_is(&far, ENTRY_HOST);
	return far;
}

static void no_drive_was_used(void)
{
	assert_int_equal(rig.store->puts, 0);
	assert_int_equal(rig.store->gets, 0);
	STAT_IS(bytes_spilled, 0);
	STAT_IS(bytes_read, 0);
	STAT_IS(staging_bytes, 0);
	STAT_IS(device_staging_bytes, 0);
}

/* ---- The course of things ---- */

HOST_CASE(test_there_and_back)
{
	struct piece far = far_offered(1, 100, SPW_OFFER_COPY);
	uint64_t lease;

	STAT_IS(host_memory_bytes, 2 * MIB);
	STAT_IS(host_bytes, 100);
	STAT_IS(tensors_to_host, 0);
	copied(&far);
	STAT_IS(tensors_to_host, 1);
	STAT_IS(bytes_to_host, 100);
	state_is(&far, ENTRY_LEAVING);
	far_drained(&far);
	state_is(&far, ENTRY_HOST);
	STAT_IS(device_bytes, 0);
	STAT_IS(activation_bytes, 0);
	STAT_IS(host_hits, 0);

	lease = taken_from_lease(&far);
	STAT_IS(host_hits, 1);
	STAT_IS(device_bytes, 100);
	returned(lease);
	/* It stays for a second pass. */
	STAT_IS(host_bytes, 100);
	returned(taken_from_lease(&far));
	released(&far);
	STAT_IS(host_bytes, 0);
	STAT_IS(host_bytes_max, 100);
	STAT_IS(device_bytes, 0);
	no_drive_was_used();
}

/* A lease outlives the release, and a caller may come late with the end of the copy. */
HOST_CASE(test_released_while_it_is_used)
{
	struct piece far = far_hosted(1, 100);
	uint64_t lease = taken_from_lease(&far);

	released(&far);
	STAT_IS(host_bytes, 100);
	returned(lease);
	STAT_IS(host_bytes, 0);
}

HOST_CASE(test_released_before_it_is_used)
{
	struct piece far = far_hosted(1, 100);

	released(&far);
	STAT_IS(host_bytes, 0);
	no_drive_was_used();
}

/* ---- What finds no room ---- */

HOST_CASE(test_what_finds_no_room_is_written)
{
	struct piece first = far_hosted(1, MIB), second = far_hosted(2, MIB), third, fourth;

	third = far_stored(3, MIB);
	state_is(&third, ENTRY_STORED);
	STAT_IS(bytes_spilled, MIB);
	STAT_IS(bytes_to_host, 2 * MIB);
	released(&second);
	fourth = far_hosted(4, MIB);
	taken_and_gone(&third);
	taken_and_gone(&fourth);
	taken_and_gone(&first);
	STAT_IS(host_hits, 2);
	STAT_IS(misses, 1);
}

ALONE_CASE(test_what_finds_no_room_stays_without_drives)
{
	struct piece first = far_hosted(1, MIB), second = far_hosted(2, MIB), third;

	third = far_offered(3, MIB, SPW_OFFER_KEEP);
	STAT_IS(bytes_kept_no_staging, MIB);
	taken_from_owner(&third);
	far_gone(&third);
	taken_and_gone(&second);
	taken_and_gone(&first);
	no_drive_was_used();
}

/* What is in memory of the host stays as without a store. */
ALONE_CASE(test_tensors_of_the_host_stay)
{
	struct piece near = offered(1, 100, SPW_OFFER_KEEP);

	STAT_IS(bytes_kept_observed, 100);
	taken_from_owner(&near);
	gone(&near);
}

/* A tensor lies in one piece, and later pieces are used like the first. */
HOST_CASE(test_pieces)
{
	struct piece first = far_hosted(1, 3 * MIB / 2), second;

	host_add(2 * MIB);
	STAT_IS(host_memory_bytes, 4 * MIB);
	second = far_hosted(2, 3 * MIB / 2);
	(void)far_hosted(3, MIB / 2);
	(void)far_hosted(4, MIB / 2);
	(void)far_stored(5, MIB);
	released(&second);
	(void)far_hosted(6, 3 * MIB / 2);
	taken_and_gone(&first);
	while (piece_count < SPW_CACHE_HOST_PIECES_MAX)
		host_add(2 * MIB);
	assert_int_equal(spw_cache_host_memory(rig.cache, pieces[0]), -ENOSPC);
	assert_int_equal(spw_cache_host_memory(rig.cache, NULL), -EINVAL);
	STAT_IS(host_memory_bytes, SPW_CACHE_HOST_PIECES_MAX * 2 * MIB);
}

/* What is not written is not kept for a cap on wear, nor for drives that do not keep up. */
CASE(test_no_limit_of_drives_counts)
{
	struct piece far;

	rig_begin();
	rig.opts.staging_bytes = 50;
	rig.opts.wear_bytes_per_day = 1;
	rig_open();
	far = far_offered(1, 100, SPW_OFFER_KEEP);
	STAT_IS(bytes_kept_backpressure, 100);
	far_gone(&far);
	host_add(2 * MIB);
	far = far_hosted(2, 100);
	taken_and_gone(&far);
	assert_int_equal(rig.store->puts, 0);
	(void)host_tear_down(NULL);
}

/* The arena is full: what is read passes through host memory, and does not stay there. */
CASE(test_host_memory_stages)
{
	struct piece far;
	uint64_t lease;

	rig_default();
	far = far_stored(1, 100);
	host_add(2 * MIB);
	rig.store->arena = 0;
	lease = taken_from_lease(&far);
	STAT_IS(read_memory_outside_arena_bytes, 0);
	STAT_IS(device_staging_bytes, 100);
	STAT_IS(host_bytes, 0);
	returned(lease);
	state_is(&far, ENTRY_STORED);
	STAT_IS(device_staging_bytes, 0);
	STAT_IS(host_hits, 0);
	(void)host_tear_down(NULL);
}

/* ---- Copies in flight ---- */

/* Taken, released, or both, while it is copied: nothing of it stays in host memory. */
CASE(test_during_the_copy)
{
	for (unsigned i = 0; i < 6; i++) {
		bool taken = i % 3 > 0, is_released = i % 3 < 2;
		struct piece far;

		(void)host_set_up(NULL);
		far = far_copying(taken, is_released);
		STAT_IS(host_bytes, 100);
		copy_ended(&far, i < 3 ? 0 : -EIO);
		STAT_IS(host_bytes, 0);
		STAT_IS(bytes_forwarded, taken ? 100 : 0);
		far_copied_meanwhile(&far, is_released);
		no_drive_was_used();
		(void)host_tear_down(NULL);
	}
}

/* The device still has it when it is used: no copy back, and the host memory is for others. */
HOST_CASE(test_used_before_the_token_is_back)
{
	struct piece far = far_copied(1, 100);

	taken_from_owner(&far);
	STAT_IS(bytes_forwarded, 100);
	STAT_IS(host_bytes, 0);
	STAT_IS(host_hits, 0);
	none_back();
	taken_from_owner(&far);
	far_gone(&far);
	no_drive_was_used();
}

HOST_CASE(test_a_copy_fails)
{
	struct piece far = far_offered(1, 100, SPW_OFFER_COPY);

	copy_ended(&far, -EIO);
	state_is(&far, ENTRY_KEPT);
	STAT_IS(host_bytes, 0);
	STAT_IS(tensors_to_host, 0);
	STAT_IS(bytes_kept_error, 100);
	taken_from_owner(&far);
	far_gone(&far);
}

static void far_ordered(const struct piece *far)
{
	spw_tensor next;

	assert_int_equal(spw_cache_ordered(rig.cache, far->tensor, &next), 0);
	far_drained(far);
}

/* The streams wait for the copy: the token is back before its end. */
HOST_CASE(test_ordered)
{
	struct piece far = far_offered(1, 100, SPW_OFFER_COPY);

	far_ordered(&far);
	state_is(&far, ENTRY_LEAVING);
	copied(&far);
	state_is(&far, ENTRY_HOST);
	taken_and_gone(&far);
	no_drive_was_used();
}

/* Ordered and failed, so the bytes are lost: each take says so. */
HOST_CASE(test_a_copy_fails_whose_memory_is_gone)
{
	struct piece far = far_offered(1, 100, SPW_OFFER_COPY);
	struct spw_taken taken;

	far_ordered(&far);
	copy_ended(&far, -EIO);
	for (unsigned i = 0; i < 2; i++)
		assert_int_equal(spw_cache_take(rig.cache, far.tensor, 0, far.len, &taken), -EIO);
	released(&far);
	STAT_IS(host_bytes, 0);
}

/* Offered again while it is copied: its memory may have changed since. */
HOST_CASE(test_offered_twice)
{
	struct piece far = far_offered(1, 100, SPW_OFFER_COPY), again = far;

	assert_int_equal(offer_at(&again, 1), SPW_OFFER_COPY_AGAIN);
	assert_ptr_equal(again.copy.staging, far.copy.staging);
	copied(&far);
	STAT_IS(tensors_to_host, 0);
	copied(&far);
	STAT_IS(tensors_to_host, 1);
	far_drained(&far);
	state_is(&far, ENTRY_HOST);
	/* The same bytes on the device are unknown to it now. */
	assert_int_equal(offer_at(&again, 2), SPW_OFFER_COPY);
	STAT_IS(offers_changed, 1);
	copied(&again);
	assert_int_equal(drain_all(), 1);
}

/* ---- Ahead of the use ---- */

HOST_CASE(test_copied_ahead_in_the_order_of_use)
{
	struct piece far[3];
	struct spw_taken taken;
	spw_tensor tensor;

	spw_cache_step(rig.cache);
	for (unsigned i = 0; i < 3; i++)
		far[i] = far_hosted(1 + i, 100);
	assert_int_equal(spw_cache_ahead(rig.cache, &tensor, &taken), 0);
	spw_cache_stage(rig.cache, 0, SPW_STAGE_BACKWARD);
	for (unsigned i = 3; i-- > 0;) {
		assert_int_equal(spw_cache_ahead(rig.cache, &tensor, &taken), 1);
		assert_int_equal(tensor.value, far[i].tensor.value);
		assert_int_equal(((const uint8_t *)taken.bytes)[1], pattern(far[i].key, 1));
		spw_cache_return(rig.cache, taken.lease);
		assert_int_equal(spw_cache_take(rig.cache, far[i].tensor, 0, 100, &taken), 0);
		assert_null(taken.bytes);
		assert_int_equal(taken.owner, 0);
		released(&far[i]);
	}
	STAT_IS(tensors_ahead, 3);
	STAT_IS(prefetch_hits, 3);
	STAT_IS(host_hits, 3);
	no_drive_was_used();
}

/* ---- Closed ---- */

/* With copies that stay, a lease and a copy in flight. */
CASE(test_closed_while_in_use)
{
	struct piece far;

	(void)host_set_up(NULL);
	(void)far_hosted(1, 100);
	far = far_hosted(2, 100);
	(void)far_offered(3, 100, SPW_OFFER_COPY);
	(void)taken_from_lease(&far);
	rig_close();
	while (piece_count > 0) {
		void *memory;

		/* All of it is free again. */
		assert_int_equal(spw_arena_alloc(pieces[--piece_count], 2 * MIB, &memory), 0);
		spw_arena_close(pieces[piece_count]);
	}
}

RUN_CASES(NULL, NULL)
