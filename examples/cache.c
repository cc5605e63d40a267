/* SPDX-License-Identifier: MIT */
/*
 * examples/cache.c - what a training step saves for its backward pass, by way of the tensor cache
 *
 *   cc cache.c -o cache $(pkg-config --cflags --libs spillway)
 *   ./cache DRIVE...
 *
 * Forward, each layer offers the tensor that it saves: the cache keeps it in memory or spills it to
 * the drives, and says when the memory may be used again. Backward, in reverse order, each layer
 * takes its bytes back.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <spillway/spillway.h>

#define LAYERS 8
#define LEN    ((size_t)4 << 20)
#define STEPS  3

static spw_tensor tensors[LAYERS];

/*
 * By token: this program's until the token has been drained, then NULL. No token is used again: the
 * next step may begin before the last of this one's has been drained.
 */
static char *saved[1 + STEPS * LAYERS];

/* The cache is done with this memory. */
static void drain(struct spw_cache *cache)
{
	uint64_t owners[LAYERS];
	int count = spw_cache_drain(cache, owners, LAYERS);

	for (int i = 0; i < count; i++) {
		free(saved[owners[i]]);
		saved[owners[i]] = NULL;
	}
}

static int forward(struct spw_cache *cache, uint64_t step, uint64_t i)
{
	struct spw_offer offer = {
		.storage_key = i + 1, /* which memory it is, and which of its contents */
		.storage_version = step,
		.storage_len_bytes = LEN,
		.len_bytes = LEN,
		.owner = 1 + (step - 1) * LAYERS + i,
	};
	int rc;

	saved[offer.owner] = malloc(LEN);
	if (!saved[offer.owner])
		return -1;
	memset(saved[offer.owner], (int)(step * LAYERS + i), LEN);
	offer.storage_bytes = saved[offer.owner];
	spw_cache_scope_enter(cache, i + 1);
	rc = spw_cache_offer(cache, &offer, &tensors[i]);
	spw_cache_scope_leave(cache);
	/* Kept, or spilled: in both cases the memory is ours until its token is drained. */
	drain(cache);
	return rc < 0 ? rc : 0;
}

static int backward(struct spw_cache *cache, uint64_t step, uint64_t i)
{
	struct spw_taken taken;
	const char *bytes;
	int rc = spw_cache_take(cache, tensors[i], 0, LEN, &taken);

	if (rc)
		return rc;
	/* Read back, in memory that is leased; or still where it was, named by its token. */
	bytes = taken.bytes ? taken.bytes : saved[taken.owner];
	if (bytes[0] != (char)(step * LAYERS + i) || bytes[LEN - 1] != bytes[0])
		rc = -1; /* never: take would have failed */
	if (taken.bytes)
		spw_cache_return(cache, taken.lease);
	(void)spw_cache_release(cache, tensors[i]);
	drain(cache);
	return rc;
}

static int train(struct spw_cache *cache)
{
	int rc = 0;

	for (uint64_t step = 1; rc == 0 && step <= STEPS; step++) {
		spw_cache_step(cache);
		for (uint64_t i = 0; rc == 0 && i < LAYERS; i++)
			rc = forward(cache, step, i);
		spw_cache_stage(cache, 0, SPW_STAGE_BACKWARD);
		for (uint64_t i = 0; rc == 0 && i < LAYERS; i++)
			rc = backward(cache, step, LAYERS - 1 - i);
	}
	return rc;
}

int main(int argc, char *argv[])
{
	struct spw_cache_stats stats;
	struct spw_cache_opts opts;
	struct spw_cache *cache = NULL;
	struct spw_store *store;
	int rc;

	if (argc < 2) {
		fprintf(stderr, "usage: %s DRIVE... (formatted by spillway format)\n", argv[0]);
		return 2;
	}
	if (spw_store_open((const char *const *)&argv[1], (unsigned)argc - 1, NULL, &store)) {
		fprintf(stderr, "%s\n", spw_last_error());
		return 1;
	}
	spw_cache_opts_init(&opts, sizeof(opts));
	opts.mode = SPW_CACHE_SPILL; /* every step alike; the default plans from the first */
	rc = spw_cache_open(store, &opts, &cache);
	if (rc == 0)
		rc = train(cache);
	if (rc)
		fprintf(stderr, "%s\n", spw_last_error());
	if (cache) {
		spw_cache_stats(cache, &stats, sizeof(stats));
		printf("of %llu bytes saved %llu were spilled; at most %llu in memory at once\n",
		       (unsigned long long)stats.bytes_offered,
		       (unsigned long long)stats.bytes_spilled,
		       (unsigned long long)stats.activation_bytes_max);
	}
	/* The cache before its store, and memory only when nothing can use it any more. */
	spw_cache_close(cache);
	spw_store_close(store);
	for (unsigned i = 1; i <= STEPS * LAYERS; i++)
		free(saved[i]);
	return rc ? 1 : 0;
}
