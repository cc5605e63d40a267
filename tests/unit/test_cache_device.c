/* SPDX-License-Identifier: MIT */
/*
 * tests/unit/test_cache_device.c - tensors of a device: copies that end late, or fail, or are not
 * made
 */
/* link: simstore libspillway */
#include "tests/unit/cache_far.h"

/* ---- The course of things ---- */

RIG_CASE(test_there_and_back)
{
	struct piece far = far_offered(1, 100, SPW_OFFER_COPY);
	uint64_t lease;

	state_is(&far, ENTRY_LEAVING);
	assert_int_equal(rig.store->puts, 0);
	none_back();
	STAT_IS(device_bytes, 100);
	STAT_IS(activation_bytes, 100);
	STAT_IS(device_staging_bytes, 100);
	STAT_IS(staging_bytes, 100);

	/* The device's memory is free as soon as the copy has ended, the staging memory is not. */
	copied(&far);
	assert_int_equal(rig.store->puts, 1);
	far_drained(&far);
	STAT_IS(device_bytes, 0);
	STAT_IS(activation_bytes, 0);
	STAT_IS(device_staging_bytes, 100);
	state_is(&far, ENTRY_LEAVING);
	fake_end_oldest(rig.store, FAKE_WRITE, 0);
	state_is(&far, ENTRY_STORED);
	STAT_IS(device_staging_bytes, 0);
	STAT_IS(staging_bytes, 0);

	lease = taken_from_lease(&far);
	STAT_IS(device_bytes, 100);
	STAT_IS(device_staging_bytes, 100);
	released(&far);
	STAT_IS(device_bytes, 0);
	STAT_IS(device_staging_bytes, 100);
	returned(lease);
	STAT_IS(copies, 1);
	STAT_IS(bytes_copied, 100);
	STAT_IS(device_bytes_max, 100);
	STAT_IS(device_staging_bytes_max, 100);
	STAT_IS(bytes_spilled, 100);
	STAT_IS(bytes_read, 100);
}

RIG_CASE(test_written_before_the_token_is_back)
{
	struct piece far = far_copied(1, 100);

	fake_end_oldest(rig.store, FAKE_WRITE, 0);
	state_is(&far, ENTRY_LEAVING);
	assert_int_equal(rig.store->arena_used, 0);
	far_drained(&far);
	state_is(&far, ENTRY_STORED);
}

/* What was handed out has been copied: staging memory is for others, a second pass reads again. */
RIG_CASE(test_taken_twice)
{
	struct piece far = far_stored(1, 100);
	uint64_t lease = taken_from_lease(&far);

	assert_int_equal(taken_from_lease(&far), lease);
	returned(lease);
	state_is(&far, ENTRY_RESIDENT);
	returned(lease);
	state_is(&far, ENTRY_STORED);
	assert_int_equal(rig.store->arena_used, 0);
	STAT_IS(device_bytes, 100);
	lease = taken_from_lease(&far);
	STAT_IS(device_bytes, 100);
	assert_int_equal(rig.store->gets, 2);
}

RIG_CASE(test_kept_by_the_rules)
{
	struct piece far = far_offered(1, 15, SPW_OFFER_KEEP);

	state_is(&far, ENTRY_KEPT);
	taken_from_owner(&far);
	far_gone(&far);
	STAT_IS(bytes_kept_small, 15);
	assert_int_equal(rig.store->arena_used, 0);
}

/* ---- Released, and forwarded ---- */

/* Taken, released, or both: the bytes stay, and the token comes back when the copy has ended. */
CASE(test_during_the_copy)
{
	for (unsigned i = 0; i < 6; i++) {
		bool taken = i % 3 > 0, is_released = i % 3 < 2;
		struct piece far;

		rig_default();
		far = far_copying(taken, is_released);
		assert_int_equal(rig.store->arena_used, 100);
		copy_ended(&far, i < 3 ? 0 : -EIO);
		assert_int_equal(rig.store->puts, 0);
		assert_int_equal(rig.store->arena_used, 0);
		STAT_IS(staging_bytes, 0);
		STAT_IS(bytes_forwarded, taken ? 100 : 0);
		far_copied_meanwhile(&far, is_released);
		rig_end();
	}
}

RIG_CASE(test_released_during_the_write)
{
	struct piece far = far_copied(1, 100);

	fake_issue(fake_pending(rig.store, FAKE_WRITE, 0));
	far_gone(&far);
	assert_int_equal(rig.store->arena_used, 100);
}

/* The device still has it: no copy back. The write may be under way, or have ended. */
CASE(test_forwarded_before_the_token_is_back)
{
	for (unsigned i = 0; i < 3; i++) {
		struct piece far;

		rig_default();
		far = far_copied(1, 100);
		if (i > 0)
			fake_issue(fake_pending(rig.store, FAKE_WRITE, 0));
		if (i > 1)
			fake_end_oldest(rig.store, FAKE_WRITE, 0);
		taken_from_owner(&far);
		none_back();
		assert_int_equal(rig.store->cancels, i == 0);
		if (i < 2) {
			assert_int_equal(rig.store->arena_used, 100);
			fake_end_oldest(rig.store, FAKE_WRITE, 0);
		}
		assert_int_equal(rig.store->arena_used, 0);
		assert_int_equal(rig.store->objects_used, 0);
		taken_from_owner(&far);
		rig_end();
	}
}

/* The device has given it up: out of staging memory, which the write needs as well. */
CASE(test_forwarded_out_of_staging)
{
	for (unsigned i = 0; i < 2; i++) {
		struct piece far;
		uint64_t lease;

		rig_default();
		far = far_copied(1, 100);
		far_drained(&far);
		if (i > 0)
			fake_issue(fake_pending(rig.store, FAKE_WRITE, 0));
		lease = taken_from_lease(&far);
		assert_int_equal(rig.store->cancels, i == 0);
		returned(lease);
		fake_end_oldest(rig.store, FAKE_WRITE, 0);
		assert_int_equal(rig.store->objects_used, 0);
		/* Nowhere else: it stays. */
		lease = taken_from_lease(&far);
		assert_int_equal(rig.store->gets, 0);
		STAT_IS(bytes_forwarded, 100);
		STAT_IS(device_bytes, 100);
		released(&far);
		assert_int_equal(rig.store->arena_used, 100);
		rig_end();
	}
}

/* ---- What goes wrong ---- */

RIG_CASE(test_a_copy_fails)
{
	struct piece far;

	for (unsigned i = 0; i < 20; i++) {
		spw_cache_step(rig.cache);
		far = far_offered(1 + i, 100, SPW_OFFER_COPY);
		copy_ended(&far, -EIO);
		state_is(&far, ENTRY_KEPT);
		assert_int_equal(rig.store->arena_used, 0);
		none_back();
		taken_from_owner(&far);
		far_gone(&far);
	}
	STAT_IS(bytes_kept_error, 2000);
	STAT_IS(copies_failed, 20);
	STAT_IS(copies, 0);
	assert_int_equal(rig.store->puts, 0);
}

OPENED_CASE(test_no_staging_memory)
{
	struct piece first, second;

	rig.opts.mode = SPW_CACHE_FASTEST;
	rig_open();
	rig.store->arena = 150;
	first = far_copied(1, 100);
	second = far_offered(2, 100, SPW_OFFER_WAIT);
	assert_int_equal(retried(&second), SPW_OFFER_WAIT);
	STAT_IS(staging_waits, 1); /* tensors that did */
	assert_int_equal(spw_cache_wait_write(rig.cache), 0);
	/* The device has come to it: the step would wait for the drives. */
	assert_int_equal(retried_last(&second), SPW_OFFER_KEEP);
	assert_int_equal(retried_last(&second), SPW_OFFER_KEEP);
	STAT_IS(bytes_kept_no_staging, 100);
	STAT_IS(tensors_kept_no_staging, 1);
	STAT_IS(staging_bytes, 100);
	assert_non_null(strstr(rig.log_text, "staging memory"));
	far_drained(&first);
	far_gone(&second);
}

/* While the host is ahead of the device, staging memory is waited for. */
RIG_CASE(test_staging_memory_is_waited_for)
{
	struct piece first, second, third;

	rig.store->arena = 250;
	first = far_offered(1, 100, SPW_OFFER_COPY);
	second = far_offered(2, 100, SPW_OFFER_COPY);
	third = far_offered(3, 100, SPW_OFFER_WAIT);
	state_is(&third, ENTRY_KEPT);
	assert_int_equal(spw_cache_wait_write(rig.cache), 0); /* the oldest copy is to end */
	copied(&first);
	assert_int_equal(retried(&third), SPW_OFFER_WAIT);
	fake_end_oldest(rig.store, FAKE_WRITE, 0);
	assert_int_equal(retried(&third), SPW_OFFER_COPY);
	state_is(&third, ENTRY_LEAVING);
	assert_int_equal(retried(&third), SPW_OFFER_KEEP); /* it is copied already */
	copied(&third);
	copied(&second);
	fake_end_all(rig.store);
	STAT_IS(tensors_spilled, 3);
	STAT_IS(tensors_kept_no_staging, 0);
	released(&third);
	assert_int_equal(retried(&third), -ENOENT);
}

/* Memory is worth more than time: the step may wait for the drives. */
RIG_CASE(test_drives_are_waited_for)
{
	struct piece first, second, third;

	rig.store->arena = 150;
	first = far_offered(1, 100, SPW_OFFER_COPY);
	second = far_offered(2, 100, SPW_OFFER_WAIT);
	third = far_offered(3, 100, SPW_OFFER_WAIT);
	far_gone(&third); /* while it waits */
	copied(&first);
	assert_int_equal(retried(&second), SPW_OFFER_WAIT);
	fake_end_oldest(rig.store, FAKE_WRITE, 0);
	assert_int_equal(spw_cache_wait_write(rig.cache), 1);
	assert_int_equal(retried(&second), SPW_OFFER_COPY);
	copied(&second);
	fake_end_all(rig.store);
	STAT_IS(tensors_spilled, 2);
	STAT_IS(tensors_kept_no_staging, 0);
}

/* Nothing is copied or written that would give it back. */
RIG_CASE(test_staging_memory_that_does_not_come)
{
	rig.store->arena = 50;
	(void)far_offered(1, 100, SPW_OFFER_KEEP);
	STAT_IS(tensors_kept_no_staging, 1);
}

/* Copies count as what waits to be written; while there are some, others wait for them. */
OPENED_CASE(test_backpressure)
{
	struct piece first, second;

	rig.opts.staging_bytes = 150;
	rig_open();
	(void)far_offered(9, 151, SPW_OFFER_KEEP);
	STAT_IS(bytes_kept_backpressure, 151);
	first = far_offered(1, 100, SPW_OFFER_COPY);
	second = far_offered(2, 100, SPW_OFFER_WAIT);
	STAT_IS(staging_bytes, 100);
	copied(&first);
	fake_end_oldest(rig.store, FAKE_WRITE, 0);
	assert_int_equal(retried(&second), SPW_OFFER_COPY);
	copied(&second);
	(void)far_offered(3, 100, SPW_OFFER_WAIT);
	STAT_IS(bytes_kept_backpressure, 151);
	STAT_IS(bytes_kept_no_staging, 0);
}

/* The device may have given its memory up: the bytes stay in staging memory. */
CASE(test_a_write_fails)
{
	for (unsigned i = 0; i < 3; i++) {
		struct piece far;

		rig_default();
		if (i == 0)
			rig.store->put_error = -ENOSPC;
		far = far_copied(1, 100);
		if (i < 2)
			far_drained(&far);
		if (i > 0)
			fake_end_oldest(rig.store, FAKE_WRITE, -ENOSPC);
		if (i == 2)
			far_drained(&far);
		state_is(&far, ENTRY_RESIDENT);
		STAT_IS(bytes_kept_no_space, 100);
		STAT_IS(staging_bytes, 0);
		STAT_IS(bytes_forwarded, 0);
		assert_int_equal(rig.store->objects_used, 0);
		returned(taken_from_lease(&far));
		assert_int_equal(rig.store->arena_used, 100);
		(void)taken_from_lease(&far);
		rig_end();
	}
}

RIG_CASE(test_a_read_fails)
{
	struct piece far = far_stored(1, 100);
	struct spw_taken taken;

	rig.store->wait_res = -EIO;
	assert_int_equal(spw_cache_take(rig.cache, far.tensor, 0, 100, &taken), -EIO);
	assert_int_equal(rig.store->arena_used, 0);
	STAT_IS(device_bytes, 0);
	rig.store->wait_res = 0;
	returned(taken_from_lease(&far));
}

RIG_CASE(test_wrong_calls)
{
	struct piece far = far_make(1, 100);
	const struct spw_offer offer = {.storage_key = 1,
					.storage_bytes = far.bytes,
					.storage_len_bytes = 100,
					.len_bytes = 100,
					.owner = 1};

	far.tensor.value = 1;
	assert_int_equal(offer_part(&far, 0, 0, 100, 1), -EINVAL);
	assert_int_equal(far.tensor.value, 0);
	assert_int_equal(
		spw_cache_offer_device(rig.cache, &offer, 1, SPW_HINT_NONE, &far.tensor, NULL),
		-EINVAL);
	assert_int_equal(spw_cache_copied(rig.cache, far.tensor, 0), -ENOENT);
	far = far_offered(1, 100, SPW_OFFER_COPY);
	assert_int_equal(spw_cache_copied(rig.cache, far.tensor, 1), -EINVAL);
	copied(&far);
	assert_int_equal(spw_cache_copied(rig.cache, far.tensor, 0), -ENOENT);
	far_gone(&far);
	fake_end_oldest(rig.store, FAKE_WRITE, 0);
	assert_int_equal(spw_cache_copied(rig.cache, far.tensor, 0), -ENOENT);
}

/* ---- Duplicates ---- */

RIG_CASE(test_duplicates_of_what_is_kept)
{
	struct piece far, again, moved;

	far = again = far_offered(1, 15, SPW_OFFER_KEEP);
	assert_int_equal(offer_at(&again, 100), SPW_OFFER_DEDUP);
	assert_int_equal(again.tensor.value, far.tensor.value);
	/* Key and version say that it is the same, the address says that it is not. */
	moved = far;
	moved.bytes += 4096;
	assert_int_equal(offer_at(&moved, 101), SPW_OFFER_KEEP);
	STAT_IS(offers_changed, 1);
	assert_int_not_equal(moved.tensor.value, far.tensor.value);
}

/* What is computed from it is compared: it is the same tensor wherever its bytes are. */
RIG_CASE(test_the_input_of_a_scope)
{
	struct piece stored = far_stored(1, 100), copying = far_offered(2, 100, SPW_OFFER_COPY);
	struct spw_offer offer = {.storage_key = 1,
				  .storage_bytes = stored.bytes,
				  .storage_len_bytes = 100,
				  .len_bytes = 100,
				  .owner = 100};
	struct spw_copy copy;
	spw_tensor tensor;

	assert_int_equal(
		spw_cache_offer_device(rig.cache, &offer, DEVICE, SPW_HINT_INPUT, &tensor, &copy),
		SPW_OFFER_DEDUP);
	assert_int_equal(tensor.value, stored.tensor.value);
	assert_int_equal(spw_cache_release(rig.cache, tensor), 0);
	offer.storage_key = 2;
	offer.storage_bytes = copying.bytes;
	assert_int_equal(
		spw_cache_offer_device(rig.cache, &offer, DEVICE, SPW_HINT_INPUT, &tensor, &copy),
		SPW_OFFER_DEDUP);
	assert_int_equal(tensor.value, copying.tensor.value);
	assert_int_equal(spw_cache_release(rig.cache, tensor), 0);
	copied(&copying);
}

/* The memory may have changed since the first copy began: both have to end, in any order. */
CASE(test_copied_again)
{
	for (unsigned failing = 0; failing < 3; failing++) {
		struct piece far, again;

		rig_default();
		far = again = far_offered(1, 100, SPW_OFFER_COPY);
		assert_int_equal(offer_at(&again, 100), SPW_OFFER_COPY_AGAIN);
		assert_int_equal(again.tensor.value, far.tensor.value);
		assert_ptr_equal(again.copy.staging, far.copy.staging);
		assert_int_equal(again.copy.len_bytes, 100);
		STAT_IS(bytes_copied_again, 100);
		copy_ended(&far, failing == 1 ? -EIO : 0);
		assert_int_equal(rig.store->puts, 0);
		none_back();
		copy_ended(&far, failing == 2 ? -EIO : 0);
		assert_int_equal(rig.store->puts, failing == 0);
		if (failing > 0)
			taken_from_owner(&far);
		else
			far_drained(&far);
		rig_end();
	}
}

/* Once forwarded, all users have the owner's memory: no copy is worth it. */
RIG_CASE(test_duplicates_of_what_is_forwarded)
{
	struct piece far, again;

	far = again = far_offered(1, 100, SPW_OFFER_COPY);
	taken_from_owner(&far);
	assert_int_equal(offer_at(&again, 100), SPW_OFFER_DEDUP);
	copied(&far);
	assert_int_equal(offer_at(&again, 100), SPW_OFFER_DEDUP);
}

/* What has left the device cannot be compared. */
CASE(test_no_duplicates_of_what_has_left)
{
	for (unsigned i = 0; i < 4; i++) {
		struct piece far, again;

		rig_default();
		far = again = far_copied(1, 100);
		if (i > 0)
			far_drained(&far);
		if (i > 1)
			fake_end_oldest(rig.store, FAKE_WRITE, 0);
		if (i > 2)
			(void)taken_from_lease(&far);
		spw_cache_step(rig.cache);
		assert_int_equal(offer_at(&again, 100), SPW_OFFER_COPY);
		assert_int_not_equal(again.tensor.value, far.tensor.value);
		copied(&again);
		rig_end();
	}
}

RIG_CASE(test_a_key_in_host_memory_too)
{
	struct piece far = far_offered(1, 15, SPW_OFFER_KEEP);

	(void)offered(1, 15, SPW_OFFER_KEEP);
	far_gone(&far);
	assert_int_equal(offer_at(&far, 1), SPW_OFFER_KEEP);
}

/* A part begins where every element may. */
RIG_CASE(test_parts)
{
	struct piece far = far_make(1, 1000);
	struct spw_taken taken;

	assert_int_equal(offer_part(&far, 7, 100, 40, 1), SPW_OFFER_COPY);
	assert_int_equal(far.copy.offset_bytes, 96);
	assert_int_equal(far.copy.len_bytes, 44);
	copied(&far);
	far_drained(&far);
	fake_end_oldest(rig.store, FAKE_WRITE, 0);
	assert_int_equal(spw_cache_take(rig.cache, far.tensor, 100, 40, &taken), 0);
	assert_int_equal(taken.storage_bytes_before, 4);
	assert_int_equal(taken.storage_bytes_total, 44);
	for (size_t i = 0; i < 40; i++)
		assert_int_equal(((const uint8_t *)taken.bytes)[i], pattern(1, 100 + i));
	spw_cache_return(rig.cache, taken.lease);
}

/* ---- Closing ---- */

CASE(test_closed_with_all_there_is)
{
	struct piece far;

	rig_default();
	far = far_stored(1, 100); /* handed out */
	(void)taken_from_lease(&far);
	spw_cache_step(rig.cache);
	far = far_offered(2, 100, SPW_OFFER_COPY); /* forwarded during its copy */
	taken_from_owner(&far);
	spw_cache_step(rig.cache);
	far = far_offered(3, 100, SPW_OFFER_COPY); /* released during its copy */
	released(&far);
	(void)far_offered(4, 100, SPW_OFFER_COPY); /* a copy under way */
	(void)far_copied(5, 100);                  /* written, and the token not back */
	fake_end_oldest(rig.store, FAKE_WRITE, 0);
	rig_close();
}

RUN_CASES(NULL, NULL)
