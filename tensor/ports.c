/* SPDX-License-Identifier: MIT */
/* tensor/ports.c - the cache over a store, in the system's time */
#include "tensor/ports.h"

#include <errno.h>
#include <time.h>

#include <spillway/wear.h>

#include "util/parallel.h"
#include "util/util.h"

/*
 * As if each had an equal share of what is written: of drives that are unlike, the one with the
 * least left counts.
 */
static int left_of(struct spw_store *store, double rated, double *bytes)
{
	struct spw_store_stats stats = {0};
	struct spw_drive_stats drive = {0};
	struct spw_wear wear;

	*bytes = 0;
	spw_store_stats(store, &stats, sizeof(stats));
	for (unsigned i = 0; i < stats.drives; i++) {
		int rc = spw_store_drive_stats(store, i, &drive, sizeof(drive));

		if (rc == 0)
			rc = spw_wear(drive.path, rated, 0, 1, &wear, sizeof(wear));
		if (rc)
			return rc;
		if (wear.basis == SPW_WEAR_UNKNOWN)
			return spw_error(-ENODATA,
					 "how long %s lasts is not known (%s): name its rating "
					 "(endurance_bytes), or limit the bytes per day instead",
					 drive.path, wear.reason);
		if (i == 0 || wear.left_bytes * stats.drives < *bytes)
			*bytes = wear.left_bytes * stats.drives;
	}
	return 0;
}

static uint64_t arena_bytes(struct spw_store *store)
{
	/* A store that another process opened has no memory for this one. */
	return spw_store_alloc_max(store);
}

static uint64_t cpu_ns(void)
{
	struct timespec used;

	SPW_MUST(clock_gettime(CLOCK_THREAD_CPUTIME_ID, &used));
	return (uint64_t)used.tv_sec * 1000000000 + (uint64_t)used.tv_nsec;
}

/* The thread is detached: what it does is waited for, not its end. */
static int start(void *(*main)(void *), void *argument)
{
	pthread_attr_t attributes;
	pthread_t thread;
	int rc = pthread_attr_init(&attributes);

	if (rc)
		return -rc;
	rc = pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
	if (rc == 0)
		rc = spw_thread_start(&thread, &attributes, main, argument);
	SPW_MUST(pthread_attr_destroy(&attributes));
	return -rc;
}

static int sleep_until(pthread_cond_t *io_ended, pthread_mutex_t *lock, uint64_t until_ns)
{
	const struct timespec until = {.tv_sec = (time_t)(until_ns / 1000000000),
				       .tv_nsec = (long)(until_ns % 1000000000)};
	int rc = pthread_cond_clockwait(io_ended, lock, CLOCK_MONOTONIC, &until);

	return rc == ETIMEDOUT ? 0 : rc;
}

const struct spw_cache_ports spw_cache__ports_real = {
	.chunk_bytes = spw_store_chunk_bytes,
	.arena_bytes = arena_bytes,
	.stats = spw_store_stats,
	.traffic = spw_store_traffic,
	.left = left_of,
	.publish_steps = spw_store_publish_steps,
	.ranks = spw_store_ranks,
	.put = spw_store_put,
	.get = spw_store_get,
	.holds = spw_store_holds,
	.free = spw_store_free,
	.alloc = spw_store_alloc,
	.release = spw_store_release,
	.give_back = spw_store_give_back,
	.wait = spw_request_wait,
	.cancel = spw_request_cancel,
	.raise = spw_request_raise,
	.wait_request = spw_store_wait_request,
	.clock_ns = spw_clock_ns,
	.cpu_ns = cpu_ns,
	.start = start,
	.sleep = pthread_cond_wait,
	.sleep_until = sleep_until,
};
