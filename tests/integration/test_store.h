/* SPDX-License-Identifier: MIT */
/*
 * tests/integration/test_store.h - what the store's tests share: the drives they were given,
 * content that proves itself
 *
 * The store is seen through its public headers only. Every byte of an object follows from the
 * object's seed and the byte's offset, so that a byte of another object, of another place or of an
 * earlier time shows.
 */
#ifndef SPW_TEST_STORE_H
#define SPW_TEST_STORE_H

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/case.h"
#include "tests/random.h"

#include <spillway/spillway.h>

#define KIB 1024u
#define MIB (1024u * 1024u)

/* ---- Drives ---------------------------------------------------------------------------------- */

#define TEST_DRIVES_MAX 8

static const char *drive_paths[TEST_DRIVES_MAX];
static unsigned drive_count;
static enum spw_backend drive_backend;
static uint32_t store_workers;

static void quit(const char *words)
{
	fprintf(stderr, "%s\n", words);
	exit(2);
}

/*
 * A controller behind vfio is reset when the first of a process opens it and when the last closes
 * it, which takes a fifth of a second: kept open, it is not.
 */
static struct spw_device *controllers_held[TEST_DRIVES_MAX];

static void hold_controllers(void)
{
	for (unsigned i = 0; i < drive_count; i++)
		if (strncmp(drive_paths[i], "pci:", 4) == 0 &&
		    spw_device_open(drive_paths[i], NULL, &controllers_held[i]) != 0)
			quit(spw_last_error());
}

/* For tests whose children are to have the drives. */
static inline void release_controllers(void)
{
	for (unsigned i = 0; i < TEST_DRIVES_MAX; i++) {
		spw_device_close(controllers_held[i]);
		controllers_held[i] = NULL;
	}
}

/* From the environment that tests/run sets; docs in tests/run. */
static int drives_from_environment(void **state)
{
	const char *paths = getenv("SPW_TEST_DEVICES"), *backend = getenv("SPW_TEST_BACKEND");
	const char *workers = getenv("SPW_TEST_WORKERS");
	static char text[4096];

	(void)state;
	if (!paths || strlen(paths) >= sizeof(text))
		quit("SPW_TEST_DEVICES is not set: run this by tests/run");
	strcpy(text, paths);
	for (char *path = strtok(text, " "); path && drive_count < TEST_DRIVES_MAX;
	     path = strtok(NULL, " "))
		drive_paths[drive_count++] = path;
	if (drive_count < 4)
		quit("SPW_TEST_DEVICES names fewer than four drives");
	if (backend && strcmp(backend, "libaio") == 0)
		drive_backend = SPW_BACKEND_LIBAIO;
	else if (backend && strcmp(backend, "io_uring") == 0)
		drive_backend = SPW_BACKEND_IO_URING;
	else if (backend && strcmp(backend, "nvme") == 0)
		drive_backend = SPW_BACKEND_NVME;
	else if (backend && strcmp(backend, "vfio") == 0)
		drive_backend = SPW_BACKEND_VFIO;
	else
		quit("SPW_TEST_BACKEND is none of io_uring, libaio, nvme and vfio");
	store_workers = workers ? (uint32_t)strtoul(workers, NULL, 10) : 0;
	hold_controllers();
	return 0;
}

/* ---- Stores ---------------------------------------------------------------------------------- */

static inline struct spw_store_info format_drives(unsigned drives, uint32_t partitions,
						  uint64_t chunk_bytes)
{
	struct spw_store_info info = {.size = sizeof(info)};
	struct spw_format_opts opts;

	spw_format_opts_init(&opts, sizeof(opts));
	opts.partitions = partitions;
	opts.chunk_bytes = chunk_bytes;
	opts.force = true;
	opts.erase = true;
	assert_ok(spw_format(drive_paths, drives, &opts, &info));
	return info;
}

/* As many partitions as have about @partition_bytes each: a small store is filled quickly. */
static inline struct spw_store_info format_small(uint64_t partition_bytes, uint64_t chunk_bytes)
{
	struct spw_store_info info = format_drives(4, 1, chunk_bytes);
	uint64_t partitions = info.capacity_bytes / partition_bytes;

	return format_drives(
		4, partitions > SPW_PARTITIONS_MAX ? SPW_PARTITIONS_MAX : (uint32_t)partitions,
		chunk_bytes);
}

/* What a failed test leaves open is closed after it: later tests need the drives. */
static struct spw_store *stores_open[8];

#define STORE_CASE(name) CASE_WITH(name, NULL, close_stores)

static inline void close_store(struct spw_store *store)
{
	for (size_t i = 0; i < sizeof(stores_open) / sizeof(stores_open[0]); i++)
		if (stores_open[i] == store)
			stores_open[i] = NULL;
	spw_store_close(store);
}

static inline int close_stores(void **state)
{
	(void)state;
	for (size_t i = 0; i < sizeof(stores_open) / sizeof(stores_open[0]); i++)
		if (stores_open[i])
			close_store(stores_open[i]);
	return 0;
}

static inline struct spw_store_opts default_opts(void)
{
	struct spw_store_opts opts;

	spw_store_opts_init(&opts, sizeof(opts));
	opts.backend = drive_backend;
	opts.workers = store_workers;
	opts.arena_bytes = 64 * MIB;
	return opts;
}

static inline int try_open(const char *const paths[], unsigned drives,
			   const struct spw_store_opts *opts, struct spw_store **store)
{
	int result = spw_store_open(paths, drives, opts, store);

	for (size_t i = 0; result == 0 && i < sizeof(stores_open) / sizeof(stores_open[0]); i++)
		if (!stores_open[i]) {
			stores_open[i] = *store;
			break;
		}
	return result;
}

static inline struct spw_store *open_paths(const char *const paths[], unsigned drives,
					   const struct spw_store_opts *opts)
{
	struct spw_store *store;

	assert_ok(try_open(paths, drives, opts, &store));
	assert_non_null(store);
	return store;
}

static inline struct spw_store *open_drives(unsigned drives, const struct spw_store_opts *opts)
{
	return open_paths(drive_paths, drives, opts);
}

static inline struct spw_store *open_default(void)
{
	struct spw_store_opts opts = default_opts();

	return open_drives(4, &opts);
}

static inline struct spw_store_stats stats_of(struct spw_store *store)
{
	struct spw_store_stats stats;

	spw_store_stats(store, &stats, sizeof(stats));
	return stats;
}

/* ---- Content --------------------------------------------------------------------------------- */

static inline uint64_t content_word(uint64_t seed, uint64_t word)
{
	return random_mix(seed * UINT64_C(0x2545f4914f6cdd1d) +
			  word * UINT64_C(0x9e3779b97f4a7c15) + 1);
}

/* Bytes [offset, offset + len) of the content of @seed. */
static void content_fill_at(void *bytes, size_t len, uint64_t seed, uint64_t offset)
{
	uint64_t words[512];
	uint8_t *to = bytes;

	while (len > 0) {
		uint64_t skip = offset % sizeof(uint64_t);
		size_t part = sizeof(words) - skip < len ? sizeof(words) - skip : len;

		for (size_t i = 0; i < (skip + part + 7) / 8; i++)
			words[i] = content_word(seed, offset / 8 + i);
		memcpy(to, (uint8_t *)words + skip, part);
		to += part;
		offset += part;
		len -= part;
	}
}

static inline void content_fill(void *bytes, size_t len, uint64_t seed)
{
	content_fill_at(bytes, len, seed, 0);
}

/* Where the bytes first differ from [offset, offset + len) of the content of @seed, or len. */
static inline size_t content_differs(const void *bytes, size_t len, uint64_t seed, uint64_t offset)
{
	uint8_t expected[4096];
	size_t part;

	for (size_t at = 0; at < len; at += part) {
		part = len - at < sizeof(expected) ? len - at : sizeof(expected);
		content_fill_at(expected, part, seed, offset + at);
		if (memcmp((const uint8_t *)bytes + at, expected, part) == 0)
			continue;
		for (part = 0; ((const uint8_t *)bytes)[at + part] == expected[part]; part++)
			continue;
		return at + part;
	}
	return len;
}

static inline void assert_content(const void *bytes, size_t len, uint64_t seed, uint64_t offset)
{
	size_t differs = content_differs(bytes, len, seed, offset);

	if (differs < len)
		fail_msg("byte %zu of %zu from offset %" PRIu64 " on is wrong", differs, len,
			 offset);
}

/* ---- Whole operations ------------------------------------------------------------------------ */

static inline spw_object put_wait(struct spw_store *store, const void *bytes, size_t len)
{
	struct spw_request *request;
	spw_object object;

	assert_ok(spw_store_put(store, bytes, len, NULL, &object, &request));
	assert_ok(spw_request_wait(request));
	return object;
}

/* Return: what get returns, or, if that is 0, how the request ended. */
static inline int get_wait(struct spw_store *store, spw_object object, uint64_t offset, void *bytes,
			   size_t len)
{
	struct spw_request *request;
	int result =
		spw_store_get(store, object, offset, bytes, len, SPW_URGENT_READ, NULL, &request);

	return result ? result : spw_request_wait(request);
}

/* Get into memory filled with other bytes, so that bytes that were not written show; compare. */
static inline void get_check(struct spw_store *store, spw_object object, uint64_t offset,
			     void *bytes, size_t len, uint64_t seed)
{
	memset(bytes, 0xA5, len);
	assert_ok(get_wait(store, object, offset, bytes, len));
	assert_content(bytes, len, seed, offset);
}

#endif
