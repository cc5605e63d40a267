/* SPDX-License-Identifier: MIT */
/*
 * tools/replay/drive.h - what lies under the cache in a replay: a simulated store in simulated time
 * (simstore/simstore.h), or a real one, whose transfers are watched
 *
 * One thread replays. On a real store the transfers end on the store's thread, and are recorded
 * under a lock.
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
	/* as replay_drive_now_ns(); simulated: from the first byte on */
	uint64_t begin_ns, end_ns;
	uint64_t bytes;
	bool read, failed;
};

/*
 * Begin to simulate, at time 0. Return: what to name as the store, which nothing but the cache may
 * use; NULL: no memory.
 */
struct spw_store *replay_drive_begin(const struct spw_plan_drives *drives, uint64_t chunk_bytes);
/* Change the drive, from now on. */
void replay_drive_change(const struct spw_plan_drives *drives);
/* spw_cache_open() over the simulated store if there is one, else over @store. */
int replay_drive_open_cache(struct spw_store *store, const struct spw_cache_opts *opts,
			    struct spw_cache **cache);
/* Monotonic, simulated or real. */
uint64_t replay_drive_now_ns(void);
/* No cache may be open any more. */
void replay_drive_end(void);

/* Let time pass until @ns of replay_drive_now_ns(); an interrupt ends real time. */
void replay_drive_sleep_until(uint64_t ns);

/* Record transfers or stop. @ended: called on the thread that ends one, until called again. */
void replay_drive_watch(bool on, void (*ended)(void *context), void *context);
/* What was recorded; valid until the next change. */
const struct replay_transfer *replay_drive_transfers(size_t *count);
void replay_drive_forget(void);

#endif
