/* SPDX-License-Identifier: MIT */
/*
 * tests/unit/cache_far.h - tensors of a device that is a fake, beside what the rig has
 *
 * Its addresses are not valid, so that a read from them crashes. A copy fills the staging
 * memory when it ends, not when it begins, so that what is used or released too early has other
 * bytes.
 */
#ifndef SPW_TEST_CACHE_FAR_H
#define SPW_TEST_CACHE_FAR_H

#include "tensor/entry.h"
#include "tests/unit/cache_rig.h"

#define DEVICE 1u

static inline int offer_part(struct piece *far, uint32_t device, uint64_t offset, uint64_t len,
			     uint64_t owner)
{
	const struct spw_offer offer = {.storage_key = far->key,
					.storage_bytes = far->bytes,
					.storage_len_bytes = far->len,
					.offset_bytes = offset,
					.len_bytes = len,
					.owner = owner};
	int result = spw_cache_offer_device(rig.cache, &offer, device, SPW_HINT_NONE, &far->tensor,
					    &far->copy);

	return noted(result, far->tensor, owner);
}

static inline int offer_at(struct piece *far, uint64_t owner)
{
	return offer_part(far, DEVICE, 0, far->len, owner);
}

/* A tensor on a device; its token is its key. */
static inline struct piece far_make(uint64_t key, size_t len)
{
	/* No address of this machine's memory is so high. */
	uintptr_t address = UINTPTR_MAX / 2 + (key << 32);

	return (struct piece){.key = key, .len = len, .bytes = (uint8_t *)address};
}

static inline struct piece far_offered(uint64_t key, size_t len, int result)
{
	struct piece far = far_make(key, len);

	assert_int_equal(offer_at(&far, key), result);
	assert_int_not_equal(far.tensor.value, 0);
	return far;
}

/* The bytes are in staging memory only now. */
static inline void copy_ended(const struct piece *far, int res)
{
	uint8_t *staging = far->copy.staging;

	for (size_t i = 0; res == 0 && i < far->copy.len_bytes; i++)
		staging[i] = pattern(far->key, far->copy.offset_bytes + i);
	assert_int_equal(spw_cache_copied(rig.cache, far->tensor, res), 0);
}

static inline void copied(const struct piece *far)
{
	copy_ended(far, 0);
}

static inline struct piece far_copied(uint64_t key, size_t len)
{
	struct piece far = far_offered(key, len, SPW_OFFER_COPY);

	assert_int_equal(far.copy.offset_bytes, 0);
	assert_int_equal(far.copy.len_bytes, len);
	copied(&far);
	return far;
}

static inline void far_drained(const struct piece *far)
{
	uint64_t owner = 0;

	assert_int_equal(spw_cache_drain_device(rig.cache, &owner, 1), 1);
	assert_int_equal(owner, far->key);
	bag_take(&rig.owners, owner);
}

static inline void far_gone(const struct piece *far)
{
	released(far);
	far_drained(far);
}

static inline void none_back(void)
{
	uint64_t owner;

	assert_int_equal(spw_cache_drain_device(rig.cache, &owner, 1), 0);
	nothing_drained();
}

static inline struct piece far_stored(uint64_t key, size_t len)
{
	struct piece far = far_copied(key, len);

	far_drained(&far);
	fake_end_oldest(rig.store, FAKE_WRITE, 0);
	assert_int_equal(rig.store->arena_used, 0);
	return far;
}

static inline struct entry *entry_of(const struct piece *far)
{
	return spw_cache__entry_of_id(rig.cache, far->tensor.value);
}

static inline void state_is(const struct piece *far, enum entry_state state)
{
	assert_int_equal(entry_of(far)->state, state);
}

/* A copy that has not ended, of a tensor that is taken meanwhile, released, or both. */
static inline struct piece far_copying(bool taken, bool is_released)
{
	struct piece far = far_offered(1, 100, SPW_OFFER_COPY);

	if (taken) {
		taken_from_owner(&far);
		state_is(&far, ENTRY_RESIDENT);
	}
	if (is_released)
		released(&far);
	none_back();
	return far;
}

/* The same when the copy has ended: the device still has the bytes. */
static inline void far_copied_meanwhile(const struct piece *far, bool is_released)
{
	if (is_released)
		far_drained(far);
	else
		taken_from_owner(far);
	none_back();
}

static inline int retried(struct piece *far)
{
	return spw_cache_copy_retry(rig.cache, far->tensor, &far->copy);
}

static inline int retried_last(struct piece *far)
{
	return spw_cache_copy_last(rig.cache, far->tensor, &far->copy);
}

#endif
