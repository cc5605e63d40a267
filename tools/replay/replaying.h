/* SPDX-License-Identifier: MIT */
/* tools/replay/replaying.h - struct replaying, the state of a replay: buffers, handles, scopes */
#ifndef SPW_TOOLS_REPLAY_REPLAYING_H
#define SPW_TOOLS_REPLAY_REPLAYING_H

#include <pthread.h>

#include "tools/replay/scopes.h"
#include "tools/replay/run.h"

/* The content of a storage in one replay. The address is the owner token of its offers. */
struct buffer {
	uint8_t *bytes;
	uint64_t seed;
	uint32_t holds; /* tokens that the cache has */
	uint32_t content;
	struct buffer *next, **link; /* in the list of all buffers */
};

/* A tensor's id in the cache, and its lease. */
struct handle {
	spw_tensor id;
	uint32_t users;
	uint64_t lease;
	uint32_t leases;
	const struct replay_op *offered; /* its first offer in this replay */
	bool discarded;
};

#define REPLAY_DEPTH_MAX 64u
#define REPLAY_NO_SCOPE  UINT32_MAX

/* The position of a replay in the scopes, which are numbered as in replay_scopes. */
struct replay_place {
	uint32_t entered; /* scopes entered in forward passes so far */
	uint32_t open[REPLAY_DEPTH_MAX], depth;
	bool backward;
	uint32_t *discarded; /* by scope: discarded tensors that need its input */
};

struct replaying {
	struct replay_run *run;
	struct buffer **current; /* by content: the buffer in this replay, or NULL */
	struct buffer *all;
	struct handle *handles; /* by tensor */
	uint64_t begin_ns;
	uint64_t behind_ns;    /* time spent waiting for I/O or recomputing */
	uint64_t recompute_ns; /* spent on recomputation */
	uint64_t sequence;     /* number of buffers made, for keys that are never reused */
	uint64_t *keys;        /* by content */
	bool last;
	pthread_mutex_t samples_lock;
	struct replay_place place;
};

/* ---- memory.c ---- */

/* Get the buffer of a content, made and filled if needed. Return: NULL with an error. */
struct buffer *replay_buffer_of(struct replaying *replaying, uint32_t content);
/* Make the offer of a tensor, the same each time. */
struct spw_offer replay_offer(const struct replaying *replaying, const struct replay_op *op,
			      const struct buffer *buffer);
/* Free a buffer, unless the cache holds it. */
void replay_buffer_let_go(struct replaying *replaying, struct buffer *buffer);
void replay_drain(struct replaying *replaying);
/* Free all buffers. The cache is closed. */
void replay_buffers_free(struct replaying *replaying);

/* ---- recompute.c: these do nothing if no scope may be recomputed ---- */

int replay_recompute_open(struct replaying *replaying);
void replay_recompute_close(struct replaying *replaying);
void replay_recompute_step(struct replaying *replaying);
void replay_recompute_stage(struct replaying *replaying, bool backward);
void replay_recompute_enter(struct replaying *replaying);
/* Leave a scope: offer its input. Call this before the cache is told. */
int replay_recompute_leave(struct replaying *replaying);
/* The hint for an offer without a hint of its own. */
enum spw_cache_hint replay_recompute_hint(const struct replaying *replaying);
/* The cache has discarded an offered tensor. */
void replay_recompute_discarded(struct replaying *replaying, uint32_t tensor);
/* Recompute a tensor whose take returned SPW_TAKE_AGAIN. Return: 0; the cache's error. */
int replay_recompute(struct replaying *replaying, uint32_t tensor);
/* Drop a user of a tensor. Return: 0; the cache's error. */
int replay_release(struct replaying *replaying, uint32_t tensor);

#endif
