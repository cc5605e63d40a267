/* SPDX-License-Identifier: MIT */
/*
 * tests/unit/test_store_null.c - a store whose transfers touch no drive: bytes are believed only by
 * their checksums, and nothing that is durable is at stake
 */
/* wrap: sched_yield spw_queue_short_slice */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <unistd.h>

#include "tests/case.h"
#include "tests/wrap.h"

#include <spillway/spillway.h>

#include "util/util.h"

#define DRIVES      4
#define DRIVE_BYTES (32u << 20)
#define LEN         (5u << 20)

static char folder[256], names[DRIVES][300];
static const char *paths[DRIVES];
static struct spw_store *store;
static uint8_t *bytes;
static _Atomic unsigned yields, short_slices;

WRAP(int, sched_yield, (void))
{
	yields++;
	return 0;
}

WRAP(int, spw_queue_short_slice, (void))
{
	short_slices++;
	return 0;
}

static int open_as(enum spw_backend backend, uint64_t bytes_per_second, bool inline_mode)
{
	struct spw_store_opts opts;

	spw_store_opts_init(&opts, sizeof(opts));
	opts.backend = backend;
	opts.inline_mode = inline_mode;
	opts.null_bytes_per_second = bytes_per_second;
	opts.arena_bytes = 16u << 20;
	opts.no_hugetlb = true;
	return spw_store_open(paths, DRIVES, &opts, &store);
}

static int open_store(enum spw_backend backend, uint64_t bytes_per_second)
{
	return open_as(backend, bytes_per_second, false);
}

static void close_store(void)
{
	spw_store_close(store);
	store = NULL;
}

static int make_drives(void **state)
{
	const char *base = getenv("TMPDIR");

	(void)state;
	(void)snprintf(folder, sizeof(folder), "%s/spillway-null.XXXXXX", base ? base : "/var/tmp");
	assert_non_null(mkdtemp(folder));
	for (unsigned i = 0; i < DRIVES; i++) {
		int fd;

		(void)snprintf(names[i], sizeof(names[i]), "%s/%u", folder, i);
		paths[i] = names[i];
		fd = open(paths[i], O_CREAT | O_RDWR | O_CLOEXEC, 0600);
		assert_true(fd >= 0 && ftruncate(fd, DRIVE_BYTES) == 0 && close(fd) == 0);
	}
	assert_ok(spw_format(paths, DRIVES, NULL, NULL));
	bytes = aligned_alloc(4096, LEN);
	assert_non_null(bytes);
	for (unsigned i = 0; i < LEN; i++)
		bytes[i] = (uint8_t)(i * 2654435761u >> 24);
	return 0;
}

static int remove_drives(void **state)
{
	(void)state;
	close_store();
	free(bytes);
	for (unsigned i = 0; i < DRIVES; i++)
		(void)unlink(paths[i]);
	return rmdir(folder);
}

#define NULL_CASE(name) CASE_WITH(name, make_drives, remove_drives)

static int put_wait(spw_object *object)
{
	struct spw_request *request;
	int rc = spw_store_put(store, bytes, LEN, NULL, object, &request);

	return rc ? rc : spw_request_wait(request);
}

static int get_wait(spw_object object)
{
	struct spw_request *request;
	int rc = spw_store_get(store, object, 0, bytes, LEN, SPW_PREFETCH, NULL, &request);

	return rc ? rc : spw_request_wait(request);
}

/* Memory that has them passes, and one wrong bit of it does not: what is measured is checked. */
NULL_CASE(bytes_that_are_not_there_are_not_believed)
{
	struct spw_store_stats stats;
	spw_object object;

	assert_ok(open_store(SPW_BACKEND_NULL, 0));
	assert_ok(put_wait(&object));
	assert_ok(get_wait(object));
	bytes[LEN / 2] ^= 1;
	assert_int_equal(get_wait(object), -EBADMSG);
	bytes[LEN / 2] ^= 1;
	assert_ok(get_wait(object));
	spw_store_stats(store, &stats, sizeof(stats));
	assert_int_equal(stats.bytes_written, LEN);
	assert_true(stats.checksum_errors >= 1);
	assert_non_null(strstr(spw_store_description(store), "no drive is touched"));
}

/* Four of 16 MiB/s together take 5 MiB, and give them back, in 5/32 of a second, not less. */
NULL_CASE(a_rate_is_that_of_each_drive)
{
	uint64_t begun_ns;
	spw_object object;

	assert_ok(open_store(SPW_BACKEND_NULL, 16u << 20));
	begun_ns = spw_clock_ns();
	assert_ok(put_wait(&object));
	assert_ok(get_wait(object));
	assert_true(spw_clock_ns() - begun_ns >= 150000000);
}

/* On a busy machine, yielding before each checksum leaves a fraction of the drives' rate. */
NULL_CASE(nobody_yields_before_a_checksum)
{
	static const enum spw_backend backends[] = {SPW_BACKEND_NULL, SPW_BACKEND_AUTO};

	for (size_t i = 0; i < SPW_ARRAY_LEN(backends); i++) {
		spw_object object;

		assert_ok(open_as(backends[i], 0, true));
		yields = 0;
		assert_ok(put_wait(&object));
		assert_ok(get_wait(object));
		assert_int_equal(yields, 0);
		close_store();
	}
}

/* So that who is woken beside it need not wait long; the caller's own thread stays as it is. */
NULL_CASE(the_store_s_threads_have_a_short_slice)
{
	for (int inline_mode = 0; inline_mode < 2; inline_mode++) {
		spw_object object;

		short_slices = 0;
		assert_ok(open_as(SPW_BACKEND_NULL, 0, inline_mode));
		assert_ok(put_wait(&object));
		assert_int_equal(short_slices > 0, !inline_mode);
		close_store();
	}
}

NULL_CASE(what_is_durable_is_not_at_stake)
{
	struct spw_commit_info info;
	spw_object object;

	assert_ok(open_store(SPW_BACKEND_NULL, 0));
	assert_ok(put_wait(&object));
	expect_refusal(-EROFS, "null", spw_store_commit(store, &object, 1, 7, NULL, 0, 0));
	close_store();
	assert_int_equal(spw_committed(paths, DRIVES, 0, &info, sizeof(info)), -ENODATA);

	assert_ok(open_store(SPW_BACKEND_AUTO, 0));
	assert_ok(put_wait(&object));
	assert_ok(spw_store_commit(store, &object, 1, 8, NULL, 0, 0));
	close_store();
	expect_refusal(-EEXIST, "commit", open_store(SPW_BACKEND_NULL, 0));

	assert_ok(open_store(SPW_BACKEND_AUTO, 0));
	assert_ok(spw_store_committed_objects(store, &object, NULL, 1));
	assert_ok(get_wait(object));
}

RUN_CASES(NULL, NULL)
