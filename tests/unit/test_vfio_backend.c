/* SPDX-License-Identifier: MIT */
/* tests/unit/test_vfio_backend.c - devices and queues over a controller in memory */
/* wrap: spw_vfio__link_open */
#include "tests/unit/vfio_rig.h"

#include "engine/register.h"

#include <pthread.h>

/* ---- A device without a queue ---------------------------------------------------------------- */

TEST_BLOCKS(test_geometry)
{
	const struct spw_geometry *g = spw_device_geometry(device);

	assert_int_equal(g->kind, SPW_DEVICE_VFIO);
	assert_int_equal(g->size_bytes, FAKE_DRIVE_BYTES);
	assert_int_equal(g->logical_block_bytes, 1u << fake.block_shift);
	assert_int_equal(g->transfer_bytes_max, COMMAND_MAX);
	assert_int_equal(g->memory_align_bytes, 4);
	assert_true(g->discards && g->polls && !g->rotational);
	assert_string_equal(g->model, "a controller in memory");
	assert_string_equal(g->serial, "FAKE0001");
	assert_string_equal(g->nvme_char_path, "");
	assert_int_equal(device->fd, -1);
}

TEST_BLOCKS(test_waiting_transfers)
{
	uint32_t block = 1u << fake.block_shift;
	size_t len = 3 * COMMAND_MAX + block;

	assert_int_equal(spw_device_pread(device, foreign + 4, len, 2 * block), 0);
	assert_memory_equal(foreign + 4, fake.drives[0] + 2 * block, len);
	assert_int_equal(fake.reads, 4);
	memset(foreign, 0x5a, len);
	assert_int_equal(spw_device_pwrite(device, foreign, len, FAKE_DRIVE_BYTES - len), 0);
	assert_memory_equal(foreign, fake.drives[0] + FAKE_DRIVE_BYTES - len, len);
	assert_int_equal(spw_device_sync(device), 0);
	assert_int_equal(fake.flushes, 1);
	assert_int_equal(spw_device_discard(device, FAKE_DRIVE_BYTES - len, len), 0);
	assert_int_equal(fake.deallocations, 1);
	assert_int_equal(fake.drives[0][FAKE_DRIVE_BYTES - 1], 0);
	memset(fake.drives[0], 0x77, 4 * COMMAND_MAX);
	assert_int_equal(spw_engine__device_write_zeroes(device, block, 2 * COMMAND_MAX), 0);
	assert_int_equal(fake.zeroes, 2);
	assert_int_equal(fake.drives[0][block - 1], 0x77);
	assert_int_equal(fake.drives[0][block], 0);
	assert_int_equal(fake.drives[0][block + 2 * COMMAND_MAX - 1], 0);
	assert_int_equal(fake.drives[0][block + 2 * COMMAND_MAX], 0x77);
	assert_int_equal(spw_device_pread(device, foreign, block, FAKE_DRIVE_BYTES), -EINVAL);
	assert_int_equal(spw_engine__device_write_zeroes(device, 1, block), -EINVAL);
	assert_int_equal(spw_device_pread(device, foreign, block, UINT64_MAX - block + 1), -EINVAL);
}

TEST(test_waiting_transfers_that_fail)
{
	fake.fail_next = 1;
	fake.fail_status = 0x4281;
	expect_refusal(-ENODATA, "Unrecovered Read Error (281h)",
		       spw_device_pread(device, foreign, 512, 0));
	/* Not final: tried again, but not for ever. */
	fake.fail_next = 3;
	fake.fail_status = 0x0082;
	assert_int_equal(spw_device_pread(device, foreign, 512, 0), 0);
	fake.fail_next = 100;
	assert_int_equal(spw_device_pread(device, foreign, 512, 0), -EREMOTEIO);
	assert_int_equal(fake.fail_next, 94);
	fake.fail_next = 0;
}

TEST(test_info)
{
	struct spw_nvme_info info = {.size = sizeof(info)};

	assert_int_equal(spw_nvme_info(PATH, &info), 0);
	assert_string_equal(info.model, "a controller in memory");
	assert_int_equal(info.namespace_id, 1);
	assert_int_equal(info.block_bytes, 512);
	assert_int_equal(info.namespace_bytes, FAKE_DRIVE_BYTES);
	assert_true(info.has_health);
	assert_int_equal(info.temperature_celsius, 0x12c - 273);
	assert_int_equal(info.percentage_used, 3);
	/* It was open already: the same controller, not a second one. */
	assert_int_equal(fake.opens, 1);
}

TEST(test_read_only)
{
	struct spw_device *reader;
	struct spw_device_opts opts;

	spw_device_opts_init(&opts, sizeof(opts));
	opts.read_only = true;
	assert_int_equal(spw_device_open(PATH, &opts, &reader), 0);
	assert_int_equal(spw_device_pwrite(reader, foreign, 512, 0), -EBADF);
	assert_int_equal(spw_device_discard(reader, 0, 512), -EBADF);
	assert_int_equal(spw_device_lock(reader, 0, 1), -EBADF);
	open_queue_over(&reader, 1, 8, 0);
	assert_int_equal(run(SPW_WRITE, memory, 512, 0), -EBADF);
	assert_int_equal(run(SPW_DISCARD, NULL, 512, 0), -EBADF);
	assert_int_equal(run(SPW_READ, memory, 512, 0), 512);
	assert_int_equal(run(SPW_FLUSH, NULL, 0, 0), 0);
	assert_int_equal(fake.writes + fake.deallocations, 0);
	close_queue();
	spw_device_close(reader);
}

TEST(test_locks_and_claims)
{
	struct spw_device *other, *third;
	struct spw_device_opts opts;

	spw_device_opts_init(&opts, sizeof(opts));
	opts.exclusive = true;
	assert_int_equal(spw_device_open(PATH, &opts, &other), 0);
	assert_int_equal(spw_device_open(PATH, &opts, &third), -EBUSY);
	assert_int_equal(spw_device_open("pci:" FAKE_ADDRESS "/2", &opts, &third), 0);
	assert_int_equal(spw_device_lock(device, 100, 50), 0);
	assert_int_equal(spw_device_lock(device, 120, 50), 0); /* its own */
	assert_int_equal(spw_device_lock(other, 0, 101), -EBUSY);
	assert_int_equal(spw_device_lock(other, 0, 100), 0);
	assert_int_equal(spw_device_lock(other, 169, 1), -EBUSY);
	assert_int_equal(spw_device_lock(other, 170, 0), 0); /* to the end */
	assert_int_equal(spw_device_lock(third, 0, 0), 0);   /* of another namespace */
	/* A hole in the middle of one's own. */
	assert_int_equal(spw_device_unlock(device, 110, 10), 0);
	assert_int_equal(spw_device_lock(other, 110, 10), 0);
	assert_int_equal(spw_device_lock(other, 109, 1), -EBUSY);
	assert_int_equal(spw_device_lock(other, 120, 1), -EBUSY);
	spw_device_close(other); /* and all that it held */
	assert_int_equal(spw_device_lock(device, 0, 0), 0);
	assert_int_equal(spw_device_open(PATH, &opts, &other), 0);
	spw_device_close(other);
	spw_device_close(third);
}

TEST(test_what_cannot_be_opened)
{
	struct spw_device *other;

	expect_refusal(-ENODEV, "no namespace 3",
		       spw_device_open("pci:0000:3d:00.0/3", NULL, &other));
	assert_int_equal(spw_device_open("pci:0000:3e:00.0", NULL, &other), -ENODEV);
	assert_int_equal(spw_device_open("pci:here", NULL, &other), -EINVAL);
	fake.metadata_bytes = 8;
	expect_refusal(-EOPNOTSUPP, "8 bytes of metadata", spw_device_open(PATH, NULL, &other));
	fake.protection_type = 2;
	assert_int_equal(spw_device_open(PATH, NULL, &other), -EOPNOTSUPP);
	fake.protection_type = 1;
	fake.metadata_bytes = 16;
	expect_refusal(-EOPNOTSUPP, "16 bytes of metadata", spw_device_open(PATH, NULL, &other));
	assert_null(other);
}

/* One that places data and does not say by which handles is written without them. */
TEST(test_handles_that_are_not_said)
{
	struct spw_queue_opts opts;

	fake.ctratt = 1u << 19;
	reopen_device();
	spw_queue_opts_init(&opts, sizeof(opts));
	opts.arena = arena;
	opts.log.write = collect;
	opts.placement = 1;
	fake.fail_next = 1;
	fake.fail_status = 0x4001;
	assert_int_equal(spw_queue_open(&device, 1, &opts, &queue), 0);
	expect_said(PATH ": the drive refuses its placement handles: Invalid Command Opcode");
	transfer(SPW_WRITE, memory, 4096, 0);
	assert_int_equal(queue_stats().drives_placing, 0);
}

/* ---- Protection information ------------------------------------------------------------------ */

static void open_protected(void)
{
	fake.metadata_bytes = 8;
	fake.protection_type = 1;
	reopen_device();
	open_queue_of(8, 0);
}

TEST_EACH(test_protected_blocks_are_written_and_read)
{
	uint32_t block = 1u << fake.block_shift;

	open_protected();
	/* Never written; then written, by the queue and without it; then zeroes, then none. */
	transfer(SPW_READ, memory, COMMAND_MAX, 0);
	for (unsigned i = 0; i < 6; i++) {
		char *at = i % 2 ? foreign : memory;
		uint32_t len = (uint32_t[]){block, 2 * COMMAND_MAX + block, 65536}[i / 2];

		memset(at, (int)i + 1, len);
		transfer(SPW_WRITE, at, len, (i + 3) * block);
		transfer(SPW_READ, at, len, (i + 3) * block);
	}
	assert_int_equal(spw_device_pwrite(device, foreign, 1u << 20, block), 0);
	assert_int_equal(spw_device_pread(device, foreign, 1u << 20, block), 0);
	assert_int_equal(fake_tags[0][1].application, 0);
	assert_int_equal(spw_engine__device_write_zeroes(device, block, 2 * COMMAND_MAX), 0);
	assert_int_equal(fake_tags[0][2].reference, 2);
	transfer(SPW_READ, memory, COMMAND_MAX, 0);
	assert_int_equal(run(SPW_DISCARD, NULL, COMMAND_MAX, 0), COMMAND_MAX);
	transfer(SPW_READ, memory, COMMAND_MAX, 0);
}

TEST_BLOCKS(test_damage_under_protected_blocks)
{
	uint32_t block = 1u << fake.block_shift;

	open_protected();
	transfer(SPW_WRITE, memory, 16 * block, 16 * block);
	fake.drives[0][18 * block] ^= 1;
	assert_int_equal(run(SPW_READ, memory, 4 * block, 16 * block), -EILSEQ);
	expect_said("(NVMe status 282h: End-to-end Guard Check Error): what is stored does not "
		    "match its protection information");
	assert_int_equal(run(SPW_READ, memory, 2 * block, 16 * block), 2 * block);
	expect_refusal(-EILSEQ, PATH ": read failed: End-to-end Guard Check Error (282h)",
		       spw_device_pread(device, foreign, block, 18 * block));
	fake_tags[0][20].reference ^= 1;
	assert_int_equal(run(SPW_READ, memory, block, 20 * block), -EILSEQ);
	expect_said("NVMe status 284h: End-to-end Reference Tag Check Error");
	transfer(SPW_WRITE, memory, 16 * block, 16 * block);
	transfer(SPW_READ, memory, 16 * block, 16 * block);
}

TEST(test_controllers_that_do_not_start)
{
	struct spw_device *other;

	close_device();
	assert_int_equal(fake.shutdowns, 1);
	fake.refuses_queues = true;
	expect_refusal(-EIO, "refuses a submission queue", spw_device_open(PATH, NULL, &other));
	assert_true(fake.closed);
	fake.refuses_queues = false;
	fake.map_error = -ENOMEM;
	for (unsigned after = 0; after < 2; after++) {
		fake.map_errors_after = after;
		assert_int_equal(spw_device_open(PATH, NULL, &other), -ENOMEM);
		assert_true(fake.closed);
		assert_int_equal(fake_mapped(), 0);
	}
	fake.map_error = 0;
	open_device();
}

/* ---- Transfers ------------------------------------------------------------------------------- */

/* VFIO-3 */
TEST_EACH(test_every_size_and_place)
{
	uint32_t block = 1u << fake.block_shift;
	static const int32_t around[] = {-1, 0, 1};
	static const uint32_t limits[] = {4096,    8192, 12288, 65536, COMMAND_MAX, 2 * COMMAND_MAX,
					  1u << 20};

	open_queue_of(8, 0);
	for (size_t i = 0; i < SPW_ARRAY_LEN(limits); i++)
		for (size_t j = 0; j < SPW_ARRAY_LEN(around); j++)
			for (unsigned place = 0; place < 6; place++) {
				int32_t len = (int32_t)limits[i] + around[j] * (int32_t)block;
				uint32_t shift = (uint32_t[]){0, 4, 508, block, 4092, 2048}[place];
				char *from = place % 2 ? foreign + shift % 64 : memory + shift;
				char *to = memory + (2u << 20) + shift;

				if (len <= 0)
					continue;
				memset(from, (int)(i * 16 + j * 5 + place), (size_t)len);
				transfer(SPW_WRITE, from, (uint32_t)len, 3 * block);
				transfer(SPW_READ, to, (uint32_t)len, 5 * block);
				transfer(SPW_READ, foreign, (uint32_t)len, 7 * block);
			}
}

static int32_t run_vector(enum spw_op op, const struct iovec *iov, unsigned count, uint64_t offset)
{
	uint32_t len = 0;

	for (unsigned i = 0; i < count; i++)
		len += (uint32_t)iov[i].iov_len;
	make_io(0, op, NULL, len, offset);
	ios[0].iov = iov;
	ios[0].iov_count = count;
	return run_io(&ios[0], 0);
}

/* VFIO-1 */
TEST(test_copies_are_counted_with_their_reason)
{
	struct iovec gaps[3] = {{memory, 512}, {memory + 8192, 512}, {memory + 4096, 512}};

	open_queue_of(8, 0);
	assert_int_equal(run(SPW_WRITE, memory, 65536, 0), 65536);
	assert_int_equal(queue_stats().bytes_copied, 0);
	assert_int_equal(queue_stats().parts_fixed, 1);
	assert_int_equal(run(SPW_WRITE, foreign, 65536, 0), 65536);
	assert_int_equal(queue_stats().bytes_copied, 65536);
	assert_int_equal(queue_stats().parts_copied_foreign, 1);
	assert_int_equal(queue_stats().parts_copied_gaps, 0);
	assert_int_equal(queue_stats().parts_fixed, 1);
	assert_int_equal(run_vector(SPW_READ, gaps, 3, 0), 1536);
	for (unsigned i = 0; i < 3; i++)
		assert_memory_equal(gaps[i].iov_base, fake.drives[0] + 512 * i, 512);
}

/* Lists of runs where they are shorter than what pages take, and for what pages cannot name. */
TEST_SGL(test_lists_of_runs)
{
	struct iovec gaps[3] = {{memory, 512}, {memory + 8192, 1024}, {memory + 4096, 512}};
	struct iovec next[2] = {{memory, 65536}, {memory + 65536, 4096}};
	struct iovec scattered[8];

	open_queue_of(8, 0);
	expect_in("scatter gather", spw_queue_description(queue));
	/* Two pages need no list. */
	assert_int_equal(run(SPW_READ, memory + 512, 7680, 0), 7680);
	assert_int_equal(fake.descriptors + fake.segments + fake.lists, 0);
	assert_int_equal(run(SPW_READ, memory + 512, 8192, 0), 8192);
	assert_int_equal(fake.descriptors, 1);
	/* A copy is one run, too. */
	assert_int_equal(run(SPW_READ, foreign, 65536, 0), 65536);
	assert_int_equal(fake.descriptors, 2);
	assert_int_equal(run_vector(SPW_READ, next, 2, 0), 69632);
	assert_int_equal(fake.descriptors, 3);
	assert_memory_equal(memory, fake.drives[0], 69632);
	assert_int_equal(fake.segments + fake.lists, 0);
	assert_int_equal(run_vector(SPW_READ, gaps, 3, 4096), 2048);
	assert_int_equal(fake.segments, 1);
	assert_memory_equal(memory + 8192, fake.drives[0] + 4608, 1024);
	assert_int_equal(run_vector(SPW_WRITE, gaps, 3, 65536), 2048);
	assert_memory_equal(fake.drives[0] + 65536, fake.drives[0] + 4096, 2048);
	assert_int_equal(fake.segments, 2);
	/* Pages far from each other: a word each, against two. */
	for (unsigned i = 0; i < SPW_ARRAY_LEN(scattered); i++)
		scattered[i] = (struct iovec){memory + (size_t)(7 - i) * 16384, 4096};
	assert_int_equal(run_vector(SPW_READ, scattered, 8, 8192), 32768);
	assert_int_equal(fake.lists, 1);
	assert_int_equal(fake.segments, 2);
	for (unsigned i = 0; i < SPW_ARRAY_LEN(scattered); i++)
		assert_memory_equal(scattered[i].iov_base, fake.drives[0] + 8192 + i * 4096, 4096);
	assert_int_equal(queue_stats().parts_copied_gaps, 0);
	assert_int_equal(queue_stats().parts_copied_foreign, 1);
}

TEST(test_no_lists_of_runs_for_a_controller_that_takes_none)
{
	open_queue_of(8, 0);
	assert_null(strstr(spw_queue_description(queue), "scatter gather"));
	assert_int_equal(run(SPW_READ, memory, 65536, 0), 65536);
	assert_int_equal(fake.lists, 1);
	assert_int_equal(fake.descriptors + fake.segments, 0);
}

/* At any address; from what lies in it nothing is copied, and nothing beside it is reached. */
TEST(test_registered_memory_is_not_copied)
{
	struct iovec mixed[3] = {{foreign, 8192}, {memory, 4096}, {foreign + 16384, 4096}};
	unsigned mapped;

	open_queue_of(8, 0);
	mapped = fake_mapped();
	assert_int_equal(spw_engine__queue_register(queue, foreign + 8, 131072), 1);
	assert_true(fake_mapped() > mapped);
	assert_int_equal(run(SPW_WRITE, foreign + 4096, 65536, 0), 65536);
	assert_memory_equal(fake.drives[0], foreign + 4096, 65536);
	assert_int_equal(run(SPW_READ, foreign + 65536, 65536, 4096), 65536);
	assert_memory_equal(fake.drives[0] + 4096, foreign + 65536, 65536);
	assert_int_equal(queue_stats().bytes_copied, 0);
	assert_int_equal(run(SPW_READ, foreign, 65536, 4096), 65536);
	assert_int_equal(queue_stats().bytes_copied, 65536);
	assert_ok(spw_engine__queue_unregister(queue, foreign + 8));
	assert_int_equal(fake_mapped(), mapped);
	assert_int_equal(run(SPW_WRITE, foreign + 4096, 65536, 0), 65536);
	assert_int_equal(queue_stats().bytes_copied, 2 * 65536);
	/* Elements of several mappings go by commands of their own. */
	assert_int_equal(spw_engine__queue_register(queue, foreign, 65536), 1);
	assert_int_equal(run_vector(SPW_WRITE, mixed, 3, 0), 16384);
	assert_memory_equal(fake.drives[0], foreign, 8192);
	assert_memory_equal(fake.drives[0] + 8192, memory, 4096);
	assert_memory_equal(fake.drives[0] + 12288, foreign + 16384, 4096);
	assert_int_equal(queue_stats().bytes_copied, 2 * 65536);
	/* It is unmapped with the queue. */
}

TEST(test_memory_that_cannot_be_mapped_is_copied)
{
	open_queue_of(8, 0);
	fake.map_error = -ENOMEM;
	fake.map_errors_after = 0;
	assert_int_equal(spw_engine__queue_register(queue, foreign, 65536), 0);
	expect_in("the test wants no mapping", said);
	fake.map_error = 0;
	assert_int_equal(run(SPW_WRITE, foreign, 65536, 0), 65536);
	assert_int_equal(queue_stats().bytes_copied, 65536);
	assert_ok(spw_engine__queue_unregister(queue, foreign));
}

/* A mixture of arena and other memory, with gaps and without, of any length. */
TEST_EACH(test_random_vectors)
{
	uint32_t block = 1u << fake.block_shift;
	static struct iovec iov[64];

	open_queue_of(4, 0);
	for (unsigned round = 0; round < 200; round++) {
		char *at = memory, *away = foreign;
		uint32_t len = 0;
		unsigned count = 1 + (unsigned)(fake_random() % SPW_ARRAY_LEN(iov));

		/* Half of the rounds with some of it registered. */
		if (round == 100)
			assert_int_equal(spw_engine__queue_register(queue, foreign + 4096, 32768),
					 1);

		for (unsigned i = 0; i < count; i++) {
			uint32_t now =
				block * (1 + (uint32_t)(fake_random() % (round % 3 ? 8 : 64)));

			if (len + now > 1u << 20)
				now = block;
			iov[i].iov_len = now;
			if (fake_random() % 4 == 0) {
				iov[i].iov_base = away;
				away += now;
			} else {
				if (fake_random() % 2)
					at = memory + spw_round_up((uint64_t)(at - memory), 4096);
				iov[i].iov_base = at;
				at += now;
			}
			len += now;
		}
		for (unsigned write = 0; write < 2; write++) {
			uint32_t sum = 0;

			for (unsigned i = 0; i < count; i++)
				memset(iov[i].iov_base, (int)(round + i), iov[i].iov_len);
			assert_int_equal(run_vector(write ? SPW_WRITE : SPW_READ, iov, count, 8192),
					 len);
			for (unsigned i = 0; i < count; sum += (uint32_t)iov[i++].iov_len)
				assert_memory_equal(iov[i].iov_base, fake.drives[0] + 8192 + sum,
						    iov[i].iov_len);
		}
	}
}

/* As many as fit and more, answered late and in any order; every byte. */
static void many(unsigned depth, uint32_t delay, enum fake_order order)
{
	enum { COUNT = 600 };
	uint32_t len = 4096;

	printf("# depth %u, delay %u, order %d\n", depth, delay, order);
	open_queue_of(depth, 20000);
	ended = 0;
	fake.delay = delay;
	fake.order = order;
	for (unsigned i = 0; i < COUNT; i++) {
		char *at = (i % 5 == 0 ? foreign : memory) + (size_t)(i % 400) * len;

		make_io(i, i % 2 ? SPW_WRITE : SPW_READ, at, len, (uint64_t)(i % 1000) * len);
		if (i % 2)
			memset(at, (int)i, len);
		assert_int_equal(spw_queue_prepare(queue, &ios[i]), 0);
		if (i % 400 == 399)
			while (ended <= i)
				assert_true(spw_queue_reap(queue, 1 + i % 7, -1) >= 0);
	}
	reap_until(COUNT);
	for (unsigned i = 0; i < COUNT; i++) {
		assert_int_equal(results[i], len);
		if (i % 2)
			assert_int_equal((uint8_t)fake.drives[0][(size_t)i * len + 17], (uint8_t)i);
	}
	assert_int_equal(failed, 0);
	close_queue();
}

TEST(test_many_at_a_time)
{
	many(32, 0, FAKE_IN_ORDER);
	many(64, 3, FAKE_SHUFFLED);
	many(1024, 1, FAKE_BACKWARDS);
	many(1, 2, FAKE_SHUFFLED);
}

/* PAIR-3 */
TEST(test_doorbells_are_rung_once_per_batch)
{
	unsigned before;

	open_queue_of(32, 0);
	fake_pump();
	before = fake.doorbells;
	for (unsigned i = 0; i < 16; i++)
		start(i, SPW_READ, memory + i * 4096, 4096, i * 4096);
	fake_pump();
	assert_int_equal(fake.doorbells, before);
	assert_int_equal(spw_queue_submit(queue), 0);
	fake_pump();
	assert_int_equal(fake.doorbells, before + 1);
	assert_int_equal(spw_queue_reap(queue, 16, -1), 16);
}

TEST(test_flush_and_discard)
{
	open_queue_of(4, 0);
	assert_int_equal(run(SPW_FLUSH, NULL, 0, 0), 0);
	assert_int_equal(fake.flushes, 1);
	assert_int_equal(run(SPW_DISCARD, NULL, 1u << 20, 8192), 1 << 20);
	assert_int_equal(fake.deallocations, 1);
	assert_int_equal(fake.drives[0][8192], 0);
	assert_int_equal(fake.drives[0][8192 + (1u << 20) - 1], 0);
	assert_int_not_equal(fake.drives[0][8192 + (1u << 20) + 1], 0);
	/* The list of a slot's pages held the range: a transfer in the same slot makes its own. */
	transfer(SPW_READ, memory, COMMAND_MAX, 0);
}

TEST(test_failures_of_the_drive)
{
	open_queue_of(8, 0);
	fake.fail_next = 1;
	fake.fail_status = 0x4281;
	assert_int_equal(run(SPW_READ, memory, 4096, 0), -ENODATA);
	expect_said("NVMe status 281h: Unrecovered Read Error");
	fake.fail_next = 4;
	fake.fail_status = 0x0006;
	assert_int_equal(run(SPW_READ, memory, 4096, 0), 4096);
	fake.fail_next = 100;
	assert_int_equal(run(SPW_WRITE, foreign, 4096, 0), -EIO);
	fake.fail_next = 0;
	assert_int_equal(queue_stats().retries, 9);
	/* The copy that the failed write had is there again. */
	for (unsigned i = 0; i < 40; i++)
		assert_int_equal(run(SPW_WRITE, foreign, 4096, 0), 4096);
}

TEST(test_cancelled_in_flight)
{
	open_queue_of(8, 0);
	fake.delay = 5;
	for (unsigned i = 0; i < 40; i++)
		start(i, i % 2 ? SPW_READ : SPW_WRITE, (i % 3 ? memory : foreign) + i * 8192, 8192,
		      i * 8192);
	assert_int_equal(spw_queue_submit(queue), 0);
	for (unsigned i = 0; i < 40; i += 2)
		assert_int_equal(spw_queue_cancel(queue, &ios[i]), 0);
	reap_until(40);
	for (unsigned i = 0; i < 40; i++)
		assert_true(results[i] == 8192 || (i % 2 == 0 && results[i] == -ECANCELED));
}

/* ---- Several queues, namespaces, backends ---------------------------------------------------- */

/* CTRL-3 */
TEST(test_queues_share_a_controller)
{
	struct spw_queue *queues[16];
	struct spw_queue_opts opts;
	unsigned count = 0;

	spw_queue_opts_init(&opts, sizeof(opts));
	opts.arena = arena;
	while (spw_queue_open(&device, 1, &opts, &queues[count]) == 0)
		count++;
	/* The controller's own pair is one of them. */
	assert_int_equal(count, FAKE_QUEUES - 2);
	expect_words("queue pairs that the controller has are in use");
	spw_queue_close(queues[0]);
	queue = queues[0] = NULL;
	assert_int_equal(spw_queue_open(&device, 1, &opts, &queues[0]), 0);
	for (unsigned i = 0; i < count; i++) {
		queue = queues[i];
		transfer(SPW_READ, memory, 65536, i * 4096);
	}
	/* All die when one finds the controller dead. */
	memset(fake.registers, 0xff, FAKE_REGISTERS);
	queue = queues[3];
	assert_int_equal(run(SPW_READ, memory, 4096, 0), -ENODEV);
	for (unsigned i = 0; i < count; i++) {
		queue = queues[i];
		assert_int_equal(run(SPW_READ, memory, 4096, 0), -ENODEV);
		spw_queue_close(queue);
	}
	queue = NULL;
}

TEST(test_two_namespaces_in_one_queue)
{
	struct spw_device *both[2] = {device};

	assert_int_equal(spw_device_open("pci:" FAKE_ADDRESS "/2", NULL, &both[1]), 0);
	assert_int_equal(fake.opens, 1);
	open_queue_over(both, 2, 8, 0);
	for (unsigned i = 0; i < 2; i++) {
		make_io(i, SPW_READ, memory + i * 65536, 65536, 4096);
		ios[i].device = i;
		assert_int_equal(spw_queue_prepare(queue, &ios[i]), 0);
	}
	while (ended < 2)
		assert_true(spw_queue_reap(queue, 2, -1) >= 0);
	for (unsigned i = 0; i < 2; i++)
		assert_memory_equal(memory + i * 65536, fake.drives[i] + 4096, 65536);
	assert_memory_not_equal(memory, memory + 65536, 65536);
	close_queue();
	spw_device_close(both[1]);
}

static void *open_and_close(void *context)
{
	for (unsigned i = 0; i < 50; i++) {
		struct spw_device *one;

		assert_int_equal(spw_device_open(context, NULL, &one), 0);
		spw_device_close(one);
	}
	return NULL;
}

/* An open while the controller is being opened or closed waits until that is done. */
TEST(test_opened_and_closed_by_many)
{
	char *paths[] = {PATH, "pci:" FAKE_ADDRESS "/2", PATH};
	pthread_t threads[SPW_ARRAY_LEN(paths)];

	close_device();
	for (size_t i = 0; i < SPW_ARRAY_LEN(paths); i++)
		assert_int_equal(pthread_create(&threads[i], NULL, open_and_close, paths[i]), 0);
	for (size_t i = 0; i < SPW_ARRAY_LEN(paths); i++)
		assert_int_equal(pthread_join(threads[i], NULL), 0);
	assert_true(fake.closed);
	open_device();
}

TEST(test_mixed_with_a_file)
{
	struct spw_device *both[2] = {device, open_file()};

	fake.link.idle_ms = 5;
	open_queue_over(both, 2, 32, 0);
	for (unsigned round = 0; round < 40; round++) {
		ended = 0;
		fake.delay = round % 4;
		for (unsigned i = 0; i < 64; i++) {
			char *at = (i % 4 < 2 ? memory
					      : (char *)spw_round_up((uintptr_t)foreign, 4096)) +
				   i * 16384;

			make_io(i, round % 2 ? SPW_READ : SPW_WRITE, at, 16384,
				(uint64_t)i * 16384);
			ios[i].device = i % 2;
			if (round % 2)
				memset(at, 0, 16384);
			else
				memset(at, (int)(i + round + 1), 16384);
			assert_int_equal(spw_queue_prepare(queue, &ios[i]), 0);
		}
		make_io(64, SPW_FLUSH, NULL, 0, 0);
		ios[64].device = round % 4 / 2;
		assert_int_equal(spw_queue_prepare(queue, &ios[64]), 0);
		while (ended < 65)
			assert_true(spw_queue_reap(queue, 1 + round, -1) >= 0);
		for (unsigned i = 0; i < 64; i++) {
			assert_int_equal(results[i], 16384);
			assert_int_equal(((uint8_t *)ios[i].buf)[16383],
					 (uint8_t)(i + (round & ~1u) + 1));
		}
	}
	/* The one dies, and is found while the queue waits in the other's backend. */
	memset(fake.registers, 0xff, FAKE_REGISTERS);
	for (unsigned i = 0; i < 100 && !fake.cut; i++)
		assert_int_equal(spw_queue_reap(queue, 1, 100000000), 0);
	assert_true(fake.cut);
	assert_int_equal(run(SPW_READ, memory, 4096, 0), -ENODEV);
	assert_int_equal(run_io(make_io(0, SPW_READ, memory, 4096, 0), 1), 4096);
	close_queue();
	spw_device_close(both[1]);
}

TEST(test_refused_backends)
{
	struct spw_queue_opts opts;

	spw_queue_opts_init(&opts, sizeof(opts));
	for (int backend = SPW_BACKEND_IO_URING; backend <= SPW_BACKEND_NVME; backend++) {
		opts.backend = (enum spw_backend)backend;
		expect_refusal(-EINVAL, "vfio alone", spw_queue_open(&device, 1, &opts, &queue));
	}
	fake.map_error = -ENOMEM;
	opts.backend = SPW_BACKEND_VFIO;
	opts.arena = arena;
	for (unsigned after = 0; after < 2; after++) {
		unsigned mapped = fake_mapped();

		fake.map_errors_after = after;
		assert_int_equal(spw_queue_open(&device, 1, &opts, &queue), -ENOMEM);
		assert_int_equal(fake_mapped(), mapped);
	}
	fake.map_error = 0;
}

static void *wake(void *context)
{
	spw_queue_wake(context);
	return NULL;
}

TEST(test_wakes_and_timeouts)
{
	uint64_t start_ns;
	pthread_t thread;

	open_queue_of(4, 20000);
	/* Asleep, with nothing to poll. */
	assert_int_equal(pthread_create(&thread, NULL, wake, queue), 0);
	assert_int_equal(spw_queue_reap(queue, 1, -1), 0);
	assert_int_equal(pthread_join(thread, NULL), 0);
	/* While polling. */
	fake.never_after = 0;
	start(0, SPW_READ, memory, 4096, 0);
	start_ns = spw_clock_ns();
	assert_int_equal(spw_queue_reap(queue, 1, 10000000), 0);
	assert_true(spw_clock_ns() - start_ns >= 10000000);
	assert_int_equal(pthread_create(&thread, NULL, wake, queue), 0);
	assert_int_equal(spw_queue_reap(queue, 1, -1), 0);
	assert_int_equal(pthread_join(thread, NULL), 0);
	fake.never_after = FAKE_NEVER;
	assert_int_equal(spw_queue_reap(queue, 1, -1), 1);
	start_ns = spw_clock_ns();
	assert_int_equal(spw_queue_reap(queue, 1, 10000000), 0);
	assert_true(spw_clock_ns() - start_ns >= 10000000);
}

RUN_CASES(NULL, NULL)
