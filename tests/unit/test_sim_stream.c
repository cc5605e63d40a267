/* SPDX-License-Identifier: MIT */
/*
 * tests/unit/test_sim_stream.c - a stream of records over simulated drives, of which one is slow:
 * few objects of few chunks, read and written at once, as an optimizer does with its state
 */
#include <stdlib.h>
#include <string.h>

#include "tests/case.h"

#include "tests/sim/sim.h"
#include "util/util.h"

#define DRIVES      4
#define SLOW        2
#define CHUNK_BYTES SPW_CHUNK_BYTES_MIN
#define RECORDS     24
#define CHUNKS      6 /* of a record */
#define LEN         ((size_t)CHUNKS * CHUNK_BYTES)
#define PASSES      8
#define RATE        UINT64_C(500000000)

static const char *const paths[DRIVES] = {"sim0", "sim1", "sim2", "sim3"};
static struct spw_store *store;
static uint8_t *memory[2];

static void open_store(unsigned slowness)
{
	struct spw_format_opts format;
	struct spw_store_opts opts;

	sim_drive_count = DRIVES;
	sim_now_ns = 1000000000;
	for (unsigned i = 0; i < DRIVES; i++) {
		struct sim_drive *drive = &sim_drives[i];

		sim_drive_make(i, SIM_DRIVE_BYTES_MAX, 512, 7 + i);
		drive->geometry.memory_align_bytes = 512;
		drive->geometry.transfer_bytes_max = 1 << 20;
		drive->geometry.polls = false;
		drive->latency_ns = 10000;
		drive->bytes_per_second = i == SLOW ? RATE / slowness : RATE;
		drive->channels = 1;
		drive->cache_is_volatile = drive->cancels = drive->misplaces = false;
	}
	spw_format_opts_init(&format, sizeof(format));
	format.chunk_bytes = CHUNK_BYTES;
	format.force = format.erase = true;
	assert_ok(spw_format(paths, DRIVES, &format, NULL));
	spw_store_opts_init(&opts, sizeof(opts));
	opts.inline_mode = opts.no_hugetlb = true;
	opts.requests_max = opts.objects_max = 2 * RECORDS;
	opts.arena_bytes = 4u << 20;
	assert_ok(spw_store_open(paths, DRIVES, &opts, &store));
	for (unsigned i = 0; i < SPW_ARRAY_LEN(memory); i++)
		assert_ok(spw_store_alloc(store, LEN, (void **)&memory[i]));
}

static int close_store(void **state)
{
	(void)state;
	spw_store_close(store);
	store = NULL;
	return 0;
}

/* The next record is read while the one before is written. */
static void pass(spw_object objects[RECORDS])
{
	struct spw_request *put = NULL, *get;
	spw_object old = {0};

	for (unsigned i = 0; i < RECORDS; i++) {
		uint8_t *bytes = memory[i % 2];

		assert_ok(spw_store_get(store, objects[i], 0, bytes, LEN, SPW_URGENT_READ, NULL,
					&get));
		if (put) {
			assert_ok(spw_request_wait(put));
			assert_ok(spw_store_free(store, old));
		}
		assert_ok(spw_request_wait(get));
		old = objects[i];
		assert_ok(spw_store_put(store, bytes, LEN, NULL, &objects[i], &put));
	}
	assert_ok(spw_request_wait(put));
	assert_ok(spw_store_free(store, old));
}

static uint64_t written(unsigned drive)
{
	struct spw_drive_stats stats;

	assert_ok(spw_store_drive_stats(store, drive, &stats, sizeof(stats)));
	return stats.bytes_written;
}

/* Percent of what was written in @passes that went to the slow drive. */
static uint64_t slow_percent(spw_object objects[RECORDS], unsigned passes)
{
	uint64_t before[DRIVES], all = 0;

	for (unsigned i = 0; i < DRIVES; i++)
		before[i] = written(i);
	for (unsigned i = 0; i < passes; i++)
		pass(objects);
	for (unsigned i = 0; i < DRIVES; i++)
		all += written(i) - before[i];
	return 100 * (written(SLOW) - before[SLOW]) / all;
}

static void fill(spw_object objects[RECORDS])
{
	struct spw_request *request;

	for (unsigned i = 0; i < RECORDS; i++) {
		sim_fill(memory[0], LEN, i);
		assert_ok(spw_store_put(store, memory[0], LEN, NULL, &objects[i], &request));
		assert_ok(spw_request_wait(request));
	}
}

/* By speed its share is 8 %, and if it took a chunk whenever it has none, 25. */
CASE_WITH(test_a_slow_drive_has_its_share_of_short_puts, NULL, close_store)
{
	spw_object objects[RECORDS];

	open_store(4);
	fill(objects);
	(void)slow_percent(objects, 2); /* until its speed is known */
	assert_in_range(slow_percent(objects, PASSES), 4, 14);
}

/* And what took as long as all others do, is used as they are. */
CASE_WITH(test_equal_drives_share_equally, NULL, close_store)
{
	spw_object objects[RECORDS];

	open_store(1);
	fill(objects);
	assert_in_range(slow_percent(objects, PASSES), 24, 26);
}

/* It was slow for a while: once it is not, it has its part again. */
CASE_WITH(test_a_drive_that_was_slow_comes_back, NULL, close_store)
{
	spw_object objects[RECORDS];

	open_store(4);
	fill(objects);
	(void)slow_percent(objects, PASSES);
	sim_drives[SLOW].bytes_per_second = RATE;
	/* Its speed is known again after a few windows of 50 ms in which it had something to do. */
	(void)slow_percent(objects, 40 * PASSES);
	assert_in_range(slow_percent(objects, PASSES), 22, 28);
}

/* Chunks that are put one after the other, for @seconds: how many percent go to the slow drive. */
static uint64_t slow_percent_of_single_puts(uint64_t seconds)
{
	uint64_t end_ns = sim_now_ns + seconds * 1000000000, before = written(SLOW), all = 0;
	struct spw_request *put;
	spw_object object;

	for (; sim_now_ns < end_ns; all += CHUNK_BYTES) {
		assert_ok(spw_store_put(store, memory[0], CHUNK_BYTES, NULL, &object, &put));
		assert_ok(spw_request_wait(put));
		assert_ok(spw_store_free(store, object));
	}
	return 100 * (written(SLOW) - before) / all;
}

/* It gets none of them but now and then, to be measured again. */
CASE_WITH(test_a_drive_that_was_slow_comes_back_to_single_puts, NULL, close_store)
{
	open_store(4);
	sim_fill(memory[0], CHUNK_BYTES, 1);
	(void)slow_percent_of_single_puts(1);
	assert_in_range(slow_percent_of_single_puts(20), 0, 1); /* by time, 2 */
	sim_drives[SLOW].bytes_per_second = RATE;
	(void)slow_percent_of_single_puts(4);
	assert_in_range(slow_percent_of_single_puts(2), 24, 26);
}

RUN_CASES(NULL, NULL)
