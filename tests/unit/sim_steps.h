/* SPDX-License-Identifier: MIT */
/*
 * tests/unit/sim_steps.h - steps that are committed to a store over simulated drives with volatile
 * caches; the bytes of a step's objects follow from its number
 *
 * The program defines DRIVES_MAX, and the paths of its drives before it includes this.
 */
#ifndef SPW_TEST_SIM_STEPS_H
#define SPW_TEST_SIM_STEPS_H

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/case.h"
#include "tests/random.h"

#include "store/object.h"
#include "store/open_store.h"
#include "tests/sim/sim.h"
#include "util/util.h"

#define CHUNK_BYTES SPW_CHUNK_BYTES_MIN
#define OBJECTS     3

static const uint32_t units[] = {512, 4096, 0}; /* what a drive writes as a whole or not at all */
static unsigned drives;                         /* of the store */
static uint64_t seed;
static struct spw_store *store;
static char heard[4096];

static inline int take_seed(void **state)
{
	(void)state;
	seed = random_seed();
	return 0;
}

static inline void hear(void *context, enum spw_log_level priority, const char *message)
{
	size_t len = strlen(heard);

	(void)context;
	(void)priority;
	(void)snprintf(heard + len, sizeof(heard) - len, "%s\n", message);
}

/* ---- Drives and stores ---- */

#define BLOCK_BYTES 4096u

/* What a format leaves on drives that had nothing: made once of each kind, as it takes long. */
struct formatted {
	unsigned count;
	struct {
		unsigned drive;
		uint64_t offset;
		uint8_t bytes[BLOCK_BYTES];
	} blocks[8 * DRIVES_MAX]; /* all others are zero */
};

static inline void format_drives(uint32_t partitions, struct formatted *formatted)
{
	static const uint8_t zeros[BLOCK_BYTES];
	struct spw_format_opts opts;

	spw_format_opts_init(&opts, sizeof(opts));
	opts.chunk_bytes = CHUNK_BYTES;
	opts.partitions = partitions;
	opts.force = opts.erase = true;
	assert_ok(spw_format(paths, drives, &opts, NULL));
	for (unsigned i = 0; i < drives; i++)
		for (uint64_t at = 0; at < sim_drives[i].geometry.size_bytes; at += BLOCK_BYTES) {
			if (memcmp(sim_drives[i].medium + at, zeros, BLOCK_BYTES) == 0)
				continue;
			assert_true(formatted->count < SPW_ARRAY_LEN(formatted->blocks));
			formatted->blocks[formatted->count].drive = i;
			formatted->blocks[formatted->count].offset = at;
			memcpy(formatted->blocks[formatted->count++].bytes,
			       sim_drives[i].medium + at, BLOCK_BYTES);
		}
}

/* Nothing is on them. */
static inline void make_blank_drives(unsigned count, uint32_t unit)
{
	drives = sim_drive_count = count;
	sim_now_ns = 1000000000;
	sim_events = sim_cut_at = 0;
	for (unsigned i = 0; i < count; i++) {
		sim_drive_make(i, SPW_DRIVE_BYTES_MIN + i * 12288, 512, random_next(&seed));
		sim_drives[i].cache_is_volatile = true;
		sim_drives[i].atomic_bytes = unit;
	}
}

static inline void make_drives(unsigned count, uint32_t unit, uint32_t partitions)
{
	static struct formatted kinds[DRIVES_MAX + 1][3]; /* by drives, partitions */
	struct formatted *formatted = &kinds[count][partitions];

	make_blank_drives(count, unit);
	if (formatted->count == 0)
		format_drives(partitions, formatted);
	for (unsigned i = 0; i < formatted->count; i++)
		sim_drive_write(&sim_drives[formatted->blocks[i].drive],
				formatted->blocks[i].offset, formatted->blocks[i].bytes,
				BLOCK_BYTES);
}

static inline unsigned all(void)
{
	return (1u << drives) - 1;
}

/* @mask: the drives that are named. */
static inline int open_these(unsigned mask, uint64_t commit_number, bool read_only)
{
	const char *named[DRIVES_MAX];
	struct spw_store_opts opts;
	unsigned count = 0;

	for (unsigned i = 0; i < drives; i++)
		if (mask >> i & 1)
			named[count++] = paths[i];
	spw_store_opts_init(&opts, sizeof(opts));
	opts.inline_mode = true;
	opts.no_hugetlb = true;
	opts.arena_bytes = 1u << 20;
	opts.requests_max = 64;
	opts.objects_max = 64;
	opts.commit_number = commit_number;
	opts.read_only = read_only;
	opts.log.write = hear;
	heard[0] = '\0';
	return spw_store_open(named, count, &opts, &store);
}

static inline void make_store(unsigned count, uint32_t unit, uint32_t partitions)
{
	make_drives(count, unit, partitions);
	assert_ok(open_these(all(), SPW_COMMIT_NEWEST, false));
}

static inline void close_store(void)
{
	spw_store_close(store);
	store = NULL;
}

static inline int tear_down(void **state)
{
	(void)state;
	close_store();
	sim_cuts_queues = false;
	sim_cut_at = 0;
	return 0;
}

static inline void power_on(void)
{
	sim_cut_at = 0;
	sim_cuts_queues = false;
	for (unsigned i = 0; i < drives; i++) {
		if (!sim_drives[i].off)
			sim_power_off(i);
		sim_power_on(i);
	}
}

/* ---- Steps ---- */

static inline size_t len_of(uint64_t step, unsigned index)
{
	return 1 + (step * 7919 + index * 104729) % (5 * CHUNK_BYTES);
}

static inline uint8_t *bytes_of(uint64_t step, unsigned index)
{
	uint8_t *bytes = malloc(len_of(step, index));

	assert_non_null(bytes);
	sim_fill(bytes, len_of(step, index), step * 100 + index);
	return bytes;
}

static inline int put_copies(uint64_t step, unsigned index, unsigned copies, spw_object *object)
{
	uint8_t *bytes = bytes_of(step, index);
	struct spw_request *request;
	int rc = spw_store_put_copies(store, bytes, len_of(step, index), copies, NULL, object,
				      &request);

	if (rc == 0)
		rc = spw_request_wait(request);
	free(bytes);
	return rc;
}

/* Return: how reading it ended; bytes that come are the right ones. */
static inline int get(uint64_t step, unsigned index, spw_object object)
{
	size_t len = len_of(step, index);
	uint8_t *bytes = bytes_of(step, index), *back = calloc(1, len);
	struct spw_request *request;
	int rc;

	assert_non_null(back);
	assert_ok(spw_store_get(store, object, 0, back, len, SPW_URGENT_READ, NULL, &request));
	rc = spw_request_wait(request);
	if (rc == 0)
		assert_memory_equal(back, bytes, len);
	free(back);
	free(bytes);
	return rc;
}

/* Puts the step's objects, commits and forgets them: what holds them is the commit. */
static inline int commit_copies(uint64_t step, unsigned copies, uint64_t number, unsigned flags)
{
	spw_object objects[OBJECTS];
	int rc = 0;

	for (unsigned i = 0; rc == 0 && i < OBJECTS; i++)
		rc = put_copies(step, i, copies, &objects[i]);
	if (rc)
		return rc;
	rc = spw_store_commit(store, objects, OBJECTS, number, &step, sizeof(step), flags);
	for (unsigned i = 0; i < OBJECTS; i++)
		assert_ok(spw_store_free(store, objects[i]));
	return rc;
}

/* All of what was restored is there. Return: which step's it is, and its @number; 0: nothing. */
static inline uint64_t restored(uint64_t *number)
{
	struct spw_commit_info info = {.size = sizeof(info)};
	spw_object objects[OBJECTS];
	uint64_t lens[OBJECTS], step;

	*number = 0;
	if (spw_store_committed(store, &info, sizeof(info)) == -ENODATA)
		return 0;
	*number = info.number;
	assert_int_equal(info.objects, OBJECTS);
	assert_int_equal(info.record_bytes, sizeof(step));
	assert_ok(spw_store_committed_record(store, &step, sizeof(step)));
	assert_ok(spw_store_committed_objects(store, objects, lens, OBJECTS));
	for (unsigned i = 0; i < OBJECTS; i++) {
		assert_int_equal(lens[i], len_of(step, i));
		assert_ok(get(step, i, objects[i]));
	}
	return step;
}

/* Fills all that is free, so that nothing of a commit would be left where it is not held. */
static inline void overwrite_all_that_is_free(void)
{
	static uint8_t junk[CHUNK_BYTES];
	struct spw_request *request;
	spw_object objects[64];
	unsigned count = 0;

	memset(junk, 0x5a, sizeof(junk));
	while (count < SPW_ARRAY_LEN(objects) - 16 &&
	       spw_store_put(store, junk, sizeof(junk), NULL, &objects[count], &request) == 0) {
		if (spw_request_wait(request)) {
			(void)spw_store_free(store, objects[count]);
			break;
		}
		count++;
	}
	while (count > 0)
		assert_ok(spw_store_free(store, objects[--count]));
}

#endif
