/* SPDX-License-Identifier: MIT */
/*
 * tests/sim/tensors.c - offers, takes and releases of a tensor cache, and the model that knows what
 * each must give
 *
 * What a storage holds follows from its key and version. Memory that was offered is destroyed as
 * soon as its token is drained.
 */
#include <errno.h>
#include <inttypes.h>
#include <string.h>

#include "tensor/internal.h"
#include "tests/sim/sim.h"

#define KEYS    16
#define HANDLES 96
#define LEASES  64
#define OWNERS  256

struct model_owner {
	bool held;
	uint64_t token;
	uint8_t *bytes;
	const uint8_t *expected;
	uint64_t len;
};

struct model_tensor {
	bool used;
	spw_tensor id;
	const uint8_t *expected; /* of the storage */
	uint64_t offset, len;
};

struct model_lease {
	bool used;
	uint64_t lease;
	const uint8_t *bytes, *expected;
	uint64_t len;
};

struct model_key {
	uint64_t key, version, len;
	uint8_t *expected; /* NULL: not offered yet */
};

static struct spw_cache *cache;
static struct model_owner owners[OWNERS];
static struct model_tensor tensors[HANDLES];
static struct model_lease leases[LEASES];
static struct model_key keys[KEYS];
static uint64_t last_key, last_token;
static unsigned depth;
static struct {
	uint64_t offers, bytes_offered, keeps, spills, duplicates, refused, takes, releases;
} counted; /* what the cache must have counted */

void sim_tensors_begin(void)
{
	memset(owners, 0, sizeof(owners));
	memset(tensors, 0, sizeof(tensors));
	memset(leases, 0, sizeof(leases));
	memset(keys, 0, sizeof(keys));
	memset(&counted, 0, sizeof(counted));
	last_key = last_token = depth = 0;
	if (spw_cache_open(sim_world.store, &sim_world.config->cache, &cache))
		sim_fail("the cache cannot be opened: %s", spw_last_error());
}

/* ---- What must hold inside ---- */

static void check_entry(const struct entry *entry)
{
	bool in_owner = entry->state == ENTRY_KEPT || entry->state == ENTRY_QUEUED ||
			entry->state == ENTRY_LEAVING;
	bool broken = (entry->state == ENTRY_DEAD) != (entry->users == 0);

	broken |= entry->drainable && (!entry->owner_held || entry->write_in_flight);
	broken |= in_owner && (!entry->owner_held || entry->memory);
	broken |= entry->state == ENTRY_KEPT && entry->object_exists;
	broken |= entry->state == ENTRY_STORED &&
		  (!entry->object_exists || entry->memory || entry->owner_held);
	broken |= entry->state == ENTRY_COMING && !entry->read_in_flight;
	broken |= entry->state == ENTRY_RESIDENT && !entry->memory != entry->owner_held;
	broken |= entry->leases > 0 && !entry->memory;
	broken |= (entry->read_in_flight || entry->write_in_flight) && !entry->object_exists;
	if (broken)
		sim_fail("inside the cache: an entry in state %d does not hold what it must",
			 entry->state);
}

static void check_inside(void)
{
	uint64_t activation = 0, staging = 0, window = 0, in_flight = 0;
	uint32_t entries = 0;

	for (uint32_t i = 0; i < cache->opts.tensors_max; i++) {
		const struct entry *entry = &cache->entries[i];

		if (entry->state == ENTRY_FREE)
			continue;
		check_entry(entry);
		entries++;
		activation += (entry->owner_held ? entry->len_bytes : 0) +
			      (entry->memory ? entry->len_bytes : 0);
		staging += entry->write_in_flight || cache->held == entry ? entry->len_bytes : 0;
		window += entry->in_window ? entry->len_bytes : 0;
		in_flight += (unsigned)entry->write_in_flight + entry->read_in_flight;
	}
	if (entries != cache->count.entries || activation != cache->count.activation_bytes ||
	    staging != cache->count.staging_bytes || window != cache->count.prefetched_bytes ||
	    in_flight != cache->io_in_flight)
		sim_fail("inside the cache: its counts are not those of its entries");
	if (staging > cache->opts.staging_bytes)
		sim_fail("inside the cache: %" PRIu64 " bytes wait to be written, more than may",
			 staging);
}

/* ---- Offers ---- */

/* Another storage, or the same one written in place while the cache may have its old bytes. */
static void draw_key(struct model_key *key, const struct sim_step *step)
{
	uint64_t random = step->b;

	if (key->expected && step->a / KEYS / 4 % 2) {
		key->version++;
	} else {
		*key = (struct model_key){.key = ++last_key};
		key->len = 1 + sim_below(&random, sim_below(&random, 4) ? 40000 : 400000);
	}
	key->expected = sim_memory(key->len, 64);
	if (key->expected)
		sim_fill(key->expected, key->len, key->key << 32 | key->version);
}

static struct model_owner *owner_new(const struct model_key *key, uint64_t random)
{
	for (unsigned i = 0; i < OWNERS; i++) {
		struct model_owner *owner = &owners[i];

		if (owner->held)
			continue;
		*owner = (struct model_owner){
			.token = ++last_token, .expected = key->expected, .len = key->len};
		owner->bytes = sim_memory(key->len + 4096, 4096);
		if (!owner->bytes)
			return NULL;
		owner->bytes += random % 3 ? 0 : random % 4096;
		memcpy(owner->bytes, key->expected, key->len);
		return owner;
	}
	return NULL;
}

static void destroy(struct model_owner *owner)
{
	owner->held = false;
	memset(owner->bytes, 0xc3, owner->len);
}

/* Nothing that drives do is a reason to refuse. */
static void count_offer(const struct spw_offer *offer, int rc)
{
	counted.offers++;
	counted.bytes_offered += offer->len_bytes;
	switch (rc) {
	case SPW_OFFER_KEEP: counted.keeps++; break;
	case SPW_OFFER_SPILL: counted.spills++; break;
	case SPW_OFFER_DEDUP: counted.duplicates++; break;
	default:
		if (rc != -ENOBUFS || cache->count.entries < cache->opts.tensors_max)
			sim_fail("an offer was refused: %d, %s", rc, spw_last_error());
		counted.refused++;
	}
}

/* a: which storage, and whether it or its version is new; b: which part; c: where it lies */
static bool do_offer(const struct sim_step *step)
{
	struct model_key *key = &keys[step->a % KEYS];
	struct model_tensor *tensor = NULL;
	struct model_owner *owner;
	struct spw_offer offer = {0};
	uint64_t random = step->b;
	int rc;

	for (unsigned i = 0; i < HANDLES && !tensor; i++)
		tensor = tensors[i].used ? NULL : &tensors[i];
	if (!key->expected || step->a / KEYS % 4 == 0)
		draw_key(key, step);
	owner = tensor && key->expected ? owner_new(key, step->c) : NULL;
	if (!owner)
		return false;
	offer.storage_key = key->key;
	offer.storage_version = key->version;
	offer.storage_bytes = owner->bytes;
	offer.storage_len_bytes = key->len;
	offer.len_bytes = key->len;
	if (sim_below(&random, 3) == 0) {
		offer.offset_bytes = sim_below(&random, key->len);
		offer.len_bytes = 1 + sim_below(&random, key->len - offer.offset_bytes);
	}
	offer.owner = owner->token;
	rc = spw_cache_offer_hint(
		cache, &offer, step->c % 8 ? SPW_HINT_NONE : (enum spw_cache_hint)(step->c / 8 % 4),
		&tensor->id);
	count_offer(&offer, rc);
	owner->held = rc == SPW_OFFER_KEEP || rc == SPW_OFFER_SPILL;
	if (!owner->held)
		destroy(owner);
	if (rc < 0)
		return true;
	tensor->used = true;
	tensor->expected = key->expected;
	tensor->offset = offer.offset_bytes;
	tensor->len = offer.len_bytes;
	return true;
}

/* ---- Takes ---- */

static struct model_tensor *pick_tensor(uint64_t pick)
{
	unsigned count = 0;

	for (unsigned i = 0; i < HANDLES; i++)
		count += tensors[i].used;
	if (count == 0)
		return NULL;
	pick %= count;
	for (unsigned i = 0;; i++)
		if (tensors[i].used && pick-- == 0)
			return &tensors[i];
}

static void check_bytes(const uint8_t *bytes, const uint8_t *expected, uint64_t len)
{
	if (memcmp(bytes, expected, len) != 0)
		sim_fail("wrong bytes: a take of %" PRIu64, len);
}

static void check_taken(const struct spw_taken *taken, const uint8_t *expected, uint64_t offset,
			uint64_t len)
{
	struct model_lease *lease = NULL;

	if (!taken->bytes) {
		for (unsigned i = 0; i < OWNERS; i++)
			if (owners[i].held && owners[i].token == taken->owner) {
				check_bytes(owners[i].bytes + offset, expected + offset, len);
				return;
			}
		sim_fail("a take names the memory of an owner that was drained");
	}
	check_bytes(taken->bytes, expected + offset, len);
	for (unsigned i = 0; i < LEASES && !lease; i++)
		lease = leases[i].used ? NULL : &leases[i];
	if (!lease) {
		spw_cache_return(cache, taken->lease);
		return;
	}
	*lease = (struct model_lease){.used = true,
				      .lease = taken->lease,
				      .bytes = taken->bytes,
				      .expected = expected + offset,
				      .len = len};
}

/* a: which; b: which part */
static bool do_take(const struct sim_step *step)
{
	struct model_tensor *tensor = pick_tensor(step->a);
	uint64_t random = step->b, offset, len;
	struct spw_taken taken;
	int rc;

	if (!tensor)
		return false;
	offset = tensor->offset;
	len = tensor->len;
	if (sim_below(&random, 3) == 0) {
		offset += sim_below(&random, len);
		len = 1 + sim_below(&random, tensor->offset + tensor->len - offset);
	}
	rc = spw_cache_take(cache, tensor->id, offset, len, &taken);
	counted.takes += rc == 0;
	if (rc == 0)
		check_taken(&taken, tensor->expected, offset, len);
	else if (rc != -ENOBUFS || !sim_inside_no_requests())
		sim_judge_read_error(rc, spw_last_error());
	return true;
}

static bool do_return(uint64_t pick)
{
	for (unsigned i = 0; i < LEASES; i++) {
		struct model_lease *lease = &leases[(i + pick) % LEASES];

		if (!lease->used)
			continue;
		check_bytes(lease->bytes, lease->expected, lease->len);
		spw_cache_return(cache, lease->lease);
		lease->used = false;
		return true;
	}
	return false;
}

static bool do_release(uint64_t pick)
{
	struct model_tensor *tensor = pick_tensor(pick);

	if (!tensor)
		return false;
	if (spw_cache_release(cache, tensor->id))
		sim_fail("a tensor cannot be released: %s", spw_last_error());
	counted.releases++;
	tensor->used = false;
	return true;
}

static bool do_drain(unsigned count)
{
	uint64_t tokens[OWNERS];
	int drained = spw_cache_drain(cache, tokens, count);

	for (int i = 0; i < drained; i++) {
		unsigned at = 0;

		while (at < OWNERS && !(owners[at].held && owners[at].token == tokens[i]))
			at++;
		if (at == OWNERS)
			sim_fail("a token was reaped twice, or never handed over");
		destroy(&owners[at]);
	}
	return drained > 0;
}

/* a: micro-batch; b: pass; c: what comes next, if that is said */
static void do_stage(const struct sim_step *step)
{
	enum spw_stage stage = step->b % 2 ? SPW_STAGE_BACKWARD : SPW_STAGE_FORWARD;
	enum spw_stage next = step->c / 2 % 2 ? SPW_STAGE_BACKWARD : SPW_STAGE_FORWARD;

	if (step->c % 2)
		spw_cache_stage(cache, (uint32_t)(step->a % 3), stage);
	else
		spw_cache_stage_next(cache, (uint32_t)(step->a % 3), stage,
				     (uint32_t)(step->a / 3 % 3), next);
}

bool sim_tensors_step(const struct sim_step *step)
{
	bool done = true;

	switch (step->kind) {
	case SIM_STEP_OFFER: done = do_offer(step); break;
	case SIM_STEP_TAKE: done = do_take(step); break;
	case SIM_STEP_RETURN: done = do_return(step->a); break;
	case SIM_STEP_RELEASE: done = do_release(step->a); break;
	case SIM_STEP_DRAIN: done = do_drain(1 + (unsigned)(step->a % 8)); break;
	case SIM_STEP_STEP:
		spw_cache_step(cache);
		depth = 0;
		break;
	case SIM_STEP_STAGE: do_stage(step); break;
	case SIM_STEP_ENTER:
		spw_cache_scope_enter(cache, step->a % 8);
		depth++;
		break;
	case SIM_STEP_LEAVE:
		if (depth > 0)
			spw_cache_scope_leave(cache);
		depth -= depth > 0;
		break;
	default: return false;
	}
	check_inside();
	return done;
}

static bool any_held(void)
{
	for (unsigned i = 0; i < OWNERS; i++)
		if (owners[i].held)
			return true;
	return false;
}

static uint64_t kept(const struct spw_cache_stats *stats)
{
	return stats->tensors_kept_small + stats->tensors_kept_last_scope +
	       stats->tensors_kept_backpressure + stats->tensors_kept_no_space +
	       stats->tensors_kept_error + stats->tensors_kept_entries +
	       stats->tensors_kept_observed + stats->tensors_kept_backward +
	       stats->tensors_kept_planned + stats->tensors_kept_hint + stats->tensors_kept_changed;
}

/* What the cache says of itself, when nothing is under way. */
static void check_counts(void)
{
	struct spw_cache_stats stats;
	uint64_t written_or_not, kept_later;

	spw_cache_stats(cache, &stats, sizeof(stats));
	if (stats.offers != counted.offers || stats.bytes_offered != counted.bytes_offered ||
	    stats.takes != counted.takes || stats.releases != counted.releases ||
	    stats.tensors_deduplicated != counted.duplicates)
		sim_fail("the cache counts other offers, takes or releases than there were");
	/* What is not written has a reason; a held-back write may fail before it begins. */
	written_or_not = stats.tensors_spilled + stats.writes_cancelled + stats.writes_failed;
	kept_later = kept(&stats) - counted.keeps - counted.refused;
	if (kept(&stats) < counted.keeps + counted.refused || written_or_not > counted.spills ||
	    kept_later < counted.spills - written_or_not ||
	    kept_later > counted.spills - written_or_not + stats.writes_failed)
		sim_fail("the cache counts %" PRIu64 " kept, %" PRIu64 " written, %" PRIu64
			 " cancelled, %" PRIu64 " failed; of %" PRIu64
			 " it said that it keeps them, of %" PRIu64 " that not",
			 kept(&stats), stats.tensors_spilled, stats.writes_cancelled,
			 stats.writes_failed, (counted.keeps + counted.refused), counted.spills);
}

/* All users gone, all tokens must come. */
static void give_all_back(void)
{
	while (do_return(0))
		;
	while (do_release(0))
		;
	for (unsigned i = 0; any_held() || cache->count.entries > 0; i++) {
		if (i > 100000)
			sim_fail("the cache does not give %u entries back", cache->count.entries);
		if (!do_drain(OWNERS))
			sim_turn(true);
	}
	check_inside();
	if (cache->count.activation_bytes || cache->count.staging_bytes ||
	    cache->count.prefetched_bytes)
		sim_fail("the cache is empty and counts bytes");
	check_counts();
}

void sim_tensors_end(bool abruptly)
{
	if (!cache)
		return;
	if (!abruptly)
		give_all_back();
	spw_cache_close(cache);
	cache = NULL;
}
