/* SPDX-License-Identifier: MIT */
/*
 * tools/replay/run.h - struct replay_run: replay a step through the cache several times, and
 * measure it
 *
 * Compute is replaced by waiting. The tensors are real: each is filled with a pattern of its own
 * when it is offered, and compared with that when it is taken; a wrong byte ends the replay with
 * -EBADMSG. Leases are returned when their tensor is released.
 */
#ifndef SPW_TOOLS_REPLAY_RUN_H
#define SPW_TOOLS_REPLAY_RUN_H

#include <stdbool.h>
#include <stdint.h>

#include <spillway/cache.h>

#include "tools/replay/scopes.h"

#define REPLAY_STEPS_MAX 1000u

/* One replay of the step. */
struct replay_measure {
	uint64_t step_ns, stall_ns, hold_ns, recompute_ns;
	/* caused by the replay itself, which fills, compares and calls the cache */
	uint64_t late_ns;
	uint64_t peak_bytes;
	uint64_t bytes_written, bytes_read, bytes_forwarded;
	struct spw_cache_stats stats; /* at its end, with the plan that was followed */
};

/* A sample of memory in the last replay. */
struct replay_sample {
	uint64_t ns; /* since the replay began */
	uint64_t bytes;
};

struct replay_stall {
	uint64_t begin_ns, end_ns; /* since the replay began */
	uint32_t tensor;
};

struct replay_timeline {
	uint64_t begin_ns; /* on the clock of the transfers */
	uint64_t *op_ns;   /* end of each operation, since begin_ns */
	struct replay_sample *samples;
	uint32_t samples_count, samples_max;
	struct replay_stall *stalls;
	uint32_t stalls_count;
};

struct replay_run {
	const struct replay_step *step;
	const struct replay_scopes *recomputable; /* the step's; NULL: recompute none */
	struct spw_cache *cache;
	uint32_t steps;
	/* tensors from this scope on are pinned; UINT32_MAX: none. before_step() may set it */
	uint32_t pinned_from_scope;
	/* factor by which compute is faster in the first forward pass; before_step() may set it */
	double hurry;
	uint32_t measured; /* number of measures; fewer than steps after an interrupt */
	bool interrupted;
	struct replay_measure *measures; /* array of steps elements */
	struct replay_timeline timeline;
	void (*before_step)(struct replay_run *run, uint32_t number); /* @number from 0; or NULL */
	void (*after_step)(uint32_t number, const struct replay_measure *measure);
};

/*
 * Run all replays. Return: 0, also after an interrupt; -EBADMSG wrong bytes; -ENOMEM; the cache's
 * error. @run: pass it to replay_run_free().
 */
int replay_run(struct replay_run *run);
void replay_run_free(struct replay_run *run);

#endif
