/* SPDX-License-Identifier: MIT */
/* tests/unit/test_vfio_format.c - format on a controller in memory: zeroes, and other paths */
/* wrap: spw_vfio__link_open spw_drives__identity_find_namespace */
#include "tests/unit/vfio_rig.h"
#include "tests/wrap.h"

#include <spillway/format.h>
#include <spillway/store.h>

#include "layout/superblock.h"
#include "drives/identity.h"

/* Return: how many bytes of both reserved areas are not zero. */
static unsigned bytes_that_are_left(void)
{
	static const uint64_t begins[] = {0, FAKE_DRIVE_BYTES - SPW_LAYOUT_RESERVED_BYTES};
	unsigned left = 0;

	for (size_t area = 0; area < SPW_ARRAY_LEN(begins); area++)
		for (uint64_t at = 0; at < SPW_LAYOUT_RESERVED_BYTES; at++)
			left += fake.drives[0][begins[area] + at] != 0;
	return left;
}

static void format_once(void)
{
	static const char *const paths[] = {PATH};
	struct spw_store_info info = {.size = sizeof(info)};
	struct spw_format_opts opts;

	close_device();
	spw_format_opts_init(&opts, sizeof(opts));
	opts.force = true;
	opts.erase = true;
	opts.chunk_bytes = 65536;
	opts.log.write = collect;
	fake.writes = fake.zeroes = 0;
	said[0] = '\0';
	memset(fake.drives[0], 0x77, FAKE_DRIVE_BYTES);
	opts.erase = false;
	assert_int_equal(spw_format(paths, 1, &opts, &info), -EEXIST);
	assert_non_null(strstr(
		spw_last_error(),
		"use --erase if that may be lost, or name another device: from byte 0 on 77 77"));
	expect_words("1 MiB of its first MiB and 1 MiB of its last");
	assert_int_equal(fake.writes + fake.zeroes, 0);
	opts.erase = true;
	if (spw_format(paths, 1, &opts, &info))
		fail_msg("%s", spw_last_error());
	expect_said("there is data between its ends, at 64 of 64 places");
	/* The superblocks, of which most is zero too, and nothing else. */
	assert_in_range(bytes_that_are_left(), 2, 2 * SPW_LAYOUT_BLOCK_BYTES);
	assert_int_equal(spw_check(paths, 1, NULL, NULL), 0);
	open_device();
}

TEST_BLOCKS(test_zeroes_by_the_drive_or_by_us)
{
	unsigned writes;

	format_once();
	assert_true(fake.zeroes > 0);
	writes = fake.writes;
	assert_null(strstr(said, "zeroes are written to it"));
	fake.writes_no_zeroes = true;
	format_once();
	assert_int_equal(fake.zeroes, 0);
	assert_true(fake.writes > writes);
	expect_said("zeroes are written to it");
}

/* One that says that it can, and fails: that is an error, as of a write. */
TEST_BLOCKS(test_zeroes_that_fail)
{
	assert_int_equal(spw_engine__device_write_zeroes(device, 512, 512),
			 fake.block_shift == 9 ? 0 : -EINVAL);
	fake.fail_next = 1;
	fake.fail_status = 0x4281;
	assert_int_equal(spw_engine__device_write_zeroes(device, 0, 4096), -ENODATA);
}

static bool kernel_has_it;

WRAP(int, spw_drives__identity_find_namespace,
     (const char *sysfs, const struct spw_identity_namespace *wanted, char *name, size_t len))
{
	assert_string_equal(sysfs, "/sys");
	assert_string_equal(wanted->serial, "FAKE0001");
	assert_string_equal(wanted->model, "a controller in memory");
	assert_int_equal(wanted->id, 1);
	assert_int_equal(wanted->unique[0], fake.unique);
	(void)snprintf(name, len, "nvme7n1");
	return kernel_has_it;
}

/* By another controller, where others may use it: nothing of it is written. */
TEST(test_a_namespace_that_the_kernel_has_too)
{
	static const char *const paths[] = {PATH};
	struct spw_format_opts opts;
	struct spw_probe_info info = {.size = sizeof(info)};
	struct spw_store_opts store_opts;
	struct spw_store *store;

	spw_device_close(device);
	fake.unique = 7;
	open_device();
	spw_format_opts_init(&opts, sizeof(opts));
	opts.force = opts.erase = true;
	assert_int_equal(spw_format(paths, 1, &opts, NULL), 0);
	kernel_has_it = true;
	fake.writes = fake.zeroes = 0;
	expect_refusal(-EBUSY, "the kernel reaches it by another controller, as nvme7n1",
		       spw_format(paths, 1, &opts, NULL));
	assert_int_equal(spw_wipe(paths, 1, NULL), -EBUSY);
	spw_store_opts_init(&store_opts, sizeof(store_opts));
	expect_refusal(-EBUSY, "the kernel reaches it by another controller",
		       spw_store_open(paths, 1, &store_opts, &store));
	assert_int_equal(spw_probe(PATH, &info), 0);
	assert_int_equal(info.error, -EBUSY);
	assert_int_equal(fake.writes + fake.zeroes, 0);
	assert_int_equal(spw_check(paths, 1, NULL, NULL), 0);
	kernel_has_it = false;
	assert_int_equal(spw_format(paths, 1, &opts, NULL), 0);
}

RUN_CASES(NULL, NULL)
