/* SPDX-License-Identifier: MIT */
/*
 * tests/fuzz/fuzz_cache.c - the tensor cache called as a binding calls it, with any numbers in any order: no crash, no wrong byte, every
 * token back at most once, nothing left in the store
 */
/* link: util tensor */
#include "tests/fuzz/fuzz.h"

#include <spillway/cache.h>

#define FAKE_OBJECTS  64
#define FAKE_REQUESTS 48
#include "tests/unit/cache_fake.h"

#define STORAGE_BYTES 4096u
#define STORAGES      4u
#define HANDLES       64u
#define TOKENS        256u

struct world {
	struct spw_store *store;
	struct spw_cache *cache;
	struct fuzz_bytes bytes;
	struct handle {
		spw_tensor tensor;
		uint64_t key;
	} handles[HANDLES];
	uint64_t leases[HANDLES];
	unsigned handle_count, lease_count, tokens;
	bool held[TOKENS]; /* tokens that the cache has */
};

static uint8_t storages[STORAGES][STORAGE_BYTES];

static void offer(struct world *world)
{
	uint64_t key = fuzz_number(&world->bytes);
	struct spw_offer offer = {
		.storage_key = key,
		.storage_version = fuzz_number(&world->bytes),
		.storage_bytes = storages[key % STORAGES],
		.storage_len_bytes = fuzz_number(&world->bytes) % (STORAGE_BYTES + 1),
		.offset_bytes = fuzz_number(&world->bytes),
		.len_bytes = fuzz_number(&world->bytes),
		.owner = world->tokens + 1,
	};
	enum spw_cache_hint hint = (enum spw_cache_hint)(fuzz_byte(&world->bytes) % 5);
	spw_tensor tensor;
	int rc;

	if (world->handle_count == HANDLES || world->tokens + 1 == TOKENS)
		return;
	rc = spw_cache_offer_hint(world->cache, &offer, hint, &tensor);
	FUZZ_REQUIRE((rc >= 0) == (tensor.value != 0));
	if (rc < 0)
		return;
	FUZZ_REQUIRE(offer.len_bytes > 0 && offer.offset_bytes <= offer.storage_len_bytes &&
		     offer.len_bytes <= offer.storage_len_bytes - offer.offset_bytes);
	if (rc != SPW_OFFER_DEDUP)
		world->held[++world->tokens] = true;
	world->handles[world->handle_count++] = (struct handle){.tensor = tensor, .key = key};
}

/* A tensor that exists, or any number. */
static struct handle *any_handle(struct world *world)
{
	static struct handle none;
	unsigned pick = fuzz_byte(&world->bytes);

	if (pick < 224 && world->handle_count > 0)
		return &world->handles[pick % world->handle_count];
	none.tensor.value = fuzz_number(&world->bytes);
	return &none;
}

static void take(struct world *world)
{
	struct handle *handle = any_handle(world);
	uint64_t offset = fuzz_number(&world->bytes), len = fuzz_number(&world->bytes);
	struct spw_taken taken = {0};
	int rc;

	/* One thread: a read that is under way ends before anybody waits for it. */
	while (fake_pending(world->store, FAKE_READ, 0))
		fake_end_oldest(world->store, FAKE_READ, 0);
	rc = spw_cache_take(world->cache, handle->tensor, offset, len, &taken);
	FUZZ_REQUIRE(rc <= 0);
	if (rc != 0 || handle < world->handles || handle >= world->handles + HANDLES)
		return;
	FUZZ_REQUIRE(len > 0 && offset < STORAGE_BYTES && len <= STORAGE_BYTES - offset);
	if (!taken.bytes) {
		FUZZ_REQUIRE(taken.owner > 0 && taken.owner <= world->tokens && world->held[taken.owner]);
		return;
	}
	FUZZ_REQUIRE(memcmp(taken.bytes, storages[handle->key % STORAGES] + offset, len) == 0);
	if (world->lease_count < HANDLES)
		world->leases[world->lease_count++] = taken.lease;
	else
		spw_cache_return(world->cache, taken.lease);
}

static void release(struct world *world)
{
	struct handle *handle = any_handle(world);
	bool ours = handle >= world->handles && handle < world->handles + HANDLES;

	/* Any number may by chance be a tensor that is ours: its handle would be wrong from then on. */
	for (unsigned i = 0; !ours && i < world->handle_count; i++)
		if (world->handles[i].tensor.value == handle->tensor.value)
			return;
	FUZZ_REQUIRE((spw_cache_release(world->cache, handle->tensor) == 0) == ours);
	if (ours)
		*handle = world->handles[--world->handle_count];
}

static void drain(struct world *world)
{
	uint64_t owners[8];
	unsigned count = fuzz_byte(&world->bytes) % 9;
	int rc = spw_cache_drain(world->cache, owners, count);

	FUZZ_REQUIRE(rc <= (int)count);
	for (int i = 0; i < rc; i++) {
		FUZZ_REQUIRE(owners[i] > 0 && owners[i] <= world->tokens && world->held[owners[i]]);
		world->held[owners[i]] = false;
	}
}

static void end_one(struct world *world)
{
	enum fake_kind kind = fuzz_byte(&world->bytes) % 2 ? FAKE_READ : FAKE_WRITE;

	if (fake_pending(world->store, kind, 0))
		fake_end_oldest(world->store, kind, fuzz_byte(&world->bytes) % 8 == 0 ? -EIO : 0);
}

static void do_one(struct world *world)
{
	struct spw_cache_stats stats;

	switch (fuzz_byte(&world->bytes) % 12) {
	case 0: spw_cache_step(world->cache); break;
	case 1:
		spw_cache_stage(world->cache, (uint32_t)fuzz_number(&world->bytes),
				(enum spw_stage)(fuzz_byte(&world->bytes) % 3));
		break;
	case 2: spw_cache_scope_enter(world->cache, fuzz_number(&world->bytes)); break;
	case 3: spw_cache_scope_leave(world->cache); break;
	case 4:
	case 5: offer(world); break;
	case 6: take(world); break;
	case 7: release(world); break;
	case 8: drain(world); break;
	case 9:
		if (world->lease_count > 0)
			spw_cache_return(world->cache, world->leases[--world->lease_count]);
		break;
	case 10: end_one(world); break;
	default: spw_cache_stats(world->cache, &stats, sizeof(stats)); break;
	}
}

static void open_cache(struct world *world)
{
	struct spw_cache_opts opts;

	spw_cache_opts_init(&opts, sizeof(opts));
	opts.mode = (enum spw_cache_mode)(fuzz_byte(&world->bytes) % 5);
	opts.min_bytes = fuzz_byte(&world->bytes);
	opts.staging_bytes = 1 + fuzz_number(&world->bytes) % 65536;
	opts.prefetch_bytes = fuzz_number(&world->bytes) % 65536;
	opts.memory_bytes = 1 + fuzz_number(&world->bytes) % 65536;
	opts.spill_last_scope = fuzz_byte(&world->bytes) % 2;
	opts.tensors_max = 1 + fuzz_byte(&world->bytes) % 32;
	FUZZ_REQUIRE(spw_cache_open(world->store, &opts, &world->cache) == 0);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct world world = {.bytes = {data, size}};

	for (unsigned i = 0; storages[0][1] == 0 && i < STORAGES * STORAGE_BYTES; i++)
		((uint8_t *)storages)[i] = (uint8_t)(1 + i * 7 + (i >> 8) * 3 + (i >> 12) * 41);
	world.store = fake_open();
	open_cache(&world);
	for (unsigned i = 0; i < 400 && world.bytes.left > 0; i++)
		do_one(&world);
	fake_end_all(world.store);
	spw_cache_close(world.cache);
	fake_close(world.store);
	return 0;
}
