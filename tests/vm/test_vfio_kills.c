/* SPDX-License-Identifier: MIT */
/*
 * tests/vm/test_vfio_kills.c - kill -9 of a process that drives its drives itself, in the middle of
 * its I/O, or as it opens them, again and again
 *
 * No one tells the controllers to stop: the kernel takes the memory away from them and resets them.
 * The next process must find them good for use at once, the store intact, and not one byte changed
 * where the killed one did not write: the second partition. And what the killed one had in flight
 * has landed by then, or never does.
 */
#include "tests/integration/test_child.h"
#include "tests/vm/machine.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <sys/mman.h>

#define DRIVES    2
#define KILLS_MAX 100
#define SLOTS     8
/* of them, after each kill: to make and compare bytes takes an emulated processor longest */
#define VERIFIED     2
#define OBJECT_BYTES (MIB + 4096)
#define KEPT_BYTES   MIB /* of each drive, in the partition that no process has open */
#define KEPT_SEED    77
#define DELAY_US_MAX 30000
#define OPEN_EVERY   5u     /* so often as it opens them, */
#define OPEN_US_MAX  400000 /* which takes about so long */

static uint64_t seed;
static uint64_t kept_offset_bytes[DRIVES];
static uint8_t *memory; /* SLOTS objects */

static uint8_t *slot(unsigned i)
{
	return memory + i * (size_t)OBJECT_BYTES;
}

static int try_open_store(struct spw_store **store)
{
	struct spw_store_opts opts = default_opts();

	opts.arena_bytes = 16 * MIB;
	return try_open(drive_paths, DRIVES, &opts, store);
}

/*
 * Puts and gets, all slots at a time, without end. @opening: it says so before it opens the store,
 * not after.
 */
static void work(uint64_t opening)
{
	struct spw_request *requests[SLOTS];
	spw_object objects[SLOTS];
	struct spw_store *store;

	if (opening)
		child_says();
	child_check(try_open_store(&store) == 0);
	for (unsigned round = 0;; round++) {
		for (unsigned i = 0; i < SLOTS; i++)
			child_check(spw_store_put(store, slot(i), OBJECT_BYTES, NULL, &objects[i],
						  &requests[i]) == 0);
		if (round == 0 && !opening)
			child_says();
		for (unsigned i = 0; i < SLOTS; i++)
			child_check(spw_request_wait(requests[i]) == 0);
		for (unsigned i = 0; i < SLOTS; i++)
			child_check(spw_store_get(store, objects[i], 0, slot(i), OBJECT_BYTES,
						  SPW_PREFETCH, NULL, &requests[i]) == 0);
		for (unsigned i = 0; i < SLOTS; i++) {
			child_check(spw_request_wait(requests[i]) == 0);
			child_check(spw_store_free(store, objects[i]) == 0);
		}
	}
}

static void move_kept(bool write_it)
{
	uint8_t *bytes = aligned_alloc(4096, KEPT_BYTES);

	assert_non_null(bytes);
	for (unsigned i = 0; i < DRIVES; i++) {
		struct spw_device *device;

		assert_ok(spw_device_open(drive_paths[i], NULL, &device));
		content_fill(bytes, KEPT_BYTES, KEPT_SEED + i);
		if (write_it)
			assert_ok(
				spw_device_pwrite(device, bytes, KEPT_BYTES, kept_offset_bytes[i]));
		memset(bytes, 0, KEPT_BYTES);
		assert_ok(spw_device_pread(device, bytes, KEPT_BYTES, kept_offset_bytes[i]));
		assert_int_equal(content_differs(bytes, KEPT_BYTES, KEPT_SEED + i, 0), KEPT_BYTES);
		spw_device_close(device);
	}
	free(bytes);
}

/* What a new process finds: this one, which has nothing open. */
static void verify(unsigned round)
{
	uint8_t *back = malloc(OBJECT_BYTES);
	spw_object objects[VERIFIED];
	struct spw_store *store;

	assert_non_null(back);
	assert_ok(try_open_store(&store));
	for (unsigned i = 0; i < VERIFIED; i++) {
		content_fill(slot(i), OBJECT_BYTES, round * VERIFIED + i);
		objects[i] = put_wait(store, slot(i), OBJECT_BYTES);
	}
	move_kept(false);
	for (unsigned i = 0; i < VERIFIED; i++) {
		assert_ok(get_wait(store, objects[i], 0, back, OBJECT_BYTES));
		assert_int_equal(content_differs(back, OBJECT_BYTES, round * VERIFIED + i, 0),
				 OBJECT_BYTES);
	}
	close_store(store);
	free(back);
}

CHILD_CASE(test_killed)
{
	struct spw_drive_info drives[DRIVES];
	const char *text = getenv("SPW_KILLS");
	unsigned kills = text ? (unsigned)strtoul(text, NULL, 10) : KILLS_MAX;

	seed = random_seed();
	(void)format_drives(DRIVES, 2, MIB);
	for (unsigned i = 0; i < DRIVES; i++)
		drives[i].size = sizeof(drives[i]);
	assert_ok(spw_check(drive_paths, DRIVES, NULL, drives));
	for (unsigned i = 0; i < DRIVES; i++)
		kept_offset_bytes[i] =
			drives[i].data_offset_bytes + drives[i].partition_bytes + 4 * MIB;
	move_kept(true);
	memory = malloc(SLOTS * (size_t)OBJECT_BYTES);
	assert_non_null(memory);
	content_fill(memory, SLOTS * (size_t)OBJECT_BYTES, 1);
	for (unsigned round = 1; round <= kills; round++) {
		bool opening = round % OPEN_EVERY == 0;

		kill_at_work(work, opening, &seed, opening ? OPEN_US_MAX : DELAY_US_MAX);
		verify(round);
	}
	assert_ok(spw_check(drive_paths, DRIVES, NULL, NULL));
	printf("killed %u times, every %uth as it opened its drives\n", kills, OPEN_EVERY);
	free(memory);
}

/* ---- Writes that are in flight at the end ---- */

/* of a drive that the commands of the environment make slow, and fast again */
#define LATE_DRIVE      2u
#define LATE_DRIVE_SLOW "SPW_VM_SLOW"
#define LATE_DRIVE_FAST "SPW_VM_FAST"
#define LATE_ROUNDS     8u
/* at a time, each of MIB and to a place of its own: seconds of work for a slow drive */
#define LATE_WRITES 16u
#define LATE_LOOKS  3u

/* In memory that a killed process leaves behind. */
static struct late_count {
	atomic_uint begun, ended;
} * late_count;

static struct late_writer {
	struct spw_device *device;
	struct spw_arena *arena;
	struct spw_queue *queue;
	struct spw_io ios[LATE_WRITES];
	uint64_t stamp; /* of the next write */
	bool goes_on;
} late;

static void late_begin(struct spw_io *io)
{
	for (uint64_t *at = (uint64_t *)io->buf; at < (uint64_t *)io->buf + MIB / sizeof(*at); at++)
		*at = late.stamp;
	late.stamp++;
	atomic_fetch_add(&late_count->begun, 1);
	child_check(spw_queue_prepare(late.queue, io) == 0);
}

static void late_ended(struct spw_io *io)
{
	child_check(io->res == (int32_t)MIB);
	atomic_fetch_add(&late_count->ended, 1);
	if (late.goes_on)
		late_begin(io);
}

/* All of them are on their way when this returns. */
static void late_open(void)
{
	struct spw_queue_opts queue_opts;
	struct spw_arena_opts arena_opts;
	void *buffers;

	spw_arena_opts_init(&arena_opts, sizeof(arena_opts));
	arena_opts.bytes = LATE_WRITES * MIB;
	spw_queue_opts_init(&queue_opts, sizeof(queue_opts));
	queue_opts.depth = LATE_WRITES;
	child_check(spw_device_open(drive_paths[LATE_DRIVE], NULL, &late.device) == 0);
	child_check(spw_arena_open(&arena_opts, &late.arena) == 0);
	child_check(spw_arena_alloc(late.arena, LATE_WRITES * MIB, &buffers) == 0);
	queue_opts.arena = late.arena;
	child_check(spw_queue_open(&late.device, 1, &queue_opts, &late.queue) == 0);
	for (unsigned i = 0; i < LATE_WRITES; i++) {
		late.ios[i] = (struct spw_io){.op = SPW_WRITE,
					      .buf = (char *)buffers + i * MIB,
					      .len_bytes = MIB,
					      .offset_bytes = i * MIB,
					      .done = late_ended};
		late_begin(&late.ios[i]);
	}
	child_check(spw_queue_submit(late.queue) >= 0);
}

static void late_work(uint64_t stamp)
{
	late.stamp = stamp;
	late.goes_on = true;
	late_open();
	child_says();
	for (;;)
		child_check(spw_queue_reap(late.queue, 1, -1) >= 0);
}

/* What the drive has where it was written to. */
static void late_read(struct spw_device *device, uint8_t *bytes)
{
	assert_ok(spw_device_pread(device, bytes, LATE_WRITES * MIB, 0));
}

static uint8_t *late_bytes(void)
{
	uint8_t *bytes = aligned_alloc(4096, LATE_WRITES * MIB);

	assert_non_null(bytes);
	return bytes;
}

/*
 * Would the test below see a write that lands between its looks? Here no process is killed, and
 * some writes do.
 */
CASE(test_a_late_write_is_seen)
{
	uint8_t *first = late_bytes(), *then = late_bytes();

	assert_true(machine_run(LATE_DRIVE_SLOW));
	late = (struct late_writer){.stamp = 1};
	*late_count = (struct late_count){0};
	late_open();
	late_read(late.device, first);
	assert_true(machine_run(LATE_DRIVE_FAST));
	while (atomic_load(&late_count->ended) < LATE_WRITES)
		assert_true(spw_queue_reap(late.queue, 1, -1) >= 0);
	late_read(late.device, then);
	assert_memory_not_equal(first, then, LATE_WRITES * MIB);
	spw_queue_close(late.queue);
	spw_device_close(late.device);
	spw_arena_close(late.arena);
	free(first);
	free(then);
}

/* Return when the controller is ours, without waiting for the killed process to be gone. */
static struct spw_device *late_take_over(void)
{
	struct spw_device *device;
	int rc;

	assert_int_equal(kill(children[0].pid, SIGKILL), 0);
	do
		rc = spw_device_open(drive_paths[LATE_DRIVE], NULL, &device);
	while (rc == -EBUSY);
	assert_ok(rc);
	return device;
}

CHILD_CASE(test_what_was_in_flight_lands_before_or_never)
{
	uint8_t *first = late_bytes(), *then = late_bytes();
	unsigned in_flight = 0;

	seed = random_seed();
	for (unsigned round = 0; round < LATE_ROUNDS; round++) {
		struct timespec delay = {.tv_nsec =
						 (long)(random_below(&seed, DELAY_US_MAX) * 1000)};
		struct spw_device *device;

		assert_true(machine_run(LATE_DRIVE_SLOW));
		*late_count = (struct late_count){0};
		await_step(start_child(0, late_work, (uint64_t)(round + 1) << 32));
		(void)nanosleep(&delay, NULL);
		device = late_take_over();
		late_read(device, first);
		/* The counts are those of its death: it cannot go on. */
		in_flight += atomic_load(&late_count->begun) - atomic_load(&late_count->ended);
		/* What would still be on its way has nothing to wait for now. */
		assert_true(machine_run(LATE_DRIVE_FAST));
		for (unsigned look = 0; look < LATE_LOOKS; look++) {
			late_read(device, then);
			assert_memory_equal(first, then, LATE_WRITES * MIB);
		}
		spw_device_close(device);
		assert_int_equal(reap(&children[0]), -SIGKILL);
	}
	printf("killed %u times with %u writes in flight\n", LATE_ROUNDS, in_flight);
	assert_true(in_flight >= LATE_ROUNDS);
	free(first);
	free(then);
}

static int set_up(void **state)
{
	int rc = drives_from_environment(state);

	/* The child must find them free. */
	release_controllers();
	late_count = mmap(NULL, sizeof(*late_count), PROT_READ | PROT_WRITE,
			  MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	return rc == 0 && late_count != MAP_FAILED ? 0 : -1;
}

RUN_CASES(set_up, NULL)
