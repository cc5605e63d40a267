/* SPDX-License-Identifier: MIT */
/*
 * tests/fuzz/fuzz_cache.c - the tensor cache called as a binding calls it, with any numbers in any
 * order: no crash, no wrong byte, no take that fails though its drive has not, every token back
 * once, nothing left in the store
 *
 * What a storage holds follows from its key and version.
 */
/* link: simstore libspillway */
#include <malloc.h>

#include "tests/fuzz/fuzz.h"

#include <spillway/cache.h>

#include "tests/model/cache_model.h"
#include "tests/unit/cache_fake.h"

#define STORAGE_BYTES 4096u
#define CONTENTS      8u
#define OPERATIONS    12u
#define ENTRIES_MAX   32u

struct world {
	struct spw_store *store;
	struct fuzz_bytes bytes;
	struct model model;
};

static uint8_t contents[CONTENTS][STORAGE_BYTES];

/* ---- Calls ---- */

static uint8_t *allocate(uint64_t len)
{
	uint8_t *bytes = malloc(len + 1);

	FUZZ_REQUIRE(bytes);
	return bytes;
}

static void stop(const char *what)
{
	(void)fprintf(stderr, "%s\n", what);
	abort();
}

static void offer(struct world *world)
{
	uint64_t key = fuzz_number(&world->bytes), version = fuzz_number(&world->bytes);
	struct model_storage storage = {
		.key = key,
		.version = version,
		.len = fuzz_number(&world->bytes) % (STORAGE_BYTES + 1),
		.expected_len = STORAGE_BYTES,
		.expected = contents[(key + 3 * version) % CONTENTS],
	};
	uint64_t offset = fuzz_number(&world->bytes), len = fuzz_number(&world->bytes);
	enum spw_cache_hint hint = (enum spw_cache_hint)(fuzz_byte(&world->bytes) % 8);
	int rc = model_offer(&world->model, &storage, offset, len, hint);

	FUZZ_REQUIRE(rc >= 0 || rc == -EINVAL || rc == -ENOBUFS || rc == -EAGAIN);
}

/* One of the model's; or NULL: @other is any number. */
static struct model_tensor *any_tensor(struct world *world, spw_tensor *other)
{
	unsigned pick = fuzz_byte(&world->bytes);

	if (pick < 224 && world->model.tensor_count > 0)
		return &world->model.tensors[pick % world->model.tensor_count];
	other->value = fuzz_number(&world->bytes);
	return NULL;
}

/* Whatever the drives did: only this read's error is one of the take. */
static void take(struct world *world)
{
	spw_tensor other;
	const struct model_tensor *tensor = any_tensor(world, &other);
	uint64_t offset = fuzz_number(&world->bytes), len = fuzz_number(&world->bytes);
	struct spw_taken taken;
	bool offered;
	int rc;

	/* There is one thread: a read in flight ends before it is waited for. */
	while (fake_pending(world->store, FAKE_READ, 0))
		fake_end_oldest(world->store, FAKE_READ, 0);
	if (!tensor) {
		FUZZ_REQUIRE(spw_cache_take(world->model.cache, other, offset, len, &taken) <=
			     SPW_TAKE_AGAIN);
		return;
	}
	rc = model_take(&world->model, tensor, offset, len);
	if (rc == SPW_TAKE_AGAIN) {
		model_restore(&world->model, tensor, fuzz_byte(&world->bytes) % 8 == 0);
		return;
	}
	offered = len > 0 && offset >= tensor->offset && offset - tensor->offset <= tensor->len &&
		  len <= tensor->len - (offset - tensor->offset);
	FUZZ_REQUIRE(rc <= 0 && (rc != -EIO || world->store->wait_res));
	FUZZ_REQUIRE(!offered || rc == 0 || rc == -EIO);
	world->store->wait_res = 0;
}

static void release(struct world *world)
{
	spw_tensor other;
	struct model_tensor *tensor = any_tensor(world, &other);

	if (tensor) {
		model_release(&world->model, tensor);
		return;
	}
	/* Any number may by chance be a tensor of the model's. */
	for (unsigned i = 0; i < world->model.tensor_count; i++)
		if (world->model.tensors[i].id.value == other.value)
			return;
	FUZZ_REQUIRE(spw_cache_release(world->model.cache, other) != 0);
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

	spw_cache_stage_next(world->model.cache, now, (enum spw_stage)(stages % 3), next,
			     (enum spw_stage)(stages / 3 % 3));
}

/* Beside the twelve that follow, and seldom. */
static void do_rare(struct world *world, unsigned which)
{
	switch (which) {
	case 0: stage_next(world); break;
	case 1: world->store->wait_res = -EIO; break;
	case 2: world->store->put_error = fuzz_byte(&world->bytes) % 2 ? -EIO : -ENOSPC; break;
	default: spw_cache_reset_peak(world->model.cache); break;
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
	case 0: spw_cache_step(world->model.cache); break;
	case 1:
		spw_cache_stage(world->model.cache, (uint32_t)fuzz_number(&world->bytes),
				(enum spw_stage)(fuzz_byte(&world->bytes) % 3));
		break;
	case 2: spw_cache_scope_enter(world->model.cache, fuzz_number(&world->bytes)); break;
	case 3: spw_cache_scope_leave(world->model.cache); break;
	case 4:
	case 5: offer(world); break;
	case 6: take(world); break;
	case 7: release(world); break;
	case 8: (void)model_drain(&world->model, fuzz_byte(&world->bytes) % 9); break;
	case 9:
		if (world->model.lease_count > 0)
			model_return(&world->model, world->model.lease_count - 1);
		break;
	case 10: end_one(world); break;
	default: spw_cache_stats(world->model.cache, &stats, sizeof(stats)); break;
	}
}

static void open_cache(struct world *world)
{
	struct spw_cache_opts opts;

	spw_cache_opts_init(&opts, sizeof(opts));
	opts.mode = (enum spw_cache_mode)(fuzz_byte(&world->bytes) % 4);
	opts.min_bytes = fuzz_byte(&world->bytes);
	opts.staging_bytes = 1 + fuzz_number(&world->bytes) % 65536;
	opts.prefetch_bytes = fuzz_number(&world->bytes) % 65536;
	opts.memory_bytes = 1 + fuzz_number(&world->bytes) % 65536;
	opts.spill_last_scope = fuzz_byte(&world->bytes) % 2;
	opts.tensors_max = 1 + fuzz_byte(&world->bytes) % ENTRIES_MAX;
	FUZZ_REQUIRE(fake_open_cache(world->store, &opts, &world->model.cache) == 0);
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

	model_release_all(&world->model);
	fake_end_all(world->store);
	while (model_drain(&world->model, 8) > 0)
		;
	FUZZ_REQUIRE(world->model.owner_count == 0);
	spw_cache_stats(world->model.cache, &stats, sizeof(stats));
	FUZZ_REQUIRE(stats.entries == 0 && stats.activation_bytes == 0 &&
		     stats.staging_bytes == 0 && stats.prefetched_bytes == 0);
	FUZZ_REQUIRE(world->store->objects_used == 0 && world->store->arena_used == 0);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct world world = {
		.bytes = {data, size},
		.model = {.allocate = allocate, .release = free, .stop = stop},
	};

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
	spw_cache_close(world.model.cache);
	model_free(&world.model);
	simstore_close(world.store);
	return 0;
}
