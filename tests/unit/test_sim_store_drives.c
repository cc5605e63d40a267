/* SPDX-License-Identifier: MIT */
/* tests/unit/test_sim_store_drives.c - drives that fill up, hang, come back, flush and trim */
#include "store/request.h"
#include "tests/unit/sim_rig.h"

/* ---- Space ---- */

static void expect_even_shares(void)
{
	uint64_t least = UINT64_MAX, most = 0;

	for (unsigned drive = 0; drive < DRIVES; drive++) {
		struct spw_drive_stats now;

		assert_ok(spw_store_drive_stats(store, drive, &now, sizeof(now)));
		least = now.bytes_written < least ? now.bytes_written : least;
		most = now.bytes_written > most ? now.bytes_written : most;
	}
	assert_true(most - least <= 2 * CHUNK_BYTES);
}

/* Whatever the objects' sizes, together or one at a time: to within two chunks. */
DRIVES_CASE(test_equal_drives_share_evenly)
{
	enum { COUNT = 30 };
	static const size_t lens[] = {CHUNK_BYTES / 2 + 1, CHUNK_BYTES, 4 * CHUNK_BYTES + 4096,
				      20 * CHUNK_BYTES};
	uint8_t *bytes = pattern(20 * CHUNK_BYTES, 23);
	struct spw_request *requests[COUNT];
	spw_object objects[COUNT];

	for (unsigned i = 0; i < 2 * SPW_ARRAY_LEN(lens); i++) {
		bool together = i % 2;

		open_store(4);
		for (unsigned k = 0; k < COUNT; k++) {
			assert_ok(spw_store_put(store, bytes, lens[i / 2], NULL, &objects[k],
						&requests[k]));
			if (!together)
				assert_ok(spw_request_wait(requests[k]));
		}
		for (unsigned k = 0; together && k < COUNT; k++)
			assert_ok(spw_request_wait(requests[k]));
		expect_even_shares();
		for (unsigned k = 0; k < COUNT; k++)
			assert_ok(spw_store_free(store, objects[k]));
		expect_empty();
		close_store();
	}
}

/* ---- Drives that hang, come back, flush, trim ---- */

#define DEADLINE 4 /* s */

static void open_with_deadlines(void)
{
	struct spw_store_opts opts = options(2);

	opts.read_deadline_ms = opts.write_deadline_ms = DEADLINE * 1000;
	open_with(&opts);
}

/*
 * Flushes take the queue's slots, and writes wait in it that no drive has seen yet; then it is not
 * polled for longer than the deadline. As when a process is stopped and goes on.
 */
DRIVES_CASE(test_absence_is_not_the_drives_fault)
{
	uint8_t *bytes = memory(16 * CHUNK_BYTES);
	struct spw_request *flush, *put;
	spw_object object;

	open_with_deadlines();
	assert_ok(spw_store_flush(store, NULL, &flush));
	assert_ok(spw_store_put(store, bytes, 16 * CHUNK_BYTES, NULL, &object, &put));
	poll_once();
	for (unsigned i = 0; i < 3; i++) {
		sim_now_ns += 10 * DEADLINE * SECOND;
		poll_once();
	}
	assert_ok(spw_request_wait(flush));
	assert_ok(spw_request_wait(put));
	assert_int_equal(stats().timeouts, 0);
	assert_int_equal(stats().drives_retired, 0);
}

/* A chunk that all drives hang with. */
static void put_hanging(struct spw_request **put)
{
	spw_object object;

	open_with_deadlines();
	for (unsigned i = 0; i < DRIVES; i++)
		hang(i);
	assert_ok(spw_store_put(store, memory(CHUNK_BYTES), CHUNK_BYTES, NULL, &object, put));
}

/* Each drive in turn hangs with what the one before did not take. */
DRIVES_CASE(test_hang_is_noticed)
{
	uint64_t began_ns = sim_now_ns;
	struct spw_request *put;

	put_hanging(&put);
	assert_int_equal(spw_request_wait(put), -EIO);
	assert_int_equal(stats().timeouts, DRIVES);
	assert_in_range(sim_now_ns - began_ns, DRIVES * DEADLINE * SECOND,
			2 * DRIVES * DEADLINE * SECOND);
}

DRIVES_CASE(test_hang_is_noticed_by_who_looks_seldom)
{
	struct spw_request *put;
	uint64_t looks = 0;

	put_hanging(&put);
	for (; stats().timeouts == 0 && looks < 100; looks++) {
		for (unsigned i = 0; i < DRIVES; i++)
			hang_until(i, UINT64_MAX / 2);
		sim_now_ns += 30 * SECOND;
		poll_once();
	}
	assert_int_equal(stats().timeouts, 1);
	assert_in_range(looks, 2, 99);
	for (unsigned i = 0; i < DRIVES; i++)
		hang_no_more(i);
	(void)spw_request_wait(put);
}

/* STORE-9 */
DRIVES_CASE(test_hung_write_moves)
{
	uint8_t *bytes = pattern(1 << 20, 13);
	struct spw_store_opts opts = options(16);
	spw_object object;
	uint64_t used;

	opts.write_deadline_ms = 20;
	open_with(&opts);
	hang(1);
	assert_ok(put_wait(bytes, 1 << 20, &object));
	assert_true(!is_retired(0) && is_retired(1) && !is_retired(2));
	assert_true(stats().timeouts > 0 && stats().chunks_moved > 0);
	expect_identical(object, bytes, 1 << 20);
	/* The drive answers after all: its blocks come back, and count once it is revived. */
	hang_no_more(1);
	for (unsigned i = 0; i < 64; i++)
		assert_true(spw_store_poll(store, true) >= 0);
	expect_identical(object, bytes, 1 << 20);
	assert_ok(spw_store_revive(store, 1));
	assert_int_equal(spw_store_revive(store, 1), -EALREADY);
	assert_int_equal(spw_store_revive(store, DRIVES), -EINVAL);
	assert_false(is_retired(1));
	used = stats().used_bytes;
	assert_int_equal(used, 1 << 20);
	assert_ok(spw_store_free(store, object));
	expect_empty();
	assert_int_equal(stats().used_bytes, 0);
}

static char heard[4096];

static void hear(void *context, enum spw_log_level priority, const char *message)
{
	size_t used = strlen(heard);

	(void)context;
	(void)priority;
	(void)snprintf(heard + used, sizeof(heard) - used, "%s\n", message);
}

/* A network comes back: what the kernel kept for its drive ends, and the drive is in service. */
DRIVES_CASE(test_far_drive_comes_back_by_itself)
{
	uint8_t *bytes = pattern(1 << 20, 13);
	struct spw_store_opts opts = options(16);
	spw_object object;

	heard[0] = '\0';
	opts.write_deadline_ms = 20;
	opts.log.write = hear;
	open_with(&opts);
	make_far(1, 600);
	hang(1);
	assert_ok(put_wait(bytes, 1 << 20, &object));
	assert_true(!is_retired(0) && is_retired(1) && !is_retired(2));
	assert_non_null(
		strstr(heard, "sim1, which is reached over tcp at traddr=10.0.0.7: a write"));
	assert_non_null(strstr(heard, "the kernel gives up after 600 s"));
	assert_non_null(strstr(heard, "it is in service again when it takes that write"));
	hang_no_more(1);
	for (unsigned i = 0; i < 64; i++)
		assert_true(spw_store_poll(store, true) >= 0);
	assert_false(is_retired(1));
	assert_int_equal(stats().drives_retired, 0);
	assert_non_null(strstr(heard, "sim1: in service again"));
	expect_identical(object, bytes, 1 << 20);
	assert_ok(spw_store_free(store, object));
	expect_empty();
}

/* The kernel gave up: it stays out of service, as any other drive that fails. */
DRIVES_CASE(test_far_drive_that_is_lost_stays_retired)
{
	uint8_t *bytes = pattern(1 << 20, 13);
	struct spw_store_opts opts = options(16);
	spw_object object;

	opts.write_deadline_ms = 20;
	open_with(&opts);
	make_far(1, UINT32_MAX);
	hang(1);
	assert_ok(put_wait(bytes, 1 << 20, &object));
	for (struct sim_io *io = sim_drives[1].active_first; io; io = io->next)
		io->forced = -EIO;
	hang_no_more(1);
	for (unsigned i = 0; i < 64; i++)
		assert_true(spw_store_poll(store, true) >= 0);
	assert_true(is_retired(1));
	expect_identical(object, bytes, 1 << 20);
}

/*
 * A late read of the only copy is not cancelled: it ends well when the network is there again. Of a
 * drive of this machine it is, and fails.
 */
DRIVES_CASE(test_far_read_is_waited_for)
{
	uint8_t *bytes = pattern(1 << 20, 13), *back = memory(1 << 20);

	for (unsigned far = 0; far < 2; far++) {
		struct spw_store_opts opts = options(16);
		struct spw_request *get;
		spw_object object;

		opts.read_deadline_ms = 20;
		open_with(&opts);
		sim_drives[1].cancels = true;
		if (far)
			make_far(1, 600);
		assert_ok(put_wait(bytes, 1 << 20, &object));
		hang(1);
		assert_ok(spw_store_get(store, object, 0, back, 1 << 20, SPW_URGENT_READ, NULL,
					&get));
		while (stats().timeouts == 0)
			assert_true(spw_store_poll(store, true) >= 0);
		hang_no_more(1);
		assert_int_equal(spw_request_wait(get), far ? 0 : -ETIMEDOUT);
		if (far)
			assert_memory_equal(back, bytes, 1 << 20);
		close_store();
	}
}

/* What all writes in flight name. */
static uint32_t placement_in_flight(void)
{
	uint32_t found = UINT32_MAX;

	for (uint32_t i = 0; i < store->transfers_total; i++) {
		const struct transfer *transfer = &store->transfers[i];

		if (!transfer->in_flight)
			continue;
		assert_true(found == UINT32_MAX || found == transfer->io.placement);
		found = transfer->io.placement;
	}
	return found;
}

DRIVES_CASE(test_what_lasts_is_placed_apart)
{
	const size_t len = 6 * CHUNK_BYTES;
	uint8_t *bytes = pattern(len, 3), *back = memory(len);
	struct iovec run = {.iov_base = bytes, .iov_len = len};
	struct spw_request *requests[4];
	spw_object objects[3];

	open_store(16);
	assert_ok(spw_store_put(store, bytes, len, NULL, &objects[0], &requests[0]));
	poll_once();
	assert_int_equal(placement_in_flight(), PLACEMENT_STEP);
	assert_ok(spw_request_wait(requests[0]));
	assert_ok(spw_store_putv(store, &run, 1, NULL, &objects[1], &requests[1]));
	poll_once();
	assert_int_equal(placement_in_flight(), PLACEMENT_STEP);
	assert_ok(spw_request_wait(requests[1]));
	assert_ok(spw_store_put_copies(store, bytes, len, 1, NULL, &objects[2], &requests[2]));
	poll_once();
	assert_int_equal(placement_in_flight(), PLACEMENT_LASTING);
	assert_ok(spw_request_wait(requests[2]));
	assert_ok(spw_store_get(store, objects[0], 0, back, len, SPW_URGENT_READ, NULL,
				&requests[3]));
	poll_once();
	assert_int_equal(placement_in_flight(), PLACEMENT_OF_QUEUE);
	assert_ok(spw_request_wait(requests[3]));
}

/* STORE-4: a hung drive keeps its copy memory; there must be more, for the other drives. */
DRIVES_CASE(test_hung_drive_leaves_copy_memory)
{
	enum { CHUNKS = 48 };
	const size_t len = CHUNKS * CHUNK_BYTES;
	uint8_t *bytes = pattern(len + 1, 18);
	struct spw_request *requests[CHUNKS];
	uint8_t parts[CHUNKS][512], part[512];
	struct spw_store_opts opts = options(16);
	spw_object object, other;

	opts.write_deadline_ms = 20;
	opts.arena_bytes = 1u << 20; /* as little as there can be: two chunks for each drive */
	open_with(&opts);
	assert_ok(put_wait(bytes, len, &object));
	hang(1);
	assert_ok(put_wait(bytes + 1, len, &other));
	assert_true(!is_retired(0) && is_retired(1) && !is_retired(2));
	expect_identical(other, bytes + 1, len);
	/* Parts of chunks are read by way of copy memory, too. */
	for (uint64_t i = 0; i < CHUNKS; i++)
		assert_ok(spw_store_get(store, object, i * CHUNK_BYTES + 512, parts[i],
					sizeof(parts[i]), SPW_URGENT_READ, NULL, &requests[i]));
	for (uint64_t i = 0; i < CHUNKS; i++) {
		assert_ok(get_wait(other, i * CHUNK_BYTES + 512, part, sizeof(part)));
		assert_memory_equal(part, bytes + 1 + i * CHUNK_BYTES + 512, sizeof(part));
	}
	hang_no_more(1);
	for (uint64_t i = 0; i < CHUNKS; i++) {
		assert_ok(spw_request_wait(requests[i]));
		assert_memory_equal(parts[i], bytes + i * CHUNK_BYTES + 512, sizeof(part));
	}
}

/* An object of a block with a copy on each of the two drives; or one copy, if they are the same. */
static spw_object put_on(const uint8_t *block, uint32_t first, uint32_t second)
{
	for (;;) {
		struct spw_request *request;
		const struct object *object;
		uint32_t one, other;
		spw_object id;

		assert_ok(spw_store_put_copies(store, block, 4096, first == second ? 1 : 2, NULL,
					       &id, &request));
		assert_ok(spw_request_wait(request));
		object = &store->objects[id.value & UINT32_MAX];
		one = store->pieces[object->piece_first].drive;
		other = store->pieces[object->piece_last].drive;
		if ((one == first && other == second) || (one == second && other == first))
			return id;
	}
}

/*
 * STORE-4: reads that failed on one drive wait for their copies on another, which hangs. They are
 * more than there is copy memory for, and fewer than there are transfers. A read from the third
 * drive needs some, too.
 */
DRIVES_CASE(test_reads_that_wait_for_a_slot_leave_copy_memory)
{
	enum { PARTS = 8 };
	uint8_t *block = pattern(4096, 31), *back = memory(2 * 4096);
	uint8_t parts[PARTS][512], part[512];
	struct spw_request *wholes[2], *requests[PARTS];
	struct spw_store_opts opts = options(2);
	spw_object mirrored, hanging, other;
	uint64_t began_ns;

	opts.arena_bytes = 1u << 20;
	opts.objects_max = 256;
	open_with(&opts);
	assert_true(store->bounces_total < PARTS);
	mirrored = put_on(block, 0, 1);
	hanging = put_on(block, 1, 1);
	other = put_on(block, 2, 2);
	hang(1);
	for (unsigned i = 0; i < 2; i++)
		assert_ok(spw_store_get(store, hanging, 0, back + i * 4096, 4096, SPW_URGENT_READ,
					NULL, &wholes[i]));
	poll_once();
	assert_int_equal(store->drives[1].in_flight, 2);
	fail_from(0, SPW_READ, 1, -EIO);
	for (unsigned i = 0; i < PARTS; i++)
		assert_ok(spw_store_get(store, mirrored, 512, parts[i], sizeof(parts[i]),
					SPW_URGENT_READ, NULL, &requests[i]));
	for (unsigned i = 0; i < 4 * PARTS; i++) {
		sim_now_ns += MARGIN_NS / 1000;
		poll_once();
	}
	assert_int_equal(store->drives[1].in_flight, 2);
	began_ns = sim_now_ns;
	assert_ok(get_wait(other, 512, part, sizeof(part)));
	assert_memory_equal(part, block + 512, sizeof(part));
	assert_true(sim_now_ns - began_ns < MARGIN_NS);
	hang_no_more(1);
	for (unsigned i = 0; i < 2; i++) {
		assert_ok(spw_request_wait(wholes[i]));
		assert_memory_equal(back + i * 4096, block, 4096);
	}
	for (unsigned i = 0; i < PARTS; i++) {
		assert_ok(spw_request_wait(requests[i]));
		assert_memory_equal(parts[i], block + 512, sizeof(part));
	}
}

/* More chunks than there can be descriptors for: such a store can be used all the same. */
DRIVES_CASE(test_small_chunks_on_large_drives)
{
	const uint64_t size_bytes = UINT64_C(20) << 40;
	struct sim_drive *drive = &sim_drives[0];
	struct spw_store_opts opts = options(4);
	uint8_t *bytes = pattern(1 << 20, 19);
	struct spw_superblock sb;
	spw_object object;
	const char *why;
	int rc;

	format(1);
	assert_ok(spw_layout__decode(drive->medium, 0, &sb, &why));
	assert_ok(spw_layout__plan(&sb, size_bytes));
	spw_layout__encode(&sb, 0, drive->medium);
	/* There are no bytes so far out: it cannot be read there, and is never written. */
	drive->geometry.size_bytes = drive->size_now_bytes = size_bytes;
	drive->bad[0] = (struct sim_range){.offset_bytes = DRIVE_BYTES, .len_bytes = size_bytes};
	rc = spw_store_open(paths, 1, &opts, &store);
	if (rc == -ENOMEM && getenv("SPW_TEST_VALGRIND")) {
		print_message("valgrind has no room for all descriptors\n");
		skip();
	}
	assert_int_equal(rc, 0);
	assert_ok(put_wait(bytes, 1 << 20, &object));
	expect_identical(object, bytes, 1 << 20);
}

DRIVES_CASE(test_flush)
{
	struct spw_request *request, *second;

	open_store(4);
	assert_ok(spw_store_flush(store, NULL, &request));
	assert_ok(spw_store_flush(store, NULL, &second));
	assert_ok(spw_request_wait(request));
	assert_ok(spw_request_wait(second));
	fail_nth(1, SPW_FLUSH, 1, -EIO);
	assert_ok(spw_store_flush(store, NULL, &request));
	expect_refusal(-EIO, "sim1", spw_request_wait(request));
	expect_empty();
}

/* Trim discards what is free and nothing else. One of the drives has no such command. */
DRIVES_CASE(test_trim)
{
	uint8_t *bytes = pattern(1 << 20, 14);
	spw_object objects[8];
	struct spw_request *request;
	uint64_t before;

	open_store(4);
	for (unsigned i = 0; i < 8; i++)
		assert_ok(put_wait(bytes, 1 << 20, &objects[i]));
	for (unsigned i = 0; i < 8; i += 2)
		assert_ok(spw_store_free(store, objects[i]));
	before = stats().used_bytes;
	assert_ok(spw_store_trim(store, NULL, &request));
	assert_ok(spw_request_wait(request));
	assert_int_equal(stats().used_bytes, before);
	assert_true(stats().bytes_trimmed > 30u << 20);
	for (unsigned i = 1; i < 8; i += 2)
		expect_identical(objects[i], bytes, 1 << 20);
	assert_ok(put_wait(bytes, 1 << 20, &objects[0]));
	expect_identical(objects[0], bytes, 1 << 20);
}

RUN_CASES(NULL, NULL)
