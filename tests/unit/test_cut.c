/* SPDX-License-Identifier: MIT */
/*
 * tests/unit/test_cut.c - files that are cut under an open store: a commit that returned can be
 * opened
 *
 * A write beyond the end makes a file longer again, so all seems well until the next open.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tests/case.h"
#include "tests/random.h"

#include <spillway/format.h>
#include <spillway/store.h>

#include "drives/superblocks.h"
#include "engine/device.h"
#include "layout/superblock.h"
#include "util/util.h"

#define DRIVES       2u
#define DRIVE_BYTES  (16u << 20)
#define OBJECT_BYTES (3u << 20)

static char folder[256], names[DRIVES][300];
static const char *paths[DRIVES];
static struct spw_store *store;
static uint8_t *bytes;
static uint64_t seed;

static void set_size(unsigned drive, off_t size)
{
	assert_ok(truncate(names[drive], size));
}

static int open_first(unsigned count)
{
	struct spw_store_opts opts;

	spw_store_opts_init(&opts, sizeof(opts));
	opts.arena_bytes = 8u << 20;
	opts.no_hugetlb = true;
	return spw_store_open(paths, count, &opts, &store);
}

static void close_store(void)
{
	spw_store_close(store);
	store = NULL;
}

static int set_up(void **state)
{
	const char *base = getenv("TMPDIR");

	(void)state;
	(void)snprintf(folder, sizeof(folder), "%s/spillway-cut.XXXXXX", base ? base : "/var/tmp");
	assert_non_null(mkdtemp(folder));
	for (unsigned i = 0; i < DRIVES; i++) {
		int fd;

		(void)snprintf(names[i], sizeof(names[i]), "%s/%u", folder, i);
		paths[i] = names[i];
		fd = open(names[i], O_CREAT | O_RDWR | O_CLOEXEC, 0600);
		assert_true(fd >= 0);
		assert_ok(close(fd));
		set_size(i, DRIVE_BYTES);
	}
	assert_ok(spw_format(paths, DRIVES, NULL, NULL));
	bytes = aligned_alloc(4096, OBJECT_BYTES);
	assert_non_null(bytes);
	memset(bytes, 7, OBJECT_BYTES);
	assert_ok(open_first(DRIVES));
	return 0;
}

static int tear_down(void **state)
{
	(void)state;
	close_store();
	free(bytes);
	for (unsigned i = 0; i < DRIVES; i++)
		(void)unlink(names[i]);
	return rmdir(folder);
}

#define CUT_CASE(name) CASE_WITH(name, set_up, tear_down)

static int put(unsigned copies, spw_object *object)
{
	struct spw_request *request;
	int rc = spw_store_put_copies(store, bytes, OBJECT_BYTES, copies, NULL, object, &request);

	return rc ? rc : spw_request_wait(request);
}

static int commit(const spw_object *object, uint64_t number, unsigned flags)
{
	return spw_store_commit(store, object, 1, number, NULL, 0, flags);
}

static int no_size(const struct spw_device *device, uint64_t *size_bytes)
{
	(void)device;
	*size_bytes = 0;
	return 0;
}

/* A block device that was pulled has no size: it was not cut, and other drives have its puts. */
CASE(test_a_drive_that_is_gone_was_not_cut)
{
	static const struct spw_device_ops ops = {.size = no_size};
	char gone[] = "/dev/gone";
	struct spw_device device = {
		.path = gone, .ops = &ops, .geometry = {.kind = SPW_DEVICE_BLOCK}};
	struct spw_superblock sb = {.device_bytes = DRIVE_BYTES};

	assert_ok(spw_drives__check_not_truncated(&device, &sb, true));
	device.geometry.kind = SPW_DEVICE_FILE;
	expect_refusal(-EIO, "was truncated", spw_drives__check_not_truncated(&device, &sb, true));
}

CUT_CASE(test_a_cut_file_fails_a_commit_in_words)
{
	spw_object object;

	assert_ok(put(1, &object));
	assert_ok(commit(&object, 1, 0));
	set_size(1, DRIVE_BYTES / 2);
	expect_refusal(-EIO, names[1], commit(&object, 2, 0));
	expect_words("was truncated while the store was open");
	/* It is as long again: what lay in what was cut is not. */
	set_size(1, DRIVE_BYTES);
	expect_refusal(-EIO, names[1], commit(&object, 3, 0));
	expect_words("has grown again");
}

static void format_again(void)
{
	struct spw_format_opts opts;

	for (unsigned i = 0; i < DRIVES; i++)
		set_size(i, DRIVE_BYTES);
	spw_format_opts_init(&opts, sizeof(opts));
	opts.force = opts.erase = true;
	assert_ok(spw_format(paths, DRIVES, &opts, NULL));
}

/* By a random length, after which puts make it longer again, but not as long as it was. */
CUT_CASE(test_a_commit_that_returned_opens)
{
	for (uint64_t number = 1; number < 12; number++) {
		bool cuts = number % 4 != 0;
		spw_object object;
		int rc;

		if (cuts)
			set_size(1, (off_t)(4096 * random_below(&seed, DRIVE_BYTES / 4096)));
		rc = put(1, &object);
		if (rc == 0)
			rc = commit(&object, number, 0);
		assert_true(cuts || rc == 0);
		close_store();
		if (rc == 0) {
			assert_ok(open_first(DRIVES));
			close_store();
		}
		format_again();
		assert_ok(open_first(DRIVES));
	}
}

/* The other copies do: the commit is made without that file, and opens without it. */
CUT_CASE(test_a_mirrored_commit_goes_on_without_a_cut_file)
{
	struct spw_commit_info info = {.size = sizeof(info)};
	spw_object object;

	assert_ok(put(2, &object));
	assert_ok(commit(&object, 1, SPW_COMMIT_MIRRORED));
	set_size(1, DRIVE_BYTES / 2);
	assert_ok(commit(&object, 2, SPW_COMMIT_MIRRORED));
	close_store();
	assert_ok(open_first(1));
	assert_ok(spw_store_committed(store, &info, sizeof(info)));
	assert_int_equal(info.number, 2);
}

int main(void)
{
	seed = random_seed();
	return cmocka_run_group_tests(test_cases, NULL, NULL);
}
