/* SPDX-License-Identifier: MIT */
/*
 * tests/unit/test_cache_random.c - the tensor cache under random calls, ends of requests, failures
 *
 * The bytes of a storage follow from its key and version, so all that is handed out is checked.
 * Memory is destroyed as soon as its token is drained. A seed repeats a run: the only other thread
 * ends what the first one waits for. In half of the rounds each step begins with the same seed, so
 * that plans are made, followed and left. In the second case several threads share one cache.
 */
/* link: simstore libspillway */
#include <limits.h>
#include <stdatomic.h>

#include "tests/case.h"
#include "tests/random.h"

#include <spillway/cache.h>

#include "tests/model/cache_inside.h"
#include "tests/unit/cache_fake.h"

#define STORAGES    12 /* keys in use at a time */
#define TENSORS_MAX 64
#define STORAGE_MAX 6001

static uint8_t contents[256][STORAGE_MAX];

static bool random_chance(uint64_t *random, unsigned percent)
{
	return random_below(random, 100) < percent;
}

static int fill_contents(void **state)
{
	(void)state;
	for (unsigned which = 0; which < SPW_ARRAY_LEN(contents); which++)
		for (unsigned i = 0; i < STORAGE_MAX; i++)
			contents[which][i] = (uint8_t)(which + i * 7 + (i >> 8) * 3);
	return 0;
}

/* The length follows from the key, so that all offers of a storage agree. */
static struct model_storage storage_of(uint64_t key, uint64_t version)
{
	uint64_t random = key;
	uint64_t len =
		1 + random_below(&random, random_chance(&random, 30) ? 100 : STORAGE_MAX - 1);

	return (struct model_storage){
		.key = key,
		.version = version,
		.len = len,
		.expected_len = len,
		.expected = contents[(key * 31 + version * 17) % SPW_ARRAY_LEN(contents)]};
}

/* A thread that ends one request after the other. */
struct drives {
	struct spw_store *store;
	struct spw_request *(*pick)(struct spw_store *store, uint64_t *random);
	uint64_t random;
	unsigned errors_percent;
	bool stop;
	pthread_t thread;
};

static struct world {
	uint64_t random;
	uint64_t io_random;
	uint64_t script; /* the seed of every step; 0: none */
	struct spw_store *store;
	struct model model;
	uint64_t keys[STORAGES], versions[STORAGES], key_last;
	unsigned write_errors_percent, read_errors_percent;
	uint64_t failed_takes;
	struct drives drives; /* they end what the first thread waits for */
	unsigned raises_served, refusals_served;
} world;

static uint64_t below(uint64_t limit)
{
	return random_below(&world.random, limit);
}

static bool chance(unsigned percent)
{
	return random_chance(&world.random, percent);
}

static uint8_t *allocate(uint64_t len)
{
	uint8_t *bytes = malloc(len);

	SPW_ASSERT(bytes);
	return bytes;
}

static void fail_round(const char *what)
{
	fail_msg("%s", what);
}

/* ---- Drives ---- */

static void *drives_run(void *context)
{
	struct drives *drives = context;
	struct spw_store *store = drives->store;

	simstore_lock(store);
	while (!drives->stop) {
		struct spw_request *request = drives->pick(store, &drives->random);

		if (!request) {
			SPW_MUST(pthread_cond_wait(&store->changed, &store->lock));
			continue;
		}
		simstore_unlock(store);
		fake_issue(request);
		simstore_end(request,
			     random_chance(&drives->random, drives->errors_percent) ? -EIO : 0);
		simstore_lock(store);
	}
	simstore_unlock(store);
	return NULL;
}

static void drives_begin(struct drives *drives)
{
	assert_int_equal(pthread_create(&drives->thread, NULL, drives_run, drives), 0);
}

static void drives_end(struct drives *drives)
{
	simstore_lock(drives->store);
	drives->stop = true;
	simstore_unlock(drives->store);
	assert_int_equal(pthread_join(drives->thread, NULL), 0);
}

static struct spw_request *pick_either(struct spw_store *store, enum fake_kind first)
{
	struct spw_request *request = fake_pending_locked(store, first, 0);

	return request ? request : fake_pending_locked(store, !first, 0);
}

/* Now reads first, now writes. */
static struct spw_request *pick_any(struct spw_store *store, uint64_t *random)
{
	return pick_either(store, (enum fake_kind)random_below(random, 2));
}

/* Only while the first thread waits: for a read that it raised, or for any request to end. */
static struct spw_request *pick_awaited(struct spw_store *store, uint64_t *random)
{
	struct spw_request *request = NULL;

	(void)random;
	if (world.raises_served < store->raises) {
		world.raises_served = store->raises;
		for (request = store->first; request && !request->raised;)
			request = request->next;
	} else if (world.refusals_served < store->urgent_refused) {
		world.refusals_served = store->urgent_refused;
		request = pick_either(store, FAKE_WRITE);
	}
	return request;
}

/* ---- Operations ---- */

static void do_offer(void)
{
	static const enum spw_cache_hint hints[] = {SPW_HINT_KEEP, SPW_HINT_PIN, SPW_HINT_AGAIN,
						    SPW_HINT_GIVE_UP, SPW_HINT_INPUT};
	unsigned which = (unsigned)below(STORAGES);
	struct model_storage storage = storage_of(world.keys[which], world.versions[which]);
	uint64_t offset = chance(60) ? 0 : below(storage.len);
	uint64_t range = offset == 0 && chance(70) ? storage.len : 1 + below(storage.len - offset);
	enum spw_cache_hint hint = chance(74) ? SPW_HINT_NONE : hints[below(SPW_ARRAY_LEN(hints))];
	int rc;

	if (chance(3))
		world.store->put_error = chance(50) ? -ENOSPC : -EIO;
	rc = model_offer(&world.model, &storage, offset, range, hint);
	world.store->put_error = 0;
	assert_true(rc >= 0 || rc == -ENOBUFS || rc == -EAGAIN);
}

/* Mostly the last one, as in a backward pass. */
static struct model_tensor *any_tensor(void)
{
	unsigned count = world.model.tensor_count;

	return &world.model.tensors[chance(60) ? count - 1 : below(count)];
}

static void do_take(void)
{
	const struct model_tensor *tensor;
	uint64_t skipped;
	int rc;

	if (world.model.tensor_count == 0)
		return;
	tensor = any_tensor();
	skipped = chance(80) ? 0 : below(tensor->len);
	world.store->wait_res = chance(world.read_errors_percent) ? -EIO : 0;
	rc = model_take(&world.model, tensor, tensor->offset + skipped, tensor->len - skipped);
	if (rc == SPW_TAKE_AGAIN) {
		spw_cache_again_begin(world.model.cache);
		model_restore(&world.model, tensor, chance(10));
		spw_cache_again_end(world.model.cache);
	} else if (rc) {
		assert_true(rc == -EIO && world.store->wait_res == -EIO);
		assert_string_equal(spw_last_error(), SIMSTORE_ERROR_TEXT);
		world.failed_takes++;
	}
}

static void do_return(void)
{
	if (world.model.lease_count > 0)
		model_return(&world.model, (unsigned)below(world.model.lease_count));
}

static void do_release(void)
{
	if (world.model.tensor_count > 0)
		model_release(&world.model, any_tensor());
}

static void do_drain(void)
{
	(void)model_drain(&world.model, 1 + (unsigned)below(7));
}

/* Memory is used for another storage: a new key. Or it is written in place: a new version. */
static void do_change_storage(void)
{
	unsigned which = (unsigned)below(STORAGES);

	if (chance(50))
		world.versions[which]++;
	else
		world.keys[which] = ++world.key_last;
}

static void do_say_where(void)
{
	uint32_t micro_batch = (uint32_t)below(2);
	enum spw_stage stage = chance(40) ? SPW_STAGE_BACKWARD : SPW_STAGE_FORWARD;
	enum spw_stage next_stage = chance(60) ? SPW_STAGE_BACKWARD : SPW_STAGE_FORWARD;

	switch (below(8)) {
	case 0:
		spw_cache_step(world.model.cache);
		if (world.script)
			world.random = world.script;
		break;
	case 1:
	case 2: spw_cache_stage(world.model.cache, micro_batch, stage); break;
	case 3:
		spw_cache_stage_next(world.model.cache, micro_batch, stage, 1 - micro_batch,
				     next_stage);
		break;
	case 4:
	case 5: spw_cache_scope_enter(world.model.cache, below(3)); break;
	default: spw_cache_scope_leave(world.model.cache);
	}
}

static void do_end(void)
{
	uint64_t *random = &world.io_random;
	enum fake_kind kind = random_chance(random, 50) ? FAKE_WRITE : FAKE_READ;
	struct spw_request *request =
		fake_pending(world.store, kind, (unsigned)random_below(random, 4));
	unsigned errors =
		kind == FAKE_WRITE ? world.write_errors_percent : world.read_errors_percent;

	if (!request) {
		simstore_lock(world.store);
		request = pick_either(world.store, kind);
		simstore_unlock(world.store);
	}
	if (!request)
		return;
	fake_issue(request);
	if (random_chance(random, 75))
		simstore_end(request, random_chance(random, errors) ? -EIO : 0);
}

static void do_anything(void)
{
	static const struct {
		unsigned percent;
		void (*act)(void);
	} acts[] = {
		{25, do_offer}, {15, do_take},          {8, do_return},    {14, do_release},
		{10, do_drain}, {2, do_change_storage}, {6, do_say_where}, {20, do_end},
	};
	uint64_t choice = below(100);
	unsigned which = 0;

	while (choice >= acts[which].percent)
		choice -= acts[which++].percent;
	acts[which].act();
}

/* ---- Rounds ---- */

static void world_begin(uint64_t random)
{
	static const enum spw_cache_mode modes[] = {SPW_CACHE_SPILL, SPW_CACHE_FASTEST,
						    SPW_CACHE_FASTEST, SPW_CACHE_BUDGET};
	struct spw_cache_opts opts;

	world = (struct world){
		.random = random,
		.io_random = random + 2,
		.drives = {.pick = pick_awaited, .random = random + 1},
		.store = fake_open(),
		.model = {.allocate = allocate, .release = free, .stop = fail_round},
	};
	spw_cache_opts_init(&opts, sizeof(opts));
	opts.mode = modes[below(SPW_ARRAY_LEN(modes))];
	opts.memory_bytes = 1 + below(50000);
	opts.min_bytes = 64;
	opts.tensors_max = TENSORS_MAX;
	opts.staging_bytes = chance(50) ? UINT64_C(1) << 30 : 20000;
	opts.prefetch_bytes = chance(50) ? 0 : 1 + below(20000);
	opts.spill_last_scope = chance(50);
	world.store->requests_max = chance(50) ? UINT_MAX : 3;
	world.store->capacity = chance(70) ? UINT64_MAX : 60000;
	world.store->arena = chance(50) ? UINT64_MAX : 10000;
	world.write_errors_percent = (unsigned)below(2) * 10;
	world.read_errors_percent = (unsigned)below(2) * 10;
	world.script = chance(50) ? random_next(&world.random) : 0;
	for (unsigned i = 0; i < STORAGES; i++)
		world.keys[i] = ++world.key_last;
	assert_int_equal(fake_open_cache(world.store, &opts, &world.model.cache), 0);
	if (chance(50))
		world.model.cache->defer_bytes = below(2) * 1000;
	world.drives.store = world.store;
	world.drives.errors_percent = world.read_errors_percent;
	drives_begin(&world.drives);
}

static void world_wind_down(void)
{
	model_release_all(&world.model);
	fake_end_all(world.store);
	while (world.model.owner_count > 0)
		assert_true(model_drain(&world.model, 7) > 0);
	model_check_inside(&world.model);
	assert_true(world.model.cache->count.entries == 0);
	assert_true(world.model.cache->count.activation_bytes == 0);
	assert_true(world.store->objects_used == 0 && world.store->arena_used == 0);
}

static void world_end(void)
{
	drives_end(&world.drives);
	/* In half of the rounds much is left at closing, but nothing that was issued. */
	if (chance(50))
		world_wind_down();
	else
		fake_end_all(world.store);
	spw_cache_close(world.model.cache);
	model_free(&world.model);
	simstore_close(world.store);
}

#define ROUNDS           40u
#define ROUND_OPERATIONS 2500u

CASE(test_random_interleavings)
{
	uint64_t random = random_seed();
	uint64_t takes = 0, failed = 0, restored = 0, plans = 0, mismatches = 0;

	for (unsigned round = 0; round < ROUNDS; round++) {
		world_begin(random_next(&random));
		for (unsigned i = 0; i < ROUND_OPERATIONS; i++) {
			do_anything();
			if (i % 16 == 0)
				model_check_inside(&world.model);
		}
		takes += world.model.counted.takes;
		failed += world.failed_takes;
		restored += world.model.counted.restores;
		plans += world.model.cache->count.plans;
		mismatches += world.model.cache->count.plan_mismatches;
		world_end();
	}
	/* The run has seen something. */
	assert_true(takes > ROUNDS * ROUND_OPERATIONS / 50);
	assert_true(failed > 0 && restored > 0 && plans > 0 && mismatches > 0);
}

/* ---- Several threads on one cache ---- */

#define THREADS      4
#define THREAD_STEPS 400

#define TOKENS 16 /* of each thread */

static struct crowd {
	struct spw_store *store;
	struct spw_cache *cache;
	_Atomic(uint8_t *) memory[THREADS * TOKENS + 1]; /* by token */
} crowd;

struct member {
	unsigned index;
	pthread_t thread;
};

/* Each thread's storages are its own, but for one that all share: duplicates of one another. */
static uint64_t crowd_key(unsigned index, unsigned step, unsigned tensor)
{
	return tensor == 0 ? 1 + step
			   : 1000 + ((uint64_t)index * THREAD_STEPS + step) * 16 + tensor;
}

static void crowd_drain(void)
{
	uint64_t tokens[8];
	int count = spw_cache_drain(crowd.cache, tokens, 8);

	for (int i = 0; i < count; i++)
		free(atomic_exchange(&crowd.memory[tokens[i]], NULL));
}

/* Others only give tokens of this thread back. */
static uint64_t crowd_token(unsigned index)
{
	for (;; crowd_drain())
		for (uint64_t token = 1 + index * TOKENS; token <= (index + 1) * TOKENS; token++)
			if (!crowd.memory[token])
				return token;
}

static spw_tensor crowd_offer(unsigned index, uint64_t key)
{
	struct model_storage storage = storage_of(key, 0);
	uint8_t *memory = allocate(storage.len);
	struct spw_offer offer = {.storage_key = key,
				  .storage_bytes = memory,
				  .storage_len_bytes = storage.len,
				  .len_bytes = storage.len,
				  .owner = crowd_token(index)};
	spw_tensor tensor;
	int rc;

	memcpy(memory, storage.expected, storage.len);
	crowd.memory[offer.owner] = memory;
	rc = spw_cache_offer(crowd.cache, &offer, &tensor);
	SPW_ASSERT(rc >= 0);
	if (rc == SPW_OFFER_DEDUP)
		free(atomic_exchange(&crowd.memory[offer.owner], NULL));
	return tensor;
}

static void crowd_take(uint64_t key, spw_tensor tensor)
{
	struct model_storage storage = storage_of(key, 0);
	struct spw_taken taken;
	const uint8_t *bytes;

	SPW_MUST(spw_cache_take(crowd.cache, tensor, 0, storage.len, &taken));
	bytes = taken.bytes ? taken.bytes : crowd.memory[taken.owner];
	SPW_MUST(memcmp(bytes, storage.expected, storage.len));
	if (taken.lease)
		spw_cache_return(crowd.cache, taken.lease);
}

static void *crowd_member(void *context)
{
	unsigned index = ((struct member *)context)->index;

	for (unsigned step = 0; step < THREAD_STEPS; step++) {
		spw_tensor tensors[6];

		if (index == 0) {
			spw_cache_step(crowd.cache);
			spw_cache_stage(crowd.cache, 0, SPW_STAGE_FORWARD);
		}
		for (unsigned i = 0; i < 6; i++)
			tensors[i] = crowd_offer(index, crowd_key(index, step, i));
		crowd_drain();
		if (index == 0)
			spw_cache_stage(crowd.cache, 0, SPW_STAGE_BACKWARD);
		for (unsigned i = 6; i-- > 0;) {
			crowd_take(crowd_key(index, step, i), tensors[i]);
			SPW_MUST(spw_cache_release(crowd.cache, tensors[i]));
		}
	}
	return NULL;
}

CASE(test_several_threads)
{
	struct drives drives = {.pick = pick_any, .random = random_seed()};
	struct member members[THREADS];
	struct spw_cache_opts opts;
	struct spw_cache_stats stats;

	crowd.store = drives.store = fake_open();
	crowd.store->wait_for_test = true;
	spw_cache_opts_init(&opts, sizeof(opts));
	opts.mode = SPW_CACHE_FASTEST;
	opts.min_bytes = 64;
	opts.tensors_max = 1024;
	assert_int_equal(fake_open_cache(crowd.store, &opts, &crowd.cache), 0);
	drives_begin(&drives);
	for (unsigned i = 0; i < THREADS; i++) {
		members[i].index = i;
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
	drives_end(&drives);
	for (unsigned i = 0; i < SPW_ARRAY_LEN(crowd.memory); i++)
		free(crowd.memory[i]);
	simstore_close(crowd.store);
}

RUN_CASES(fill_contents, NULL)
