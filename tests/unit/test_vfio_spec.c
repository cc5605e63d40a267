/* SPDX-License-Identifier: MIT */
/* tests/unit/test_vfio_spec.c - controllers unlike most, within the specification */
/* wrap: spw_vfio__link_open */
#include "tests/unit/vfio_rig.h"

static void refuse_start(int error, const char *words)
{
	assert_int_equal(spw_device_open(PATH, NULL, &device), error);
	expect_words(words);
	assert_null(device);
	assert_true(fake.closed);
}

static void transfer_some(void)
{
	for (unsigned i = 0; i < 100; i++) {
		memset(memory, (int)i, 65536);
		assert_int_equal(run(SPW_WRITE, memory, 65536, i * 4096), 65536);
		assert_int_equal(run(SPW_READ, memory + 65536, 65536, i * 4096), 65536);
		assert_memory_equal(memory, memory + 65536, 65536);
	}
}

/* ---- Starting -------------------------------------------------------------------------------- */

/* The admin queue, which always has a request for events in it, has rings of its own size. */
TEST(test_the_smallest_rings)
{
	fake.mqes = 1;
	reopen_device();
	open_queue_of(8, 20000);
	transfer_some();
	assert_int_equal(spw_device_pread(device, foreign, 65536, 0), 0);
}

TEST(test_doorbells_far_from_each_other)
{
	close_device();
	fake.dstrd = 5;
	open_device();
	open_queue_of(8, 20000);
	transfer_some();
}

TEST(test_registers_without_doorbells_for_queues)
{
	close_device();
	fake.dstrd = 8;
	fake.link.registers_bytes = 0x1800;
	refuse_start(-EPROTO, "queue 1 has its doorbells beyond");
	fake.link.registers_bytes = 0x1410;
	refuse_start(-EPROTO, "queue 1 has its doorbells beyond");
	fake.link.registers_bytes = 0x1400;
	refuse_start(-EPROTO, "queue 0 has its doorbells beyond");
	fake.dstrd = 0;
	fake.link.registers_bytes = FAKE_REGISTERS;
	open_device();
}

TEST(test_how_long_a_start_may_take)
{
	static const struct {
		uint32_t to, crto, ms;
	} cases[] = {{0, 0, 500},  {3, 0, 1500},       {3, 7, 3500},
		     {7, 3, 3500}, {255, 600, 300000}, {255, 0xffff, 600000}};

	for (size_t i = 0; i < SPW_ARRAY_LEN(cases); i++) {
		close_device();
		fake.to = cases[i].to;
		fake.crto = cases[i].crto;
		open_device();
		assert_int_equal(spw_vfio__of(device)->controller->ready_ms, cases[i].ms);
		assert_int_equal(spw_vfio__of(device)->controller->stop_ms,
				 cases[i].ms < 5000 ? cases[i].ms : 5000);
	}
}

/* It says so, and is neither waited for as long as a start may take, nor asked to shut down. */
TEST(test_a_controller_that_fails_to_start)
{
	uint64_t start_ns = spw_clock_ns();

	close_device();
	fake.fails_to_start = true;
	fake.never_shuts_down = true;
	fake.shutdowns = 0;
	fake.to = 255;
	refuse_start(-EIO, "reports a fatal error (CSTS.CFS)");
	assert_true(spw_clock_ns() - start_ns < PATIENCE_NS);
	assert_int_equal(fake.shutdowns, 0);
	fake.fails_to_start = fake.never_shuts_down = false;
	fake.to = 2;
	open_device();
}

TEST(test_a_controller_that_never_starts_is_not_shut_down)
{
	close_device();
	fake.shutdowns = 0;
	fake.never_ready = fake.never_shuts_down = true;
	refuse_start(-ETIMEDOUT, "does not start within 1000 ms");
	assert_int_equal(fake.shutdowns, 0);
	fake.never_ready = fake.never_shuts_down = false;
	open_device();
}

/* Its last owner was killed as it was starting it: to stop it then may be lost on it. */
TEST(test_a_controller_that_is_just_starting_when_opened)
{
	close_device();
	fake.still_starts = 20;
	open_device();
	assert_int_equal(spw_device_pread(device, foreign, 512, 0), 0);
	close_device();
	/* It fails to: stopped as any other. */
	fake.still_starts = UINT32_MAX;
	fake.to = 1;
	refuse_start(-ETIMEDOUT, "does not stop within 500 ms");
	assert_false(fake.transfers);
	fake.still_starts = 0;
	open_device();
}

/* ---- How much at a time ---------------------------------------------------------------------- */

static void expect_zeroes(uint64_t offset, uint64_t len)
{
	const char *drive = fake.drives[0];

	for (uint64_t i = 0; i < len; i++)
		if (drive[offset + i] != 0)
			fail_msg("byte %llu is not zero", (unsigned long long)(offset + i));
	assert_int_not_equal(drive[offset - 1], 0);
	assert_int_not_equal(drive[offset + len], 0);
}

TEST_BLOCKS(test_limits_of_what_moves_no_data)
{
	uint32_t block = 1u << fake.block_shift;

	close_device();
	fake.has_limits = true;
	fake.wzsl = 2;
	fake.dmrsl = 16;
	memset(fake.drives[0], 0x77, FAKE_DRIVE_BYTES);
	open_device();
	assert_int_equal(spw_engine__device_write_zeroes(device, block, 131072 + block), 0);
	expect_zeroes(block, 131072 + block);
	assert_int_equal(fake.zeroes, 9);
	assert_int_equal(spw_device_discard(device, 1u << 20, 33 * block), 0);
	expect_zeroes(1u << 20, 33 * block);
	assert_int_equal(fake.deallocations, 3);
	open_queue_of(4, 20000);
	assert_int_equal(run(SPW_DISCARD, NULL, 33 * block, 2u << 20), 33 * block);
	expect_zeroes(2u << 20, 33 * block);
	assert_int_equal(fake.deallocations, 6);
	/* What is within the limit goes by the queue. */
	assert_int_equal(run(SPW_DISCARD, NULL, 16 * block, 3u << 20), 16 * block);
	expect_zeroes(3u << 20, 16 * block);
	assert_int_equal(fake.deallocations, 7);
	close_queue();
	close_device();
	/* A limit of all ranges of a command is one of a single range too. */
	fake.dmrsl = 0;
	fake.dmsl = 8;
	open_device();
	assert_int_equal(spw_device_discard(device, 4u << 20, 17 * block), 0);
	expect_zeroes(4u << 20, 17 * block);
	assert_int_equal(fake.deallocations, 10);
}

TEST(test_no_limits)
{
	assert_int_equal(spw_vfio__of(device)->controller->zeroes_bytes_max, COMMAND_MAX);
	assert_int_equal(spw_vfio__of(device)->deallocate_bytes_max,
			 UINT64_C(1) << (21 + fake.block_shift));
	fake.has_limits = true;
	fake.wzsl = 31;
	reopen_device();
	assert_int_equal(spw_vfio__of(device)->controller->zeroes_bytes_max, COMMAND_MAX);
	assert_int_equal(spw_vfio__of(device)->controller->deallocate_blocks_max, UINT32_MAX);
}

/* ---- What it tells --------------------------------------------------------------------------- */

static bool has_said(void)
{
	return said[0];
}

static bool has_answered(void)
{
	return fake.not_ready == 0;
}

static bool is_cut(void)
{
	return fake.cut;
}

static void flush_until(bool (*is_so)(void))
{
	uint64_t start_ns = spw_clock_ns();

	while (!is_so()) {
		assert_true(spw_clock_ns() - start_ns < PATIENCE_NS);
		(void)run(SPW_FLUSH, NULL, 0, 0);
	}
}

static void say_event(uint32_t event)
{
	said[0] = '\0';
	fake_pump();
	fake_event(event);
	flush_until(has_said);
}

/* The status says: a success, and more about it in the log of errors. */
TEST(test_success_about_which_there_is_more)
{
	fake.says_more = true;
	reopen_device();
	open_queue_of(8, 40);
	transfer_some();
	transfer(SPW_READ, foreign, 65536, 8192);
	assert_int_equal(run(SPW_FLUSH, NULL, 0, 0), 0);
	assert_int_equal(spw_device_pread(device, foreign, 65536, 4096), 0);
	assert_memory_equal(foreign, fake.drives[0] + 4096, 65536);
	assert_int_equal(queue_stats().retries + queue_stats().errors, 0);
	say_event(0x020101);
	expect_said("the temperature is over its limit");
}

/* Those of other kinds are heard all the same. */
TEST(test_events_whose_page_cannot_be_read)
{
	open_queue_of(4, 40);
	fake.refuses_pages = true;
	say_event(0xc00007);
	expect_said("something of its own");
	say_event(0x020101);
	expect_said("the temperature is over its limit");
	assert_false(fake.cut);
}

static void open_with_notices(void)
{
	fake.oaes = 1u << 8;
	reopen_device();
	assert_int_equal(fake.events_asked, 0x11f);
	open_queue_of(8, 40);
}

TEST(test_namespaces_that_have_not_changed)
{
	assert_int_equal(fake.events_asked, 0x1f);
	open_with_notices();
	for (unsigned i = 0; i < 3; i++) {
		say_event(0x040002);
		expect_said("namespaces have changed");
	}
	/* What is not an answer yet says nothing about it. */
	fake.not_ready = 5;
	say_event(0x040002);
	flush_until(has_answered);
	transfer_some();
	assert_false(fake.cut);
}

TEST(test_a_namespace_that_is_not_ready_at_once)
{
	fake.not_ready = 5;
	reopen_device();
	assert_int_equal(fake.not_ready, 0);
	close_device();
	fake.not_ready = 6;
	refuse_start(-EREMOTEIO, "Namespace Not Ready");
	open_device();
}

/* Formatted, replaced, cut, detached: writes would end up where they do not belong. */
TEST_BLOCKS(test_namespaces_that_have_changed)
{
	unsigned shift = fake.block_shift;

	for (unsigned i = 0; i < 5; i++) {
		fake.metadata_bytes = i == 4 ? 8 : 0;
		fake.protection_type = i == 4 ? 1 : 0;
		open_with_notices();
		fake.block_shift = i > 0 ? shift : shift == 9 ? 12 : 9;
		fake.unique = i == 1 ? 7 : 0;
		fake.is_cut = i == 2;
		fake.is_detached = i == 3;
		fake.protection_type = i == 4 ? 2 : 0;
		say_event(0x040002);
		flush_until(is_cut);
		expect_said("namespace 1 is not what it was when it was opened");
		assert_int_equal(run(SPW_WRITE, memory, 4096, 0), -ENODEV);
		spw_queue_close(queue);
		queue = NULL;
		close_device();
		fake.block_shift = shift;
		fake.unique = 0;
		fake.metadata_bytes = fake.protection_type = 0;
		fake.is_cut = fake.is_detached = false;
		open_device();
	}
}

RUN_CASES(NULL, NULL)
