/* SPDX-License-Identifier: MIT */
/*
 * tests/unit/test_engine_nvme.c - the nvme backend over a drive in memory; commands, statuses and
 * answers byte by byte; device nodes
 *
 * Two sources are included: the backend, to have its ring served by the test, and what looks into
 * sysfs, to have a sysfs of its own.
 */
#include "engine/nvme/backend_nvme.c"
#define SPW_SYSFS "sys"
#include "engine/nvme/node.c"

#include "tests/unit/nvme_drive.h"

#include <sys/mman.h>

/* ---- Transfers ------------------------------------------------------------------------------- */

static char *foreign, *arena_memory;

static int reset(void **state)
{
	(void)state;
	memset(&nvme_drive, 0, sizeof(nvme_drive));
	nvme_drive.bytes = calloc(1, DRIVE_BYTES);
	nvme_drive.block_shift = drive->geometry.logical_block_bytes == 4096 ? 12 : 9;
	return nvme_drive.bytes ? 0 : -1;
}

static int end(void **state)
{
	(void)state;
	spw_queue_close(drive_queue);
	drive_queue = NULL;
	free(nvme_drive.bytes);
	free(nvme_drive.tags);
	return 0;
}

static int32_t run(struct spw_io io)
{
	unsigned done = 0;

	io.done = count_done;
	io.context = &done;
	assert_int_equal(spw_queue_prepare(drive_queue, &io), 0);
	for (unsigned i = 0; i < 10000 && !done; i++)
		assert_true(spw_queue_reap(drive_queue, 1, -1) >= 0);
	assert_int_equal(done, 1);
	return io.res;
}

static int32_t transfer(enum spw_op op, char *memory, uint32_t len)
{
	return run((struct spw_io){.op = op, .buf = memory, .len_bytes = len});
}

static void fill(char *memory, size_t len, unsigned salt)
{
	for (size_t i = 0; i < len; i++)
		memory[i] = (char)((i * 31 + i / 509 + salt) % 251);
}

#define DRIVE_TEST(name) CASE_WITH(name, reset, end)

/* NVME-1 */
DRIVE_TEST(test_every_size_and_place)
{
	static const uint32_t lens[] = {4096,   65536,  69632,    126976,
					131072, 135168, 1u << 20, (5u << 20) - 4096};
	char *const places[] = {arena_memory, arena_memory + 4096, arena_memory + 61440, foreign,
				foreign + 4096};
	unsigned seen = 0;

	open_nvme_queue();
	for (size_t i = 0; i < SPW_ARRAY_LEN(lens); i++) {
		for (size_t j = 0; j < SPW_ARRAY_LEN(places); j++) {
			uint64_t offset = 4096 * (1 + i * 7 + j);
			struct spw_io io = {.op = SPW_WRITE,
					    .buf = places[j],
					    .len_bytes = lens[i],
					    .offset_bytes = offset};

			fill(places[j], lens[i], (unsigned)(i + j));
			assert_int_equal(run(io), (int32_t)lens[i]);
			assert_memory_equal(nvme_drive.bytes + offset, places[j], lens[i]);
			memset(places[j], 0x77, lens[i]);
			io.op = SPW_READ;
			assert_int_equal(run(io), (int32_t)lens[i]);
			assert_memory_equal(nvme_drive.bytes + offset, places[j], lens[i]);
			seen += 2 * lens[i] / NVME_COMMAND_BYTES;
		}
	}
	assert_true(nvme_drive.commands >= seen);
	assert_true(nvme_drive.fixed > 0 && nvme_drive.fixed < nvme_drive.commands);
}

DRIVE_TEST(test_vectors_are_passed_whole)
{
	struct iovec iov[40];
	struct spw_io io = {
		.op = SPW_WRITE, .iov = iov, .iov_count = SPW_ARRAY_LEN(iov), .offset_bytes = 8192};

	open_nvme_queue();
	for (unsigned i = 0; i < SPW_ARRAY_LEN(iov); i++) {
		iov[i].iov_base =
			(i & 1 ? foreign : arena_memory) + (size_t)(39 - i) * 200000 / 4096 * 4096;
		iov[i].iov_len = i % 10 == 9 ? 180224 : 4096 * (1 + i % 3);
		fill(iov[i].iov_base, iov[i].iov_len, i);
		io.len_bytes += (uint32_t)iov[i].iov_len;
	}
	assert_int_equal(run(io), (int32_t)io.len_bytes);
	for (uint64_t i = 0, at = 8192; i < SPW_ARRAY_LEN(iov); at += iov[i++].iov_len)
		assert_memory_equal(nvme_drive.bytes + at, iov[i].iov_base, iov[i].iov_len);
	io.op = SPW_READ;
	for (unsigned i = 0; i < SPW_ARRAY_LEN(iov); i++)
		memset(iov[i].iov_base, 0, iov[i].iov_len);
	assert_int_equal(run(io), (int32_t)io.len_bytes);
	for (uint64_t i = 0, at = 8192; i < SPW_ARRAY_LEN(iov); at += iov[i++].iov_len)
		assert_memory_equal(nvme_drive.bytes + at, iov[i].iov_base, iov[i].iov_len);
	assert_true(nvme_drive.vectors > 0);
	assert_true(nvme_drive.commands < 2 * 40);
}

DRIVE_TEST(test_refused_registered_memory_is_done_without)
{
	struct spw_queue_stats stats;
	const char *first;

	open_nvme_queue();
	nvme_drive.refuses_fixed = true;
	fill(arena_memory, 2u << 20, 3);
	assert_int_equal(transfer(SPW_WRITE, arena_memory, 2u << 20), 2 << 20);
	assert_memory_equal(nvme_drive.bytes, arena_memory, 2u << 20);
	assert_logged("refuses registered memory");
	first = strstr(drive_log, "refuses registered memory");
	assert_null(strstr(first + 1, "refuses registered memory"));
	nvme_drive.fixed = 0;
	assert_int_equal(transfer(SPW_READ, arena_memory, 2u << 20), 2 << 20);
	assert_int_equal(nvme_drive.fixed, 0);
	spw_queue_stats(drive_queue, &stats, sizeof(stats));
	assert_int_equal(stats.errors, 0);
	assert_true(stats.retries > 0);
}

/* NVME-2 */
DRIVE_TEST(test_flush_and_deallocate)
{
	struct spw_io io = {.op = SPW_DISCARD,
			    .buf = arena_memory,
			    .len_bytes = 1u << 20,
			    .offset_bytes = 3u << 20};

	open_nvme_queue();
	fill(nvme_drive.bytes, DRIVE_BYTES, 9);
	assert_int_equal(transfer(SPW_FLUSH, NULL, 0), 0);
	assert_int_equal(nvme_drive.flushes, 1);
	assert_int_equal(run(io), 1 << 20);
	assert_int_equal(nvme_drive.ranges, 1);
	assert_int_equal(nvme_drive.last.cdw10, 0);
	assert_int_equal(nvme_drive.last.cdw11, 4);
	assert_int_equal(nvme_drive.last.data_len, 16);
	assert_int_equal(nvme_drive.last_range.first_block, (3u << 20) >> nvme_drive.block_shift);
	assert_int_equal(nvme_drive.last_range.blocks, (1u << 20) >> nvme_drive.block_shift);
	assert_int_equal(nvme_drive.bytes[(3u << 20) - 1],
			 (char)((((3u << 20) - 1) * 31 + ((3u << 20) - 1) / 509 + 9) % 251));
	assert_int_equal(nvme_drive.bytes[3u << 20], 0);
}

/* Linux 6.1 dies of a flush on a polled ring. */
DRIVE_TEST(test_a_polled_ring_gets_no_flush)
{
	open_nvme_queue();
	drive_queue->polls = true;
	assert_int_equal(transfer(SPW_FLUSH, NULL, 0), 0);
	assert_int_equal(nvme_drive.commands, 0);
}

DRIVE_TEST(test_a_drive_opened_to_read_is_not_written)
{
	nvme_drive.read_only = true;
	open_nvme_queue();
	assert_int_equal(transfer(SPW_WRITE, foreign, 4096), -EBADF);
	assert_int_equal(transfer(SPW_DISCARD, NULL, 4096), -EBADF);
	assert_int_equal(nvme_drive.commands, 0);
	assert_int_equal(transfer(SPW_READ, foreign, 4096), 4096);
	assert_int_equal(transfer(SPW_FLUSH, NULL, 0), 0);
}

/* ---- Failures -------------------------------------------------------------------------------- */

static void fail_next(int answer, unsigned times)
{
	nvme_drive.answer = answer;
	nvme_drive.answers = times;
	nvme_drive.commands = 0;
}

DRIVE_TEST(test_a_final_status_is_an_error_with_its_name)
{
	struct spw_io io = {
		.op = SPW_READ, .buf = foreign, .len_bytes = 4096, .offset_bytes = 12288};

	open_nvme_queue();
	fail_next(0x4281, 1);
	assert_int_equal(run(io), -ENODATA);
	assert_int_equal(nvme_drive.commands, 1);
	assert_logged("read of 4096 bytes at byte 12288 failed (NVMe status 281h: Unrecovered Read "
		      "Error)");
	expect_words("Unrecovered Read Error");
	/* The next failure is not the drive's: it does not inherit the name. */
	drive_log[0] = '\0';
	fail_next(-EIO, 1);
	assert_int_equal(run(io), -EIO);
	assert_null(strstr(drive_log, "NVMe"));
	fail_next(0x4007, 1);
	assert_int_equal(transfer(SPW_FLUSH, NULL, 0), -EIO);
	assert_logged("flush failed (NVMe status 007h: Command Abort Requested)");
	fail_next(0x4002, 1);
	assert_int_equal(transfer(SPW_DISCARD, NULL, 4096), -EOPNOTSUPP);
	assert_logged("Invalid Field in Command");
}

DRIVE_TEST(test_what_is_not_final_is_tried_again)
{
	struct spw_io io = {.op = SPW_WRITE, .buf = foreign, .len_bytes = 4096};

	open_nvme_queue();
	fail_next(0x0280, SPW_NVME_RETRIES_MAX);
	assert_int_equal(run(io), 4096);
	assert_int_equal(nvme_drive.commands, SPW_NVME_RETRIES_MAX + 1);
	fail_next(0x0280, SPW_NVME_RETRIES_MAX + 1);
	assert_int_equal(run(io), -ENODATA);
	assert_int_equal(nvme_drive.commands, SPW_NVME_RETRIES_MAX + 1);
	/* A controller that is reset cancels what it had. */
	fail_next(-EINTR, 3);
	assert_int_equal(run(io), 4096);
	fail_next(-ENODEV, 1);
	assert_int_equal(run(io), -ENODEV);
	/* A status of success with flags set is one. */
	fail_next(0x2000, 1);
	assert_int_equal(run(io), 4096);
}

/*
 * The kernel refuses commands until the controller is back; what is sent to the block node it keeps
 * until then.
 */
DRIVE_TEST(test_while_a_controller_is_reset_the_block_node_serves)
{
	static const int answers[] = {-EINTR, -EFAULT, 0x370, 0x371};
	struct iovec vector[2];
	char *there;

	assert_int_equal(spw_arena_alloc(drive_arena, 1u << 20, (void **)&there), 0);
	open_nvme_queue();
	for (size_t i = 0; i < SPW_ARRAY_LEN(answers); i++) {
		struct spw_io io = {.op = SPW_WRITE,
				    .buf = foreign,
				    .len_bytes = 1u << 20,
				    .offset_bytes = 65536};

		fail_next(answers[i], 1000000);
		fill(foreign, io.len_bytes, (unsigned)i);
		assert_int_equal(run(io), 1 << 20);
		assert_int_equal(spw_device_pread(drive, there, 1u << 20, 65536), 0);
		assert_memory_equal(there, foreign, 1u << 20);
		assert_int_equal(transfer(SPW_FLUSH, NULL, 0), 0);
		memset(foreign, 0, 1u << 20);
		vector[0] = (struct iovec){.iov_base = foreign, .iov_len = 4096};
		vector[1] = (struct iovec){.iov_base = foreign + 8192, .iov_len = 8192};
		io = (struct spw_io){.op = SPW_READ,
				     .iov = vector,
				     .iov_count = 2,
				     .len_bytes = 12288,
				     .offset_bytes = 65536};
		assert_int_equal(run(io), 12288);
		assert_memory_equal(foreign, there, 4096);
		assert_memory_equal(foreign + 8192, there + 4096, 8192);
		assert_int_equal(run((struct spw_io){.op = SPW_DISCARD,
						     .len_bytes = 4096,
						     .offset_bytes = 65536}),
				 4096);
		assert_int_equal(spw_device_pread(drive, there, 4096, 65536), 0);
		assert_true(there[0] == 0 && memcmp(there, there + 1, 4095) == 0);
	}
	assert_logged("the block node is used instead");
	/* Back, and by the short way again. */
	nvme_drive.answers = 0;
	fill(foreign, 4096, 9);
	assert_int_equal(transfer(SPW_WRITE, foreign, 4096), 4096);
	assert_memory_equal(nvme_drive.bytes, foreign, 4096);
	/* A status that says that it is final is. */
	fail_next(0x4370, 1);
	assert_int_equal(transfer(SPW_READ, foreign, 4096), -ENOLINK);
	spw_arena_free(drive_arena, there);
}

DRIVE_TEST(test_a_failed_part_fails_its_io_alone)
{
	struct spw_io ios[2] = {
		{.op = SPW_WRITE, .buf = foreign, .len_bytes = 1u << 20},
		{.op = SPW_WRITE, .buf = foreign, .len_bytes = 4096, .offset_bytes = 4u << 20}};
	unsigned done[2] = {0};

	open_nvme_queue();
	fail_next(0x4280, 1);
	for (unsigned i = 0; i < 2; i++) {
		ios[i].done = count_done;
		ios[i].context = &done[i];
		assert_int_equal(spw_queue_prepare(drive_queue, &ios[i]), 0);
	}
	for (unsigned i = 0; i < 100 && !(done[0] && done[1]); i++)
		assert_true(spw_queue_reap(drive_queue, 2, -1) >= 0);
	assert_int_equal(ios[0].res, -ENODATA);
	assert_int_equal(ios[1].res, 4096);
	assert_memory_equal(nvme_drive.bytes + (4u << 20), foreign, 4096);
}

CASE(test_statuses)
{
	for (uint32_t code = 1; code < 0x800; code++) {
		assert_true(spw_nvme__errno(code) < 0);
		assert_true(spw_nvme__errno(code) > -200);
		assert_true(strlen(spw_nvme_status_text(code)) > 3);
		/* The upper bits are not part of the code. */
		assert_int_equal(spw_nvme__errno(code | 0x7800), spw_nvme__errno(code));
		assert_ptr_equal(spw_nvme_status_text(code | 0x7800), spw_nvme_status_text(code));
	}
	assert_int_equal(spw_nvme__errno(0), 0);
	assert_string_equal(spw_nvme_status_text(0x080), "LBA Out of Range");
	assert_int_equal(spw_nvme__errno(0x081), -ENOSPC);
	assert_int_equal(spw_nvme__errno(0x282), -EILSEQ);
	assert_int_equal(spw_nvme__errno(0x020), -EROFS);
	assert_string_equal(spw_nvme_status_text(0x2c5), "vendor specific");
	assert_string_equal(spw_nvme_status_text(0x712), "vendor specific");
	assert_string_equal(spw_nvme_status_text(0x295), "unknown status");
	assert_int_equal(spw_nvme__errno(0x295), -EIO);
}

/* ---- Commands -------------------------------------------------------------------------------- */

CASE(test_commands_byte_by_byte)
{
	struct spw_nvme_namespace ns = {.id = 0x01020304, .block_shift = 12};
	struct nvme_uring_cmd cmd;
	struct spw_nvme_range range;

	spw_nvme__encode_transfer(&cmd, &ns, true, UINT64_C(0x123456789a) << 12, 65536u << 12, 5);
	assert_int_equal(cmd.opcode, 2);
	assert_int_equal(cmd.nsid, 0x01020304);
	assert_int_equal(cmd.cdw10, 0x3456789a);
	assert_int_equal(cmd.cdw11, 0x12);
	assert_int_equal(cmd.cdw12, 0xffff);
	assert_int_equal(cmd.cdw13, 0); /* reads are not placed */
	assert_int_equal(cmd.metadata | cmd.metadata_len | cmd.cdw2 | cmd.cdw3 | cmd.cdw14 |
				 cmd.cdw15 | cmd.timeout_ms,
			 0);
	spw_nvme__encode_transfer(&cmd, &ns, false, 0, 4096, 0xbeef);
	assert_int_equal(cmd.opcode, 1);
	assert_int_equal(cmd.cdw12, 2u << 20);
	assert_int_equal(cmd.cdw13, 0xbeef0000);
	spw_nvme__encode_transfer(&cmd, &ns, false, 0, 4096, 0);
	assert_int_equal(cmd.cdw12 | cmd.cdw13, 0);
	/* PRACT, PRCHK of guard and reference tag; ILBRT */
	ns.protects = true;
	spw_nvme__encode_transfer(&cmd, &ns, true, UINT64_C(0x123456789a) << 12, 8192, 0);
	assert_int_equal(cmd.cdw12, 0x34000001);
	assert_int_equal(cmd.cdw14, 0x3456789a);
	spw_nvme__encode_transfer(&cmd, &ns, false, 4096, 4096, 0xbeef);
	assert_int_equal(cmd.cdw12, 0x34200000);
	assert_int_equal(cmd.cdw13, 0xbeef0000);
	assert_int_equal(cmd.cdw14, 1);
	assert_int_equal(cmd.metadata | cmd.metadata_len | cmd.cdw15, 0);
	spw_nvme__encode_deallocate(&cmd, &ns, UINT64_C(0x123456789a) << 12,
				    UINT64_C(0xffffffff) << 12, &range);
	assert_int_equal(cmd.opcode, 9);
	assert_int_equal(range.attributes, 0);
	assert_int_equal(range.blocks, 0xffffffff);
	assert_int_equal(range.first_block, 0x123456789a);
	assert_int_equal(offsetof(struct io_uring_sqe, cmd) +
				 offsetof(struct nvme_uring_cmd, cdw12),
			 48 + 48);
}

DRIVE_TEST(test_writes_carry_their_placement)
{
	struct spw_io io = {.op = SPW_WRITE, .buf = foreign, .len_bytes = 4096};

	/* By an io's placement; one that the drive does not have is another's. */
	static const uint16_t expected[SPW_PLACEMENT_MAX + 1] = {0x0102, 0, 0x0102, 0};

	nvme_drive.placement = 2;
	nvme_drive.id_count = 2;
	nvme_drive.ids[1] = 0x0102;
	open_nvme_queue();
	for (io.placement = 0; io.placement <= SPW_PLACEMENT_MAX; io.placement++) {
		assert_int_equal(run(io), 4096);
		assert_int_equal(nvme_drive.last.cdw12 >> 20, 2);
		assert_int_equal(nvme_drive.last.cdw13, (uint32_t)expected[io.placement] << 16);
	}
	assert_int_equal(drive_queue->stats.drives_placing, 1);
	io.placement = 0;
	io.op = SPW_READ;
	assert_int_equal(run(io), 4096);
	assert_int_equal(nvme_drive.last.cdw12 >> 16 | nvme_drive.last.cdw13, 0);
}

DRIVE_TEST(test_writes_name_no_placement_unasked)
{
	struct spw_io io = {.op = SPW_WRITE, .buf = foreign, .len_bytes = 4096, .placement = 2};

	nvme_drive.id_count = 2;
	open_nvme_queue();
	assert_int_equal(run(io), 4096);
	assert_int_equal(nvme_drive.last.cdw12 >> 16 | nvme_drive.last.cdw13, 0);
	assert_int_equal(drive_queue->stats.drives_placing, 0);
	spw_queue_close(drive_queue);
	/* Nor where the drive has none, which the log says. */
	nvme_drive.placement = 1;
	nvme_drive.id_count = 0;
	open_nvme_queue();
	assert_int_equal(run(io), 4096);
	assert_int_equal(nvme_drive.last.cdw12 >> 16 | nvme_drive.last.cdw13, 0);
	assert_int_equal(drive_queue->stats.drives_placing, 0);
	assert_non_null(strstr(drive_log, "name no placement"));
}

/* A drive that takes back what it said costs no write: they go on without. */
DRIVE_TEST(test_a_placement_that_is_refused)
{
	struct spw_io io = {.op = SPW_WRITE, .buf = foreign, .len_bytes = 4096};

	nvme_drive.placement = 1;
	nvme_drive.id_count = 2;
	open_nvme_queue();
	/* Twice: one may have been in flight when the first came back. */
	nvme_drive.answer = -EINVAL;
	nvme_drive.answers = 2;
	assert_int_equal(run(io), 4096);
	assert_int_equal(nvme_drive.last.cdw12 >> 16 | nvme_drive.last.cdw13, 0);
	assert_int_equal(drive_queue->stats.drives_placing, 0);
	assert_non_null(strstr(drive_log, "refuses writes that name a placement"));
	nvme_drive.answers = 1;
	io.op = SPW_READ;
	assert_int_equal(run(io), -EINVAL);
}

/* ---- Protection information ------------------------------------------------------------------ */

static void open_protected_queue(bool long_way)
{
	uint64_t blocks = DRIVE_BYTES >> nvme_drive.block_shift;

	nvme_drive.long_way = long_way;
	if (!nvme_drive.tags)
		nvme_drive.tags = malloc(blocks * sizeof(*nvme_drive.tags));
	assert_non_null(nvme_drive.tags);
	tags_forget(nvme_drive.tags, blocks);
	spw_queue_close(drive_queue);
	drive_queue = NULL;
	open_nvme_queue();
}

DRIVE_TEST(test_protected_blocks_are_written_and_read)
{
	static const uint32_t lens[] = {4096, 65536, 135168, 1u << 20};
	char *const places[] = {arena_memory, foreign, foreign + 4096};

	for (unsigned way = 0; way < 2; way++) {
		open_protected_queue(way);
		/* Never written; then written; then deallocated. */
		assert_int_equal(transfer(SPW_READ, foreign, 1u << 20), 1 << 20);
		for (size_t i = 0; i < SPW_ARRAY_LEN(lens); i++)
			for (size_t j = 0; j < SPW_ARRAY_LEN(places); j++) {
				struct spw_io io = {.op = SPW_WRITE,
						    .buf = places[j],
						    .len_bytes = lens[i],
						    .offset_bytes = 4096 * (i * 7 + j)};

				fill(places[j], lens[i], (unsigned)(i + j));
				assert_int_equal(run(io), lens[i]);
				memset(places[j], 0, lens[i]);
				io.op = SPW_READ;
				assert_int_equal(run(io), lens[i]);
				assert_memory_equal(places[j], nvme_drive.bytes + io.offset_bytes,
						    lens[i]);
			}
		assert_int_equal(nvme_drive.tags[1].application, 0);
		assert_int_equal(transfer(SPW_DISCARD, NULL, 1u << 20), 1 << 20);
		assert_int_equal(transfer(SPW_READ, foreign, 1u << 20), 1 << 20);
		assert_int_equal(nvme_drive.last.metadata | nvme_drive.last.metadata_len, 0);
	}
}

/* What is stored is not handed out, and the words say what was found where. */
DRIVE_TEST(test_damage_under_protected_blocks)
{
	struct spw_io io = {
		.op = SPW_READ, .buf = foreign, .len_bytes = 8192, .offset_bytes = 12288};
	unsigned block = 12288u >> nvme_drive.block_shift;

	for (unsigned way = 0; way < 2; way++) {
		open_protected_queue(way);
		assert_int_equal(transfer(SPW_WRITE, foreign, 65536), 65536);
		nvme_drive.bytes[12288 + 5000] ^= 1;
		assert_int_equal(run(io), -EILSEQ);
		assert_logged("read of 8192 bytes at byte 12288 failed (NVMe status 282h: "
			      "End-to-end Guard Check Error): what is stored does not match its "
			      "protection information: it is damaged");
		expect_words(drive_path);
		nvme_drive.bytes[12288 + 5000] ^= 1;
		assert_int_equal(run(io), 8192);
		/* A block of another place. */
		nvme_drive.tags[block].reference++;
		assert_int_equal(run(io), -EILSEQ);
		assert_logged("(NVMe status 284h: End-to-end Reference Tag Check Error)");
		/* What is written there next is whole again. */
		io.op = SPW_WRITE;
		assert_int_equal(run(io), 8192);
		io.op = SPW_READ;
		assert_int_equal(run(io), 8192);
	}
}

/* ---- Answers: a drive behind a table --------------------------------------------------------- */

static struct {
	int id;          /* of the namespace; 0: a controller's node */
	int errors[256]; /* by opcode: a status, or -1 with EACCES */
	uint8_t controller[4096], namespace[4096], health[512],
		placements[SPW_NVME_PLACEMENTS_BYTES];
	unsigned questions;
} table;

static int ask_table(int fd, unsigned long request, void *argument)
{
	struct nvme_passthru_cmd *cmd = argument;
	const uint8_t *answer = NULL;

	assert_int_equal(fd, 42);
	if (request == NVME_IOCTL_ID) {
		errno = ENOTTY;
		return table.id ? table.id : -1;
	}
	table.questions++;
	if (table.errors[cmd->opcode]) {
		errno = EACCES;
		return table.errors[cmd->opcode];
	}
	if (request == NVME_IOCTL_ADMIN_CMD && cmd->opcode == 6)
		answer = cmd->cdw10 == 1 ? table.controller : table.namespace;
	else if (request == NVME_IOCTL_ADMIN_CMD && cmd->opcode == 2 &&
		 cmd->cdw10 == (2 | 127u << 16))
		answer = table.health;
	/* A drive may refuse memory that its answer does not reach: this is one page. */
	else if (request == NVME_IOCTL_IO_CMD && cmd->opcode == 0x12 && cmd->cdw10 == 1 &&
		 cmd->cdw11 == sizeof(table.placements) / 4 - 1 &&
		 pages_of((void *)(uintptr_t)cmd->addr, cmd->data_len) == 1)
		answer = table.placements;
	if (!answer)
		return 0x4002;
	memcpy((void *)(uintptr_t)cmd->addr, answer, cmd->data_len);
	return 0;
}

static void put(uint8_t *at, uint64_t value, unsigned len)
{
	for (unsigned i = 0; i < len; i++)
		at[i] = (uint8_t)(value >> 8 * i);
}

static int make_table(void **state)
{
	(void)state;
	memset(&table, 0, sizeof(table));
	table.id = 3;
	memset(table.controller + 4, ' ', 60);
	memcpy(table.controller + 4, "S/N-1", 5);
	memcpy(table.controller + 24, "Model \x1b[31m", 11);
	memcpy(table.controller + 64, "fw  1   ", 8);
	table.controller[77] = 7;
	put(table.controller + 80, 0x020000, 4);
	put(table.controller + 96, 1u << 19, 4);
	put(table.controller + 520, 4, 2);
	table.controller[525] = 1;
	put(table.namespace, 1000, 8);
	table.namespace[26] = 0x21; /* format 17: bits 3:0 and 6:5 */
	put(table.namespace + 128 + 4 * 17, 12u << 16 | 8, 4);
	put(table.health + 1, 273 + 41, 2);
	table.health[5] = 103;
	put(table.health + 32, 7, 8);
	put(table.health + 48, UINT64_MAX, 8);
	put(table.health + 160, 1, 8);
	put(table.health + 168, 1, 8);
	put(table.placements + 14, 3, 2);
	put(table.placements + 16, 10, 2);
	put(table.placements + 16 + 32, 0x1011, 2);
	put(table.placements + 16 + 64, 12, 2);
	return 0;
}

#define TABLE_TEST(name) CASE_WITH(name, make_table, NULL)

TABLE_TEST(test_what_a_drive_says)
{
	struct spw_nvme_info info = {.size = sizeof(info)};

	assert_int_equal(spw_nvme__ask_all(ask_table, 42, "/dev/x", &info), 0);
	assert_string_equal(info.serial, "S/N-1");
	assert_string_equal(info.model, "Model ?[31m");
	assert_string_equal(info.firmware, "fw  1");
	assert_int_equal(info.transfer_bytes_max, 512u << 10);
	assert_int_equal(info.version, 0x020000);
	assert_true(info.write_cache && info.deallocates && info.places_data && info.has_health);
	assert_int_equal(info.namespace_id, 3);
	assert_int_equal(info.block_bytes, 4096);
	assert_int_equal(info.metadata_bytes, 8);
	assert_int_equal(info.namespace_bytes, 4096000);
	assert_int_equal(info.placement_handles, 3);
	assert_int_equal(info.temperature_celsius, 41);
	assert_int_equal(info.percentage_used, 103);
	assert_int_equal(info.bytes_read, 7 * 512000);
	assert_true(info.bytes_written == UINT64_MAX); /* too many for 64 bits */
	assert_true(info.media_errors == UINT64_MAX);  /* a counter of 128 bits */
}

/* Only where all of a block's metadata is what the controller makes. */
TABLE_TEST(test_which_namespaces_protect)
{
	struct spw_nvme_namespace ns = {0};

	for (unsigned type = 0; type < 8; type++)
		for (unsigned metadata = 0; metadata <= 64; metadata += 4) {
			struct spw_nvme_info info = {.size = sizeof(info)};
			unsigned expected = metadata >= 8 ? type : 0;

			/* The other bits of DPS: where it lies in the metadata; and what is
			 * reserved. */
			table.namespace[29] = (uint8_t)(type | (type % 2 ? 0xf8 : 0));
			table.namespace[128 + 4 * 17] = (uint8_t)metadata;
			assert_int_equal(spw_nvme__ask_namespace(ask_table, 42, "/dev/x", &ns), 0);
			assert_int_equal(ns.metadata_bytes, metadata);
			assert_int_equal(ns.protection_type, expected);
			assert_int_equal(ns.protects, type == 1 && metadata == 8);
			assert_int_equal(spw_nvme__ask_all(ask_table, 42, "/dev/x", &info), 0);
			assert_int_equal(info.protection_type, expected);
		}
}

TABLE_TEST(test_a_controller_without_a_namespace)
{
	struct spw_nvme_info info = {.size = sizeof(info)};

	table.id = 0;
	table.controller[77] = 0;
	assert_int_equal(spw_nvme__ask_all(ask_table, 42, "/dev/x", &info), 0);
	assert_int_equal(info.namespace_id | info.block_bytes | info.placement_handles, 0);
	assert_int_equal(info.transfer_bytes_max, 0);
	assert_int_equal(table.questions, 2);
}

TABLE_TEST(test_what_a_drive_places)
{
	uint16_t ids[SPW_NVME_PLACEMENTS_MAX];
	unsigned questions;

	assert_int_equal(spw_nvme__find_placements(ask_table, 42, "/dev/x", 3, ids), 3);
	assert_int_equal(ids[0], 10);
	assert_int_equal(ids[2], 12);
	/* One that places nothing is not asked for handles. */
	table.controller[98] = 0;
	questions = table.questions;
	assert_int_equal(spw_nvme__find_placements(ask_table, 42, "/dev/x", 3, ids), 0);
	assert_int_equal(table.questions, questions + 1);
}

TABLE_TEST(test_a_drive_that_refuses)
{
	struct spw_nvme_namespace ns = {0};
	struct spw_nvme_info info = {.size = sizeof(info)};
	uint16_t ids[SPW_NVME_PLACEMENTS_MAX];

	/* A refusal to say which handles there are is said, and hides nothing else. */
	table.errors[0x12] = 0x400f;
	assert_int_equal(spw_nvme__find_placements(ask_table, 42, "/dev/x", 3, ids), -EIO);
	assert_string_equal(spw_last_error(), "/dev/x: the drive refuses its placement handles: "
					      "Data SGL Length Invalid (00fh)");
	assert_int_equal(spw_nvme__ask_all(ask_table, 42, "/dev/x", &info), 0);
	assert_int_equal(info.placement_handles, 0);
	assert_true(info.has_health);
	table.errors[2] = 0x4109;
	expect_refusal(-EINVAL, "/dev/x: the drive refuses its health: Invalid Log Page (109h)",
		       spw_nvme__ask_all(ask_table, 42, "/dev/x", &info));
	table.errors[6] = -1;
	expect_refusal(-EACCES, "run as root", spw_nvme__ask_all(ask_table, 42, "/dev/x", &info));
	assert_int_equal(spw_nvme__ask_namespace(ask_table, 42, "/dev/x", &ns), -EACCES);
	/* FDP that is off is not a fault. */
	table.errors[0x12] = 0x4029;
	assert_int_equal(spw_nvme__ask_placements(ask_table, 42, "/dev/x", 3, ids), 0);
	assert_int_equal(spw_nvme__find_placements(ask_table, 42, "/dev/x", 3, ids), -EACCES);
	table.id = 0;
	assert_int_equal(spw_nvme__ask_namespace(ask_table, 42, "/dev/x", &ns), -ENOTTY);
}

TABLE_TEST(test_a_drive_that_talks_nonsense)
{
	struct spw_nvme_namespace ns = {0};
	uint16_t ids[SPW_NVME_PLACEMENTS_MAX];

	put(table.placements + 14, 0xffff, 2);
	assert_int_equal(spw_nvme__ask_placements(ask_table, 42, "/dev/x", 3, ids),
			 SPW_NVME_PLACEMENTS_MAX);
	assert_int_equal(ids[1], 0x1011);
	assert_int_equal(spw_nvme__decode_placements(table.placements, 16 + 63, ids), 1);
	assert_int_equal(spw_nvme__decode_placements(table.placements, 15, ids), 0);
	for (unsigned shift = 0; shift < 256; shift++) {
		table.namespace[128 + 4 * 17 + 2] = (uint8_t)shift;
		assert_int_equal(spw_nvme__ask_namespace(ask_table, 42, "/dev/x", &ns),
				 shift >= 9 && shift <= 20 ? 0 : -EPROTO);
	}
	table.namespace[128 + 4 * 17 + 2] = 12;
	put(table.namespace, UINT64_MAX, 8);
	assert_int_equal(spw_nvme__ask_namespace(ask_table, 42, "/dev/x", &ns), -EPROTO);
	put(table.namespace, 0, 8);
	expect_refusal(-EPROTO, "impossible size",
		       spw_nvme__ask_namespace(ask_table, 42, "/dev/x", &ns));
}

/* ---- Opening --------------------------------------------------------------------------------- */

CASE(test_a_file_is_not_nvme)
{
	struct spw_nvme_info info = {.size = sizeof(info)};
	struct spw_queue_opts opts;

	spw_queue_opts_init(&opts, sizeof(opts));
	opts.backend = SPW_BACKEND_NVME;
	assert_int_equal(spw_queue_open(&drive, 1, &opts, &drive_queue), -EOPNOTSUPP);
	assert_null(drive_queue);
	expect_words("is not a whole NVMe namespace");
	assert_int_equal(spw_nvme_info(drive_path, &info), -EOPNOTSUPP);
	assert_int_equal(spw_nvme_info("/dev/null", &info), -EOPNOTSUPP);
	assert_int_equal(spw_nvme_info("/nothing", &info), -ENOENT);
}

DRIVE_TEST(test_a_namespace_is_what_its_block_node_says)
{
	struct spw_nvme_namespace ns = {.id = 1, .block_shift = nvme_drive.block_shift};

	ns.blocks = DRIVE_BYTES >> ns.block_shift;
	assert_int_equal(check_namespace(drive, &ns), 0);
	ns.metadata_bytes = 8;
	assert_int_equal(check_namespace(drive, &ns), -EOPNOTSUPP);
	ns.protects = true;
	assert_int_equal(check_namespace(drive, &ns), 0);
	ns.metadata_bytes = 0;
	ns.blocks--;
	assert_int_equal(check_namespace(drive, &ns), -ESTALE);
	ns.blocks = (DRIVE_BYTES >> ns.block_shift) * 2;
	ns.block_shift--;
	assert_int_equal(check_namespace(drive, &ns), -ESTALE);
}

CASE(test_memory_is_registered_in_large_pieces_only)
{
	struct spw_nvme_abilities all = {.fixed = true};
	struct spw_queue q = {
		.page_bytes = 4096, .piece_shift = SPW_PIECE_SHIFT, .arena_len_bytes = 1};

	assert_true(choose_pieces(&q, &all) == INT16_MAX);
	all.fixed = false;
	assert_true(choose_pieces(&q, &all) == 0);
	assert_int_equal(q.piece_shift, SPW_PIECE_SHIFT);
}

CASE(test_what_is_tried_is_never_much_memory)
{
	const struct spw_nvme_probed devices[] = {
		{.segments_max = 127}, {.segments_max = 256}, {.segments_max = 65535}};

	assert_int_equal(spw_nvme__probe_pages(devices, 1), 129);
	assert_int_equal(spw_nvme__probe_pages(devices, 2), 258);
	/* Not more than a command to the third may have, so it would prove nothing. */
	assert_int_equal(spw_nvme__probe_pages(devices, 3), 0);
}

/* ---- Nodes: a sysfs of the test's own -------------------------------------------------------- */

static void make_folders(const char *path)
{
	char copy[300];

	(void)snprintf(copy, sizeof(copy), "%s", path);
	for (char *at = strchr(copy, '/'); at; at = strchr(at + 1, '/')) {
		*at = '\0';
		(void)mkdir(copy, 0700);
		*at = '/';
	}
	(void)mkdir(copy, 0700);
}

static void make_text(const char *path, const char *text)
{
	FILE *file = fopen(path, "we");

	assert_non_null(file);
	assert_true(fputs(text, file) >= 0);
	assert_int_equal(fclose(file), 0);
}

#define CONTROLLER "sys/devices/pci/nvme/nvme0"

/* A controller with one namespace, whose block and character node sysfs and /dev know. */
static bool make_namespace(void)
{
	make_folders("sys/dev/block");
	make_folders("sys/dev/char");
	make_folders("sys/class/nvme-generic");
	make_folders("sys/class/block");
	make_folders("sys/class/mem");
	make_folders(CONTROLLER "/nvme0n1");
	make_folders(CONTROLLER "/ng0n1");
	make_folders("sys/devices/virtual/mem/ng9n1");
	make_text(CONTROLLER "/nvme0n1/dev", "7:200\n");
	assert_int_equal(
		symlink("../../../../../class/nvme-generic", CONTROLLER "/ng0n1/subsystem"), 0);
	assert_int_equal(
		symlink("../../../../class/mem", "sys/devices/virtual/mem/ng9n1/subsystem"), 0);
	assert_int_equal(symlink("../../devices/pci/nvme/nvme0/nvme0n1", "sys/dev/block/7:200"), 0);
	assert_int_equal(symlink("../../devices/pci/nvme/nvme0/ng0n1", "sys/dev/char/1:3"), 0);
	assert_int_equal(symlink("../../devices/virtual/mem/ng9n1", "sys/dev/char/1:5"), 0);
	make_folders("dev");
	/* Numbers of harmless devices: /dev/null, /dev/zero, a loop device never opened. */
	return mknod("dev/ng0n1", S_IFCHR | 0600, makedev(1, 3)) == 0 &&
	       mknod("dev/ng9n1", S_IFCHR | 0600, makedev(1, 5)) == 0 &&
	       mknod("dev/nvme0n1", S_IFBLK | 0600, makedev(7, 200)) == 0;
}

static int remove_namespace(void **state)
{
	char command[1024];

	(void)state;
	assert_int_equal(chdir("/"), 0);
	(void)snprintf(command, sizeof(command), "rm -rf '%s/sys' '%s/dev' '%s/alias'",
		       drive_folder, drive_folder, drive_folder);
	return system(command);
}

CASE_WITH(test_the_block_node_of_a_character_node, NULL, remove_namespace)
{
	char node[PATH_MAX], small[8];

	assert_int_equal(chdir(drive_folder), 0);
	if (!make_namespace()) {
		printf("making device nodes needs root\n");
		skip();
	}
	assert_int_equal(spw_device_block_node("dev/ng0n1", node, sizeof(node)), 0);
	assert_non_null(strstr(node, "/dev/nvme0n1"));
	assert_int_equal(symlink("dev/ng0n1", "alias"), 0);
	assert_int_equal(spw_device_block_node("alias", node, sizeof(node)), 0);
	assert_non_null(strstr(node, "/dev/nvme0n1"));
	/* What is not a namespace stays what it is: block node, another device, nothing. */
	assert_int_equal(spw_device_block_node("dev/nvme0n1", node, sizeof(node)), 0);
	assert_string_equal(node, "dev/nvme0n1");
	assert_int_equal(spw_device_block_node("dev/ng9n1", node, sizeof(node)), 0);
	assert_string_equal(node, "dev/ng9n1");
	assert_int_equal(spw_device_block_node("nothing", node, sizeof(node)), 0);
	assert_string_equal(node, "nothing");
	assert_int_equal(spw_device_block_node("dev/nvme0n1", small, sizeof(small)), -ENAMETOOLONG);
	/* Another device has taken the name. */
	make_text(CONTROLLER "/nvme0n1/dev", "7:201\n");
	expect_refusal(-ENODEV, "its block node /dev/nvme0n1 is missing",
		       spw_device_block_node("dev/ng0n1", node, sizeof(node)));
	assert_int_equal(unlink(CONTROLLER "/nvme0n1/dev"), 0);
	assert_int_equal(rmdir(CONTROLLER "/nvme0n1"), 0);
	expect_refusal(-ENODEV, "no block device",
		       spw_device_block_node("dev/ng0n1", node, sizeof(node)));
}

CASE(test_nodes_of_one_namespace)
{
	assert_true(are_siblings("/sys/a/nvme0/nvme0n1", "/sys/a/nvme0/ng0n1"));
	assert_false(are_siblings("/sys/a/nvme0/nvme0n1", "/sys/a/nvme0/ng0n2"));
	assert_false(are_siblings("/sys/a/nvme0/nvme0n1", "/sys/b/nvme0/ng0n1"));
	assert_false(are_siblings("/sys/a/nvme0/nvme0n1/nvme0n1p1", "/sys/a/nvme0/ng0n1"));
	assert_false(are_siblings("/sys/a/nvme0/sda", "/sys/a/nvme0/ng0n1"));
}

static int open_all(void **state)
{
	void *memory;

	if (make_drive(state) || spw_arena_alloc(drive_arena, DRIVE_BYTES, &memory))
		return -1;
	arena_memory = memory;
	foreign =
		mmap(NULL, DRIVE_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	return foreign == MAP_FAILED ? -1 : 0;
}

static int close_all(void **state)
{
	spw_arena_free(drive_arena, arena_memory);
	(void)munmap(foreign, DRIVE_BYTES);
	return remove_drive(state);
}

DRIVE_TEST(test_what_is_cancelled_before_it_is_submitted_never_reaches_the_drive)
{
	open_nvme_queue();
	check_cancelled_before_submission(arena_memory);
	check_cancelled_before_submission(foreign);
}

/* What one io becomes, the short way and the long one. */
DRIVE_TEST(test_both_ways_send_the_same_command)
{
	/* In a registered piece, over the boundary of two, and in none. */
	char *const memories[] = {arena_memory, arena_memory + (1u << NVME_PIECE_SHIFT) - 4096,
				  foreign};
	const unsigned count = SPW_ARRAY_LEN(memories);

	nvme_drive.placement = 1;
	nvme_drive.ids[1] = 5;
	nvme_drive.id_count = 2;
	for (unsigned i = 0; i < 2 * count; i++) {
		struct spw_io io = {.op = i < count ? SPW_READ : SPW_WRITE,
				    .buf = memories[i % count],
				    .len_bytes = 8192,
				    .offset_bytes = 3 * 4096,
				    .placement = 2};
		struct nvme_uring_cmd last[2];
		unsigned fixed[2];

		for (unsigned way = 0; way < 2; way++) {
			nvme_drive.long_way = way == 1;
			nvme_drive.fixed = 0;
			open_nvme_queue();
			assert_int_equal(run(io), 8192);
			last[way] = nvme_drive.last;
			fixed[way] = nvme_drive.fixed;
			spw_queue_close(drive_queue);
		}
		assert_memory_equal(&last[0], &last[1], sizeof(last[0]));
		assert_int_equal(fixed[0], fixed[1]);
		assert_int_equal(fixed[0], i % count == 0);
	}
	drive_queue = NULL;
}

RUN_CASES(open_all, close_all)
