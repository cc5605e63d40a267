/* SPDX-License-Identifier: MIT */
/*
 * tests/fuzz/fuzz_cache.c - the tensor cache called as a binding calls it, with any numbers in any
 * order: no crash, no wrong byte, no take that fails though its drive has not, every token back
 * once, nothing left in the store
 *
 * What a storage holds follows from its key and version. Memory that was offered is destroyed and
 * freed as soon as its token is back.
 */
/* link: tools/replay/simstore libspillway */
#include <malloc.h>

#include "tests/fuzz/fuzz.h"

#include <spillway/cache.h>

#include "tests/unit/cache_fake.h"

#define STORAGE_BYTES 4096u
#define CONTENTS      8u
#define HANDLES       64u
#define TOKENS        256u
#define OPERATIONS    12u
#define ENTRIES_MAX   32u

struct handle {
	spw_tensor tensor;
	const uint8_t *content; /* of the storage */
	uint64_t offset, len;
};

struct lease {
	uint64_t lease;
	const uint8_t *bytes, *expected;
	uint64_t len;
};

struct world {
	struct spw_store *store;
	struct spw_cache *cache;
	struct fuzz_bytes bytes;
	struct handle handles[HANDLES];
	struct lease leases[HANDLES];
	unsigned handle_count, lease_count, tokens;
	uint8_t *memory[TOKENS]; /* by token: what the cache may read */
	uint64_t memory_bytes[TOKENS];
};

static uint8_t contents[CONTENTS][STORAGE_BYTES];

/* ---- Memory of the caller's ---- */

static void give_memory(struct world *world, unsigned token, const uint8_t *content, uint64_t len)
{
	world->memory_bytes[token] = len;
	world->memory[token] = malloc(len + 1);
	FUZZ_REQUIRE(world->memory[token]);
	memcpy(world->memory[token], content, len);
}

static void destroy_memory(struct world *world, unsigned token)
{
	memset(world->memory[token], 0xdd, world->memory_bytes[token]);
	free(world->memory[token]);
	world->memory[token] = NULL;
}

/* ---- Calls ---- */

static void offer(struct world *world)
{
	uint64_t key = fuzz_number(&world->bytes), version = fuzz_number(&world->bytes);
	const uint8_t *content = contents[(key + 3 * version) % CONTENTS];
	struct spw_offer offer = {
		.storage_key = key,
		.storage_version = version,
		.storage_len_bytes = fuzz_number(&world->bytes) % (STORAGE_BYTES + 1),
		.offset_bytes = fuzz_number(&world->bytes),
		.len_bytes = fuzz_number(&world->bytes),
		.owner = world->tokens + 1,
	};
	enum spw_cache_hint hint = (enum spw_cache_hint)(fuzz_byte(&world->bytes) % 8);
	spw_tensor tensor;
	int rc;

	if (world->handle_count == HANDLES || world->tokens + 1 == TOKENS)
		return;
	give_memory(world, ++world->tokens, content, offer.storage_len_bytes);
	offer.storage_bytes = world->memory[world->tokens];
	rc = spw_cache_offer_hint(world->cache, &offer, hint, &tensor);
	FUZZ_REQUIRE((rc >= 0) == (tensor.value != 0));
	if (rc < 0 || rc == SPW_OFFER_DEDUP || rc == SPW_OFFER_AGAIN)
		destroy_memory(world, world->tokens--);
	FUZZ_REQUIRE(rc >= 0 || rc == -EINVAL || rc == -ENOBUFS);
	if (rc < 0)
		return;
	FUZZ_REQUIRE(offer.len_bytes > 0 && offer.offset_bytes <= offer.storage_len_bytes &&
		     offer.len_bytes <= offer.storage_len_bytes - offer.offset_bytes);
	world->handles[world->handle_count++] = (struct handle){.tensor = tensor,
								.content = content,
								.offset = offer.offset_bytes,
								.len = offer.len_bytes};
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

static bool is_ours(const struct world *world, const struct handle *handle)
{
	return handle >= world->handles && handle < world->handles + HANDLES;
}

static void return_lease(struct world *world)
{
	const struct lease *lease = &world->leases[--world->lease_count];

	FUZZ_REQUIRE(memcmp(lease->bytes, lease->expected, lease->len) == 0);
	spw_cache_return(world->cache, lease->lease);
}

static void check_taken(struct world *world, const struct spw_taken *taken, const uint8_t *expected,
			uint64_t offset, uint64_t len)
{
	if (!taken->bytes) {
		FUZZ_REQUIRE(taken->owner > 0 && taken->owner < TOKENS &&
			     world->memory[taken->owner]);
		FUZZ_REQUIRE(offset + len <= world->memory_bytes[taken->owner]);
		FUZZ_REQUIRE(memcmp(world->memory[taken->owner] + offset, expected, len) == 0);
		return;
	}
	FUZZ_REQUIRE(memcmp(taken->bytes, expected, len) == 0);
	if (world->lease_count == HANDLES)
		return_lease(world);
	world->leases[world->lease_count++] =
		(struct lease){taken->lease, taken->bytes, expected, len};
}

/* It was discarded: the same bytes come back, and no others. */
static void restore(struct world *world, const struct handle *handle)
{
	struct spw_offer offer = {.storage_len_bytes = STORAGE_BYTES};
	bool wrong = fuzz_byte(&world->bytes) % 8 == 0;
	int rc;

	if (world->tokens + 1 == TOKENS)
		return;
	give_memory(world, ++world->tokens, handle->content, STORAGE_BYTES);
	world->memory[world->tokens][handle->offset] ^= wrong;
	offer.storage_bytes = world->memory[world->tokens];
	offer.owner = world->tokens;
	rc = spw_cache_restore(world->cache, handle->tensor, &offer);
	FUZZ_REQUIRE(rc == (wrong ? -ESTALE : 0));
	if (rc)
		destroy_memory(world, world->tokens--);
}

/* Of what was offered, whatever the drives did but for this one read. */
static void take(struct world *world)
{
	struct handle *handle = any_handle(world);
	uint64_t offset = fuzz_number(&world->bytes), len = fuzz_number(&world->bytes);
	struct spw_taken taken = {0};
	bool offered;
	int rc;

	/* There is one thread: a read in flight ends before it is waited for. */
	while (fake_pending(world->store, FAKE_READ, 0))
		fake_end_oldest(world->store, FAKE_READ, 0);
	rc = spw_cache_take(world->cache, handle->tensor, offset, len, &taken);
	FUZZ_REQUIRE(rc <= SPW_TAKE_AGAIN);
	if (!is_ours(world, handle))
		return;
	if (rc == SPW_TAKE_AGAIN) {
		restore(world, handle);
		return;
	}
	offered = len > 0 && offset >= handle->offset && offset - handle->offset <= handle->len &&
		  len <= handle->len - (offset - handle->offset);
	FUZZ_REQUIRE(rc != -EIO || world->store->wait_res);
	FUZZ_REQUIRE(!offered || rc == 0 || rc == -EIO);
	world->store->wait_res = 0;
	if (rc != 0)
		return;
	FUZZ_REQUIRE(len > 0 && offset < STORAGE_BYTES && len <= STORAGE_BYTES - offset);
	check_taken(world, &taken, handle->content + offset, offset, len);
}

static void release(struct world *world)
{
	struct handle *handle = any_handle(world);
	bool ours = is_ours(world, handle);

	/* Any number may by chance be a tensor that is ours, whose handle would be wrong then. */
	for (unsigned i = 0; !ours && i < world->handle_count; i++)
		if (world->handles[i].tensor.value == handle->tensor.value)
			return;
	FUZZ_REQUIRE((spw_cache_release(world->cache, handle->tensor) == 0) == ours);
	if (ours)
		*handle = world->handles[--world->handle_count];
}

static int drain(struct world *world, unsigned count)
{
	uint64_t owners[8];
	int rc = spw_cache_drain(world->cache, owners, count);

	FUZZ_REQUIRE(rc <= (int)count);
	for (int i = 0; i < rc; i++) {
		FUZZ_REQUIRE(owners[i] > 0 && owners[i] <= world->tokens &&
			     world->memory[owners[i]]);
		destroy_memory(world, (unsigned)owners[i]);
	}
	return rc;
}

static void end_one(struct world *world)
{
	enum fake_kind kind = fuzz_byte(&world->bytes) % 2 ? FAKE_READ : FAKE_WRITE;

	if (fake_pending(world->store, kind, 0))
		fake_end_oldest(world->store, kind, fuzz_byte(&world->bytes) % 8 == 0 ? -EIO : 0);
}

static void stage_next(struct world *world)
{
	uint32_t now = (uint32_t)fuzz_number(&world->bytes),
		 next = (uint32_t)fuzz_number(&world->bytes);
	uint8_t stages = fuzz_byte(&world->bytes);

	spw_cache_stage_next(world->cache, now, (enum spw_stage)(stages % 3), next,
			     (enum spw_stage)(stages / 3 % 3));
}

/* Beside the twelve that follow, and seldom. */
static void do_rare(struct world *world, unsigned which)
{
	switch (which) {
	case 0: stage_next(world); break;
	case 1: world->store->wait_res = -EIO; break;
	case 2: world->store->put_error = fuzz_byte(&world->bytes) % 2 ? -EIO : -ENOSPC; break;
	default: spw_cache_reset_peak(world->cache); break;
	}
}

static void do_one(struct world *world)
{
	struct spw_cache_stats stats;
	unsigned which = fuzz_byte(&world->bytes);

	if (which >= 256 / OPERATIONS * OPERATIONS) {
		do_rare(world, which - 256 / OPERATIONS * OPERATIONS);
		return;
	}
	switch (which % OPERATIONS) {
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
	case 8: (void)drain(world, fuzz_byte(&world->bytes) % 9); break;
	case 9:
		if (world->lease_count > 0)
			return_lease(world);
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
	opts.tensors_max = 1 + fuzz_byte(&world->bytes) % ENTRIES_MAX;
	FUZZ_REQUIRE(fake_open_cache(world->store, &opts, &world->cache) == 0);
}

static void begin_once(void)
{
	if (contents[0][0])
		return;
	for (unsigned i = 0; i < CONTENTS * STORAGE_BYTES; i++)
		((uint8_t *)contents)[i] = (uint8_t)(1 + i * 7 + (i >> 8) * 3 + (i >> 12) * 41);
	/*
	 * Large tables that a short run hardly touches: new pages for what is used are quicker than
	 * clearing all. A sanitizer's allocator knows of no such thing.
	 */
	(void)mallopt(M_MMAP_THRESHOLD, 64 << 10);
}

/* Users gone, leases back, I/O ended: then every token comes back, and nothing is held. */
static void wind_down(struct world *world)
{
	struct spw_cache_stats stats;

	for (; world->handle_count > 0; world->handle_count--)
		FUZZ_REQUIRE(spw_cache_release(world->cache,
					       world->handles[world->handle_count - 1].tensor) ==
			     0);
	while (world->lease_count > 0)
		return_lease(world);
	fake_end_all(world->store);
	while (drain(world, 8) > 0)
		;
	for (unsigned token = 1; token <= world->tokens; token++)
		FUZZ_REQUIRE(!world->memory[token]);
	spw_cache_stats(world->cache, &stats, sizeof(stats));
	FUZZ_REQUIRE(stats.entries == 0 && stats.activation_bytes == 0 &&
		     stats.staging_bytes == 0 && stats.prefetched_bytes == 0);
	FUZZ_REQUIRE(world->store->objects_used == 0 && world->store->arena_used == 0);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct world world = {.bytes = {data, size}};

	begin_once();
	world.store = fake_open();
	world.store->requests_max = 48;
	open_cache(&world);
	for (unsigned i = 0; i < 400 && world.bytes.left > 0; i++)
		do_one(&world);
	world.store->wait_res = 0;
	/* Else it is closed with all that there is. */
	if (size > 0 && data[size - 1] % 4)
		wind_down(&world);
	fake_end_all(world.store);
	spw_cache_close(world.cache);
	for (unsigned token = 1; token <= world.tokens; token++)
		if (world.memory[token])
			destroy_memory(&world, token);
	simstore_close(world.store);
	return 0;
}
