/* SPDX-License-Identifier: MIT */
/* tools/replay/replaying.h - a replay while it runs: memory of its tensors, recomputed scopes */
#ifndef SPW_TOOLS_REPLAY_REPLAYING_H
#define SPW_TOOLS_REPLAY_REPLAYING_H

#include <pthread.h>

#include "tools/replay/scopes.h"
#include "tools/replay/run.h"

/* One version of one storage in one replay. Its address is its offers' owner token. */
struct buffer {
	uint8_t *bytes;
	uint64_t seed;
	uint32_t holds; /* tokens that are out */
	uint32_t content;
	struct buffer *next, **link; /* of all */
};

/* A tensor's id, and what was taken of it. */
struct handle {
	spw_tensor id;
	uint32_t users;
	uint64_t lease;
	uint32_t leases;
	const struct replay_op *offered; /* the first time in this replay */
	bool discarded;
};

#define REPLAY_DEPTH_MAX 64u
#define REPLAY_NO_SCOPE  UINT32_MAX

/* Where a replay is among the scopes, as they are numbered in replay_scopes. */
struct replay_place {
	uint32_t entered; /* in forward passes so far */
	uint32_t open[REPLAY_DEPTH_MAX], depth;
	bool backward;
	uint32_t *discarded; /* by scope: tensors that hold its input */
};

struct replaying {
	struct replay_run *run;
	struct buffer **current; /* by content: of this replay of the step, or NULL */
	struct buffer *all;
	struct handle *handles; /* by tensor */
	uint64_t begin_ns;      /* of this replay */
	uint64_t behind_ns;     /* that it has waited for I/O, or recomputed */
	uint64_t recompute_ns;  /* spent on recomputation */
	uint64_t sequence;      /* of contents made, for keys that are never reused */
	uint64_t *keys;         /* by content */
	bool last;
	pthread_mutex_t samples_lock;
	struct replay_place place;
};

/* ---- memory.c ---- */

/* Made and filled if it is not there. Return: NULL with an error. */
struct buffer *replay_buffer_of(struct replaying *replaying, uint32_t content);
/* What the cache is offered: the tensor, as it was the first time. */
struct spw_offer replay_offer(const struct replaying *replaying, const struct replay_op *op,
			      const struct buffer *buffer);
/* Unless the cache holds it. */
void replay_buffer_let_go(struct replaying *replaying, struct buffer *buffer);
void replay_drain(struct replaying *replaying);
/* The cache is closed. */
void replay_buffers_free(struct replaying *replaying);

/* ---- recompute.c: these do nothing where no scope may be recomputed ---- */

int replay_recompute_open(struct replaying *replaying);
void replay_recompute_close(struct replaying *replaying);
void replay_recompute_step(struct replaying *replaying);
void replay_recompute_stage(struct replaying *replaying, bool backward);
void replay_recompute_enter(struct replaying *replaying);
/* Before the cache is told: its input is offered. */
int replay_recompute_leave(struct replaying *replaying);
/* The hint of an offer that has none of its own. */
enum spw_cache_hint replay_recompute_hint(const struct replaying *replaying);
/* The cache has given up the tensor that was offered. */
void replay_recompute_discarded(struct replaying *replaying, uint32_t tensor);
/* A take said SPW_TAKE_AGAIN. Return: 0; the cache's. */
int replay_recompute(struct replaying *replaying, uint32_t tensor);
/* A user of it is gone. Return: 0; the cache's. */
int replay_release(struct replaying *replaying, uint32_t tensor);

#endif
