/* SPDX-License-Identifier: MIT */
/*
 * tests/unit/test_cache_random.c - the tensor cache under random calls, ends of requests, failures
 *
 * The bytes of a storage follow from its key and version, so all that is handed out is checked.
 * Memory is destroyed as soon as its token is drained. A seed repeats a run: the only other thread
 * ends what the first one waits for. In half of the rounds each step begins with the same seed, so
 * that plans are made, followed and left. In the second case several threads share one cache.
 */
/* link: tools/replay/simstore libspillway */
#include <limits.h>
#include <stdatomic.h>

#include "tests/case.h"
#include "tests/random.h"

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

/* Bytes, which follow from where they are. */
struct range {
	uint64_t key, version, offset, len;
};

struct handle {
	spw_tensor tensor;
	struct range range;
};

struct held_lease {
	uint64_t lease;
	struct range range;
	const uint8_t *bytes;
};

/* A token is its slot, plus 1, plus a count of how often the slot was used. */
struct owner {
	uint64_t token;
	struct range range; /* all of a storage */
	uint8_t *bytes;
};

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
	struct spw_cache *cache;
	struct handle handles[HANDLES_MAX];
	unsigned handle_count;
	struct held_lease leases[LEASES_MAX];
	unsigned lease_count;
	struct owner owners[OWNERS_MAX];
	uint64_t tokens, held, drained;
	uint64_t keys[STORAGES], versions[STORAGES], key_last;
	unsigned write_errors_percent, read_errors_percent;
	uint64_t takes, failed_takes, restored;
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

static void check_bytes(const uint8_t *bytes, const struct range *range)
{
	for (uint64_t i = 0; i < range->len; i++)
		if (bytes[i] != pattern(range->key, range->version, range->offset + i))
			fail_msg("wrong bytes of storage %llu", (unsigned long long)range->key);
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

/* ---- What must always hold inside ---- */

struct sums {
	uint64_t activation, writing, held, window, in_flight, old;
	uint32_t entries;
};

/* What a plan knows of the tensors of this step. */
static void check_place(const struct entry *entry)
{
	const struct control *control = entry->cache->control;
	const struct recorded *recorded = spw_control__recording_of(control, &entry->track);
	const struct recording *basis = &control->shape->basis;

	if (!recorded || entry->state == ENTRY_DEAD)
		return;
	assert_true(recorded->slot == (uint32_t)(entry - entry->cache->entries));
	assert_true(recorded->stored == (entry->state == ENTRY_STORED));
	if (recorded->matched == NO_TENSOR)
		return;
	assert_true((control->shape->planned || control->shape->varies) &&
		    recorded->matched < basis->count &&
		    basis->tensors[recorded->matched].plannable);
	assert_true(basis->tensors[recorded->matched].bytes == entry->len_bytes);
	assert_true(control->slots[recorded->matched] == recorded->slot);
	assert_true(control->slots[recorded->matched] != GONE_SLOT);
}

static void check_entry(const struct entry *entry, struct sums *sums)
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
	sums->held += world.cache->held == entry ? entry->len_bytes : 0;
	sums->window += entry->in_window ? entry->len_bytes : 0;
	sums->in_flight += (unsigned)entry->write_in_flight + entry->read_in_flight;
	assert_true(entry->state == ENTRY_DEAD || entry->users > 0);
	assert_true(entry->state != ENTRY_DEAD || entry->users == 0);
	assert_true(!entry->drainable || (entry->owner_held && !entry->write_in_flight));
	assert_true(!in_owner || (entry->owner_held && !entry->memory));
	assert_true(entry->state != ENTRY_KEPT || (!entry->object_exists && !entry->drainable));
	assert_true((entry->state == ENTRY_QUEUED) == (world.cache->held == entry));
	assert_true(entry->state != ENTRY_LEAVING || entry->drainable == !entry->write_in_flight);
	assert_true(entry->state != ENTRY_STORED ||
		    (entry->object_exists && !entry->memory && !entry->owner_held));
	assert_true((entry->state == ENTRY_COMING) ==
		    (entry->read_in_flight && entry->state != ENTRY_DEAD));
	assert_true(entry->state != ENTRY_RESIDENT || !entry->memory == entry->owner_held);
	assert_true(!entry->in_window || entry->state == ENTRY_COMING ||
		    entry->state == ENTRY_RESIDENT);
	assert_true(entry->leases == 0 || entry->memory);
	check_place(entry);
}

static void check_inside(void)
{
	struct spw_cache *cache = world.cache;
	struct spw_cache_stats stats;
	struct sums sums = {0};

	spw_cache__lock(cache);
	for (uint32_t i = 0; i < TENSORS_MAX; i++)
		if (cache->entries[i].state != ENTRY_FREE)
			check_entry(&cache->entries[i], &sums);
	assert_true(sums.in_flight == cache->io_in_flight);
	assert_true(sums.activation == cache->control->memory_bytes);
	assert_true(sums.old == cache->control->old_bytes);
	assert_true(cache->control->waiting == 0);
	assert_true(cache->control->measure.flows[DIRECTION_WRITE].bytes_in_flight == sums.writing);
	assert_true(cache->control->measure.flows[DIRECTION_WRITE].in_flight +
			    cache->control->measure.flows[DIRECTION_READ].in_flight ==
		    sums.in_flight);
	spw_cache__unlock(cache);
	spw_cache_stats(cache, &stats, sizeof(stats));
	assert_true(stats.entries == sums.entries);
	assert_true(stats.activation_bytes == sums.activation);
	assert_true(stats.staging_bytes == sums.writing + sums.held);
	assert_true(stats.prefetched_bytes == sums.window);
}

/* ---- Operations ---- */

static struct owner *owner_new(uint64_t key, uint64_t version)
{
	uint64_t len = storage_len(key);
	struct owner *owner = world.owners;

	while (owner < world.owners + OWNERS_MAX && owner->bytes)
		owner++;
	if (owner == world.owners + OWNERS_MAX)
		return NULL;
	*owner = (struct owner){.token = (uint64_t)(owner - world.owners) + 1 +
					 OWNERS_MAX * world.tokens++,
				.range = {.key = key, .version = version, .len = len},
				.bytes = malloc(len)};
	SPW_ASSERT(owner->bytes);
	for (uint64_t i = 0; i < len; i++)
		owner->bytes[i] = pattern(key, version, i);
	return owner;
}

static struct owner *owner_of(uint64_t token)
{
	struct owner *owner = &world.owners[(token - 1) % OWNERS_MAX];

	assert_true(token > 0 && owner->bytes && owner->token == token);
	return owner;
}

static void owner_free(struct owner *owner)
{
	memset(owner->bytes, 0xdd, owner->range.len);
	free(owner->bytes);
	owner->bytes = NULL;
}

static void do_offer(void)
{
	unsigned which = (unsigned)below(STORAGES);
	uint64_t key = world.keys[which], version = world.versions[which], len = storage_len(key);
	uint64_t offset = chance(60) ? 0 : below(len);
	uint64_t range = offset == 0 && chance(70) ? len : 1 + below(len - offset);
	enum spw_cache_hint hint = chance(70) ? SPW_HINT_NONE : (enum spw_cache_hint)below(7);
	struct owner *owner = world.handle_count < HANDLES_MAX ? owner_new(key, version) : NULL;
	struct handle *handle = &world.handles[world.handle_count];
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
	if (chance(3))
		world.store->put_error = chance(50) ? -ENOSPC : -EIO;
	rc = spw_cache_offer_hint(world.cache, &offer, hint, &handle->tensor);
	world.store->put_error = 0;
	assert_true(rc >= 0 || rc == -ENOBUFS);
	if (rc == SPW_OFFER_KEEP || rc == SPW_OFFER_SPILL)
		world.held++;
	else
		owner_free(owner);
	if (rc < 0)
		return;
	handle->range = (struct range){key, version, offset, range};
	world.handle_count++;
}

/* It was discarded: the same bytes come back, and no others. */
static void restore(const struct handle *handle)
{
	struct owner *owner = owner_new(handle->range.key, handle->range.version);
	struct spw_offer offer;
	bool wrong = chance(10);
	int rc;

	if (!owner)
		return;
	/* What was stored is the part that was offered, or more. */
	owner->bytes[handle->range.offset] ^= wrong;
	offer = (struct spw_offer){.storage_bytes = owner->bytes,
				   .storage_len_bytes = owner->range.len,
				   .owner = owner->token};
	spw_cache_again_begin(world.cache);
	rc = spw_cache_restore(world.cache, handle->tensor, &offer);
	spw_cache_again_end(world.cache);
	assert_int_equal(rc, wrong ? -ESTALE : 0);
	if (rc == 0)
		world.held++;
	else
		owner_free(owner);
	world.restored += rc == 0;
}

/* Mostly the last one, as in a backward pass. */
static struct handle *any_handle(void)
{
	return &world.handles[chance(60) ? world.handle_count - 1 : below(world.handle_count)];
}

static void do_take(void)
{
	struct spw_taken taken;
	struct handle *handle;
	struct range range;
	uint64_t skipped;
	int rc;

	if (world.handle_count == 0 || world.lease_count == LEASES_MAX)
		return;
	handle = any_handle();
	range = handle->range;
	skipped = chance(80) ? 0 : below(range.len);
	range.offset += skipped;
	range.len -= skipped;
	world.store->wait_res = chance(world.read_errors_percent) ? -EIO : 0;
	rc = spw_cache_take(world.cache, handle->tensor, range.offset, range.len, &taken);
	world.takes++;
	if (rc == SPW_TAKE_AGAIN) {
		restore(handle);
		return;
	}
	if (rc) {
		assert_true(rc == -EIO && world.store->wait_res == -EIO);
		assert_string_equal(spw_last_error(), SIMSTORE_ERROR_TEXT);
		world.failed_takes++;
		return;
	}
	if (!taken.bytes) {
		struct owner *owner = owner_of(taken.owner);

		assert_true(owner->range.key == range.key && owner->range.version == range.version);
		check_bytes(owner->bytes + range.offset, &range);
		return;
	}
	assert_true(taken.storage_bytes_before + range.len <= taken.storage_bytes_total);
	world.leases[world.lease_count++] = (struct held_lease){taken.lease, range, taken.bytes};
	check_bytes(taken.bytes, &range);
}

static void do_return(void)
{
	struct held_lease *lease;

	if (world.lease_count == 0)
		return;
	lease = &world.leases[below(world.lease_count)];
	check_bytes(lease->bytes, &lease->range);
	spw_cache_return(world.cache, lease->lease);
	*lease = world.leases[--world.lease_count];
}

static void do_release(void)
{
	struct handle *handle;

	if (world.handle_count == 0)
		return;
	handle = any_handle();
	assert_int_equal(spw_cache_release(world.cache, handle->tensor), 0);
	*handle = world.handles[--world.handle_count];
}

static void do_drain(void)
{
	uint64_t tokens[7];
	int count = spw_cache_drain(world.cache, tokens, 1 + (unsigned)below(7));

	assert_true(count >= 0);
	for (int i = 0; i < count; i++) {
		owner_free(owner_of(tokens[i]));
		world.drained++;
	}
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
		spw_cache_step(world.cache);
		if (world.script)
			world.random = world.script;
		break;
	case 1:
	case 2: spw_cache_stage(world.cache, micro_batch, stage); break;
	case 3:
		spw_cache_stage_next(world.cache, micro_batch, stage, 1 - micro_batch, next_stage);
		break;
	case 4:
	case 5: spw_cache_scope_enter(world.cache, below(3)); break;
	default: spw_cache_scope_leave(world.cache);
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
						    SPW_CACHE_FASTEST, SPW_CACHE_BUDGET,
						    SPW_CACHE_POSITIONAL};
	struct spw_cache_opts opts;

	world = (struct world){.random = random,
			       .io_random = random + 2,
			       .drives = {.pick = pick_awaited, .random = random + 1},
			       .store = fake_open()};
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
	assert_int_equal(fake_open_cache(world.store, &opts, &world.cache), 0);
	if (chance(50))
		world.cache->hold_bytes = below(2) * 1000;
	world.drives.store = world.store;
	world.drives.errors_percent = world.read_errors_percent;
	drives_begin(&world.drives);
}

static void world_wind_down(void)
{
	while (world.handle_count > 0)
		do_release();
	while (world.lease_count > 0)
		do_return();
	fake_end_all(world.store);
	while (world.drained < world.held) {
		uint64_t before = world.drained;

		do_drain();
		assert_true(world.drained > before);
	}
	check_inside();
	assert_true(world.cache->count.entries == 0);
	assert_true(world.cache->count.activation_bytes == 0);
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
	spw_cache_close(world.cache);
	for (unsigned i = 0; i < OWNERS_MAX; i++)
		if (world.owners[i].bytes)
			owner_free(&world.owners[i]);
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
				check_inside();
		}
		takes += world.takes;
		failed += world.failed_takes;
		restored += world.restored;
		plans += world.cache->count.plans;
		mismatches += world.cache->count.plan_mismatches;
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
	uint64_t len = storage_len(key);
	uint8_t *memory = malloc(len);
	struct spw_offer offer = {.storage_key = key,
				  .storage_bytes = memory,
				  .storage_len_bytes = len,
				  .len_bytes = len,
				  .owner = crowd_token(index)};
	spw_tensor tensor;
	int rc;

	SPW_ASSERT(memory);
	for (uint64_t i = 0; i < len; i++)
		memory[i] = pattern(key, 0, i);
	crowd.memory[offer.owner] = memory;
	rc = spw_cache_offer(crowd.cache, &offer, &tensor);
	SPW_ASSERT(rc >= 0);
	if (rc == SPW_OFFER_DEDUP)
		free(atomic_exchange(&crowd.memory[offer.owner], NULL));
	return tensor;
}

static void crowd_take(uint64_t key, spw_tensor tensor)
{
	uint64_t len = storage_len(key);
	struct spw_taken taken;
	const uint8_t *bytes;

	SPW_MUST(spw_cache_take(crowd.cache, tensor, 0, len, &taken));
	bytes = taken.bytes ? taken.bytes : crowd.memory[taken.owner];
	for (uint64_t i = 0; i < len; i++)
		SPW_MUST(bytes[i] != pattern(key, 0, i));
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

RUN_CASES(NULL, NULL)
