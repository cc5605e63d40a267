/* SPDX-License-Identifier: MIT */
/*
 * tests/model/cache_model.h - what a tensor cache owes its caller: the bytes that were saved, each
 * token once, leases that stay valid
 *
 * A program draws the calls; the model makes them and checks what comes back. Memory that was
 * offered is destroyed as soon as its token is reaped, so that a later use of it shows.
 */
#ifndef SPW_TEST_CACHE_MODEL_H
#define SPW_TEST_CACHE_MODEL_H

#include <errno.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#include <spillway/cache.h>

#include "util/util.h"

#define MODEL_TENSORS 96
#define MODEL_LEASES  64
#define MODEL_OWNERS  512

/* @len bytes from @expected on, which are there as long as the model, and are @expected_len. */
struct model_storage {
	uint64_t key, version, len, expected_len;
	const uint8_t *expected;
};

struct model_tensor {
	spw_tensor id;
	struct model_storage storage;
	uint64_t offset, len;
};

struct model_lease {
	uint64_t lease, len;
	const uint8_t *bytes, *expected;
};

/* Its token is its slot, plus 1, plus a count of how often the slot was used. */
struct model_owner {
	uint64_t token;
	struct model_storage storage;
	uint8_t *bytes; /* NULL: the slot is free */
};

struct model {
	struct spw_cache *cache;
	uint8_t *(*allocate)(uint64_t len); /* NULL: there is no memory for it */
	void (*release)(void *bytes);
	void (*stop)(const char *what); /* of a run that has gone wrong: does not return */
	struct model_tensor tensors[MODEL_TENSORS];
	struct model_lease leases[MODEL_LEASES];
	struct model_owner owners[MODEL_OWNERS];
	unsigned tensor_count, lease_count, owner_count;
	struct {
		uint64_t owners, offers, bytes_offered, keeps, spills, duplicates, refused, takes,
			restores, releases;
	} counted; /* takes, restores: those that succeeded */
};

static inline void model_require(const struct model *model, bool holds, const char *what)
{
	if (!holds)
		model->stop(what);
}

/* ---- Memory of the caller's ---- */

/* Return: NULL if there is no slot, or no memory. */
static inline struct model_owner *model_owner_new(struct model *model,
						  const struct model_storage *storage)
{
	struct model_owner *owner = model->owners;

	while (owner < model->owners + MODEL_OWNERS && owner->bytes)
		owner++;
	if (owner == model->owners + MODEL_OWNERS)
		return NULL;
	*owner = (struct model_owner){.token = (uint64_t)(owner - model->owners) + 1 +
					       MODEL_OWNERS * model->counted.owners,
				      .storage = *storage,
				      .bytes = model->allocate(storage->len)};
	if (!owner->bytes)
		return NULL;
	memcpy(owner->bytes, storage->expected, storage->len);
	model->counted.owners++;
	model->owner_count++;
	return owner;
}

static inline struct model_owner *model_owner_of(struct model *model, uint64_t token)
{
	struct model_owner *owner = &model->owners[(token - 1) % MODEL_OWNERS];

	model_require(model, token > 0 && owner->bytes && owner->token == token,
		      "a token that the cache does not have");
	return owner;
}

static inline void model_owner_free(struct model *model, struct model_owner *owner)
{
	memset(owner->bytes, 0xdd, owner->storage.len);
	model->release(owner->bytes);
	owner->bytes = NULL;
	model->owner_count--;
}

/* What is left when the cache has been closed. */
static inline void model_free(struct model *model)
{
	for (unsigned i = 0; i < MODEL_OWNERS; i++)
		if (model->owners[i].bytes)
			model_owner_free(model, &model->owners[i]);
}

/* ---- Offers ---- */

static inline void model_offer_ended(struct model *model, struct model_owner *owner, int rc)
{
	model->counted.keeps += rc == SPW_OFFER_KEEP;
	model->counted.spills += rc == SPW_OFFER_SPILL;
	model->counted.duplicates += rc == SPW_OFFER_DEDUP;
	model->counted.refused += rc < 0;
	if (rc != SPW_OFFER_KEEP && rc != SPW_OFFER_SPILL)
		model_owner_free(model, owner);
}

/*
 * Offer a range, which may be one that does not exist, of a storage.
 * Return: what the cache did; -EAGAIN: there was no room in the model.
 */
static inline int model_offer(struct model *model, const struct model_storage *storage,
			      uint64_t offset, uint64_t len, enum spw_cache_hint hint)
{
	struct model_owner *owner =
		model->tensor_count < MODEL_TENSORS ? model_owner_new(model, storage) : NULL;
	struct model_tensor *tensor = &model->tensors[model->tensor_count];
	struct spw_offer offer;
	int rc;

	if (!owner)
		return -EAGAIN;
	offer = (struct spw_offer){.storage_key = storage->key,
				   .storage_version = storage->version,
				   .storage_bytes = owner->bytes,
				   .storage_len_bytes = storage->len,
				   .offset_bytes = offset,
				   .len_bytes = len,
				   .owner = owner->token};
	*tensor = (struct model_tensor){.storage = *storage, .offset = offset, .len = len};
	rc = spw_cache_offer_hint(model->cache, &offer, hint, &tensor->id);
	model_require(model, (rc >= 0) == (tensor->id.value != 0), "an offer without a tensor");
	model->counted.offers++;
	model->counted.bytes_offered += len;
	model_offer_ended(model, owner, rc);
	if (rc < 0)
		return rc;
	model_require(model, len > 0 && offset <= storage->len && len <= storage->len - offset,
		      "an offer of what does not exist was taken");
	model->tensor_count++;
	return rc;
}

/* It was discarded: the same bytes come back, and with @wrong a changed one is refused. */
static inline void model_restore(struct model *model, const struct model_tensor *tensor, bool wrong)
{
	struct model_storage storage = tensor->storage;
	struct model_owner *owner;
	struct spw_offer offer;
	int rc;

	storage.len = storage.expected_len;
	owner = model_owner_new(model, &storage);
	if (!owner)
		return;
	/* What was stored is the part that was offered, or more. */
	owner->bytes[tensor->offset] ^= wrong;
	offer = (struct spw_offer){.storage_bytes = owner->bytes,
				   .storage_len_bytes = storage.len,
				   .owner = owner->token};
	rc = spw_cache_restore(model->cache, tensor->id, &offer);
	model_require(model, rc == (wrong ? -ESTALE : 0), "a restore of these bytes");
	model->counted.restores += rc == 0;
	if (rc)
		model_owner_free(model, owner);
}

/* ---- Takes ---- */

static inline void model_return(struct model *model, unsigned which)
{
	struct model_lease *lease = &model->leases[which];

	model_require(model, memcmp(lease->bytes, lease->expected, lease->len) == 0,
		      "wrong bytes at the end of a lease");
	spw_cache_return(model->cache, lease->lease);
	*lease = model->leases[--model->lease_count];
}

static inline void model_check_taken(struct model *model, const struct model_tensor *tensor,
				     uint64_t offset, uint64_t len, const struct spw_taken *taken)
{
	const struct model_storage *storage = &tensor->storage;
	const uint8_t *expected = storage->expected + offset, *bytes = taken->bytes;

	model_require(model,
		      len > 0 && offset <= storage->expected_len &&
			      len <= storage->expected_len - offset,
		      "a take of what does not exist");
	if (!bytes) {
		const struct model_owner *owner = model_owner_of(model, taken->owner);

		model_require(model, offset + len <= owner->storage.len, "a take past the owner");
		bytes = owner->bytes + offset;
	}
	model_require(model, memcmp(bytes, expected, len) == 0, "wrong bytes");
	if (!taken->bytes)
		return;
	model_require(model, taken->storage_bytes_before + len <= taken->storage_bytes_total,
		      "a lease on less than the take");
	model->leases[model->lease_count++] = (struct model_lease){
		.lease = taken->lease, .len = len, .bytes = taken->bytes, .expected = expected};
	if (model->lease_count == MODEL_LEASES)
		model_return(model, MODEL_LEASES - 1);
}

/* Return: what the cache did; after SPW_TAKE_AGAIN the caller restores it. */
static inline int model_take(struct model *model, const struct model_tensor *tensor,
			     uint64_t offset, uint64_t len)
{
	struct spw_taken taken = {0};
	int rc = spw_cache_take(model->cache, tensor->id, offset, len, &taken);

	model->counted.takes += rc == 0;
	if (rc == 0)
		model_check_taken(model, tensor, offset, len, &taken);
	return rc;
}

/* ---- Ends ---- */

static inline void model_release(struct model *model, struct model_tensor *tensor)
{
	model_require(model, spw_cache_release(model->cache, tensor->id) == 0,
		      "a tensor that cannot be released");
	model->counted.releases++;
	*tensor = model->tensors[--model->tensor_count];
}

/* At most @count of them. Return: how many tokens there were. */
static inline int model_drain(struct model *model, unsigned count)
{
	uint64_t tokens[MODEL_OWNERS];
	int drained = spw_cache_drain(model->cache, tokens, count);

	model_require(model, drained >= 0 && drained <= (int)count, "a count of tokens");
	for (int i = 0; i < drained; i++)
		model_owner_free(model, model_owner_of(model, tokens[i]));
	return drained;
}

static inline void model_release_all(struct model *model)
{
	while (model->tensor_count > 0)
		model_release(model, &model->tensors[model->tensor_count - 1]);
	while (model->lease_count > 0)
		model_return(model, model->lease_count - 1);
}

#endif
