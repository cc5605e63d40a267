/* SPDX-License-Identifier: MIT */
/*
 * tests/unit/test_cache_random.c - the tensor cache under random orders of everything: calls, ends
 * of requests, failures
 *
 * The model is plain memory: what a storage of a key and version holds follows from both, so every
 * byte handed out can be checked. Memory that was offered is destroyed and freed as soon as its
 * token is drained. One seed gives one run:
 * the only other thread ends a read when the first one waits for it. A second test lets several
 * threads loose on one cache; its order is the scheduler's.
 *
 * In half of the rounds each step begins with the same seed as the one before, so that steps are
 * alike for a while, until what the drives did makes them differ: plans are made, followed and
 * left.
 */
/* link: tools/replay/simstore libspillway */
#include <limits.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#include <cmocka.h>

#include <spillway/cache.h>

#include "tensor/control/internal.h"
#include "tensor/internal.h"
#include "tests/unit/cache_fake.h"

#define STORAGES    12 /* keys in use at a time */
#define HANDLES_MAX 96
#define LEASES_MAX  64
#define OWNERS_MAX  512
#define TENSORS_MAX 64
#define STORAGE_MAX 6000

static uint64_t seed;

static uint64_t random_next(uint64_t *random)
{
	uint64_t z = *random += UINT64_C(0x9e3779b97f4a7c15);

	z = (z ^ z >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
	z = (z ^ z >> 27) * UINT64_C(0x94d049bb133111eb);
	return z ^ z >> 31;
}

static uint64_t random_below(uint64_t *random, uint64_t limit)
{
	return random_next(random) % limit;
}

static bool random_chance(uint64_t *random, unsigned percent)
{
	return random_below(random, 100) < percent;
}

static uint8_t pattern(uint64_t key, uint64_t version, uint64_t i)
{
	return (uint8_t)(key * 31 + version * 17 + i * 7 + (i >> 8) * 3);
}

/* Lengths follow from the key, so that all offers of a storage agree. */
static uint64_t storage_len(uint64_t key)
{
	uint64_t random = key;

	return 1 + random_below(&random, random_chance(&random, 30) ? 100 : STORAGE_MAX);
}

struct handle {
	spw_tensor tensor;
	uint64_t key, version, offset, len;
};

struct held_lease {
	uint64_t lease, key, version, offset, len;
	const uint8_t *bytes;
};

/* A token is its slot, plus 1, plus a count of how often the slot was used. */
struct owner {
	uint64_t token, key, version;
	uint8_t *bytes;
	uint64_t len;
};

struct world {
	uint64_t random;
	uint64_t io_random;
	uint64_t script; /* the seed of every step; 0: none */
	struct spw_store *store;
	struct spw_cache *cache;
	struct handle handles[HANDLES_MAX];
	unsigned handle_count;
	struct held_lease leases[LEASES_MAX];
	unsigned lease_count;
	struct owner owners[OWNERS_MAX];
	uint64_t tokens, held, drained;
	uint64_t keys[STORAGES], versions[STORAGES], key_last;
	unsigned write_errors_percent, read_errors_percent;
	uint64_t takes, failed_takes;
	/* the thread that ends what the first one waits for */
	pthread_t helper;
	bool stop;
	unsigned raises_served, refusals_served;
	uint64_t helper_random;
};

static void fail_at(const struct world *world, const char *what)
{
	(void)world;
	fail_msg("%s; SPW_SEED=%llu", what, (unsigned long long)seed);
}

#define REQUIRE(world, condition)                   \
	do {                                        \
		if (!(condition))                   \
			fail_at(world, #condition); \
	} while (0)

static void check_bytes(const struct world *world, const uint8_t *bytes, uint64_t key,
			uint64_t version, uint64_t offset, uint64_t len)
{
	for (uint64_t i = 0; i < len; i++)
		if (bytes[i] != pattern(key, version, offset + i))
			fail_at(world, "wrong bytes");
}

/* ---- What must always hold inside ---- */

struct sums {
	uint64_t activation, writing, held, window, in_flight, old;
	uint32_t entries;
};

/* What a plan knows of the tensors of this step. */
static void check_place(const struct world *world, const struct entry *entry)
{
	const struct control *control = entry->cache->control;
	const struct recorded *recorded = spw_recording_of(control, &entry->track);
	const struct recording *basis = &control->shape->basis;

	if (!recorded || entry->state == ENTRY_DEAD)
		return;
	REQUIRE(world, recorded->slot == (uint32_t)(entry - entry->cache->entries));
	REQUIRE(world, recorded->stored == (entry->state == ENTRY_STORED));
	if (recorded->matched == NO_TENSOR)
		return;
	REQUIRE(world, control->shape->planned && recorded->matched < basis->count &&
			       basis->tensors[recorded->matched].plannable);
	REQUIRE(world, basis->tensors[recorded->matched].bytes == entry->len_bytes);
	REQUIRE(world, control->slots[recorded->matched] == recorded->slot);
	REQUIRE(world, !control->gone[recorded->matched]);
}

static void check_entry(const struct world *world, const struct entry *entry, struct sums *sums)
{
	bool in_owner = entry->state == ENTRY_KEPT || entry->state == ENTRY_QUEUED ||
			entry->state == ENTRY_LEAVING;

	sums->entries++;
	sums->activation += entry->owner_held ? entry->len_bytes : 0;
	sums->activation += entry->memory ? entry->len_bytes : 0;
	if (entry->track.step != entry->cache->control->step) {
		sums->old += entry->owner_held ? entry->len_bytes : 0;
		sums->old += entry->memory ? entry->len_bytes : 0;
	}
	sums->writing += entry->write_in_flight ? entry->len_bytes : 0;
	sums->held += world->cache->held == entry ? entry->len_bytes : 0;
	sums->window += entry->in_window ? entry->len_bytes : 0;
	sums->in_flight += (unsigned)entry->write_in_flight + entry->read_in_flight;
	REQUIRE(world, entry->state == ENTRY_DEAD || entry->users > 0);
	REQUIRE(world, entry->state != ENTRY_DEAD || entry->users == 0);
	REQUIRE(world, !entry->drainable || (entry->owner_held && !entry->write_in_flight));
	REQUIRE(world, !in_owner || (entry->owner_held && !entry->memory));
	REQUIRE(world, entry->state != ENTRY_KEPT || (!entry->object_exists && !entry->drainable));
	REQUIRE(world, (entry->state == ENTRY_QUEUED) == (world->cache->held == entry));
	REQUIRE(world,
		entry->state != ENTRY_LEAVING || entry->drainable == !entry->write_in_flight);
	REQUIRE(world, entry->state != ENTRY_STORED ||
			       (entry->object_exists && !entry->memory && !entry->owner_held));
	REQUIRE(world, (entry->state == ENTRY_COMING) ==
			       (entry->read_in_flight && entry->state != ENTRY_DEAD));
	REQUIRE(world, entry->state != ENTRY_RESIDENT || !entry->memory == entry->owner_held);
	REQUIRE(world, !entry->in_window || entry->state == ENTRY_COMING ||
			       entry->state == ENTRY_RESIDENT);
	REQUIRE(world, entry->leases == 0 || entry->memory);
	check_place(world, entry);
}

static void check_inside(const struct world *world)
{
	struct spw_cache *cache = world->cache;
	struct spw_cache_stats stats;
	struct sums sums = {0};

	spw_cache_lock(cache);
	for (uint32_t i = 0; i < TENSORS_MAX; i++)
		if (cache->entries[i].state != ENTRY_FREE)
			check_entry(world, &cache->entries[i], &sums);
	REQUIRE(world, sums.in_flight == cache->io_in_flight);
	REQUIRE(world, sums.activation == cache->control->memory_bytes);
	REQUIRE(world, sums.old == cache->control->old_bytes);
	REQUIRE(world, cache->control->waiting == 0);
	REQUIRE(world,
		cache->control->measure.flows[DIRECTION_WRITE].bytes_in_flight == sums.writing);
	REQUIRE(world, cache->control->measure.flows[DIRECTION_WRITE].in_flight +
				       cache->control->measure.flows[DIRECTION_READ].in_flight ==
			       sums.in_flight);
	spw_cache_unlock(cache);
	spw_cache_stats(cache, &stats, sizeof(stats));
	REQUIRE(world, stats.entries == sums.entries);
	REQUIRE(world, stats.activation_bytes == sums.activation);
	REQUIRE(world, stats.staging_bytes == sums.writing + sums.held);
	REQUIRE(world, stats.prefetched_bytes == sums.window);
}

/* ---- Operations ---- */

static struct owner *owner_new(struct world *world, uint64_t key, uint64_t version)
{
	for (unsigned slot = 0; slot < OWNERS_MAX; slot++) {
		struct owner *owner = &world->owners[slot];

		if (owner->bytes)
			continue;
		*owner = (struct owner){.token = slot + 1 + OWNERS_MAX * world->tokens++,
					.key = key,
					.version = version,
					.len = storage_len(key)};
		owner->bytes = malloc(owner->len);
		SPW_ASSERT(owner->bytes);
		for (uint64_t i = 0; i < owner->len; i++)
			owner->bytes[i] = pattern(key, version, i);
		return owner;
	}
	return NULL;
}

static struct owner *owner_of(struct world *world, uint64_t token)
{
	struct owner *owner = &world->owners[(token - 1) % OWNERS_MAX];

	REQUIRE(world, token > 0 && owner->bytes && owner->token == token);
	return owner;
}

static void owner_free(struct owner *owner)
{
	memset(owner->bytes, 0xdd, owner->len);
	free(owner->bytes);
	owner->bytes = NULL;
}

static void do_offer(struct world *world)
{
	unsigned which = (unsigned)random_below(&world->random, STORAGES);
	uint64_t key = world->keys[which], version = world->versions[which], len = storage_len(key);
	uint64_t offset = random_chance(&world->random, 60) ? 0 : random_below(&world->random, len);
	uint64_t range = offset == 0 && random_chance(&world->random, 70)
				 ? len
				 : 1 + random_below(&world->random, len - offset);
	struct owner *owner =
		world->handle_count < HANDLES_MAX ? owner_new(world, key, version) : NULL;
	struct handle *handle = &world->handles[world->handle_count];
	struct spw_offer offer;
	int rc;

	if (!owner)
		return;
	offer = (struct spw_offer){.storage_key = key,
				   .storage_version = version,
				   .storage_bytes = owner->bytes,
				   .storage_len_bytes = len,
				   .offset_bytes = offset,
				   .len_bytes = range,
				   .owner = owner->token};
	if (random_chance(&world->random, 3))
		world->store->put_error = random_chance(&world->random, 50) ? -ENOSPC : -EIO;
	rc = spw_cache_offer_hint(world->cache, &offer,
				  (enum spw_cache_hint)(random_chance(&world->random, 80)
								? SPW_HINT_NONE
								: random_below(&world->random, 4)),
				  &handle->tensor);
	world->store->put_error = 0;
	REQUIRE(world, rc >= 0 || rc == -ENOBUFS);
	if (rc == SPW_OFFER_KEEP || rc == SPW_OFFER_SPILL)
		world->held++;
	else
		owner_free(owner);
	if (rc < 0)
		return;
	handle->key = key;
	handle->version = version;
	handle->offset = offset;
	handle->len = range;
	world->handle_count++;
}

static void do_take(struct world *world)
{
	struct handle *handle;
	uint64_t offset, len;
	struct spw_taken taken;
	int rc;

	if (world->handle_count == 0 || world->lease_count == LEASES_MAX)
		return;
	/* Mostly the last ones, as a backward pass does. */
	handle = &world->handles[random_chance(&world->random, 60)
					 ? world->handle_count - 1
					 : (unsigned)random_below(&world->random,
								  world->handle_count)];
	offset =
		handle->offset +
		(random_chance(&world->random, 80) ? 0 : random_below(&world->random, handle->len));
	len = handle->offset + handle->len - offset;
	world->store->wait_res =
		random_chance(&world->random, world->read_errors_percent) ? -EIO : 0;
	rc = spw_cache_take(world->cache, handle->tensor, offset, len, &taken);
	world->takes++;
	if (rc) {
		REQUIRE(world, rc == -EIO && world->store->wait_res == -EIO);
		REQUIRE(world, strcmp(spw_last_error(), SIMSTORE_ERROR_TEXT) == 0);
		world->failed_takes++;
		return;
	}
	if (!taken.bytes) {
		struct owner *owner = owner_of(world, taken.owner);

		REQUIRE(world, owner->key == handle->key && owner->version == handle->version);
		check_bytes(world, owner->bytes + offset, handle->key, handle->version, offset,
			    len);
		return;
	}
	REQUIRE(world, taken.storage_bytes_before + len <= taken.storage_bytes_total);
	world->leases[world->lease_count++] = (struct held_lease){
		taken.lease, handle->key, handle->version, offset, len, taken.bytes};
	check_bytes(world, taken.bytes, handle->key, handle->version, offset, len);
}

static void do_return(struct world *world)
{
	struct held_lease *lease;

	if (world->lease_count == 0)
		return;
	lease = &world->leases[random_below(&world->random, world->lease_count)];
	check_bytes(world, lease->bytes, lease->key, lease->version, lease->offset, lease->len);
	spw_cache_return(world->cache, lease->lease);
	*lease = world->leases[--world->lease_count];
}

static void do_release(struct world *world)
{
	unsigned which;

	if (world->handle_count == 0)
		return;
	which = random_chance(&world->random, 60)
			? world->handle_count - 1
			: (unsigned)random_below(&world->random, world->handle_count);
	REQUIRE(world, spw_cache_release(world->cache, world->handles[which].tensor) == 0);
	world->handles[which] = world->handles[--world->handle_count];
}

static void do_drain(struct world *world)
{
	uint64_t tokens[7];
	int count = spw_cache_drain(world->cache, tokens,
				    1 + (unsigned)random_below(&world->random, 7));

	REQUIRE(world, count >= 0);
	for (int i = 0; i < count; i++) {
		owner_free(owner_of(world, tokens[i]));
		world->drained++;
	}
}

/*
 * A storage is freed, and its memory used for another: a new key. Or it is written in place: a new
 * version.
 */
static void do_change_storage(struct world *world)
{
	unsigned which = (unsigned)random_below(&world->random, STORAGES);

	if (random_chance(&world->random, 50))
		world->versions[which]++;
	else
		world->keys[which] = ++world->key_last;
}

static void do_say_where(struct world *world)
{
	uint32_t micro_batch = (uint32_t)random_below(&world->random, 2);
	enum spw_stage stage =
		random_chance(&world->random, 40) ? SPW_STAGE_BACKWARD : SPW_STAGE_FORWARD;
	enum spw_stage next_stage =
		random_chance(&world->random, 60) ? SPW_STAGE_BACKWARD : SPW_STAGE_FORWARD;

	switch (random_below(&world->random, 8)) {
	case 0:
		spw_cache_step(world->cache);
		if (world->script)
			world->random = world->script;
		break;
	case 1:
	case 2: spw_cache_stage(world->cache, micro_batch, stage); break;
	case 3:
		spw_cache_stage_next(world->cache, micro_batch, stage, 1 - micro_batch, next_stage);
		break;
	case 4:
	case 5: spw_cache_scope_enter(world->cache, random_below(&world->random, 3)); break;
	default: spw_cache_scope_leave(world->cache);
	}
}

static void end_one(struct world *world, uint64_t *random)
{
	enum fake_kind kind = random_chance(random, 50) ? FAKE_WRITE : FAKE_READ;
	struct spw_request *request =
		fake_pending(world->store, kind, (unsigned)random_below(random, 4));
	unsigned errors =
		kind == FAKE_WRITE ? world->write_errors_percent : world->read_errors_percent;

	if (!request)
		request = fake_pending(world->store, kind, 0);
	if (!request)
		request =
			fake_pending(world->store, kind == FAKE_WRITE ? FAKE_READ : FAKE_WRITE, 0);
	if (!request)
		return;
	fake_issue(request);
	if (random_chance(random, 75))
		simstore_end(request, random_chance(random, errors) ? -EIO : 0);
}

/* Only while the first thread waits: for a read that it raised, or for any request to end. */
static void *helper_run(void *context)
{
	struct world *world = context;
	struct spw_store *store = world->store;

	simstore_lock(store);
	while (!world->stop) {
		struct spw_request *request = NULL;

		if (world->raises_served < store->raises) {
			world->raises_served = store->raises;
			for (request = store->first; request && !request->raised;)
				request = request->next;
		} else if (world->refusals_served < store->urgent_refused) {
			world->refusals_served = store->urgent_refused;
			request = fake_pending_locked(store, FAKE_WRITE, 0);
			if (!request)
				request = fake_pending_locked(store, FAKE_READ, 0);
		}
		if (!request) {
			SPW_ASSERT(pthread_cond_wait(&store->changed, &store->lock) == 0);
			continue;
		}
		simstore_unlock(store);
		fake_issue(request);
		simstore_end(request,
			     random_chance(&world->helper_random, world->read_errors_percent) ? -EIO
											      : 0);
		simstore_lock(store);
	}
	simstore_unlock(store);
	return NULL;
}

static void do_anything(struct world *world)
{
	uint64_t choice = random_below(&world->random, 100);

	if (choice < 25)
		do_offer(world);
	else if (choice < 40)
		do_take(world);
	else if (choice < 48)
		do_return(world);
	else if (choice < 62)
		do_release(world);
	else if (choice < 72)
		do_drain(world);
	else if (choice < 74)
		do_change_storage(world);
	else if (choice < 80)
		do_say_where(world);
	else
		end_one(world, &world->io_random);
}

/* ---- Rounds ---- */

static void world_begin(struct world *world, uint64_t random)
{
	static const enum spw_cache_mode modes[] = {SPW_CACHE_SPILL, SPW_CACHE_FASTEST,
						    SPW_CACHE_FASTEST, SPW_CACHE_BUDGET,
						    SPW_CACHE_POSITIONAL};
	struct spw_cache_opts opts;

	*world = (struct world){.random = random,
				.io_random = random + 2,
				.helper_random = random + 1,
				.store = fake_open()};
	spw_cache_opts_init(&opts, sizeof(opts));
	opts.mode = modes[random_below(&world->random, SPW_ARRAY_LEN(modes))];
	opts.memory_bytes = 1 + random_below(&world->random, 50000);
	opts.min_bytes = 64;
	opts.tensors_max = TENSORS_MAX;
	opts.staging_bytes = random_chance(&world->random, 50) ? UINT64_C(1) << 30 : 20000;
	opts.prefetch_bytes =
		random_chance(&world->random, 50) ? 0 : 1 + random_below(&world->random, 20000);
	opts.spill_last_scope = random_chance(&world->random, 50);
	world->store->requests_max = random_chance(&world->random, 50) ? UINT_MAX : 3;
	world->store->capacity = random_chance(&world->random, 70) ? UINT64_MAX : 60000;
	world->store->arena = random_chance(&world->random, 50) ? UINT64_MAX : 10000;
	world->write_errors_percent = (unsigned)random_below(&world->random, 2) * 10;
	world->read_errors_percent = (unsigned)random_below(&world->random, 2) * 10;
	world->script = random_chance(&world->random, 50) ? random_next(&world->random) : 0;
	for (unsigned i = 0; i < STORAGES; i++)
		world->keys[i] = ++world->key_last;
	assert_int_equal(fake_open_cache(world->store, &opts, &world->cache), 0);
	if (random_chance(&world->random, 50))
		world->cache->hold_bytes = random_below(&world->random, 2) * 1000;
	assert_int_equal(pthread_create(&world->helper, NULL, helper_run, world), 0);
}

static void world_wind_down(struct world *world)
{
	while (world->handle_count > 0)
		do_release(world);
	while (world->lease_count > 0)
		do_return(world);
	fake_end_all(world->store);
	while (world->drained < world->held) {
		uint64_t before = world->drained;

		do_drain(world);
		REQUIRE(world, world->drained > before);
	}
	check_inside(world);
	REQUIRE(world, world->cache->count.entries == 0);
	REQUIRE(world, world->cache->count.activation_bytes == 0);
	REQUIRE(world, world->store->objects_used == 0 && world->store->arena_used == 0);
}

static void world_end(struct world *world)
{
	simstore_lock(world->store);
	world->stop = true;
	simstore_unlock(world->store);
	assert_int_equal(pthread_join(world->helper, NULL), 0);
	/*
	 * In half of the rounds there is still all manner of things about. What was issued has to
	 * end before closing can.
	 */
	if (random_chance(&world->random, 50))
		world_wind_down(world);
	else
		fake_end_all(world->store);
	spw_cache_close(world->cache);
	for (unsigned i = 0; i < OWNERS_MAX; i++)
		if (world->owners[i].bytes)
			owner_free(&world->owners[i]);
	simstore_close(world->store);
}

static unsigned long operations(void)
{
	const char *text = getenv("SPW_CACHE_OPERATIONS");

	return text ? strtoul(text, NULL, 0) : 100000;
}

static void test_random_interleavings(void **state)
{
	static struct world world;
	uint64_t random = seed;
	unsigned long left = operations();
	uint64_t takes = 0, failed = 0, plans = 0, mismatches = 0;

	(void)state;
	while (left > 0) {
		unsigned long count = left < 2500 ? left : 2500;

		left -= count;
		world_begin(&world, random_next(&random));
		for (unsigned long i = 0; i < count; i++) {
			do_anything(&world);
			if (i % 16 == 0)
				check_inside(&world);
		}
		takes += world.takes;
		failed += world.failed_takes;
		plans += world.cache->count.plans;
		mismatches += world.cache->count.plan_mismatches;
		world_end(&world);
	}
	/* The run has seen something. */
	assert_true(takes > operations() / 50);
	assert_true(operations() < 100000 || (failed > 0 && plans > 0 && mismatches > 0));
}

/* ---- Several threads on one cache ---- */

#define THREADS      4
#define THREAD_STEPS 400

struct crowd {
	struct spw_store *store;
	struct spw_cache *cache;
	pthread_mutex_t lock;
	uint8_t *memory[THREADS * 16 + 1]; /* by token */
	bool stop;
};

struct member {
	struct crowd *crowd;
	unsigned index;
	pthread_t thread;
};

/* Each thread's storages are its own, but for one that all share: duplicates of one another. */
static uint64_t crowd_key(unsigned index, unsigned step, unsigned tensor)
{
	return tensor == 0 ? 1 + step
			   : 1000 + ((uint64_t)index * THREAD_STEPS + step) * 16 + tensor;
}

static void crowd_drain(struct crowd *crowd)
{
	uint64_t tokens[8];
	int count = spw_cache_drain(crowd->cache, tokens, 8);

	for (int i = 0; i < count; i++) {
		SPW_ASSERT(pthread_mutex_lock(&crowd->lock) == 0);
		free(crowd->memory[tokens[i]]);
		crowd->memory[tokens[i]] = NULL;
		SPW_ASSERT(pthread_mutex_unlock(&crowd->lock) == 0);
	}
}

static uint64_t crowd_token(struct crowd *crowd, unsigned index, uint8_t *memory)
{
	for (;;) {
		SPW_ASSERT(pthread_mutex_lock(&crowd->lock) == 0);
		for (uint64_t token = 1 + index * 16; token < 17 + index * 16; token++)
			if (!crowd->memory[token]) {
				crowd->memory[token] = memory;
				SPW_ASSERT(pthread_mutex_unlock(&crowd->lock) == 0);
				return token;
			}
		SPW_ASSERT(pthread_mutex_unlock(&crowd->lock) == 0);
		crowd_drain(crowd);
	}
}

static spw_tensor crowd_offer(struct crowd *crowd, unsigned index, uint64_t key)
{
	uint64_t len = storage_len(key);
	uint8_t *memory = malloc(len);
	struct spw_offer offer = {.storage_key = key,
				  .storage_bytes = memory,
				  .storage_len_bytes = len,
				  .len_bytes = len};
	spw_tensor tensor;
	int rc;

	SPW_ASSERT(memory);
	for (uint64_t i = 0; i < len; i++)
		memory[i] = pattern(key, 0, i);
	offer.owner = crowd_token(crowd, index, memory);
	rc = spw_cache_offer(crowd->cache, &offer, &tensor);
	SPW_ASSERT(rc >= 0);
	if (rc == SPW_OFFER_DEDUP) {
		SPW_ASSERT(pthread_mutex_lock(&crowd->lock) == 0);
		crowd->memory[offer.owner] = NULL;
		SPW_ASSERT(pthread_mutex_unlock(&crowd->lock) == 0);
		free(memory);
	}
	return tensor;
}

static void crowd_take(struct crowd *crowd, uint64_t key, spw_tensor tensor)
{
	uint64_t len = storage_len(key);
	struct spw_taken taken;
	const uint8_t *bytes;
	int rc = spw_cache_take(crowd->cache, tensor, 0, len, &taken);

	SPW_ASSERT(rc == 0);
	bytes = taken.bytes;
	if (!bytes) {
		SPW_ASSERT(pthread_mutex_lock(&crowd->lock) == 0);
		bytes = crowd->memory[taken.owner];
		SPW_ASSERT(pthread_mutex_unlock(&crowd->lock) == 0);
	}
	for (uint64_t i = 0; i < len; i++)
		SPW_ASSERT(bytes[i] == pattern(key, 0, i));
	if (taken.lease)
		spw_cache_return(crowd->cache, taken.lease);
}

static void *crowd_member(void *context)
{
	struct member *member = context;
	struct crowd *crowd = member->crowd;

	for (unsigned step = 0; step < THREAD_STEPS; step++) {
		spw_tensor tensors[6];

		if (member->index == 0) {
			spw_cache_step(crowd->cache);
			spw_cache_stage(crowd->cache, 0, SPW_STAGE_FORWARD);
		}
		for (unsigned i = 0; i < 6; i++)
			tensors[i] = crowd_offer(crowd, member->index,
						 crowd_key(member->index, step, i));
		crowd_drain(crowd);
		if (member->index == 0)
			spw_cache_stage(crowd->cache, 0, SPW_STAGE_BACKWARD);
		for (unsigned i = 6; i-- > 0;) {
			crowd_take(crowd, crowd_key(member->index, step, i), tensors[i]);
			SPW_ASSERT(spw_cache_release(crowd->cache, tensors[i]) == 0);
		}
	}
	return NULL;
}

/* The drives: they end whatever is there, now reads first, now writes. */
static void *crowd_drives(void *context)
{
	struct crowd *crowd = context;
	struct spw_store *store = crowd->store;
	uint64_t random = seed;

	simstore_lock(store);
	while (!crowd->stop) {
		struct spw_request *request =
			fake_pending_locked(store, random_next(&random) & 1, 0);

		if (!request)
			request = fake_pending_locked(store, FAKE_READ, 0);
		if (!request)
			request = fake_pending_locked(store, FAKE_WRITE, 0);
		if (!request) {
			SPW_ASSERT(pthread_cond_wait(&store->changed, &store->lock) == 0);
			continue;
		}
		simstore_unlock(store);
		fake_issue(request);
		simstore_end(request, 0);
		simstore_lock(store);
	}
	simstore_unlock(store);
	return NULL;
}

static void test_several_threads(void **state)
{
	static struct crowd crowd;
	struct member members[THREADS];
	struct spw_cache_opts opts;
	struct spw_cache_stats stats;
	pthread_t drives;

	(void)state;
	crowd = (struct crowd){.store = fake_open()};
	crowd.store->wait_for_test = true;
	assert_int_equal(pthread_mutex_init(&crowd.lock, NULL), 0);
	spw_cache_opts_init(&opts, sizeof(opts));
	opts.mode = SPW_CACHE_FASTEST;
	opts.min_bytes = 64;
	opts.tensors_max = 1024;
	assert_int_equal(fake_open_cache(crowd.store, &opts, &crowd.cache), 0);
	assert_int_equal(pthread_create(&drives, NULL, crowd_drives, &crowd), 0);
	for (unsigned i = 0; i < THREADS; i++) {
		members[i] = (struct member){.crowd = &crowd, .index = i};
		assert_int_equal(
			pthread_create(&members[i].thread, NULL, crowd_member, &members[i]), 0);
	}
	for (unsigned i = 0; i < THREADS; i++)
		assert_int_equal(pthread_join(members[i].thread, NULL), 0);
	spw_cache_stats(crowd.cache, &stats, sizeof(stats));
	assert_int_equal(stats.offers, THREADS * THREAD_STEPS * 6);
	assert_int_equal(stats.takes, stats.offers);
	assert_int_equal(stats.releases, stats.offers);
	spw_cache_close(crowd.cache);
	simstore_lock(crowd.store);
	crowd.stop = true;
	simstore_unlock(crowd.store);
	assert_int_equal(pthread_join(drives, NULL), 0);
	for (unsigned i = 0; i < SPW_ARRAY_LEN(crowd.memory); i++)
		free(crowd.memory[i]);
	assert_int_equal(pthread_mutex_destroy(&crowd.lock), 0);
	simstore_close(crowd.store);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_random_interleavings),
		cmocka_unit_test(test_several_threads),
	};
	const char *text = getenv("SPW_SEED");

	if (text)
		seed = strtoull(text, NULL, 0);
	else if (getrandom(&seed, sizeof(seed), 0) != sizeof(seed))
		return 1;
	print_message("SPW_SEED=%llu\n", (unsigned long long)seed);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
