/* SPDX-License-Identifier: MIT */
/*
 * tests/unit/test_sim_loads.c - urgent gets while puts have the drives: what stands before them
 *
 * In simulated time, so that it is the store's order that is measured: beside it the same reads and
 * writes, issued straight to the same drives.
 */
#include "store/checksum_pool.h"
#include "store/priority.h"
#include "store/worker.h"
#include "tests/unit/sim_rig.h"

#define DEPTH       24
#define LOADS       1000
#define TARGETS     (2 * DRIVES)
#define PUTS        6
#define PUT_CHUNKS  24
#define FIO_OFFSET  (8u << 20) /* of reads; writes are below */
#define PERCENT_MAX 105        /* luck decides by a little what a drive takes */
#define PERCENT_FEW 50         /* behind a sixth of the writes, and what else there is */

static uint64_t times_ns[LOADS];

static int compare_times(const void *a, const void *b)
{
	uint64_t left = *(const uint64_t *)a, right = *(const uint64_t *)b;

	return left < right ? -1 : left > right;
}

static uint64_t p99_ns(void)
{
	qsort(times_ns, LOADS, sizeof(times_ns[0]), compare_times);
	return times_ns[LOADS - 1 - LOADS / 100];
}

/* ---- By the store ---- */

static spw_object targets[TARGETS], written[PUTS];
static enum { IDLE, UNDER_WAY, STORED } put_states[PUTS];
static uint8_t *put_bytes, *load_bytes;

static void note_put(void *context, int res)
{
	assert_true(res == 0 || res == -ECANCELED); /* of those that closing found */
	put_states[(spw_object *)context - written] = STORED;
}

static void put_again(void)
{
	for (unsigned i = 0; i < PUTS; i++) {
		const struct spw_notify notify = {.done = note_put, .context = &written[i]};

		if (put_states[i] == UNDER_WAY)
			continue;
		if (put_states[i] == STORED)
			assert_ok(spw_store_free(store, written[i]));
		put_states[i] = UNDER_WAY;
		assert_ok(spw_store_put(store, put_bytes, PUT_CHUNKS * CHUNK_BYTES, &notify,
					&written[i], NULL));
	}
}

static uint64_t load(unsigned number)
{
	uint64_t begun_ns = sim_now_ns;
	struct spw_request *get;
	int rc;

	assert_ok(spw_store_get(store, targets[number % TARGETS], 0, load_bytes, CHUNK_BYTES,
				SPW_URGENT_READ, NULL, &get));
	while ((rc = spw_request_test(get)) == -EINPROGRESS) {
		/* What has arrived is summed before time goes on. */
		if (!spw_store__pool_waits(store->pool))
			turn();
		put_again();
	}
	assert_ok(rc);
	return sim_now_ns - begun_ns;
}

static uint64_t p99_of_store_ns(void)
{
	struct spw_store_opts opts = options(DEPTH);

	opts.arena_bytes = 32u << 20;
	open_with(&opts);
	put_bytes = pattern(PUT_CHUNKS * CHUNK_BYTES, 1);
	load_bytes = memory(CHUNK_BYTES);
	memset(put_states, 0, sizeof(put_states));
	for (unsigned i = 0; i < TARGETS; i++)
		assert_ok(put_wait(put_bytes, CHUNK_BYTES, &targets[i]));
	for (unsigned i = 0; i < 100; i++) {
		put_again();
		turn();
	}
	for (unsigned i = 0; i < LOADS; i++)
		times_ns[i] = load(i);
	close_store();
	return p99_ns();
}

/* ---- By the engine alone ---- */

static struct spw_queue *queue;
static bool read_ended;

static void write_more(struct spw_io *io)
{
	assert_int_equal(io->res, CHUNK_BYTES);
	if (io->context)
		assert_ok(spw_queue_prepare(queue, io));
}

static void end_read(struct spw_io *io)
{
	assert_int_equal(io->res, CHUNK_BYTES);
	read_ended = true;
}

static void read_one(unsigned number)
{
	struct spw_io io = {.op = SPW_READ,
			    .device = number % DRIVES,
			    .buf = load_bytes,
			    .len_bytes = CHUNK_BYTES,
			    .offset_bytes = FIO_OFFSET,
			    .done = end_read};

	read_ended = false;
	assert_ok(spw_queue_prepare(queue, &io));
	while (!read_ended)
		assert_true(spw_queue_reap(queue, 1, -1) >= 0);
}

static uint64_t p99_of_engine_ns(void)
{
	static struct spw_io writes[DRIVES * DEPTH];
	struct spw_device_opts device_opts;
	struct spw_device *devices[DRIVES];
	struct spw_queue_opts opts;

	spw_device_opts_init(&device_opts, sizeof(device_opts));
	device_opts.exclusive = true;
	for (unsigned i = 0; i < DRIVES; i++) {
		assert_ok(spw_device_open(paths[i], &device_opts, &devices[i]));
		assert_ok(spw_device_lock(devices[i], 0, DRIVE_BYTES));
	}
	spw_queue_opts_init(&opts, sizeof(opts));
	opts.depth = DEPTH + 1;
	assert_ok(spw_queue_open(devices, DRIVES, &opts, &queue));
	for (unsigned i = 0; i < DRIVES * DEPTH; i++) {
		writes[i] = (struct spw_io){.op = SPW_WRITE,
					    .device = i % DRIVES,
					    .buf = put_bytes,
					    .len_bytes = CHUNK_BYTES,
					    .offset_bytes = i / DRIVES * CHUNK_BYTES,
					    .done = write_more,
					    .context = queue};
		assert_ok(spw_queue_prepare(queue, &writes[i]));
	}
	for (unsigned i = 0; i < LOADS; i++) {
		uint64_t begun_ns = sim_now_ns;

		read_one(i);
		times_ns[i] = sim_now_ns - begun_ns;
	}
	for (unsigned i = 0; i < DRIVES * DEPTH; i++)
		writes[i].context = NULL;
	spw_queue_close(queue);
	for (unsigned i = 0; i < DRIVES; i++)
		spw_device_close(devices[i]);
	return p99_ns();
}

static void compare(const char *words, unsigned percent_max)
{
	uint64_t ours = p99_of_store_ns(), theirs = p99_of_engine_ns();

	print_message("%s: p99 of a load %llu ns, of the same read without a store %llu ns\n",
		      words, (unsigned long long)ours, (unsigned long long)theirs);
	if (ours * 100 > theirs * percent_max)
		fail_msg("%s: the store lets a load wait %llu ns, its drives %llu ns", words,
			 (unsigned long long)ours, (unsigned long long)theirs);
}

DRIVES_CASE(test_loads_on_drives_that_serve_in_order)
{
	compare("in order", PERCENT_FEW);
}

DRIVES_CASE(test_loads_on_drives_where_reads_pass_writes)
{
	for (unsigned i = 0; i < DRIVES; i++)
		sim_drives[i].reads_pass = true;
	compare("reads pass", PERCENT_MAX);
}

/* ---- What they need not wait for ---- */

static void in_flight_is(unsigned count)
{
	for (unsigned i = 0; i < DRIVES; i++)
		assert_int_equal(store->drives[i].in_flight, count);
}

/* Just after a wait, a drive has a sixth of what is put; a second later, all. */
DRIVES_CASE(test_who_waits_has_few_writes_before_him)
{
	const size_t len = 2 * DRIVES * DEPTH * CHUNK_BYTES;
	uint8_t *bytes = pattern(len, 5), *back = memory(CHUNK_BYTES);
	struct spw_request *request;
	spw_object stored, another;

	open_store(DEPTH);
	assert_ok(put_wait(bytes, CHUNK_BYTES, &stored));
	for (unsigned pass = 0; pass < 2; pass++) {
		assert_ok(spw_store_get(store, stored, 0, back, CHUNK_BYTES, SPW_URGENT_READ, NULL,
					&request));
		assert_ok(spw_request_wait(request));
		for (unsigned i = 0; i < DRIVES; i++)
			hang(i);
		if (pass == 1)
			sim_now_ns += 1100000000;
		assert_ok(spw_store_put(store, bytes, len, NULL, &another, &request));
		poll_once();
		in_flight_is(pass == 1 ? DEPTH : DEPTH / 6);
		for (unsigned i = 0; i < DRIVES; i++)
			hang_no_more(i);
		assert_ok(spw_request_wait(request));
		assert_ok(spw_store_free(store, another));
	}
}

/* What counts is how long they take: of small ones a drive has as many as ever. */
DRIVES_CASE(test_small_writes_are_no_longer_for_who_waits)
{
	enum { FEW = 16, SMALL = DRIVES * FEW + 8 };
	uint8_t *bytes = pattern(CHUNK_BYTES, 6), *back = memory(CHUNK_BYTES);
	struct spw_request *puts[SMALL], *get;
	spw_object stored, small[SMALL];

	open_store(FEW);
	assert_ok(put_wait(bytes, CHUNK_BYTES, &stored));
	assert_ok(spw_store_get(store, stored, 0, back, CHUNK_BYTES, SPW_URGENT_READ, NULL, &get));
	assert_ok(spw_request_wait(get));
	for (unsigned i = 0; i < DRIVES; i++)
		hang(i);
	for (unsigned i = 0; i < SMALL; i++)
		assert_ok(spw_store_put(store, bytes, 4096, NULL, &small[i], &puts[i]));
	poll_once();
	in_flight_is(FEW);
	for (unsigned i = 0; i < DRIVES; i++)
		hang_no_more(i);
	for (unsigned i = 0; i < SMALL; i++)
		assert_ok(spw_request_wait(puts[i]));
}

/* Puts have all slots, and none of these ends: urgent reads have some that are theirs alone. */
DRIVES_CASE(test_writes_that_hang_stop_no_urgent_read)
{
	const size_t len = 4 * DRIVES * DEPTH * CHUNK_BYTES / 8;
	uint8_t *bytes = pattern(len, 2), *back = memory(CHUNK_BYTES);
	struct spw_request *put, *get;
	spw_object stored, another;
	uint64_t begun_ns;

	open_store(8);
	assert_ok(put_wait(bytes, CHUNK_BYTES, &stored));
	for (unsigned i = 0; i < DRIVES; i++)
		hang(i);
	assert_ok(spw_store_put(store, bytes, len, NULL, &another, &put));
	poll_once();
	for (unsigned i = 0; i < DRIVES; i++) {
		sim_disarm(i);
		sim_drives[i].reads_pass = true;
		assert_int_equal(store->drives[i].in_flight, 8);
	}
	assert_ok(spw_store_get(store, stored, 0, back, CHUNK_BYTES, SPW_PREFETCH, NULL, &get));
	poll_once();
	assert_int_equal(spw_request_test(get), -EINPROGRESS);
	for (unsigned i = 0; i < DRIVES; i++)
		assert_int_equal(store->drives[i].in_flight, 8);
	spw_request_raise(get, SPW_URGENT_READ);
	begun_ns = sim_now_ns;
	assert_ok(spw_request_wait(get));
	assert_true(sim_now_ns - begun_ns < MARGIN_NS);
	assert_int_equal(memcmp(back, bytes, CHUNK_BYTES), 0);
	assert_int_equal(spw_request_test(put), -EINPROGRESS);
	for (unsigned i = 0; i < DRIVES; i++)
		hang_no_more(i);
	assert_ok(spw_request_wait(put));
}

/* It is a write's turn, and the next chunk goes to another drive: reads of this one go on. */
DRIVES_CASE(test_a_turn_that_no_write_takes_is_a_reads)
{
	uint8_t *bytes = pattern(CHUNK_BYTES, 3), *back = memory(CHUNK_BYTES);
	struct spw_request *put, *get;
	spw_object stored, another;
	uint32_t drive;

	open_store(4);
	assert_ok(put_wait(bytes, CHUNK_BYTES, &stored));
	drive = (uint32_t)store->pieces[0].drive;
	assert_int_equal(store->drives[drive].bytes_placed, CHUNK_BYTES);
	store->drives[drive].bypassed[PRIORITY_WRITE] = BYPASSES_MAX;
	store->drives[drive].bytes_placed = 100 * CHUNK_BYTES;
	assert_ok(spw_store_get(store, stored, 0, back, CHUNK_BYTES, SPW_URGENT_READ, NULL, &get));
	assert_ok(spw_store_put(store, bytes, CHUNK_BYTES, NULL, &another, &put));
	/* The others are full, and this one, which is ahead, has enough. */
	for (unsigned i = 0; i < DRIVES; i++)
		store->drives[i].in_flight += i == drive ? 1 : 4;
	(void)spw_store__turn(store, false, 0);
	assert_int_equal(store->drives[drive].in_flight, 2);
	assert_non_null(sim_drives[drive].active_first);
	assert_int_equal(sim_drives[drive].active_first->op, SPW_READ);
	for (unsigned i = 0; i < DRIVES; i++)
		store->drives[i].in_flight -= i == drive ? 1 : 4;
	assert_ok(spw_request_wait(get));
	assert_ok(spw_request_wait(put));
}

/* Writes that wait for their sum, or are about to have it. */
static unsigned checksum_pending(void)
{
	unsigned count = 0;

	for (uint32_t i = 0; i < store->transfers_total; i++)
		count += store->transfers[i].checksum_pending || store->transfers[i].posted;
	return count;
}

/* Between two chunks that are summed the worker looks for urgent reads. */
DRIVES_CASE(test_a_load_waits_for_one_sum)
{
	const size_t len = 12 * CHUNK_BYTES;
	uint8_t *bytes = pattern(len, 4), *back = memory(CHUNK_BYTES);
	struct spw_request *put, *get;
	spw_object stored, another;

	open_store(4);
	assert_ok(put_wait(bytes, CHUNK_BYTES, &stored));
	for (unsigned i = 0; i < DRIVES; i++) {
		hang(i);
	}
	assert_ok(spw_store_put(store, bytes, len, NULL, &another, &put));
	(void)spw_store__turn(store, false, 0);
	assert_int_equal(store->transfers_in_flight, 12);
	assert_int_equal(checksum_pending(), 11);
	for (unsigned i = 0; i < DRIVES; i++)
		sim_disarm(i);
	assert_ok(spw_store_get(store, stored, 0, back, CHUNK_BYTES, SPW_URGENT_READ, NULL, &get));
	(void)spw_store__turn(store, false, 0);
	assert_int_equal(store->transfers_in_flight, 13);
	assert_int_equal(checksum_pending(), 10);
	assert_ok(spw_request_wait(get));
	for (unsigned i = 0; i < DRIVES; i++)
		hang_no_more(i);
	assert_ok(spw_request_wait(put));
}

RUN_CASES(NULL, NULL)
