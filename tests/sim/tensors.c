/* SPDX-License-Identifier: MIT */
/*
 * tests/sim/tensors.c - the steps of a run that call a tensor cache, by the model of tests/model;
 * and what the cache must have counted
 *
 * What a storage holds follows from its key and version.
 */
#include <errno.h>
#include <inttypes.h>
#include <string.h>

#include "tests/model/cache_inside.h"
#include "tests/sim/sim.h"

#define KEYS 16

static struct model model;
static struct model_storage keys[KEYS]; /* expected NULL: not offered yet */
static uint64_t last_key, skew;         /* where in a page the memory of the next offer begins */
static unsigned depth;

static uint8_t *allocate(uint64_t len)
{
	uint8_t *bytes = sim_memory(len + 4096, 4096);

	return bytes ? bytes + skew : NULL;
}

/* Memory of a run is freed with the run. */
static void release(void *bytes)
{
	(void)bytes;
}

static void stop(const char *what)
{
	sim_fail("the cache: %s", what);
}

void sim_tensors_begin(void)
{
	memset(keys, 0, sizeof(keys));
	last_key = depth = 0;
	model = (struct model){.allocate = allocate, .release = release, .stop = stop};
	if (spw_cache_open(sim_world.store, &sim_world.config->cache, &model.cache))
		sim_fail("the cache cannot be opened: %s", spw_last_error());
}

/* ---- Offers ---- */

/* Another storage, or the same one written in place while the cache may have its old bytes. */
static void draw_key(struct model_storage *key, const struct sim_step *step)
{
	uint64_t random = step->b;

	uint8_t *expected;

	if (key->expected && step->a / KEYS / 4 % 2) {
		key->version++;
	} else {
		*key = (struct model_storage){.key = ++last_key};
		key->len = 1 + sim_below(&random, sim_below(&random, 4) ? 40000 : 400000);
		key->expected_len = key->len;
	}
	key->expected = expected = sim_memory(key->len, 64);
	if (expected)
		sim_fill(expected, key->len, key->key << 32 | key->version);
}

/* a: which storage, and whether it or its version is new; b: which part; c: where it lies */
static bool do_offer(const struct sim_step *step)
{
	static const enum spw_cache_hint hints[] = {SPW_HINT_NONE, SPW_HINT_KEEP, SPW_HINT_NONE,
						    SPW_HINT_PIN};
	struct model_storage *key = &keys[step->a % KEYS];
	enum spw_cache_hint hint = step->c % 8 ? SPW_HINT_NONE : hints[step->c / 8 % 4];
	uint64_t random = step->b, offset = 0, len;
	int rc;

	if (!key->expected || step->a / KEYS % 4 == 0)
		draw_key(key, step);
	if (!key->expected)
		return false;
	len = key->len;
	if (sim_below(&random, 3) == 0) {
		offset = sim_below(&random, key->len);
		len = 1 + sim_below(&random, key->len - offset);
	}
	skew = step->c % 3 ? 0 : step->c % 4096;
	rc = model_offer(&model, key, offset, len, hint);
	/* Nothing that drives do is a reason to refuse. */
	if (rc < 0 && rc != -EAGAIN &&
	    (rc != -ENOBUFS || model.cache->count.entries < model.cache->opts.tensors_max))
		sim_fail("an offer was refused: %d, %s", rc, spw_last_error());
	return rc != -EAGAIN;
}

/* ---- Takes ---- */

static struct model_tensor *pick_tensor(uint64_t pick)
{
	return model.tensor_count ? &model.tensors[pick % model.tensor_count] : NULL;
}

/* a: which; b: which part */
static bool do_take(const struct sim_step *step)
{
	const struct model_tensor *tensor = pick_tensor(step->a);
	uint64_t random = step->b, offset, len;
	int rc;

	if (!tensor)
		return false;
	offset = tensor->offset;
	len = tensor->len;
	if (sim_below(&random, 3) == 0) {
		offset += sim_below(&random, len);
		len = 1 + sim_below(&random, tensor->offset + tensor->len - offset);
	}
	rc = model_take(&model, tensor, offset, len);
	if (rc && (rc != -ENOBUFS || !sim_inside_no_requests()))
		sim_judge_read_error(rc, spw_last_error());
	return true;
}

static bool do_return(uint64_t pick)
{
	if (model.lease_count == 0)
		return false;
	model_return(&model, (unsigned)(pick % model.lease_count));
	return true;
}

static bool do_release(uint64_t pick)
{
	struct model_tensor *tensor = pick_tensor(pick);

	if (!tensor)
		return false;
	model_release(&model, tensor);
	return true;
}

/* a: micro-batch; b: pass; c: what comes next, if that is said */
static void do_stage(const struct sim_step *step)
{
	enum spw_stage stage = step->b % 2 ? SPW_STAGE_BACKWARD : SPW_STAGE_FORWARD;
	enum spw_stage next = step->c / 2 % 2 ? SPW_STAGE_BACKWARD : SPW_STAGE_FORWARD;

	if (step->c % 2)
		spw_cache_stage(model.cache, (uint32_t)(step->a % 3), stage);
	else
		spw_cache_stage_next(model.cache, (uint32_t)(step->a % 3), stage,
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
	case SIM_STEP_DRAIN: done = model_drain(&model, 1 + (unsigned)(step->a % 8)) > 0; break;
	case SIM_STEP_STEP:
		spw_cache_step(model.cache);
		depth = 0;
		break;
	case SIM_STEP_STAGE: do_stage(step); break;
	case SIM_STEP_ENTER:
		spw_cache_scope_enter(model.cache, step->a % 8);
		depth++;
		break;
	case SIM_STEP_LEAVE:
		if (depth > 0)
			spw_cache_scope_leave(model.cache);
		depth -= depth > 0;
		break;
	default: return false;
	}
	model_check_inside(&model);
	return done;
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

	spw_cache_stats(model.cache, &stats, sizeof(stats));
	if (stats.offers != model.counted.offers ||
	    stats.bytes_offered != model.counted.bytes_offered ||
	    stats.takes != model.counted.takes || stats.releases != model.counted.releases ||
	    stats.tensors_deduplicated != model.counted.duplicates)
		sim_fail("the cache counts other offers, takes or releases than there were");
	/* What is not written has a reason; a held-back write may fail before it begins. */
	written_or_not = stats.tensors_spilled + stats.writes_cancelled + stats.writes_failed;
	kept_later = kept(&stats) - model.counted.keeps - model.counted.refused;
	if (kept(&stats) < model.counted.keeps + model.counted.refused ||
	    written_or_not > model.counted.spills ||
	    kept_later < model.counted.spills - written_or_not ||
	    kept_later > model.counted.spills - written_or_not + stats.writes_failed)
		sim_fail("the cache counts %" PRIu64 " kept, %" PRIu64 " written, %" PRIu64
			 " cancelled, %" PRIu64 " failed; of %" PRIu64
			 " it said that it keeps them, of %" PRIu64 " that not",
			 kept(&stats), stats.tensors_spilled, stats.writes_cancelled,
			 stats.writes_failed, (model.counted.keeps + model.counted.refused),
			 model.counted.spills);
}

/* All users gone, all tokens must come. */
static void give_all_back(void)
{
	model_release_all(&model);
	for (unsigned i = 0; model.owner_count > 0 || model.cache->count.entries > 0; i++) {
		if (i > 100000)
			sim_fail("the cache does not give %u entries back",
				 model.cache->count.entries);
		if (!model_drain(&model, MODEL_OWNERS))
			sim_turn(true);
	}
	model_check_inside(&model);
	if (model.cache->count.activation_bytes || model.cache->count.staging_bytes ||
	    model.cache->count.prefetched_bytes)
		sim_fail("the cache is empty and counts bytes");
	check_counts();
}

void sim_tensors_end(bool abruptly)
{
	if (!model.cache)
		return;
	if (!abruptly)
		give_all_back();
	spw_cache_close(model.cache);
	model.cache = NULL;
}
