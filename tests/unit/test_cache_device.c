/* SPDX-License-Identifier: MIT */
/*
 * tests/unit/test_cache_device.c - tensors of a device: copies that end late, in any order, or fail
 *
 * The device is a fake. Its addresses are no memory, so that whatever reads from them crashes. A
 * copy fills the staging memory when it ends, not when it begins, so that what is used or given
 * back too early has other bytes.
 */
/* link: tools/replay/simstore libspillway */
#include <sys/random.h>

#include "tests/unit/cache_rig.h"

#define DEVICE 1u

/* A tensor on a device; its token is its key. */
struct far {
	uint64_t key;
	size_t len;
	uintptr_t address;
	spw_tensor tensor;
	struct spw_copy copy;
};

static int offer_at(struct rig *rig, struct far *far, uint64_t owner)
{
	const struct spw_offer offer = {.storage_key = far->key,
					.storage_bytes = (const void *)far->address,
					.storage_len_bytes = far->len,
					.len_bytes = far->len,
					.owner = owner};

	return spw_cache_offer_device(rig->cache, &offer, DEVICE, SPW_HINT_NONE, &far->tensor,
				      &far->copy);
}

static struct far far_make(uint64_t key, size_t len)
{
	/* No address of this machine's memory is so high. */
	return (struct far){.key = key, .len = len, .address = UINTPTR_MAX / 2 + (key << 32)};
}

static struct far far_offered(struct rig *rig, uint64_t key, size_t len, int result)
{
	struct far far = far_make(key, len);

	assert_int_equal(offer_at(rig, &far, key), result);
	assert_int_not_equal(far.tensor.value, 0);
	return far;
}

/* The copy ends: the bytes are in staging memory only now. */
static void copied(struct rig *rig, const struct far *far)
{
	uint8_t *staging = far->copy.staging;

	for (size_t i = 0; i < far->copy.len_bytes; i++)
		staging[i] = pattern(far->key, far->copy.offset_bytes + i);
	assert_int_equal(spw_cache_copied(rig->cache, far->tensor, 0), 0);
}

static struct far far_copied(struct rig *rig, uint64_t key, size_t len)
{
	struct far far = far_offered(rig, key, len, SPW_OFFER_COPY);

	assert_int_equal(far.copy.offset_bytes, 0);
	assert_int_equal(far.copy.len_bytes, len);
	copied(rig, &far);
	return far;
}

static void far_drained(struct rig *rig, const struct far *far)
{
	uint64_t owner = 0;

	assert_int_equal(spw_cache_drain_device(rig->cache, &owner, 1), 1);
	assert_int_equal(owner, far->key);
}

static void none_back(struct rig *rig)
{
	uint64_t owner;

	assert_int_equal(spw_cache_drain_device(rig->cache, &owner, 1), 0);
	nothing_drained(rig);
}

static struct far far_stored(struct rig *rig, uint64_t key, size_t len)
{
	struct far far = far_copied(rig, key, len);

	far_drained(rig, &far);
	fake_end_oldest(rig->store, FAKE_WRITE, 0);
	assert_int_equal(rig->store->arena_used, 0);
	return far;
}

static void far_released(struct rig *rig, const struct far *far)
{
	assert_int_equal(spw_cache_release(rig->cache, far->tensor), 0);
}

static void far_taken_from_owner(struct rig *rig, const struct far *far)
{
	struct spw_taken taken;

	assert_int_equal(spw_cache_take(rig->cache, far->tensor, 0, far->len, &taken), 0);
	assert_null(taken.bytes);
	assert_int_equal(taken.owner, far->key);
}

static uint64_t far_taken_from_lease(struct rig *rig, const struct far *far)
{
	const struct piece piece = {.key = far->key, .len = far->len, .tensor = far->tensor};

	return taken_from_lease(rig, &piece);
}

static struct entry *entry_of(struct rig *rig, const struct far *far)
{
	return spw_entry_of_id(rig->cache, far->tensor.value);
}

static void state_is(struct rig *rig, const struct far *far, enum entry_state state)
{
	assert_int_equal(entry_of(rig, far)->state, state);
}

static void far_end(struct rig *rig)
{
	struct spw_cache_stats stats = rig_stats(rig);

	assert_int_equal(stats.device_bytes, 0);
	assert_int_equal(stats.device_staging_bytes, 0);
	rig_end(rig);
}

/* ---- The course of things ---- */

static void test_there_and_back(void **state)
{
	struct rig rig;
	struct far far;
	uint64_t lease;

	(void)state;
	rig_default(&rig);
	far = far_offered(&rig, 1, 100, SPW_OFFER_COPY);
	state_is(&rig, &far, ENTRY_LEAVING);
	assert_int_equal(rig.store->puts, 0);
	none_back(&rig);
	assert_int_equal(rig_stats(&rig).device_bytes, 100);
	assert_int_equal(rig_stats(&rig).activation_bytes, 100);
	assert_int_equal(rig_stats(&rig).device_staging_bytes, 100);
	assert_int_equal(rig_stats(&rig).staging_bytes, 100);

	/* The device's memory is free as soon as the copy has ended, the staging memory is not. */
	copied(&rig, &far);
	assert_int_equal(rig.store->puts, 1);
	far_drained(&rig, &far);
	assert_int_equal(rig_stats(&rig).device_bytes, 0);
	assert_int_equal(rig_stats(&rig).activation_bytes, 0);
	assert_int_equal(rig_stats(&rig).device_staging_bytes, 100);
	state_is(&rig, &far, ENTRY_LEAVING);
	fake_end_oldest(rig.store, FAKE_WRITE, 0);
	state_is(&rig, &far, ENTRY_STORED);
	assert_int_equal(rig_stats(&rig).device_staging_bytes, 0);
	assert_int_equal(rig_stats(&rig).staging_bytes, 0);

	lease = far_taken_from_lease(&rig, &far);
	assert_int_equal(rig_stats(&rig).device_bytes, 100);
	assert_int_equal(rig_stats(&rig).device_staging_bytes, 100);
	far_released(&rig, &far);
	assert_int_equal(rig_stats(&rig).device_bytes, 0);
	assert_int_equal(rig_stats(&rig).device_staging_bytes, 100);
	spw_cache_return(rig.cache, lease);
	assert_int_equal(rig_stats(&rig).copies, 1);
	assert_int_equal(rig_stats(&rig).bytes_copied, 100);
	assert_int_equal(rig_stats(&rig).device_bytes_max, 100);
	assert_int_equal(rig_stats(&rig).device_staging_bytes_max, 100);
	assert_int_equal(rig_stats(&rig).bytes_spilled, 100);
	assert_int_equal(rig_stats(&rig).bytes_read, 100);
	far_end(&rig);
}

static void test_written_before_the_token_is_back(void **state)
{
	struct rig rig;
	struct far far;

	(void)state;
	rig_default(&rig);
	far = far_copied(&rig, 1, 100);
	fake_end_oldest(rig.store, FAKE_WRITE, 0);
	state_is(&rig, &far, ENTRY_LEAVING);
	assert_int_equal(rig.store->arena_used, 0);
	far_drained(&rig, &far);
	state_is(&rig, &far, ENTRY_STORED);
	far_released(&rig, &far);
	far_end(&rig);
}

/* What was handed out has been copied: staging memory is for others, a second pass reads again. */
static void test_taken_twice(void **state)
{
	struct rig rig;
	struct far far;
	uint64_t lease;

	(void)state;
	rig_default(&rig);
	far = far_stored(&rig, 1, 100);
	lease = far_taken_from_lease(&rig, &far);
	assert_int_equal(far_taken_from_lease(&rig, &far), lease);
	spw_cache_return(rig.cache, lease);
	state_is(&rig, &far, ENTRY_RESIDENT);
	spw_cache_return(rig.cache, lease);
	state_is(&rig, &far, ENTRY_STORED);
	assert_int_equal(rig.store->arena_used, 0);
	assert_int_equal(rig_stats(&rig).device_bytes, 100);
	lease = far_taken_from_lease(&rig, &far);
	assert_int_equal(rig_stats(&rig).device_bytes, 100);
	assert_int_equal(rig.store->gets, 2);
	spw_cache_return(rig.cache, lease);
	far_released(&rig, &far);
	far_end(&rig);
}

static void test_kept_by_the_rules(void **state)
{
	struct rig rig;
	struct far far;

	(void)state;
	rig_default(&rig);
	far = far_offered(&rig, 1, 15, SPW_OFFER_KEEP);
	state_is(&rig, &far, ENTRY_KEPT);
	far_taken_from_owner(&rig, &far);
	far_released(&rig, &far);
	far_drained(&rig, &far);
	assert_int_equal(rig_stats(&rig).bytes_kept_small, 15);
	assert_int_equal(rig.store->arena_used, 0);
	far_end(&rig);
}

/* ---- Released, and forwarded ---- */

static void test_released_during_the_copy(void **state)
{
	struct rig rig;
	struct far far;

	(void)state;
	rig_default(&rig);
	far = far_offered(&rig, 1, 100, SPW_OFFER_COPY);
	far_released(&rig, &far);
	none_back(&rig);
	assert_int_equal(rig.store->arena_used, 100);
	copied(&rig, &far);
	assert_int_equal(rig.store->puts, 0);
	assert_int_equal(rig.store->arena_used, 0);
	assert_int_equal(rig_stats(&rig).staging_bytes, 0);
	far_drained(&rig, &far);
	far_end(&rig);
}

static void test_released_during_the_write(void **state)
{
	struct rig rig;
	struct far far;

	(void)state;
	rig_default(&rig);
	far = far_copied(&rig, 1, 100);
	fake_issue(fake_pending(rig.store, FAKE_WRITE, 0));
	far_released(&rig, &far);
	far_drained(&rig, &far);
	assert_int_equal(rig.store->arena_used, 100);
	fake_end_oldest(rig.store, FAKE_WRITE, 0);
	far_end(&rig);
}

static void test_forwarded_during_the_copy(void **state)
{
	struct rig rig;
	struct far far;

	(void)state;
	rig_default(&rig);
	far = far_offered(&rig, 1, 100, SPW_OFFER_COPY);
	far_taken_from_owner(&rig, &far);
	state_is(&rig, &far, ENTRY_RESIDENT);
	assert_int_equal(rig.store->arena_used, 100);
	copied(&rig, &far);
	assert_int_equal(rig.store->puts, 0);
	assert_int_equal(rig.store->arena_used, 0);
	none_back(&rig);
	far_taken_from_owner(&rig, &far);
	assert_int_equal(rig_stats(&rig).bytes_forwarded, 100);
	far_released(&rig, &far);
	far_drained(&rig, &far);
	far_end(&rig);
}

static void test_forwarded_and_released_during_the_copy(void **state)
{
	struct rig rig;
	struct far far;

	(void)state;
	rig_default(&rig);
	far = far_offered(&rig, 1, 100, SPW_OFFER_COPY);
	far_taken_from_owner(&rig, &far);
	far_released(&rig, &far);
	none_back(&rig);
	assert_int_equal(spw_cache_copied(rig.cache, far.tensor, -EIO), 0);
	far_drained(&rig, &far);
	far_end(&rig);
}

/* The device still has it: no copy back. The write may be under way, or have ended. */
static void test_forwarded_before_the_token_is_back(void **state)
{
	(void)state;
	for (unsigned i = 0; i < 3; i++) {
		struct rig rig;
		struct far far;

		rig_default(&rig);
		far = far_copied(&rig, 1, 100);
		if (i > 0)
			fake_issue(fake_pending(rig.store, FAKE_WRITE, 0));
		if (i > 1)
			fake_end_oldest(rig.store, FAKE_WRITE, 0);
		far_taken_from_owner(&rig, &far);
		none_back(&rig);
		assert_int_equal(rig.store->cancels, i == 0);
		if (i < 2) {
			assert_int_equal(rig.store->arena_used, 100);
			fake_end_oldest(rig.store, FAKE_WRITE, 0);
		}
		assert_int_equal(rig.store->arena_used, 0);
		assert_int_equal(rig.store->objects_used, 0);
		far_taken_from_owner(&rig, &far);
		far_released(&rig, &far);
		far_drained(&rig, &far);
		far_end(&rig);
	}
}

/* The device has given it up: out of staging memory, which the write needs as well. */
static void test_forwarded_out_of_staging(void **state)
{
	(void)state;
	for (unsigned i = 0; i < 2; i++) {
		struct rig rig;
		struct far far;
		uint64_t lease;

		rig_default(&rig);
		far = far_copied(&rig, 1, 100);
		far_drained(&rig, &far);
		if (i > 0)
			fake_issue(fake_pending(rig.store, FAKE_WRITE, 0));
		lease = far_taken_from_lease(&rig, &far);
		assert_int_equal(rig.store->cancels, i == 0);
		spw_cache_return(rig.cache, lease);
		fake_end_oldest(rig.store, FAKE_WRITE, 0);
		assert_int_equal(rig.store->objects_used, 0);
		/* Nowhere else: it stays. */
		lease = far_taken_from_lease(&rig, &far);
		assert_int_equal(rig.store->gets, 0);
		assert_int_equal(rig_stats(&rig).bytes_forwarded, 100);
		assert_int_equal(rig_stats(&rig).device_bytes, 100);
		far_released(&rig, &far);
		assert_int_equal(rig.store->arena_used, 100);
		spw_cache_return(rig.cache, lease);
		far_end(&rig);
	}
}

/* ---- What goes wrong ---- */

static void test_a_copy_fails(void **state)
{
	struct rig rig;
	struct far far;

	(void)state;
	rig_default(&rig);
	for (unsigned i = 0; i < 20; i++) {
		spw_cache_step(rig.cache);
		far = far_offered(&rig, 1 + i, 100, SPW_OFFER_COPY);
		assert_int_equal(spw_cache_copied(rig.cache, far.tensor, -EIO), 0);
		state_is(&rig, &far, ENTRY_KEPT);
		assert_int_equal(rig.store->arena_used, 0);
		none_back(&rig);
		far_taken_from_owner(&rig, &far);
		far_released(&rig, &far);
		far_drained(&rig, &far);
	}
	assert_int_equal(rig_stats(&rig).bytes_kept_error, 2000);
	assert_int_equal(rig_stats(&rig).copies_failed, 20);
	assert_int_equal(rig_stats(&rig).copies, 0);
	assert_int_equal(rig.store->puts, 0);
	far_end(&rig);
}

static void test_no_staging_memory(void **state)
{
	struct rig rig;
	struct far first, second;

	(void)state;
	rig_default(&rig);
	rig.store->arena = 150;
	first = far_offered(&rig, 1, 100, SPW_OFFER_COPY);
	second = far_offered(&rig, 2, 100, SPW_OFFER_KEEP);
	assert_int_equal(rig_stats(&rig).bytes_kept_no_staging, 100);
	assert_int_equal(rig_stats(&rig).tensors_kept_no_staging, 1);
	assert_int_equal(rig_stats(&rig).staging_bytes, 100);
	assert_non_null(strstr(rig.log_text, "staging memory"));
	far_released(&rig, &second);
	far_drained(&rig, &second);
	copied(&rig, &first);
	far_drained(&rig, &first);
	fake_end_oldest(rig.store, FAKE_WRITE, 0);
	far_released(&rig, &first);
	far_end(&rig);
}

/* Copies count as what waits to be written. */
static void test_backpressure(void **state)
{
	struct rig rig;
	struct far first, second;

	(void)state;
	rig_begin(&rig);
	rig.opts.staging_bytes = 150;
	rig_open(&rig);
	first = far_offered(&rig, 1, 100, SPW_OFFER_COPY);
	second = far_offered(&rig, 2, 100, SPW_OFFER_KEEP);
	assert_int_equal(rig_stats(&rig).bytes_kept_backpressure, 100);
	far_released(&rig, &second);
	far_drained(&rig, &second);
	copied(&rig, &first);
	second = far_offered(&rig, 3, 100, SPW_OFFER_KEEP);
	far_released(&rig, &second);
	far_drained(&rig, &first);
	far_drained(&rig, &second);
	fake_end_oldest(rig.store, FAKE_WRITE, 0);
	far_released(&rig, &first);
	far_end(&rig);
}

/* The device may have given its memory up: the bytes stay in staging memory. */
static void test_a_write_fails(void **state)
{
	(void)state;
	for (unsigned i = 0; i < 3; i++) {
		struct rig rig;
		struct far far;
		uint64_t lease;

		rig_default(&rig);
		if (i == 0)
			rig.store->put_error = -ENOSPC;
		far = far_copied(&rig, 1, 100);
		if (i < 2)
			far_drained(&rig, &far);
		if (i > 0)
			fake_end_oldest(rig.store, FAKE_WRITE, -ENOSPC);
		if (i == 2)
			far_drained(&rig, &far);
		state_is(&rig, &far, ENTRY_RESIDENT);
		assert_int_equal(rig_stats(&rig).bytes_kept_no_space, 100);
		assert_int_equal(rig_stats(&rig).staging_bytes, 0);
		assert_int_equal(rig_stats(&rig).bytes_forwarded, 0);
		assert_int_equal(rig.store->objects_used, 0);
		lease = far_taken_from_lease(&rig, &far);
		spw_cache_return(rig.cache, lease);
		assert_int_equal(rig.store->arena_used, 100);
		lease = far_taken_from_lease(&rig, &far);
		spw_cache_return(rig.cache, lease);
		far_released(&rig, &far);
		far_end(&rig);
	}
}

static void test_a_read_fails(void **state)
{
	struct rig rig;
	struct spw_taken taken;
	struct far far;

	(void)state;
	rig_default(&rig);
	far = far_stored(&rig, 1, 100);
	rig.store->wait_res = -EIO;
	assert_int_equal(spw_cache_take(rig.cache, far.tensor, 0, 100, &taken), -EIO);
	assert_int_equal(rig.store->arena_used, 0);
	assert_int_equal(rig_stats(&rig).device_bytes, 0);
	rig.store->wait_res = 0;
	spw_cache_return(rig.cache, far_taken_from_lease(&rig, &far));
	far_released(&rig, &far);
	far_end(&rig);
}

static void test_wrong_calls(void **state)
{
	struct rig rig;
	struct far far = far_make(1, 100);
	const struct spw_offer offer = {.storage_key = 1,
					.storage_bytes = (const void *)far.address,
					.storage_len_bytes = 100,
					.len_bytes = 100,
					.owner = 1};

	(void)state;
	rig_default(&rig);
	far.tensor.value = 1;
	assert_int_equal(
		spw_cache_offer_device(rig.cache, &offer, 0, SPW_HINT_NONE, &far.tensor, &far.copy),
		-EINVAL);
	assert_int_equal(far.tensor.value, 0);
	assert_int_equal(
		spw_cache_offer_device(rig.cache, &offer, 1, SPW_HINT_NONE, &far.tensor, NULL),
		-EINVAL);
	assert_int_equal(spw_cache_copied(rig.cache, far.tensor, 0), -ENOENT);
	far = far_offered(&rig, 1, 100, SPW_OFFER_COPY);
	assert_int_equal(spw_cache_copied(rig.cache, far.tensor, 1), -EINVAL);
	copied(&rig, &far);
	assert_int_equal(spw_cache_copied(rig.cache, far.tensor, 0), -ENOENT);
	far_released(&rig, &far);
	far_drained(&rig, &far);
	fake_end_oldest(rig.store, FAKE_WRITE, 0);
	assert_int_equal(spw_cache_copied(rig.cache, far.tensor, 0), -ENOENT);
	far_end(&rig);
}

/* ---- Duplicates ---- */

static void test_duplicates_of_what_is_kept(void **state)
{
	struct rig rig;
	struct far far, again, moved;

	(void)state;
	rig_default(&rig);
	far = again = far_offered(&rig, 1, 15, SPW_OFFER_KEEP);
	assert_int_equal(offer_at(&rig, &again, 100), SPW_OFFER_DEDUP);
	assert_int_equal(again.tensor.value, far.tensor.value);
	/* Key and version say that it is the same, the address says that it is not. */
	moved = far;
	moved.address += 4096;
	assert_int_equal(offer_at(&rig, &moved, 101), SPW_OFFER_KEEP);
	assert_int_equal(rig_stats(&rig).offers_changed, 1);
	assert_int_not_equal(moved.tensor.value, far.tensor.value);
	far_released(&rig, &far);
	far_released(&rig, &again);
	far_drained(&rig, &far);
	far_released(&rig, &moved);
	moved.key = 101;
	far_drained(&rig, &moved);
	far_end(&rig);
}

/* The memory may have changed since the first copy began: both have to end, in any order. */
static void test_copied_again(void **state)
{
	(void)state;
	for (unsigned failing = 0; failing < 3; failing++) {
		struct rig rig;
		struct far far, again;

		rig_default(&rig);
		far = again = far_offered(&rig, 1, 100, SPW_OFFER_COPY);
		assert_int_equal(offer_at(&rig, &again, 100), SPW_OFFER_COPY_AGAIN);
		assert_int_equal(again.tensor.value, far.tensor.value);
		assert_ptr_equal(again.copy.staging, far.copy.staging);
		assert_int_equal(again.copy.len_bytes, 100);
		assert_int_equal(rig_stats(&rig).bytes_copied_again, 100);
		if (failing == 1)
			assert_int_equal(spw_cache_copied(rig.cache, far.tensor, -EIO), 0);
		else
			copied(&rig, &far);
		assert_int_equal(rig.store->puts, 0);
		none_back(&rig);
		if (failing == 2)
			assert_int_equal(spw_cache_copied(rig.cache, far.tensor, -EIO), 0);
		else
			copied(&rig, &far);
		assert_int_equal(rig.store->puts, failing == 0);
		if (failing > 0)
			far_taken_from_owner(&rig, &far);
		else
			far_drained(&rig, &far);
		fake_end_all(rig.store);
		far_released(&rig, &far);
		far_released(&rig, &again);
		if (failing > 0)
			far_drained(&rig, &far);
		far_end(&rig);
	}
}

/* Once forwarded, all users have the owner's memory: no copy is worth it. */
static void test_duplicates_of_what_is_forwarded(void **state)
{
	struct rig rig;
	struct far far, again;

	(void)state;
	rig_default(&rig);
	far = again = far_offered(&rig, 1, 100, SPW_OFFER_COPY);
	far_taken_from_owner(&rig, &far);
	assert_int_equal(offer_at(&rig, &again, 100), SPW_OFFER_DEDUP);
	copied(&rig, &far);
	assert_int_equal(offer_at(&rig, &again, 100), SPW_OFFER_DEDUP);
	for (unsigned i = 0; i < 3; i++)
		far_released(&rig, &far);
	far_drained(&rig, &far);
	far_end(&rig);
}

/* What has left the device cannot be compared. */
static void test_no_duplicates_of_what_has_left(void **state)
{
	(void)state;
	for (unsigned i = 0; i < 4; i++) {
		struct rig rig;
		struct far far, again;
		uint64_t lease = 0;

		rig_default(&rig);
		far = again = far_copied(&rig, 1, 100);
		if (i > 0)
			far_drained(&rig, &far);
		if (i > 1)
			fake_end_oldest(rig.store, FAKE_WRITE, 0);
		if (i > 2)
			lease = far_taken_from_lease(&rig, &far);
		spw_cache_step(rig.cache);
		assert_int_equal(offer_at(&rig, &again, 100), SPW_OFFER_COPY);
		assert_int_not_equal(again.tensor.value, far.tensor.value);
		copied(&rig, &again);
		far_released(&rig, &far);
		if (i == 0)
			far_drained(&rig, &far);
		if (lease)
			spw_cache_return(rig.cache, lease);
		far_released(&rig, &again);
		again.key = 100;
		far_drained(&rig, &again);
		fake_end_all(rig.store);
		far_end(&rig);
	}
}

static void test_a_key_in_host_memory_too(void **state)
{
	struct rig rig;
	struct piece piece;
	struct far far;

	(void)state;
	rig_default(&rig);
	far = far_offered(&rig, 1, 15, SPW_OFFER_KEEP);
	piece = offered(&rig, 1, 15, SPW_OFFER_KEEP);
	far_released(&rig, &far);
	far_drained(&rig, &far);
	assert_int_equal(offer_at(&rig, &far, 1), SPW_OFFER_KEEP);
	released(&rig, &piece);
	drained(&rig, &piece);
	far_released(&rig, &far);
	far_drained(&rig, &far);
	far_end(&rig);
}

/* A part begins where every element may. */
static void test_parts(void **state)
{
	struct rig rig;
	struct far far = far_make(1, 1000);
	struct spw_taken taken;
	const struct spw_offer offer = {.storage_key = 1,
					.storage_bytes = (const void *)far.address,
					.storage_len_bytes = 1000,
					.offset_bytes = 100,
					.len_bytes = 40,
					.owner = 1};

	(void)state;
	rig_default(&rig);
	assert_int_equal(
		spw_cache_offer_device(rig.cache, &offer, 7, SPW_HINT_NONE, &far.tensor, &far.copy),
		SPW_OFFER_COPY);
	assert_int_equal(far.copy.offset_bytes, 96);
	assert_int_equal(far.copy.len_bytes, 44);
	copied(&rig, &far);
	far_drained(&rig, &far);
	fake_end_oldest(rig.store, FAKE_WRITE, 0);
	assert_int_equal(spw_cache_take(rig.cache, far.tensor, 100, 40, &taken), 0);
	assert_int_equal(taken.storage_bytes_before, 4);
	assert_int_equal(taken.storage_bytes_total, 44);
	for (size_t i = 0; i < 40; i++)
		assert_int_equal(((const uint8_t *)taken.bytes)[i], pattern(1, 100 + i));
	spw_cache_return(rig.cache, taken.lease);
	far_released(&rig, &far);
	far_end(&rig);
}

/* ---- Ahead of the use ---- */

static void test_read_ahead(void **state)
{
	struct rig rig;
	struct far far[3];

	(void)state;
	rig_begin(&rig);
	rig.opts.prefetch_bytes = 1000;
	rig_open(&rig);
	spw_cache_step(rig.cache);
	for (unsigned i = 0; i < 3; i++)
		far[i] = far_stored(&rig, 1 + i, 100);
	/* As far as staging memory goes: no other memory is used for what can wait. */
	rig.store->arena = 250;
	spw_cache_stage(rig.cache, 0, SPW_STAGE_BACKWARD);
	assert_int_equal(rig.store->gets, 2);
	fake_end_all(rig.store);
	assert_int_equal(rig.store->gets, 2);
	assert_int_equal(rig_stats(&rig).read_memory_outside_arena_bytes, 0);
	for (unsigned i = 3; i-- > 0;) {
		spw_cache_return(rig.cache, far_taken_from_lease(&rig, &far[i]));
		fake_end_all(rig.store);
		far_released(&rig, &far[i]);
	}
	assert_int_equal(rig_stats(&rig).prefetch_hits, 3);
	assert_int_equal(rig_stats(&rig).misses, 0);
	far_end(&rig);
}

/* A take cannot wait for staging memory that nobody may ever return. */
static void test_taken_without_staging_memory(void **state)
{
	struct rig rig;
	struct far far;

	(void)state;
	rig_default(&rig);
	far = far_stored(&rig, 1, 100);
	rig.store->arena = 0;
	spw_cache_return(rig.cache, far_taken_from_lease(&rig, &far));
	assert_int_equal(rig_stats(&rig).read_memory_outside_arena_bytes, 100);
	assert_int_equal(rig_stats(&rig).device_staging_bytes, 0);
	far_released(&rig, &far);
	far_end(&rig);
}

/* ---- Closing ---- */

static void test_closed_with_all_there_is(void **state)
{
	struct rig rig;
	struct far far;

	(void)state;
	rig_default(&rig);
	far = far_stored(&rig, 1, 100); /* handed out */
	(void)far_taken_from_lease(&rig, &far);
	spw_cache_step(rig.cache);
	far = far_offered(&rig, 2, 100, SPW_OFFER_COPY); /* forwarded during its copy */
	far_taken_from_owner(&rig, &far);
	spw_cache_step(rig.cache);
	far = far_offered(&rig, 3, 100, SPW_OFFER_COPY); /* released during its copy */
	far_released(&rig, &far);
	(void)far_offered(&rig, 4, 100, SPW_OFFER_COPY); /* a copy under way */
	(void)far_copied(&rig, 5, 100);                  /* written, and the token not back */
	fake_end_oldest(rig.store, FAKE_WRITE, 0);
	spw_cache_close(rig.cache);
	simstore_close(rig.store);
}

/* ---- In any order ---- */

#define FARS   40u
#define COPIES 80u
#define OPEN   48u /* users, leases */

static uint64_t seed;

/* What the model knows of one offer: it is the bytes of @key, and the token is @owner. */
struct user {
	struct far far;
	uint64_t owner;
};

struct model {
	struct rig rig;
	uint64_t random;
	struct user users[OPEN];
	struct far copies[COPIES];
	struct {
		uint64_t lease, key;
		const uint8_t *bytes;
		size_t len;
	} leases[OPEN];
	unsigned user_count, copy_count, lease_count;
	uint64_t owners, owner_key[100000]; /* 0: not held */
	uint64_t keys[4], lens[4], last_key;
	uint64_t written, read, forwarded, again;
};

static uint64_t below(struct model *model, uint64_t limit)
{
	uint64_t z = model->random += UINT64_C(0x9e3779b97f4a7c15);

	z = (z ^ z >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
	z = (z ^ z >> 27) * UINT64_C(0x94d049bb133111eb);
	return (z ^ z >> 31) % limit;
}

#define REQUIRE(condition)                                                                   \
	do {                                                                                 \
		if (!(condition))                                                            \
			fail_msg("%s; SPW_SEED=%llu", #condition, (unsigned long long)seed); \
	} while (0)

static void model_offer(struct model *model)
{
	unsigned which = (unsigned)below(model, SPW_ARRAY_LEN(model->keys));
	struct user *user = &model->users[model->user_count];
	int rc;

	if (model->user_count == OPEN || model->copy_count == COPIES)
		return;
	if (!model->keys[which] || below(model, 3) == 0) {
		model->keys[which] = ++model->last_key;
		model->lens[which] = 1 + below(model, 400);
	}
	user->far = far_make(model->keys[which], model->lens[which]);
	user->owner = ++model->owners;
	rc = offer_at(&model->rig, &user->far, user->owner);
	REQUIRE(rc >= 0 && rc != SPW_OFFER_SPILL);
	model->user_count++;
	if (rc == SPW_OFFER_KEEP || rc == SPW_OFFER_COPY)
		model->owner_key[user->owner] = user->far.key;
	if (rc == SPW_OFFER_COPY || rc == SPW_OFFER_COPY_AGAIN)
		model->copies[model->copy_count++] = user->far;
}

static void model_copied(struct model *model)
{
	unsigned which;

	if (model->copy_count == 0)
		return;
	which = (unsigned)below(model, model->copy_count);
	if (below(model, 8) == 0)
		REQUIRE(spw_cache_copied(model->rig.cache, model->copies[which].tensor, -EIO) == 0);
	else
		copied(&model->rig, &model->copies[which]);
	model->copies[which] = model->copies[--model->copy_count];
}

static void model_return(struct model *model)
{
	unsigned which;

	if (model->lease_count == 0)
		return;
	which = (unsigned)below(model, model->lease_count);
	for (size_t i = 0; i < model->leases[which].len; i++)
		REQUIRE(model->leases[which].bytes[i] == pattern(model->leases[which].key, i));
	spw_cache_return(model->rig.cache, model->leases[which].lease);
	model->leases[which] = model->leases[--model->lease_count];
}

static void model_take(struct model *model)
{
	const struct far *far;
	struct spw_taken taken;
	int rc;

	if (model->user_count == 0 || model->lease_count == OPEN)
		return;
	far = &model->users[below(model, model->user_count)].far;
	/* One thread: a read that is under way ends before anybody waits for it. */
	while (fake_pending(model->rig.store, FAKE_READ, 0))
		fake_end_oldest(model->rig.store, FAKE_READ, 0);
	model->rig.store->wait_res = below(model, 10) == 0 ? -EIO : 0;
	rc = spw_cache_take(model->rig.cache, far->tensor, 0, far->len, &taken);
	REQUIRE(rc == model->rig.store->wait_res || rc == 0);
	if (rc)
		return;
	if (!taken.bytes) {
		REQUIRE(model->owner_key[taken.owner] == far->key);
		return;
	}
	model->leases[model->lease_count].lease = taken.lease;
	model->leases[model->lease_count].key = far->key;
	model->leases[model->lease_count].len = far->len;
	model->leases[model->lease_count++].bytes = taken.bytes;
}

static void model_release(struct model *model)
{
	unsigned which;

	if (model->user_count == 0)
		return;
	which = (unsigned)below(model, model->user_count);
	far_released(&model->rig, &model->users[which].far);
	model->users[which] = model->users[--model->user_count];
}

static void model_drain(struct model *model)
{
	uint64_t owner;

	if (spw_cache_drain_device(model->rig.cache, &owner, 1) == 0)
		return;
	REQUIRE(owner <= model->owners && model->owner_key[owner]);
	model->owner_key[owner] = 0;
	/* The memory is given up while a copy from it is under way: never. */
	for (unsigned i = 0; i < model->copy_count; i++) {
		const struct entry *entry = entry_of(&model->rig, &model->copies[i]);

		REQUIRE(entry && entry->owner != owner);
	}
}

static void model_io(struct model *model)
{
	enum fake_kind kind = below(model, 2) ? FAKE_WRITE : FAKE_READ;
	struct spw_request *request = fake_pending(model->rig.store, kind, 0);

	if (!request)
		return;
	fake_issue(request);
	if (below(model, 2))
		simstore_end(request, below(model, 8) == 0 ? -EIO : 0);
}

static void model_check(struct model *model)
{
	struct spw_cache *cache = model->rig.cache;
	uint64_t far_bytes = 0, staging = 0;

	for (uint32_t i = 0; i < cache->entries_touched; i++) {
		const struct entry *entry = &cache->entries[i];

		if (entry->state == ENTRY_FREE)
			continue;
		far_bytes += entry->owner_held ? entry->len_bytes : 0;
		far_bytes += entry->handed_out && entry->state != ENTRY_DEAD ? entry->len_bytes : 0;
		staging += entry->memory ? entry->len_bytes : 0;
		REQUIRE(entry->copies == 0 || (entry->owner_held && !entry->drainable &&
					       entry->memory && !entry->write_in_flight));
		REQUIRE(!entry->write_in_flight || entry->memory);
		REQUIRE(entry->state != ENTRY_LEAVING || entry->copies > 0 ||
			entry->write_in_flight || entry->drainable);
		REQUIRE(entry->state != ENTRY_STORED ||
			(entry->object_exists && !entry->memory && !entry->owner_held));
		REQUIRE(entry->state != ENTRY_RESIDENT || entry->memory || entry_at_owner(entry));
	}
	REQUIRE(cache->count.device_bytes == far_bytes);
	REQUIRE(cache->count.activation_bytes == far_bytes);
	REQUIRE(cache->count.device_staging_bytes == staging);
}

static void model_one(struct model *model)
{
	switch (below(model, 12)) {
	case 0:
	case 1: model_offer(model); break;
	case 2:
	case 3: model_copied(model); break;
	case 4: model_take(model); break;
	case 5: model_return(model); break;
	case 6: model_release(model); break;
	case 7: model_drain(model); break;
	case 8:
		if (below(model, 3) == 0)
			spw_cache_step(model->rig.cache);
		break;
	case 9:
		if (below(model, 10) == 0)
			spw_cache_stage(model->rig.cache, 0,
					below(model, 2) ? SPW_STAGE_BACKWARD : SPW_STAGE_FORWARD);
		break;
	case 10:
		if (below(model, 10) == 0)
			model->rig.store->put_error = -EIO;
		break;
	default: model_io(model);
	}
}

static void model_end(struct model *model)
{
	struct rig *rig = &model->rig;

	model->written += rig->cache->count.tensors_spilled;
	model->forwarded += rig->cache->count.tensors_forwarded;
	model->read += rig->cache->count.bytes_read;
	model->again += rig->cache->count.bytes_copied_again;
	while (model->copy_count > 0)
		model_copied(model);
	while (model->user_count > 0)
		model_release(model);
	while (model->lease_count > 0)
		model_return(model);
	fake_end_all(rig->store);
	for (uint64_t owner; spw_cache_drain_device(rig->cache, &owner, 1) > 0;)
		model->owner_key[owner] = 0;
	for (uint64_t i = 1; i <= model->owners; i++)
		REQUIRE(model->owner_key[i] == 0);
	REQUIRE(rig->store->arena_used == 0);
	far_end(rig);
}

static void test_in_any_order(void **state)
{
	static struct model model;
	uint64_t random = seed;
	uint64_t written = 0, read = 0, forwarded = 0, again = 0;

	(void)state;
	for (unsigned round = 0; round < 40; round++) {
		model = (struct model){.random = random};
		random = below(&model, UINT64_MAX);
		rig_begin(&model.rig);
		model.rig.opts.mode = below(&model, 2) ? SPW_CACHE_SPILL : SPW_CACHE_FASTEST;
		model.rig.opts.tensors_max = 256;
		rig_open(&model.rig);
		model.rig.store->arena = below(&model, 2) ? UINT64_MAX : 2000;
		for (unsigned i = 0; i < 2000; i++) {
			model_one(&model);
			model_check(&model);
		}
		model_end(&model);
		written += model.written;
		read += model.read;
		forwarded += model.forwarded;
		again += model.again;
	}
	/* The run has seen something. */
	assert_true(written > 100 && read > 10000 && forwarded > 200 && again > 10000);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_there_and_back),
		cmocka_unit_test(test_written_before_the_token_is_back),
		cmocka_unit_test(test_taken_twice),
		cmocka_unit_test(test_kept_by_the_rules),
		cmocka_unit_test(test_released_during_the_copy),
		cmocka_unit_test(test_released_during_the_write),
		cmocka_unit_test(test_forwarded_during_the_copy),
		cmocka_unit_test(test_forwarded_and_released_during_the_copy),
		cmocka_unit_test(test_forwarded_before_the_token_is_back),
		cmocka_unit_test(test_forwarded_out_of_staging),
		cmocka_unit_test(test_a_copy_fails),
		cmocka_unit_test(test_no_staging_memory),
		cmocka_unit_test(test_backpressure),
		cmocka_unit_test(test_a_write_fails),
		cmocka_unit_test(test_a_read_fails),
		cmocka_unit_test(test_wrong_calls),
		cmocka_unit_test(test_duplicates_of_what_is_kept),
		cmocka_unit_test(test_copied_again),
		cmocka_unit_test(test_duplicates_of_what_is_forwarded),
		cmocka_unit_test(test_no_duplicates_of_what_has_left),
		cmocka_unit_test(test_a_key_in_host_memory_too),
		cmocka_unit_test(test_parts),
		cmocka_unit_test(test_read_ahead),
		cmocka_unit_test(test_taken_without_staging_memory),
		cmocka_unit_test(test_closed_with_all_there_is),
		cmocka_unit_test(test_in_any_order),
	};
	const char *text = getenv("SPW_SEED");

	if (text)
		seed = strtoull(text, NULL, 0);
	else if (getrandom(&seed, sizeof(seed), 0) != sizeof(seed))
		return 1;
	print_message("SPW_SEED=%llu\n", (unsigned long long)seed);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
