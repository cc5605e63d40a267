/* SPDX-License-Identifier: MIT */
/*
 * tools/replay/recompute.c - recompute scopes in a replay
 *
 * As in the Python package, tensors of a scope are offered with SPW_HINT_AGAIN. The scope's input
 * is offered once more before the scope ends, and kept until its last discarded tensor is gone.
 * Recomputing a tensor takes as long as the forward pass took.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "tools/replay/drive.h"
#include "tools/replay/replaying.h"
#include "util/util.h"

int replay_recompute_open(struct replaying *replaying)
{
	const struct replay_scopes *again = replaying->run->recomputable;

	if (!again)
		return 0;
	replaying->place.discarded =
		calloc((size_t)again->scopes.count + 1, sizeof(*replaying->place.discarded));
	return replaying->place.discarded
		       ? 0
		       : spw_error(-ENOMEM, "no memory for %u scopes", again->scopes.count);
}

void replay_recompute_close(struct replaying *replaying)
{
	free(replaying->place.discarded);
}

void replay_recompute_step(struct replaying *replaying)
{
	const struct replay_scopes *again = replaying->run->recomputable;
	struct replay_place *place = &replaying->place;

	place->entered = place->depth = 0;
	place->backward = false;
	if (again)
		memset(place->discarded, 0, again->scopes.count * sizeof(*place->discarded));
}

void replay_recompute_stage(struct replaying *replaying, bool backward)
{
	replaying->place.backward = backward;
}

void replay_recompute_enter(struct replaying *replaying)
{
	struct replay_place *place = &replaying->place;
	uint32_t scope = place->backward ? REPLAY_NO_SCOPE : place->entered++;

	if (place->depth < REPLAY_DEPTH_MAX)
		place->open[place->depth] = scope;
	place->depth++;
}

/* The innermost scope if it can be recomputed; else REPLAY_NO_SCOPE. */
static uint32_t scope_now(const struct replaying *replaying)
{
	const struct replay_scopes *again = replaying->run->recomputable;
	const struct replay_place *place = &replaying->place;
	uint32_t scope;

	if (!again || place->backward || place->depth == 0 || place->depth > REPLAY_DEPTH_MAX)
		return REPLAY_NO_SCOPE;
	scope = place->open[place->depth - 1];
	return scope != REPLAY_NO_SCOPE && again->own[scope].may_again ? scope : REPLAY_NO_SCOPE;
}

enum spw_cache_hint replay_recompute_hint(const struct replaying *replaying)
{
	return scope_now(replaying) == REPLAY_NO_SCOPE ? SPW_HINT_NONE : SPW_HINT_AGAIN;
}

/* ---- Inputs of scopes ---- */

/* Drop a user of a tensor. After the last, a discarded one no longer needs its scope's input. */
int replay_release(struct replaying *replaying, uint32_t tensor)
{
	struct handle *handle = &replaying->handles[tensor];
	bool last = --handle->users == 0, discarded = last && handle->discarded;
	uint32_t scope;
	int rc;

	for (; last && handle->leases > 0; handle->leases--)
		spw_cache_return(replaying->run->cache, handle->lease);
	rc = spw_cache_release(replaying->run->cache, handle->id);
	if (rc || !discarded)
		return rc;
	handle->discarded = false;
	scope = replaying->run->recomputable->tensors[tensor].scope;
	if (--replaying->place.discarded[scope] > 0)
		return 0;
	return replay_release(replaying, replaying->run->recomputable->own[scope].input);
}

int replay_recompute_leave(struct replaying *replaying)
{
	struct replay_place *place = &replaying->place;
	uint32_t scope = scope_now(replaying);
	struct spw_offer offer;
	struct handle *handle;
	struct buffer *buffer;
	spw_tensor id;
	int rc;

	if (place->depth > 0)
		place->depth--;
	if (scope == REPLAY_NO_SCOPE)
		return 0;
	handle = &replaying->handles[replaying->run->recomputable->own[scope].input];
	buffer = replay_buffer_of(replaying, handle->offered->content);
	if (!buffer)
		return -ENOMEM;
	offer = replay_offer(replaying, handle->offered, buffer);
	rc = spw_cache_offer_hint(replaying->run->cache, &offer, SPW_HINT_INPUT, &id);
	if (rc == SPW_OFFER_KEEP || rc == SPW_OFFER_SPILL)
		buffer->holds++;
	replay_buffer_let_go(replaying, buffer);
	if (rc < 0)
		return rc;
	handle->users++;
	if (place->discarded[scope] > 0)
		return 0;
	return replay_release(replaying, replaying->run->recomputable->own[scope].input);
}

/* ---- Discard and recompute ---- */

void replay_recompute_discarded(struct replaying *replaying, uint32_t tensor)
{
	replaying->handles[tensor].discarded = true;
	replaying->place.discarded[replaying->run->recomputable->tensors[tensor].scope]++;
}

static int restore(struct replaying *replaying, uint32_t tensor)
{
	struct handle *handle = &replaying->handles[tensor];
	struct buffer *buffer = replay_buffer_of(replaying, handle->offered->content);
	struct spw_offer offer;
	int rc;

	if (!buffer)
		return -ENOMEM;
	offer = replay_offer(replaying, handle->offered, buffer);
	rc = spw_cache_restore(replaying->run->cache, handle->id, &offer);
	if (rc == 0)
		buffer->holds++;
	replay_buffer_let_go(replaying, buffer);
	return rc < 0 ? rc : 0;
}

static int compute(struct replaying *replaying, uint32_t scope, uint64_t begin_ns)
{
	const struct replay_scopes *again = replaying->run->recomputable;
	const struct spw_plan_scope *own = &again->own[scope];
	int rc = 0;

	for (uint32_t i = 0; i < again->step.count && rc == 0; i++) {
		const struct spw_plan_tensor *tensor = &again->tensors[i];

		if (tensor->scope != scope || !replaying->handles[i].discarded)
			continue;
		replay_drive_sleep_until(begin_ns + spw_since_ns(own->enter_ns, tensor->pack_ns));
		rc = restore(replaying, i);
		replay_drain(replaying);
	}
	replay_drive_sleep_until(begin_ns + own->again_ns);
	return rc;
}

int replay_recompute(struct replaying *replaying, uint32_t tensor)
{
	uint32_t scope = replaying->run->recomputable->tensors[tensor].scope;
	const struct handle *input =
		&replaying->handles[replaying->run->recomputable->own[scope].input];
	struct spw_cache *cache = replaying->run->cache;
	struct spw_taken taken = {0};
	uint64_t begin_ns;
	int rc;

	spw_cache_again_begin(cache);
	rc = spw_cache_take(cache, input->id, input->offered->offset_bytes,
			    input->offered->len_bytes, &taken);
	begin_ns = replay_drive_now_ns(); /* the take's wait is a stall, not recomputation */
	if (rc == 0)
		rc = compute(replaying, scope, begin_ns);
	if (taken.lease)
		spw_cache_return(cache, taken.lease);
	replaying->recompute_ns += replay_drive_now_ns() - begin_ns;
	spw_cache_again_end(cache);
	return rc;
}
