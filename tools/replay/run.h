/* SPDX-License-Identifier: MIT */
/*
 * tools/replay/run.h - replays a step through the cache, several times, and measures it
 *
 * Compute is waiting. The tensors are real: each is filled with a pattern of its own when it is
 * offered, and compared with it when it is taken; a byte that differs ends the replay with
 * -EBADMSG. What a take read back is returned when its tensor is released.
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
	/* by the replay itself: what the machine took for filling, comparing and calling */
	uint64_t late_ns;
	uint64_t peak_bytes;
	uint64_t bytes_written, bytes_read, bytes_forwarded;
	struct spw_cache_stats stats; /* when it had ended: also the plan that was in force */
};

/* Of the last replay. */
struct replay_sample {
	uint64_t ns; /* since it began */
	uint64_t bytes;
};

struct replay_stall {
	uint64_t begin_ns, end_ns; /* since it began */
	uint32_t tensor;
};

struct replay_timeline {
	uint64_t begin_ns; /* as spw_clock_ns(), to tell when transfers were */
	uint64_t *op_ns;   /* when each operation was done, since then */
	struct replay_sample *samples;
	uint32_t samples_count, samples_max;
	struct replay_stall *stalls;
	uint32_t stalls_count;
};

struct replay_run {
	const struct replay_step *step;
	const struct replay_scopes *recomputable; /* of the step; or NULL: none may be recomputed */
	struct spw_cache *cache;
	uint32_t steps;
	/* what these scopes save is pinned; UINT32_MAX: none. before_step() may set it */
	uint32_t pinned_from_scope;
	/* compute is this much faster until the first backward pass; before_step() may set it */
	double hurry;
	uint32_t measured; /* of them; fewer after an interrupt */
	bool interrupted;
	struct replay_measure *measures; /* steps of them */
	struct replay_timeline timeline;
	void (*before_step)(struct replay_run *run, uint32_t number); /* from 0; or NULL */
	void (*after_step)(uint32_t number, const struct replay_measure *measure);
};

/* Return: 0, also interrupted; -EBADMSG wrong bytes; -ENOMEM; the cache's. @run: to be freed. */
int replay_run(struct replay_run *run);
void replay_run_free(struct replay_run *run);

#endif
