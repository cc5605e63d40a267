/* SPDX-License-Identifier: MIT */
/*
 * tests/unit/sim_rig.h - a store in inline mode over three simulated drives, which fail, hang and
 * fill up on demand: every run is the same, and what takes minutes takes none
 */
#ifndef SPW_TEST_SIM_RIG_H
#define SPW_TEST_SIM_RIG_H

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/case.h"

#include "layout/superblock.h"
#include "store/object.h"
#include "store/open_store.h"
#include "store/transfer.h"
#include "util/util.h"
#include "tests/sim/sim.h"

#define DRIVES      3
#define DRIVE_BYTES (20u << 20)
#define CHUNK_BYTES SPW_CHUNK_BYTES_MIN
#define SECOND      UINT64_C(1000000000)
#define MARGIN_NS   (SECOND / 10) /* more than a few transfers take */

#define OWNED_MAX 8

static const char *const paths[DRIVES] = {"sim0", "sim1", "sim2"};
static struct spw_store *store;
static void *owned[OWNED_MAX]; /* freed when the case has ended */
static unsigned owned_count;

/* ---- Drives ---- */

static inline void format(unsigned drives)
{
	struct spw_format_opts opts;

	spw_format_opts_init(&opts, sizeof(opts));
	opts.chunk_bytes = CHUNK_BYTES;
	opts.force = true;
	assert_ok(spw_format(paths, drives, &opts, NULL));
}

/* Alike, but for a little luck that each has of its own: no two requests end at once. */
static inline int make_drives(void **state)
{
	(void)state;
	sim_drive_count = DRIVES;
	sim_now_ns = SECOND;
	for (unsigned i = 0; i < DRIVES; i++) {
		struct sim_drive *drive = &sim_drives[i];

		sim_drive_make(i, DRIVE_BYTES, 512, 7 + i);
		drive->geometry.memory_align_bytes = 512;
		drive->geometry.transfer_bytes_max = 1 << 20;
		drive->geometry.segments_max = 128;
		drive->geometry.discards = i != 1;
		drive->geometry.polls = false;
		drive->latency_ns = 500;
		drive->bytes_per_second = 1000000000;
		drive->channels = 1;
		drive->cache_is_volatile = drive->cancels = drive->misplaces = false;
	}
	format(DRIVES);
	return 0;
}

static inline void fail_all_writes(int error)
{
	for (unsigned i = 0; i < DRIVES; i++)
		fail_from(i, SPW_WRITE, 1, error);
}

static inline void hang(unsigned drive)
{
	(void)sim_fault(drive, SIM_HANG, 0, UINT32_MAX);
}

/* What hangs on a drive ends at @ns. */
static inline void hang_until(unsigned drive, uint64_t ns)
{
	for (struct sim_io *io = sim_drives[drive].active_first; io; io = io->next)
		io->finish_ns = ns;
}

static inline void hang_no_more(unsigned drive)
{
	sim_disarm(drive);
	hang_until(drive, sim_now_ns);
}

/* As if a network led to it: of the store that is open. @kept_s: how long the kernel waits. */
static inline void make_far(unsigned drive, uint32_t kept_s)
{
	for (uint32_t i = 0; i < store->drive_count; i++) {
		struct spw_device *device = store->drives[i].device;

		if (strcmp(spw_device_path(device), paths[drive]) != 0)
			continue;
		device->transport.far = true;
		device->transport.kept_s = kept_s;
		(void)snprintf(device->transport.words, sizeof(device->transport.words),
			       ", which is reached over tcp at traddr=10.0.0.7");
	}
}

/* ---- Stores ---- */

static inline void close_store(void)
{
	spw_store_close(store);
	store = NULL;
}

static inline int tear_down(void **state)
{
	(void)state;
	close_store();
	while (owned_count > 0)
		free(owned[--owned_count]);
	return 0;
}

#define DRIVES_CASE(name) CASE_WITH(name, make_drives, tear_down)

static inline uint8_t *memory(size_t len)
{
	void *bytes = aligned_alloc(4096, spw_round_up(len, 4096));

	assert_non_null(bytes);
	assert_true(owned_count < OWNED_MAX);
	return owned[owned_count++] = bytes;
}

static inline struct spw_store_opts options(uint32_t depth)
{
	struct spw_store_opts opts;

	spw_store_opts_init(&opts, sizeof(opts));
	opts.inline_mode = true;
	opts.no_hugetlb = true;
	opts.queue_depth = depth;
	opts.requests_max = 64;
	opts.objects_max = 64;
	opts.arena_bytes = 8u << 20;
	return opts;
}

static inline void open_with(const struct spw_store_opts *opts)
{
	const char *shuffled[DRIVES] = {"sim2", "sim0", "sim1"};

	assert_ok(spw_store_open(shuffled, DRIVES, opts, &store));
}

static inline void open_store(uint32_t depth)
{
	struct spw_store_opts opts = options(depth);

	open_with(&opts);
}

static inline void poll_once(void)
{
	assert_true(spw_store_poll(store, false) >= 0);
}

/* Poll when the next transfer has ended: between any two ends is a point of its own. */
static inline void turn(void)
{
	uint64_t next_ns = UINT64_MAX;

	for (unsigned i = 0; i < DRIVES; i++)
		for (struct sim_io *io = sim_drives[i].active_first; io; io = io->next)
			next_ns = io->finish_ns < next_ns ? io->finish_ns : next_ns;
	if (next_ns != UINT64_MAX && next_ns > sim_now_ns)
		sim_now_ns = next_ns;
	poll_once();
}

/* Bytes that differ from object to object and from place to place. */
static inline uint8_t *pattern(size_t len, uint64_t seed)
{
	uint8_t *bytes = memory(len);

	sim_fill(bytes, len, seed);
	return bytes;
}

static inline int put_wait(const void *bytes, size_t len, spw_object *object)
{
	struct spw_request *request;
	int rc = spw_store_put(store, bytes, len, NULL, object, &request);

	return rc ? rc : spw_request_wait(request);
}

static inline int get_wait(spw_object object, uint64_t offset, void *bytes, size_t len)
{
	struct spw_request *request;
	int rc = spw_store_get(store, object, offset, bytes, len, SPW_URGENT_READ, NULL, &request);

	return rc ? rc : spw_request_wait(request);
}

static inline void expect_identical(spw_object object, const uint8_t *bytes, size_t len)
{
	uint8_t *back = aligned_alloc(4096, spw_round_up(len, 4096));

	assert_ok(get_wait(object, 0, back, len));
	assert_int_equal(memcmp(back, bytes, len), 0);
	free(back);
}

static inline struct spw_store_stats stats(void)
{
	struct spw_store_stats now;

	spw_store_stats(store, &now, sizeof(now));
	return now;
}

static inline bool is_retired(unsigned drive)
{
	struct spw_drive_stats now;

	assert_ok(spw_store_drive_stats(store, drive, &now, sizeof(now)));
	return now.retired;
}

static inline void expect_empty(void)
{
	poll_once(); /* takes the last messages */
	assert_int_equal(stats().objects, 0);
	assert_int_equal(atomic_load(&store->object_slots.taken), 0);
	assert_int_equal(stats().requests, 0);
}

#endif
