/* SPDX-License-Identifier: MIT */
/*
 * tools/replay/drive.h - the store under the cache in a replay: simulated, in simulated time
 * (simstore/simstore.h), or real, with its transfers recorded
 *
 * One thread replays. Transfers of a real store end on the store's thread, and are recorded under a
 * lock.
 */
#ifndef SPW_TOOLS_REPLAY_DRIVE_H
#define SPW_TOOLS_REPLAY_DRIVE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <spillway/cache.h>
#include <spillway/plan.h>
#include <spillway/store.h>

struct replay_transfer {
	/* times of replay_drive_now_ns(); simulated transfers begin with their first byte */
	uint64_t begin_ns, end_ns;
	uint64_t bytes;
	bool read, failed;
};

/* Begin a simulation at time 0. Return: a store handle, only for the cache; NULL: no memory. */
struct spw_store *replay_drive_begin(const struct spw_plan_drives *drives, uint64_t chunk_bytes);
/* Change the simulated drives from now on. */
void replay_drive_change(const struct spw_plan_drives *drives);
/* Open a cache on the simulated store if there is one, else on @store. */
int replay_drive_open_cache(struct spw_store *store, const struct spw_cache_opts *opts,
			    struct spw_cache **cache);
/* The monotonic time, simulated or real. */
uint64_t replay_drive_now_ns(void);
/* End the simulation. The cache must be closed. */
void replay_drive_end(void);

/* Sleep, or simulate, until @ns of replay_drive_now_ns(). A signal ends a real sleep. */
void replay_drive_sleep_until(uint64_t ns);

/* Start or stop recording transfers. @ended: called at the end of each, on its thread. */
void replay_drive_watch(bool on, void (*ended)(void *context), void *context);
/* The recorded transfers, valid until the next one is recorded. */
const struct replay_transfer *replay_drive_transfers(size_t *count);
void replay_drive_forget(void);

#endif
