/* SPDX-License-Identifier: MIT */
/*
 * tests/unit/test_cache_device_ahead.c - tensors of a device whose host is ahead of it: memory that
 * is released before its copy has ended, bytes that are there before their use; and all that is
 * done with tensors of a device, in any order
 */
/* link: simstore libspillway */
#include "tests/random.h"
#include "tensor/control/internal.h"
#include "tensor/control/recording.h"
#include "tests/unit/cache_far.h"
#include "tests/unit/cache_host.h"

/* ---- A host that is ahead of the device ---- */

/* The stream is told to wait for the copy. Return: which is next, 0: none. */
static uint64_t ordered(const struct piece *far)
{
	spw_tensor next;

	assert_int_equal(spw_cache_ordered(rig.cache, far->tensor, &next), 0);
	return next.value;
}

RIG_CASE(test_memory_goes_before_the_copy_has_ended)
{
	struct piece far[5];

	for (unsigned i = 0; i < 5; i++) {
		far[i] = far_offered(1 + i, 100, SPW_OFFER_COPY);
		if (i < 2) { /* one is copied, one is ready */
			assert_int_equal(far[i].copy.order.value, 0);
			continue;
		}
		assert_int_equal(far[i].copy.order.value, far[i - 2].tensor.value);
		assert_int_equal(ordered(&far[i - 2]), 0);
		far_drained(&far[i - 2]);
		state_is(&far[i - 2], ENTRY_LEAVING);
		STAT_IS(device_bytes, 200);
	}
	assert_int_equal(rig.store->puts, 0);
	for (unsigned i = 0; i < 5; i++) {
		copied(&far[i]);
		fake_end_oldest(rig.store, FAKE_WRITE, 0);
		if (i > 2)
			far_drained(&far[i]);
		state_is(&far[i], ENTRY_STORED);
	}
	STAT_IS(copies_ordered, 3);
}

RIG_CASE(test_wrong_orders)
{
	struct piece far = far_offered(1, 100, SPW_OFFER_COPY);
	spw_tensor next;

	assert_int_equal(spw_cache_ordered(rig.cache, far.tensor, NULL), -EINVAL);
	assert_int_equal(spw_cache_copy_retry(rig.cache, far.tensor, NULL), -EINVAL);
	assert_int_equal(spw_cache_copy_last(rig.cache, far.tensor, NULL), -EINVAL);
	assert_int_equal(spw_cache_ahead(rig.cache, NULL, NULL), -EINVAL);
	assert_int_equal(ordered(&far), 0);
	assert_int_equal(spw_cache_ordered(rig.cache, far.tensor, &next), -ENOENT); /* twice */
	copied(&far);
	assert_int_equal(spw_cache_ordered(rig.cache, far.tensor, &next), -ENOENT);
	far_drained(&far);
	fake_end_oldest(rig.store, FAKE_WRITE, 0);
	released(&far);
	assert_int_equal(spw_cache_ordered(rig.cache, far.tensor, &next), -ENOENT);
}

/* Only in staging memory, and not there yet: copies from it are ordered after the copy to it. */
RIG_CASE(test_taken_out_of_staging_before_the_copy_has_ended)
{
	struct piece far = far_offered(1, 100, SPW_OFFER_COPY);
	struct spw_taken taken;

	assert_int_equal(ordered(&far), 0);
	far_drained(&far);
	assert_int_equal(spw_cache_take(rig.cache, far.tensor, 0, far.len, &taken), 0);
	assert_ptr_equal(taken.bytes, far.copy.staging);
	copied(&far);
	assert_int_equal(rig.store->puts, 0); /* it is used now: not written any more */
	STAT_IS(staging_bytes, 0);
	spw_cache_return(rig.cache, taken.lease);
	returned(taken_from_lease(&far));
}

/* Ordered, and the copy fails: the memory has been reused since. */
RIG_CASE(test_a_copy_fails_whose_memory_is_gone)
{
	struct piece far = far_offered(1, 100, SPW_OFFER_COPY);
	struct spw_taken taken;

	assert_int_equal(ordered(&far), 0);
	far_drained(&far);
	copy_ended(&far, -EIO);
	for (unsigned i = 0; i < 2; i++)
		assert_int_equal(spw_cache_take(rig.cache, far.tensor, 0, far.len, &taken), -EIO);
	released(&far);
	/* Not yet released: the bytes are still there. */
	spw_cache_step(rig.cache);
	far = far_offered(2, 100, SPW_OFFER_COPY);
	assert_int_equal(ordered(&far), 0);
	copy_ended(&far, -EIO);
	none_back();
	taken_from_owner(&far);
}

RIG_CASE(test_released_after_the_order)
{
	struct piece far = far_offered(1, 100, SPW_OFFER_COPY);

	released(&far);
	assert_int_equal(ordered(&far), 0);
	far_drained(&far);
	STAT_IS(device_staging_bytes, 100);
	copied(&far);
	assert_int_equal(rig.store->puts, 0);
}

/* ---- Ahead of the use ---- */

/* Return: the tensor that is to be copied to its device; 0: none now. */
static uint64_t ahead(struct spw_taken *taken)
{
	spw_tensor tensor;
	int rc = spw_cache_ahead(rig.cache, &tensor, taken);

	assert_int_equal(rc, tensor.value != 0);
	if (rc)
		bag_put(&rig.leases, taken->lease);
	return tensor.value;
}

static void far_is_ahead(const struct piece *far)
{
	struct spw_taken taken;

	assert_int_equal(spw_cache_take(rig.cache, far->tensor, 0, far->len, &taken), 0);
	assert_null(taken.bytes);
	assert_int_equal(taken.owner, 0);
	assert_int_equal(taken.lease, 0);
}

OPENED_CASE(test_copied_ahead_in_the_order_of_use)
{
	struct piece far[3];
	struct spw_taken taken;

	rig.opts.prefetch_bytes = 1000;
	rig_open();
	spw_cache_step(rig.cache);
	for (unsigned i = 0; i < 3; i++)
		far[i] = far_stored(1 + i, 100);
	spw_cache_stage(rig.cache, 0, SPW_STAGE_BACKWARD);
	assert_int_equal(ahead(&taken), 0); /* being read */
	fake_end_oldest(rig.store, FAKE_READ, 0);
	assert_int_equal(ahead(&taken), far[2].tensor.value);
	assert_int_equal(((const uint8_t *)taken.bytes)[1], pattern(3, 1));
	assert_int_equal(taken.storage_bytes_before, 0);
	assert_int_equal(taken.storage_bytes_total, 100);
	STAT_IS(device_bytes, 100);
	returned(taken.lease);
	state_is(&far[2], ENTRY_STORED);
	assert_int_equal(ahead(&taken), 0);
	assert_int_equal(rig.store->gets, 3);              /* it is on the device: not read again */
	spw_cache_stage(rig.cache, 0, SPW_STAGE_BACKWARD); /* nor when all is looked at again */
	assert_int_equal(rig.store->gets, 3);
	far_is_ahead(&far[2]);
	fake_end_all(rig.store);
	for (unsigned i = 2; i-- > 0;) {
		assert_int_equal(ahead(&taken), far[i].tensor.value);
		returned(taken.lease);
	}
	far_is_ahead(&far[1]);
	/* A holder that has dropped it takes it once more. */
	returned(taken_from_lease(&far[1]));
	STAT_IS(prefetch_hits, 2);
	STAT_IS(tensors_ahead, 3);
}

/* What is used before it has been given ahead is not given any more. */
RIG_CASE(test_taken_before_it_is_ahead)
{
	struct piece far;
	struct spw_taken taken;

	spw_cache_step(rig.cache);
	far = far_stored(1, 100);
	spw_cache_stage(rig.cache, 0, SPW_STAGE_BACKWARD);
	fake_end_all(rig.store);
	returned(taken_from_lease(&far));
	assert_int_equal(ahead(&taken), 0);
}

OPENED_CASE(test_read_ahead)
{
	struct piece far[3];

	rig.opts.prefetch_bytes = 1000;
	rig_open();
	spw_cache_step(rig.cache);
	for (unsigned i = 0; i < 3; i++)
		far[i] = far_stored(1 + i, 100);
	/* As far as staging memory goes: no other memory is used for what can wait. */
	rig.store->arena = 250;
	spw_cache_stage(rig.cache, 0, SPW_STAGE_BACKWARD);
	assert_int_equal(rig.store->gets, 2);
	fake_end_all(rig.store);
	assert_int_equal(rig.store->gets, 2);
	STAT_IS(read_memory_outside_arena_bytes, 0);
	for (unsigned i = 3; i-- > 0;) {
		returned(taken_from_lease(&far[i]));
		fake_end_all(rig.store);
		released(&far[i]);
	}
	STAT_IS(prefetch_hits, 3);
	STAT_IS(misses, 0);
}

/* A take cannot wait for staging memory that may never be returned. */
RIG_CASE(test_taken_without_staging_memory)
{
	struct piece far = far_stored(1, 100);

	rig.store->arena = 0;
	returned(taken_from_lease(&far));
	STAT_IS(read_memory_outside_arena_bytes, 100);
	STAT_IS(device_staging_bytes, 0);
}

/* ---- What a device tells ---- */

static void told(struct spw_device_times times)
{
	assert_int_equal(spw_cache_device_times(rig.cache, &times), 0);
}

/* Once a device tells, the host's waits for its bytes are no longer stalls; others' still are. */
RIG_CASE(test_a_device_tells_its_stalls)
{
	struct piece far = far_stored(1, 100), near;
	uint64_t stall_ns;

	assert_int_equal(spw_cache_device_times(rig.cache, NULL), -EINVAL);
	assert_int_equal(
		spw_cache_device_times(rig.cache, &(struct spw_device_times){.reserved = {0, 1}}),
		-EINVAL);
	returned(taken_from_lease(&far));
	stall_ns = rig_stats().stall_ns;
	assert_true(stall_ns > 0);
	STAT_IS(host_wait_ns, 0);

	told((struct spw_device_times){0});
	spw_cache_step(rig.cache); /* else it is prefetched */
	far = far_stored(2, 100);
	returned(taken_from_lease(&far));
	STAT_IS(stall_ns, stall_ns);
	assert_true(rig_stats().host_wait_ns > 0);
	told((struct spw_device_times){.stall_ns = 7});
	told((struct spw_device_times){.stall_ns = 5});
	STAT_IS(stall_ns, stall_ns + 12);
	STAT_IS(device_stall_ns, 12);
	spw_cache_step(rig.cache);
	near = stored(3, 100);
	returned(taken_from_lease(&near));
	assert_true(rig_stats().stall_ns > stall_ns + 12);
	STAT_IS(device_stall_ns, 12);
}

/* What it tells late was taken for compute: time stands still until that is made up for. */
RIG_CASE(test_time_never_goes_back)
{
	struct control *control = rig.cache->control;
	uint64_t before_ns, wait_ns = UINT64_C(3600) * 1000000000;

	spw_cache_step(rig.cache);
	before_ns = spw_control__recording_compute_ns(control);
	told((struct spw_device_times){.stall_ns = wait_ns});
	assert_in_range(spw_control__recording_compute_ns(control), before_ns,
			before_ns + wait_ns / 2);
	before_ns = spw_control__recording_compute_ns(control);
	assert_int_equal(spw_control__recording_compute_ns(control), before_ns);
	spw_cache_step(rig.cache);
	STAT_IS(step_stall_ns, wait_ns);
	STAT_IS(step_compute_ns, before_ns);
}

RIG_CASE(test_the_bus_is_measured)
{
	for (unsigned i = 0; i < 2; i++) {
		spw_cache_step(rig.cache);
		told((struct spw_device_times){
			.bytes_out = 3000, .out_ns = 1000, .bytes_in = 500, .in_ns = 1000});
	}
	spw_cache_step(rig.cache);
	STAT_IS(bus_out_bytes_per_second, 3000000000);
	STAT_IS(bus_in_bytes_per_second, 500000000);
}

/* ---- In any order ---- */

#define COPIES 80u
#define OPEN   48u /* users, leases */

/* Beside what the rig knows; a token is the key of its bytes, and a number. */
static struct model {
	uint64_t random;
	struct piece users[OPEN], copies[COPIES];
	struct {
		uint64_t lease, key;
		const uint8_t *bytes;
		size_t len;
		spw_tensor tensor;
	} leases[OPEN];
	spw_tensor waiting, ahead[OPEN];
	unsigned user_count, copy_count, lease_count, ahead_count;
	uint64_t keys[4], lens[4], last_key, last_owner;
} model;

static uint64_t below(uint64_t limit)
{
	return random_below(&model.random, limit);
}

static uint64_t key_of(uint64_t owner)
{
	return owner >> 32;
}

static void model_offer(void)
{
	unsigned which = (unsigned)below(SPW_ARRAY_LEN(model.keys));
	struct piece *user = &model.users[model.user_count];
	int rc;

	if (model.user_count == OPEN || model.copy_count == COPIES)
		return;
	if (!model.keys[which] || below(3) == 0) {
		model.keys[which] = ++model.last_key;
		model.lens[which] = 1 + below(400);
	}
	*user = far_make(model.keys[which], model.lens[which]);
	rc = offer_at(user, user->key << 32 | ++model.last_owner);
	assert_true(rc >= 0 && rc != SPW_OFFER_SPILL);
	model.user_count++;
	if (rc == SPW_OFFER_WAIT)
		model.waiting = user->tensor;
	if (rc == SPW_OFFER_COPY || rc == SPW_OFFER_COPY_AGAIN)
		model.copies[model.copy_count++] = *user;
}

static struct piece *user_of(spw_tensor tensor)
{
	for (unsigned i = 0; i < model.user_count; i++)
		if (model.users[i].tensor.value == tensor.value)
			return &model.users[i];
	return NULL;
}

static void model_retry(void)
{
	struct piece *far = user_of(model.waiting);
	int rc;

	if (!far || model.copy_count == COPIES)
		return;
	rc = retried(far);
	assert_true(rc == SPW_OFFER_COPY || rc == SPW_OFFER_KEEP || rc == SPW_OFFER_WAIT);
	if (rc == SPW_OFFER_COPY)
		model.copies[model.copy_count++] = *far;
}

static void model_order(void)
{
	spw_tensor next;
	int rc;

	if (model.copy_count == 0)
		return;
	next = model.copies[below(model.copy_count)].tensor;
	do {
		rc = spw_cache_ordered(rig.cache, next, &next);
		assert_true(rc == 0 || rc == -ENOENT);
	} while (rc == 0 && next.value);
}

static bool is_copied(spw_tensor tensor)
{
	for (unsigned i = 0; i < model.copy_count; i++)
		if (model.copies[i].tensor.value == tensor.value)
			return false;
	return true;
}

static void model_copied(void)
{
	const struct entry *entry;
	unsigned which;

	if (model.copy_count == 0)
		return;
	which = (unsigned)below(model.copy_count);
	entry = entry_of(&model.copies[which]);
	assert_non_null(entry);
	/* A failure after the memory was let go loses the bytes. */
	copy_ended(&model.copies[which], entry->owner_held && below(8) == 0 ? -EIO : 0);
	model.copies[which] = model.copies[--model.copy_count];
}

static void model_return(void)
{
	unsigned which;

	if (model.lease_count == 0)
		return;
	which = (unsigned)below(model.lease_count);
	if (!is_copied(model.leases[which].tensor)) /* then the copy from there waits for it */
		return;
	for (size_t i = 0; i < model.leases[which].len; i++)
		assert_int_equal(model.leases[which].bytes[i], pattern(model.leases[which].key, i));
	spw_cache_return(rig.cache, model.leases[which].lease);
	model.leases[which] = model.leases[--model.lease_count];
}

static void model_lease(const struct piece *far, const struct spw_taken *taken)
{
	model.leases[model.lease_count].lease = taken->lease;
	model.leases[model.lease_count].key = far->key;
	model.leases[model.lease_count].len = far->len;
	model.leases[model.lease_count].tensor = far->tensor;
	model.leases[model.lease_count++].bytes = taken->bytes;
}

static void model_ahead(void)
{
	struct spw_taken taken;
	spw_tensor tensor;

	if (model.lease_count == OPEN || model.ahead_count == OPEN ||
	    spw_cache_ahead(rig.cache, &tensor, &taken) == 0)
		return;
	assert_non_null(user_of(tensor));
	model_lease(user_of(tensor), &taken);
	model.ahead[model.ahead_count++] = tensor;
}

/* Once: after that the caller may not have it any more. */
static bool was_ahead(spw_tensor tensor)
{
	for (unsigned i = 0; i < model.ahead_count; i++) {
		if (model.ahead[i].value != tensor.value)
			continue;
		model.ahead[i] = model.ahead[--model.ahead_count];
		return true;
	}
	return false;
}

static void model_take(void)
{
	const struct piece *far;
	struct spw_taken taken;
	int rc;

	if (model.user_count == 0 || model.lease_count == OPEN)
		return;
	far = &model.users[below(model.user_count)];
	/* There is one thread: a read in flight ends before it is waited for. */
	while (fake_pending(rig.store, FAKE_READ, 0))
		fake_end_oldest(rig.store, FAKE_READ, 0);
	rig.store->wait_res = below(10) == 0 ? -EIO : 0;
	rc = spw_cache_take(rig.cache, far->tensor, 0, far->len, &taken);
	assert_true(rc == rig.store->wait_res || rc == 0);
	if (rc)
		return;
	if (taken.owner)
		assert_true(bag_has(&rig.owners, taken.owner) && key_of(taken.owner) == far->key);
	else if (taken.bytes)
		model_lease(far, &taken);
	else
		assert_true(was_ahead(far->tensor));
}

static void model_release(void)
{
	unsigned which;

	if (model.user_count == 0)
		return;
	which = (unsigned)below(model.user_count);
	released(&model.users[which]);
	model.users[which] = model.users[--model.user_count];
}

static void model_drain(void)
{
	uint64_t owner;

	if (spw_cache_drain_device(rig.cache, &owner, 1) == 0)
		return;
	bag_take(&rig.owners, owner);
	/* The memory is released while a copy from it is in flight: only by order. */
	for (unsigned i = 0; i < model.copy_count; i++) {
		const struct entry *entry = entry_of(&model.copies[i]);

		assert_true(entry && (entry->owner != owner || !entry_is_copying(entry)));
	}
}

static void model_io(void)
{
	enum fake_kind kind = below(2) ? FAKE_WRITE : FAKE_READ;
	struct spw_request *request = fake_pending(rig.store, kind, 0);

	if (!request)
		return;
	fake_issue(request);
	if (below(2))
		simstore_end(request, below(8) == 0 ? -EIO : 0);
}

static void model_check(void)
{
	struct spw_cache *cache = rig.cache;
	uint64_t far_bytes = 0, staging = 0, hosted = 0, copying = 0, in_flight = 0;

	for (uint32_t i = 0; i < cache->entries_touched; i++) {
		const struct entry *entry = &cache->entries[i];

		if (entry->state == ENTRY_FREE)
			continue;
		far_bytes += entry->owner_held ? entry->len_bytes : 0;
		far_bytes += entry->handed_out && entry->state != ENTRY_DEAD ? entry->len_bytes : 0;
		staging += entry->memory && !entry->hosted ? entry->len_bytes : 0;
		hosted += entry->hosted ? entry->len_bytes : 0;
		assert_true(!entry->hosted || (entry->memory && !entry->object_exists));
		in_flight += entry->copies;
		copying += entry_is_copying(entry) ? entry->len_bytes : 0;
		assert_true(entry->copies > 0 || !entry_is_copying(entry));
		assert_true(entry->copies == 0 || (entry->memory && !entry->write_in_flight));
		assert_true(!entry->write_in_flight || entry->memory);
		assert_true(entry->state != ENTRY_LEAVING || entry->copies > 0 ||
			    entry->write_in_flight || entry->drainable);
		assert_true(entry->state != ENTRY_HOST || (entry->hosted && !entry->owner_held));
		assert_true(entry->state != ENTRY_STORED ||
			    (entry->object_exists && !entry->memory && !entry->owner_held));
		assert_true(entry->state != ENTRY_RESIDENT || entry->memory ||
			    entry_at_owner(entry));
	}
	assert_true(cache->count.device_bytes == far_bytes);
	assert_true(cache->count.activation_bytes == far_bytes);
	assert_true(cache->count.device_staging_bytes == staging);
	assert_true(cache->count.host_bytes == hosted);
	assert_true(cache->copying.bytes == copying);
	assert_true(cache->copies_in_flight == in_flight);
}

static void model_say_where(void)
{
	if (below(3) == 0)
		spw_cache_step(rig.cache);
	if (below(4) == 0)
		spw_cache_stage(rig.cache, 0, below(2) ? SPW_STAGE_BACKWARD : SPW_STAGE_FORWARD);
	if (below(10) == 0)
		rig.store->put_error = -EIO;
}

static void model_end(void)
{
	while (model.copy_count > 0)
		model_copied();
	while (model.user_count > 0)
		model_release();
	while (model.lease_count > 0)
		model_return();
	rig_end();
}

CASE(test_in_any_order)
{
	static void (*const acts[])(void) = {
		model_offer,  model_offer,   model_copied, model_copied,    model_take,
		model_return, model_release, model_drain,  model_say_where, model_io,
		model_order,  model_retry,   model_ahead,
	};
	uint64_t random = random_seed();
	uint64_t written = 0, read = 0, forwarded = 0, again = 0, given = 0, ordered = 0, hits = 0;
	struct spw_arena *arena = NULL;

	for (unsigned round = 0; round < 40; round++) {
		rig_begin();
		model = (struct model){.random = random_next(&random)};
		rig.opts.mode = below(2) ? SPW_CACHE_SPILL : SPW_CACHE_FASTEST;
		rig.opts.tensors_max = 256;
		rig_open();
		rig.store->arena = below(2) ? UINT64_MAX : 2000;
		if (below(2))
			arena = host_given(rig.cache, 1); /* room for 32 of them */
		for (unsigned i = 0; i < 2000; i++) {
			acts[below(SPW_ARRAY_LEN(acts))]();
			model_check();
		}
		written += rig.cache->count.tensors_spilled;
		forwarded += rig.cache->count.tensors_forwarded;
		read += rig.cache->count.bytes_read;
		again += rig.cache->count.bytes_copied_again;
		given += rig.cache->count.tensors_ahead;
		ordered += rig.cache->count.copies_ordered;
		hits += rig.cache->count.host_hits;
		model_end();
		spw_arena_close(arena);
		arena = NULL;
	}
	/* The run has seen something. */
	assert_true(written > 10 && read > 1000 && forwarded > 200 && again > 10000);
	assert_true(given > 10 && ordered > 100 && hits > 100);
}

RUN_CASES(NULL, NULL)
