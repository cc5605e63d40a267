/* SPDX-License-Identifier: MIT */
/* tests/unit/test_trial.c - a device that says less of memory than it needs is found out */
#include "tests/unit/tree.h"

#include "engine/device.h"
#include "engine/alignment_trial.h"

#define BYTES  (1u << 20)
#define OFFSET (256u << 10)

static uint8_t drive[BYTES];
static bool misplaces_writes, misplaces_reads;
static unsigned transfers, failing;

/* Memory that does not begin a page loses its first bytes, as if it began there. */
static int transfer(const struct spw_device *device, enum spw_op op, void *buf, size_t len,
		    uint64_t offset_bytes)
{
	size_t inside = (uintptr_t)buf % 4096;
	bool wrong = inside != 0 && (op == SPW_WRITE ? misplaces_writes : misplaces_reads);

	(void)device;
	transfers++;
	if (failing > 0 && --failing == 0)
		return -EIO;
	assert_true(offset_bytes >= OFFSET);
	if (op == SPW_WRITE)
		memcpy(drive + offset_bytes, (uint8_t *)buf - (wrong ? inside : 0), len);
	else
		memcpy(buf, drive + offset_bytes - (wrong ? inside : 0), len);
	return 0;
}

static int try(uint32_t claimed, uint64_t len)
{
	static const struct spw_device_ops ops = {.transfer_blocking = transfer};
	static char path[] = "drive";
	struct spw_device device = {.path = path,
				    .ops = &ops,
				    .fd = -1,
				    .geometry = {.size_bytes = BYTES,
						 .logical_block_bytes = 512,
						 .memory_align_bytes = claimed}};

	return spw_engine__trial_alignment(&device, OFFSET, len);
}

static int reset(void **state)
{
	(void)state;
	misplaces_writes = misplaces_reads = false;
	transfers = failing = 0;
	return 0;
}

static const uint32_t claims[] = {1, 4, 64, 512, 1024, 2048};
static const uint64_t lengths[] = {512, 4096, SPW_TRIAL_BYTES};

/* Each of 20 times, whatever was there before: what a trial leaves must not pass for the next. */
static void expect_all(int result)
{
	for (size_t i = 0; i < SPW_ARRAY_LEN(claims); i++)
		for (size_t j = 0; j < SPW_ARRAY_LEN(lengths); j++)
			for (unsigned k = 0; k < 20; k++)
				assert_int_equal(try(claims[i], lengths[j]), result);
}

CASE_WITH(test_a_true_claim_holds, reset, NULL)
{
	expect_all(0);
}

CASE_WITH(test_wrong_writes_are_found, reset, NULL)
{
	misplaces_writes = true;
	expect_all(-EBADMSG);
}

CASE_WITH(test_wrong_reads_are_found, reset, NULL)
{
	misplaces_reads = true;
	expect_all(-EBADMSG);
}

/* Right only together: what the one shifts the other shifts back. */
CASE_WITH(test_errors_that_cancel_out_are_found, reset, NULL)
{
	misplaces_writes = misplaces_reads = true;
	expect_all(-EBADMSG);
}

CASE_WITH(test_pages_need_no_trial, reset, NULL)
{
	misplaces_writes = misplaces_reads = true;
	assert_int_equal(try(4096, 4096), 0);
	assert_int_equal(try(8192, 4096), 0);
	assert_int_equal(transfers, 0);
}

/* Also after a trial that found something wrong. */
CASE_WITH(test_what_was_there_is_there_again, reset, NULL)
{
	for (unsigned round = 0; round < 3; round++) {
		misplaces_writes = round == 1;
		misplaces_reads = round == 2;
		memset(drive, 0x77, sizeof(drive));
		assert_int_equal(try(512, 1u << 19), round == 0 ? 0 : -EBADMSG);
		for (size_t i = 0; i < sizeof(drive); i++)
			assert_int_equal(drive[i], 0x77);
	}
}

CASE_WITH(test_nothing_is_written_to_what_cannot_be_read, reset, NULL)
{
	failing = 1;
	assert_int_equal(try(512, 4096), -EIO);
	assert_int_equal(transfers, 1);
}

CASE_WITH(test_a_failed_transfer_is_told, reset, NULL)
{
	for (unsigned nth = 1; nth <= 6; nth++) {
		failing = nth;
		assert_int_equal(try(512, 4096), -EIO);
	}
}

static int set_up_tree(void **state)
{
	(void)state;
	begin_tree();
	return 0;
}

#define TREE_CASE(name) CASE_WITH(name, set_up_tree, remove_tree)

/* Where a trial would itself do harm, or a driver is known, no trial is needed. */
TREE_CASE(test_drivers_that_are_known_to_misplace)
{
	put(path_of("zram0/queue/logical_block_size"), "512\n");
	put(path_of("nullb0/queue/logical_block_size"), "512\n");
	put(path_of("nullb1/queue/logical_block_size"), "4096\n");
	put(path_of("nullb1/nullb1p1/partition"), "1\n");
	put(path_of("nvme0n1/queue/logical_block_size"), "4096\n");
	assert_true(spw_engine__geometry_misplaces(path_of("zram0")));
	assert_false(spw_engine__geometry_misplaces(path_of("nullb0")));
	assert_true(spw_engine__geometry_misplaces(path_of("nullb1")));
	assert_true(spw_engine__geometry_misplaces(path_of("nullb1/nullb1p1")));
	assert_false(spw_engine__geometry_misplaces(path_of("nvme0n1")));
	/* What lies on them, at any depth. */
	put_link(path_of("dm-0/slaves/nvme0n1"), "../../nvme0n1");
	put_link(path_of("dm-1/slaves/dm-0"), "../../dm-0");
	assert_false(spw_engine__geometry_misplaces(path_of("dm-1")));
	put_link(path_of("dm-0/slaves/nullb1p1"), "../../nullb1/nullb1p1");
	assert_true(spw_engine__geometry_misplaces(path_of("dm-1")));
}

RUN_CASES(NULL, NULL)
